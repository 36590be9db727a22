//! The generator against a store that can be slow, dead or wrong. Time is paused throughout.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{Health, IdRange, Step, Tag};
use leaf_segment::{
    MemoryStore, NewTag, SegmentConfig, SegmentErrorKind, SegmentGenerator, SegmentStore,
    StoreError, StoreErrorKind, TagRecord, blocking,
};
use tokio::time::Instant;

/// A memory store behind a bad line.
#[derive(Debug, Default)]
struct TestStore {
    inner: MemoryStore,
    delay: Mutex<Duration>,
    down: Mutex<bool>,
    /// As if others allocated all the time: nothing can be given back.
    busy: Mutex<bool>,
    allocations: AtomicU64,
    look_ups: AtomicU64,
}

impl TestStore {
    fn set_delay(&self, delay: Duration) {
        *self.delay.lock().unwrap() = delay;
    }

    fn set_down(&self, down: bool) {
        *self.down.lock().unwrap() = down;
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

impl SegmentStore for TestStore {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        seen: Step,
    ) -> BoxFuture<'a, Result<IdRange, StoreError>> {
        Box::pin(async move {
            self.allocations.fetch_add(1, Ordering::SeqCst);
            // The store works even where its answer is late or lost.
            let range = self.inner.allocate(tag, amount, seen).await?;
            self.line().await?;
            Ok(range)
        })
    }

    fn tag<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<Option<TagRecord>, StoreError>> {
        Box::pin(async move {
            self.look_ups.fetch_add(1, Ordering::SeqCst);
            self.line().await?;
            self.inner.tag(tag).await
        })
    }

    fn tags(&self) -> BoxFuture<'_, Result<Vec<TagRecord>, StoreError>> {
        Box::pin(async move {
            self.line().await?;
            self.inner.tags().await
        })
    }

    fn create<'a>(&'a self, new: &'a NewTag) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.create(new)
    }

    fn set_step<'a>(&'a self, tag: &'a Tag, step: Step) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.set_step(tag, step)
    }

    fn advance<'a>(&'a self, tag: &'a Tag, to: i64) -> BoxFuture<'a, Result<i64, StoreError>> {
        self.inner.advance(tag, to)
    }

    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        unused: IdRange,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        if *self.busy.lock().unwrap() {
            return Box::pin(async { Ok(false) });
        }
        self.inner.give_back(tag, unused)
    }

    fn delete<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.delete(tag)
    }
}

fn tag(name: &str) -> Tag {
    Tag::parse(name).unwrap()
}

fn step(value: i64) -> Step {
    Step::new(value).unwrap()
}

async fn store_with(name: &str, size: i64) -> Arc<TestStore> {
    let store = Arc::new(TestStore::default());
    store.create(&NewTag::new(tag(name), step(size))).await.unwrap();
    store
}

async fn open(store: &Arc<TestStore>) -> SegmentGenerator {
    SegmentGenerator::open(Arc::clone(store) as Arc<dyn SegmentStore>, SegmentConfig::default())
        .await
}

