//! Against a real MariaDB: several servers and a Java node on one row, and a line that breaks.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_testkit::{
    Fault, FaultProxy, HttpClient, LeafServer, Ledger, Load, MariaDb, Plan, wait_until,
};
use sqlx::Connection as _;
use sqlx::mysql::{MySqlConnection, MySqlPoolOptions};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SEGMENT: &str = "/api/segment/get/leaf-segment-test";

fn start(url: &str, snowflake: bool) -> (tempfile::TempDir, LeafServer) {
    let directory = tempfile::tempdir().unwrap();
    let env = [("LEAF_SNOWFLAKE__ENABLED", snowflake.to_string())];
    let server = LeafServer::start(SERVER, directory.path(), &["--segment-store", url], &env);
    (directory, server)
}

fn schema(url: &str, apply: bool) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut args = vec!["schema", "--segment-store", url];
    args.extend(apply.then_some("--apply"));
    let mut process = LeafServer::process(SERVER, directory.path(), &args, &[]);
    assert_eq!(process.wait(Duration::from_secs(20)).code(), Some(0), "{}", process.output());
    wait_until("its output", Duration::from_secs(5), || {
        Some(process.output()).filter(|output| !output.is_empty())
    })
}

fn full() -> bool {
    std::env::var_os("LEAF_TEST_FULL").is_some()
}

/// What the Java Leaf does for a segment: update and read back in one transaction.
async fn java_segment(pool: &sqlx::MySqlPool) -> std::ops::Range<i64> {
    let mut transaction = pool.begin().await.unwrap();
    sqlx::query("UPDATE leaf_alloc SET max_id = max_id + step WHERE biz_tag = 'leaf-segment-test'")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let (max_id, step): (i64, i32) =
        sqlx::query_as("SELECT max_id, step FROM leaf_alloc WHERE biz_tag = 'leaf-segment-test'")
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
    transaction.commit().await.unwrap();
    max_id - i64::from(step)..max_id
}

/// G-04: a database that may lose acknowledged commits in a crash is reported until that is
/// corrected.
#[test]
fn a_database_that_may_lose_what_it_acknowledges_is_told_until_it_does_not() {
    let database = MariaDb::start();
    let url = MariaDb::url(database.port(), &database.new_database());
    LeafServer::make_tables(SERVER, &url);
    database.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2");
    let (_directory, server) = start(&url, false);
    let says = |text: &str| {
        wait_until(text, Duration::from_secs(60), || {
            let ready = HttpClient::once(server.ops(), "GET", "/readyz");
            assert_eq!(ready.status, 200, "{}", ready.body);
            ready.body.contains(text).then_some(ready.body)
        })
    };
    let told = says("innodb_flush_log_at_trx_commit is not 1: a crash may lose allocations");
    assert!(told.starts_with("degraded: ") && !told.contains("leaf:leaf"), "{told}");
    assert!(server.get("/v1/server").status == 200 && server.id(SEGMENT) > 0);
    let metrics = HttpClient::once(server.ops(), "GET", "/metrics").body;
    assert!(metrics.contains("leaf_health_reason{code=\"store_may_lose\"} 1"), "{metrics}");
    database.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1");
    assert_eq!(says("ready"), "ready");
}

