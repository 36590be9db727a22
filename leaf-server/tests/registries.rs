//! Servers that get their worker ids from every kind of registry, and what must not repeat an id
//! there.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leaf_testkit::{
    Etcd, FakeClock, HttpClient, LeafServer, Ledger, Load, MariaDb, Plan, Postgres, Slices,
    ZooKeeper, wait_until,
};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SNOWFLAKE: &str = "/api/snowflake/get/x";

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A cluster of nodes with one registry.
struct Cluster {
    home: tempfile::TempDir,
    /// Lines of the section `snowflake`; `top` are the lines before the sections.
    snowflake: String,
    top: String,
}

impl Cluster {
    fn new(top: &str, snowflake: &str) -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            snowflake: snowflake.into(),
            top: format!("{top}\n"),
        }
    }

    fn data(&self, node: &str) -> PathBuf {
        self.home.path().join(node.replace(':', "-"))
    }

    fn config(&self, node: &str, more: &str) -> String {
        let file = self.home.path().join(format!("{}.toml", node.replace(':', "-")));
        let text = format!(
            "{}advertise = '{node}'\n[segment]\nenabled = false\n[snowflake]\n{}\n{more}\n",
            self.top, self.snowflake
        );
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    }

    /// Starts a node and waits until it is ready.
    fn start(&self, node: &str) -> LeafServer {
        let mut server = self.launch(node, node, "", &[]);
        server.wait_ready();
        server
    }

    fn launch(&self, node: &str, data: &str, more: &str, env: &[(&str, String)]) -> LeafServer {
        let config = self.config(node, more);
        LeafServer::launch(SERVER, &self.data(data), &["--config", &config], env)
    }

    fn schema(&self) {
        let config = self.config("schema:1", "");
        let args = ["--config", &config, "schema", "--apply"];
        let mut schema = LeafServer::process(SERVER, &self.data("schema"), &args, &[]);
        assert!(schema.wait(seconds(20)).success(), "{}", schema.output());
    }
}

/// The worker id that is in the ids.
fn worker(server: &LeafServer) -> i64 {
    server.id(SNOWFLAKE) >> 12 & 1023
}

/// Asserts that ids flow at once, that a node keeps its worker id over a crash and a stop, and that
/// two nodes have different ones.
fn lives(cluster: &Cluster) {
    cluster.schema();
    let mut first = cluster.start("127.0.0.1:7001");
    let second = cluster.start("127.0.0.1:7002");
    let (own, other) = (worker(&first), worker(&second));
    assert_ne!(own, other);
    let last = first.id(SNOWFLAKE);

    first.kill();
    let mut first = cluster.start("127.0.0.1:7001");
    assert_eq!(worker(&first), own, "after a crash");
    assert!(first.id(SNOWFLAKE) > last);
    assert!(first.stop().success());
    let first = cluster.start("127.0.0.1:7001");
    assert_eq!(worker(&first), own, "after a stop");
}

#[test]
fn zk_normal() {
    let server = ZooKeeper::shared();
    let address = ZooKeeper::address(&server.ports());
    let name = format!("name = '{}'", server.new_name());
    lives(&Cluster::new(&name, &format!("registry = 'zk-normal://{address}/chroot/x'")));
}

#[test]
fn zk_recycle() {
    let server = ZooKeeper::shared();
    let address = ZooKeeper::address(&server.ports());
    let name = format!("name = '{}'", server.new_name());
    // In a chroot: what a login makes is its own, and other tests have none.
    lives(&Cluster::new(&name, &format!("registry = 'zk-recycle://u:p@{address}/of-u'")));
}

#[test]
fn mysql() {
    let server = MariaDb::shared();
    let url = MariaDb::url(server.port(), &server.new_database());
    lives(&Cluster::new("", &format!("registry = '{url}'")));
}

#[test]
fn postgres() {
    let server = Postgres::shared();
    let url = Postgres::url(server.port(), &server.new_database());
    lives(&Cluster::new("", &format!("registry = '{url}'")));
}

