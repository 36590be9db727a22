//! Settings of the databases, and imports from one database to another.

use std::sync::Arc;

use leaf_segment::admin::{Confirm, TagAdmin, TagSpec};
use leaf_segment::store::Expected;
use leaf_segment::{NewTag, StoreErrorKind, TagStore};
use leaf_shape::keys::KeyRing;
use leaf_testkit::MariaDb;

use tokio::net::{TcpListener, TcpStream};

use leaf_testkit::all_tags;

use crate::families::specs;
use crate::fixture::{Database, fixture, mysql, open, postgres, sqlite};
use crate::{create, refusal, step, tag, tags_are_compared_as_bytes};

/// Tables that others made, with other character sets and collations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_are_compared_as_bytes_whatever_the_columns_collation() {
    for change in [
        "ALTER TABLE leaf_alloc CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "ALTER TABLE leaf_alloc CONVERT TO CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci",
        "ALTER TABLE leaf_alloc CONVERT TO CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    ] {
        let f = mysql().await;
        f.sql(change).await;
        let Database::Mysql(server, _) = &f.database else { panic!("mysql") };
        let _alive = Arc::clone(server);
        create(&*f.store, "é", 10).await;
        let store = Arc::clone(&f.store);
        tags_are_compared_as_bytes(f).await;

        let range = store.allocate(&tag("é"), step(10), step(10).into()).await.unwrap();
        assert_eq!(range.start(), 1, "{change}");
        assert_eq!(store.tag(&tag("🍃")).await.unwrap(), None, "{change}");
        let found = store.records(&[tag("É"), tag("🍃"), tag("é")]).await.unwrap();
        let found: Vec<_> = found.iter().map(|record| record.tag.as_str()).collect();
        assert_eq!(found, ["é"], "{change}");
        assert!(all_tags(&*store).await.unwrap().len() > 1, "{change}");
        let kind = refusal(store.allocate(&tag("🍃"), step(10), step(10).into())).await;
        assert_eq!(kind, StoreErrorKind::UnknownTag, "{change}");
        // A tag of the other table, whose name the column cannot hold.
        store.create(&NewTag::strict(tag("🍃"))).await.unwrap();
        TagAdmin::new(&*store).delete(&tag("🍃"), Confirm::Yes).await.unwrap();
    }
}

/// If a collation treats two names as equal, only one of them becomes a member. The other members
/// of the same request are still made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_made_whatever_the_columns_collation() {
    for change in [
        "ALTER TABLE leaf_alloc CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "ALTER TABLE leaf_alloc CONVERT TO CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    ] {
        let f = mysql().await;
        f.sql(change).await;
        let spec = TagSpec { step: Some(step(10)), family: true, ..TagSpec::default() };
        let family = spec.record(tag("ché%_/*"), &KeyRing::default()).unwrap();
        f.store.create(&family).await.unwrap();
        let names = ["ché%_/A", "ché%_/b", "ché%_/a", "ché%_/c"].map(tag);
        let made = f.store.make_members(&family.tag, &names).await.unwrap();
        let made: Vec<_> = made.into_iter().map(|(_, made)| made.map(|it| it.tag)).collect();
        let [a, b, other, c] = &made[..] else { panic!("{made:?}") };
        assert_eq!((a, b, c), (&Ok(tag("ché%_/A")), &Ok(tag("ché%_/b")), &Ok(tag("ché%_/c"))));
        assert_eq!(other, &Err(StoreErrorKind::TagExists), "{change}");
        let record = f.store.tag(&family.tag).await.unwrap().unwrap();
        assert_eq!(record.settings.unwrap().family.unwrap().members, 3, "{change}");
        let page = f.store.page(None, "ché%_/", 10).await.unwrap();
        assert_eq!(page.records.len(), 4, "{change}: three members, and the family");
        let again = f.store.make_members(&family.tag, &names[2..3]).await.unwrap();
        assert_eq!(again[0].1, Err(StoreErrorKind::TagExists));
    }
}

/// The nodes of a new cluster all make the tables before they start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_several_make_at_once_is_made_once() {
    let fixtures = [mysql().await, postgres().await, sqlite().await];
    // Several rounds: what each meets of the others is left to chance.
    for f in fixtures.iter().cycle().take(24) {
        let database = match &f.database {
            Database::Mysql(server, _) => {
                Database::Mysql(Arc::clone(server), server.new_database())
            }
            Database::Postgres(server, _) => {
                Database::Postgres(Arc::clone(server), server.new_database())
            }
            _ => Database::Sqlite(Arc::new(tempfile::tempdir().unwrap())),
        };
        let url = database.url(database.port());
        let mut applying = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let store = open(&url).await;
            applying.spawn(async move { store.admin.apply().await.unwrap() });
        }
        let mut made = applying.join_all().await.concat();
        made.sort_unstable();
        let store = open(&url).await;
        let mut tables: Vec<_> = store.admin.tables().iter().map(|table| table.name).collect();
        tables.sort_unstable();
        assert_eq!(made, tables, "{url}");

        // The guard knows its server: nothing jumps.
        let stock = tag("orders");
        store.store.create(&NewTag::new(stock.clone(), step(2000))).await.unwrap();
        let range = store.store.allocate(&stock, step(10), step(2000).into()).await.unwrap();
        assert_eq!(range.start(), 1, "{url}");
    }
}