/// G-02: a Java node on the same row.
#[test]
fn two_servers_and_a_java_node_on_one_row_never_share_an_id() {
    const CLIENTS: usize = 8;
    let wanted = if full() { 2_000_000 } else { 200_000 };
    let database = MariaDb::shared();
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);
    assert!(schema(&url, true).contains("made leaf_guard, leaf_alloc"));
    LeafServer::make_sample(&url);
    let servers = [start(&url, false), start(&url, false)];
    let ledger = Arc::new(Ledger::default());
    let done = Arc::new(AtomicBool::new(false));

    let java = {
        let (url, ledger, done) = (url.clone(), Arc::clone(&ledger), Arc::clone(&done));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let pool = MySqlPoolOptions::new().connect(&url).await.unwrap();
                let issuer: Arc<str> = "java".into();
                let mut segments = 0;
                while !done.load(Ordering::SeqCst) {
                    java_segment(&pool).await.for_each(|id| ledger.record(&issuer, id));
                    segments += 1;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                segments
            })
        })
    };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (_, server) = &servers[client % 2];
            let (address, ledger) = (server.ids(), Arc::clone(&ledger));
            std::thread::spawn(move || {
                let issuer: Arc<str> = format!("server {}, client {client}", client % 2).into();
                let mut connection = HttpClient::connect(address).unwrap();
                let mut last = 0;
                for _ in 0..wanted / CLIENTS / 100 {
                    let asked = connection.ids(SEGMENT, 100, |id| {
                        assert!(id > last, "{issuer}: {id} after {last}");
                        last = id;
                        ledger.record(&issuer, id);
                    });
                    asked.unwrap();
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    done.store(true, Ordering::SeqCst);
    let java_segments = java.join().unwrap();

    ledger.expect_at_least(wanted);
    assert!(java_segments >= 5, "the Java node took part: {java_segments} segments");
    let max_id: i64 = database
        .sql(&format!("SELECT max_id FROM {name}.leaf_alloc WHERE biz_tag = 'leaf-segment-test'"))
        .parse()
        .unwrap();
    let (first, last) = ledger.bounds().unwrap();
    assert_eq!(first, 1);
    assert!(last < max_id);
    // Whole steps of 2000, doubled or not, were added to 1. What is missing below max_id is each
    // server's stock: the rest of its current segment and its next one.
    assert_eq!((max_id - 1) % 2000, 0);
    // A thread that was not running while two segments were used up loses the one id that it had
    // taken.
    let (lost, gaps): (Vec<_>, Vec<_>) =
        ledger.gaps_below(max_id).into_iter().partition(|gap| gap.end - gap.start == 1);
    assert!(gaps.len() <= 4 && lost.len() <= 4, "missing: {gaps:?}, {lost:?}");
    println!(
        "{} ids, {java_segments} Java segments, max_id {max_id}, stock {gaps:?}",
        ledger.len()
    );
}

/// The Java Leaf's table does not contain tags that are not plain. So the Java Leaf answers "no
/// such key" instead of issuing ids that mean something else. An older leaf-server, without
/// `leaf_sequence`, reads the same table.
#[test]
fn a_java_node_finds_no_tag_that_is_not_plain() {
    let database = MariaDb::shared();
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);
    LeafServer::make_tables(SERVER, &url);
    let (_directory, server) = start(&url, false);
    let mut ops = HttpClient::connect(server.ops()).unwrap();
    let json = "Host: localhost\r\nContent-Type: application/json\r\n";
    let new = r#"{"tag":"turns","order":"strict"}"#;
    assert_eq!(ops.ask("POST", "/v1/tags", json, new).unwrap().status, 201);
    assert_eq!(server.id("/api/segment/get/turns"), 1);

    // Its three statements, as its mapper has them.
    let tags = database.sql(&format!("SELECT biz_tag FROM {name}.leaf_alloc"));
    assert_eq!(tags, "leaf-segment-test");
    let updated = database.sql(&format!(
        "UPDATE {name}.leaf_alloc SET max_id = max_id + step WHERE biz_tag = 'turns'; SELECT ROW_COUNT()"
    ));
    assert_eq!(updated, "0");
    let read = database.sql(&format!(
        "SELECT biz_tag, max_id, step FROM {name}.leaf_alloc WHERE biz_tag = 'turns'"
    ));
    assert_eq!(read, "");
    assert_eq!(server.id("/api/segment/get/turns"), 2);
}

/// G-01: three processes on eight tags with steps of 1 to 8, so that nearly every id is a fetch.
#[test]
fn three_servers_on_eight_tags_of_tiny_steps_never_share_an_id() {
    let seconds = if full() { 60 } else { 3 };
    let database = MariaDb::shared();
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);
    LeafServer::make_tables(SERVER, &url);
    let rows: Vec<_> = (1..=8).map(|step| format!("('tag{step}', 1, {step})")).collect();
    let rows = rows.join(", ");
    database.sql(&format!("INSERT INTO {name}.leaf_alloc (biz_tag, max_id, step) VALUES {rows}"));
    // Without the dynamic step: it would soon make the steps large.
    database.sql(&format!(
        "INSERT INTO {name}.leaf_tag_settings (biz_tag, settings) \
         SELECT biz_tag, CONCAT('{{\"version\":1,\"max_step\":', step, '}}') FROM {name}.leaf_alloc WHERE biz_tag LIKE 'tag%'"
    ));
    let servers = [start(&url, false), start(&url, false), start(&url, false)];
    let ledgers: Arc<Vec<Ledger>> = Arc::new((0..8).map(|_| Ledger::default()).collect());
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..24)
        .map(|client| {
            let (tag, address) = (client % 8, servers[client / 8].1.ids());
            let (ledgers, done) = (Arc::clone(&ledgers), Arc::clone(&done));
            std::thread::spawn(move || {
                let issuer: Arc<str> = format!("server {}", client / 8).into();
                let path = format!("/api/segment/get/tag{}", tag + 1);
                let mut connection = HttpClient::connect(address).unwrap();
                let mut last = 0;
                while !done.load(Ordering::SeqCst) {
                    let mut id = 0;
                    connection.ids(&path, 1, |it| id = it).unwrap();
                    assert!(id > last, "{issuer}: {id} after {last}");
                    last = id;
                    ledgers[tag].record(&issuer, id);
                }
            })
        })
        .collect();
    wait_until("so many seconds", Duration::from_secs(seconds + 30), || {
        let enough = ledgers.iter().all(|ledger| ledger.len() >= 50 * seconds as usize);
        enough.then_some(())
    });
    done.store(true, Ordering::SeqCst);
    clients.into_iter().for_each(|client| client.join().unwrap());
    println!("{:?} ids a tag", ledgers.iter().map(Ledger::len).collect::<Vec<_>>());
}

