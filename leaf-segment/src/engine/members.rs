//! Members of families: their records are read together with those of their families, and a tag
//! without a record may be made by its family.
//!
//! Invariant: a member's record is applied only with its family's settings filled in, as both were
//! read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use leaf_core::Tag;

use super::shared::Shared;
use crate::store::{Family, MOST_RECORDS, Member};
use crate::{SegmentError, SegmentErrorKind, StoreError, StoreErrorKind, TagRecord};

/// Whose records are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Tags that are in memory already.
    Again,
    /// Names that are looked up.
    LookUp,
}

impl Shared {
    /// Reads the records of these tags and of their families, and fills in the families' settings.
    /// For names that are looked up and have no record, reads the families that could make them.
    /// `guessed` families are read in one statement with the tags, as far as it has room.
    pub(crate) async fn read_records(
        &self,
        what: &str,
        reading: Reading,
        tags: &[Tag],
        guessed: HashSet<Tag>,
    ) -> Result<HashMap<Tag, TagRecord>, StoreError> {
        let mut names = tags.to_vec();
        names.extend(guessed.into_iter().filter(|family| !tags.contains(family)));
        names.truncate(MOST_RECORDS.max(tags.len()));
        let mut records = HashMap::with_capacity(names.len());
        self.read_into(&mut records, what, reading, &names).await?;
        let mut families: HashSet<Tag> = records.values().filter_map(TagRecord::made_by).collect();
        if reading == Reading::LookUp {
            let missing = tags.iter().filter(|tag| !records.contains_key(*tag));
            families.extend(missing.filter_map(Family::of));
        }
        let families: Vec<Tag> =
            families.into_iter().filter(|family| !names.contains(family)).collect();
        for families in families.chunks(MOST_RECORDS) {
            self.read_into(&mut records, what, reading, families).await?;
        }
        // One whose settings cannot be read may be a family, too.
        let families =
            records.values().filter(|record| record.is_family() || record.settings.is_err());
        let families: HashMap<Tag, TagRecord> =
            families.map(|family| (family.tag.clone(), family.clone())).collect();
        for record in records.values_mut() {
            if let Some(family) = record.made_by().and_then(|family| families.get(&family)) {
                record.follow_family(family);
            }
        }
        Ok(records)
    }

    async fn read_into(
        &self,
        records: &mut HashMap<Tag, TagRecord>,
        what: &str,
        reading: Reading,
        names: &[Tag],
    ) -> Result<(), StoreError> {
        let store = &self.store_client.store;
        let request = match reading {
            Reading::Again => store.records(names),
            Reading::LookUp => store.look_up(names),
        };
        let read = self.store_client.read(what, request).await?;
        records.extend(read.into_iter().map(|record| (record.tag.clone(), record)));
        Ok(())
    }

    /// Makes each of these tags that has no record but a family in `records`, and adds the new
    /// records. Returns the errors of those that could not be made.
    pub(crate) async fn make_missing(
        &self,
        tags: &[Tag],
        records: &mut HashMap<Tag, TagRecord>,
    ) -> HashMap<Tag, SegmentError> {
        let mut of_families: HashMap<Tag, Vec<Tag>> = HashMap::new();
        for tag in tags.iter().filter(|tag| !records.contains_key(*tag)) {
            if let Some(family) = Family::of(tag)
                && records.get(&family).is_some_and(TagRecord::is_family)
            {
                of_families.entry(family).or_default().push(tag.clone());
            }
        }
        let mut not_made = HashMap::new();
        for (name, mut members) in of_families {
            let family = records[&name].clone();
            let per_second = family.settings.as_ref().ok().and_then(|settings| settings.family);
            let per_second = per_second.map_or(0, |family| family.members_per_second);
            let (allowed, why) = match family.is_enabled() {
                true => {
                    let allowed = self.member_rates.take(&name, per_second, members.len());
                    (allowed, SegmentErrorKind::TooManyNames)
                }
                false => (0, SegmentErrorKind::Disabled),
            };
            for tag in members.split_off(allowed) {
                let error = SegmentError::new(why.clone(), tag.as_str());
                not_made.insert(tag, error);
            }
            if members.is_empty() {
                continue;
            }
            let made = match self.make_members(&name, &members).await {
                Ok(made) => made.into_iter().map(of_member).collect(),
                Err(error) => {
                    let error = Arc::new(error);
                    members
                        .into_iter()
                        .map(|tag| (tag, Err(Arc::clone(&error))))
                        .collect::<Vec<_>>()
                }
            };
            for (tag, made) in made {
                match made {
                    Ok(mut record) => {
                        if record.made_by().as_ref() == Some(&name) {
                            record.follow_family(&family);
                        }
                        records.insert(tag, record);
                    }
                    Err(error) => {
                        let error = SegmentError::of_store(&tag, error);
                        not_made.insert(tag, error);
                    }
                }
            }
        }
        not_made
    }

    async fn make_members(
        &self,
        family: &Tag,
        members: &[Tag],
    ) -> Result<Vec<crate::store::Member>, StoreError> {
        let client = &self.store_client;
        let what = format!("make {} members of {:?}", members.len(), family.as_str());
        // Names that are asked for meanwhile wait for it: half of the time that a request has.
        let deadline = client.config.attempt / 2;
        let making = tokio::time::timeout(deadline, client.store.make_members(family, members));
        let made = client.attempt(&what, async {
            making.await.unwrap_or_else(|_| {
                let late = StoreError::new(StoreErrorKind::Unavailable, &*what);
                Err(late.because(format!("no answer within {deadline:?}")))
            })
        });
        let made = made.await;
        if made.as_ref().is_err_and(StoreError::is_outage) {
            self.member_rates.rest(family);
        }
        match &made {
            // The family may be gone by now, say: that is no trouble of the store.
            Err(error) if !error.is_outage() => {
                tracing::warn!("{error}");
            }
            made => client.note(made.as_ref().err()),
        }
        made
    }
}

/// Converts the outcome for one member: adds the operation to its error.
fn of_member((tag, made): Member) -> (Tag, Result<TagRecord, Arc<StoreError>>) {
    (tag, made.map_err(|kind| Arc::new(StoreError::new(kind, "make a member of a family"))))
}
