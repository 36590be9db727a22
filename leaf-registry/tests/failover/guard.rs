//! The failover guard: names, margins, rights, races.

use std::sync::Arc;

use leaf_core::{Clock as _, SystemClock, Tag, UnixMillis};
use leaf_segment::NewTag;
use leaf_segment::admin::{Confirm, Reopening, TagAdmin, TagAdminError, TagSpec};
use leaf_segment::store::Expected;
use leaf_shape::Day;
use leaf_shape::Period;
use leaf_shape::keys::KeyRing;
use leaf_testkit::Edit as _;
use leaf_testkit::all_tags;

use crate::support::{Server, create, next, open, orders, step};

/// A tag whose numbers begin again with each period, which has up to 9,999 of them.
fn resets(period: Period) -> NewTag {
    let date = if period == Period::Daily { "%Y%m%d" } else { "%Y" };
    let text = Some(format!("{{date:{date}}}{{n:04}}"));
    let spec = TagSpec { reset: Some(period), text, ..TagSpec::default() };
    spec.record(Tag::parse("receipts").unwrap(), &KeyRing::default()).unwrap()
}

/// A replica was promoted before it had received the guard's table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_was_on_is_not_turned_off_by_a_table_that_is_gone() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        next(&*store.store).await;
        server.sql("DROP TABLE leaf_guard").await;
        for _ in 0..3 {
            let granted = store.store.allocate(&orders(), step(10), step(10).into()).await;
            let error = granted.expect_err("ids are granted without the guard that was on");
            assert!(error.to_string().contains("leaf-server schema --apply"), "{error}");
        }

        assert_eq!(store.admin.apply().await.unwrap(), ["leaf_guard"]);
        next(&*store.store).await;
    }
}

/// A jump beyond the last id exhausts the tag. It neither wraps nor leaves the tag where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_beyond_the_last_id_uses_the_tag_up() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1000)).await;
        create(&store).await;
        let last = Tag::parse("last").unwrap();
        let new = NewTag { max_id: i64::MAX - 500, ..NewTag::new(last.clone(), step(10)) };
        store.store.create(&new).await.unwrap();
        assert_eq!(next(&*store.store).await.start(), 1);
        server.another_server().await;

        assert_eq!(next(&*store.store).await.start(), 1011);
        let error = store.store.allocate(&last, step(10), step(10).into()).await.unwrap_err();
        assert_eq!(*error.kind(), leaf_segment::StoreErrorKind::Exhausted);
        let record = store.store.tag(&last).await.unwrap().unwrap();
        assert_eq!(record.max_id, i64::MAX - 1, "not a sealed tag's");
    }
}

/// The replica may lack even the name of the server that allocated first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_was_lost_is_another_name() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        assert_eq!(next(&*store.store).await.start(), 1, "whoever makes the table does not jump");

        for lost in ["UPDATE leaf_guard SET server_uid = ''", "DELETE FROM leaf_guard"] {
            let before = next(&*store.store).await;
            server.sql(lost).await;
            let after = next(&*store.store).await;
            assert_eq!(after.start(), before.end() + 1_000_000, "{lost}");
        }
    }
}

/// The guard's table was lost, and with it the name of the last server. When the table is made
/// again, tags must jump.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_is_made_beside_used_tables_makes_tags_jump() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        assert_eq!(next(&*store.store).await.start(), 1);
        store.store.close().await;
        server.sql("DROP TABLE leaf_guard").await;

        let fresh = open(&server.url(), Some(1_000_000)).await;
        assert_eq!(fresh.admin.apply().await.unwrap(), ["leaf_guard"]);
        assert_eq!(next(&*fresh.store).await.start(), 1_000_011, "ids that were lost come again");
    }
}

