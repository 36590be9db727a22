//! Tags that are not plain: the store keeps them in a separate table or prefix, with their meaning.

use leaf_core::{IdRange, SystemClock};
use leaf_segment::admin::{Confirm, Reopening, TagAdmin, TagSpec};
use leaf_segment::store::{Expected, TagSettings, TagUpdate};
use leaf_segment::{NewTag, StoreErrorKind, TagRecord};
use leaf_shape::keys::KeyRing;
use leaf_shape::{Meaning, MeaningError, Period};
use leaf_testkit::Edit as _;
use leaf_testkit::all_tags;

use crate::fixture::{Database, Fixture};
use crate::{create, refusal, step, tag};

const STRICT: Meaning = Meaning::STRICT;

fn strict() -> Expected {
    Expected::new(step(1), STRICT)
}

fn range(start: i64, end: i64) -> IdRange {
    IdRange::new(start, end).unwrap()
}

pub(crate) async fn a_sequence_is_allocated_from_as_what_it_is(f: Fixture) {
    f.store.create(&NewTag::strict(tag("turns"))).await.unwrap();
    let (turns, one) = (tag("turns"), step(1));

    let record = f.another().await.tag(&turns).await.unwrap().unwrap();
    assert_eq!((record.meaning, record.max_id), (Ok(STRICT), 1));
    assert_eq!(f.store.allocate(&turns, step(5), strict()).await.unwrap(), range(1, 6));
    let other = f.another().await;
    assert_eq!(other.allocate(&turns, one, strict()).await.unwrap(), range(6, 7));
    // A node that takes it for plain: as a Java Leaf would.
    assert_eq!(refusal(f.store.allocate(&turns, one, one.into())).await, not_plain(&f));

    let records = all_tags(&*f.store).await.unwrap();
    let of = |name: &str| records.iter().find(|it| it.tag == tag(name)).unwrap().meaning.clone();
    assert_eq!((of("turns"), of("leaf-segment-test")), (Ok(STRICT), Ok(Meaning::PLAIN)));

    // Everything else that is done with a tag.
    let settings = TagSettings { enabled: false, ..TagSettings::default() };
    f.store.set_settings(&turns, &settings).await.unwrap();
    let shown = f.store.tag(&turns).await.unwrap().unwrap().settings.unwrap();
    assert_eq!(TagSettings { generation: None, ..shown }, settings);
    assert_eq!(f.store.raise(&turns, 100).await.unwrap(), 100);
    assert!(f.store.put_back(&turns, range(90, 100)).await.unwrap());
    assert!(!f.store.put_back(&turns, range(90, 100)).await.unwrap());
    f.store.set_step(&turns, step(7)).await.unwrap();
    let changed = refusal(f.store.allocate(&turns, one, strict())).await;
    assert_eq!(changed, StoreErrorKind::StepChanged(step(7)));
    f.store.set_step(&turns, one).await.unwrap();
    assert_eq!(f.store.seal_now(&turns).await.unwrap(), 90);
    assert_eq!(refusal(f.store.allocate(&turns, one, strict())).await, StoreErrorKind::Moved);
    f.store.remove(&turns).await.unwrap();
    assert_eq!(f.store.tag(&turns).await.unwrap(), None);
    let gone = refusal(f.store.allocate(&turns, one, strict())).await;
    assert_eq!(gone, StoreErrorKind::UnknownTag);
}

