//! The stores of a node, each of which serves its own tags only.
//!
//! Invariant: nothing is allocated from a store that remembers another place among the shards than
//! the configuration gives it, and nothing of a tag that is also open in another configured store:
//! two nodes, or two stores, would grant the same ids. Both are checked before the first allocation
//! from a tag, and again whenever its record is read.
//!
//! A store that does not answer grants nothing, but does not stop other stores from granting. If a
//! tag was made in two stores while one of them did not answer, it is refused once both were read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag, UnixMillis};
use leaf_registry::{Administration, Note, OpenStore, StoreUrl};
use leaf_segment::admin::TagAdminError;
use leaf_segment::store::{Expected, Member, StoreFuture, TagGeneration};
use leaf_segment::{
    NewTag, RangeSource, SegmentGenerator, StoreError, StoreErrorKind, TagCatalog, TagRecord,
};
use tokio::time::Instant;

use crate::Store;

mod place;
mod set;

pub use self::place::{ShardMemory, ShardMemoryError, ShardPlace};
pub use self::set::{Shards, TagPattern, TagPatternError};

/// How long to wait for a store that is asked about the tags of another store. If it does not
/// answer in time, it is not asked again for [`SILENT`], so that it delays nobody.
const PATIENCE: Duration = Duration::from_secs(1);
const SILENT: Duration = Duration::from_secs(5);

/// One of the configured stores. It refuses tags that belong to another store.
#[derive(Debug)]
pub(crate) struct PlacedStore {
    url: StoreUrl,
    open: OpenStore,
    place: ShardPlace,
    /// The index of this store among those of the node.
    index: usize,
    /// Whether the store allowed `place` at the last check.
    is_right: AtomicBool,
    /// The tags of this store that are open in another store, too, according to the last look at
    /// that store. The value is the index of that store.
    open_elsewhere: Mutex<HashMap<Tag, usize>>,
    /// When this store last failed to answer a question about the tags of another store.
    silent_at: Mutex<Option<Instant>>,
    /// Whether the store cannot remember a place: this user may only read from it, or the table is
    /// missing.
    keeps_no_place: AtomicBool,
    /// All stores of the node, this one too.
    all: Arc<OnceLock<Vec<Weak<PlacedStore>>>>,
}

/// Compares the place that the store remembers with `place`, its place by the configuration.
/// Returns what the store remembers; `None` if it remembers nothing.
///
/// # Errors
/// `OtherPlace` if the store was used at another place or its text cannot be read; failures of the
/// store.
pub async fn check_place(
    admin: &dyn Administration,
    place: &ShardPlace,
) -> Result<Option<ShardMemory>, StoreError> {
    let Some(text) = admin.note(Note::Shards).await? else { return Ok(None) };
    let operation = "look at the store's place among the shards";
    let refuse = |kind, why: String| StoreError::new(kind, operation).because(why);
    let memory = ShardMemory::decode(&text)
        .map_err(|error| refuse(StoreErrorKind::OtherPlace, error.to_string()))?;
    match memory.allows(place) {
        true => Ok(Some(memory)),
        false => Err(refuse(
            StoreErrorKind::OtherPlace,
            format!("by the configuration it is {place}, and it was used as {memory}"),
        )),
    }
}

/// Refuses to make a tag while the store remembers two places and `place` is not the newest one:
/// servers with the newer configuration may have made the tag in another store.
///
/// # Errors
/// `Conflict`; those of [`check_place`].
pub async fn check_creator(
    admin: &dyn Administration,
    place: &ShardPlace,
) -> Result<(), TagAdminError> {
    match check_place(admin, place).await? {
        Some(memory) if memory.newest() != Some(place) => Err(TagAdminError::Conflict(format!(
            "the stores of the tags are being changed ({memory}), and this program has the former configuration: make tags \
             with the newer one"
        ))),
        _ => Ok(()),
    }
}

/// Refuses to make a tag that is open in another store, too, or whose ids were issued there by a
/// deleted tag of the same name. The other stores must answer.
///
/// # Errors
/// `Conflict`, which names the other store; failures of a store.
pub async fn check_new_tag<'a, T>(
    stores: &'a Shards<T>,
    new: &NewTag,
    open: impl Fn(&'a T) -> (&'a StoreUrl, &'a OpenStore),
) -> Result<(), TagAdminError> {
    let own = stores.of(new.tag.as_str());
    for other in stores.iter().filter(|other| !std::ptr::eq(*other, own)) {
        let (url, store) = open(other);
        if store.store.tag(&new.tag).await?.as_ref().is_some_and(is_open) {
            return Err(TagAdminError::Conflict(format!(
                "the tag belongs to {}, and is open in {url}: move it with `leaf tag import --from`",
                open(own).0
            )));
        }
        if let Some(Err(why)) = store.store.ended(&new.tag).await?.map(|ended| ended.check(new)) {
            return Err(TagAdminError::Conflict(format!("in {url} {why}")));
        }
    }
    Ok(())
}

/// Whether a tag is open, that is, not sealed. The sample tag, which every new SQLite file has,
/// counts as open only after it was used.
#[must_use]
pub fn is_open(record: &TagRecord) -> bool {
    let sample = record.tag == NewTag::sample().tag && record.max_id <= 1;
    !record.is_sealed() && !sample
}

