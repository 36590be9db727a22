//! Members of families: how many a server makes in a second by their first use over 64 connections,
//! and how many numbers in a second members in strict order then give, spread over all of them.
//! `scripts/bench families [sqlite|mariadb|postgres|etcd]...` runs it, by default in each store.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a benchmark may panic, and works in plain threads"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leaf_testkit::{Etcd, HttpClient, LeafServer, MariaDb, Postgres};

const CONNECTIONS: usize = 64;
const MEMBERS: usize = 20_000;
/// No measurement takes longer.
const LIMIT: Duration = Duration::from_secs(20);

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
    let binary = env!("CARGO_BIN_EXE_leaf-server");
    if matches!(place, "mariadb" | "postgres") {
        LeafServer::make_tables(binary, &url);
    }
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(binary, directory.path(), &["--segment-store", &url], &[]);
    let mut made = Vec::new();
    for (family, kind) in [("chat", r#""step":10"#), ("invoice", r#""reset":"yearly""#)] {
        let body =
            format!(r#"{{"tag":"{family}/*","family":true,{kind},"members_per_second":1000000}}"#);
        let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
        let mut ops = HttpClient::connect(server.ops()).unwrap();
        let answer = ops.ask("POST", "/v1/tags", headers, &body).unwrap();
        assert_eq!(answer.status, 201, "{}", answer.body);
        made.push(rate(&server, family, Ask::New, MEMBERS));
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
}