/// Numbers of a period begin and end where the caller says, whatever the counter was; a range that
/// would pass the end changes nothing.
pub(crate) async fn numbers_begin_and_end_where_they_shall(f: Fixture) {
    f.store.create(&NewTag::strict(tag("turns"))).await.unwrap();
    let (turns, one) = (tag("turns"), step(1));
    let within = |least, end| Expected { least, end, ..strict() };
    let take = async |count, expected| f.store.allocate(&turns, step(count), expected).await;
    let next = async || f.store.tag(&turns).await.unwrap().unwrap().max_id;

    assert_eq!(take(3, within(100, 110)).await.unwrap(), range(100, 103));
    assert_eq!(take(7, within(100, 110)).await.unwrap(), range(103, 110), "up to its last");
    for full in [within(100, 110), within(0, 110), within(0, 50)] {
        assert_eq!(refusal(take(1, full)).await, StoreErrorKind::Exhausted);
    }
    assert_eq!(refusal(take(11, within(200, 210))).await, StoreErrorKind::Exhausted);
    assert_eq!(next().await, 110, "what was refused changed nothing");
    assert_eq!(take(10, within(200, 210)).await.unwrap(), range(200, 210));
    assert_eq!(take(1, within(150, 400)).await.unwrap(), range(210, 211), "never lower");

    // A plain tag has an end, too.
    create(&*f.store, "orders", 10).await;
    let end = |end| Expected { end, ..Expected::from(step(10)) };
    let orders = tag("orders");
    assert_eq!(f.store.allocate(&orders, step(10), end(11)).await.unwrap(), range(1, 11));
    let passed = refusal(f.store.allocate(&orders, one, end(11))).await;
    assert_eq!(passed, StoreErrorKind::Exhausted);
    assert_eq!(f.store.allocate(&orders, one, step(10).into()).await.unwrap(), range(11, 12));
}

/// A new tag has its settings from the moment when it is made.
pub(crate) async fn a_tag_is_made_with_its_settings(f: Fixture) {
    let settings = TagSettings::decode(
        r#"{"version":1,"enabled":true,"slice":"2/8","text":"O-{n}","time_zone":"Europe/Berlin"}"#,
    );
    let settings = settings.unwrap();
    let plain = NewTag { settings: settings.clone(), ..NewTag::new(tag("orders"), step(10)) };
    let strict = NewTag { settings: settings.clone(), ..NewTag::strict(tag("turns")) };
    for new in [plain, strict] {
        f.store.create(&new).await.unwrap();
        let read = f.another().await.tag(&new.tag).await.unwrap().unwrap();
        assert!(read.generation().is_some());
        let settings = TagSettings { generation: read.generation(), ..settings.clone() };
        assert_eq!(read.settings, Ok(settings.clone()), "{:?}", new.tag);
        // A second one is refused, and changes no settings.
        let other = NewTag { settings: TagSettings::default(), ..new.clone() };
        assert_eq!(refusal(f.store.create(&other)).await, StoreErrorKind::TagExists);
        let read = f.store.tag(&new.tag).await.unwrap().unwrap();
        assert_eq!(read.settings, Ok(settings.clone()), "{:?}", new.tag);
    }
}

/// Another key: the meaning is replaced only if it is unchanged since it was read. A caller that
/// has the old meaning cannot allocate any more.
pub(crate) async fn a_key_is_replaced_once(f: Fixture) {
    let meaning = |key: u8| {
        let text = format!(
            r#"{{"version":1,"order":"relaxed","shape":"scramble:63","key":{key},"check":"00112233aabbccdd"}}"#
        );
        Meaning::decode(&text).unwrap()
    };
    let (old, new) = (meaning(1), meaning(2));
    let orders = tag("orders");
    f.store
        .create(&NewTag { meaning: old, ..NewTag::new(orders.clone(), step(10)) })
        .await
        .unwrap();
    let take =
        async |meaning| f.store.allocate(&orders, step(5), Expected::new(step(10), meaning)).await;
    assert_eq!(take(old).await.unwrap(), range(1, 6));
    let seen = f.store.record(&orders).await.unwrap();
    let update = TagUpdate { meaning: Some(new), ..TagUpdate::of(seen) };
    assert_eq!(f.store.update(&update).await.unwrap().meaning, Ok(new));
    assert_eq!(refusal(f.store.update(&update)).await, StoreErrorKind::RecordChanged);
    assert_eq!(refusal(take(old)).await, StoreErrorKind::MeaningChanged);
    assert_eq!(take(new).await.unwrap(), range(6, 11), "the numbers go on");
    assert_eq!(f.another().await.tag(&orders).await.unwrap().unwrap().meaning, Ok(new));
}

