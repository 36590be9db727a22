//! Tags that are not plain, over several servers: scrambled ids, numbers of a day, two data
//! centres.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_testkit::{
    CallLog, FakeClock, Fault, FaultProxy, HttpClient, LeafServer, Ledger, Load, MariaDb, Plan,
    Postgres, Response, wait_until,
};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const KEYS: [&str; 3] = [
    "1 = 8f1d63a0c1b2e4957766554433221100ffeeddccbbaa99887766554433221100",
    "2 = 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdee",
    "2 = 3123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdee",
];

fn full() -> bool {
    std::env::var_os("LEAF_TEST_FULL").is_some()
}

/// A server with its directory.
struct Node {
    directory: tempfile::TempDir,
    url: String,
    env: Vec<(&'static str, String)>,
    server: LeafServer,
    address: Arc<Mutex<Option<SocketAddr>>>,
}

impl Node {
    fn start(url: &str, more: &[(&'static str, String)]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), url, more)
    }

    fn start_in(directory: tempfile::TempDir, url: &str, more: &[(&'static str, String)]) -> Self {
        let mut env = vec![
            ("LEAF_SNOWFLAKE__ENABLED", "false".to_owned()),
            ("LEAF_SEGMENT__REFRESH", "1s".to_owned()),
        ];
        env.extend_from_slice(more);
        let args = ["--segment-store", url];
        let server = LeafServer::start(SERVER, &directory.path().join("data"), &args, &env);
        let address = Arc::new(Mutex::new(Some(server.ids())));
        Self { directory, url: url.into(), env, server, address }
    }

    /// Kills it without a word, and starts it again.
    fn kill_and_start(&mut self) {
        *self.address.lock().unwrap() = None;
        self.server.kill();
        let args = ["--segment-store", &self.url];
        self.server =
            LeafServer::start(SERVER, &self.directory.path().join("data"), &args, &self.env);
        *self.address.lock().unwrap() = Some(self.server.ids());
    }

    fn load(&self, ledger: &Arc<Ledger>, name: &str, path: &str) -> Load {
        self.run(ledger, name, &Plan::of(path))
    }

    fn run(&self, ledger: &Arc<Ledger>, name: &str, plan: &Plan) -> Load {
        Load::start(ledger, name, &self.address, plan)
    }

    fn get(&self, path: &str) -> Response {
        HttpClient::once(self.server.ids(), "GET", path)
    }

    /// Lets it read its configuration again, with these keys in its file.
    fn reload(&mut self, keys: &[&str]) {
        write_keys(&self.directory.path().join("keys"), keys);
        self.server.process_mut().signal("HUP");
    }

    /// Asks the ops listener.
    fn ops(&self, method: &str, path: &str, body: &str) -> Response {
        let mut client = HttpClient::connect(self.server.ops()).unwrap();
        let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
        client.ask(method, path, headers, body).unwrap()
    }

    fn create(&self, body: &str) {
        let made = self.ops("POST", "/v1/tags", body);
        assert_eq!(made.status, 201, "{body}: {}", made.body);
    }

    fn ids(&self, tag: &str, count: usize) -> Vec<i64> {
        let answer = self.get(&format!("/v1/segments/{tag}/ids?count={count}"));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let ids = answer.json()["ids"].as_array().unwrap().clone();
        ids.iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect()
    }
}

fn until(what: &str, seconds: u64, ready: impl Fn() -> bool) {
    wait_until(what, Duration::from_secs(seconds), || ready().then_some(()));
}

/// Makes the tables of a new database.
fn database(server: &MariaDb) -> String {
    with_tables(MariaDb::url(server.port(), &server.new_database()))
}

fn with_tables(url: String) -> String {
    LeafServer::make_tables(SERVER, &url);
    url
}

fn write_keys(file: &Path, keys: &[&str]) {
    let _ = std::fs::remove_file(file);
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).unwrap();
    file.write_all(keys.join("\n").as_bytes()).unwrap();
}

/// A node with a file of keys.
fn with_keys(url: &str, keys: &[&str]) -> Node {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys");
    write_keys(&file, keys);
    let env = [("LEAF_SEGMENT__KEYS_FILE", file.display().to_string())];
    Node::start_in(directory, url, &env)
}

/// The numbers of scrambled ids, by a program that shares no code with Leaf.
fn decode_by_python(keys: &Path, ids: &[i64]) -> Vec<i64> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = root.join("target/python/bin/python");
    assert!(python.exists(), "the Python of the tests is missing: scripts/test installs it");
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("ids");
    let lines: String = ids.iter().map(|id| format!("{id}\n")).collect();
    std::fs::write(&input, lines).unwrap();
    let output = Command::new(python)
        .arg(root.join("docs/scramble.py"))
        .args(["--tag", "orders", "--shape", "scramble:63", "--keys"])
        .arg(keys)
        .stdin(Stdio::from(std::fs::File::open(input).unwrap()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// How far the counts are from all being equal.
fn chi_square(counts: &[usize]) -> f64 {
    let expected = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
    counts.iter().map(|count| (*count as f64 - expected).powi(2) / expected).sum()
}

/// Three nodes, one of which is killed, and a change of the key under load: no id repeats, another
/// program decodes every id, and neither the digits nor the order of ids reveals anything. A node
/// without the key serves nothing, and names the key that it needs.
#[test]
fn scrambled_ids_are_unique_and_show_nothing() {
    let server = MariaDb::shared();
    let url = database(&server);
    let mut nodes: Vec<Node> = (0..3).map(|_| with_keys(&url, &KEYS[..1])).collect();
    nodes[0].create(r#"{"tag":"orders","step":1000,"shape":"scramble:63"}"#);

    let wanted = if full() { 1_000_000 } else { 50_000 };
    let ledger = Arc::new(Ledger::default());
    let path = "/api/segment/get/orders";
    let plan = Plan { rising: false, ..Plan::of(path) };
    let loads: Vec<Load> = nodes
        .iter()
        .enumerate()
        .map(|(at, node)| node.run(&ledger, &format!("node {at}"), &plan))
        .collect();
    let reached = |count: usize| until("enough ids", 120, || ledger.len() >= count);
    reached(wanted / 4);
    nodes[1].kill_and_start();
    reached(wanted / 2);

    let early = nodes[0].ops("POST", "/v1/tags/orders/rekey", "");
    assert_eq!(early.status, 409, "there is no newer key yet: {}", early.body);
    nodes.iter_mut().for_each(|node| node.reload(&KEYS[..2]));
    for node in &nodes {
        until("reload", 10, || node.server.output().contains("reload: "));
    }
    let refused: Vec<u64> = loads.iter().map(|load| load.report().refused).collect();
    let rekeyed = nodes[2].ops("POST", "/v1/tags/orders/rekey", "");
    assert_eq!((rekeyed.status, &rekeyed.json()["key"]), (200, &2.into()), "{}", rekeyed.body);
    let version = |id: i64| id >> 60;
    until("the new key", 30, || {
        nodes.iter().all(|node| version(node.get(path).body.parse::<i64>().unwrap()) == 2)
    });
    reached(wanted);
    let reports: Vec<_> = loads.into_iter().map(Load::end).collect();
    for (at, (report, before)) in reports.iter().zip(refused).enumerate() {
        assert_eq!(report.refused, before, "node {at} refused ids while the key changed");
    }

    // Ids of one connection, in their order.
    let issuer: Arc<str> = "one after the other".into();
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.extend(nodes[0].ids("orders", 1000));
    }
    ids.iter().for_each(|id| ledger.record(&issuer, *id));
    let (mut digits, mut bytes) = (vec![0; 10], vec![0; 256]);
    for id in &ids {
        digits[(id % 10) as usize] += 1;
        bytes[(id % 256) as usize] += 1;
    }
    // A good permutation is above these once in a million times.
    let (of_digits, of_bytes) = (chi_square(&digits), chi_square(&bytes));
    assert!(of_digits < 45.0, "last digits: {of_digits} {digits:?}");
    assert!(of_bytes < 375.0, "low bytes: {of_bytes}");
    let rising = ids.windows(2).filter(|pair| pair[0] < pair[1]).count() as f64;
    let rising = rising / (ids.len() - 1) as f64;
    assert!((rising - 0.5).abs() < 0.01, "{rising} of the neighbours rise");

    // All of them, by Python: different numbers, that the store has granted.
    let all: Vec<i64> = ledger.ids().into_iter().map(|(id, _)| id).collect();
    assert!(all.iter().any(|id| version(*id) == 1) && all.iter().any(|id| version(*id) == 2));
    let numbers = decode_by_python(&nodes[0].directory.path().join("keys"), &all);
    let different: BTreeSet<i64> = numbers.iter().copied().collect();
    let max_id = nodes[0].ops("GET", "/v1/tags/orders", "").json()["max_id"].clone();
    let max_id: i64 = max_id.as_str().unwrap().parse().unwrap();
    assert_eq!((different.len(), all.len()), (all.len(), numbers.len()));
    assert!(different.first() >= Some(&1) && different.last() < Some(&max_id));
    println!("{} ids, digits {of_digits:.1}, bytes {of_bytes:.1}, rising {rising:.4}", all.len());
    let told = nodes[0].ops("GET", &format!("/v1/tags/orders/ids/{}", all[0]), "");
    assert_eq!(told.json()["number"], numbers[0].to_string(), "{}", told.body);

    // Another key of the same version, and none: neither issues an id, before it has the right one.
    for (keys, problem) in [
        (&[KEYS[0], KEYS[2]][..], "key 2 is not the one that the tag was made with"),
        (&KEYS[..1], "key 2 is missing"),
    ] {
        let mut node = with_keys(&url, keys);
        for path in [path, "/v1/segments/orders/ids?count=5"] {
            let refused = node.get(path);
            assert_eq!(refused.status, 503, "{}", refused.body);
            assert!(refused.body.contains(problem), "{}", refused.body);
        }
        let ready = HttpClient::once(node.server.ops(), "GET", "/readyz");
        assert_eq!(ready.status, 200);
        assert!(ready.body.contains("degraded") && ready.body.contains(problem), "{}", ready.body);
        node.reload(&KEYS[..2]);
        until("ids", 10, || node.get(path).status == 200);
        ledger.record(&issuer, node.ids("orders", 1)[0]);
        let ready = HttpClient::once(node.server.ops(), "GET", "/readyz");
        assert!(!ready.body.contains("degraded"), "{}", ready.body);
    }
}

/// Ids that form no ranges cannot be leased. A file of keys that others can read is refused, and so
/// is a scrambled tag on a node without keys.
#[test]
fn keys_and_ranges_that_cannot_be() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("leaf.db").display());
    let mut node = with_keys(&store, &KEYS[..1]);
    node.create(r#"{"tag":"orders","step":10,"shape":"scramble:d10"}"#);
    let lease = HttpClient::once(node.server.ids(), "POST", "/v1/segments/orders/lease?count=5");
    assert_eq!((lease.status, lease.body.contains("list")), (409, true), "{}", lease.body);
    let ids = node.ids("orders", 50);
    assert!(ids.iter().all(|id| (1_000_000_000..2_000_000_000).contains(id)), "{ids:?}");
    let different: BTreeSet<&i64> = ids.iter().collect();
    assert_eq!(different.len(), 50);

    let shown = node.server.output();
    assert!(!shown.contains(&KEYS[0][4..]), "the key is in the log");
    let file = node.directory.path().join("keys");
    Command::new("chmod").arg("644").arg(&file).status().unwrap();
    node.server.process_mut().signal("HUP");
    until("refusal", 10, || node.server.output().contains("chmod 600"));
    assert_eq!(node.ids("orders", 1).len(), 1, "what is in use stays in use");

    let args = ["--segment-store", &store];
    let env = [("LEAF_SEGMENT__KEYS_FILE", file.display().to_string())];
    let mut refused = LeafServer::process(SERVER, &node.directory.path().join("b"), &args, &env);
    assert_eq!(refused.wait(Duration::from_secs(10)).code(), Some(2));
    assert!(refused.output().contains("chmod 600"), "{}", refused.output());
    let without = Node::start(&store, &[]);
    let made =
        without.ops("POST", "/v1/tags", r#"{"tag":"other","step":10,"shape":"scramble:63"}"#);
    assert!(made.status == 409 && made.body.contains("segment.keys_file"), "{}", made.body);
}

/// Seconds from now to a moment, as libfaketime takes them.
fn offset(to: &str, seconds: i64) -> String {
    let to: jiff::Timestamp = to.parse().unwrap();
    let offset = to.as_second() + seconds - jiff::Timestamp::now().as_second();
    format!("{offset:+}")
}

/// Midnight under load, on servers whose clocks differ by 90 s: the first to see it opens the day
/// for all.
#[test]
fn numbers_begin_again_at_midnight_for_all_nodes() {
    let server = MariaDb::shared();
    let pause = Duration::from_millis(if full() { 2 } else { 15 });
    for (zone, midnight, days) in [
        ("Europe/Berlin", "2026-11-21T23:00:00Z", ["261121", "261122"]),
        // Before today, by whose clock the database goes.
        ("America/New_York", "2026-11-20T05:00:00Z", ["261119", "261120"]),
    ] {
        let url = database(&server);
        let clocks: Vec<FakeClock> = [-6, -96, -51]
            .map(|seconds| {
                let clock = FakeClock::new();
                clock.set(&offset(midnight, seconds));
                clock
            })
            .into();
        let mut nodes: Vec<Node> =
            clocks.iter().map(|clock| Node::start(&url, &clock.environment())).collect();
        nodes[0].create(&format!(
            r#"{{"tag":"orders","reset":"daily","time_zone":"{zone}","text":"T-{{date:%y%m%d}}{{n:06}}{{luhn}}"}}"#
        ));
        let log = CallLog::default();
        let (done, texts) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
        std::thread::scope(|scope| {
            for caller in 0..9 {
                let (node, log, done, texts) = (&nodes[caller % 3], &log, &done, &texts);
                scope.spawn(move || {
                    let mut client = HttpClient::connect(node.server.ids()).unwrap();
                    while !done.load(Ordering::SeqCst) {
                        let sent = log.now();
                        let answer =
                            client.request("GET", "/v1/segments/orders/ids?as=text").unwrap();
                        assert_eq!(answer.status, 200, "{}", answer.body);
                        let text = answer.json()["ids"][0].as_str().unwrap().to_owned();
                        let (day, number) = (&text[2..8], &text[8..14]);
                        let id: i64 = format!("20{day}{number}").parse().unwrap();
                        log.record(sent, id, id);
                        assert!(texts.lock().unwrap().insert(text.clone()), "{text} came twice");
                        std::thread::sleep(pause);
                    }
                });
            }
            std::thread::sleep(Duration::from_secs(12));
            done.store(true, Ordering::SeqCst);
        });
        log.expect_strict_order(500);
        let texts = texts.into_inner().unwrap();
        for day in days {
            let of_day = texts.iter().filter(|text| text[2..8] == *day);
            let numbers: Vec<usize> = of_day.map(|text| text[8..14].parse().unwrap()).collect();
            // From 1 on, and no number was lost: nobody was killed.
            assert!(numbers.len() > 50, "{zone} {day}: {} ids", numbers.len());
            let first: Vec<usize> = (1..=numbers.len()).collect();
            assert_eq!(numbers, first, "{zone} {day}");
        }
        assert!(texts.iter().all(|text| days.contains(&&text[2..8])));

        // A text is read back; one with an altered character is none.
        let text = texts.last().unwrap();
        let read = nodes[1].get(&format!("/v1/ids/{text}?tag=orders"));
        assert_eq!(read.json()["id"], format!("20{}", &text[2..14]), "{}", read.body);
        let altered = text.replace('6', "7");
        assert_eq!(nodes[1].get(&format!("/v1/ids/{altered}?tag=orders")).status, 404);

        // A clock that is set back by two days is not followed at once. A node that starts with
        // this clock opens no old day, and reports what is wrong.
        clocks[1].set(&offset(midnight, -2 * 86_400));
        assert_eq!(nodes[1].ids("orders", 1).len(), 1);
        nodes[1].kill_and_start();
        let behind = nodes[1].get("/v1/segments/orders/ids");
        assert_eq!(behind.status, 503, "{}", behind.body);
        assert!(behind.body.contains("clock is wrong"), "{}", behind.body);
        let told = format!("numbers of 20{} were granted already", days[1]);
        until(&told, 5, || nodes[1].server.output().contains(&told));
        assert_eq!(nodes[0].ids("orders", 1).len(), 1, "the others go on");
    }
}

/// A request beyond the last number of a day gets an error, never a longer number. Earlier requests
/// get their numbers.
#[test]
fn a_full_day_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("leaf.db").display());
    let clock = FakeClock::new();
    clock.set(&offset("2026-11-21T12:00:00Z", 0));
    let mut node = Node::start(&store, &clock.environment());
    node.create(r#"{"tag":"tiny","reset":"daily","text":"{date:%y%m%d}{n:02}"}"#);
    let granted = Mutex::new(BTreeSet::new());
    let refused = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let mut client = HttpClient::connect(node.server.ids()).unwrap();
                for _ in 0..12 {
                    let answer = client.request("GET", "/v1/segments/tiny/ids").unwrap();
                    match answer.status {
                        200 => {
                            let id = answer.json()["ids"][0].as_str().unwrap().to_owned();
                            assert!(granted.lock().unwrap().insert(id.clone()), "{id} came twice");
                        }
                        409 => _ = refused.fetch_add(1, Ordering::SeqCst),
                        status => panic!("{status} {}", answer.body),
                    }
                }
            });
        }
    });
    assert_eq!((granted.lock().unwrap().len(), refused.load(Ordering::SeqCst)), (99, 21));
    clock.set(&offset("2026-11-22T00:00:10Z", 0));
    node.kill_and_start();
    let next = node.get("/v1/segments/tiny/ids?as=text");
    assert_eq!(next.json()["ids"][0], "26112201", "{}", next.body);

