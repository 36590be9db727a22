//! One conformance suite for every segment store, on the real database.
//!
//! A new backend is a name in each `backends!`, and in `fixture.rs` a function that makes an empty
//! store and a variant of `Database` and of `Server`.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod etcd_back;
mod etcd_users;
mod families;
mod fixture;
mod generations;
mod give_back;
mod sequences;
mod servers;
mod settings;
mod sqlite_file;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leaf_core::{IdRange, Step, StepError, Tag};
use leaf_segment::store::{MOST_RECORDS, SEALED, TagCursor, TagSettings};
use leaf_segment::{
    NewTag, SegmentConfig, SegmentErrorKind, SegmentGenerator, StoreErrorKind, TagRecord, TagStore,
};
use leaf_shape::Meaning;
use leaf_testkit::Edit as _;
use leaf_testkit::{Etcd, Fault, MariaDb, Postgres, all_tags};

use families::{
    a_member_is_a_copy_of_its_family, makers_at_the_same_time_make_each_member_once,
    members_are_listed_by_their_family, what_a_family_may_not_is_refused,
};
use fixture::{Database, Fixture, etcd, fixture, mysql, postgres, sqlite};
use generations::{
    a_change_is_written_only_over_the_record_that_it_was_decided_on,
    a_deleted_tag_is_not_made_again_below_its_ids,
    what_was_granted_before_a_repair_does_not_come_back,
};
use give_back::ids_that_are_given_back_under_faults_are_issued_once;
use sequences::{
    a_closed_tag_is_reopened, a_key_is_replaced_once, a_name_is_in_one_of_the_two_places,
    a_sequence_is_allocated_from_as_what_it_is, a_tag_is_made_with_its_settings,
    numbers_begin_and_end_where_they_shall, of_two_who_make_a_tag_at_once_one_succeeds,
    what_a_tag_means_is_never_guessed,
};
use settings::{
    a_store_remembers_its_place, settings_are_kept_beside_the_record,
    settings_of_a_later_version_are_not_overruled,
};

fn tag(name: &str) -> Tag {
    Tag::parse(name).unwrap()
}

fn step(value: i64) -> Step {
    Step::new(value).unwrap()
}

async fn create(store: &dyn TagStore, name: &str, size: i64) {
    store.create(&NewTag::new(tag(name), step(size))).await.unwrap();
}

async fn refusal<T>(
    result: impl Future<Output = Result<T, leaf_segment::StoreError>>,
) -> StoreErrorKind {
    match result.await {
        Ok(_) => panic!("the store did what it must refuse"),
        Err(error) => error.kind().clone(),
    }
}

async fn the_first_range_is_the_records_own(f: Fixture) {
    let stock = tag("leaf-segment-test");
    let range = f.store.allocate(&stock, step(2000), step(2000).into()).await.unwrap();

    assert_eq!(range, IdRange::new(1, 2001).unwrap(), "Java's first ids are 1..2000");
    let record = f.store.tag(&stock).await.unwrap().unwrap();
    assert_eq!(
        record,
        TagRecord {
            tag: stock,
            max_id: 2001,
            step: Ok(step(2000)),
            description: Some("Test leaf Segment Mode Get Id".into()),
            meaning: Ok(Meaning::PLAIN),
            settings: Ok(TagSettings { generation: record.generation(), ..TagSettings::default() }),
        }
    );
}

/// G-01: no two acknowledged ranges overlap.
async fn sixteen_allocators_never_overlap(f: Fixture) {
    create(&*f.store, "orders", 10).await;
    let mut allocators = Vec::new();
    for i in 0..16i64 {
        // Half of them share a pool, half are another process.
        let store = if i % 2 == 0 { Arc::clone(&f.store) } else { f.another().await };
        allocators.push(tokio::spawn(async move {
            let mut ranges = Vec::new();
            for round in 0..20 {
                let amount = step(1 + (i + round) % 10);
                loop {
                    match store.allocate(&tag("orders"), amount, step(10).into()).await {
                        Ok(range) => break ranges.push(range),
                        Err(error) => assert!(error.retryable(), "{error}"),
                    }
                }
            }
            ranges
        }));
    }
    let mut ranges = Vec::new();
    for allocator in allocators {
        ranges.extend(allocator.await.unwrap());
    }

    assert_eq!(ranges.len(), 16 * 20);
    ranges.sort_by_key(|range| range.start());
    assert!(
        ranges.windows(2).all(|pair| !pair[0].overlaps(pair[1])),
        "ids were granted twice: {ranges:?}"
    );
    let sum: u64 = ranges.iter().map(|range| range.len()).sum();
    let max_id = f.store.tag(&tag("orders")).await.unwrap().unwrap().max_id;
    assert_eq!(max_id.cast_unsigned(), 1 + sum, "no id is lost when nothing failed");
}