#[test]
fn sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("workers.db");
    lives(&Cluster::new("", &format!("registry = 'sqlite:{}'", file.display())));
}

#[test]
fn etcd() {
    let server = Etcd::shared();
    let url = Etcd::url(&server.ports(), &server.new_name());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{url}\n")).unwrap();
    let file = file.path().display();
    lives(&Cluster::new("", &format!("registry_file = '{file}'")));
}

/// The worker id is the number in the host name; the fence is in the data directory or in a store.
#[test]
fn ordinal() {
    let database = tempfile::tempdir().unwrap();
    let store = format!("+sqlite:{}", database.path().join("o.db").display());
    for fence in ["", &store] {
        let cluster =
            Cluster::new("", &format!("registry = 'ordinal{fence}'\nordinal_offset = 100"));
        let start = |host: &str, data: &str| {
            let more = format!("host_name = '{host}'");
            let mut server = cluster.launch(&format!("{host}:1"), data, &more, &[]);
            server.wait_ready();
            server
        };
        let mut first = start("leaf-3.leaf.default.svc", "leaf-3");
        let second = start("leaf-4", "leaf-4");
        assert_eq!((worker(&first), worker(&second)), (103, 104));
        first.kill();
        let first = start("leaf-3", "leaf-3");
        assert_eq!(worker(&first), 103);
    }
    // A second pod of that number, without the first one's volume.
    let cluster = Cluster::new("", &format!("registry = 'ordinal{store}'\nhost_name = 'leaf-103'"));
    let third = cluster.launch("leaf-103:2", "third", "", &[]);
    let _ = third.not_ready("the worker id is in use");
}

#[test]
fn a_name_that_is_in_use_is_refused() {
    let zookeeper = ZooKeeper::shared();
    let address = ZooKeeper::address(&zookeeper.ports());
    let name = format!("name = '{}'", zookeeper.new_name());
    let cluster = Cluster::new(&name, &format!("registry = 'zk-normal://{address}'"));
    let first = cluster.start("127.0.0.1:7001");
    let second = cluster.launch("127.0.0.1:7001", "other", "", &[]);
    let why = second.not_ready("the worker id is in use");
    assert!(why.contains("s ago") && why.contains("leaf worker release"), "{why}");
    assert!(first.id(SNOWFLAKE) > 0);
}

/// How long a client may be without an id where a fault is not to be noticed: these machines are
/// shared.
const MOMENT: Duration = Duration::from_secs(1);

/// A client of a server, whose ids go into the ledger.
fn load(ledger: &Arc<Ledger>, issuer: &str, server: &LeafServer) -> Load {
    Load::at(ledger, issuer, server.ids(), &Plan::of(SNOWFLAKE))
}

const SHORT: &str = "offline_for = '1500ms'\nreport_interval = '200ms'\nrecycle_after = '0s'";

