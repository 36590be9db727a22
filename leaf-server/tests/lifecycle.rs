//! Starting without store and registry, reloading, stopping: as operators and supervisors see it.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, Ledger, Load, MariaDb, Plan, free_port, wait_until};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SEGMENT: &str = "/api/segment/get/leaf-segment-test";
const SNOWFLAKE: &str = "/api/snowflake/get/test";

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn readyz(server: &LeafServer) -> String {
    HttpClient::once(server.ops(), "GET", "/readyz").body
}

/// Waits until `/readyz` says all of this.
fn wait_for_reason(server: &LeafServer, parts: &[&str]) -> String {
    wait_until(&format!("/readyz says {parts:?}"), seconds(15), || {
        Some(readyz(server)).filter(|body| parts.iter().all(|part| body.contains(part)))
    })
}

#[test]
fn a_start_waits_for_nobody_and_says_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = free_port();
    let env = [
        ("LEAF_SEGMENT__STORE", format!("mysql://leaf:canary@127.0.0.1:{nowhere}/leaf")),
        ("LEAF_SNOWFLAKE__REGISTRY", format!("zk-normal://127.0.0.1:{nowhere}")),
        ("LEAF_ADVERTISE", "10.0.0.7:8080".to_owned()),
    ];
    let mut server = LeafServer::launch(SERVER, directory.path(), &[], &env);
    assert_eq!(HttpClient::once(server.ops(), "GET", "/healthz").body, "ok");
    let reason = wait_for_reason(
        &server,
        &["not ready", "segment store", "no worker id yet; ", "in ZooKeeper: "],
    );
    assert!(!reason.contains("canary"), "{reason}");
    let status = HttpClient::once(server.ops(), "GET", "/v1/status").json();
    assert_eq!(status["state"], "not ready");
    let codes = status["codes"].as_array().unwrap();
    assert!(codes.contains(&"starting".into()), "{codes:?}");
    assert!(status["segment"]["stores"][0]["reason"].as_str().unwrap().contains("segment store"));
    assert!(status["snowflake"]["reason"].as_str().unwrap().contains("no worker id yet"));
    assert_eq!(server.get(SEGMENT).status, 503);
    assert_eq!(server.get(SNOWFLAKE).status, 503);
    assert!(server.stop().success(), "{}", server.output());
}

#[test]
fn a_dead_store_is_degraded_while_the_stock_lasts() {
    // The first segment holds 50 ids, the one after it, fetched soon, 50 or 100.
    let (database, url) = database_with_step(50);
    let directory = tempfile::tempdir().unwrap();
    let args = ["--segment-store", url.as_str()];
    let server = LeafServer::start(SERVER, directory.path(), &args, &[]);
    let mut client = HttpClient::connect(server.ids()).unwrap();
    for id in 1..=10 {
        client.ids(SEGMENT, 1, |it| assert_eq!(it, id)).unwrap();
    }
    wait_until("the next segment is there", seconds(10), || {
        let tags = HttpClient::once(server.ops(), "GET", "/v1/status").json();
        let stock = tags["segment"]["stores"][0]["stock"].as_str()?.parse::<u64>().ok()?;
        (stock > 50).then_some(())
    });
    database.crash();
    // A tag that is not known makes the server ask.
    let _ = server.get("/api/segment/get/unknown");
    let degraded = wait_for_reason(&server, &["degraded", "serving from stock"]);
    assert_eq!(HttpClient::once(server.ops(), "GET", "/readyz").status, 200, "{degraded}");
    let mut handed_out = 10;
    while client.request("GET", SEGMENT).unwrap().status == 200 {
        handed_out += 1;
    }
    assert!(handed_out >= 100, "{handed_out}");
    wait_for_reason(&server, &["not ready", "out of ids"]);
    // The worse state hides no reason of the better one: an alarm goes on.
    let codes = HttpClient::once(server.ops(), "GET", "/v1/status").json()["codes"].clone();
    assert_eq!(codes, serde_json::json!(["store_unavailable", "out_of_ids"]));
    assert_eq!(HttpClient::once(server.ops(), "GET", "/readyz").status, 503);
    assert!(server.id(SNOWFLAKE) > 0, "the other mode goes on");
}