/// G-01: simultaneous allocations, which a store may commit together, each get their own answer. A
/// caller that does not wait for its answer takes none from the others.
async fn allocations_at_the_same_time_have_each_its_own_answer(f: Fixture) {
    const TAGS: usize = 300;
    let name = |i: usize| format!("tag-{i}");
    for i in (0..TAGS).filter(|i| i % 10 != 1) {
        create(&*f.store, &name(i), 10).await;
    }
    for i in (2..TAGS).step_by(10) {
        f.store.seal_now(&tag(&name(i))).await.unwrap();
    }
    for round in 0..3 {
        let mut allocations = tokio::task::JoinSet::new();
        let mut left = Vec::new();
        for i in 0..TAGS {
            let store = Arc::clone(&f.store);
            let expected = step(if i % 10 == 3 { 11 } else { 10 });
            let allocation = allocations.spawn(async move {
                let amount = step(1 + i64::try_from(i).unwrap());
                (i, store.allocate(&tag(&name(i)), amount, expected.into()).await)
            });
            if i % 10 == 4 {
                left.push(allocation);
            }
        }
        tokio::task::yield_now().await;
        left.iter().for_each(tokio::task::AbortHandle::abort);
        while let Some(done) = allocations.join_next().await {
            let Ok((i, answer)) = done else { continue };
            match (i % 10, answer.map_err(|error| error.kind().clone())) {
                (1, answer) => assert_eq!(answer, Err(StoreErrorKind::UnknownTag)),
                (2, answer) => assert_eq!(answer, Err(StoreErrorKind::Moved)),
                (3, answer) => assert_eq!(answer, Err(StoreErrorKind::StepChanged(step(10)))),
                // One that was broken off may have allocated too.
                (4, answer) => assert_eq!(answer.unwrap().len(), 1 + i as u64),
                (_, answer) => {
                    let amount = 1 + i64::try_from(i).unwrap();
                    let start = 1 + round * amount;
                    assert_eq!(answer, Ok(IdRange::new(start, start + amount).unwrap()));
                }
            }
        }
    }
}

async fn tags_are_compared_as_bytes(f: Fixture) {
    create(&*f.store, "order", 10).await;
    for other in ["Order", "ordér", "orde", "order-"] {
        let kind = refusal(f.store.allocate(&tag(other), step(10), step(10).into())).await;
        assert_eq!(kind, StoreErrorKind::UnknownTag, "{other}");
        assert_eq!(f.store.tag(&tag(other)).await.unwrap(), None);
        assert_eq!(f.store.raise(&tag(other), 99).await.unwrap_err().kind(), &kind);
        assert_eq!(f.store.set_step(&tag(other), step(9)).await.unwrap_err().kind(), &kind);
        assert_eq!(f.store.remove(&tag(other)).await.unwrap_err().kind(), &kind);
    }

    assert_eq!(f.store.tag(&tag("order")).await.unwrap().unwrap().max_id, 1);
}

async fn any_valid_tag_can_be_kept(f: Fixture) {
    for name in ["订单.v1", "a/b c", "'; DROP TABLE leaf_alloc; --", "%", "🍃", &"é".repeat(128)]
    {
        create(&*f.store, name, 10).await;
        let range = f.store.allocate(&tag(name), step(10), step(10).into()).await.unwrap();
        assert_eq!(range.start(), 1, "{name}");
    }
    assert_eq!(all_tags(&*f.store).await.unwrap().len(), 7);
}

async fn a_changed_step_is_told(f: Fixture) {
    create(&*f.store, "orders", 10).await;
    f.store.set_step(&tag("orders"), step(500)).await.unwrap();

    let kind = refusal(f.store.allocate(&tag("orders"), step(10), step(10).into())).await;
    assert_eq!(kind, StoreErrorKind::StepChanged(step(500)));
    let range = f.store.allocate(&tag("orders"), step(1000), step(500).into()).await.unwrap();
    assert_eq!(range.len(), 1000, "the amount is the caller's, not the record's");
}