/// G-25: ids are given back after a failover, before anybody has allocated. The replica may lack
/// later ranges that the old server granted to other nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_given_back_to_a_server_that_did_not_grant_it() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1000)).await;
        create(&store).await;
        // The replica has this one, and lacks another node's that came behind it.
        let granted = next(&*store.store).await;
        server.another_server().await;
        let unused = leaf_core::IdRange::new(granted.start() + 3, granted.end()).unwrap();
        assert!(!store.store.put_back(&orders(), unused).await.unwrap(), "the jump starts lower");
        assert_eq!(next(&*store.store).await.start(), granted.end() + 1000);
    }
}

/// A failover loses the record of a member, and the member is made again. It must not issue the ids
/// of the lost record: whoever makes it either is on the server that allocated last, or jumps
/// first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_a_failover_lost_is_made_behind_the_margin() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1000)).await;
        create(&store).await;
        let (family, lost) = (Tag::parse("chat/*").unwrap(), Tag::parse("chat/lost").unwrap());
        let (yearly, invoice) = (Tag::parse("inv/*").unwrap(), Tag::parse("inv/lost").unwrap());
        let admin = TagAdmin::new(&*store.store);
        let spec = |reset, step| TagSpec { family: true, step, reset, ..TagSpec::default() };
        let keys = KeyRing::default();
        let relaxed = spec(None, Some(step(10))).record(family.clone(), &keys).unwrap();
        admin.create(&relaxed).await.unwrap();
        let strict = spec(Some(Period::Yearly), None).record(yearly.clone(), &keys).unwrap();
        admin.create(&strict).await.unwrap();
        // The running year's numbers begin here.
        let day = Day { year: 2026, month: 1, day: 1 };
        let least = strict.meaning.reset.unwrap().join(day, 1).unwrap();
        let of_year = Expected { least, ..Expected::new(strict.step, strict.meaning) };
        let make = async |family: &Tag, member: &Tag| {
            let made = store.store.make_members(family, std::slice::from_ref(member)).await;
            made.unwrap().pop().unwrap().1.unwrap();
        };
        make(&family, &lost).await;
        make(&yearly, &invoice).await;
        let before = store.store.allocate(&lost, step(10), step(10).into()).await.unwrap();
        let number = store.store.allocate(&invoice, step(1), of_year).await.unwrap();
        assert_eq!((before.start(), number.start()), (1, least));

        server.another_server().await;
        for (table, tag) in [("leaf_alloc", &lost), ("leaf_sequence", &invoice)] {
            for table in [table, "leaf_tag_settings"] {
                server.sql(&format!("DELETE FROM {table} WHERE biz_tag = '{tag}'")).await;
            }
        }
        make(&family, &lost).await;
        make(&yearly, &invoice).await;
        let again = store.store.allocate(&lost, step(10), step(10).into()).await.unwrap();
        assert_eq!(again.start(), 1001);
        let again = store.store.allocate(&invoice, step(1), of_year).await.unwrap();
        let margin = strict.own_failover_margin().unwrap();
        assert_eq!(again.start(), least + margin, "it begins behind the margin");
    }
}