/// In PostgreSQL, types and tables share one namespace, because each table has a row type.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_with_a_tables_name_is_no_table() {
    let f = postgres().await;
    f.sql("DROP TABLE leaf_sequence; CREATE TYPE leaf_sequence AS ENUM ()").await;

    let error = f.open.admin.apply().await.unwrap_err();
    assert_eq!(*error.kind(), StoreErrorKind::Refused, "{error}");
    f.sql("DROP TYPE leaf_sequence").await;
    assert_eq!(f.open.admin.apply().await.unwrap(), ["leaf_sequence"]);
}

/// G-10: with a column that is too narrow, a server without strict mode would store less than was
/// granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_narrow_column_is_exhausted_not_saturated() {
    // A server of its own: what is set there holds for all.
    let server = tokio::task::spawn_blocking(MariaDb::start).await.unwrap();
    let database = server.new_database();
    server.sql("SET GLOBAL sql_mode = ''");
    let f = fixture(Database::Mysql(Arc::new(server), database)).await;
    f.sql("ALTER TABLE leaf_alloc MODIFY max_id INT NOT NULL").await;
    f.sql("UPDATE leaf_alloc SET max_id = 2147483640").await;
    let store = f.another().await;

    let kind =
        refusal(store.allocate(&tag("leaf-segment-test"), step(10), step(2000).into())).await;

    assert_eq!(kind, StoreErrorKind::Exhausted);
}

/// A server may treat '' as NULL, or compute all assignments of an UPDATE from the old values. An
/// allocation must still end the `skip` of a period.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_modes_change_nothing() {
    let server = Arc::new(tokio::task::spawn_blocking(MariaDb::start).await.unwrap());
    for mode in [
        "SIMULTANEOUS_ASSIGNMENT",
        "EMPTY_STRING_IS_NULL",
        "ORACLE",
        "ANSI_QUOTES,NO_BACKSLASH_ESCAPES",
        "EMPTY_STRING_IS_NULL,ORACLE,SIMULTANEOUS_ASSIGNMENT",
    ] {
        let database = server.new_database();
        server.sql(&format!("SET GLOBAL sql_mode = '{mode}'"));
        let f = fixture(Database::Mysql(Arc::clone(&server), database)).await;
        f.store.create(&NewTag::strict(tag("turns"))).await.unwrap();
        f.sql("UPDATE leaf_sequence SET skip = 5").await;
        let store = f.another().await;
        let take = async |least| {
            let expected = Expected::new(step(1), NewTag::strict(tag("turns")).meaning);
            let expected = Expected { least, ..expected };
            store.allocate(&tag("turns"), step(1), expected).await.unwrap().start()
        };

        assert_eq!(take(1000).await, 1005, "{mode}: after the jump");
        assert_eq!(take(2000).await, 2000, "{mode}: the next period begins at its beginning");
        create(&*store, r"a\'b", 10).await;
        let range = store.allocate(&tag(r"a\'b"), step(10), step(10).into()).await.unwrap();
        assert_eq!(range.start(), 1, "{mode}");
        for (name, spec) in specs() {
            let family = spec.record(name.clone(), &KeyRing::default()).unwrap();
            store.create(&family).await.unwrap();
            let members = ["a", "b"].map(|it| tag(&name.as_str().replace('*', it)));
            let made = store.make_members(&name, &members).await.unwrap();
            assert!(made.iter().all(|(_, made)| made.is_ok()), "{mode}: {made:?}");
        }
    }
}