#[test]
fn the_schema_is_printed_and_made_once() {
    let database = MariaDb::shared();
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);

    assert!(schema(&url, false).contains("CREATE TABLE leaf_alloc"));
    assert_eq!(database.sql(&format!("SHOW TABLES IN {name}")), "");
    let made = schema(&url, true);
    assert!(made.contains("made leaf_guard, leaf_alloc") && !made.contains("WARN"), "{made}");
    assert!(schema(&url, true).contains("nothing to make"));

    let columns = database.sql(&format!(
        "SELECT GROUP_CONCAT(column_name, ' ', column_type, ' ', is_nullable ORDER BY \
         ordinal_position) FROM information_schema.columns \
         WHERE table_schema = '{name}' AND table_name = 'leaf_alloc'"
    ));
    assert_eq!(
        columns,
        "biz_tag varchar(128) NO,max_id bigint(20) NO,step int(11) NO,\
         description varchar(256) YES,update_time timestamp NO"
    );
}

#[test]
fn a_missing_table_is_said_and_found_once_it_is_there() {
    let database = MariaDb::shared();
    let url = MariaDb::url(database.port(), &database.new_database());
    let directory = tempfile::tempdir().unwrap();
    let args = ["--segment-store", &url];
    let mut server = LeafServer::launch(SERVER, directory.path(), &args, &[]);

    let answer = server.get(SEGMENT);
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
    assert!(!answer.body.contains("leaf_alloc"), "clients see no SQL: {}", answer.body);
    wait_until("the log says what to do", Duration::from_secs(10), || {
        server.output().contains("make the table with `leaf-server schema --apply`").then_some(())
    });
    assert_eq!(HttpClient::once(server.ops(), "GET", "/readyz").status, 503);

    LeafServer::make_tables(SERVER, &url);
    server.wait_ready();
    assert_eq!(server.id(SEGMENT), 1);
    assert!(!server.output().contains("leaf:leaf"), "no password in the log");
}