/// After a failover, new members of a family skip numbers, but only in the current period.
/// Otherwise a family would have no numbers left for new members after ten failovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_of_former_periods_cost_new_members_nothing() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1000)).await;
        create(&store).await;
        let family = Tag::parse("inv/*").unwrap();
        let spec =
            TagSpec { family: true, step: None, reset: Some(Period::Yearly), ..TagSpec::default() };
        let record = spec.record(family.clone(), &KeyRing::default()).unwrap();
        TagAdmin::new(&*store.store).create(&record).await.unwrap();
        let year = jiff::Timestamp::now().to_string()[..4].parse().unwrap();
        let first = |year| {
            let day = Day { year, month: 1, day: 1 };
            record.meaning.reset.unwrap().join(day, 1).unwrap()
        };
        let (least, margin) = (first(year), record.own_failover_margin().unwrap());
        let expected = Expected { least, ..Expected::new(record.step, record.meaning) };
        let begins = async |name: &str| {
            let member = Tag::parse(name).unwrap();
            let made = store.store.make_members(&family, std::slice::from_ref(&member)).await;
            made.unwrap().pop().unwrap().1.unwrap();
            store.store.allocate(&member, step(1), expected).await.unwrap().start() - least
        };
        // As if a year had passed, with more failovers.
        let passes = async |margins: i64| {
            let set = format!("max_id = {}, skip = skip + {}", first(year - 1), margins * margin);
            server.sql(&format!("UPDATE leaf_sequence SET {set} WHERE biz_tag = 'inv/*'")).await;
        };
        assert_eq!(begins("inv/a").await, 0);
        // Many failovers, the last members of which were made last year.
        passes(3).await;
        assert_eq!(begins("inv/b").await, 3 * margin, "they may have lost members of this year");
        passes(0).await;
        assert_eq!(begins("inv/c").await, 0);
        // Within a period they add up, once.
        server.another_server().await;
        assert_eq!(begins("inv/d").await, margin);
        assert_eq!(begins("inv/e").await, margin);
        passes(0).await;
        assert_eq!(begins("inv/f").await, 0);
    }
}

/// Of nodes with different margins any may be the one that jumps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_greatest_margin_of_any_node_counts() {
    for server in Server::both().await {
        let great = open(&server.url(), Some(1_000_000)).await;
        create(&great).await;
        let small = open(&server.url(), Some(1000)).await;
        assert_eq!(next(&*small.store).await.start(), 1);
        assert_eq!(next(&*great.store).await.start(), 11);
        // A replica may lack it: every node writes its own again when it reads the tags.
        server.sql("UPDATE leaf_guard SET server_uid = '0' WHERE id = 3").await;
        all_tags(&*small.store).await.unwrap();
        all_tags(&*great.store).await.unwrap();
        all_tags(&*small.store).await.unwrap();
        server.sql("UPDATE leaf_guard SET server_uid = 'another' WHERE id < 3").await;
        assert_eq!(next(&*small.store).await.start(), 1_000_021);
        // One that is smaller does not lower it.
        let smallest = open(&server.url(), Some(1)).await;
        server.sql("UPDATE leaf_guard SET server_uid = 'another' WHERE id < 3").await;
        assert_eq!(next(&*smallest.store).await.start(), 2_000_031);
    }
}

/// The two tables of tags have separate guards: a node that jumps with the tags of one table leaves
/// the tags of the other to a node that has the right to change them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequences_have_a_guard_of_their_own() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        let (turns, one) = (Tag::parse("turns").unwrap(), step(1));
        store.store.create(&NewTag::strict(turns.clone())).await.unwrap();
        let strict = NewTag::strict(turns.clone()).meaning;
        let expected = leaf_segment::store::Expected::new(one, strict);
        let take = async || store.store.allocate(&turns, one, expected).await.unwrap().start();
        assert_eq!((take().await, next(&*store.store).await.start()), (1, 1));

        server.another_server().await;
        assert_eq!(next(&*store.store).await.start(), 1_000_011);
        assert_eq!(store.store.tag(&turns).await.unwrap().unwrap().max_id, 2, "not yet");
        assert_eq!(take().await, 1_000_002);
        assert_eq!(take().await, 1_000_003, "it jumps once");
        assert_eq!(next(&*store.store).await.start(), 1_000_021, "and so do the plain tags");
    }
}

