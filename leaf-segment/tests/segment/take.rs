//! Taking many ids at once, and without a runtime.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{open, step, store_with, tag};
use leaf_core::{Health, IdRange};
use leaf_segment::{NewTag, SegmentErrorKind, TagStore};
use leaf_testkit::Edit as _;
use tokio::time::Instant;

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
        let ranges = orders.take(count).await.unwrap().into_ranges().unwrap();
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

    let direct = orders.take(12_345).await.unwrap().into_ranges().unwrap();

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
    assert_eq!(orders.take(5000).await.unwrap().len(), 5000);
    store.inner.remove(&tag("orders")).await.unwrap();
    let error = orders.take(5000).await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::UnknownTag);
}

/// A balancer sends no callers to a node that is not ready. So the node must find out on its own
/// that the store answers again, also if its last callers wanted more than the buffer holds.
#[tokio::test(start_paused = true)]
async fn after_an_outage_it_is_ready_without_a_caller() {
    for full in [false, true] {
        let store = store_with("orders", 10).await;
        store.create(&NewTag::new(tag("leased"), step(10))).await.unwrap();
        let segments = open(&store).await;
        let orders = segments.tag("orders").await.unwrap();
        segments.tag("leased").await.unwrap().take_contiguous(500).await.unwrap();
        if full {
            // Both segments are there: the refill has nothing to fetch.
            orders.next().await.unwrap();
            orders.next().await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        store.set_down(true);
        orders.take_contiguous(500).await.unwrap_err();
        assert!(!segments.health().can_answer(), "{}", segments.health());

        store.set_down(false);
        tokio::time::sleep(Duration::from_secs(10)).await;

        assert_eq!(segments.health(), Health::Ready, "{full}");
    }
}