/// A reopening writes meaning, counter and settings at once. A caller with the old meaning cannot
/// allocate any more.
pub(crate) async fn a_closed_tag_is_reopened(f: Fixture) {
    let spec = TagSpec { reset: Some(Period::Yearly), ..TagSpec::default() };
    let receipts = tag("receipts");
    let new = spec.record(receipts.clone(), &KeyRing::default()).unwrap();
    f.store.create(&new).await.unwrap();
    let admin = TagAdmin::new(&*f.store);
    let closed = 2_099_000_018;
    admin.advance(&receipts, closed, Confirm::Yes).await.unwrap();
    let before = f.store.record(&receipts).await.unwrap();

    let none = Reopening { above: Some(0), first_taken: Some(2099) };
    let reopened = admin.reopen(&receipts, none, &SystemClock, Confirm::Yes).await.unwrap();
    assert_eq!(f.another().await.tag(&receipts).await.unwrap(), Some(reopened.clone()));
    assert!(reopened.max_id > closed && reopened.generation() != before.generation());
    let expected = |record: &TagRecord, least: i64| {
        let meaning = record.meaning.clone().unwrap();
        Expected { least, end: least + 100, ..Expected::new(step(1), meaning) }
    };
    let first = reopened.max_id;
    let take = async |expected| f.store.allocate(&receipts, step(2), expected).await;
    assert_eq!(refusal(take(expected(&before, closed))).await, StoreErrorKind::MeaningChanged);
    assert_eq!(take(expected(&reopened, first)).await.unwrap(), range(first, first + 2));
}

/// The error of an allocation that takes a tag in the table of sequences for a plain one.
fn not_plain(f: &Fixture) -> StoreErrorKind {
    match f.database {
        // One transaction reads both places.
        Database::Etcd(..) => StoreErrorKind::MeaningChanged,
        _ => StoreErrorKind::UnknownTag,
    }
}

pub(crate) async fn a_name_is_in_one_of_the_two_places(f: Fixture) {
    create(&*f.store, "orders", 10).await;
    f.store.create(&NewTag::strict(tag("turns"))).await.unwrap();

    let exists = StoreErrorKind::TagExists;
    assert_eq!(refusal(f.store.create(&NewTag::strict(tag("orders")))).await, exists);
    assert_eq!(refusal(f.store.create(&NewTag::strict(tag("turns")))).await, exists);
    assert_eq!(refusal(f.store.create(&NewTag::new(tag("turns"), step(10)))).await, exists);
    assert_eq!(refusal(f.store.create(&NewTag::new(tag("orders"), step(10)))).await, exists);
    // The connections are in order afterwards, and nothing is left of what was refused.
    f.store.allocate(&tag("orders"), step(10), step(10).into()).await.unwrap();
    f.store.allocate(&tag("turns"), step(1), strict()).await.unwrap();
    assert_eq!(all_tags(&*f.store).await.unwrap().len(), 3, "with the stock tag");
}

/// Two operators make the same tag at the same time, one as a plain tag and one in strict order.
pub(crate) async fn of_two_who_make_a_tag_at_once_one_succeeds(f: Fixture) {
    let others = [f.another().await, f.another().await];
    for round in 0..20 {
        let name = tag(&format!("tag {round}"));
        let (plain, strict) = (NewTag::new(name.clone(), step(10)), NewTag::strict(name.clone()));
        let (plain, strict) = tokio::join!(others[0].create(&plain), others[1].create(&strict));
        let made = usize::from(plain.is_ok()) + usize::from(strict.is_ok());
        assert!(made <= 1, "round {round}: both were made");
        for refused in [plain, strict].into_iter().filter_map(Result::err) {
            // Some databases give both up, and say so.
            let kind = refused.kind();
            use StoreErrorKind::{Conflict, TagExists, Unavailable};
            let gave_up = matches!(kind, Conflict | Unavailable);
            assert!(gave_up || (made == 1 && *kind == TagExists), "{refused}");
        }
        if let Some(record) = f.store.tag(&name).await.unwrap() {
            assert!(made == 1 && record.meaning.is_ok(), "{record:?}");
        }
    }
}

