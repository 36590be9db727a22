//! Failovers of the other stores: PostgreSQL by the guard, Galera and etcd by their quorum.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leaf_core::{IdRange, Step, Tag};
use leaf_registry::{OpenStore, StoreOptions, StoreUrl};
use leaf_segment::{NewTag, SegmentStore};
use leaf_testkit::{Etcd, FaultProxy, Galera, MariaDb, Postgres};
use tokio::task::spawn_blocking;

fn orders() -> Tag {
    Tag::parse("orders").unwrap()
}

fn step(size: i64) -> Step {
    Step::new(size).unwrap()
}

async fn open(url: &str, failover_margin: Option<i64>) -> OpenStore {
    let url: StoreUrl = url.parse().unwrap();
    url.open(Path::new("."), &StoreOptions { failover_margin }).await.unwrap()
}

async fn create(store: &OpenStore) {
    store.admin.apply().await.unwrap();
    store.store.create(&NewTag::new(orders(), step(10))).await.unwrap();
}

/// The next range, however long it takes.
async fn next(store: &dyn SegmentStore) -> IdRange {
    loop {
        let tag = orders();
        let attempt = store.allocate(&tag, step(10), step(10));
        match tokio::time::timeout(Duration::from_secs(3), attempt).await {
            Ok(Ok(range)) => return range,
            Ok(Err(error)) => assert!(error.retryable(), "{error}"),
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn overlaps(ranges: &mut [IdRange]) -> bool {
    ranges.sort_by_key(|range| range.start());
    ranges.windows(2).any(|pair| pair[0].overlaps(pair[1]))
}

/// G-03 on PostgreSQL: an asynchronous replica that lacks the last allocations is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_postgres_replica_jumps_ahead_once() {
    for guard in [true, false] {
        let primary = spawn_blocking(Postgres::start).await.unwrap();
        let database = primary.new_database();
        let proxy = FaultProxy::start(([127, 0, 0, 1], primary.port()).into()).await;
        let url = Postgres::url(proxy.address().port(), &database);
        let store = open(&url, guard.then_some(1_000_000)).await;
        create(&store).await;
        let mut ranges = vec![next(&*store.store).await];
        let (primary, replica) = spawn_blocking(|| {
            let replica = primary.start_replica();
            replica.stop_following();
            (primary, replica)
        })
        .await
        .unwrap();
        for _ in 0..50 {
            ranges.push(next(&*store.store).await);
        }
        let (_primary, replica) = spawn_blocking(|| {
            primary.crash();
            replica.promote();
            (primary, replica)
        })
        .await
        .unwrap();
        proxy.point_to(([127, 0, 0, 1], replica.port()).into());

        let first = next(&*store.store).await;
        ranges.push(first);
        for _ in 0..5 {
            let range = next(&*store.store).await;
            assert_eq!(range.start(), ranges[ranges.len() - 1].end(), "it jumps once");
            ranges.push(range);
        }
        assert_eq!(overlaps(&mut ranges), !guard, "without the guard ids repeat");
        assert_eq!(first.start() > 1_000_000, guard, "{first}");
    }
}

/// A node that was started while its address led to the standby: its connections outlive the promotion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_met_the_standby_first_is_guarded_after_its_promotion() {
    let primary = spawn_blocking(Postgres::start).await.unwrap();
    let database = primary.new_database();
    let on_primary = open(&Postgres::url(primary.port(), &database), Some(1_000_000)).await;
    create(&on_primary).await;
    let before = next(&*on_primary.store).await;
    let (primary, replica) = spawn_blocking(|| {
        let replica = primary.start_replica();
        (primary, replica)
    })
    .await
    .unwrap();
    let on_replica = open(&Postgres::url(replica.port(), &database), Some(1_000_000)).await;
    assert_eq!(on_replica.store.tags().await.unwrap().len(), 2);
    let error = on_replica.store.allocate(&orders(), step(10), step(10)).await.unwrap_err();
    assert!(error.retryable(), "{error}");
    on_replica.store.tags().await.unwrap();

    let (_primary, _replica) = spawn_blocking(|| {
        primary.crash();
        replica.promote();
        (primary, replica)
    })
    .await
    .unwrap();
    assert_eq!(next(&*on_replica.store).await.start(), before.end() + 1_000_000);
}

/// A replica that was promoted before it got the guard's table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_was_on_is_not_turned_off_by_a_table_that_is_gone() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        next(&*store.store).await;
        server.sql("DROP TABLE leaf_guard").await;
        for _ in 0..3 {
            let error = store.store.allocate(&orders(), step(10), step(10)).await.unwrap_err();
            assert!(error.to_string().contains("leaf-server schema --apply"), "{error}");
        }

        assert_eq!(store.admin.apply().await.unwrap(), ["leaf_guard"]);
        next(&*store.store).await;
    }
}