/// A jump by the usual margin would use up a small tag, or the numbers of a day and of the days
/// after it. Such a tag has a smaller margin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_leaves_a_small_tag_most_of_its_numbers() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        let daily = leaf_segment::admin::TagSpec {
            reset: Some(leaf_shape::Period::Daily),
            text: Some("{date:%Y%m%d}{n:05}".into()),
            ..leaf_segment::admin::TagSpec::default()
        };
        let daily =
            daily.record(Tag::parse("daily").unwrap(), &leaf_shape::keys::KeyRing::default());
        let turns = NewTag::strict(Tag::parse("turns").unwrap());
        for new in [daily.unwrap(), turns] {
            store.store.create(&new).await.unwrap();
            let (least, end) = (20_261_121 * 100_000 + 1, 20_261_122 * 100_000);
            let expected = leaf_segment::store::Expected {
                least,
                end,
                ..leaf_segment::store::Expected::new(step(1), new.meaning)
            };
            let take = async |end| {
                let expected = leaf_segment::store::Expected { end, ..expected };
                store.store.allocate(&new.tag, step(1), expected).await.unwrap().start() - least
            };
            assert_eq!(take(end).await, 0);
            server.another_server().await;
            let jump = if new.own_failover_margin().is_some() { 10_001 } else { 1_000_000 };
            assert_eq!(take(end * 2).await, 1 + jump, "{}", new.meaning.encode());
        }
    }
}

/// A failover may lose the beginning of a period. The node that begins the period again on the new
/// server skips the numbers that may have been granted in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_holds_for_a_period_whose_beginning_was_lost() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        let daily = resets(Period::Daily);
        store.store.create(&daily).await.unwrap();
        let take = async |day: i64, count: i64| {
            let (least, end) = (day * 10_000 + 1, (day + 1) * 10_000);
            let expected = leaf_segment::store::Expected::new(step(1), daily.meaning);
            let expected = leaf_segment::store::Expected { least, end, ..expected };
            let range = store.store.allocate(&daily.tag, step(count), expected).await.unwrap();
            (range.start() - least, range.len())
        };
        assert_eq!(take(20_261_121, 50).await, (0, 50));
        // The new server has not heard of the next day, of which the old one has granted some.
        server.another_server().await;
        assert_eq!(take(20_261_122, 50).await, (1001, 50), "as many as the margin are skipped");
        assert_eq!(take(20_261_122, 1).await, (1051, 1));
        assert_eq!(take(20_261_123, 5).await, (0, 5), "once");
        // A node whose clock is behind asks first: the skip waits for the new day all the same.
        server.another_server().await;
        assert_eq!(take(20_261_123, 1).await, (1006, 1));
        assert_eq!(take(20_261_124, 1).await, (1001, 1));
        assert_eq!(take(20_261_125, 1).await, (0, 1));
    }
}

/// A failover lost numbers of a later period, which a wrong clock had opened. A reopened tag does
/// not issue them when that period begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reopened_tag_leaves_out_what_a_failover_lost() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        let yearly = resets(Period::Yearly);
        store.store.create(&yearly).await.unwrap();
        let of_2099 = Expected {
            least: 20_990_001,
            end: 21_000_000,
            ..Expected::new(step(1), yearly.meaning)
        };
        let lost = store.store.allocate(&yearly.tag, step(300), of_2099).await.unwrap();
        // The new server has not heard of the last 50 numbers.
        let set = "max_id = max_id - 50";
        server.sql(&format!("UPDATE leaf_sequence SET {set} WHERE biz_tag = 'receipts'")).await;
        server.another_server().await;

        let reopening = Reopening { first_taken: Some(2099), above: Some(0) };
        let admin = TagAdmin::new(&*store.store);
        let opened =
            admin.reopen(&yearly.tag, reopening, &SystemClock, Confirm::Yes).await.unwrap();

        let meaning = opened.meaning.unwrap();
        let reset = meaning.reset.unwrap();
        let take = async |year: u16| {
            let june = format!("{year}-06-01T12:00:00Z").parse::<jiff::Timestamp>().unwrap();
            let window = reset.window_at(UnixMillis::new(june.as_millisecond().cast_unsigned()));
            let expected = Expected::new(step(1), meaning);
            let expected = Expected { least: window.least, end: window.end, ..expected };
            store.store.allocate(&yearly.tag, step(1), expected).await.unwrap()
        };
        // The numbers that the guard leaves out at the next allocation are not those of 2099.
        let year = jiff::Timestamp::now().to_string()[..4].parse().unwrap();
        take(year).await;
        take(year + 1).await;
        let range = take(2099).await;
        let id = range.start() - reset.counter_offset();
        assert!(id >= lost.end(), "{id} may have been issued: {lost:?}");
    }
}