/// W-02: a process is frozen until its worker id is taken over; it repeats nothing when it goes on.
/// Where worker ids are recycled there are only two: the third node gets that of the frozen node,
/// and the frozen node later gets that of the second node, once the second has stopped.
fn a_frozen_node_repeats_nothing(cluster: &Cluster, recycled: bool) {
    let ledger = Arc::new(Ledger::default());
    let worker_of = |id: i64| if recycled { id >> 12 & 1 } else { id >> 12 & 1023 };
    let mut first = cluster.start("127.0.0.1:7001");
    let own = worker_of(first.id(SNOWFLAKE));
    let mut second = recycled.then(|| cluster.start("127.0.0.1:7002"));
    let frozen = load(&ledger, "the frozen one", &first);
    std::thread::sleep(Duration::from_millis(300));
    first.process_mut().signal("STOP");

    // Its clients' requests wait in the socket all the time.
    let name = if recycled { "127.0.0.1:7003" } else { "127.0.0.1:7001" };
    let mut third = cluster.launch(name, "third", "", &[]);
    third.wait_ready();
    assert_eq!(worker_of(third.id(SNOWFLAKE)), own, "taken over");
    let successor = load(&ledger, "the one after it", &third);
    std::thread::sleep(Duration::from_millis(300));
    first.process_mut().signal("CONT");

    wait_until("the first has heard of it", seconds(10), || {
        (first.get(SNOWFLAKE).status == 503).then_some(())
    });
    if let Some(second) = &mut second {
        assert!(second.stop().success());
        wait_until("the first has another worker id", seconds(20), || {
            let answer = first.get(SNOWFLAKE);
            answer.body.parse().is_ok_and(|id| worker_of(id) != own).then_some(())
        });
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(frozen.report().refused > 0);
    successor.expect_unnoticed("the one after it", MOMENT);
    assert_eq!(frozen.end().lost_connections + successor.end().lost_connections, 0);
    ledger.expect_at_least(100);
    expect_slices(&ledger, recycled);
    assert!(first.output().contains("the ids of this lease stop"), "{}", first.output());
}

/// Asserts that all timestamps of the frozen node under its first worker id are below its
/// successor's, also those of ids that it issued after it was woken.
fn expect_slices(ledger: &Ledger, recycled: bool) {
    let mut slices = Slices::default();
    let mut own = None;
    let mut ids = ledger.ids();
    ids.sort_unstable_by_key(|(id, _)| *id);
    for (id, issuer) in ids {
        let worker = u32::try_from(if recycled { id >> 12 & 1 } else { id >> 12 & 1023 }).unwrap();
        let at = u64::try_from(if recycled { id >> 13 } else { id >> 22 }).unwrap();
        let holder = u64::from(&*issuer != "the frozen one");
        // Its first is the one that is taken over; what it gets instead was the stopped node's.
        if holder == 0 && *own.get_or_insert(worker) != worker {
            continue;
        }
        slices.record(worker, holder, at).unwrap();
    }
    assert_eq!(slices.holders(own.unwrap()), 2, "it did change hands");
}

#[test]
fn a_frozen_node_of_zk_normal_repeats_nothing() {
    let server = ZooKeeper::shared();
    let address = ZooKeeper::address(&server.ports());
    let name = format!("name = '{}'", server.new_name());
    let snowflake = format!("registry = 'zk-normal://{address}'\n{SHORT}");
    a_frozen_node_repeats_nothing(&Cluster::new(&name, &snowflake), false);
}

#[test]
fn a_frozen_node_of_etcd_moves_on() {
    let server = Etcd::shared();
    let url = Etcd::url(&server.ports(), &server.new_name());
    let layout = "layout = 't41-w1-s12/1ms'";
    let snowflake = format!("registry = '{url}'\n{SHORT}\n{layout}");
    a_frozen_node_repeats_nothing(&Cluster::new("", &snowflake), true);
}

/// W-16: the leader of the ensemble is killed again and again, and no request fails.
fn a_lost_leader_is_not_noticed(cluster: &Cluster, crash: impl Fn(), says_again: &str) {
    let ledger = Arc::new(Ledger::default());
    let first = cluster.start("127.0.0.1:7001");
    let second = cluster.start("127.0.0.1:7002");
    let clients = [load(&ledger, "first", &first), load(&ledger, "second", &second)];
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(700));
        crash();
    }
    // A node may start right afterwards.
    let third = cluster.start("127.0.0.1:7003");
    let workers: BTreeSet<_> = [&first, &second, &third].map(worker).into();
    assert_eq!(workers.len(), 3);
    for clients in clients {
        clients.expect_unnoticed(says_again, MOMENT);
        let _ = clients.end();
    }
    ledger.expect_at_least(1000);
}

#[test]
fn a_lost_leader_of_zookeeper_is_not_noticed() {
    let servers = ZooKeeper::start(3);
    let address = ZooKeeper::address(&servers.ports());
    for registry in ["zk-normal", "zk-recycle"] {
        let name = format!("name = '{}'", servers.new_name());
        let snowflake = format!(
            "registry = '{registry}://{address}'\nreport_interval = '200ms'\n\
             session_timeout = '2s'\noffline_for = '30s'"
        );
        let crash = || {
            let member = servers.crash_leader();
            servers.start_again(member);
            servers.wait_for_answer();
        };
        a_lost_leader_is_not_noticed(&Cluster::new(&name, &snowflake), crash, registry);
    }
}

