//! Idle tags are removed from memory, and looked up again when they are used. Time is paused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{TestStore, step, store_with, tag};
use leaf_segment::{
    HighWaterMarks, NewTag, SegmentConfig, SegmentErrorKind, SegmentGenerator, TagStore,
};

const IDLE: Duration = Duration::from_secs(3600);
const REFRESH: Duration = Duration::from_secs(60);

async fn open(store: &Arc<TestStore>) -> SegmentGenerator {
    let config = SegmentConfig { idle: Some(IDLE), ..SegmentConfig::default() };
    SegmentGenerator::open(Arc::clone(store) as _, config).await
}

#[tokio::test(start_paused = true)]
async fn an_idle_tag_leaves_and_goes_on_without_a_gap() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    for id in 1..=7 {
        assert_eq!(orders.next().await.unwrap().get(), id);
    }
    tokio::time::sleep(IDLE - REFRESH).await;
    assert_eq!(segments.views(None, 100).len(), 1);
    tokio::time::sleep(3 * REFRESH).await;

    assert!(segments.views(None, 100).is_empty(), "its memory is free");
    assert_eq!(store.inner_max_id("orders").await, 8, "what was not used went back");
    assert_eq!(*orders.next().await.unwrap_err().kind(), SegmentErrorKind::Changed);
    let read = store.read.load(Ordering::SeqCst);
    tokio::time::sleep(10 * REFRESH).await;
    assert_eq!(store.read.load(Ordering::SeqCst), read, "its record is read no more");

    assert_eq!(segments.tag("orders").await.unwrap().next().await.unwrap().get(), 8);
}

/// A tag is used again while it is being removed from memory. The new handle may be granted the ids
/// that just went back, so it must not compare them with the earlier mark.
#[tokio::test(start_paused = true)]
async fn who_comes_while_a_tag_leaves_is_served() {
    let store = store_with("orders", 1000).await;
    let marks = Arc::new(HighWaterMarks::default());
    let config = SegmentConfig { idle: Some(IDLE), marks, ..SegmentConfig::default() };
    let segments = SegmentGenerator::open(Arc::clone(&store) as _, config).await;
    let mut last = 0;
    for i in 0..15 {
        let id = segments.tag("orders").await.unwrap().next().await.unwrap().get();
        assert!((last + 1..=last + 1001).contains(&id), "{last}, then {id}");
        last = id;
        // Give backs, look-ups and allocations take some time, and callers come at any moment.
        store.set_delay(Duration::from_millis(20));
        tokio::time::sleep(IDLE - REFRESH).await;
        while segments.known("orders").is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(3 * u64::try_from(i).unwrap())).await;
        let again = segments.tag("orders").await.unwrap();
        let served = again.next().await.is_ok();
        assert!(served, "ids that went back are refused: {:?}", segments.health());
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_in_use_stays_and_so_does_one_that_waits_for_an_operator() {
    let store = store_with("orders", 1000).await;
    store.create(&NewTag::new(tag("broken"), step(10))).await.unwrap();
    store.create(&NewTag::strict(tag("invoices"))).await.unwrap();
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    let broken = segments.tag("broken").await.unwrap();
    let invoices = segments.tag("invoices").await.unwrap();
    broken.next().await.unwrap();
    store.inner.break_step(&tag("broken"), 0);
    for _ in 0..10 {
        orders.next().await.unwrap();
        invoices.next().await.unwrap();
        tokio::time::sleep(IDLE / 2).await;
    }
    let names: Vec<_> = segments.views(None, 100).into_iter().map(|view| view.tag).collect();
    assert_eq!(names, [tag("broken"), tag("invoices"), tag("orders")]);

    // One in strict order leaves, too: it has no stock, and its mark says where it was.
    tokio::time::sleep(2 * IDLE).await;
    let names: Vec<_> = segments.views(None, 100).into_iter().map(|view| view.tag).collect();
    assert_eq!(names, [tag("broken")]);
    assert_eq!(segments.tag("invoices").await.unwrap().next().await.unwrap().get(), 11);
}

/// Ids do not go back if another node has allocated since.
#[tokio::test(start_paused = true)]
async fn nothing_goes_back_where_another_node_allocated_since() {
    let store = store_with("orders", 1000).await;
    let (idle, other) = (open(&store).await, open(&store).await);
    assert_eq!(idle.tag("orders").await.unwrap().next().await.unwrap().get(), 1);
    let orders = other.tag("orders").await.unwrap();
    assert_eq!(orders.next().await.unwrap().get(), 1001);
    for id in 1002..1010 {
        tokio::time::sleep(IDLE / 4).await;
        assert_eq!(orders.next().await.unwrap().get(), id);
    }
    assert!(idle.views(None, 100).is_empty());
    assert_eq!(idle.tag("orders").await.unwrap().next().await.unwrap().get(), 2001);
}

/// By default a tag stays in memory, however long nobody uses its handle.
#[tokio::test(start_paused = true)]
async fn no_tag_leaves_unless_that_was_chosen() {
    let store = store_with("orders", 1000).await;
    let segments = crate::support::open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    orders.next().await.unwrap();
    tokio::time::sleep(5 * IDLE).await;
    assert_eq!(orders.next().await.unwrap().get(), 2);
}
