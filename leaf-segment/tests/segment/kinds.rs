//! Tags that are not plain, on a store in memory. Time is paused, and the wall clock is set by
//! hand.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leaf_core::{HealthCode, Id, IdRange, ManualClock, Tag, UnixMillis};
use leaf_segment::admin::TagId;
use leaf_segment::admin::{Confirm, Reopening, TagAdmin, TagSpec};
use leaf_segment::store::{Expected, TagUpdate};
use leaf_segment::{
    NewTag, RangeSource as _, SegmentConfig, SegmentErrorKind, SegmentGenerator, StoreErrorKind,
    TagStore,
};
use leaf_shape::Meaning;
use leaf_shape::keys::{KeyProblem, KeyRing};
use leaf_testkit::Edit as _;

use crate::support::{TestStore, open, step, tag};

const ONE: &str = "1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const TWO: &str = "2 = 100102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn made(spec: TagSpec, keys: &KeyRing) -> NewTag {
    spec.record(tag("orders"), keys).unwrap()
}

async fn store_of(spec: TagSpec, keys: &KeyRing) -> Arc<TestStore> {
    let store = Arc::new(TestStore::default());
    store.create(&made(spec, keys)).await.unwrap();
    store
}

/// A tag that is made again with another slice has the same meaning. Its old stock now belongs to
/// another data centre, and must not be issued.
#[tokio::test(start_paused = true)]
async fn a_tag_with_another_slice_is_another_tag() {
    let slice = |slice: &str| TagSpec {
        step: Some(step(1000)),
        slice: Some(slice.into()),
        ..TagSpec::default()
    };
    let keys = KeyRing::default();
    let store = store_of(slice("2/8"), &keys).await;
    let node = open(&store).await;
    let orders = node.tag("orders").await.unwrap();
    assert_eq!(orders.next().await.unwrap().get(), 2 << 60);
    store.inner.remove(&tag("orders")).await.unwrap();
    store.create(&made(slice("3/8"), &keys)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;

    assert_eq!(*orders.next().await.unwrap_err().kind(), SegmentErrorKind::Changed);
    assert_eq!(orders.try_next(), None);
    let again = node.tag("orders").await.unwrap();
    assert_eq!(again.next().await.unwrap().get(), 3 << 60);
}

/// One caller wants more numbers than are left. The other callers still get them.
#[tokio::test(start_paused = true)]
async fn a_large_request_near_the_end_takes_nothing_from_others() {
    let spec = TagSpec { step: Some(step(10)), text: Some("{n:02}".into()), ..TagSpec::default() };
    let store = store_of(spec, &KeyRing::default()).await;
    let node = open(&store).await;
    let orders = node.tag("orders").await.unwrap();
    for id in 1..=60 {
        assert_eq!(orders.next().await.unwrap().get(), id);
    }
    let mut got = HashSet::new();
    loop {
        let refused = orders.take(60).await.unwrap_err();
        assert_eq!(*refused.kind(), SegmentErrorKind::Exhausted);
        match orders.next().await {
            Ok(id) => assert!(got.insert(id.get())),
            Err(error) => {
                assert_eq!(*error.kind(), SegmentErrorKind::Exhausted);
                break;
            }
        }
    }
    assert_eq!(got, (61..=99).collect());
    assert_eq!(
        orders.texts().unwrap().write(leaf_core::Id::new(99).unwrap()).unwrap().as_str(),
        "99"
    );
}

/// The key changes while ids are issued: no id is issued twice. A handle in use fails at most once,
/// and a new look-up does not fail.
#[tokio::test(start_paused = true)]
async fn another_key_repeats_nothing() {
    let keys = Arc::new(KeyRing::new(ONE.parse().unwrap()));
    let spec = TagSpec {
        step: Some(step(100)),
        shape: "scramble:d10".parse().unwrap(),
        ..TagSpec::default()
    };
    let store = store_of(spec, &keys).await;
    let config = SegmentConfig { keys: Arc::clone(&keys), ..SegmentConfig::default() };
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(SegmentGenerator::open(Arc::clone(&store) as _, config.clone()).await);
    }
    let (mut ids, mut changed) = (HashSet::new(), 0);
    let mut handles = Vec::new();
    for node in &nodes {
        handles.push(node.tag("orders").await.unwrap());
    }
    for round in 0..2000 {
        if round == 1000 {
            let refused = TagAdmin::new(&*store).rekey(&tag("orders"), &keys).await.unwrap_err();
            assert!(refused.to_string().contains("add a line `2 = KEY`"), "{refused}");
            keys.replace(format!("{ONE}\n{TWO}").parse().unwrap());
            TagAdmin::new(&*store).rekey(&tag("orders"), &keys).await.unwrap();
        }
        for (node, handle) in nodes.iter().zip(&mut handles) {
            let id = match handle.next().await {
                Ok(id) => id,
                Err(error) => {
                    assert_eq!(*error.kind(), SegmentErrorKind::Changed);
                    changed += 1;
                    *handle = node.tag("orders").await.unwrap();
                    handle.next().await.unwrap()
                }
            };
            assert!(ids.insert(id), "{id} twice");
            assert!((1_000_000_000..3_000_000_000).contains(&id.get()), "{id}");
        }
    }
    assert_eq!((changed, ids.len()), (3, 6000));

    // The key goes from the file: tags in use keep it, who starts has none.
    keys.replace(ONE.parse().unwrap());
    assert!(ids.insert(handles[0].next().await.unwrap()));
    let late = SegmentGenerator::open(Arc::clone(&store) as _, config.clone()).await;
    let refused = late.tag("orders").await.unwrap_err();
    assert_eq!(*refused.kind(), SegmentErrorKind::Key(KeyProblem::Missing(2)));
    assert!(late.health().to_string().contains("key 2 is missing"), "{}", late.health());
    keys.replace(format!("{ONE}\n{TWO}").parse().unwrap());
    late.read_soon();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(ids.insert(late.tag("orders").await.unwrap().next().await.unwrap()));
}