#[test]
fn a_lost_leader_of_etcd_is_not_noticed() {
    let servers = Etcd::start(3);
    let url = Etcd::url(&servers.ports(), "leaf");
    let snowflake = format!("registry = '{url}'\nreport_interval = '200ms'\noffline_for = '30s'");
    let crash = || {
        let member = servers.crash_leader();
        servers.start_again(member);
        servers.wait_for_answer();
    };
    a_lost_leader_is_not_noticed(&Cluster::new("", &snowflake), crash, "etcd");
}

/// W-16: ids flow while ZooKeeper is frozen for longer than a session lasts. Afterwards the node is
/// registered there again without a restart.
#[test]
fn an_expired_session_is_survived() {
    let zookeeper = ZooKeeper::start(1);
    let address = ZooKeeper::address(&zookeeper.ports());
    let snowflake = format!(
        "registry = 'zk-recycle://{address}'\nreport_interval = '200ms'\n\
         session_timeout = '1s'\noffline_for = '20s'"
    );
    let cluster = Cluster::new("", &snowflake);
    let ledger = Arc::new(Ledger::default());
    let first = cluster.start("127.0.0.1:7001");
    let clients = load(&ledger, "first", &first);

    zookeeper.signal("STOP");
    wait_until("the outage is told", seconds(10), || {
        let ready = HttpClient::once(first.ops(), "GET", "/readyz");
        assert_eq!(ready.status, 200, "{}", ready.body);
        ready.body.starts_with("degraded").then_some(())
    });
    std::thread::sleep(seconds(3));
    zookeeper.signal("CONT");
    wait_until("it is over", seconds(20), || {
        let ready = HttpClient::once(first.ops(), "GET", "/readyz");
        (ready.body == "ready").then_some(())
    });
    clients.expect_unnoticed("an expired session", MOMENT);
    let _ = clients.end();
    ledger.expect_at_least(1000);

    // It is seen as alive again: the next one compares its clock.
    wait_until("a second node finds it", seconds(20), || {
        let mut second = cluster.start("127.0.0.1:7002");
        let found = second.output().contains("the clock agrees with");
        assert!(second.stop().success());
        found.then_some(())
    });
}

