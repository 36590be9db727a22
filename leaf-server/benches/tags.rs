//! Many tags: what a store with a million tags costs a node that uses none of them, how fast tags
//! are used for the first time over 64 connections, and how much memory each then takes.
//! `scripts/bench tags [sqlite|mariadb] [--server PROGRAM]` runs it; PROGRAM is a leaf-server of
//! another version, for a comparison.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a benchmark may panic, and sleeps while others work"
)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, MariaDb};
use tokio::time::Instant;

const STARTS: usize = 5;
const FEW: usize = 10;
const MANY: usize = 1_000_000;
const IN_USE: usize = 100_000;
const CONNECTIONS: usize = 64;

/// Where the tags are.
enum Place {
    Sqlite,
    MariaDb(Arc<MariaDb>),
}

impl Place {
    /// The constant of its first uses.
    const fn first_uses(&self) -> &'static str {
        match self {
            Self::Sqlite => "first_uses_sqlite",
            Self::MariaDb(_) => "first_uses_mariadb",
        }
    }

    /// A new store with so many tags, and the arguments of a server that uses it.
    fn with(&self, tags: usize, data_dir: &Path, server: &str) -> Vec<String> {
        let url = match self {
            Self::Sqlite => "sqlite:leaf.db".to_owned(),
            Self::MariaDb(database) => MariaDb::url(database.port(), &database.new_database()),
        };
        let args = vec!["--segment-store".to_owned(), url.clone()];
        let made = Command::new(server)
            .args(["schema", "--apply", "--data-dir", data_dir.to_str().unwrap()])
            .args(&args)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        match self {
            Self::Sqlite => {
                let script = "import sqlite3,sys\n\
                    db=sqlite3.connect(sys.argv[1])\n\
                    db.executemany('INSERT INTO leaf_alloc (biz_tag,max_id,step) VALUES (?,1,10)',\
                     (('tag-%d'%i,) for i in range(int(sys.argv[2]))))\n\
                    db.commit()\n";
                let file = data_dir.join("leaf.db");
                let filled = Command::new("python3")
                    .args(["-c", script, file.to_str().unwrap(), &tags.to_string()])
                    .status();
                assert!(filled.unwrap().success());
            }
            Self::MariaDb(database) => {
                let name = url.rsplit('/').next().unwrap();
                database.sql(&format!(
                    "USE {name}; INSERT INTO leaf_alloc (biz_tag, max_id, step) \
                     SELECT CONCAT('tag-', seq), 1, 10 FROM seq_0_to_{}",
                    tags - 1
                ));
            }
        }
        args
    }
}

fn main() {
    let mut server = env!("CARGO_BIN_EXE_leaf-server").to_owned();
    let mut place = Place::Sqlite;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "sqlite" | "--bench" => {}
            "mariadb" => {
                place = Place::MariaDb(MariaDb::shared());
            }
            "--server" => server = args.next().unwrap(),
            other => panic!("{other}: say sqlite, mariadb or --server PROGRAM"),
        }
    }
    for tags in [FEW, MANY] {
        let directory = tempfile::tempdir().unwrap();
        let store = place.with(tags, directory.path(), &server);
        let store: Vec<&str> = store.iter().map(String::as_str).collect();
        let mut starts = Vec::new();
        let mut resident = 0;
        for _ in 0..STARTS {
            let started = Instant::now();
            let server = LeafServer::launch(&server, directory.path(), &store, &[]);
            assert!(server.id("/api/segment/get/tag-1") > 0);
            starts.push(started.elapsed());
            std::thread::sleep(Duration::from_secs(2));
            resident = server.resident_kib();
        }
        starts.sort();
        println!(
            "{tags} tags, one in use: first id after {:?} (median), {resident} KiB resident",
            starts[STARTS / 2]
        );
        if tags == MANY {
            compare("node_kib", resident);
            let server = LeafServer::start(&server, directory.path(), &store, &[]);
            let (rate, bytes) = first_uses(&server);
            compare(place.first_uses(), rate);
            compare("tag_bytes", bytes);
        }
    }
}

/// Compares with a constant of scripts/capacity, by which docs/operations.md computes.
fn compare(constant: &str, measured: u64) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/capacity");
    let printed = Command::new(script).args(["--constant", constant]).output().unwrap();
    let expected: f64 = String::from_utf8(printed.stdout).unwrap().trim().parse().unwrap();
    let ratio = measured as f64 / expected;
    let verdict = if (0.85..=1.15).contains(&ratio) { "as" } else { "NOT as" };
    println!("{constant}: {measured}, {verdict} scripts/capacity says ({expected})");
}

/// Uses tags for the first time. Returns the rate per second, and the bytes that each tag takes.
fn first_uses(server: &LeafServer) -> (u64, u64) {
    let before = server.resident_kib();
    let next = AtomicUsize::new(0);
    let begun = Instant::now();
    let mut slowest: Vec<Duration> = std::thread::scope(|scope| {
        let uses = (0..CONNECTIONS).map(|_| {
            scope.spawn(|| {
                let mut client = HttpClient::connect(server.ids()).unwrap();
                let mut took = Vec::new();
                loop {
                    let tag = next.fetch_add(1, Ordering::Relaxed);
                    if tag >= IN_USE {
                        return took;
                    }
                    let asked = Instant::now();
                    let path = format!("/api/segment/get/tag-{tag}");
                    let answer = client.request("GET", &path).unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    took.push(asked.elapsed());
                }
            })
        });
        let uses: Vec<_> = uses.collect();
        uses.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    slowest.sort();
    let after = server.resident_kib();
    let rate = (IN_USE as f64 / seconds) as u64;
    let bytes = (after - before) * 1024 / IN_USE as u64;
    println!(
        "{IN_USE} first uses over {CONNECTIONS} connections: {rate} a second, 99 of 100 within {:?}; {bytes} bytes a tag, \
         {after} KiB resident",
        slowest[IN_USE / 100 * 99],
    );
    let status = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let ticks: Vec<u64> =
        status.rsplit(") ").next().unwrap().split(' ').filter_map(|it| it.parse().ok()).collect();
    println!("processor time of the server: {} ms", (ticks[10] + ticks[11]) * 10);
    (rate, bytes)
}