/// Ids that form no ranges cannot be leased; they are handed out one by one or as a list.
#[tokio::test(start_paused = true)]
async fn what_has_no_ranges_is_told_as_a_list() {
    let spec = TagSpec {
        step: Some(step(100)),
        shape: "interleave:5/8".parse().unwrap(),
        ..TagSpec::default()
    };
    let store = store_of(spec, &KeyRing::default()).await;
    let orders = open(&store).await.tag("orders").await.unwrap();
    assert_eq!(orders.next().await.unwrap().get(), 13);
    assert!(orders.take(2).await.unwrap().into_ranges().is_none());
    assert_eq!(*orders.take_contiguous(2).await.unwrap_err().kind(), SegmentErrorKind::NoRanges);
    let ids: Vec<i64> = orders.take(3).await.unwrap().map(|id| id.get()).collect();
    assert_eq!(ids, [37, 45, 53], "behind the two that were no range");
    // More than a segment holds.
    let ids: Vec<i64> = orders.take(1000).await.unwrap().map(|id| id.get()).collect();
    assert!(ids.len() == 1000 && ids.iter().all(|id| id % 8 == 5), "{ids:?}");
}

/// One node opens the day. A node whose clock is 90 s behind follows; a node whose clock is an hour
/// behind gets an error.
#[tokio::test(start_paused = true)]
async fn a_day_is_opened_once_and_for_all() {
    let spec = TagSpec {
        reset: Some("daily".parse().unwrap()),
        text: Some("{date:%y%m%d}{n:02}".into()),
        ..TagSpec::default()
    };
    let store = store_of(spec, &KeyRing::default()).await;
    let midnight = 1_795_392_000_000; // 2026-11-23T00:00:00Z
    let mut nodes = Vec::new();
    for behind in [1000, 91_000, 3_600_000] {
        let clock = Arc::new(ManualClock::at(UnixMillis::new(midnight - behind)));
        let config = SegmentConfig { clock: Arc::clone(&clock) as _, ..SegmentConfig::default() };
        let node = SegmentGenerator::open(Arc::clone(&store) as _, config).await;
        nodes.push((clock, node.tag("orders").await.unwrap()));
    }
    let mut expected = 26_112_200;
    for (_, orders) in &nodes {
        expected += 1;
        let id = orders.next().await.unwrap();
        let text = orders.texts().unwrap().write(id).unwrap();
        assert_eq!(text.as_str(), expected.to_string());
    }
    nodes[0].0.advance(Duration::from_secs(1));
    assert_eq!(nodes[0].1.next().await.unwrap().get(), 2_026_112_301);
    assert_eq!(nodes[1].1.next().await.unwrap().get(), 2_026_112_302, "it follows");
    let behind = nodes[2].1.next().await.unwrap_err();
    assert_eq!(*behind.kind(), SegmentErrorKind::ClockBehind);
    // The day is full, and whoever asks in vain does not stop the next.
    let rest = nodes[0].1.take(97).await.unwrap();
    assert_eq!(rest.last().map(Id::get), Some(2_026_112_399));
    let full = nodes[0].1.next().await.unwrap_err();
    assert_eq!(*full.kind(), SegmentErrorKind::Exhausted);
    nodes[0].0.advance(Duration::from_secs(86_400));
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(nodes[0].1.next().await.unwrap().get(), 2_026_112_401);
}

