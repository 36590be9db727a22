//! Short-lived tags: thousands of tags are made, used and deleted, over connections of every
//! protocol, with reloads in between. Deleted tags must leave nothing behind.
//!
//! Half a minute by default; 20 minutes and 10,000 names with `scripts/test --full`. In the last 18
//! minutes memory grows by 2.2 MiB, 250 bytes a name. Each name keeps its mark, about 70 bytes (as
//! heaptrack counts); SQLite's page cache grows to its 512 KiB; the allocator keeps the rest.
#![allow(clippy::unwrap_used, reason = "tests may panic")]
#![allow(clippy::disallowed_methods, reason = "a plain thread, which lets other processes run")]

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, RedisClient, http2_frame};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
/// How much the memory may grow for each name, in bytes; an earlier version grew by 5,600.
const GROWTH: u64 = 2048;

#[test]
fn tags_that_are_gone_leave_nothing() {
    let full = std::env::var_os("LEAF_TEST_FULL").is_some();
    let (warm_up, names, pause) = match full {
        true => (1000, 10_000, Duration::from_millis(105)),
        false => (300, 1200, Duration::ZERO),
    };
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("leaf.toml");
    std::fs::write(&config, "[grpc]\nlisten = '127.0.0.1:0'\n[segment]\nrefresh = '1s'\n").unwrap();
    let args = ["--config", config.to_str().unwrap()];
    let mut server = LeafServer::start(SERVER, &directory.path().join("data"), &args, &[]);
    let mut ops = HttpClient::connect(server.ops()).unwrap();
    let mut ask = |method: &str, path: &str, body: &str| {
        let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
        ops.ask(method, path, headers, body).unwrap()
    };
    let mut before = 0;
    let begun = Instant::now();
    for number in 0..names {
        if number == warm_up {
            before = server.resident_kib();
            println!("{before} KiB after {number} names, {:?}", begun.elapsed());
        }
        let tag = format!("churn-{number}");
        let shape = ["", r#","order":"strict""#, r#","shape":"interleave:0/2""#][number % 3];
        let step = if number % 3 == 1 { "" } else { r#","step":10"# };
        let made = ask("POST", "/v1/tags", &format!(r#"{{"tag":"{tag}"{step}{shape}}}"#));
        assert_eq!(made.status, 201, "{}", made.body);
        // A connection each.
        for _ in 0..2 {
            assert!(server.id(&format!("/api/segment/get/{tag}")) > 0);
        }
        assert!(server.id("/api/snowflake/get/x") > 0);
        let mut redis = RedisClient::connect(server.redis()).unwrap();
        assert!(redis.command(&["INCR", &tag]).unwrap().id().is_some());
        let mut http2 = TcpStream::connect(server.grpc()).unwrap();
        http2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        http2.write_all(&http2_frame(4, 0, 0, &[])).unwrap();
        let gone = ask("DELETE", &format!("/v1/tags/{tag}?confirm={tag}"), "");
        assert_eq!(gone.status, 200, "{}", gone.body);
        assert_eq!(server.get(&format!("/api/segment/get/{tag}")).status, 404);
        if number % 100 == 99 {
            server.process_mut().signal("HUP");
        }
        std::thread::sleep(pause);
    }
    std::thread::sleep(Duration::from_secs(2));
    let after = server.resident_kib();
    println!("{after} KiB after {names} names, {:?}", begun.elapsed());
    let cache = HttpClient::once(server.ops(), "GET", "/cache").body;
    assert!(!cache.contains("churn-"), "{cache}");
    let status = HttpClient::once(server.ops(), "GET", "/v1/status").json();
    assert_eq!(status["segment"]["stores"][0]["tags"], 0, "{status}");
    let grown = after.saturating_sub(before) * 1024 / (names - warm_up) as u64;
    assert!(grown < GROWTH, "{before} KiB, then {after}: {grown} bytes a name");
}
