//! A store in memory, for tests, simulations and examples. Its contents are lost when the process
//! ends.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag};

use crate::admin::EndedTag;
use crate::store::{
    Expected, MOST_RECORDS, Member, MembersPlan, SEALED, SealError, StoreFuture, TagCursor,
    TagGeneration, TagPage, TagUpdate,
};
use crate::{NewTag, RangeSource, StoreError, StoreErrorKind, TagCatalog, TagRecord, TagStore};

/// A [`TagStore`] without a disk.
#[derive(Debug, Default)]
pub struct MemoryStore {
    records: Mutex<BTreeMap<Tag, TagRecord>>,
    /// The tags that were deleted.
    ended: Mutex<BTreeMap<Tag, EndedTag>>,
    /// How long an allocation takes to be answered.
    delay: Duration,
}

impl MemoryStore {
    /// A store that holds these records.
    #[must_use]
    pub fn with_tags(tags: impl IntoIterator<Item = NewTag>) -> Self {
        let records = tags.into_iter().map(|new| (new.tag.clone(), record(&new)));
        Self { records: Mutex::new(records.collect()), ..Self::default() }
    }

    /// Copies what another store holds of one tag, so that changes to the copy affect no real tag.
    ///
    /// # Errors
    /// The other store cannot be read.
    pub async fn copy_of(store: &dyn TagStore, tag: &Tag) -> Result<Self, StoreError> {
        let records = store.tag(tag).await?.map(|record| (tag.clone(), record));
        let ended = store.ended(tag).await?.map(|ended| (tag.clone(), ended));
        let records = Mutex::new(records.into_iter().collect());
        Ok(Self { records, ended: Mutex::new(ended.into_iter().collect()), ..Self::default() })
    }

    /// Lets the store answer an allocation only after `delay`, as a database does.
    #[must_use]
    pub fn slow(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Writes a number into a record as its step, valid or not, as an edit by hand may do.
    pub fn break_step(&self, tag: &Tag, step: i64) {
        if let Some(record) = self.records().get_mut(tag) {
            record.step = Step::new(step);
        }
    }

    /// Removes a record without a trace, as a failover to a replica without the last transactions
    /// does.
    pub fn lose(&self, tag: &Tag) {
        self.records().remove(tag);
    }

    fn ended_tags(&self) -> MutexGuard<'_, BTreeMap<Tag, EndedTag>> {
        self.ended.lock().expect("no holder of this lock panics")
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<Tag, TagRecord>> {
        self.records.lock().expect("no holder of this lock panics")
    }

    fn with<T>(
        &self,
        tag: &Tag,
        operation: &str,
        f: impl FnOnce(&mut TagRecord) -> Result<T, StoreErrorKind>,
    ) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
    {
        let result = match self.records().get_mut(tag) {
            Some(record) => f(record),
            None => Err(StoreErrorKind::UnknownTag),
        };
        let operation = format!("{operation} tag {:?} in memory", tag.as_str());
        Box::pin(async { result.map_err(|kind| StoreError::new(kind, operation)) })
    }
}

impl RangeSource for MemoryStore {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        expected: Expected,
    ) -> StoreFuture<'a, IdRange> {
        let answer = self.with(tag, "allocate", |record| {
            if record.meaning != Ok(expected.meaning) {
                return Err(StoreErrorKind::MeaningChanged);
            }
            let step = record.step.map_err(|e| StoreErrorKind::BadRecord(e.to_string()))?;
            if step != expected.step {
                return Err(StoreErrorKind::StepChanged(step));
            }
            if record.is_sealed() {
                return Err(StoreErrorKind::Moved);
            }
            let start = record.max_id.max(expected.least);
            let end = start.checked_add(i64::from(amount.get()));
            let end = end.filter(|end| *end < SEALED && *end <= expected.end);
            let end = end.ok_or(StoreErrorKind::Exhausted)?;
            let max_id = record.max_id;
            let range = IdRange::new(start, end).filter(|_| max_id >= 0);
            let range = range
                .ok_or_else(|| StoreErrorKind::BadRecord(format!("max_id {max_id} is negative")))?;
            record.max_id = end;
            Ok(range)
        });
        if self.delay.is_zero() {
            return answer;
        }
        Box::pin(async {
            tokio::time::sleep(self.delay).await;
            answer.await
        })
    }

    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        unused: IdRange,
    ) -> StoreFuture<'a, bool> {
        self.replace_max_id(tag, generation, unused.end(), unused.start())
    }
}

