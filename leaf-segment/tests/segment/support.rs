//! A store that can be slow, dead or busy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag, UnixMillis};
use leaf_segment::admin::EndedTag;
use leaf_segment::store::{
    Expected, Member, SealError, StoreFuture, TagCursor, TagGeneration, TagPage, TagUpdate,
};
use leaf_segment::{
    HighWaterMarks, MemoryStore, NewTag, RangeSource, SegmentConfig, SegmentGenerator, StoreError,
    StoreErrorKind, TagCatalog, TagRecord, TagStore,
};

/// A memory store behind a bad line.
#[derive(Debug, Default)]
pub(crate) struct TestStore {
    pub(crate) inner: MemoryStore,
    delay: Mutex<Duration>,
    /// How much longer it takes to make members of families.
    making_delay: Mutex<Duration>,
    down: Mutex<bool>,
    /// As if others allocated all the time: nothing can be given back.
    pub(crate) busy: Mutex<bool>,
    pub(crate) allocations: AtomicU64,
    pub(crate) look_ups: AtomicU64,
    /// How often members of families were made.
    pub(crate) makings: AtomicU64,
    /// How many records of tags in use were read.
    pub(crate) read: AtomicU64,
    /// What the clock of its server shows; 0 for no such clock.
    pub(crate) clock: AtomicU64,
}

impl TestStore {
    pub(crate) fn set_delay(&self, delay: Duration) {
        *self.delay.lock().unwrap() = delay;
    }

    pub(crate) fn set_making_delay(&self, delay: Duration) {
        *self.making_delay.lock().unwrap() = delay;
    }

    pub(crate) fn set_down(&self, down: bool) {
        *self.down.lock().unwrap() = down;
    }

    /// Reads `max_id` from the inner store, without delays and failures.
    pub(crate) async fn inner_max_id(&self, name: &str) -> i64 {
        self.inner.tag(&tag(name)).await.unwrap().unwrap().max_id
    }

    async fn line(&self) -> Result<(), StoreError> {
        let delay = *self.delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        if *self.down.lock().unwrap() {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "reach the test store"));
        }
        Ok(())
    }
}

impl RangeSource for TestStore {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        expected: Expected,
    ) -> StoreFuture<'a, IdRange> {
        Box::pin(async move {
            self.allocations.fetch_add(1, Ordering::SeqCst);
            // The store works even where its answer is late or lost.
            let range = self.inner.allocate(tag, amount, expected).await?;
            self.line().await?;
            Ok(range)
        })
    }

    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        unused: IdRange,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let done = self.replace_max_id(tag, generation, unused.end(), unused.start()).await?;
            self.line().await?;
            Ok(done)
        })
    }

    fn clock(&self) -> Option<StoreFuture<'_, UnixMillis>> {
        let shown = self.clock.load(Ordering::SeqCst);
        (shown > 0).then(|| Box::pin(async move { Ok(UnixMillis::new(shown)) }) as _)
    }
}

impl TagCatalog for TestStore {
    fn records<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        Box::pin(async move {
            self.line().await?;
            self.read.fetch_add(tags.len() as u64, Ordering::SeqCst);
            self.inner.records(tags).await
        })
    }

    fn look_up<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        Box::pin(async move {
            self.look_ups.fetch_add(1, Ordering::SeqCst);
            self.line().await?;
            self.inner.records(tags).await
        })
    }

    fn make_members<'a>(
        &'a self,
        family: &'a Tag,
        members: &'a [Tag],
    ) -> StoreFuture<'a, Vec<Member>> {
        Box::pin(async move {
            self.makings.fetch_add(1, Ordering::SeqCst);
            let delay = *self.making_delay.lock().unwrap();
            tokio::time::sleep(delay).await;
            let made = self.inner.make_members(family, members).await?;
            self.line().await?;
            Ok(made)
        })
    }
}

impl TagStore for TestStore {
    fn page<'a>(
        &'a self,
        after: Option<&'a TagCursor>,
        prefix: &'a str,
        most: usize,
    ) -> StoreFuture<'a, TagPage> {
        Box::pin(async move {
            self.line().await?;
            self.inner.page(after, prefix, most).await
        })
    }

    fn create<'a>(&'a self, new: &'a NewTag) -> StoreFuture<'a, ()> {
        self.inner.create(new)
    }

    fn update<'a>(&'a self, update: &'a TagUpdate) -> StoreFuture<'a, TagRecord> {
        self.inner.update(update)
    }

    fn replace_max_id<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        from: i64,
        to: i64,
    ) -> StoreFuture<'a, bool> {
        if *self.busy.lock().unwrap() {
            return Box::pin(async { Ok(false) });
        }
        self.inner.replace_max_id(tag, generation, from, to)
    }

    fn seal<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
    ) -> BoxFuture<'a, Result<i64, SealError>> {
        if *self.busy.lock().unwrap() {
            let error =
                StoreError::new(StoreErrorKind::Conflict, "seal").because("others allocate");
            return Box::pin(async { Err(error.into()) });
        }
        self.inner.seal(tag, generation)
    }

    fn delete<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
    ) -> StoreFuture<'a, ()> {
        self.inner.delete(tag, generation)
    }

    fn ended<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<EndedTag>> {
        self.inner.ended(tag)
    }
}

pub(crate) fn tag(name: &str) -> Tag {
    Tag::parse(name).unwrap()
}

pub(crate) fn step(value: i64) -> Step {
    Step::new(value).unwrap()
}

pub(crate) async fn store_with(name: &str, size: i64) -> Arc<TestStore> {
    let store = Arc::new(TestStore::default());
    store.create(&NewTag::new(tag(name), step(size))).await.unwrap();
    store
}

pub(crate) async fn open(store: &Arc<TestStore>) -> SegmentGenerator {
    SegmentGenerator::open(Arc::clone(store) as _, SegmentConfig::default()).await
}

/// A generator that remembers its marks in this file.
pub(crate) async fn open_with_marks(
    store: &Arc<TestStore>,
    file: &std::path::Path,
) -> SegmentGenerator {
    let marks = Arc::new(HighWaterMarks::open(file).unwrap());
    let config = SegmentConfig { marks, ..SegmentConfig::default() };
    SegmentGenerator::open(Arc::clone(store) as _, config).await
}
