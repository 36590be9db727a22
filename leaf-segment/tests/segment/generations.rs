//! Repairs, and tags that are made again: ranges that were granted before are not used any more.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{TestStore, open, step, store_with, tag};
use leaf_core::IdRange;
use leaf_segment::admin::{Confirm, TagAdmin, TagAdminError, TagChange};
use leaf_segment::store::TagUpdate;
use leaf_segment::{
    NewTag, RangeSource as _, SegmentErrorKind, StoreErrorKind, TagCatalog as _, TagRecord,
    TagStore as _,
};
use leaf_testkit::Edit as _;

/// The interval at which a node reads the records, and some more.
const REFRESH: Duration = Duration::from_secs(61);

async fn record(store: &TestStore) -> TagRecord {
    store.inner.record(&tag("orders")).await.unwrap()
}

/// The record goes back and two nodes are granted the same range. The repair that the docs
/// recommend removes this range from the memory of both.
#[tokio::test(start_paused = true)]
async fn a_repair_takes_the_ids_out_of_memory_that_were_granted_twice() {
    let store = store_with("orders", 1_000_000).await;
    let (a, b) = (open(&store).await, open(&store).await);
    let on_a = a.tag("orders").await.unwrap();
    assert_eq!(on_a.next().await.unwrap().get(), 1);
    // A restored backup: the generation is the same.
    let before = record(&store).await;
    store.inner.remove(&tag("orders")).await.unwrap();
    let settings = before.settings.unwrap();
    let row = NewTag { settings, ..NewTag::new(tag("orders"), step(1_000_000)) };
    store.create(&row).await.unwrap();
    let on_b = b.tag("orders").await.unwrap();
    assert_eq!(on_b.next().await.unwrap().get(), 1, "the repetition that nobody noticed");

    TagAdmin::new(&*store).advance(&tag("orders"), 2_000_001, Confirm::Yes).await.unwrap();
    tokio::time::sleep(REFRESH).await;

    let mut issued = HashSet::new();
    for node in [&a, &b] {
        let orders = node.tag("orders").await.unwrap();
        for _ in 0..1000 {
            let id = orders.next().await.unwrap().get();
            assert!(id >= 2_000_001 && issued.insert(id), "{id} comes again after the repair");
        }
    }
    assert_eq!(*on_a.next().await.unwrap_err().kind(), SegmentErrorKind::Changed);
}

