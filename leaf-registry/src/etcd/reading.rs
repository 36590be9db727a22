//! Reading the records of all tags in etcd, page by page.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use leaf_core::Tag;
use leaf_segment::{StoreError, StoreErrorKind, TagRecord};

use super::record::{FORMAT_VERSION, Record};
use super::store::EtcdStore;
use crate::administration::SHARD_MEMORY;
use crate::record;

impl EtcdStore {
    /// The records of all tags. A role without a right on the keys of sequences has plain tags
    /// only.
    pub(super) async fn read_all(&self) -> Result<Vec<TagRecord>, StoreError> {
        let (mut rows, mut settings) = (Vec::new(), HashMap::new());
        self.read_prefix(&self.plain, &mut rows, &mut settings).await?;
        let plain = rows.len();
        match self.read_prefix(&self.sequences, &mut rows, &mut settings).await {
            Ok(()) => {
                self.sequences_seen.fetch_or(rows.len() > plain, Ordering::Relaxed);
            }
            // If sequences were read before, losing the right to read them does not mean that they
            // are gone: it is an error.
            Err(error)
                if *error.kind() != StoreErrorKind::Refused
                    || self.sequences_seen.load(Ordering::Relaxed) =>
            {
                return Err(error);
            }
            Err(error) => tracing::debug!("{error}: there are plain tags only"),
        }
        Ok(record::read(rows, settings))
    }

    /// Reads all records under a prefix, page by page, into rows and settings. A record that cannot
    /// be read is left out with a warning, so that one of them does not keep all tags from being
    /// served.
    async fn read_prefix(
        &self,
        prefix: &str,
        rows: &mut Vec<record::Row>,
        settings: &mut HashMap<String, String>,
    ) -> Result<(), StoreError> {
        let operation = "read the tags in etcd";
        let read = self.cluster.read_prefix(operation, prefix, |kv| {
            let name = kv.key_str().ok().and_then(|key| key.strip_prefix(prefix));
            if name == Some(SHARD_MEMORY) {
                return;
            }
            match (name.map(Tag::parse), self.parse(kv, operation)) {
                (Some(Ok(_)), Ok(seen)) if seen.record.deleted => {}
                (Some(Ok(tag)), Ok(seen)) => {
                    rows.push(seen.record.row(&tag));
                    settings.extend(seen.record.settings_text(&tag));
                }
                // A record of a later version: list the tag with made-up settings of that version,
                // which nodes refuse as newer: they keep serving its ids in memory and allocate no
                // more.
                (Some(Ok(tag)), Err(_))
                    if Record::version(kv.value()).is_ok_and(|it| it > FORMAT_VERSION) =>
                {
                    let version = Record::version(kv.value()).unwrap_or_default();
                    let name = tag.as_str().to_owned();
                    settings.insert(name.clone(), format!("{{\"version\":{version}}}"));
                    rows.push(record::Row {
                        name,
                        max_id: Some(0),
                        step: None,
                        description: None,
                        meaning: None,
                    });
                }
                (Some(Ok(_)), Err(error)) => {
                    let key = String::from_utf8_lossy(kv.key());
                    tracing::warn!(%key, "a tag is left out: {error}");
                }
                _ => tracing::warn!(
                    key = %String::from_utf8_lossy(kv.key()),
                    "a key in etcd is left out: its name is no valid tag"
                ),
            }
        });
        read.await
    }
}