/// The guard's row is the database's: a crash of the same server is no failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_same_server_jumps_nowhere() {
    let server = spawn_blocking(Postgres::start).await.unwrap();
    let postgres = open(&Postgres::url(server.port(), &server.new_database()), Some(1000)).await;
    create(&postgres).await;
    assert_eq!(next(&*postgres.store).await.start(), 1);
    let _server = spawn_blocking(move || {
        server.crash_and_restart();
        server
    })
    .await
    .unwrap();
    assert_eq!(next(&*postgres.store).await.start(), 11);

    let server = spawn_blocking(MariaDb::start).await.unwrap();
    let mysql = open(&MariaDb::url(server.port(), &server.new_database()), Some(1000)).await;
    create(&mysql).await;
    assert_eq!(next(&*mysql.store).await.start(), 1);
    let _server = spawn_blocking(move || {
        server.crash_and_restart();
        server
    })
    .await
    .unwrap();
    assert_eq!(next(&*mysql.store).await.start(), 11);
}

/// A tag near the end of the ids is used up by a jump: it never wraps, never stays behind.
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
        let error = store.store.allocate(&last, step(10), step(10)).await.unwrap_err();
        assert_eq!(*error.kind(), leaf_segment::StoreErrorKind::Exhausted);
        let record = store.store.tag(&last).await.unwrap().unwrap();
        assert_eq!(record.max_id, i64::MAX);
    }
}

/// A database on a server, with the means to change it behind the store's back.
enum Server {
    Mysql(Arc<MariaDb>, String),
    Postgres(Arc<Postgres>, String),
}

impl Server {
    async fn both() -> [Self; 2] {
        let mysql = spawn_blocking(MariaDb::shared).await.unwrap();
        let postgres = spawn_blocking(Postgres::shared).await.unwrap();
        let (in_mysql, in_postgres) = (mysql.new_database(), postgres.new_database());
        [Self::Mysql(mysql, in_mysql), Self::Postgres(postgres, in_postgres)]
    }

    fn url(&self) -> String {
        match self {
            Self::Mysql(server, database) => MariaDb::url(server.port(), database),
            Self::Postgres(server, database) => Postgres::url(server.port(), database),
        }
    }

    /// Runs a statement as the administrator.
    async fn sql(&self, statement: &str) -> String {
        let statement = statement.to_owned();
        match self {
            Self::Mysql(server, database) => {
                let (server, database) = (Arc::clone(server), database.clone());
                let run = move || server.sql(&format!("USE {database}; {statement}"));
                spawn_blocking(run).await.unwrap()
            }
            Self::Postgres(server, database) => {
                let (server, database) = (Arc::clone(server), database.clone());
                spawn_blocking(move || server.sql(&database, &statement)).await.unwrap()
            }
        }
    }

    /// As if another server had allocated last.
    async fn another_server(&self) {
        self.sql("UPDATE leaf_guard SET server_uid = 'another'").await;
    }
}

/// The replica may not even have got the name of the first server.
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

/// The margin is chosen for the usual steps; a tag may have a greater one of its own.
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

        let settings = leaf_segment::TagSettings {
            max_step: Some(step(3000)),
            max_take: Some(step(70_000)),
            ..leaf_segment::TagSettings::default()
        };
        store.store.set_settings(&orders(), &settings).await.unwrap();
        server.another_server().await;
        assert_eq!(next(&*store.store).await.start(), 1011 + 700_000);
    }
}

/// All tags of a node meet the failover at once: one of them jumps, and none is told that its ids are
/// used up.
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

