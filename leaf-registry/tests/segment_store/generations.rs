//! Repairs and tags that are made again: what was decided before changes nothing after.

use leaf_core::IdRange;
use leaf_segment::{
    Confirm, NewTag, SEALED, StoreErrorKind, TagAdmin, TagGeneration, TagSettings, TagUpdate,
};
use leaf_testkit::Edit as _;

use crate::fixture::Fixture;
use crate::{create, refusal, step, tag};

fn range(start: i64, end: i64) -> IdRange {
    IdRange::new(start, end).unwrap()
}

/// G-26, G-28: a repair that changes no number, a tag that is made again at the end of the last
/// range, and one without a generation.
pub(crate) async fn what_was_granted_before_a_repair_does_not_come_back(f: Fixture) {
    let orders = tag("orders");
    create(&*f.store, "orders", 10).await;
    let take = async || f.store.allocate(&orders, step(10), step(10).into()).await.unwrap();
    let before = f.store.record(&orders).await.unwrap().generation();
    assert!(before.is_some(), "whoever makes a tag draws its generation");
    let granted = take().await;

    let (repaired, raised) =
        TagAdmin::new(&*f.store).advance(&orders, 5, Confirm::No).await.unwrap();
    assert!(!raised && repaired.generation() != before);
    assert_eq!(f.store.record(&orders).await.unwrap(), repaired);
    for generation in [before, repaired.generation()] {
        assert!(!f.store.give_back(&orders, generation, granted).await.unwrap());
    }
    let granted = take().await;
    assert!(granted.start() > 10);
    assert!(!f.store.give_back(&orders, before, granted).await.unwrap(), "of the one before");
    assert!(!f.store.give_back(&orders, None, granted).await.unwrap());
    assert!(f.store.give_back(&orders, repaired.generation(), granted).await.unwrap());

    // Made again at the end of the last range.
    let granted = take().await;
    f.store.remove(&orders).await.unwrap();
    let again = NewTag { max_id: granted.end(), ..NewTag::new(orders.clone(), step(10)) };
    f.store.create(&again).await.unwrap();
    let unused = range(granted.start() + 1, granted.end());
    for generation in [repaired.generation(), None] {
        assert!(!f.store.give_back(&orders, generation, unused).await.unwrap(), "{generation:?}");
    }
    assert_eq!(f.store.record(&orders).await.unwrap().max_id, granted.end());

    // Plain SQL makes this one in a database, so that it has none.
    let sample = tag("leaf-segment-test");
    let generation = f.store.record(&sample).await.unwrap().generation();
    let granted = f.store.allocate(&sample, step(10), step(2000).into()).await.unwrap();
    let drawn = Some(TagGeneration::draw());
    assert!(!f.store.give_back(&sample, drawn, granted).await.unwrap());
    assert!(f.store.give_back(&sample, generation, granted).await.unwrap());
}

/// G-27: two operators, and requests that come late.
pub(crate) async fn a_change_is_written_only_over_the_record_that_it_was_decided_on(f: Fixture) {
    let orders = tag("orders");
    create(&*f.store, "orders", 10).await;
    let seen = f.store.record(&orders).await.unwrap();
    let generation = seen.generation();
    let with = |change: TagSettings| TagUpdate {
        settings: Some(TagSettings { generation, ..change }),
        ..TagUpdate::of(seen.clone())
    };
    let off = with(TagSettings { enabled: false, ..TagSettings::default() });
    let limit = with(TagSettings { max_take: Some(step(7)), ..TagSettings::default() });
    f.store.update(&off).await.unwrap();
    assert_eq!(refusal(f.store.update(&limit)).await, StoreErrorKind::RecordChanged);
    assert!(!f.store.record(&orders).await.unwrap().is_enabled(), "the first change stands");

    // An open tag is not deleted, and none that was made since.
    let deleted = refusal(f.store.delete(&orders, generation)).await;
    assert_eq!(deleted, StoreErrorKind::RecordChanged);
    f.store.remove(&orders).await.unwrap();
    create(&*f.store, "orders", 10).await;
    let late = TagUpdate { step: Some(step(99)), ..TagUpdate::of(seen) };
    assert_eq!(refusal(f.store.update(&late)).await, StoreErrorKind::RecordChanged);
    let sealed = f.store.seal(&orders, generation).await.unwrap_err();
    assert_eq!((sealed.error.kind(), sealed.max_id), (&StoreErrorKind::RecordChanged, None));
    let now = f.store.record(&orders).await.unwrap();
    assert_eq!((now.max_id, now.step), (1, Ok(step(10))));
    assert!(!f.store.replace_max_id(&orders, generation, 1, SEALED).await.unwrap());
    assert_eq!(f.store.seal(&orders, now.generation()).await.unwrap(), 1);
    let deleted = refusal(f.store.delete(&orders, generation)).await;
    assert_eq!(deleted, StoreErrorKind::RecordChanged);
    f.store.delete(&orders, now.generation()).await.unwrap();
}