/// The operator repaired the tag with a number above the ids of imported rows. A later give-back
/// must not go below it.
#[tokio::test(start_paused = true)]
async fn a_number_that_an_operator_gave_is_kept_against_a_later_give_back() {
    let store = store_with("orders", 100).await;
    let node = open(&store).await;
    let orders = node.tag("orders").await.unwrap();
    let leased = orders.lease(1000).await.unwrap();
    assert_eq!((leased.range.start(), leased.range.end()), (1, 1001));

    let admin = TagAdmin::new(&*store);
    let (_, raised) = admin.advance(&tag("orders"), 900, Confirm::No).await.unwrap();
    assert!(!raised, "max_id is above already");
    let unused = IdRange::new(301, 1001).unwrap();
    assert!(!orders.return_unused(leased.ticket, unused).await.unwrap());
    let fresh = open(&store).await.tag("orders").await.unwrap();
    assert!(fresh.lease(10).await.unwrap().range.start() >= 900);
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_does_not_go_below_the_number_of_an_operator() {
    let store = store_with("orders", 10_000).await;
    let node = open(&store).await;
    let orders = node.tag("orders").await.unwrap();
    for _ in 0..5 {
        orders.next().await.unwrap();
    }
    TagAdmin::new(&*store).advance(&tag("orders"), 9000, Confirm::No).await.unwrap();
    node.close().await;

    let first = open(&store).await.tag("orders").await.unwrap().next().await.unwrap();
    assert!(first.get() >= 9000, "{first}");
}

/// An operator naturally lets the new tag begin where the old one's last range ended. There, a late
/// give-back of that range would match `max_id`.
#[tokio::test(start_paused = true)]
async fn an_old_ticket_and_a_clean_stop_leave_a_tag_that_was_made_again_alone() {
    let store = store_with("orders", 100).await;
    let (node, other) = (open(&store).await, open(&store).await);
    let orders = node.tag("orders").await.unwrap();
    let leased = orders.lease(50).await.unwrap();
    other.tag("orders").await.unwrap().lease(50).await.unwrap();
    // By hand, since Leaf makes no tag again below the ids of the last one.
    store.inner.remove(&tag("orders")).await.unwrap();
    store.create(&NewTag { max_id: 51, ..NewTag::strict(tag("orders")) }).await.unwrap();

    let unused = IdRange::new(11, 51).unwrap();
    assert!(!orders.return_unused(leased.ticket, unused).await.unwrap());
    assert_eq!(record(&store).await.max_id, 51);

    let store = store_with("orders", 100).await;
    let node = open(&store).await;
    node.tag("orders").await.unwrap().next().await.unwrap();
    store.inner.remove(&tag("orders")).await.unwrap();
    let again = NewTag { max_id: 101, ..NewTag::new(tag("orders"), step(100)) };
    store.create(&again).await.unwrap();
    node.close().await;
    assert_eq!(record(&store).await.max_id, 101);
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_is_made_again_at_once_begins_where_it_was_told_to() {
    let store = store_with("orders", 1000).await;
    let node = open(&store).await;
    for _ in 0..3 {
        node.tag("orders").await.unwrap().next().await.unwrap();
    }
    store.inner.remove(&tag("orders")).await.unwrap();
    let again = NewTag { max_id: 5_000_000, ..NewTag::new(tag("orders"), step(1000)) };
    store.create(&again).await.unwrap();
    tokio::time::sleep(REFRESH).await;

    let orders = node.tag("orders").await.unwrap();
    assert_eq!(orders.next().await.unwrap().get(), 5_000_000);
}

/// A request to delete that hangs on its way must not remove the tag that was made since.
#[tokio::test(start_paused = true)]
async fn a_late_deletion_removes_nothing_but_the_tag_that_was_sealed_for_it() {
    let store = store_with("orders", 100).await;
    let decided_on = record(&store).await.generation();
    store.inner.remove(&tag("orders")).await.unwrap();
    let again = NewTag { max_id: 101, ..NewTag::new(tag("orders"), step(100)) };
    store.create(&again).await.unwrap();

    let open = record(&store).await.generation();
    for generation in [decided_on, open] {
        let error = store.delete(&tag("orders"), generation).await.unwrap_err();
        assert_eq!(*error.kind(), StoreErrorKind::RecordChanged, "{generation:?}");
    }
    let error = store.seal(&tag("orders"), decided_on).await.unwrap_err().error;
    assert_eq!(*error.kind(), StoreErrorKind::RecordChanged);
    assert_eq!(record(&store).await.max_id, 101);
}

#[tokio::test(start_paused = true)]
async fn two_operators_do_not_undo_each_other() {
    let store = store_with("orders", 100).await;
    let admin = TagAdmin::new(&*store);
    let off = TagChange { enabled: Some(false), ..TagChange::default() };
    let limit = TagChange { max_take: Some(Some(step(7))), ..TagChange::default() };
    // Each reads before the other writes.
    let held = record(&store).await;
    admin.change(&tag("orders"), off).await.unwrap();
    let stale = TagUpdate { settings: held.settings.clone().ok(), ..TagUpdate::of(held) };
    let refused = store.update(&stale).await.unwrap_err();
    assert_eq!(*refused.kind(), StoreErrorKind::RecordChanged);
    admin.change(&tag("orders"), limit).await.unwrap();

    let settings = record(&store).await.settings.unwrap();
    assert_eq!((settings.enabled, settings.max_take), (false, Some(step(7))));
}

/// A change that was decided on a deleted tag is not applied to the tag that was made again since.
#[tokio::test(start_paused = true)]
async fn a_late_change_does_not_reach_a_tag_that_was_made_again() {
    let store = Arc::new(TestStore::default());
    store.create(&NewTag::new(tag("orders"), step(100))).await.unwrap();
    let held = TagUpdate { step: Some(step(5)), ..TagUpdate::of(record(&store).await) };
    store.inner.remove(&tag("orders")).await.unwrap();
    store.create(&NewTag::new(tag("orders"), step(100))).await.unwrap();

    let refused = store.update(&held).await.unwrap_err();

    assert_eq!(*refused.kind(), StoreErrorKind::RecordChanged);
    assert_eq!(record(&store).await.step, Ok(step(100)));
    let error = TagAdminError::from(refused).to_string();
    assert!(error.contains("look at it again"), "{error}");
}

/// A tag that plain SQL made has no generation until it is repaired.
#[tokio::test(start_paused = true)]
async fn a_tag_without_a_generation_is_served_repaired_and_given_back() {
    let store = store_with("orders", 100).await;
    let seen = record(&store).await;
    let settings = Some(leaf_segment::store::TagSettings::default());
    store.inner.update(&TagUpdate { settings, ..TagUpdate::of(seen) }).await.unwrap();
    let node = open(&store).await;
    let orders = node.tag("orders").await.unwrap();
    let leased = orders.lease(50).await.unwrap();
    let unused = IdRange::new(11, 51).unwrap();
    assert!(orders.return_unused(leased.ticket, unused).await.unwrap());
    let leased = orders.lease(50).await.unwrap();

    TagAdmin::new(&*store).advance(&tag("orders"), 1, Confirm::No).await.unwrap();

    assert!(record(&store).await.generation().is_some());
    let unused = IdRange::new(12, leased.range.end()).unwrap();
    assert!(!orders.return_unused(leased.ticket, unused).await.unwrap());
    assert!(!store.inner.give_back(&tag("orders"), None, unused).await.unwrap());
    assert!(store.inner.tag(&tag("orders")).await.unwrap().unwrap().max_id > leased.range.end());
}