async fn bad_rows_are_errors_of_their_tag_only(f: Fixture) {
    for name in ["zero", "negative", "behind", "fine"] {
        create(&*f.store, name, 10).await;
    }
    f.set("zero", "step", 0).await;
    f.set("negative", "step", -5).await;
    f.set("behind", "max_id", -7).await;
    match &f.database {
        Database::Etcd(server, name) => {
            server.ctl(&[
                "put",
                &format!("/leaf/{name}/segment/ padded"),
                r#"{"version":1,"max_id":1,"step":1}"#,
            ]);
            server.ctl(&["put", &format!("/leaf/{name}/segment/text"), "max_id=1"]);
            let kind = refusal(f.store.allocate(&tag("text"), step(1), step(1).into())).await;
            assert!(matches!(kind, StoreErrorKind::BadRecord(_)), "{kind}");
            let segments = SegmentGenerator::start(f.store.clone(), SegmentConfig::default());
            let error = segments.tag("text").await.unwrap_err();
            assert_eq!(*error.kind(), SegmentErrorKind::Record, "no outage of the store");
            // Together with others it costs them nothing.
            let both = f.store.records(&[tag("text"), tag("fine")]).await.unwrap();
            let usable = |name| both.iter().any(|it| it.tag == tag(name) && it.meaning.is_ok());
            assert!(usable("fine") && !usable("text"), "{both:?}");
        }
        _ => {
            f.sql("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES (' padded', 1, 1)").await;
        }
    }
    if let Database::Mysql(..) = f.database {
        f.sql("ALTER TABLE leaf_alloc MODIFY max_id BIGINT NULL").await;
        f.sql("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('null', NULL, 1)").await;
        let kind = refusal(f.store.allocate(&tag("null"), step(1), step(1).into())).await;
        assert!(matches!(kind, StoreErrorKind::BadRecord(_)), "{kind}");
    }

    for name in ["zero", "negative", "behind"] {
        let kind = refusal(f.store.allocate(&tag(name), step(10), step(10).into())).await;
        assert!(matches!(kind, StoreErrorKind::BadRecord(_)), "{name}: {kind}");
    }
    f.store.allocate(&tag("fine"), step(10), step(10).into()).await.unwrap();
    let records = all_tags(&*f.store).await.unwrap();
    let damaged = usize::from(matches!(f.database, Database::Etcd(..)));
    assert_eq!(records.len(), 5 + damaged, "the row that is no tag is left out");
    let zero = records.iter().find(|record| record.tag == tag("zero")).unwrap();
    assert!(matches!(zero.step, Err(StepError { .. })));
}

/// Tags are read by name, or page by page, each once. No request reads all tags.
async fn tags_are_read_by_name_and_by_page(f: Fixture) {
    for i in 0..150 {
        create(&*f.store, &format!("plain/{i}"), 10).await;
        f.store.create(&NewTag::strict(tag(&format!("strict/{i}")))).await.unwrap();
    }
    let limit = TagSettings { max_take: Some(step(5)), ..TagSettings::default() };
    f.store.set_settings(&tag("plain/7"), &limit).await.unwrap();
    // A place is a text on its way to whoever asks for the next page.
    let (mut names, mut place, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let after = place.map(|place| place.parse::<TagCursor>().unwrap());
        let page = f.store.page(after.as_ref(), "", 60).await.unwrap();
        assert!(page.records.len() <= 60);
        for record in page.records {
            let is_strict = record.tag.as_str().starts_with("strict/");
            let meaning = if is_strict { Meaning::STRICT } else { Meaning::PLAIN };
            assert_eq!(record.meaning, Ok(meaning));
            let own = record.settings.unwrap().max_take;
            assert_eq!(own.is_some(), record.tag == tag("plain/7"));
            names.push(record.tag);
        }
        pages += 1;
        place = page.next.map(|place| place.to_string());
        if place.is_none() {
            break;
        }
    }
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!((names.len(), all), (301, 301), "with the stock tag, in {pages} pages");

    // As many as one call takes, and among them some that do not exist.
    let wanted: Vec<Tag> = (0..MOST_RECORDS)
        .map(|i| tag(&format!("{}/{i}", if i % 2 == 0 { "plain" } else { "strict" })))
        .collect();
    let found = f.store.records(&wanted).await.unwrap();
    assert_eq!(found.len(), 150);
    assert!(found.iter().all(|record| wanted.contains(&record.tag)));
    assert!(f.store.records(&[]).await.unwrap().is_empty());
    f.store.try_reading().await.unwrap();
}