#[test]
fn a_reload_takes_over_what_can_change_and_names_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leaf.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("[http]\nmax_count = 5\n");
    let config = file.display().to_string();
    let data = directory.path().join("data");
    let mut server = LeafServer::start(SERVER, &data, &["--config", &config], &[]);
    let many = |count: u32| {
        server.get(&format!("/v1/segments/leaf-segment-test/ids?count={count}")).status
    };
    assert_eq!((many(5), many(6)), (200, 400));

    write(
        "name = 'other'\n[http]\nmax_count = 6\nmax_connections = 2\n[log]\nlevel = 'debug'\n[segment]\nrefresh = '2s'\n",
    );
    let hang_up = |says: &str| {
        let pid = server.pid().to_string();
        std::process::Command::new("kill").args(["-s", "HUP", &pid]).status().unwrap();
        wait_until(says, seconds(10), || server.output().contains(says).then_some(()));
    };
    hang_up("took over http.max_connections, http.max_count, log.level, segment.refresh");
    hang_up("these need a restart: name");
    assert_eq!((many(6), many(7)), (200, 400));
    // Two connections at a time: the third waits for one of them.
    let two: Vec<_> = (0..2)
        .map(|_| {
            let mut client = HttpClient::connect(server.ids()).unwrap();
            assert_eq!(client.request("GET", SEGMENT).unwrap().status, 200);
            client
        })
        .collect();
    let mut third = TcpStream::connect(server.ids()).unwrap();
    third.write_all(b"GET /clock HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut answer = [0; 12];
    assert_eq!(third.read(&mut answer).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(two);
    third.set_read_timeout(Some(seconds(10))).unwrap();
    third.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(third);

    let status = |headers: &str| {
        let mut ops = HttpClient::connect(server.ops()).unwrap();
        let headers = format!("Host: localhost\r\n{headers}");
        ops.ask("GET", "/v1/status", &headers, "").unwrap().status
    };
    assert_eq!(status(""), 200);
    write("[http]\nmax_count = 6\n[ops]\ntoken = 'a-token-of-some-length'\n");
    hang_up("took over http.max_connections, log.level, ops.token");
    assert_eq!(
        (status(""), status("Authorization: Bearer a-token-of-some-length\r\n")),
        (401, 200)
    );

    std::fs::remove_file(&file).unwrap();
    hang_up("leaf.toml: No such file or directory");
    assert_eq!(status(""), 401, "the token still counts");

    write("[http]\nmax_count = 0\n");
    hang_up("http.max_count: give 1 to 1000000 (it is 0, from ");
    assert_eq!(many(6), 200);

    // A pipe that nobody writes to.
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    hang_up("not a regular file; everything stays as it is");
    assert!(server.stop().success());
}

/// A request that waits up to a minute for ids delays the stop. The second signal ends the server
/// without waiting for the request.
#[test]
fn a_second_signal_ends_it_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let env = [
        ("LEAF_SEGMENT__STORE", format!("mysql://leaf:leaf@127.0.0.1:{}/leaf", free_port())),
        ("LEAF_SEGMENT__WAIT", "60s".to_owned()),
        ("LEAF_STOP_GRACE", "60s".to_owned()),
        ("LEAF_SNOWFLAKE__ENABLED", "false".to_owned()),
    ];
    let mut server = LeafServer::launch(SERVER, directory.path(), &[], &env);
    let mut waiting = HttpClient::connect(server.ids()).unwrap();
    waiting.send(&format!("POST {SEGMENT} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
    // The connection was accepted once another one is answered after it.
    assert_eq!(server.get("/clock").status, 200);
    // At once it is the first one still: some supervisors send two.
    server.process_mut().signal("TERM");
    server.process_mut().signal("TERM");
    wait_for_reason(&server, &["stopping"]);
    let later = Instant::now() + Duration::from_secs(1);
    wait_until("it goes on waiting", seconds(5), || (Instant::now() > later).then_some(()));
    assert!(server.process_mut().ended().is_none());
    let second = Instant::now();
    server.process_mut().signal("TERM");
    let status = server.process_mut().wait(seconds(5));
    assert_eq!(status.code(), Some(1), "{}", server.output());
    assert!(second.elapsed() < seconds(3), "{:?}", second.elapsed());
    assert!(server.output().contains("second signal: stopped at once"), "{}", server.output());
}

/// Starts a separate database with Leaf's tables, whose sample tag has this step.
fn database_with_step(step: u32) -> (MariaDb, String) {
    let database = MariaDb::start();
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);
    LeafServer::make_tables(SERVER, &url);
    database.sql(&format!("UPDATE {name}.leaf_alloc SET step = {step}"));
    (database, url)
}

#[test]
fn no_more_than_so_many_requests_wait_for_ids() {
    const CLIENTS: usize = 20;
    let (database, url) = database_with_step(1);
    let directory = tempfile::tempdir().unwrap();
    let env = [
        ("LEAF_SEGMENT__STORE", url),
        ("LEAF_SEGMENT__WAIT", "5s".to_owned()),
        ("LEAF_HTTP__MAX_WAITING", "2".to_owned()),
    ];
    let server = LeafServer::start(SERVER, directory.path(), &[], &env);
    assert_eq!(server.id(SEGMENT), 1);
    database.crash();
    let mut clients: Vec<_> =
        (0..CLIENTS).map(|_| HttpClient::connect(server.ids()).unwrap()).collect();
    for client in &mut clients {
        client.send(&format!("GET {SEGMENT} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
    }
    assert!(server.id(SNOWFLAKE) > 0, "what needs no waiting goes on");
    let answers: Vec<_> = clients.iter_mut().map(|client| client.read().unwrap()).collect();
    let count = |text: &str| answers.iter().filter(|answer| answer.body.contains(text)).count();
    let (refused, waited) = (count("too many requests are waiting"), count("out of ids"));
    assert!(refused > 0 && waited >= 2, "{refused} refused, {waited} waited: {answers:?}");
}

/// S-03: for some seconds there are three times as many requests as ids. A few requests wait, the
/// others are refused at once, and nothing else suffers.
#[test]
fn three_times_the_load_is_refused_and_holds_nothing_up() {
    let directory = tempfile::tempdir().unwrap();
    // Two ids a millisecond.
    let env = [
        ("LEAF_SNOWFLAKE__LAYOUT", "t51-w10-s1/1ms".to_owned()),
        ("LEAF_SNOWFLAKE__SEQUENCE_START", "0".to_owned()),
        ("LEAF_HTTP__MAX_WAITING", "10".to_owned()),
    ];
    let mut server = LeafServer::start(SERVER, directory.path(), &[], &env);
    let ledger = Arc::new(Ledger::default());
    let plan = Plan { clients: 100, pipeline: 10, pause: Duration::ZERO, ..Plan::of(SNOWFLAKE) };
    // A first start begins a second ahead of the clock, near the ceiling of then.
    let started = Instant::now();
    wait_until("it has caught up", seconds(10), || {
        (server.id(SEGMENT) > 0 && started.elapsed() > seconds(2)).then_some(())
    });
    let before = server.resident_kib();

    let load = Load::at(&ledger, "leaf", server.ids(), &plan);
    let (begun, mut slowest) = (Instant::now(), Duration::ZERO);
    while begun.elapsed() < seconds(3) {
        let asked = Instant::now();
        assert_eq!(HttpClient::once(server.ops(), "GET", "/healthz").status, 200);
        assert!(server.get(SEGMENT).status == 200, "what needs no waiting goes on");
        slowest = slowest.max(asked.elapsed());
    }
    let grown = server.resident_kib().saturating_sub(before);
    let report = load.end();

    assert!(report.refused >= 2 * report.issued, "three times as many: {report:?}");
    ledger.expect_at_least(50);
    assert_eq!(report.lost_connections, 0);
    assert!(slowest < seconds(5), "health and segments took {slowest:?}");
    assert!(grown < 32 * 1024, "{grown} KiB more");
    let asked = Instant::now();
    assert!(server.id(SNOWFLAKE) > 0);
    assert!(asked.elapsed() < seconds(1), "the next one is answered at once");
    assert!(server.stop().success());
}

#[test]
fn systemd_hears_of_start_life_reload_and_stop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(seconds(10))).unwrap();
    let hears = |what: &str| {
        let mut message = [0; 1024];
        loop {
            let length =
                socket.recv(&mut message).unwrap_or_else(|error| panic!("{what}: {error}"));
            let text = String::from_utf8_lossy(&message[..length]).into_owned();
            if text.contains(what) {
                return;
            }
        }
    };
    let env =
        [("NOTIFY_SOCKET", path.display().to_string()), ("WATCHDOG_USEC", "400000".to_owned())];
    let mut server = LeafServer::start(SERVER, &directory.path().join("data"), &[], &env);
    hears("READY=1");
    hears("STATUS=ready");
    for _ in 0..3 {
        hears("WATCHDOG=1");
    }
    server.process_mut().signal("HUP");
    hears("RELOADING=1");
    hears("READY=1");
    server.process_mut().signal("TERM");
    hears("STOPPING=1");
    assert!(server.process_mut().wait(seconds(10)).success());
}

/// The only child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[test]
fn as_process_1_it_stops_on_sigterm_and_leaves_no_zombies() {
    let directory = tempfile::tempdir().unwrap();
    let mut args = vec!["--pid", "--fork", "--kill-child", "--mount-proc"];
    if !rustix::process::getuid().is_root() {
        args.push("--map-root-user");
    }
    args.push(SERVER);
    let mut server = LeafServer::start_wrapped("unshare", &args, directory.path());
    let pid = child_of(server.pid()).unwrap();

    // A process whose parent ends is handed to process 1.
    let orphan = ["-t", &pid.to_string(), "-p", "--", "sh", "-c", "sleep 0.2 & exec true"];
    assert!(std::process::Command::new("nsenter").args(orphan).status().unwrap().success());
    let adopted = wait_until("the orphan is handed over", seconds(5), || child_of(pid));
    wait_until("its end is taken in", seconds(5), || {
        (!std::path::Path::new(&format!("/proc/{adopted}")).exists()).then_some(())
    });

    let stop = ["-s", "TERM", &pid.to_string()];
    assert!(std::process::Command::new("kill").args(stop).status().unwrap().success());
    let status = server.process_mut().wait(seconds(10));
    assert_eq!(status.code(), Some(0), "{}", server.output());
}

#[test]
fn it_needs_no_rights() {
    use std::os::unix::fs::{PermissionsExt, chown};

    if !rustix::process::getuid().is_root() {
        return println!("not root: every other test shows it");
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let data = directory.path().join("data");
    std::fs::create_dir(&data).unwrap();
    chown(&data, Some(65534), Some(65534)).unwrap();
    let binary = directory.path().join("leaf-server");
    std::fs::copy(SERVER, &binary).unwrap();
    let nobody = [
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
    ];
    let binary = binary.display().to_string();
    let args: Vec<_> = nobody.into_iter().chain([binary.as_str()]).collect();
    let mut server = LeafServer::start_wrapped("setpriv", &args, &data);
    assert_eq!(server.id(SEGMENT), 1);
    assert!(server.id(SNOWFLAKE) > 0);
    assert!(server.stop().success());
}

/// A node without callers notices within 10 s that its store is away, and that the store is back.
/// Its log has one line a minute about the outage, whatever the number of tags, and no warning
/// after a normal start.
#[test]
fn an_idle_node_notices_an_outage_and_says_so_once() {
    let database = MariaDb::start();
    let name = database.new_database();
    let url = MariaDb::url(database.port(), &name);
    LeafServer::make_tables(SERVER, &url);
    let rows: Vec<String> = (0..50).map(|tag| format!("('tag-{tag}', 1, 10)")).collect();
    database.sql(&format!(
        "INSERT INTO {name}.leaf_alloc (biz_tag, max_id, step) VALUES {}",
        rows.join(", ")
    ));
    let env = [("LEAF_SNOWFLAKE__ENABLED", "false".to_owned())];
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &["--segment-store", &url], &env);
    for tag in 0..50 {
        let _ = server.id(&format!("/api/segment/get/tag-{tag}"));
    }
    assert!(!server.output().contains("WARN"), "{}", server.output());

    database.crash();
    let noticed = seconds(10);
    let state = |wanted: &str| {
        let ready = HttpClient::once(server.ops(), "GET", "/readyz").body;
        ready.starts_with(wanted).then_some(ready)
    };
    wait_until("the outage is noticed", noticed, || state("degraded: segment store"));
    wait_until("its cause is told", noticed, || {
        state("degraded").filter(|told| told.contains("connection refused: is the server running"))
    });
    // Demand in the outage: all tags ask on.
    let begun = Instant::now();
    for tag in (0..50).cycle().take_while(|_| begun.elapsed() < seconds(8)) {
        let _ = server.get(&format!("/api/segment/get/tag-{tag}"));
    }
    let log = server.output();
    let lines = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).count();
    assert!((2..=10).contains(&lines), "{lines} lines:\n{log}");
    database.restart();
    wait_until("it is noticed that the store is back", noticed, || state("ready"));
}