/// G-16: a tag moves between real databases while nodes allocate from both, with various amounts.
/// The old database grants no id at or above the first of the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_under_load_repeats_nothing() {
    let (from, to) = (mysql().await, postgres().await);
    create(&*from.store, "orders", 10).await;
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let node = |store: &Arc<dyn TagStore>, amount: i64| {
        let (store, done) = (Arc::clone(store), Arc::clone(&done));
        tokio::spawn(async move {
            let (orders, mut ranges) = (tag("orders"), Vec::new());
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                let asked = store.allocate(&orders, step(amount), step(10).into());
                match tokio::time::timeout(std::time::Duration::from_secs(10), asked).await.unwrap()
                {
                    Ok(range) => ranges.push(range),
                    Err(error) => {
                        use StoreErrorKind::{Moved, Unavailable, UnknownTag};
                        let known = matches!(error.kind(), Moved | Unavailable | UnknownTag);
                        assert!(known, "{error}");
                    }
                }
            }
            ranges
        })
    };
    let nodes: Vec<_> = [(&from, 10), (&from, 50_000_000), (&to, 10), (&to, 1000)]
        .map(|(f, amount)| node(&f.store, amount))
        .into();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;

    let first = leaf_registry::import(&tag("orders"), &*from.store, &*to.store, 0).await.unwrap();

    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    done.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut ranges = Vec::new();
    for (number, node) in nodes.into_iter().enumerate() {
        let own = node.await.unwrap();
        assert!(!own.is_empty(), "node {number} was granted something");
        assert!(own.iter().all(|range| (range.start() >= first) == (number >= 2)), "{own:?}");
        ranges.extend(own);
    }
    ranges.sort_by_key(|range| range.start());
    assert!(ranges.windows(2).all(|pair| !pair[0].overlaps(pair[1])));
}

/// S-22: a trigger changes the answer that an allocation gets. The doctor names the trigger, and a
/// wrong answer never becomes a range.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn triggers_are_named_and_change_nothing() {
    let f = crate::mysql().await;
    create(&*f.store, "orders", 10).await;
    f.sql("CREATE TABLE audit (n BIGINT AUTO_INCREMENT PRIMARY KEY) AUTO_INCREMENT = 7000000")
        .await;
    assert_eq!(f.open.admin.risks().await.unwrap(), [""; 0]);
    let mut least = 1;
    for act in [
        "SET @n = LAST_INSERT_ID(0)",
        "SET @n = LAST_INSERT_ID(5000000)",
        "INSERT INTO audit VALUES ()",
    ] {
        f.sql(&format!("CREATE TRIGGER counts AFTER UPDATE ON leaf_alloc FOR EACH ROW {act}"))
            .await;
        let risks = f.open.admin.risks().await.unwrap();
        assert!(risks.len() == 1 && risks[0].contains("the trigger counts"), "{risks:?}");
        for _ in 0..2 {
            let granted = f.store.allocate(&tag("orders"), step(10), step(10).into()).await;
            println!("{act}: {granted:?}");
            let now = f.store.tag(&tag("orders")).await.unwrap().unwrap().max_id;
            if let Ok(range) = granted {
                assert_eq!((range.start() >= least, range.end()), (true, now), "{act}");
            }
            least = now;
        }
        f.sql("DROP TRIGGER counts").await;
    }
}

/// The error says why no connection can be made, with the address, and not only that the wait was
/// too long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_keeps_a_connection_away_is_told() {
    let closed = leaf_testkit::free_port();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_at = silent.local_addr().unwrap().port();
    for scheme in ["mysql", "postgres", "etcd"] {
        let login = if scheme == "etcd" { "" } else { "u:canary@" };
        let told = async |at: &str| {
            let store = open(&format!("{scheme}://{login}{at}/d")).await.store;
            let error = store.tag(&tag("orders")).await.unwrap_err();
            assert_eq!(*error.kind(), StoreErrorKind::Unavailable, "{error}");
            let text = error.to_string();
            assert!(!text.contains("canary") && !text.contains("Error("), "{text}");
            text
        };
        let refused = told(&format!("127.0.0.1:{closed}")).await;
        assert!(refused.contains("connection refused: "), "{refused}");
        assert!(refused.contains(&format!("127.0.0.1:{closed}")), "{refused}");
        let nobody = told("no-such-host.invalid:3306").await;
        assert!(nobody.contains("lookup") || nobody.contains("not known"), "{nobody}");
        if scheme != "etcd" {
            assert!(refused.contains(&format!("127.0.0.1:{closed}")), "{refused}");
            let waits = told(&format!("127.0.0.1:{silent_at}")).await;
            assert!(waits.contains("accepts connections, and none was ready"), "{waits}");
        }
    }
}

/// An address of IPv6 in a URL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_reached_over_ipv6() {
    for f in [mysql().await, postgres().await] {
        let port = f.database.port();
        let listener = TcpListener::bind("[::1]:0").await.unwrap();
        let at = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        let url =
            f.database.url(port).replace(&format!("127.0.0.1:{port}"), &format!("[::1]:{at}"));
        assert!(url.contains("[::1]"), "{url}");
        let store = open(&url).await.store;
        assert!(store.tag(&tag("leaf-segment-test")).await.unwrap().is_some());
    }
}