/// G-10: a clear end, no wrap.
async fn the_end_of_the_ids_is_an_error(f: Fixture) {
    let last = NewTag { max_id: i64::MAX - 1500, ..NewTag::new(tag("last"), step(1000)) };
    f.store.create(&last).await.unwrap();

    let range = f.store.allocate(&tag("last"), step(1000), step(1000).into()).await.unwrap();
    assert_eq!(range.end(), i64::MAX - 500);
    let kind = refusal(f.store.allocate(&tag("last"), step(1000), step(1000).into())).await;
    assert_eq!(kind, StoreErrorKind::Exhausted);
    let kind = refusal(f.store.allocate(&tag("last"), step(500), step(1000).into())).await;
    assert_eq!(kind, StoreErrorKind::Exhausted, "that number stands for a sealed tag");
    let rest = f.store.allocate(&tag("last"), step(499), step(1000).into()).await.unwrap();
    assert_eq!(rest.end(), SEALED - 1);
}

/// G-16: after the seal no allocation grants another id, whatever its amount.
async fn a_sealed_tag_grants_nothing(f: Fixture) {
    create(&*f.store, "moved", 10).await;
    let range = f.store.allocate(&tag("moved"), step(10), step(10).into()).await.unwrap();

    assert_eq!(f.store.seal_now(&tag("moved")).await.unwrap(), range.end());
    assert_eq!(f.store.seal_now(&tag("moved")).await.unwrap(), SEALED, "it is");
    let unknown = f.store.seal_now(&tag("unknown")).await.unwrap_err();
    assert_eq!(*unknown.error.kind(), StoreErrorKind::UnknownTag);

    for amount in [1, 10, i64::from(i32::MAX)] {
        let kind = refusal(f.store.allocate(&tag("moved"), step(amount), step(10).into())).await;
        assert_eq!(kind, StoreErrorKind::Moved);
    }
    let unused = f.store.put_back(&tag("moved"), range).await;
    assert!(!unused.unwrap(), "nothing is given back any more");
    assert_eq!(refusal(f.store.raise(&tag("moved"), 5000)).await, StoreErrorKind::Moved);
    assert!(f.store.tag(&tag("moved")).await.unwrap().unwrap().is_sealed());
}