/// In a Java Leaf's database the guard's table is missing: the log must say so.
#[test]
fn without_the_guards_table_ids_are_served_and_the_log_says_so_once() {
    let database = MariaDb::shared();
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);
    LeafServer::make_tables(SERVER, &url);
    database.sql(&format!("USE {name}; DROP TABLE leaf_guard, leaf_tag_settings, leaf_sequence"));
    let (_directory, server) = start(&url, false);

    let mut client = HttpClient::connect(server.ids()).unwrap();
    let mut taken = 0;
    client.ids(SEGMENT, 5000, |_| taken += 1).unwrap();
    assert_eq!(taken, 5000);
    let log = server.output();
    assert_eq!(log.matches("the failover guard is off").count(), 1, "{log}");
}

/// G-05, G-13: without a clear answer no id is issued. Requests get 503 within the deadline, and
/// ids again when the connection is back.
#[test]
fn a_line_that_breaks_costs_stock_and_nothing_else() {
    let database = MariaDb::shared();
    let name = database.new_database();
    LeafServer::make_tables(SERVER, &MariaDb::url(database.port(), &name));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let upstream = ([127, 0, 0, 1], database.port()).into();
    let proxy = runtime.block_on(FaultProxy::start(upstream));
    let (_directory, server) = start(&MariaDb::url(proxy.address().port(), &name), false);
    let ledger = Ledger::default();
    let issuer: Arc<str> = "server".into();
    ledger.record(&issuer, server.id(SEGMENT));

    for fault in [Fault::Cut, Fault::Reset, Fault::BlackHole, Fault::SwallowReplies] {
        proxy.set(fault);
        let mut client = HttpClient::connect(server.ids()).unwrap();
        let (refused, waited) = loop {
            let asked = tokio::time::Instant::now();
            let answer = client.request("GET", SEGMENT).unwrap();
            if answer.status != 200 {
                break (answer, asked.elapsed());
            }
            ledger.record(&issuer, answer.body.parse().unwrap());
        };
        // `segment.wait` is 2 s.
        assert!(waited < Duration::from_secs(3), "{fault:?}: refused after {waited:?}");
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{fault:?}");
        assert_eq!(refused.body.lines().count(), 1, "{fault:?}: {}", refused.body);
        assert_eq!(HttpClient::once(server.ops(), "GET", "/readyz").status, 503, "{fault:?}");

        proxy.set(Fault::None);
        // A request that waits is served as soon as the refill is there.
        let back = tokio::time::Instant::now();
        let id = wait_until("ids flow again", Duration::from_secs(10), || {
            let answer = server.get(SEGMENT);
            (answer.status == 200).then(|| answer.body.parse().unwrap())
        });
        let waited = back.elapsed();
        // Half a second between two attempts, and one attempt that may be on its way.
        assert!(waited < Duration::from_secs(3), "{fault:?}: ids again after {waited:?}");
        ledger.record(&issuer, id);
    }

    proxy.set(Fault::Delay(Duration::from_millis(50)));
    let mut client = HttpClient::connect(server.ids()).unwrap();
    client.ids(SEGMENT, 20_000, |id| ledger.record(&issuer, id)).unwrap();
    ledger.expect_at_least(20_000);
}

#[test]
fn a_database_that_crashes_under_load_costs_no_id_and_no_error() {
    let database = MariaDb::start();
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);
    LeafServer::make_tables(SERVER, &url);
    database.sql(&format!("UPDATE {name}.leaf_alloc SET step = 100000"));
    let (_directory, server) = start(&url, false);
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let done = Arc::new(AtomicBool::new(false));
    let client = {
        let (seen, done, address) = (Arc::clone(&seen), Arc::clone(&done), server.ids());
        std::thread::spawn(move || {
            let mut client = HttpClient::connect(address).unwrap();
            while !done.load(Ordering::SeqCst) {
                let answer = client.request("GET", SEGMENT).unwrap();
                assert_eq!(answer.status, 200, "{}", answer.body);
                assert!(seen.lock().unwrap().insert(answer.body), "an id was repeated");
            }
        })
    };
    let flowed = |count: usize| {
        wait_until("ids flow", Duration::from_secs(60), || {
            (seen.lock().unwrap().len() >= count).then_some(())
        });
    };
    flowed(1000);

    for round in 1..=3 {
        database.crash_and_restart();
        flowed(1000 + round * 5000);
    }

    done.store(true, Ordering::SeqCst);
    client.join().unwrap();
}