/// A store never guesses what a tag means: neither if this version does not understand the meaning,
/// nor if the name is a plain tag and another one at once.
pub(crate) async fn what_a_tag_means_is_never_guessed(f: Fixture) {
    let turns = tag("turns");
    f.store.create(&NewTag::strict(turns.clone())).await.unwrap();
    let newer = r#"{"version":1,"order":"strict","shape":"spiral:63"}"#;
    f.set_in_sequences("turns", "meaning", newer).await;

    let read = f.store.tag(&turns).await.unwrap().unwrap().meaning;
    assert!(matches!(read, Err(MeaningError::Newer(_))), "{read:?}");
    let refused = refusal(f.store.allocate(&turns, step(1), strict())).await;
    assert_eq!(refused, StoreErrorKind::MeaningChanged);
    let admin = leaf_segment::admin::TagAdmin::new(&*f.store);
    let error = admin.advance(&turns, 1000, leaf_segment::admin::Confirm::Yes).await.unwrap_err();
    assert!(error.to_string().contains("upgrade this program"), "{error}");

    f.set_in_sequences("turns", "meaning", &STRICT.encode()).await;
    match &f.database {
        Database::Etcd(server, name) => {
            let record = r#"{"version":1,"max_id":1,"step":10}"#;
            server.ctl(&["put", "--", &format!("/leaf/{name}/segment/turns"), record]);
        }
        _ => {
            f.sql("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('turns', 1, 10)").await;
        }
    }
    let read = f.store.tag(&turns).await.unwrap().unwrap().meaning;
    assert_eq!(read, Err(MeaningError::Twice));
    let records = all_tags(&*f.store).await.unwrap();
    let twice = records.iter().find(|record| record.tag == turns).unwrap();
    assert_eq!(twice.meaning, Err(MeaningError::Twice), "the others are read");
}

/// A node issues nothing of a tag that it does not understand, reports it, and is ready again once
/// the tag is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_says_what_it_does_not_understand_until_that_is_gone() {
    use leaf_segment::{SegmentConfig, SegmentErrorKind, SegmentGenerator};
    let f = crate::sqlite().await;
    f.store.create(&NewTag::strict(tag("turns"))).await.unwrap();
    let node = SegmentGenerator::open(f.another().await, SegmentConfig::default()).await;
    let turns = node.tag("turns").await.unwrap();
    assert_eq!(turns.next().await.unwrap().get(), 1);
    let mut round = 100_000..;
    let mut refreshed = async || {
        // Told another interval, the generator reads at once.
        node.set_refresh(std::time::Duration::from_millis(round.next().unwrap()));
        // A refusal is repeated for a second.
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    };

    f.set_in_sequences("turns", "meaning", r#"{"version":2}"#).await;
    refreshed().await;
    assert_eq!(*turns.next().await.unwrap_err().kind(), SegmentErrorKind::Changed);
    assert_eq!(*node.tag("turns").await.unwrap_err().kind(), SegmentErrorKind::Record);
    assert_eq!(node.health().state(), "degraded", "{:?}", node.health());

    f.sql("DELETE FROM leaf_sequence").await;
    refreshed().await;
    assert_eq!(node.health().state(), "ready", "{:?}", node.health());
    assert_eq!(*node.tag("turns").await.unwrap_err().kind(), SegmentErrorKind::UnknownTag);
    node.close().await;
}

