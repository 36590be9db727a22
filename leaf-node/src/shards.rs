//! The stores of a node, each of which serves its own tags only.
//!
//! Invariant: nothing is allocated from a store that remembers another place among the shards than
//! the configuration gives it, nor of a tag that is open in another of the configured stores, too:
//! two nodes, or two stores, would grant the same ids. Both are asked before the first allocation,
//! and again whenever the tags are read.
//!
//! A store that cannot be asked grants nothing itself, and keeps no other from granting: a tag that
//! was made in both while one was away is refused once both have been read.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, RwLock, Weak};

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag, UnixMillis};
use leaf_registry::{Administration, OpenStore, StoreUrl};
use leaf_segment::admin::TagAdminError;
use leaf_segment::shards::{ShardMemory, ShardPlace, Shards};
use leaf_segment::store::{Expected, StoreFuture, TagGeneration};
use leaf_segment::{
    NewTag, RangeSource, SegmentGenerator, StoreError, StoreErrorKind, TagCatalog, TagRecord,
};

use crate::Store;

/// One of the configured stores, which refuses what belongs to another one.
#[derive(Debug)]
pub(crate) struct PlacedStore {
    url: StoreUrl,
    open: OpenStore,
    place: ShardPlace,
    /// Which of the stores this is.
    index: usize,
    /// Which of the stores each tag belongs to.
    owners: Shards<usize>,
    /// Whether the store remembers this place, as far as is known.
    is_right: AtomicBool,
    /// The open tags here that belong to another store, as they were read last; `None` before the
    /// first attempt.
    strays: RwLock<Option<HashSet<Tag>>>,
    /// Whether the store takes no place: this user may only read there, or it has no table for it.
    keeps_no_place: AtomicBool,
    /// All stores of the node, this one too.
    all: Arc<OnceLock<Vec<Weak<PlacedStore>>>>,
}

/// Compares what the store remembers with its place by the configuration, and returns it; `None` where
/// it remembers nothing.
///
/// # Errors
/// `OtherPlace`, also where it cannot be read; failures of the store.
pub async fn check_place(
    admin: &dyn Administration,
    place: &ShardPlace,
) -> Result<Option<ShardMemory>, StoreError> {
    let Some(text) = admin.shard_memory().await? else { return Ok(None) };
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

/// Refuses to make a tag in the store of this place while servers of two configurations use it, unless
/// the place is the newer one: those of the newer one may have made the tag in another store.
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

/// Refuses to make a tag that another of the stores has, too, or whose ids a deleted tag of its name
/// issued there. The other stores must answer.
///
/// # Errors
/// `Conflict`, with the store that has it; failures of a store.
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

/// Whether ids can be granted of the tag, or were. The sample tag, which every new SQLite
/// file has, counts only where it was used.
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
        let owners = stores.map(|_| {
            index += 1;
            index - 1
        });
        let mut index = 0;
        let placed = stores.map(|(place, (url, open))| {
            index += 1;
            Arc::new(Self {
                url: url.clone(),
                open: open.clone(),
                place: place.clone(),
                index: index - 1,
                owners: owners.clone(),
                is_right: AtomicBool::new(false),
                keeps_no_place: AtomicBool::new(false),
                strays: RwLock::default(),
                all: Arc::clone(&all),
            })
        });
        let _ = all.set(placed.iter().map(Arc::downgrade).collect());
        placed
    }

    /// The store for administration, with its generator.
    pub(crate) fn with_generator(&self, generator: SegmentGenerator) -> Store {
        let (url, open, place) = (self.url.clone(), self.open.clone(), self.place.clone());
        Store { url, open, place, generator }
    }

    /// Tells a store that remembers nothing its place, then compares it. Where the store cannot keep
    /// it, nothing is compared.
    async fn claim(&self) -> Result<(), StoreError> {
        let admin = &*self.open.admin;
        let mut checked = check_place(admin, &self.place).await;
        if let (Ok(None), false) = (&checked, self.keeps_no_place.load(Ordering::Relaxed)) {
            let own = ShardMemory::new(self.place.clone()).encode();
            match admin.remember_shard(None, &own).await {
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

    /// Whether this store has an open tag of the name, though it belongs to another one.
    async fn has_stray(&self, tag: &Tag) -> bool {
        if let Some(strays) = &*self.strays() {
            return strays.contains(tag);
        }
        // Not read yet.
        let record = self.open.store.tag(tag).await;
        record.is_ok_and(|record| record.as_ref().is_some_and(is_open))
    }

    fn strays(&self) -> std::sync::RwLockReadGuard<'_, Option<HashSet<Tag>>> {
        self.strays.read().expect("no holder of this lock panics")
    }

    /// Refuses a tag that is open in another store, too.
    async fn check_tag(&self, tag: &Tag) -> Result<(), StoreError> {
        for other in self.all.get().into_iter().flatten().filter_map(Weak::upgrade) {
            if other.index != self.index && other.has_stray(tag).await {
                let (own, other) = (&self.url, &other.url);
                let why = format!(
                    "it belongs to {own}, and is open in {other}, too, so that both would grant its ids: advance it in {own} above \
                     all ids that {other} granted, then delete it there (`leaf tag delete --store`)"
                );
                let operation = format!("allocate tag {:?}", tag.as_str());
                return Err(StoreError::new(StoreErrorKind::BadRecord(why), operation));
            }
        }
        Ok(())
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
            self.check_tag(tag).await?;
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
    fn tag<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<TagRecord>> {
        Box::pin(async move {
            // In a wrong store a tag that is not found may be in another one.
            if !self.is_right.load(Ordering::Acquire) {
                self.claim().await?;
            }
            self.open.store.tag(tag).await
        })
    }

    fn tags(&self) -> StoreFuture<'_, Vec<TagRecord>> {
        Box::pin(async move {
            let read = async {
                self.claim().await?;
                self.open.store.tags().await
            };
            let records = read.await;
            let mut strays = self.strays.write().expect("no holder of this lock panics");
            match &records {
                Ok(records) => {
                    let is_stray = |record: &&TagRecord| {
                        *self.owners.of(record.tag.as_str()) != self.index && is_open(record)
                    };
                    let tags = records.iter().filter(is_stray).map(|record| record.tag.clone());
                    *strays = Some(tags.collect());
                }
                // The others wait for it no longer.
                Err(_) => _ = strays.get_or_insert_default(),
            }
            drop(strays);
            records
        })
    }
}
