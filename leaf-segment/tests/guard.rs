//! The regression guard: what was granted once is never accepted again.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use leaf_core::Health;
use leaf_segment::{NewTag, SegmentErrorKind, SegmentStore, StoreErrorKind};
use support::{TestStore, open, open_with_marks, step, store_with, tag};
use tokio::time::Instant;

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
async fn a_tag_made_again_from_the_start_repeats_nothing() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    segments.tag("orders").await.unwrap().next().await.unwrap();
    store.delete(&tag("orders")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;

    store.create(&NewTag::new(tag("orders"), step(1000))).await.unwrap();
    let orders = segments.tag("orders").await.unwrap();
    let error = orders.next().await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::Guard);
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
        assert_eq!(*error.kind(), SegmentErrorKind::Guard, "{error}");
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    let record = store.inner.tag(&tag("orders")).await.unwrap().unwrap();
    assert!(busy || record.max_id == 1, "refused ranges do not move the record");
    assert_eq!(store.allocations.load(Ordering::SeqCst), allocations + 1, "asked once");

    store.advance(&tag("orders"), before + 50_000).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(orders.next().await.unwrap().get(), before + 50_000);
}

/// A store restored from a backup: all it knows of the tag is lost.
async fn restore(store: &TestStore, max_id: i64) {
    let _ = store.delete(&tag("orders")).await;
    let record = NewTag { max_id, ..NewTag::new(tag("orders"), step(1000)) };
    store.create(&record).await.unwrap();
}

/// G-07, G-08: with time that runs, for the marks are on a real disk.
#[tokio::test]
async fn a_restart_remembers_what_was_granted() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("segment.marks");
    let store = store_with("orders", 1000).await;
    let segments = open_with_marks(&store, &file).await;
    // Killed: nothing is given back.
    assert_eq!(segments.tag("orders").await.unwrap().next().await.unwrap().get(), 1);
    drop(segments);

    restore(&store, 1).await;
    let segments = open_with_marks(&store, &file).await;
    let orders = segments.tag("orders").await.unwrap();
    let error = orders.next().await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::Guard);
    let refused = error.store_error().unwrap();
    assert_eq!(*refused.kind(), StoreErrorKind::Regression { start: 1, mark: 1001 });
    assert!(refused.to_string().contains("leaf tag advance --at-least 1001"), "{refused}");
    assert_eq!(segments.views()[0].mark, Some(1001));

    store.advance(&tag("orders"), 1001).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(orders.next().await.unwrap().get(), 1001);
}

/// G-11: also a tag that was deleted while this process was down.
#[tokio::test]
async fn the_mark_of_a_deleted_tag_outlives_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("segment.marks");
    let store = store_with("orders", 1000).await;
    let segments = open_with_marks(&store, &file).await;
    segments.tag("orders").await.unwrap().next().await.unwrap();
    drop(segments);
    store.delete(&tag("orders")).await.unwrap();
    open_with_marks(&store, &file).await.close().await;

    restore(&store, 1).await;
    let segments = open_with_marks(&store, &file).await;
    let error = segments.tag("orders").await.unwrap().next().await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::Guard);
}

#[tokio::test]
async fn unused_ids_that_went_back_are_no_regression() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("segment.marks");
    let store = store_with("orders", 1000).await;
    for round in 0..5 {
        let segments = open_with_marks(&store, &file).await;
        let orders = segments.tag("orders").await.unwrap();
        for expected in 1..=300 {
            assert_eq!(orders.next().await.unwrap().get(), round * 300 + expected);
        }
        segments.close().await;
    }
    assert_eq!(store.tag(&tag("orders")).await.unwrap().unwrap().max_id, 1501);
}

#[tokio::test]
async fn a_disk_that_keeps_no_marks_costs_no_ids_and_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("data");
    std::fs::create_dir(&folder).unwrap();
    let name = "x".repeat(128);
    let store = store_with(&name, 1000).await;
    let segments = open_with_marks(&store, &folder.join("segment.marks")).await;
    // A write still reaches the open file, but the rename of a new one fails: make it due.
    let orders = segments.tag(&name).await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    while segments.health() == Health::Ready {
        orders.take(900).await.unwrap();
    }

    let health = segments.health().to_string();
    assert!(health.contains("marks of the regression guard are not kept"), "{health}");
    assert!(segments.health().can_answer());
}