/// A clock that is a year ahead has closed a tag. The tag is reopened while both nodes run. The ids
/// issued in either period are not issued again, not even a year later.
#[tokio::test(start_paused = true)]
async fn a_tag_that_a_wrong_clock_closed_is_reopened() {
    const NOON: u64 = 1_795_348_800_000; // 2026-11-22T12:00:00Z
    const YEAR: u64 = 365 * 86_400_000;
    let spec = TagSpec {
        reset: Some("daily".parse().unwrap()),
        text: Some("{date:%y%m%d}-{n:04}".into()),
        ..TagSpec::default()
    };
    let store = store_of(spec, &KeyRing::default()).await;
    let new_node = async |at: u64| {
        let clock = Arc::new(ManualClock::at(UnixMillis::new(at)));
        let config = SegmentConfig { clock: Arc::clone(&clock) as _, ..SegmentConfig::default() };
        let node = SegmentGenerator::open(Arc::clone(&store) as _, config).await;
        (clock, node)
    };
    let (right, node) = new_node(NOON).await;
    let orders = node.tag("orders").await.unwrap();
    assert_eq!(orders.next().await.unwrap().get(), 202_611_220_001);
    let (_, ahead) = new_node(NOON + YEAR).await;
    let early = ahead.tag("orders").await.unwrap();
    for number in 1..=3 {
        assert_eq!(early.next().await.unwrap().get(), 202_711_220_000 + number);
    }
    let closed = orders.next().await.unwrap_err();
    assert_eq!(*closed.kind(), SegmentErrorKind::ClockBehind);

    let (admin, tag) = (TagAdmin::new(&*store), Tag::parse("orders").unwrap());
    let first_taken = Some(20_271_122);
    let reopening = Reopening { above: Some(202_611_220_001), first_taken };
    let unsaid = Reopening { first_taken: None, ..reopening };
    let unsaid = admin.reopen(&tag, unsaid, &*right, Confirm::Yes).await.unwrap_err();
    assert!(unsaid.to_string().contains("name the first period"), "{unsaid}");
    let asked = admin.reopen(&tag, reopening, &*right, Confirm::No).await.unwrap_err();
    let said = asked.to_string();
    assert!(said.contains("the tag's next id is 202611220002"), "{said}");
    assert!(said.contains("of 20271122 and later no id below 202711220004"), "{said}");
    store.clock.store(NOON + YEAR, Ordering::SeqCst);
    let other = admin.reopen(&tag, reopening, &*right, Confirm::Yes).await.unwrap_err();
    assert!(other.to_string().contains("different periods"), "{other}");
    store.clock.store(NOON, Ordering::SeqCst);
    let reopened = admin.reopen(&tag, reopening, &*right, Confirm::Yes).await.unwrap();
    assert!(reopened.max_id > 202_711_220_004, "a counter never falls");
    let again = admin.reopen(&tag, reopening, &*right, Confirm::Yes).await.unwrap_err();
    assert!(again.to_string().contains("nothing to reopen"), "{again}");

    // The handle notices that the meaning has changed, and the next one serves the same day on.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let refused = orders.next().await.unwrap_err();
    assert_eq!(*refused.kind(), SegmentErrorKind::Changed);
    let orders = node.tag("orders").await.unwrap();
    let id = orders.next().await.unwrap();
    assert_eq!(id.get(), 202_611_220_002);
    assert_eq!(orders.texts().unwrap().write(id).unwrap().as_str(), "261122-0002");
    let told = TagId::of(&admin.read(&tag).await.unwrap(), &KeyRing::default(), id).unwrap();
    assert_eq!((told.number, told.granted), (2, Some(true)));
    let early_id = TagId::of(&reopened, &KeyRing::default(), Id::new(202_711_220_002).unwrap());
    assert_eq!(early_id.unwrap().granted, None, "nobody knows exactly");
    let range = orders.take_contiguous(2).await.unwrap();
    assert_eq!(Some(range), IdRange::new(202_611_220_003, 202_611_220_005));
    let ids = orders.take(2).await.unwrap().into_ranges();
    assert_eq!(ids, Some(vec![IdRange::new(202_611_220_005, 202_611_220_007).unwrap()]));
    // The node whose clock is wrong issues nothing by what it knew.
    assert!(early.next().await.is_err());

    // In a year.
    store.clock.store(NOON + YEAR, Ordering::SeqCst);
    let (_, later) = new_node(NOON + YEAR).await;
    let orders = later.tag("orders").await.unwrap();
    let id = orders.next().await.unwrap().get();
    assert_eq!(id, 202_711_220_004, "{id} was issued by the wrong clock already");
}

