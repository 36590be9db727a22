//! Reading the records of many tags in etcd.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use leaf_core::{Step, Tag, record_version};
use leaf_segment::store::{TagCursor, TagPage, TagSettings};
use leaf_segment::{StoreError, StoreErrorKind, TagRecord};
use leaf_shape::MeaningError;

use super::record::FORMAT_VERSION;
use super::store::{EtcdStore, KEYS_AT_ONCE};
use crate::administration::Note;
use crate::record;

impl EtcdStore {
    /// The records of these tags.
    pub(super) async fn read_records(&self, tags: &[Tag]) -> Result<Vec<TagRecord>, StoreError> {
        let operation = format!("read {} tags in etcd", tags.len());
        let (mut rows, mut settings) = (Vec::with_capacity(tags.len()), HashMap::new());
        let mut damaged = Vec::new();
        for tags in tags.chunks(KEYS_AT_ONCE / 2) {
            for kv in self.read_values(&operation, tags).await? {
                let name = kv.key_str().ok().and_then(|key| {
                    key.strip_prefix(&self.plain).or_else(|| key.strip_prefix(&self.sequences))
                });
                let Some(Ok(tag)) = name.map(Tag::parse) else { continue };
                match self.parse(&kv, &operation) {
                    Ok(seen) if seen.record.deleted => {}
                    Ok(seen) => {
                        rows.push(seen.record.row(&tag));
                        settings.extend(seen.record.settings_text(&tag));
                    }
                    // A record of a later version is shown with made-up settings of that version,
                    // which are refused as newer: nodes go on with the ids in their memory and
                    // allocate no more.
                    Err(_) if record_version(kv.value()).is_ok_and(|it| it > FORMAT_VERSION) => {
                        let version = record_version(kv.value()).unwrap_or_default();
                        settings.insert(tag.as_str().into(), format!("{{\"version\":{version}}}"));
                        rows.push(record::Row {
                            name: tag.as_str().into(),
                            max_id: Some(0),
                            step: None,
                            description: None,
                            meaning: None,
                        });
                    }
                    Err(error) => damaged.push(TagRecord {
                        tag,
                        max_id: 0,
                        step: Step::new(0),
                        description: None,
                        meaning: Err(MeaningError::Damaged(error.kind().to_string())),
                        settings: Ok(TagSettings::default()),
                    }),
                }
            }
        }
        let mut records = record::read(rows, settings);
        records.retain(|record| damaged.iter().all(|damaged| damaged.tag != record.tag));
        records.extend(damaged);
        Ok(records)
    }

    /// The records of the next `most` keys whose names begin with `begin`.
    pub(super) async fn read_page(
        &self,
        after: Option<&TagCursor>,
        begin: &str,
        most: usize,
    ) -> Result<TagPage, StoreError> {
        let (plain, after) = after.map_or((true, ""), |after| (after.plain, &*after.name));
        let after = after.strip_prefix(begin).unwrap_or_default();
        let prefix = if plain { &self.plain } else { &self.sequences };
        let prefix = &format!("{prefix}{begin}");
        let operation = "read the names of tags in etcd";
        let read = self.cluster.read_names(operation, prefix, after, most).await;
        let (names, more) = match read {
            Ok((names, more)) => {
                let names: Vec<String> =
                    names.into_iter().map(|name| format!("{begin}{name}")).collect();
                self.sequences_seen.fetch_or(!plain && !names.is_empty(), Ordering::Relaxed);
                (names, more)
            }
            // A role without a right on the keys of sequences has plain tags only. But if others
            // were read before, the right was lost, and these tags still exist: that is an error.
            Err(error)
                if plain
                    || *error.kind() != StoreErrorKind::Refused
                    || self.sequences_seen.load(Ordering::Relaxed) =>
            {
                return Err(error);
            }
            Err(error) => {
                tracing::debug!("{error}: there are plain tags only");
                (Vec::new(), false)
            }
        };
        let next = match names.last().filter(|_| more) {
            Some(last) => Some(TagCursor { plain, name: last.clone() }),
            // The keys of the others come next.
            None => plain.then(|| TagCursor { plain: false, name: String::new() }),
        };
        let mut tags = Vec::with_capacity(names.len());
        let is_note = |name: &str| Note::ALL.iter().any(|note| note.key() == name);
        for name in names.iter().filter(|name| !is_note(name)) {
            match Tag::parse(name) {
                Ok(tag) => tags.push(tag),
                Err(_) => tracing::warn!(?name, "a key in etcd is left out: it names no valid tag"),
            }
        }
        let mut records = self.read_records(&tags).await?;
        // One at both keys was among the plain tags.
        records.retain(|record| plain || record.meaning != Err(MeaningError::Twice));
        Ok(TagPage { records, next })
    }
}
