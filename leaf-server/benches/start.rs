//! How soon the embedded server hands out its first id, and how much memory it takes: idle, and
//! with 10,000 tags in use. `scripts/bench start` runs it.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const STARTS: usize = 20;
const TAGS: usize = 10_000;

fn main() {
    let mut starts: Vec<Duration> = (0..STARTS).map(|_| first_id()).collect();
    starts.sort();
    println!(
        "start to first id, embedded, new data directory: median {:?}, slowest {:?}",
        starts[STARTS / 2],
        starts[STARTS - 1]
    );

    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    assert!(server.id("/api/segment/get/leaf-segment-test") > 0);
    println!("idle: {} KiB resident", resident(server.pid()));

    let mut ops = HttpClient::connect(server.ops()).unwrap();
    for tag in 0..TAGS {
        let body = format!("{{\"tag\":\"tag-{tag}\",\"step\":100}}");
        let length = body.len();
        ops.send(&format!("POST /v1/tags HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")).unwrap();
        assert_eq!(ops.read().unwrap().status, 201);
    }
    let mut ids = HttpClient::connect(server.ids()).unwrap();
    for _ in 0..3 {
        for tag in 0..TAGS {
            let answer = ids.request("GET", &format!("/api/segment/get/tag-{tag}")).unwrap();
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    }
    println!("{TAGS} tags in use: {} KiB resident", resident(server.pid()));
}

/// From the start of the process to the answer.
fn first_id() -> Duration {
    let directory = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let server = LeafServer::launch(SERVER, directory.path(), &[], &[]);
    assert!(server.id("/api/segment/get/leaf-segment-test") > 0);
    started.elapsed()
}

/// The resident memory of a process, in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
