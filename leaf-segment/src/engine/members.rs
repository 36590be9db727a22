//! Members of families: their records are read with those of the families, and a name that no
//! record has may be made by its family.
//!
//! Invariant: what is applied of a member holds its family's settings as they were read with it. A
//! flood of new names costs the store no more than a family allows each node in a second.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_core::Tag;
use tokio::time::Instant;

use super::generator::Shared;
use crate::store::{Family, MOST_RECORDS};
use crate::{SegmentError, SegmentErrorKind, StoreError, StoreErrorKind, TagRecord};

/// How long a family rests whose members could not be made in time.
const RESTS: Duration = Duration::from_secs(3);

/// What this node may still make of each family now.
#[derive(Debug, Default)]
pub(crate) struct MemberRates(Mutex<HashMap<Tag, (f64, Instant)>>);

impl MemberRates {
    /// Lets a family rest whose members could not be made in time: others must not wait for it again and
    /// again.
    fn rest(&self, family: &Tag) {
        let mut rates = self.0.lock().expect("no holder of this lock panics");
        // What it may make grows from then on.
        rates.insert(family.clone(), (0.0, Instant::now() + RESTS));
    }

    /// Takes up to `wanted` of what the family allows: those of a second at once, and as many in
    /// each second.
    fn take(&self, family: &Tag, per_second: u32, wanted: usize) -> usize {
        let (most, now) = (f64::from(per_second), Instant::now());
        let mut rates = self.0.lock().expect("no holder of this lock panics");
        let (left, at) = rates.get(family).copied().unwrap_or((most, now));
        let since = now.saturating_duration_since(at);
        let left = since.as_secs_f64().mul_add(most, left).min(most);
        let taken = wanted.min(left as usize);
        // A family that was asked for none in a second has all it may again.
        rates.retain(|_, (_, at)| now.saturating_duration_since(*at) < Duration::from_secs(1));
        rates.insert(family.clone(), (left - taken as f64, now.max(at)));
        taken
    }
}

/// Which records are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Those of tags that are known.
    Again,
    /// Those of names that are looked up.
    LookUp,
}

impl Shared {
    /// Reads the records of these tags, as the settings of their families want them, and those of
    /// the families: of members, and where names are looked up also of those that could make them.
    /// `guessed` families are read in one statement with the tags, as far as that has room.
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

    /// Makes those of these tags that are not among `records` and that a family there makes; adds
    /// their records. Returns why others were not made.
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
            match self.make_members(&name, &members).await {
                Ok(made) => {
                    for (tag, made) in made {
                        match made {
                            Ok(mut record) => {
                                if record.made_by().as_ref() == Some(&name) {
                                    record.follow_family(&family);
                                }
                                records.insert(tag, record);
                            }
                            Err(kind) => {
                                let error = StoreError::new(kind, "make a member of a family");
                                let error = SegmentError::of_store(&tag, Arc::new(error));
                                not_made.insert(tag, error);
                            }
                        }
                    }
                }
                Err(error) => {
                    let error = Arc::new(error);
                    for tag in members {
                        let error = SegmentError::of_store(&tag, Arc::clone(&error));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_family_makes_no_more_than_it_may_in_a_second() {
        let rates = MemberRates::default();
        let [a, b] = ["a/*", "b/*"].map(|name| Tag::parse(name).unwrap());
        assert_eq!(rates.take(&a, 100, 80), 80);
        assert_eq!(rates.take(&a, 100, 80), 20);
        assert_eq!(rates.take(&b, 100, 80), 80, "each family has its own");
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(rates.take(&a, 100, 80), 50);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(rates.take(&a, 100, 1000), 100);
        assert_eq!(rates.0.lock().unwrap().len(), 1, "nothing is kept of those that rest");
        rates.rest(&a);
        for _ in 0..2 {
            assert_eq!(rates.take(&a, 100, 1000), 0);
            tokio::time::advance(RESTS / 2).await;
        }
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(rates.take(&a, 100, 1000), 50);
    }
}
