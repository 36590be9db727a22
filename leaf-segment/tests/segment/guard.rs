//! The regression guard: a range that was granted once is never accepted again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{TestStore, open, open_with_marks, step, store_with, tag};
use leaf_core::Health;
use leaf_segment::admin::{Confirm, TagAdmin};
use leaf_segment::store::TagSettings;
use leaf_segment::{
    HighWaterMarks, NewTag, SegmentConfig, SegmentErrorKind, SegmentGenerator, SegmentSource,
    StoreErrorKind, TagCatalog, TagStore,
};
use leaf_testkit::Edit as _;
use tokio::time::Instant;

/// A direct fetch waits for a prefetch that is under way. Otherwise the guard could not judge the
/// two after a failover to a replica that lost one of them.
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

    let direct = orders.take(500).await.unwrap().into_ranges().unwrap();

    assert!(asked.elapsed() >= Duration::from_millis(200), "{:?}", asked.elapsed());
    assert_eq!(direct[0].len(), 500);
}

#[tokio::test(start_paused = true)]
async fn a_tag_made_again_from_the_start_repeats_nothing() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    segments.tag("orders").await.unwrap().next().await.unwrap();
    store.inner.remove(&tag("orders")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;

    store.create(&NewTag::new(tag("orders"), step(1000))).await.unwrap();
    let orders = segments.tag("orders").await.unwrap();
    let error = orders.next().await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::Guard);
    let refused = error.store_error().unwrap().kind().clone();
    assert_eq!(refused, StoreErrorKind::Regression { start: 1, mark: 1001 });

    store.inner.raise(&tag("orders"), 5000).await.unwrap();
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
    restore(&store, 1).await;
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

    store.inner.raise(&tag("orders"), before + 50_000).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(orders.next().await.unwrap().get(), before + 50_000);
}

/// Restores the store from a backup: `max_id` is lower, the generation is unchanged.
async fn restore(store: &TestStore, max_id: i64) {
    let settings = match store.inner.record(&tag("orders")).await {
        Ok(record) => record.settings.unwrap(),
        Err(_) => TagSettings::default(),
    };
    let _ = store.inner.remove(&tag("orders")).await;
    let record = NewTag { max_id, settings, ..NewTag::new(tag("orders"), step(1000)) };
    store.create(&record).await.unwrap();
}

/// G-07, G-08. In real time, because the marks are on a real disk.
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
    let error = orders.next().await.expect_err("this id was issued before the restart");
    assert_eq!(*error.kind(), SegmentErrorKind::Guard);
    let refused = error.store_error().unwrap();
    assert_eq!(*refused.kind(), StoreErrorKind::Regression { start: 1, mark: 1001 });
    assert!(refused.to_string().contains("advance the tag to at least 1001"), "{refused}");
    assert_eq!(segments.views(None, 100)[0].mark, Some(1001));

    store.inner.raise(&tag("orders"), 1001).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(orders.next().await.unwrap().get(), 1001);
}

/// G-11: a tag's mark is kept, also when the tag is deleted while this process is down.
#[tokio::test]
async fn the_mark_of_a_deleted_tag_outlives_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("segment.marks");
    let store = store_with("orders", 1000).await;
    let segments = open_with_marks(&store, &file).await;
    segments.tag("orders").await.unwrap().next().await.unwrap();
    drop(segments);
    store.inner.remove(&tag("orders")).await.unwrap();
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
    let small = TagSettings { max_step: Some(step(1000)), ..TagSettings::default() };
    store.inner.set_settings(&tag(&name), &small).await.unwrap();
    let segments = open_with_marks(&store, &folder.join("segment.marks")).await;
    // A write still reaches the open file, but the rename of a new one fails: make it due.
    let orders = segments.tag(&name).await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    for _ in 0..2000 {
        orders.take(900).await.unwrap();
        if segments.health() != Health::Ready {
            break;
        }
    }

    let health = segments.health().to_string();
    assert!(health.contains("marks of the regression guard are not kept"), "{health}");
    assert!(segments.health().can_answer());

    // Once there is a place to write to, nobody needs to ask for an id before they are kept.
    std::fs::create_dir(&folder).unwrap();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if segments.health() == Health::Ready {
            return;
        }
    }
    panic!("the marks are not written again: {}", segments.health());
}