/// After a failover a tag moves to another store, before it has issued an id of the running period:
/// the record that moves is above all that the lost server may have granted of that period.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seal_leaves_out_what_a_failover_may_have_lost() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        let daily = resets(Period::Daily);
        store.store.create(&daily).await.unwrap();
        let today = daily.meaning.reset.unwrap().window_at(SystemClock.wall_millis());
        let set = format!("max_id = {}", today.least - 9_990);
        server.sql(&format!("UPDATE leaf_sequence SET {set} WHERE biz_tag = 'receipts'")).await;
        server.another_server().await;
        let generation = store.store.tag(&daily.tag).await.unwrap().unwrap().generation();
        let of_the_day_before = Expected {
            least: today.least - 9_999,
            end: today.least - 1,
            ..Expected::new(step(1), daily.meaning)
        };
        // The guard jumps at the first allocation from any tag of the table.
        store.store.allocate(&daily.tag, step(1), of_the_day_before).await.unwrap();

        let sealed = store.store.seal(&daily.tag, generation).await.unwrap();

        assert_eq!(sealed % 10_000, 1002);
    }
}

/// The table of sequences is created later than the guard's table. Nothing jumps, and a user with
/// few rights gets ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_of_a_new_table_begins_with_it() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        server.sql("DROP TABLE leaf_sequence").await;
        server.sql("DELETE FROM leaf_guard WHERE id = 2").await;
        assert_eq!(store.admin.apply().await.unwrap(), ["leaf_sequence"]);
        let turns = NewTag::strict(Tag::parse("turns").unwrap());
        store.store.create(&turns).await.unwrap();
        let expected = leaf_segment::store::Expected::new(step(1), turns.meaning);
        let range = store.store.allocate(&turns.tag, step(1), expected).await.unwrap();
        assert_eq!((range.start(), next(&*store.store).await.start()), (1, 1));
    }
}

/// The margin suits the usual steps. A tag with a greater step or `max_take` jumps by ten times
/// that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_covers_the_greatest_step() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1000)).await;
        create(&store).await;
        server.sql("UPDATE leaf_alloc SET step = 20000 WHERE biz_tag = 'leaf-segment-test'").await;
        server.another_server().await;
        assert_eq!(next(&*store.store).await.start(), 1001);
        let large = Tag::parse("leaf-segment-test").unwrap();
        assert_eq!(store.store.tag(&large).await.unwrap().unwrap().max_id, 200_001);

        let settings = leaf_segment::store::TagSettings {
            max_step: Some(step(3000)),
            max_take: Some(step(70_000)),
            ..leaf_segment::store::TagSettings::default()
        };
        store.store.set_settings(&orders(), &settings).await.unwrap();
        server.another_server().await;
        assert_eq!(next(&*store.store).await.start(), 1011 + 700_000);
    }
}

/// All tags of a node meet the failover at once. They jump once, and no caller gets the error that
/// the ids are used up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_meet_a_failover_jump_once() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        for round in 1..=5 {
            server.another_server().await;
            let mut callers = Vec::new();
            for _ in 0..32 {
                let store = Arc::clone(&store.store);
                callers.push(tokio::spawn(async move { next(&*store).await }));
            }
            for caller in callers {
                let range = caller.await.unwrap();
                let jumps = range.start() / 1_000_000;
                assert_eq!(jumps, round, "{range}");
            }
        }
    }
}

