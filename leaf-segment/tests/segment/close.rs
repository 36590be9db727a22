//! The end: nothing leaves a closed generator, and unused ids go back.

use std::time::Duration;

use crate::support::{open, step, store_with, tag};
use leaf_segment::{RangeSource, SegmentErrorKind};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn unused_ids_go_back_where_nobody_allocated_since() {
    for (others, next) in [(false, 8), (true, 2001)] {
        let store = store_with("orders", 1000).await;
        let segments = open(&store).await;
        let orders = segments.tag("orders").await.unwrap();
        for id in 1..=7 {
            assert_eq!(orders.next().await.unwrap().get(), id);
        }
        if others {
            store.inner.allocate(&tag("orders"), step(1000), step(1000).into()).await.unwrap();
        }
        segments.close().await;
        assert!(orders.try_next().is_none());

        let successor = open(&store).await;
        let first = successor.tag("orders").await.unwrap().next().await.unwrap().get();
        assert_eq!(first, next, "{others}");
    }
}

/// Ids that are given back may belong to another node the next moment, so they go back only once.
#[tokio::test(start_paused = true)]
async fn unused_ids_go_back_once() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;
    segments.tag("orders").await.unwrap().next().await.unwrap();
    tokio::join!(segments.close(), segments.close());
    let others = store.inner.allocate(&tag("orders"), step(9), step(10).into()).await.unwrap();
    assert_eq!((others.start(), others.end()), (2, 11));

    segments.close().await;

    let next = store.inner.allocate(&tag("orders"), step(10), step(10).into()).await.unwrap();
    assert_eq!(next.start(), 11, "after the other's");
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