/// The ids that one node gives back may lie below a range that another node was granted and gave
/// back before. That is no regression.
#[tokio::test(start_paused = true)]
async fn a_clean_stop_of_all_nodes_is_no_regression() {
    for prefetched in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (file, other_file) = (directory.path().join("a"), directory.path().join("b"));
        let store = store_with("orders", 1000).await;
        let node = open_with_marks(&store, &file).await;
        let other = open_with_marks(&store, &other_file).await;
        let (on_node, on_other) =
            (node.tag("orders").await.unwrap(), other.tag("orders").await.unwrap());
        if prefetched {
            on_other.next().await.unwrap();
            on_node.next().await.unwrap();
            for _ in 0..150 {
                on_other.next().await.unwrap();
            }
        } else {
            on_node.next().await.unwrap();
            // Its caller leaves before the segment is there.
            assert!(on_other.try_next().is_none());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        other.close().await;
        node.close().await;
        drop((node, other, on_node, on_other));
        let left = store.tag(&tag("orders")).await.unwrap().unwrap().max_id;
        assert!(left < 1200, "both gave back: {left}");

        let other = open_with_marks(&store, &other_file).await;
        other.tag("orders").await.unwrap().next().await.unwrap();
    }
}

/// A fetch is sent before the tag is deleted or disabled. Its answer arrives after the tag was made
/// again, or enabled again.
#[tokio::test(start_paused = true)]
async fn nothing_is_handed_out_that_the_next_handle_does_not_know() {
    for made_again in [true, false] {
        let store = store_with("orders", 1000).await;
        let config = SegmentConfig { refresh: Duration::from_secs(1), ..SegmentConfig::default() };
        let marks = Arc::clone(&config.marks);
        let store_of = Arc::clone(&store) as Arc<dyn SegmentSource>;
        let segments = SegmentGenerator::open(store_of, config).await;
        let orders = segments.tag("orders").await.unwrap();
        orders.next().await.unwrap();
        tokio::time::sleep(Duration::from_millis(900)).await;
        store.set_delay(Duration::from_millis(1900));
        let late = orders.clone();
        let late = tokio::spawn(async move { late.take(5000).await });
        tokio::time::sleep(Duration::from_millis(10)).await;
        store.set_delay(Duration::ZERO);
        let off = TagSettings { enabled: false, ..TagSettings::default() };
        match made_again {
            true => store.inner.remove(&tag("orders")).await.unwrap(),
            false => store.inner.set_settings(&tag("orders"), &off).await.unwrap(),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        orders.next().await.unwrap_err();
        match made_again {
            true => restore(&store, 1001).await,
            false => {
                let on = TagSettings::default();
                store.inner.set_settings(&tag("orders"), &on).await.unwrap();
            }
        }
        tokio::time::sleep(Duration::from_millis(900)).await;
        let orders = segments.tag("orders").await.unwrap();
        let first = orders.next().await.unwrap().get();
        let before = marks.get(&tag("orders"));

        let late: Vec<i64> = late.await.unwrap().into_iter().flatten().map(|id| id.get()).collect();
        assert!(marks.get(&tag("orders")) >= before, "a mark does not sink");
        assert!(!late.contains(&first), "{late:?} and {first}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_outlives_disabling_the_tag() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    orders.next().await.unwrap();
    restore(&store, 1).await;
    // The refused range cannot be given back: the record now stands at the mark.
    *store.busy.lock().unwrap() = true;
    while orders.try_next().is_some() {}
    assert_eq!(*orders.next().await.unwrap_err().kind(), SegmentErrorKind::Guard);

    let off = TagSettings { enabled: false, ..TagSettings::default() };
    for settings in [off, TagSettings::default()] {
        store.inner.set_settings(&tag("orders"), &settings).await.unwrap();
        tokio::time::sleep(Duration::from_secs(61)).await;
    }
    let orders = segments.tag("orders").await.unwrap();
    let error = orders.next().await.expect_err("ids of a record that went back");
    assert_eq!(*error.kind(), SegmentErrorKind::Guard, "nobody has raised the record");
}

/// Generators of several stores share the marks of a process, and a tag may be in two stores while
/// it moves. The generator that was granted nothing must not change the mark of the other.
#[tokio::test(start_paused = true)]
async fn whoever_was_granted_nothing_leaves_the_mark_alone() {
    let marks = Arc::new(HighWaterMarks::default());
    let config = SegmentConfig { marks: Arc::clone(&marks), ..SegmentConfig::default() };
    let (from, to) = (store_with("orders", 1000).await, store_with("orders", 1000).await);
    to.inner.raise(&tag("orders"), 10_000).await.unwrap();
    let open = async |store: &Arc<TestStore>| {
        SegmentGenerator::open(Arc::clone(store) as Arc<dyn SegmentSource>, config.clone()).await
    };
    let (old, new) = (open(&from).await, open(&to).await);
    new.tag("orders").await.unwrap().take(50).await.unwrap();
    let unused = old.tag("orders").await.unwrap();

    old.close().await;
    assert_eq!(marks.get(&tag("orders")), Some(11_000));
    new.close().await;
    assert_eq!(marks.get(&tag("orders")), Some(10_050), "one past the last that was handed out");
    drop(unused);
}

/// A deletion seals the tag first. If that fails, the tag is not deleted: ranges that are allocated
/// meanwhile would not be remembered.
#[tokio::test(start_paused = true)]
async fn a_tag_that_cannot_be_closed_is_not_deleted() {
    let store = store_with("orders", 10).await;
    *store.busy.lock().unwrap() = true;
    let orders = tag("orders");

    let deleted = TagAdmin::new(&*store).delete(&orders, Confirm::Yes).await;

    let refused = deleted.expect_err("others still allocate from it").to_string();
    assert!(refused.contains("others allocate"), "{refused}");
    assert!(store.tag(&orders).await.unwrap().is_some());
}

/// A node with stock reports that the record went back before it is refused itself: its mark is
/// higher than that of the other node. It also reports when the repair is made.
#[tokio::test(start_paused = true)]
async fn a_node_with_stock_tells_how_far_it_was_granted() {
    let store = Arc::new(TestStore::default());
    store.create(&NewTag::new(tag("orders"), step(1000))).await.unwrap();
    let refused = open(&store).await;
    let stocked = open(&store).await;
    let orders = refused.tag("orders").await.unwrap();
    orders.take(10).await.unwrap();
    let other = stocked.tag("orders").await.unwrap();
    other.take(10).await.unwrap();
    let end = store.inner_max_id("orders").await;
    assert!(
        store.inner.replace_max_id(&tag("orders"), generation(&store).await, end, 1).await.unwrap()
    );

    tokio::time::sleep(Duration::from_secs(65)).await;
    let health = stocked.health().to_string();
    assert!(health.contains(&format!("must go on from {end} or above")), "{health}");
    assert!(other.next().await.is_ok(), "its stock is its own");

    TagAdmin::new(&*store).advance(&tag("orders"), end, Confirm::No).await.unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(stocked.health().to_string(), "ready");
    assert_eq!(refused.health().to_string(), "ready");
}

async fn generation(store: &TestStore) -> Option<leaf_segment::store::TagGeneration> {
    store.inner.tag(&tag("orders")).await.unwrap().unwrap().generation()
}