    // As many as six digits have: the last is one below a million.
    node.create(r#"{"tag":"orders","reset":"daily","text":"{date:%y%m%d}{n:06}"}"#);
    let mut last = 0;
    for count in std::iter::repeat_n(1000, 999).chain([998]) {
        last = *node.ids("orders", count).last().unwrap();
    }
    assert_eq!(last, 20_261_122_999_998);
    assert_eq!(node.get("/v1/segments/orders/ids?count=2").status, 409, "one is left");
    assert_eq!(node.ids("orders", 1), [20_261_122_999_999]);
    let full = node.get("/v1/segments/orders/ids");
    assert_eq!((full.status, full.body.contains("used up")), (409, true), "{}", full.body);
}

/// The clock is a year wrong for two seconds, ahead or behind: no other period is opened, ids flow,
/// the node reports its doubt, and is ready again once the clock is right.
#[test]
fn a_clock_that_is_wrong_for_a_moment_opens_no_period() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("leaf.db").display());
    let clock = FakeClock::new();
    let right = offset("2026-11-21T12:00:00Z", 0);
    clock.set(&right);
    let node = Node::start(&store, &clock.environment());
    node.create(r#"{"tag":"orders","reset":"daily"}"#);
    node.create(r#"{"tag":"invoices","reset":"yearly"}"#);
    let ready = || HttpClient::once(node.server.ops(), "GET", "/readyz").body;
    let mut next = 1;
    let mut goes_on = || {
        assert_eq!(node.ids("orders", 1), [20_261_121_000_000 + next]);
        assert_eq!(node.ids("invoices", 1), [2_026_000_000 + next]);
        next += 1;
    };
    goes_on();

    for year in ["2027-11-21T12:00:00Z", "2025-11-21T12:00:00Z"] {
        clock.set(&offset(year, 0));
        for _ in 0..20 {
            goes_on();
            std::thread::sleep(Duration::from_millis(100));
        }
        let doubt = ready();
        assert!(doubt.contains("periods go on as if it had not been"), "{doubt}");
        clock.set(&right);
        goes_on();
        until("it doubts no more", 5, || !ready().contains("periods go on"));
    }
    goes_on();
}

/// A node starts with its clock ahead of the database's clock, and must open no period.
#[test]
fn a_start_with_a_clock_that_is_ahead_opens_no_period() {
    let (mariadb, postgres) = (MariaDb::shared(), Postgres::shared());
    let in_postgres = Postgres::url(postgres.port(), &postgres.new_database());
    for url in [database(&mariadb), with_tables(in_postgres)] {
        let right = Node::start(&url, &[]);
        right.create(r#"{"tag":"orders","reset":"daily"}"#);
        let clock = FakeClock::new();
        clock.set("+172800");
        let ahead = Node::start(&url, &clock.environment());
        for _ in 0..3 {
            let refused = ahead.get("/v1/segments/orders/ids");
            assert_eq!(
                (refused.status, refused.body.contains("ahead of the store's")),
                (503, true)
            );
        }
        let ready = HttpClient::once(ahead.server.ops(), "GET", "/readyz").body;
        assert!(
            ready.starts_with("degraded") && ready.contains("of the store's server"),
            "{ready}"
        );
        let today: i64 = jiff::Timestamp::now().strftime("%Y%m%d").to_string().parse().unwrap();
        let id = right.ids("orders", 1)[0];
        assert!([1, 1_000_001].contains(&(id - today * 1_000_000)), "{id}, or the next day");
    }
}

/// Two data centres, each with its own database, and a third that joins later. Ids of sliced and
/// interleaved tags never repeat, while connections are cut and nodes are killed.
#[test]
fn data_centres_share_no_id() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let servers: Vec<MariaDb> = (0..2).map(|_| MariaDb::start()).collect();
    let (sliced, residues) = (Arc::new(Ledger::default()), Arc::new(Ledger::default()));
    let mut centres = Vec::new();
    let mut loads = Vec::new();
    let mut open = |index: usize, server: &MariaDb| {
        let direct = database(server);
        let proxy = runtime.block_on(FaultProxy::start(([127, 0, 0, 1], server.port()).into()));
        let name = direct.rsplit('/').next().unwrap();
        let url = MariaDb::url(proxy.address().port(), name);
        let nodes: Vec<Node> = (0..3).map(|_| Node::start(&url, &[])).collect();
        nodes[0].create(&format!(r#"{{"tag":"orders","step":50,"slice":"{index}/8"}}"#));
        nodes[0].create(&format!(r#"{{"tag":"chat","step":50,"shape":"interleave:{index}/8"}}"#));
        for (at, node) in nodes.iter().enumerate() {
            let name = format!("centre {index} node {at}");
            loads.push(node.load(&sliced, &name, "/api/segment/get/orders"));
            loads.push(node.load(&residues, &name, "/api/segment/get/chat"));
        }
        centres.push((proxy, nodes));
    };
    for (index, server) in servers.iter().enumerate() {
        open(index, server);
    }
    // The third joins under load. Its database is on the first server: only the part of the tags
    // matters.
    open(2, &servers[0]);
    let rounds = if full() { 20 } else { 3 };
    for round in 0..rounds {
        for (proxy, nodes) in &mut centres {
            proxy.set(Fault::Cut);
            std::thread::sleep(Duration::from_millis(300));
            proxy.set(Fault::None);
            nodes[round % 3].kill_and_start();
        }
    }
    loads.into_iter().for_each(|load| _ = load.end());
    sliced.expect_at_least(10_000);
    residues.expect_at_least(10_000);
    for (id, issuer) in sliced.ids() {
        assert!(issuer.starts_with(&format!("centre {} ", id >> 60)), "{id} of {issuer}");
    }
    for (id, issuer) in residues.ids() {
        assert!(issuer.starts_with(&format!("centre {} ", id % 8)), "{id} of {issuer}");
    }
}