/// A node with the wrong clock issues ids while the tag is being reopened. The write is refused and
/// decided again on the new record, so that these ids are not issued again either.
#[tokio::test(start_paused = true)]
async fn ids_that_are_granted_during_a_reopening_count() {
    let spec = TagSpec { reset: Some("daily".parse().unwrap()), ..TagSpec::default() };
    let store = store_of(spec, &KeyRing::default()).await;
    let noon = UnixMillis::new(1_795_348_800_000); // 2026-11-22T12:00:00Z
    let (admin, tag) = (TagAdmin::new(&*store), tag("orders"));
    let first = 20_271_122_000_001;
    admin.advance(&tag, first, Confirm::Yes).await.unwrap();
    let seen = admin.read(&tag).await.unwrap();
    let reset = seen.meaning.clone().unwrap().reset.unwrap();
    let first_taken = Some(20_271_122);
    let (reopened, next) = reset.reopen(seen.max_id, noon, Some(0), first_taken).unwrap();
    let meaning = Meaning { reset: Some(reopened), ..Meaning::STRICT };
    let update =
        TagUpdate { meaning: Some(meaning), at_least: Some(next), ..TagUpdate::of(seen.clone()) };
    let expected = Expected { end: first + 100, ..Expected::new(step(1), seen.meaning.unwrap()) };
    store.allocate(&tag, step(5), expected).await.unwrap();
    let late = store.update(&update).await;
    let late =
        late.expect_err("the store did what it must refuse: five ids would come again in a year");
    assert_eq!(*late.kind(), StoreErrorKind::RecordChanged);
    let clock = ManualClock::at(noon);
    let again = Reopening { above: Some(0), first_taken };
    let record = admin.reopen(&tag, again, &clock, Confirm::Yes).await.unwrap();
    let reset = record.meaning.unwrap().reset.unwrap();
    assert_eq!(reset.reopened().unwrap().taken().next().unwrap().ids_below, first + 5);
}

/// A node whose clock is ahead does not open a period that has not begun by the clock of the
/// store's server. A node whose clock is behind gets no id of an open period, and its health says
/// until when.
#[tokio::test(start_paused = true)]
async fn no_day_is_opened_on_the_word_of_one_clock() {
    let spec = TagSpec { reset: Some("daily".parse().unwrap()), ..TagSpec::default() };
    let noon = 1_795_348_800_000; // 2026-11-22T12:00:00Z
    let minutes = |minutes: u64| minutes * 60_000;
    let new_node = async |store: &Arc<TestStore>, at: u64| {
        let clock = Arc::new(ManualClock::at(UnixMillis::new(at)));
        let config = SegmentConfig { clock: Arc::clone(&clock) as _, ..SegmentConfig::default() };
        let node = SegmentGenerator::open(Arc::clone(store) as _, config).await;
        let orders = node.tag("orders").await.unwrap();
        (clock, node, orders)
    };
    for (wrong, why) in [
        (noon + minutes(365 * 1440), "says 20271122, and that of the store's server 20261122"),
        (noon + minutes(12 * 60), "says 20261123, and that of the store's server 20261122"),
        (1_000_000, "the clock shows 1970-01-01"),
    ] {
        let store = store_of(spec.clone(), &KeyRing::default()).await;
        store.clock.store(noon, Ordering::SeqCst);
        let (clock, node, orders) = new_node(&store, wrong).await;
        let refused = orders.next().await.unwrap_err();
        assert_eq!(*refused.kind(), SegmentErrorKind::ClockInDoubt);
        let health = node.health();
        assert_eq!(health.reasons()[0].code, HealthCode::Clock, "{health}");
        assert!(health.to_string().contains(why), "{health}");
        assert_eq!(store.inner_max_id("orders").await, 1, "nothing was opened");
        clock.set_wall(UnixMillis::new(noon));
        // The clock is believed after a minute, and the refusal is told for a second.
        for _ in 0..70 {
            clock.advance(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let id = orders.next().await.unwrap().get();
        assert_eq!(id, 20_261_122_000_001);
        assert_eq!(node.health().to_string(), "ready");
        // The store's clock is behind, and the day is open: there is nothing left to protect.
        store.clock.store(noon - minutes(1440), Ordering::SeqCst);
        let (_, _, again) = new_node(&store, noon).await;
        assert_eq!(again.next().await.unwrap().get() / 1_000_000, 20_261_122);
    }
    let store = store_of(spec, &KeyRing::default()).await;
    // Clocks differ: the next day is opened a little early by the other one.
    let midnight = noon + minutes(12 * 60);
    store.clock.store(midnight - minutes(9), Ordering::SeqCst);
    let (_, early, orders) = new_node(&store, midnight).await;
    assert_eq!(orders.next().await.unwrap().get(), 20_261_123_000_001);
    early.close().await;
    // One that is half a day behind finds it open, and says until when it has no ids.
    let (_, behind, orders) = new_node(&store, noon).await;
    let refused = orders.next().await.unwrap_err();
    assert_eq!(*refused.kind(), SegmentErrorKind::ClockBehind);
    let health = behind.health();
    assert_eq!(health.reasons()[0].code, HealthCode::Clock, "{health}");
    assert!(health.to_string().contains("has ids again when 20261123 begins"), "{health}");
}