/// The tables of a Leaf that knew no sequences: its plain tags go on as they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_table_there_are_plain_tags_only() {
    for f in [crate::sqlite().await, crate::mysql().await, crate::postgres().await] {
        f.sql("DROP TABLE leaf_sequence").await;
        create(&*f.store, "orders", 10).await;
        f.store.allocate(&tag("orders"), step(10), step(10).into()).await.unwrap();
        f.store.raise(&tag("orders"), 50).await.unwrap();
        assert_eq!(all_tags(&*f.store).await.unwrap().len(), 2);
        assert_eq!(f.store.tag(&tag("turns")).await.unwrap(), None);
        let error = f.store.create(&NewTag::strict(tag("turns"))).await.unwrap_err().to_string();
        assert!(error.contains("leaf-server schema --apply"), "{error}");
        f.store.remove(&tag("orders")).await.unwrap();
        let gone = refusal(f.store.remove(&tag("orders"))).await;
        assert_eq!(gone, StoreErrorKind::UnknownTag);
        assert_eq!(f.open.admin.apply().await.unwrap(), ["leaf_sequence"]);
        f.store.create(&NewTag::strict(tag("turns"))).await.unwrap();
    }
}

/// Settings that could be read once do not disappear with their table. Otherwise a slice would lose
/// its bounds, and a disabled tag would be enabled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_vanish_are_an_error() {
    let f = crate::sqlite().await;
    let settings = TagSettings::decode(r#"{"version":1,"enabled":true,"slice":"2/8"}"#).unwrap();
    let new = NewTag { settings, ..NewTag::new(tag("orders"), step(10)) };
    f.store.create(&new).await.unwrap();
    assert_eq!(all_tags(&*f.store).await.unwrap().len(), 2);
    f.sql("DROP TABLE leaf_tag_settings").await;
    let error = all_tags(&*f.store).await.unwrap_err().to_string();
    assert!(error.contains("leaf_tag_settings"), "{error}");
    f.store.tag(&tag("orders")).await.unwrap_err();
}

/// G-30: a process that could never read the settings, because the table was lost or its user has
/// no right on it. Only a Java Leaf's database really has no settings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_settings_only_the_tags_of_a_java_leaf_are_served() {
    for f in [crate::sqlite().await, crate::mysql().await, crate::postgres().await] {
        let settings = TagSettings::decode(r#"{"version":1,"enabled":false}"#).unwrap();
        let orders = tag("orders");
        let new = NewTag { settings, ..NewTag::new(orders.clone(), step(10)) };
        f.store.create(&new).await.unwrap();
        f.sql("ALTER TABLE leaf_tag_settings RENAME TO not_readable").await;
        let fresh = f.another().await;
        for error in [
            all_tags(&*fresh).await.unwrap_err(),
            fresh.tag(&orders).await.unwrap_err(),
            fresh.seal(&orders, None).await.unwrap_err().error,
        ] {
            assert_eq!(*error.kind(), StoreErrorKind::Refused, "{error}");
            assert!(error.to_string().contains("grant this user SELECT on"), "{error}");
        }
        f.sql("DROP TABLE leaf_sequence").await;
        if !f.url.starts_with("sqlite") {
            let error = all_tags(&*f.another().await).await.unwrap_err().to_string();
            assert!(error.contains("grant this user"), "the guard's table is there: {error}");
            f.sql("DROP TABLE leaf_guard").await;
        }
        let java = f.another().await;
        let record = java.tag(&orders).await.unwrap().unwrap();
        assert_eq!(record.settings, Ok(TagSettings::default()));
        // Tags are made and repaired there, too, without a generation.
        let (admin, more) = (leaf_segment::admin::TagAdmin::new(&*java), tag("more"));
        admin.create(&NewTag::new(more.clone(), step(10))).await.unwrap();
        let (record, raised) =
            admin.advance(&more, 500, leaf_segment::admin::Confirm::No).await.unwrap();
        assert_eq!((record.max_id, raised, record.generation()), (500, true, None));
        assert_eq!(java.tag(&more).await.unwrap().unwrap(), record);
    }
}
