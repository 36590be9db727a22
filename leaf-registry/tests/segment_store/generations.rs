//! Repairs, and tags that are made again: a request that was based on the earlier record changes
//! nothing.

use leaf_core::IdRange;
use leaf_segment::admin::{Confirm, EndedTag, TagAdmin};
use leaf_segment::store::{Expected, SEALED, TagGeneration, TagSettings, TagUpdate};
use leaf_segment::{MemoryStore, NewTag, StoreErrorKind};
use leaf_shape::{Interleave, Meaning, Shape};
use leaf_testkit::Edit as _;
use leaf_testkit::all_tags;

use crate::fixture::Fixture;
use crate::{create, refusal, step, tag};

fn range(start: i64, end: i64) -> IdRange {
    IdRange::new(start, end).unwrap()
}

/// G-26, G-28: ids of an earlier generation are not given back: after a repair that changes no
/// number, after a tag was made again where its last range ended, and in a tag without a
/// generation.
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

/// G-27: two operators who change one record, and requests that arrive after the tag was made
/// again.
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

/// G-33: what a tag granted is remembered beyond its deletion, in whatever shape the next one is.
pub(crate) async fn a_deleted_tag_is_not_made_again_below_its_ids(f: Fixture) {
    let orders = tag("orders");
    let admin = TagAdmin::new(&*f.store);
    let shaped = |index, of| Meaning {
        shape: Shape::Interleave(Interleave::new(index, of).unwrap()),
        ..Meaning::PLAIN
    };
    let new =
        |meaning, max_id| NewTag { meaning, max_id, ..NewTag::new(orders.clone(), step(1000)) };
    let first = new(shaped(0, 8), 1);
    f.store.create(&first).await.unwrap();
    let expected = Expected::new(step(1000), first.meaning);
    f.store.allocate(&orders, step(1000), expected).await.unwrap();
    let deleted = admin.delete(&orders, Confirm::Yes).await.unwrap();
    let ended = EndedTag { meaning: first.meaning, next: 1001 };
    assert_eq!(deleted.ended, Some(ended));
    assert_eq!(f.store.tag(&orders).await.unwrap(), None);
    assert!(all_tags(&*f.store).await.unwrap().iter().all(|record| record.tag != orders));
    assert_eq!(f.store.ended(&orders).await.unwrap(), Some(ended));
    let gone = admin.delete(&orders, Confirm::Yes).await.unwrap_err().to_string();
    assert!(gone.contains("ids below 8008"), "whose answer was lost: {gone}");

    for low in [new(Meaning::PLAIN, 1001), new(shaped(0, 2), 1001), new(shaped(0, 8), 1000)] {
        let refused = refusal(f.store.create(&low)).await;
        assert!(matches!(refused, StoreErrorKind::UsedBefore(_)), "{refused}");
        assert_eq!(f.store.ended(&orders).await.unwrap(), Some(ended));
    }
    let source = MemoryStore::with_tags([new(Meaning::PLAIN, 8007)]);
    let refused = leaf_registry::import(&orders, &source, &*f.store, 0).await.unwrap_err();
    assert!(matches!(refused.kind(), StoreErrorKind::UsedBefore(_)), "{refused}");

    // Once more from where it ended, and then in another shape.
    f.store.create(&new(shaped(0, 8), 1001)).await.unwrap();
    assert_eq!(f.store.record(&orders).await.unwrap().ended(), None);
    admin.delete(&orders, Confirm::Yes).await.unwrap();
    f.store.create(&new(Meaning::PLAIN, 8008)).await.unwrap();
    let plain = Expected::new(step(1000), Meaning::PLAIN);
    let granted = f.store.allocate(&orders, step(1000), plain).await.unwrap();
    assert_eq!(granted.start(), 8008);

    // A deletion that was broken off after the seal: the next one knows the number.
    let generation = f.store.record(&orders).await.unwrap().generation();
    assert_eq!(f.store.seal(&orders, generation).await.unwrap(), 9008);
    let deleted = admin.delete(&orders, Confirm::Yes).await.unwrap();
    assert_eq!(deleted.ended, Some(EndedTag { meaning: Meaning::PLAIN, next: 9008 }));
    // Neither a row that was inserted by hand with a `max_id` that is too low, nor an import that
    // was broken off, lowers the number that is remembered for a name.
    let ended = f.store.ended(&orders).await.unwrap();
    let settings = TagSettings { ended, ..TagSettings::default() };
    let unopened = NewTag { settings, ..new(Meaning::PLAIN, SEALED) };
    f.store.create(&unopened).await.unwrap();
    let generation = f.store.record(&orders).await.unwrap().generation();
    assert!(f.store.replace_max_id(&orders, generation, SEALED, 7).await.unwrap());
    let sealed = admin.delete(&orders, Confirm::Yes).await.unwrap();
    assert_eq!(sealed.ended.map(|ended| ended.next), Some(7));
    let least = new(shaped(0, 2), 9008);
    assert!(f.store.create(&NewTag { max_id: 9007, ..least.clone() }).await.is_err());
    f.store.create(&least).await.unwrap();
}