impl TagCatalog for MemoryStore {
    fn records<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        let records = self.records();
        let found = tags.iter().filter_map(|tag| records.get(tag).cloned()).collect();
        Box::pin(async { Ok(found) })
    }

    fn make_members<'a>(
        &'a self,
        family: &'a Tag,
        members: &'a [Tag],
    ) -> StoreFuture<'a, Vec<Member>> {
        let (mut records, ended) = (self.records(), self.ended_tags());
        let ended = members.iter().filter_map(|tag| Some((tag.clone(), Ok(*ended.get(tag)?))));
        let ended = ended.collect();
        let there = members.iter().filter_map(|tag| records.get(tag).cloned()).collect();
        let plan = match records.get_mut(family) {
            Some(family) => MembersPlan::of(family, members, there, &ended).inspect(|plan| {
                family.settings = Ok(plan.family.clone());
            }),
            None => Err(StoreErrorKind::UnknownTag),
        };
        let made = plan.map(|plan| {
            let new = plan.answer.iter().filter(|(tag, _)| plan.new.contains(tag));
            records.extend(new.filter_map(|(tag, made)| Some((tag.clone(), made.clone().ok()?))));
            plan.answer
        });
        let operation = format!("make members of {:?} in memory", family.as_str());
        Box::pin(async { made.map_err(|kind| StoreError::new(kind, operation)) })
    }
}

impl TagStore for MemoryStore {
    fn page<'a>(
        &'a self,
        after: Option<&'a TagCursor>,
        prefix: &'a str,
        most: usize,
    ) -> StoreFuture<'a, TagPage> {
        let from = match after.map(|after| &*after.name).filter(|after| *after >= prefix) {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(prefix),
        };
        let records = self.records();
        let rest = records.range::<str, _>((from, Bound::Unbounded)).map(|(_, record)| record);
        let mut rest = rest.take_while(|record| record.tag.as_str().starts_with(prefix));
        let found: Vec<_> = rest.by_ref().take(most.min(MOST_RECORDS)).cloned().collect();
        let last = found.last().filter(|_| rest.next().is_some());
        let next = last.map(|last| TagCursor { plain: true, name: last.tag.as_str().into() });
        Box::pin(async { Ok(TagPage { records: found, next }) })
    }

    fn create<'a>(&'a self, new: &'a NewTag) -> StoreFuture<'a, ()> {
        let mut records = self.records();
        let mut ended = self.ended_tags();
        let result = match ended.get(&new.tag).map(|ended| ended.check(new)) {
            _ if records.contains_key(&new.tag) => Err(StoreErrorKind::TagExists),
            Some(Err(why)) => Err(StoreErrorKind::UsedBefore(why)),
            Some(Ok(())) | None => {
                ended.remove(&new.tag);
                records.insert(new.tag.clone(), record(new));
                Ok(())
            }
        };
        let operation = format!("create tag {:?} in memory", new.tag.as_str());
        Box::pin(async { result.map_err(|kind| StoreError::new(kind, operation)) })
    }

    fn update<'a>(&'a self, update: &'a TagUpdate) -> StoreFuture<'a, TagRecord> {
        self.with(&update.seen.tag, "change", |record| {
            *record = update.apply(record)?;
            Ok(record.clone())
        })
    }

    fn replace_max_id<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        from: i64,
        to: i64,
    ) -> StoreFuture<'a, bool> {
        self.with(tag, "replace max_id of", |record| {
            let unchanged = record.max_id == from && record.generation() == generation;
            if unchanged {
                record.max_id = to;
            }
            Ok(unchanged)
        })
    }

    fn seal<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
    ) -> BoxFuture<'a, Result<i64, SealError>> {
        let sealed = self.with(tag, "seal", |record| match record.generation() == generation {
            true => {
                let before = record.max_id;
                *record = record.sealed();
                Ok(before)
            }
            false => Err(StoreErrorKind::RecordChanged),
        });
        Box::pin(async { Ok(sealed.await?) })
    }

    fn delete<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
    ) -> StoreFuture<'a, ()> {
        let mut records = self.records();
        let deleted = match records.get(tag) {
            None => Err(StoreErrorKind::UnknownTag),
            Some(record) if !record.is_sealed() || record.generation() != generation => {
                Err(StoreErrorKind::RecordChanged)
            }
            Some(_) => Ok(()),
        };
        if deleted.is_ok() {
            let ended = records.remove(tag).and_then(|record| record.ended());
            self.ended_tags().extend(ended.map(|ended| (tag.clone(), ended)));
        }
        let operation = format!("delete tag {:?} in memory", tag.as_str());
        Box::pin(async { deleted.map_err(|kind| StoreError::new(kind, operation)) })
    }

    fn ended<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<EndedTag>> {
        let of_record = self.records().get(tag).and_then(TagRecord::ended);
        let ended = of_record.or_else(|| self.ended_tags().get(tag).copied());
        Box::pin(async move { Ok(ended) })
    }
}

/// Returns the record of a new tag.
fn record(new: &NewTag) -> TagRecord {
    NewTag { settings: new.settings.of_new_tag(), ..new.clone() }.into()
}