/// A server in another program ends with the future that runs it, also when that is dropped:
/// connections, sockets and the data directory are free again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_dropped_leaves_nothing_behind() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().into();
    let mut config = leaf_node::config::Config { data_dir, ..Default::default() };
    config.http.listen = "127.0.0.1:0".parse().unwrap();
    config.redis.listen = Some("127.0.0.1:0".parse().unwrap());
    config.ops.listen = "127.0.0.1:0".parse().unwrap();
    let mut last = 0;
    for round in 0..3 {
        let begun = Instant::now();
        let (server, mut client, id) = loop {
            let listeners = leaf_server::Listeners::bind(&config).unwrap();
            let redis = listeners.redis.as_ref().unwrap().local_addr().unwrap();
            let never = std::future::pending();
            let server = tokio::spawn(leaf_server::run(config.clone(), listeners, never));
            let mut reply = [0; 64];
            let asked = async {
                let mut client = tokio::net::TcpStream::connect(redis).await?;
                client.write_all(b"INCR leaf-segment-test\r\n").await?;
                let length = client.read(&mut reply).await?;
                Ok::<_, std::io::Error>((client, length))
            };
            let asked = tokio::time::timeout(seconds(20), asked).await.unwrap();
            if let Ok((client, length @ 1..)) = asked {
                let reply = std::str::from_utf8(&reply[..length]).unwrap();
                let id: i64 = reply.strip_prefix(':').unwrap().trim_end().parse().unwrap();
                break (server, client, id);
            }
            // Tasks of the one before are told to end, and do so a moment later.
            let refused = server.await.unwrap().unwrap_err().to_string();
            assert!(begun.elapsed() < seconds(10), "round {round}: {refused}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(id > last, "round {round}: {id} after {last}");
        last = id;

        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
        let mut rest = [0; 64];
        let end = client.read(&mut rest);
        let end = tokio::time::timeout(Duration::from_secs(5), end).await.unwrap();
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
}
