//! Strict order: no buffer. One allocation serves all waiting callers, and no caller joins an
//! allocation that has begun.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leaf_segment::{NewTag, SegmentErrorKind, TagStore};
use leaf_shape::Meaning;
use leaf_testkit::CallLog;
use leaf_testkit::Edit as _;

use crate::support::{TestStore, open, open_with_marks, step, tag};

async fn strict_store() -> Arc<TestStore> {
    let store = Arc::new(TestStore::default());
    store.create(&NewTag::strict(tag("turns"))).await.unwrap();
    store
}

/// Three nodes, twenty callers each, a store that answers late and after various times.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ids_follow_the_order_of_the_calls_over_all_nodes() {
    let store = strict_store().await;
    store.set_delay(Duration::from_millis(2));
    let log = Arc::new(CallLog::default());
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(open(&store).await);
    }
    let mut callers = Vec::new();
    for caller in 0..60_usize {
        let (node, log) = (nodes[caller % 3].clone(), Arc::clone(&log));
        callers.push(tokio::spawn(async move {
            let turns = node.tag("turns").await.unwrap();
            for call in 0..50 {
                let sent = log.now();
                match (caller + call) % 5 {
                    0 => {
                        let range = turns.take_contiguous(3).await.unwrap();
                        assert_eq!(range.len(), 3);
                        log.record(sent, range.start(), range.end() - 1);
                    }
                    _ => {
                        let id = turns.next().await.unwrap().get();
                        log.record(sent, id, id);
                    }
                }
                tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3000))).await;
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    log.expect_strict_order(3000);
    let asked = store.allocations.load(Ordering::SeqCst);
    assert!(asked < 2500, "{asked} allocations for 3000 calls: callers do not share them");
    let ids = 3000 + 2 * 600;
    let next = store.inner_max_id("turns").await;
    assert_eq!(next, 1 + ids, "no id is lost while everything works");
}

/// A caller that arrives during an allocation waits for the next one. Exactly the requested number
/// of ids is allocated.
#[tokio::test(start_paused = true)]
async fn nobody_joins_an_allocation_that_has_begun() {
    let store = strict_store().await;
    let node = open(&store).await;
    let turns = node.tag("turns").await.unwrap();
    store.set_delay(Duration::from_millis(100));

    let first = turns.next();
    let late = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Meanwhile the first one's range is granted, and on its way.
        let record = store.inner_max_id("turns").await;
        assert_eq!(record, 2, "one id was asked for");
        tokio::join!(turns.next(), turns.take(2))
    };
    let (first, (second, both)) = tokio::join!(first, late);

    assert_eq!((first.unwrap().get(), second.unwrap().get()), (1, 2));
    assert_eq!(both.unwrap().next().map(|id| id.get()), Some(3));
    assert_eq!(store.allocations.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn there_is_nothing_to_take_without_waiting() {
    let store = strict_store().await;
    let node = open(&store).await;
    let turns = node.tag("turns").await.unwrap();

    assert_eq!(turns.meaning(), Meaning::STRICT);
    assert_eq!((turns.try_next(), turns.try_take(10).is_none(), turns.stock()), (None, true, 0));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(store.allocations.load(Ordering::SeqCst), 0, "and nothing is fetched ahead");
    assert_eq!(turns.next().await.unwrap().get(), 1);
    assert_eq!(turns.last_issued().unwrap().get(), 1);
    assert_eq!(node.views(None, 100)[0].issued, 1);
}

/// When the store is down, a tag in strict order fails at once, and tags in relaxed order go on.
#[tokio::test(start_paused = true)]
async fn an_outage_is_told_at_once_and_ends_with_it() {
    let store = strict_store().await;
    store.create(&NewTag::new(tag("plain"), step(1000))).await.unwrap();
    let node = open(&store).await;
    let (turns, plain) = (node.tag("turns").await.unwrap(), node.tag("plain").await.unwrap());
    turns.next().await.unwrap();
    plain.next().await.unwrap();
    store.set_down(true);

    let asked = tokio::time::Instant::now();
    let error = turns.next().await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::StoreDown);
    assert!(error.retryable() && asked.elapsed() < Duration::from_millis(500), "{error}");
    let allocations = store.allocations.load(Ordering::SeqCst);
    for _ in 0..100 {
        assert!(turns.next().await.is_err());
    }
    let more = store.allocations.load(Ordering::SeqCst) - allocations;
    assert!(more <= 3, "{more} requests to a store that has just failed");
    assert!(node.health().can_answer(), "{:?}", node.health());
    plain.next().await.unwrap();

    store.set_down(false);
    tokio::time::sleep(Duration::from_millis(60)).await;
    // What was granted and not answered is a gap.
    assert!(turns.next().await.unwrap().get() > 1);
}

#[tokio::test(start_paused = true)]
async fn callers_leave_when_they_like_and_cost_no_ids_before_their_turn() {
    let store = strict_store().await;
    let node = open(&store).await;
    let turns = node.tag("turns").await.unwrap();
    store.set_delay(Duration::from_millis(100));

    let impatient = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        tokio::time::timeout(Duration::from_millis(50), turns.take_contiguous(1000)).await
    };
    let (first, left) = tokio::join!(turns.next(), impatient);
    assert_eq!(first.unwrap().get(), 1);
    assert!(left.is_err(), "it waits for the second allocation");
    assert_eq!(turns.next().await.unwrap().get(), 2, "and it was not made for it");
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_ends_lets_its_callers_go() {
    let store = strict_store().await;
    let node = open(&store).await;
    let turns = node.tag("turns").await.unwrap();
    store.set_delay(Duration::from_millis(500));

    let (first, second, ()) = tokio::join!(turns.next(), turns.next(), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        node.close().await;
    });
    for ended in [first, second] {
        assert_eq!(*ended.unwrap_err().kind(), SegmentErrorKind::Closed);
    }
    assert_eq!(*turns.next().await.unwrap_err().kind(), SegmentErrorKind::Closed);
}