/// A user has only the rights that the Java Leaf needs; somebody else made the guard's table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_rights_are_enough() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        let user = server.user("few").await;

        // The table of ids alone.
        server.grant("SELECT, UPDATE", "leaf_alloc", &user).await;
        let few = open(&user.url, Some(1_000_000)).await;
        assert_eq!(next(&*few.store).await.start(), 1);
        assert_eq!(all_tags(&*few.store).await.unwrap().len(), 2);
        assert!(few.store.tag(&orders()).await.unwrap().is_some());
        let risks = few.admin.risks().await.unwrap();
        assert!(risks.iter().any(|risk| risk.contains("leaf_guard")), "{risks:?}");

        // And the guard's.
        server.grant("SELECT, UPDATE", "leaf_guard", &user).await;
        let few = open(&user.url, Some(1_000_000)).await;
        assert_eq!(next(&*few.store).await.start(), 11);
        server.another_server().await;
        assert_eq!(next(&*few.store).await.start(), 1_000_021);

        // Whoever may not reserve the name in the other table makes no tag.
        server.grant("INSERT", "leaf_alloc", &user).await;
        let new = NewTag::new(Tag::parse("more").unwrap(), step(10));
        let refused = few.store.create(&new).await.unwrap_err();
        assert!(refused.to_string().contains("grant INSERT and DELETE on it"), "{refused}");
        assert!(store.store.tag(&new.tag).await.unwrap().is_none());
        server.drop_user(user).await;
    }
}

/// A seal cannot be taken back: a tag that the user may not delete, or whose end nothing would
/// keep, goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_that_cannot_be_deleted_is_not_sealed() {
    for server in Server::both().await {
        let all = open(&server.url(), None).await;
        create(&all).await;
        let user = server.user("half").await;
        let few = open(&user.url, None).await;
        let refused = async |right: &str, table: &str| {
            server.grant(right, table, &user).await;
            let refused = TagAdmin::new(&*few.store).delete(&orders(), Confirm::Yes).await;
            assert!(
                matches!(refused, Err(TagAdminError::Store(_))),
                "{right} {table}: {refused:?}"
            );
            next(&*all.store).await
        };

        // A Java Leaf's rights, then all in its table, then all but the last.
        refused("SELECT, UPDATE", "leaf_alloc").await;
        refused("INSERT, DELETE", "leaf_alloc").await;
        refused("SELECT", "leaf_tag_settings").await;
        refused("INSERT", "leaf_tag_settings").await;
        server.revoke("DELETE", "leaf_alloc", &user).await;
        let last = refused("UPDATE, DELETE", "leaf_tag_settings").await;

        server.grant("DELETE", "leaf_alloc", &user).await;
        let deleted = TagAdmin::new(&*few.store).delete(&orders(), Confirm::Yes).await.unwrap();
        assert_eq!(deleted.ended.unwrap().next, last.end());
        assert_eq!(all.store.ended(&orders()).await.unwrap(), deleted.ended);
        server.drop_user(user).await;
    }
}

/// A node has read tags of other kinds, and then loses the right to read them. It must not take
/// them for deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_do_not_go_with_the_right_to_read_them() {
    for server in Server::both().await {
        let all = open(&server.url(), None).await;
        create(&all).await;
        all.store.create(&NewTag::strict(Tag::parse("turns").unwrap())).await.unwrap();
        let few = server.user("lost").await;
        server.grant("SELECT", "leaf_alloc", &few).await;
        server.grant("SELECT", "leaf_sequence", &few).await;
        server.grant("SELECT", "leaf_tag_settings", &few).await;
        let store = open(&few.url, None).await;
        assert_eq!(all_tags(&*store.store).await.unwrap().len(), 3);

        server.revoke("SELECT", "leaf_sequence", &few).await;

        let refused = all_tags(&*store.store).await.unwrap_err().to_string();
        assert!(refused.contains("leaf_sequence"), "{refused}");
        store.store.tag(&Tag::parse("turns").unwrap()).await.unwrap_err();
        // Whoever has never read one has plain tags only.
        server.revoke("SELECT", "leaf_tag_settings", &few).await;
        assert_eq!(all_tags(&*open(&few.url, None).await.store).await.unwrap().len(), 2);
        server.drop_user(few).await;
    }
}

