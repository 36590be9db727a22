//! Members of families. Measures how many members a server makes a second by their first use, over
//! 64 connections; how many numbers a second members in strict order then give, spread over all of
//! them; and how a flood of new names affects a tag in use. `scripts/bench families
//! [sqlite|mariadb|postgres|etcd]...` runs it, by default in each store.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a benchmark may panic, and works in plain threads"
)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leaf_testkit::{Etcd, HttpClient, LeafServer, MariaDb, Postgres};

const CONNECTIONS: usize = 64;
/// The limit of each measurement. The etcd of the tests is full after some ten thousand writes.
const LIMIT: Duration = Duration::from_secs(4);

/// What is asked for.
#[derive(Debug, Clone, Copy)]
enum Ask {
    /// A member that nobody has asked for.
    New,
    /// Members that are there, in turn.
    Known,
}

/// How many answers there are in a second, and how many in all.
fn rate(server: &LeafServer, family: &str, ask: Ask, members: usize) -> (f64, usize) {
    let (next, begun) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut client = HttpClient::connect(server.ids()).unwrap();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let over = matches!(ask, Ask::New) && n >= members;
                    if over || begun.elapsed() > LIMIT {
                        next.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                    let path = format!("/api/segment/get/{family}/{}", n % members);
                    let answer = client.request("GET", &path).unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.body);
                }
            });
        }
    });
    let answers = next.load(Ordering::Relaxed);
    (answers as f64 / begun.elapsed().as_secs_f64(), answers)
}

/// How long 99 of 100 requests for one tag take at most, asked one after the other.
fn slowest(server: &LeafServer) -> Duration {
    let mut client = HttpClient::connect(server.ids()).unwrap();
    let mut took: Vec<Duration> = (0..5_000)
        .map(|_| {
            let asked = Instant::now();
            let answer = client.request("GET", "/api/segment/get/leaf-segment-test").unwrap();
            assert_eq!(answer.status, 200, "{}", answer.body);
            asked.elapsed()
        })
        .collect();
    took.sort();
    took[took.len() / 100 * 99]
}

/// Measures the 99th percentile of the time of requests for a known tag, while 64 other connections
/// request names that `name` makes. Returns it with the number of those requests per second.
fn slowest_beside(server: &LeafServer, name: impl Fn(usize) -> String + Sync) -> (Duration, f64) {
    let (over, asked, begun) = (AtomicBool::new(false), AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut client = HttpClient::connect(server.ids()).unwrap();
                while !over.load(Ordering::Relaxed) {
                    let first = asked.fetch_add(100, Ordering::Relaxed);
                    let request =
                        |n| format!("GET /api/segment/get/{} HTTP/1.1\r\nHost: a\r\n\r\n", name(n));
                    let requests: String = (first..first + 100).map(request).collect();
                    client.send(&requests).unwrap();
                    (0..100).for_each(|_| assert!(client.read().is_ok()));
                }
            });
        }
        let slowest = slowest(server);
        over.store(true, Ordering::Relaxed);
        (slowest, asked.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
    })
}

/// What a flood of names does to a tag that is known.
fn flood() {
    let directory = tempfile::tempdir().unwrap();
    let binary = env!("CARGO_BIN_EXE_leaf-server");
    let server = LeafServer::start(binary, directory.path(), &[], &[]);
    create(&server, "few", r#""step":10"#);
    let alone = slowest(&server);
    let (known, rate) = slowest_beside(&server, |_| "leaf-segment-test".into());
    println!(
        "one tag: 99 of 100 within {alone:?} alone, {known:?} beside {rate:.0} requests a second for it"
    );
    for (kind, prefix) in [("names that do not exist", "none"), ("new members of a family", "few/")]
    {
        let before = server.resident_kib();
        let (flooded, rate) = slowest_beside(&server, |n| format!("{prefix}{n}"));
        let grown = server.resident_kib().saturating_sub(before);
        println!("beside {rate:.0} a second of {kind}: {flooded:?}, and {grown} KiB more");
    }
}

/// Makes a family in the default store.
fn create(server: &LeafServer, family: &str, kind: &str) {
    let body = format!(r#"{{"tag":"{family}/*","family":true,{kind}}}"#);
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let mut ops = HttpClient::connect(server.ops()).unwrap();
    let answer = ops.ask("POST", "/v1/tags", headers, &body).unwrap();
    assert_eq!(answer.status, 201, "{}", answer.body);
}

fn bench(place: &str) {
    let (mariadb, postgres, etcd);
    let url = match place {
        "sqlite" => "sqlite:leaf.db".to_owned(),
        "mariadb" => {
            mariadb = MariaDb::shared();
            MariaDb::url(mariadb.port(), &mariadb.new_database())
        }
        "postgres" => {
            postgres = Postgres::shared();
            Postgres::url(postgres.port(), &postgres.new_database())
        }
        "etcd" => {
            etcd = Etcd::shared();
            Etcd::url(&etcd.ports(), "bench")
        }
        other => panic!("{other}: say sqlite, mariadb, postgres or etcd"),
    };
    let members = if place == "etcd" { 1_000 } else { 10_000 };
    let binary = env!("CARGO_BIN_EXE_leaf-server");
    if matches!(place, "mariadb" | "postgres") {
        LeafServer::make_tables(binary, &url);
    }
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(binary, directory.path(), &["--segment-store", &url], &[]);
    let mut made = Vec::new();
    for (family, kind) in [("chat", r#""step":10"#), ("invoice", r#""reset":"yearly""#)] {
        create(&server, family, &format!(r#"{kind},"members_per_second":1000000"#));
        made.push(rate(&server, family, Ask::New, members));
    }
    let [(relaxed, _), (strict, there)] = made[..] else { unreachable!() };
    let (numbers, _) = rate(&server, "invoice", Ask::Known, there);
    println!(
        "{place}: {relaxed:.0} first uses of new members in relaxed order a second, {strict:.0} in strict order; \
         {numbers:.0} numbers a second of {there} strict members"
    );
}

fn main() {
    let places: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let all = ["sqlite", "mariadb", "postgres", "etcd"].map(String::from);
    for place in if places.is_empty() { &all[..] } else { &places } {
        bench(place);
    }
    if places.is_empty() {
        flood();
    }
}