/// Made again in another order, the tag is another one: handles of the old one end.
#[tokio::test(start_paused = true)]
async fn a_tag_that_is_made_again_in_another_order_is_found_anew() {
    let store = strict_store().await;
    let node = open(&store).await;
    let turns = node.tag("turns").await.unwrap();
    assert_eq!(turns.next().await.unwrap().get(), 1);
    store.inner.remove(&tag("turns")).await.unwrap();
    let plain = NewTag { max_id: 2, ..NewTag::new(tag("turns"), step(10)) };
    store.create(&plain).await.unwrap();

    assert_eq!(*turns.next().await.unwrap_err().kind(), SegmentErrorKind::Changed);
    tokio::time::sleep(Duration::from_secs(61)).await;
    let again = node.tag("turns").await.unwrap();
    assert_eq!((again.meaning(), again.next().await.unwrap().get()), (Meaning::PLAIN, 2));
    assert_eq!(*turns.next().await.unwrap_err().kind(), SegmentErrorKind::Changed);
}

/// The docs warn of this: after a plain tag is made again in strict order, a node may issue ids of
/// its old stock until its next refresh.
#[tokio::test(start_paused = true)]
async fn a_stock_of_the_plain_tag_before_it_breaks_the_order_until_the_next_refresh() {
    let store = Arc::new(TestStore::default());
    store.create(&NewTag::new(tag("turns"), step(1000))).await.unwrap();
    let (old, new) = (open(&store).await, open(&store).await);
    let stock = old.tag("turns").await.unwrap();
    assert_eq!(stock.next().await.unwrap().get(), 1);
    store.inner.remove(&tag("turns")).await.unwrap();
    store.create(&NewTag { max_id: 2001, ..NewTag::strict(tag("turns")) }).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;

    let fresh = open(&store).await;
    assert_eq!(fresh.tag("turns").await.unwrap().next().await.unwrap().get(), 2001);
    assert_eq!(stock.next().await.unwrap().get(), 2, "an id of the tag before, and never twice");
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(*stock.next().await.unwrap_err().kind(), SegmentErrorKind::Changed);
    for node in [&old, &new] {
        let id = node.tag("turns").await.unwrap().next().await.unwrap().get();
        assert!(id > 2001, "{id}");
    }
}

/// When the store hangs, only one group of callers waits for it. All others fail at once and occupy
/// no place.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_store_that_is_known_to_be_away() {
    let store = strict_store().await;
    let node = open(&store).await;
    let turns = node.tag("turns").await.unwrap();
    turns.next().await.unwrap();
    store.set_delay(Duration::from_secs(60));
    let asked = tokio::time::Instant::now();
    assert!(turns.next().await.unwrap_err().retryable());
    assert!(asked.elapsed() <= Duration::from_millis(2100), "{:?}", asked.elapsed());

    tokio::time::sleep(Duration::from_millis(60)).await;
    let probe = turns.next();
    let others = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let asked = tokio::time::Instant::now();
        for _ in 0..100 {
            assert_eq!(*turns.next().await.unwrap_err().kind(), SegmentErrorKind::StoreDown);
        }
        assert!(asked.elapsed() < Duration::from_millis(10), "{:?}", asked.elapsed());
    };
    let (probe, ()) = tokio::join!(probe, others);
    assert!(probe.is_err());
    store.set_delay(Duration::ZERO);
    tokio::time::sleep(Duration::from_millis(60)).await;
    turns.next().await.unwrap();
}

/// The regression guard watches strict tags, too; its mark is on the disk a second later at most.
#[tokio::test]
async fn a_store_that_went_back_is_refused_after_a_restart() {
    let store = strict_store().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("segment.marks");
    let node = open_with_marks(&store, &file).await;
    let turns = node.tag("turns").await.unwrap();
    turns.take(500).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1300)).await;
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.contains("501 turns"), "{written}");
    drop((turns, node));

    let older = strict_store().await;
    let marks = directory.path().join("copy.marks");
    std::fs::copy(&file, &marks).unwrap();
    let node = open_with_marks(&older, &marks).await;
    let error = node.tag("turns").await.unwrap().next().await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::Guard);
}