/// G-09: the row's step is edited by hand while ids are taken: to a smaller one, a much greater
/// one, invalid ones, and back.
#[test]
fn a_step_that_is_edited_under_load_repeats_nothing() {
    let database = MariaDb::shared();
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);
    LeafServer::make_tables(SERVER, &url);
    let nodes = [start(&url, false), start(&url, false)];
    let ledger = Arc::new(Ledger::default());
    let loads = [0, 1].map(|at| {
        let issuer = format!("node {at}");
        Load::at(&ledger, &issuer, nodes[at].1.ids(), &Plan::of(SEGMENT))
    });
    let edit = |step: i64| {
        database.sql(&format!("UPDATE {name}.leaf_alloc SET step = {step}"));
        std::thread::sleep(Duration::from_millis(300));
    };
    for _ in 0..2 {
        [1000, 10, 10_000_000, 0, -5, 3, 2000].into_iter().for_each(edit);
    }
    wait_until("ids flow again", Duration::from_secs(10), || {
        let before = ledger.len();
        std::thread::sleep(Duration::from_millis(100));
        (ledger.len() > before).then_some(())
    });
    let reports = loads.map(Load::end);
    assert_eq!(reports.iter().map(|it| it.lost_connections).sum::<u64>(), 0, "{reports:?}");
    let max_id: i64 =
        database.sql(&format!("SELECT max_id FROM {name}.leaf_alloc")).parse().unwrap();
    let (least, greatest) = ledger.bounds().unwrap();
    assert!(least >= 1 && greatest < max_id, "{least} to {greatest}, max_id {max_id}");
    ledger.expect_at_least(1000);
}

/// The load of an idle node with its tags and worker id in one database. A database server may
/// serve a thousand nodes, and has 151 connections by default, so this load must be small.
#[test]
fn an_idle_node_holds_two_connections_and_sends_less_than_a_statement_a_second() {
    let database = MariaDb::start();
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);
    let sql = |statement: &str| database.sql(&format!("USE {name}; {statement}"));
    let directory = tempfile::tempdir().unwrap();
    let env =
        [("LEAF_SNOWFLAKE__REGISTRY", url.clone()), ("LEAF_ADVERTISE", "127.0.0.1:8080".into())];
    let args = ["schema", "--apply", "--segment-store", &url];
    let mut tables = LeafServer::process(SERVER, directory.path(), &args, &env);
    assert_eq!(tables.wait(Duration::from_secs(20)).code(), Some(0), "{}", tables.output());
    LeafServer::make_sample(&url);
    let server = LeafServer::start(SERVER, directory.path(), &["--segment-store", &url], &env);
    // Requests for many tags at once, so that there are more connections than an idle node needs.
    for n in 0..40 {
        let row = format!("INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('t{n}', 1, 10)");
        sql(&row);
    }
    std::thread::scope(|scope| {
        for n in 0..40 {
            let server = &server;
            scope.spawn(move || server.id(&format!("/api/segment/get/t{n}")));
        }
    });
    let most = database.sql("SHOW GLOBAL STATUS LIKE 'Max_used_connections'");
    let most: u32 = most.split('\t').nth(1).unwrap().parse().unwrap();
    assert!(most > 3, "{most}");
    let _ = (server.id(SEGMENT), server.id("/api/snowflake/get/test"));

    let connections = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'leaf'";
    wait_until("two connections", Duration::from_secs(30), || {
        (database.sql(connections) == "2").then_some(())
    });
    database.sql("SET GLOBAL log_output = 'TABLE'; SET GLOBAL general_log = ON");
    std::thread::sleep(Duration::from_secs(20));
    let log = database.sql(
        "SET GLOBAL general_log = OFF; SELECT thread_id, command_type FROM mysql.general_log \
         WHERE user_host LIKE 'leaf%'",
    );
    let threads: HashSet<&str> = log.lines().filter_map(|line| line.split('\t').next()).collect();
    assert!(threads.len() <= 2 && !log.contains("Connect"), "{log}");
    let statements = log.lines().filter(|line| !line.ends_with("Prepare")).count();
    assert!((6..=20).contains(&statements), "{statements} statements in 20 s:\n{log}");
}