/// A user with the rights that the Java Leaf needs, and the guard made by somebody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_rights_are_enough() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        let (database, grants, url) = match &server {
            Server::Mysql(server, database) => {
                let user = format!("few_{database}");
                server.sql(&format!("CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'few'"));
                let url = MariaDb::url(server.port(), database);
                let user_at = format!("{user}@'127.0.0.1'");
                (format!("{database}."), user_at, url.replace("leaf:leaf", &format!("{user}:few")))
            }
            Server::Postgres(_, database) => {
                let user = format!("few_{database}");
                server.sql(&format!("CREATE USER {user} PASSWORD 'few'")).await;
                let url = server.url().replace("leaf:leaf", &format!("{user}:few"));
                (String::new(), user, url)
            }
        };

        // The table of ids alone.
        server.sql(&format!("GRANT SELECT, UPDATE ON {database}leaf_alloc TO {grants}")).await;
        let few = open(&url, Some(1_000_000)).await;
        assert_eq!(next(&*few.store).await.start(), 1);
        assert_eq!(few.store.tags().await.unwrap().len(), 2);
        assert!(few.store.tag(&orders()).await.unwrap().is_some());
        let risks = few.admin.risks().await.unwrap();
        assert!(risks.iter().any(|risk| risk.contains("leaf_guard")), "{risks:?}");

        // And the guard's.
        server.sql(&format!("GRANT SELECT, UPDATE ON {database}leaf_guard TO {grants}")).await;
        let few = open(&url, Some(1_000_000)).await;
        assert_eq!(next(&*few.store).await.start(), 11);
        server.another_server().await;
        assert_eq!(next(&*few.store).await.start(), 1_000_021);
        if let Server::Mysql(server, _) = &server {
            server.sql(&format!("DROP USER {grants}"));
        }
    }
}

/// Whoever converts the schema's collations changes nothing.
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

/// Somebody left a transaction open on the row: who gave up does not go on waiting in the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_lock_uses_no_connections_up() {
    for server in Server::both().await {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        let mut holder = match &server {
            Server::Mysql(server, database) => std::process::Command::new("mariadb")
                .args(["--no-defaults", "--host=127.0.0.1", "--user=leaf", "--password=leaf"])
                .args([&format!("--port={}", server.port()), database])
                .args(["-e", "BEGIN; UPDATE leaf_alloc SET step = 10; SELECT SLEEP(60)"])
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn(),
            Server::Postgres(..) => std::process::Command::new("psql")
                .args([&server.url(), "-q", "-c"])
                .arg("BEGIN; UPDATE leaf_alloc SET step = 10; SELECT pg_sleep(60)")
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn(),
        }
        .unwrap();
        let sleeping = match &server {
            Server::Mysql(..) => {
                "SELECT COALESCE(MAX(id), 0) FROM information_schema.processlist \
                 WHERE db = DATABASE() AND info = 'SELECT SLEEP(60)'"
            }
            Server::Postgres(..) => {
                "SELECT coalesce(max(pid), 0) FROM pg_stat_activity \
                 WHERE datname = current_database() AND wait_event = 'PgSleep'"
            }
        };
        let holds = loop {
            let id = server.sql(sleeping).await;
            if id != "0" {
                break id;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        for _ in 0..3 {
            let name = orders();
            let attempt = store.store.allocate(&name, step(10), step(10));
            let attempt = tokio::time::timeout(Duration::from_millis(300), attempt).await;
            assert!(attempt.is_err(), "the row is locked: {attempt:?}");
        }
        // Those whose callers have left end by themselves.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let waiting = match &server {
            Server::Mysql(..) => {
                "SELECT COUNT(*) FROM information_schema.innodb_trx t \
                 JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
                 WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()"
            }
            Server::Postgres(..) => {
                "SELECT count(*) FROM pg_stat_activity \
                 WHERE datname = current_database() AND wait_event_type = 'Lock'"
            }
        };
        assert_eq!(server.sql(waiting).await, "0");
        match &server {
            Server::Mysql(..) => server.sql(&format!("KILL {holds}")).await,
            Server::Postgres(..) => {
                server.sql(&format!("SELECT pg_terminate_backend({holds})")).await
            }
        };
        holder.wait().unwrap();
        assert_eq!(next(&*store.store).await.start(), 1, "none of them was carried out later");
    }
}