/// G-16: a busy tag can be sealed, and every granted id is below the number that the seal returns.
async fn a_busy_tag_is_sealed(f: Fixture) {
    create(&*f.store, "busy", 10).await;
    let grants = Arc::new(AtomicUsize::new(0));
    let mut nodes = Vec::new();
    for _ in 0..4 {
        let (store, grants) = (f.another().await, Arc::clone(&grants));
        nodes.push(tokio::spawn(async move {
            let (busy, mut last, mut unclear) = (tag("busy"), 0, false);
            loop {
                match store.allocate(&busy, step(10), step(10).into()).await {
                    Ok(range) => {
                        last = range.end();
                        grants.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) if *error.kind() == StoreErrorKind::Moved => return (last, unclear),
                    Err(error) => {
                        assert!(error.retryable(), "{error}");
                        unclear |= *error.kind() == StoreErrorKind::Unavailable;
                    }
                }
            }
        }));
    }
    let late = tokio::time::Instant::now() + Duration::from_secs(30);
    while grants.load(Ordering::SeqCst) < 20 {
        assert!(tokio::time::Instant::now() < late, "nobody is granted anything");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let end = f.store.seal_now(&tag("busy")).await.unwrap();

    let (mut last, mut unclear) = (0, false);
    for node in nodes {
        let ended = tokio::time::timeout(Duration::from_secs(30), node).await.unwrap().unwrap();
        (last, unclear) = (last.max(ended.0), unclear | ended.1);
    }
    // An answer that was lost may have been the last grant.
    assert!(last == end || unclear && last < end, "{last} was granted, {end} is told");
}

async fn administration(f: Fixture) {
    create(&*f.store, "orders", 10).await;
    let again = NewTag::new(tag("orders"), step(10));
    assert_eq!(refusal(f.store.create(&again)).await, StoreErrorKind::TagExists);

    assert_eq!(f.store.raise(&tag("orders"), 5000).await.unwrap(), 5000);
    assert_eq!(f.store.raise(&tag("orders"), 10).await.unwrap(), 5001, "never lowered");

    let range = f.store.allocate(&tag("orders"), step(10), step(10).into()).await.unwrap();
    let tail = IdRange::new(range.start() + 4, range.end()).unwrap();
    let give_back = async || f.store.put_back(&tag("orders"), tail).await.unwrap();
    assert!(give_back().await);
    assert!(!give_back().await, "somebody allocated since");
    let next = f.store.allocate(&tag("orders"), step(10), step(10).into()).await.unwrap();
    assert_eq!(next.start(), tail.start());

    f.store.remove(&tag("orders")).await.unwrap();
    assert_eq!(f.store.tag(&tag("orders")).await.unwrap(), None);
}

/// Allocates the next range; retries for 30 s at most.
async fn patiently(store: &dyn TagStore) -> IdRange {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        match store.allocate(&tag("orders"), step(10), step(10).into()).await {
            Ok(range) => return range,
            Err(error) => {
                assert!(error.retryable(), "{error}");
                assert!(tokio::time::Instant::now() < deadline, "not within 30 s: {error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// G-05: a connection that ends before or after the commit costs at most one range each time.
async fn an_unclear_answer_is_an_error_and_a_gap(f: Fixture) {
    create(&*f.store, "orders", 10).await;
    let (proxy, store) = f.behind_proxy().await;
    let orders = tag("orders");
    let mut last = store.allocate(&orders, step(10), step(10).into()).await.unwrap().end();
    for fault in [Fault::Cut, Fault::Reset, Fault::SwallowReplies, Fault::BlackHole] {
        proxy.set(fault);
        let attempt = store.allocate(&orders, step(10), step(10).into());
        match tokio::time::timeout(Duration::from_secs(4), attempt).await {
            Ok(Ok(range)) => panic!("{fault:?}: {range} without an answer"),
            Ok(Err(error)) => assert!(error.retryable(), "{fault:?}: {error}"),
            Err(_) => {}
        }
        // What was sent may still arrive and be carried out.
        proxy.set(Fault::Cut);
        tokio::time::sleep(Duration::from_millis(50)).await;
        proxy.set(Fault::None);
        let range = patiently(&*store).await;
        assert!(range.start() >= last, "{fault:?}: {range} after {last}");
        assert!(range.start() - last <= 20, "{fault:?}: {range} after {last}");
        last = range.end();
    }
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let range = store.allocate(&orders, step(10), step(10).into()).await.unwrap();
    assert_eq!(range.start(), last, "slow is no failure");
}

/// The server is killed again and again under load and comes back on the same data.
async fn a_restart_under_load_repeats_nothing(f: Fixture) {
    // A server of its own: the shared one is in use.
    let f = match f.database {
        Database::Sqlite(_) => panic!("a file is not restarted"),
        Database::Mysql(..) => {
            let server = tokio::task::spawn_blocking(MariaDb::start).await.unwrap();
            let database = server.new_database();
            fixture(Database::Mysql(Arc::new(server), database)).await
        }
        Database::Postgres(..) => {
            let server = tokio::task::spawn_blocking(Postgres::start).await.unwrap();
            let database = server.new_database();
            fixture(Database::Postgres(Arc::new(server), database)).await
        }
        Database::Etcd(..) => {
            let server = tokio::task::spawn_blocking(|| Etcd::start(1)).await.unwrap();
            fixture(Database::Etcd(Arc::new(server), "leaf".into())).await
        }
    };
    create(&*f.store, "orders", 10).await;
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut allocators = Vec::new();
    for _ in 0..4 {
        let (store, stop) = (f.another().await, Arc::clone(&stop));
        allocators.push(tokio::spawn(async move {
            let mut ranges = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let name = tag("orders");
                let attempt = store.allocate(&name, step(10), step(10).into());
                match tokio::time::timeout(Duration::from_secs(2), attempt).await {
                    Ok(Ok(range)) => ranges.push(range),
                    Ok(Err(error)) => {
                        assert!(error.retryable(), "{error}");
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Err(_) => {}
                }
            }
            ranges
        }));
    }
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let database = f.database.clone();
        let restart = move || match database {
            Database::Sqlite(_) => {}
            Database::Mysql(server, _) => server.crash_and_restart(),
            Database::Postgres(server, _) => server.crash_and_restart(),
            Database::Etcd(server, _) => server.crash_and_restart(),
        };
        tokio::task::spawn_blocking(restart).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let after = patiently(&*f.store).await;
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut ranges = vec![after];
    for allocator in allocators {
        ranges.extend(allocator.await.unwrap());
    }

    assert!(ranges.len() > 20, "{}", ranges.len());
    ranges.sort_by_key(|range| range.start());
    assert!(ranges.windows(2).all(|pair| !pair[0].overlaps(pair[1])));
}

async fn the_schema_is_made_once_and_never_touched_again(f: Fixture) {
    f.store.remove(&tag("leaf-segment-test")).await.unwrap();

    if let Database::Etcd(..) = f.database {
        // Without tables the stock tag is made wherever there is no tag at all.
        create(&*f.store, "orders", 10).await;
    }
    assert!(f.open.admin.apply().await.unwrap().is_empty(), "they exist");

    let stock = f.store.tag(&tag("leaf-segment-test")).await.unwrap();
    assert_eq!(stock, None, "the stock row does not come back");
}

async fn a_dropped_request_disturbs_no_later_one(f: Fixture) {
    create(&*f.store, "orders", 1).await;
    let mut last = 0;
    for delay in 0..200u64 {
        let name = tag("orders");
        let abandoned = f.store.allocate(&name, step(1), step(1).into());
        let limit = Duration::from_micros(delay * 7);
        let _ = tokio::time::timeout(limit, abandoned).await;

        let range = f.store.allocate(&tag("orders"), step(1), step(1).into()).await.unwrap();
        assert!(range.start() > last, "{range} after {last}");
        last = range.start();
    }
}

/// For every backend a module with one test per check.
macro_rules! backends {
    ($($backend:ident),*; $checks:tt) => { $( backends!(@module $backend $checks); )* };
    (@module $backend:ident { $($check:ident),* $(,)? }) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $check() {
                    crate::$check(crate::$backend().await).await;
                }
            )*
        }
    };
}

backends!(sqlite, mysql, postgres, etcd; {
    the_first_range_is_the_records_own,
    sixteen_allocators_never_overlap,
    allocations_at_the_same_time_have_each_its_own_answer,
    tags_are_compared_as_bytes,
    any_valid_tag_can_be_kept,
    a_changed_step_is_told,
    bad_rows_are_errors_of_their_tag_only,
    tags_are_read_by_name_and_by_page,
    the_end_of_the_ids_is_an_error,
    a_sealed_tag_grants_nothing,
    a_busy_tag_is_sealed,
    administration,
    ids_that_are_given_back_under_faults_are_issued_once,
    settings_are_kept_beside_the_record,
    a_store_remembers_its_place,
    settings_of_a_later_version_are_not_overruled,
    a_sequence_is_allocated_from_as_what_it_is,
    a_key_is_replaced_once,
    a_closed_tag_is_reopened,
    a_tag_is_made_with_its_settings,
    numbers_begin_and_end_where_they_shall,
    a_name_is_in_one_of_the_two_places,
    of_two_who_make_a_tag_at_once_one_succeeds,
    what_a_tag_means_is_never_guessed,
    the_schema_is_made_once_and_never_touched_again,
    a_dropped_request_disturbs_no_later_one,
    what_was_granted_before_a_repair_does_not_come_back,
    a_change_is_written_only_over_the_record_that_it_was_decided_on,
    a_deleted_tag_is_not_made_again_below_its_ids,
    a_member_is_a_copy_of_its_family,
    makers_at_the_same_time_make_each_member_once,
    what_a_family_may_not_is_refused,
    members_are_listed_by_their_family,
});

/// Checks of faults that only a server can cause.
mod server {
    backends!(mysql, postgres, etcd; {
        an_unclear_answer_is_an_error_and_a_gap,
        a_restart_under_load_repeats_nothing,
    });
}