#[tokio::test(start_paused = true)]
async fn the_first_ids_are_the_records_own() {
    let store = store_with("orders", 2000).await;
    let orders = open(&store).await.tag("orders").await.unwrap();

    for expected in 1..=10_000 {
        assert_eq!(orders.next().await.unwrap().get(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_cause_one_fetch() {
    let store = store_with("orders", 10_000).await;
    store.set_delay(Duration::from_millis(200));
    let orders = open(&store).await.tag("orders").await.unwrap();

    let waiters: Vec<_> = (0..1000)
        .map(|_| {
            let orders = orders.clone();
            tokio::spawn(async move { orders.next().await.unwrap().get() })
        })
        .collect();
    let mut ids = Vec::new();
    for waiter in waiters {
        ids.push(waiter.await.unwrap());
    }

    ids.sort_unstable();
    assert_eq!(ids, (1..=1000).collect::<Vec<_>>());
    assert_eq!(store.allocations.load(Ordering::SeqCst), 1);
}

fn ids(ranges: &[IdRange]) -> Vec<i64> {
    ranges.iter().flat_map(|range| range.iter()).map(leaf_core::Id::get).collect()
}

#[tokio::test(start_paused = true)]
async fn exactly_as_many_ids_as_asked_for() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    store.set_delay(Duration::from_millis(50));
    let mut taken = Vec::new();

    for count in [1, 999, 500, 700, 1000, 3] {
        let ranges = orders.take(count).await.unwrap();
        let new = ids(&ranges);
        assert_eq!(new.len(), count);
        assert!(new.is_sorted_by(|a, b| a < b), "{ranges:?}");
        taken.extend(new);
    }

    assert!(taken.is_sorted_by(|a, b| a < b), "in order with each other");
    for count in [0, 1_000_001, usize::MAX] {
        let error = orders.take(count).await.unwrap_err();
        assert_eq!(*error.kind(), SegmentErrorKind::BadCount { count, most: 1_000_000 });
        assert!(orders.take_contiguous(count).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn more_than_a_segment_is_fetched_directly_in_one_trip() {
    let store = store_with("orders", 100).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    let first = orders.next().await.unwrap();
    // The prefetch has come by then, so that the only trip is the direct one.
    while orders.try_take(20).is_some() && store.allocations.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let trips = store.allocations.load(Ordering::SeqCst);

    let direct = orders.take(12_345).await.unwrap();

    assert_eq!(store.allocations.load(Ordering::SeqCst), trips + 1);
    assert_eq!((direct.len(), direct[0].len()), (1, 12_345));
    let next = orders.next().await.unwrap();
    assert!(next > first && next.get() < direct[0].start(), "the buffer goes on");
    let mut all = ids(&direct);
    for _ in 0..1000 {
        all.push(orders.next().await.unwrap().get());
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 13_345, "nothing twice");
}

#[tokio::test(start_paused = true)]
async fn ids_that_follow_each_other_cost_no_tail() {
    let store = store_with("orders", 100).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    assert_eq!(orders.next().await.unwrap().get(), 1);
    let contiguous = orders.take_contiguous(50).await.unwrap();
    assert_eq!((contiguous.start(), contiguous.len()), (2, 50));

    let direct = orders.take_contiguous(60).await.unwrap();

    assert_eq!(direct.len(), 60);
    assert_eq!(orders.next().await.unwrap().get(), 52, "the tail is kept");
}

#[tokio::test(start_paused = true)]
async fn a_direct_fetch_fails_like_any_other_and_recovers() {
    let store = store_with("orders", 100).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    orders.next().await.unwrap();
    store.set_down(true);

    let asked = Instant::now();
    let error = orders.take(5000).await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::StoreDown);
    assert_eq!(asked.elapsed(), Duration::from_secs(2));

    store.set_down(false);
    assert_eq!(ids(&orders.take(5000).await.unwrap()).len(), 5000);
    store.inner.delete(&tag("orders")).await.unwrap();
    let error = orders.take(5000).await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::UnknownTag);
}

#[test]
fn without_a_runtime_it_blocks() {
    let store = Arc::new(MemoryStore::with_tags([NewTag::new(tag("orders"), step(100))]));
    let segments = blocking::SegmentGenerator::open(store, SegmentConfig::default()).unwrap();
    let orders = segments.tag("orders").unwrap();
    let mut ids: Vec<i64> = std::thread::scope(|scope| {
        let take = || {
            let mut ids: Vec<i64> = (0..3000).map(|_| orders.next().unwrap().get()).collect();
            ids.extend(
                orders
                    .take(250)
                    .unwrap()
                    .iter()
                    .flat_map(|range| range.iter())
                    .map(leaf_core::Id::get),
            );
            ids
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });

    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4 * 3250);
    assert_eq!(segments.health(), Health::Ready);
    assert_eq!(*segments.tag("none").unwrap_err().kind(), SegmentErrorKind::UnknownTag);
    segments.close();
    assert_eq!(*orders.next().unwrap_err().kind(), SegmentErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn unused_ids_go_back_where_nobody_allocated_since() {
    for (others, give_back, next) in [(false, true, 8), (true, true, 2001), (false, false, 1001)] {
        let store = store_with("orders", 1000).await;
        let config = SegmentConfig { give_back, ..SegmentConfig::default() };
        let segments = SegmentGenerator::open(Arc::clone(&store) as _, config).await;
        let orders = segments.tag("orders").await.unwrap();
        for id in 1..=7 {
            assert_eq!(orders.next().await.unwrap().get(), id);
        }
        if others {
            store.inner.allocate(&tag("orders"), step(1000), step(1000)).await.unwrap();
        }
        segments.close().await;
        assert!(orders.try_next().is_none());

        let successor = open(&store).await;
        let first = successor.tag("orders").await.unwrap().next().await.unwrap().get();
        assert_eq!(first, next, "{others} {give_back}");
    }
}

/// What is given back may be another node's the next moment.
#[tokio::test(start_paused = true)]
async fn unused_ids_go_back_once() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;
    segments.tag("orders").await.unwrap().next().await.unwrap();
    tokio::join!(segments.close(), segments.close());
    let others = store.inner.allocate(&tag("orders"), step(9), step(10)).await.unwrap();
    assert_eq!((others.start(), others.end()), (2, 11));

    segments.close().await;

    let next = store.inner.allocate(&tag("orders"), step(10), step(10)).await.unwrap();
    assert_eq!(next.start(), 11, "after the other's");
}

/// A failover to a replica that lost the direct fetch, while the prefetch was on its way.
#[tokio::test(start_paused = true)]
async fn a_direct_fetch_and_a_prefetch_are_judged_one_after_the_other() {
    let store = store_with("orders", 100).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    orders.next().await.unwrap();
    store.set_delay(Duration::from_millis(100));
    // Starts the prefetch, which takes 100 ms.
    orders.take(50).await.unwrap();
    let asked = Instant::now();

    let direct = orders.take(500).await.unwrap();

    assert!(asked.elapsed() >= Duration::from_millis(200), "{:?}", asked.elapsed());
    assert_eq!(direct[0].len(), 500);
}

#[tokio::test(start_paused = true)]
async fn a_close_does_not_wait_for_a_dead_store() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    segments.tag("orders").await.unwrap().next().await.unwrap();
    store.set_delay(Duration::from_secs(3600));
    let started = Instant::now();

    segments.close().await;

    assert!(started.elapsed() <= Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_while_the_next_segment_comes_in_time() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    orders.next().await.unwrap();
    store.set_delay(Duration::from_millis(50));

    // 1 id per 100 us: a segment lasts at least 100 ms, a fetch 50 ms.
    for _ in 0..50_000 {
        assert!(orders.try_next().is_some(), "a caller would have waited");
        tokio::time::advance(Duration::from_micros(100)).await;
    }
}

/// Java Leaf fails 8 of 20,000 calls at 15 ms and step 100; here some wait once, none fails.
#[tokio::test(start_paused = true)]
async fn a_step_that_is_outrun_grows_until_nobody_waits() {
    let store = store_with("orders", 100).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    orders.next().await.unwrap();
    store.set_delay(Duration::from_millis(50));

    let mut waited = 0;
    // 1 id per 100 us: the first segments last 10 ms, a fetch 50 ms.
    for _ in 0..50_000 {
        let asked = Instant::now();
        orders.next().await.unwrap();
        waited += u32::from(asked.elapsed() > Duration::ZERO);
        tokio::time::advance(Duration::from_micros(100)).await;
    }

    // Doubling once a fetch would let three wait.
    assert!(waited <= 2, "{waited} calls waited");
}

#[tokio::test(start_paused = true)]
async fn a_dead_store_is_noticed_only_when_the_stock_is_gone() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    orders.next().await.unwrap();
    store.set_down(true);

    for _ in 0..999 {
        orders.next().await.unwrap();
    }
    assert!(matches!(segments.health(), Health::Degraded(_) | Health::Ready));
    let asked = Instant::now();
    let error = orders.next().await.unwrap_err();

    assert_eq!(*error.kind(), SegmentErrorKind::StoreDown);
    assert!(error.retryable());
    assert_eq!(asked.elapsed(), Duration::from_secs(2), "the waiters' deadline");
    assert!(!segments.health().can_answer(), "{}", segments.health());
}

#[tokio::test(start_paused = true)]
async fn ids_flow_again_within_a_second_of_the_stores_return() {
    let store = store_with("orders", 100).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    store.set_down(true);
    orders.next().await.unwrap_err();
    // Long enough for the back-off to have reached its ceiling.
    tokio::time::sleep(Duration::from_secs(60)).await;

    store.set_down(false);
    let back = Instant::now();
    orders.next().await.unwrap();

    assert!(back.elapsed() < Duration::from_secs(1), "{:?}", back.elapsed());
    assert_eq!(segments.health(), Health::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_store_is_given_up_and_its_range_is_lost() {
    let store = store_with("orders", 100).await;
    let orders = open(&store).await.tag("orders").await.unwrap();
    store.set_delay(Duration::from_secs(3600));

    let error = orders.next().await.unwrap_err();

    assert!(error.retryable(), "{error}");
    store.set_delay(Duration::ZERO);
    let id = orders.next().await.unwrap().get();
    assert!(id >= 101 && (id - 1) % 100 == 0, "{id}: ranges without an answer are lost");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_does_not_disturb_the_fetch() {
    let store = store_with("orders", 100).await;
    store.set_delay(Duration::from_millis(100));
    let orders = open(&store).await.tag("orders").await.unwrap();

    let impatient = tokio::time::timeout(Duration::from_millis(10), orders.next()).await;

    assert!(impatient.is_err());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(orders.try_next().map(|id| id.get()), Some(1));
    assert_eq!(store.allocations.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn the_step_doubles_under_demand_up_to_the_maximum() {
    let store = store_with("orders", 1000).await;
    let config = SegmentConfig { max_step: step(4000), ..SegmentConfig::default() };
    let segments = SegmentGenerator::open(Arc::clone(&store) as _, config).await;
    let orders = segments.tag("orders").await.unwrap();

    for _ in 0..20_000 {
        orders.next().await.unwrap();
    }

    // 1000, then 2000 at id 101, 4000 at id 1201, 4000 at 3401, ...
    let record = store.inner.tag(&tag("orders")).await.unwrap().unwrap();
    assert_eq!((record.max_id - 1 - 3000) % 4000, 0, "{}", record.max_id);
}

#[tokio::test(start_paused = true)]
async fn a_step_changed_in_the_record_counts_at_the_next_fetch() {
    let store = store_with("orders", 10).await;
    let orders = open(&store).await.tag("orders").await.unwrap();
    orders.next().await.unwrap();

    store.set_step(&tag("orders"), step(500)).await.unwrap();
    for _ in 0..10 {
        orders.next().await.unwrap();
    }

    let record = store.inner.tag(&tag("orders")).await.unwrap().unwrap();
    assert_eq!(record.max_id, 1 + 10 + 500);
}

#[tokio::test(start_paused = true)]
async fn a_new_tag_is_found_at_once() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;

    store.create(&NewTag::new(tag("chat"), step(10))).await.unwrap();

    assert_eq!(segments.tag("chat").await.unwrap().next().await.unwrap().get(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_tag_is_asked_for_once_a_second() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;

    for _ in 0..100 {
        let error = segments.tag("nope").await.unwrap_err();
        assert_eq!(*error.kind(), SegmentErrorKind::UnknownTag);
    }
    assert_eq!(store.look_ups.load(Ordering::SeqCst), 1);

    tokio::time::advance(Duration::from_secs(1)).await;
    store.create(&NewTag::new(tag("nope"), step(10))).await.unwrap();
    segments.tag("nope").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_unknown_tags_keeps_the_memory_bounded() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;

    for i in 0..3000 {
        segments.tag(&format!("nope-{i}")).await.unwrap_err();
    }

    assert_eq!(store.look_ups.load(Ordering::SeqCst), 3000);
    assert!(format!("{segments:?}").matches("nope-").count() <= 1000);
}

#[tokio::test(start_paused = true)]
async fn a_bad_tag_never_reaches_the_store() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;

    for bad in ["", " orders", "a\nb", &"x".repeat(129)] {
        let error = segments.tag(bad).await.unwrap_err();
        assert!(matches!(error.kind(), SegmentErrorKind::BadTag(_)), "{error}");
    }
    assert_eq!(store.look_ups.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_tag_ends_with_the_refresh_even_the_last_one() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    orders.next().await.unwrap();

    store.delete(&tag("orders")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;

    assert_eq!(*orders.next().await.unwrap_err().kind(), SegmentErrorKind::UnknownTag);
    assert_eq!(*segments.tag("orders").await.unwrap_err().kind(), SegmentErrorKind::UnknownTag);
}

#[tokio::test(start_paused = true)]
async fn a_tag_made_again_from_the_start_repeats_nothing() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    segments.tag("orders").await.unwrap().next().await.unwrap();
    store.delete(&tag("orders")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;

    store.create(&NewTag::new(tag("orders"), step(1000))).await.unwrap();
    let orders = segments.tag("orders").await.unwrap();
    let error = orders.next().await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::Record);
    let refused = error.store_error().unwrap().kind().clone();
    assert_eq!(refused, StoreErrorKind::Regression { start: 1, mark: 1001 });

    store.advance(&tag("orders"), 5000).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(orders.next().await.unwrap().get(), 5000);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_went_back_is_not_trusted_until_somebody_raises_the_record() {
    for busy in [false, true] {
        went_back(busy).await;
    }
}

async fn went_back(busy: bool) {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    for _ in 0..1000 {
        orders.next().await.unwrap();
    }
    let before = store.inner.tag(&tag("orders")).await.unwrap().unwrap().max_id;
    store.delete(&tag("orders")).await.unwrap();
    store.create(&NewTag::new(tag("orders"), step(1000))).await.unwrap();
    *store.busy.lock().unwrap() = busy;
    let allocations = store.allocations.load(Ordering::SeqCst);
    while orders.try_next().is_some() {}

    for _ in 0..20 {
        let error = orders.next().await.unwrap_err();
        assert_eq!(*error.kind(), SegmentErrorKind::Record, "{error}");
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    let record = store.inner.tag(&tag("orders")).await.unwrap().unwrap();
    assert!(busy || record.max_id == 1, "refused ranges do not move the record");
    assert_eq!(store.allocations.load(Ordering::SeqCst), allocations + 1, "asked once");

    store.advance(&tag("orders"), before + 50_000).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(orders.next().await.unwrap().get(), before + 50_000);
}

#[tokio::test(start_paused = true)]
async fn a_bad_step_is_an_error_until_it_is_repaired() {
    let store = store_with("orders", 1000).await;
    store.inner.break_step(&tag("orders"), 0);
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    assert_eq!(*orders.next().await.unwrap_err().kind(), SegmentErrorKind::Record);

    store.set_step(&tag("orders"), step(10)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;

    assert_eq!(orders.next().await.unwrap().get(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_tag_says_so_and_leaves_the_others_alone() {
    let store = store_with("orders", 10).await;
    let last = NewTag { max_id: i64::MAX - 15, ..NewTag::new(tag("last"), step(10)) };
    store.create(&last).await.unwrap();
    let segments = open(&store).await;
    let last = segments.tag("last").await.unwrap();

    for _ in 0..10 {
        last.next().await.unwrap();
    }
    let error = last.next().await.unwrap_err();

    assert_eq!(*error.kind(), SegmentErrorKind::Record);
    assert_eq!(*error.store_error().unwrap().kind(), StoreErrorKind::Exhausted);
    segments.tag("orders").await.unwrap().next().await.unwrap();
    assert!(last.try_next().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_at_the_start_is_waited_for() {
    let store = store_with("orders", 10).await;
    store.set_down(true);
    let segments = open(&store).await;

    assert!(!segments.health().can_answer());
    let error = segments.tag("orders").await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::StoreDown, "never \"no such tag\"");

    store.set_down(false);
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(segments.health(), Health::Ready);
    segments.tag("orders").await.unwrap().next().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_leaves_a_closed_generator() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    orders.next().await.unwrap();

    segments.close().await;

    assert!(orders.try_next().is_none());
    assert_eq!(*orders.next().await.unwrap_err().kind(), SegmentErrorKind::Closed);
    assert!(!segments.health().can_answer());
}

#[tokio::test(start_paused = true)]
async fn a_caller_waiting_at_close_is_told_at_once() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    store.set_down(true);
    let waiter = tokio::spawn(async move { orders.next().await });
    tokio::time::sleep(Duration::from_millis(10)).await;

    let closing = Instant::now();
    segments.close().await;

    assert_eq!(*waiter.await.unwrap().unwrap_err().kind(), SegmentErrorKind::Closed);
    assert_eq!(closing.elapsed(), Duration::ZERO);
}
