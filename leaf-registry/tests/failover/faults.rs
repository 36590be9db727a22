//! What a database does to its clients without failing over: locks, read-only, killed connections.

use std::sync::Arc;
use std::time::Duration;

use leaf_testkit::{MariaDb, Postgres};
use tokio::task::spawn_blocking;

use crate::support::{Server, create, load, next, open, orders, overlaps, step};

/// Somebody left a transaction open that locks the row. A statement whose caller has given up must
/// not go on waiting in the server.
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
            let attempt = store.store.allocate(&name, step(10), step(10).into());
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

/// G-15: a server that becomes read-only is a temporary failure.
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
            let attempt = store.store.allocate(&name, step(10), step(10).into()).await;
            if let Err(error) = attempt {
                assert!(error.retryable(), "{error}");
            }
        }
        let error = fresh.store.allocate(&orders(), step(10), step(10).into()).await.unwrap_err();
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
    // Connections did die, with allocations on them: some of those are gaps now.
    let aborted = server.sql("SHOW GLOBAL STATUS LIKE 'Aborted_clients'").await;
    let aborted: u64 = aborted.split_whitespace().last().unwrap().parse().unwrap();
    assert!(aborted > 20, "{aborted}");
}

/// G-15: a server becomes read-only under load, and later accepts writes again: that costs time,
/// but no ids are repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_read_only_for_a_while_costs_time() {
    let server = spawn_blocking(MariaDb::start).await.unwrap();
    let database = server.new_database();
    let server = Server::Mysql(Arc::new(server), database);
    create(&open(&server.url(), Some(1_000_000)).await).await;
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(open(&server.url(), Some(1_000_000)).await.store);
    }
    let stop = load(&stores);
    let mut between = Vec::new();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.sql("SET GLOBAL read_only = 1").await;
        let name = orders();
        let refused = stores[0].allocate(&name, step(10), step(10).into()).await.unwrap_err();
        assert!(refused.retryable(), "{refused}");
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.sql("SET GLOBAL read_only = 0").await;
        let asked = tokio::time::Instant::now();
        between.push(next(&*stores[0]).await);
        assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    }
    let mut ranges = stop().await;
    assert!(ranges.len() > 20, "{}", ranges.len());
    ranges.extend(between);
    assert!(!overlaps(&mut ranges));
}