/// W-13: a node whose clock disagrees with the other nodes claims nothing, and reports it.
#[test]
fn a_wrong_clock_is_refused_by_the_peers() {
    let server = Postgres::shared();
    let url = Postgres::url(server.port(), &server.new_database());
    let cluster = Cluster::new("", &format!("registry = '{url}'"));
    cluster.schema();
    let nodes = ["127.0.0.1:7001", "127.0.0.1:7002"].map(|node| {
        // The name is also where its clock is asked for: the port is the one that it listens on.
        cluster.start(node)
    });
    let clock = FakeClock::new();
    clock.set("+600");
    let check = || {
        let config = cluster.config("127.0.0.1:7003", "");
        let args = ["--config", config.as_str(), "check"];
        let data = cluster.data("wrong");
        let mut check = LeafServer::process(SERVER, &data, &args, &clock.environment());
        (check.wait(seconds(30)).success(), check.output())
    };
    let (passed, told) = check();
    assert!(!passed && told.contains("FAIL  clocks of the other nodes: snowflake: "), "{told}");
    let mut right = cluster.launch("127.0.0.1:7003", "wrong", "", &clock.environment());
    let why = right.not_ready("ahead of its peers'");
    assert!(why.contains("0 of "), "{why}");

    clock.set("+2");
    let (passed, told) = check();
    assert!(passed && told.contains("2 of 2 agree with this one"), "{told}");
    right.wait_ready();
    wait_until("the clock agrees", seconds(20), || {
        right.output().contains("the clock agrees with").then_some(())
    });
    // And by how much it differs, as it goes on to tell.
    let peers = wait_until("the clocks are read", seconds(20), || {
        let peers =
            HttpClient::once(right.ops(), "GET", "/v1/status").json()["snowflake"]["peers"].take();
        peers.as_array().filter(|peers| peers.len() == 2).cloned()
    });
    for peer in &peers {
        let number = |key: &str| peer[key].as_i64().unwrap();
        let (offset, uncertainty) = (number("clock_offset_ms"), number("uncertainty_ms"));
        assert!((offset - 2000).abs() <= uncertainty + 100, "{peer}");
    }
    let page = HttpClient::once(right.ops(), "GET", "/metrics").body;
    assert!(page.contains("leaf_peers_reached 2"), "{page}");
    for of in ["least", "median", "greatest"] {
        let name = format!("leaf_peer_clock_offset_seconds{{of=\"{of}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&name)).unwrap();
        let value: f64 = value.parse().unwrap();
        assert!((1.5..2.5).contains(&value), "{of}: {value}");
    }
    let told = nodes[0].get("/clock");
    assert_eq!(told.status, 200);
    let told: u128 = told.body.parse().unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    assert!(now.abs_diff(told) < 5000);

    // And who wants Leaf's rule, or none, has it.
    let more = "clock_check = 'off'";
    clock.set("+600");
    let mut unchecked = cluster.launch("127.0.0.1:7004", "unchecked", more, &clock.environment());
    unchecked.wait_ready();
}

/// The file of a shared SQLite registry and store is removed, or an older copy put in its place,
/// while a node runs: the node notices, says so, and issues nothing that the next one may issue,
/// too.
#[test]
fn a_database_file_that_is_not_in_its_place_ends_both_modes() {
    for put_back in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("leaf.db");
        let start = |node: &str| {
            let store = format!("sqlite:{}", file.display());
            let config = format!(
                "advertise = '{node}'\n[segment]\nstore = '{store}'\nrefresh = '1s'\n\
                 [snowflake]\nregistry = '{store}'\nreport_interval = '200ms'\n"
            );
            let path = directory.path().join(node.replace(':', "-"));
            std::fs::write(path.with_extension("toml"), config).unwrap();
            let config = path.with_extension("toml").display().to_string();
            LeafServer::start(SERVER, &path, &["--config", &config], &[])
        };
        let first = start("127.0.0.1:7001");
        let backup = directory.path().join("backup.db");
        std::fs::copy(&file, &backup).unwrap();
        const SEGMENT: &str = "/api/segment/get/leaf-segment-test";
        assert_eq!((worker(&first), first.id(SEGMENT)), (0, 1));
        match put_back {
            true => std::fs::rename(&backup, &file).unwrap(),
            false => std::fs::remove_file(&file).unwrap(),
        }
        // What SQLite keeps beside its file, as `rm -r` and a restore with care do.
        for beside in ["db-wal", "db-shm"] {
            std::fs::remove_file(file.with_extension(beside)).unwrap();
        }

        // Within a report interval and a refresh.
        for path in [SNOWFLAKE, SEGMENT] {
            wait_until("the node has noticed", seconds(5), || {
                (first.get(path).status == 503).then_some(())
            });
        }
        let second = start("127.0.0.1:7002");
        let ledger = Arc::new(Ledger::default());
        let both =
            [("first", &first), ("second", &second)].map(|(name, it)| load(&ledger, name, it));
        std::thread::sleep(seconds(1));
        let [old, new] = both.map(Load::end);
        assert_eq!(old.issued, 0, "{}", first.output());
        assert!(new.issued > 100);
        let ready = HttpClient::once(first.ops(), "GET", "/readyz");
        assert_eq!(ready.status, 503);
        assert!(first.output().contains("removed or replaced while in use"), "{}", first.output());
    }
}