/// A server whose name the user may not read cannot be guarded. Ids flow, and an operator gets a
/// warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_name_is_a_risk_that_is_told() {
    let [_, server] = Server::both().await;
    let store = open(&server.url(), Some(1_000_000)).await;
    create(&store).await;
    let few = server.user("nameless").await;
    server.grant("SELECT, UPDATE", "leaf_alloc", &few).await;
    server.grant("SELECT, UPDATE", "leaf_guard", &few).await;
    server.sql("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC").await;

    let store = open(&few.url, Some(1_000_000)).await;

    assert_eq!(next(&*store.store).await.start(), 1);
    let risks = store.admin.risks().await.unwrap();
    assert!(risks.iter().any(|risk| risk.contains("its identity")), "{risks:?}");
    server.drop_user(few).await;
}

/// An import into a database that has failed over, from which nobody has allocated since, is
/// refused while the tag still serves in its old store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_that_the_guard_refuses_seals_nothing() {
    let servers = Server::both().await;
    for (new, old) in [(&servers[0], &servers[1]), (&servers[1], &servers[0])] {
        let (from, to) = (open(&old.url(), None).await, open(&new.url(), Some(1_000_000)).await);
        from.admin.apply().await.unwrap();
        to.admin.apply().await.unwrap();
        let tag = Tag::parse(if old.is_mysql() { "invoices" } else { "receipts" }).unwrap();
        from.store.create(&NewTag::new(tag.clone(), step(10))).await.unwrap();
        to.store.create(&NewTag::new(orders(), step(10))).await.unwrap();
        new.another_server().await;

        let import = async || leaf_registry::import(&tag, &*from.store, &*to.store, 0).await;
        let refused = import().await.unwrap_err().to_string();

        assert!(refused.contains("the new store: its database has failed over"), "{refused}");
        from.store.allocate(&tag, step(10), step(10).into()).await.unwrap();
        next(&*to.store).await;
        assert_eq!(import().await.unwrap(), 11, "once a node has allocated");
        to.store.remove(&orders()).await.unwrap();
    }
}

/// The guard works as before after somebody converts the schema's collations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_holds_whatever_its_collation() {
    let [server, _] = Server::both().await;
    let store = open(&server.url(), Some(1_000_000)).await;
    create(&store).await;
    for collation in ["utf8mb4_unicode_ci", "utf8mb4_general_ci", "utf8mb4_bin"] {
        let before = next(&*store.store).await;
        let table = "ALTER TABLE leaf_guard CONVERT TO CHARACTER SET utf8mb4 COLLATE";
        server.sql(&format!("{table} {collation}")).await;
        assert_eq!(next(&*store.store).await.start(), before.end(), "{collation}");
    }
}

/// A tag is deleted, and made again with the first id that the deletion named as safe. Then a
/// failover leads to a copy from before the deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_made_again_does_not_start_where_a_failover_lands() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(10_000_000)).await;
        create(&store).await;
        let mut ranges = Vec::new();
        for _ in 0..35 {
            ranges.push(next(&*store.store).await);
        }
        let admin = leaf_segment::admin::TagAdmin::new(&*store.store);
        let deleted = admin.delete(&orders(), Confirm::Yes).await.unwrap();
        let first = deleted.ended.unwrap().next;
        admin.create(&NewTag { max_id: first, ..NewTag::new(orders(), step(10)) }).await.unwrap();
        for _ in 0..24 {
            ranges.push(next(&*store.store).await);
        }

        server.sql("UPDATE leaf_alloc SET max_id = 351 WHERE biz_tag = 'orders'").await;
        server.another_server().await;
        for _ in 0..24 {
            ranges.push(next(&*store.store).await);
        }

        assert!(!crate::support::overlaps(&mut ranges), "granted twice: {ranges:?}");
    }
}