/// G-15: a server that becomes read-only is a failure that passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_is_waited_for() {
    let mysql = Arc::new(spawn_blocking(MariaDb::start).await.unwrap());
    let postgres = Arc::new(spawn_blocking(Postgres::start).await.unwrap());
    let (in_mysql, in_postgres) = (mysql.new_database(), postgres.new_database());
    let off_and_on = |name: &str| {
        [
            ["SET GLOBAL read_only = 1".to_owned(), "SET GLOBAL read_only = 0".to_owned()],
            ["on", "off"].map(|value| {
                format!("ALTER DATABASE {name} SET default_transaction_read_only = {value}")
            }),
        ]
    };
    let statements = off_and_on(&in_postgres);
    for (server, statements) in
        [Server::Mysql(mysql, in_mysql), Server::Postgres(postgres, in_postgres)]
            .iter()
            .zip(statements)
    {
        let store = open(&server.url(), Some(1_000_000)).await;
        create(&store).await;
        assert_eq!(next(&*store.store).await.start(), 1);
        // Whoever sets PostgreSQL's must not be bound by it: a session of its own undoes it.
        server.sql(&statements[0]).await;
        let fresh = open(&server.url(), Some(1_000_000)).await;
        for store in [&store, &fresh] {
            let name = orders();
            let attempt = store.store.allocate(&name, step(10), step(10)).await;
            if let Err(error) = attempt {
                assert!(error.retryable(), "{error}");
            }
        }
        let error = fresh.store.allocate(&orders(), step(10), step(10)).await.unwrap_err();
        assert!(error.retryable(), "{error}");

        match server {
            Server::Mysql(..) => server.sql(&statements[1]).await,
            Server::Postgres(server, _) => {
                let (server, statement) = (Arc::clone(server), statements[1].clone());
                spawn_blocking(move || server.sql("postgres", &statement)).await.unwrap()
            }
        };
        next(&*fresh.store).await;
    }
}

/// G-06: connections are killed all the time, between statements and in them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_yield_no_foreign_range() {
    let server = spawn_blocking(MariaDb::start).await.unwrap();
    let database = server.new_database();
    let server = Server::Mysql(Arc::new(server), database);
    let url = server.url();
    create(&open(&url, Some(1_000_000)).await).await;
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(open(&url, Some(1_000_000)).await.store);
    }
    let stop = load(&stores);
    for _ in 0..20 {
        server.sql("KILL USER leaf@'127.0.0.1'").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let after = next(&*stores[0]).await;
    let mut ranges = stop().await;
    ranges.push(after);

    assert!(ranges.len() > 20, "{}", ranges.len());
    assert!(!overlaps(&mut ranges));
}

/// Allocates on several stores at once until told to stop.
fn load(stores: &[Arc<dyn SegmentStore>]) -> impl AsyncFnOnce() -> Vec<IdRange> + use<> {
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = stores
        .iter()
        .map(|store| {
            let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut ranges = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let tag = orders();
                    let attempt = store.allocate(&tag, step(10), step(10));
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
            })
        })
        .collect();
    async move || {
        stop.store(true, Ordering::SeqCst);
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        all
    }
}

/// G-03 and G-14 on Galera: no guard, a node killed under load, deadlocks retried as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn galera_needs_no_guard() {
    let cluster = Arc::new(spawn_blocking(Galera::start).await.unwrap());
    let database = cluster.new_database();
    // The guard is wanted, sees that nodes certify each other's writes, and stays off.
    let urls: Vec<_> = cluster.ports().iter().map(|port| MariaDb::url(*port, &database)).collect();
    create(&open(&urls[0], Some(1_000_000)).await).await;
    let mut stores = Vec::new();
    for url in urls.iter().chain(&urls) {
        stores.push(open(url, Some(1_000_000)).await.store);
    }
    let stop = load(&stores);

    tokio::time::sleep(Duration::from_secs(1)).await;
    let killed = Arc::clone(&cluster);
    spawn_blocking(move || killed.crash(0)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The others notice and go on.
    let after = next(&*stores[1]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut ranges = stop().await;
    ranges.push(after);

    assert!(ranges.len() > 50, "{}", ranges.len());
    assert!(!overlaps(&mut ranges));
    let last = ranges.last().unwrap().end();
    assert!(last < 1_000_000, "nothing jumped: {last}");
}

/// G-03 on etcd: the leader of three members is killed under load, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_needs_no_guard() {
    let cluster = Arc::new(spawn_blocking(|| Etcd::start(3)).await.unwrap());
    let url = Etcd::url(&cluster.ports(), "leaf");
    create(&open(&url, None).await).await;
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(open(&url, None).await.store);
    }
    let stop = load(&stores);

    let mut after = Vec::new();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let killed = Arc::clone(&cluster);
        let member = spawn_blocking(move || killed.crash_leader()).await.unwrap();
        let outage = tokio::time::Instant::now();
        after.push(next(&*stores[0]).await);
        println!("a range {:?} after the leader was killed", outage.elapsed());
        cluster.start_again(member);
        tokio::time::sleep(Duration::from_millis(1000)).await;
    }
    let mut ranges = stop().await;
    ranges.extend(after);

    assert!(ranges.len() > 50, "{}", ranges.len());
    assert!(!overlaps(&mut ranges));
}