/// A server without the registry's tables keeps running, and continues once the tables exist.
#[test]
fn tables_that_are_missing_are_named_and_waited_for() {
    let server = Postgres::shared();
    let url = Postgres::url(server.port(), &server.new_database());
    let cluster = Cluster::new("", &format!("registry = '{url}'"));
    let mut node = cluster.launch("127.0.0.1:7001", "one", "", &[]);
    let why = node.not_ready("leaf_worker_fence");
    assert!(why.contains("schema --apply"), "{why}");
    cluster.schema();
    node.wait_ready();
    assert!(node.id(SNOWFLAKE) > 0);
}

/// `check` finds reasons to refuse a claim whatever the worker id: a missing right, or another
/// layout.
#[test]
fn check_finds_what_the_registry_would_refuse() {
    let (mysql, postgres) = (MariaDb::shared(), Postgres::shared());
    let in_mysql = mysql.new_database();
    let in_postgres = postgres.new_database();
    let port = mysql.port();
    let clusters = [MariaDb::url(port, &in_mysql), Postgres::url(postgres.port(), &in_postgres)]
        .map(|url| Cluster::new("", &format!("registry = '{url}'")));
    let check = |cluster: &Cluster, name: &str, more: &str| {
        let config = cluster.config(name, more);
        let args = ["--config", config.as_str(), "check"];
        let mut check = LeafServer::process(SERVER, &cluster.data(name), &args, &[]);
        (check.wait(seconds(30)).success(), check.output())
    };
    for cluster in &clusters {
        let (passed, told) = check(cluster, "127.0.0.1:7001", "");
        assert!(!passed && told.contains("schema --apply"), "{told}");
        cluster.schema();
        let (passed, told) = check(cluster, "127.0.0.1:7001", "");
        assert!(passed && told.contains("0 worker ids in use or used before"), "{told}");
        let node = cluster.start("127.0.0.1:7001");
        let (passed, told) = check(cluster, "127.0.0.1:7002", "layout = 'javascript'");
        assert!(!passed && told.contains("restore the setting"), "{told}");
        assert!(node.id(SNOWFLAKE) > 0);
    }
    mysql.sql(&format!(
        "CREATE USER looks@'127.0.0.1' IDENTIFIED BY 'x'; GRANT SELECT ON {in_mysql}.* TO looks@'127.0.0.1'"
    ));
    postgres.sql(&in_postgres, &format!("CREATE USER looks_{in_postgres} PASSWORD 'x'"));
    let grant = format!("GRANT SELECT ON ALL TABLES IN SCHEMA public TO looks_{in_postgres}");
    postgres.sql(&in_postgres, &grant);
    let at = postgres.port();
    for (url, missing) in [
        (format!("mysql://looks:x@127.0.0.1:{port}/{in_mysql}"), "command denied to user"),
        (
            format!("postgres://looks_{in_postgres}:x@127.0.0.1:{at}/{in_postgres}"),
            "permission denied for table leaf_worker_fence",
        ),
    ] {
        let cluster = Cluster::new("", &format!("registry = '{url}'"));
        let (passed, told) = check(&cluster, "127.0.0.1:7003", "");
        assert!(!passed && told.contains(missing), "{told}");
        assert!(told.contains("try to write worker ids in"), "{told}");
    }
}

/// ZooKeeper at an IPv6 literal, as the other places can be.
#[test]
fn zookeeper_is_reached_over_ipv6() {
    let zookeeper = ZooKeeper::shared();
    let port = zookeeper.ports()[0];
    // A machine without IPv6 cannot show it.
    let Ok(listener) = std::net::TcpListener::bind("[::1]:0") else { return };
    let place = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            let [(mut from, mut to), (mut back, mut there)] =
                [(&client, &server), (&server, &client)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || std::io::copy(&mut back, &mut there));
        }
    });
    let name = format!("name = '{}'", zookeeper.new_name());
    let cluster = Cluster::new(&name, &format!("registry = 'zk-normal://{place}'"));
    let node = cluster.start("[::1]:7001");
    assert!(node.id(SNOWFLAKE) > 0);
}