impl PlacedStore {
    /// The stores of a node.
    pub(crate) fn of(stores: Shards<(ShardPlace, (StoreUrl, OpenStore))>) -> Shards<Arc<Self>> {
        let all = Arc::new(OnceLock::new());
        let mut index = 0;
        let placed = stores.map(|(place, (url, open))| {
            index += 1;
            Arc::new(Self {
                url: url.clone(),
                open: open.clone(),
                place: place.clone(),
                index: index - 1,
                is_right: AtomicBool::new(false),
                keeps_no_place: AtomicBool::new(false),
                open_elsewhere: Mutex::default(),
                silent_at: Mutex::default(),
                all: Arc::clone(&all),
            })
        });
        let _ = all.set(placed.iter().map(Arc::downgrade).collect());
        placed
    }

    /// Returns this store for administration, together with its generator.
    pub(crate) fn with_generator(&self, generator: SegmentGenerator) -> Store {
        let (url, open, place) = (self.url.clone(), self.open.clone(), self.place.clone());
        Store { url, open, place, generator }
    }

    /// Writes the place to a store that remembers none, then checks it. If the store cannot
    /// remember a place, nothing is checked.
    async fn claim(&self) -> Result<(), StoreError> {
        let admin = &*self.open.admin;
        let mut checked = check_place(admin, &self.place).await;
        if let (Ok(None), false) = (&checked, self.keeps_no_place.load(Ordering::Relaxed)) {
            let own = ShardMemory::new(self.place.clone()).encode();
            match admin.write_note(Note::Shards, None, &own).await {
                // Or somebody else was faster.
                Ok(_) => checked = check_place(admin, &self.place).await,
                Err(error) => {
                    tracing::debug!(
                        "the store does not remember its place among the shards: {error}"
                    );
                    self.keeps_no_place.store(!error.retryable(), Ordering::Relaxed);
                }
            }
        }
        // A store that is away has not changed its mind.
        if !checked.as_ref().is_err_and(StoreError::retryable) {
            self.is_right.store(checked.is_ok(), Ordering::Release);
        }
        checked.map(drop)
    }

    /// The other stores of the node.
    fn others(&self) -> impl Iterator<Item = Arc<Self>> {
        let all = self.all.get().into_iter().flatten().filter_map(Weak::upgrade);
        all.filter(|other| other.index != self.index)
    }

    fn open_elsewhere(&self) -> MutexGuard<'_, HashMap<Tag, usize>> {
        self.open_elsewhere.lock().expect("no holder of this lock panics")
    }

    /// Finds out which of these tags of this store are open in another store, too. For a store that
    /// does not answer, the result of the last look stays.
    async fn look_elsewhere(&self, tags: &[Tag]) {
        for other in self.others() {
            let silent_at = || other.silent_at.lock().expect("no holder of this lock panics");
            if silent_at().is_some_and(|at| at.elapsed() < SILENT) {
                continue;
            }
            let read = tokio::time::timeout(PATIENCE, other.open.store.records(tags)).await;
            let Ok(Ok(records)) = read else {
                *silent_at() = Some(Instant::now());
                continue;
            };
            let mut elsewhere = self.open_elsewhere();
            elsewhere.retain(|tag, at| *at != other.index || !tags.contains(tag));
            let open = records.into_iter().filter(is_open);
            elsewhere.extend(open.map(|record| (record.tag, other.index)));
        }
    }

    /// Refuses a tag that is open in another store, too.
    fn check_tag(&self, tag: &Tag) -> Result<(), StoreError> {
        let Some(at) = self.open_elsewhere().get(tag).copied() else { return Ok(()) };
        let other = self.others().find(|other| other.index == at);
        let (own, other) = (&self.url, other.map_or_else(String::new, |it| it.url.to_string()));
        let why = format!(
            "it belongs to {own}, and is open in {other}, too, so that both would grant its ids: advance it in {own} above \
             all ids that {other} granted, then delete it there (`leaf tag delete --store`)"
        );
        let operation = format!("allocate tag {:?}", tag.as_str());
        Err(StoreError::new(StoreErrorKind::BadRecord(why), operation))
    }
}

impl RangeSource for PlacedStore {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        expected: Expected,
    ) -> StoreFuture<'a, IdRange> {
        Box::pin(async move {
            if !self.is_right.load(Ordering::Acquire) {
                self.claim().await?;
            }
            self.check_tag(tag)?;
            self.open.store.allocate(tag, amount, expected).await
        })
    }

    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        unused: IdRange,
    ) -> StoreFuture<'a, bool> {
        self.open.store.give_back(tag, generation, unused)
    }

    fn try_allocating(&self) -> Option<StoreFuture<'_, ()>> {
        self.open.store.try_allocating()
    }

    fn clock(&self) -> Option<StoreFuture<'_, UnixMillis>> {
        self.open.store.clock()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.open.store.close()
    }
}

impl TagCatalog for PlacedStore {
    fn records<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        Box::pin(async move {
            // In a wrong store a tag that is not found may be in another one.
            if !self.is_right.load(Ordering::Acquire) {
                self.claim().await?;
            }
            let records = self.open.store.records(tags).await?;
            let own: Vec<Tag> = records.iter().map(|record| record.tag.clone()).collect();
            if !own.is_empty() {
                self.look_elsewhere(&own).await;
            }
            Ok(records)
        })
    }

    fn make_members<'a>(
        &'a self,
        family: &'a Tag,
        members: &'a [Tag],
    ) -> StoreFuture<'a, Vec<Member>> {
        Box::pin(async move {
            if !self.is_right.load(Ordering::Acquire) {
                self.claim().await?;
            }
            let made = self.open.store.make_members(family, members).await?;
            self.look_elsewhere(members).await;
            Ok(made)
        })
    }

    fn try_reading(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            self.claim().await?;
            self.open.store.try_reading().await
        })
    }
}