/// Sixty nodes that start at once, with their tags and worker ids in a database that allows 151
/// connections, as MySQL and MariaDB do by default.
#[test]
fn sixty_nodes_start_on_151_connections() {
    let database = MariaDb::start();
    // The connection that is reserved for root must not help.
    let limit =
        "SET GLOBAL max_connections = 151; REVOKE CONNECTION ADMIN ON *.* FROM leaf@'127.0.0.1'";
    database.sql(limit);
    let url = MariaDb::url(database.port(), &database.new_database());
    let env = [("LEAF_SNOWFLAKE__REGISTRY", url.clone())];
    let directory = tempfile::tempdir().unwrap();
    let args = ["schema", "--apply", "--segment-store", &url];
    let mut tables = LeafServer::process(SERVER, directory.path(), &args, &env);
    assert_eq!(tables.wait(Duration::from_secs(20)).code(), Some(0), "{}", tables.output());
    LeafServer::make_sample(&url);

    let directories: Vec<_> = (0..60).map(|_| tempfile::tempdir().unwrap()).collect();
    let args = ["--segment-store", &url];
    let mut nodes: Vec<LeafServer> = directories
        .iter()
        .enumerate()
        .map(|(n, directory)| {
            let name = ("LEAF_ADVERTISE", format!("127.0.0.1:{}", 10_000 + n));
            let env = [env[0].clone(), name];
            LeafServer::launch(SERVER, directory.path(), &args, &env)
        })
        .collect();
    let mut ids = HashSet::new();
    let mut workers = HashSet::new();
    for node in &mut nodes {
        node.wait_ready();
        assert!(ids.insert(node.id(SEGMENT)), "twice");
        workers.insert(node.id("/api/snowflake/get/test") >> 12 & 1023);
    }
    assert_eq!(workers.len(), 60, "every node has a worker id of its own");
}

/// A database server without a free connection is reported as the cause. Ids in memory still flow,
/// and the node recovers once there is a connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_free_connection_is_told_and_outlived() {
    let database = MariaDb::start();
    let url = MariaDb::url(database.port(), &database.new_database());
    schema(&url, true);
    LeafServer::make_sample(&url);
    let (_directory, server) = start(&url, false);
    let mut ids: HashSet<i64> = HashSet::from([server.id(SEGMENT)]);

    // Others take all that MariaDB allows at least; the one beside these is for root.
    database.sql(
        "SET GLOBAL max_connections = 10; REVOKE CONNECTION ADMIN ON *.* FROM leaf@'127.0.0.1'",
    );
    let mut taken = Vec::new();
    let mut own = Vec::new();
    while taken.len() < 10 {
        match MySqlConnection::connect(&url).await {
            Ok(mut connection) => {
                let id: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()")
                    .fetch_one(&mut connection)
                    .await
                    .unwrap();
                own.push(id.to_string());
                taken.push(connection);
            }
            Err(_) => {
                let of_the_node = database.sql(&format!(
                    "SELECT id FROM information_schema.processlist WHERE user = 'leaf' AND id NOT IN ({})",
                    own.join(",")
                ));
                for id in of_the_node.lines() {
                    database.sql(&format!("KILL {id}"));
                }
            }
        }
    }

    // One tenth of a segment begins the fetch of the next.
    for _ in 0..1000 {
        assert!(ids.insert(server.id(SEGMENT)), "twice");
    }
    let status = || HttpClient::once(server.ops(), "GET", "/v1/status").body;
    wait_until("the cause", Duration::from_secs(10), || {
        status().contains("raise the server's max_connections").then_some(())
    });
    assert_eq!(HttpClient::once(server.ops(), "GET", "/readyz").status, 200, "it has ids");
    assert!(ids.insert(server.id(SEGMENT)), "twice");

    drop(taken);
    wait_until("a connection", Duration::from_secs(20), || {
        (!status().contains("max_connections")).then_some(())
    });
    for _ in 0..3000 {
        assert!(ids.insert(server.id(SEGMENT)), "twice");
    }
}
