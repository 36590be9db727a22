//! The Redis clients of several languages, with their default settings: each connects, and its ids
//! are nobody else's. `scripts/redis-clients` prepares them, and tells which languages are not on
//! this machine.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use leaf_testkit::{LeafServer, Ledger, RedisClient, require};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAG: &str = "leaf-segment-test";

/// How many ids each client takes of each kind.
fn ids_of_each() -> usize {
    if std::env::var_os("LEAF_TEST_FULL").is_some() { 50_000 } else { 5000 }
}

#[test]
fn every_client_gets_ids_of_its_own() {
    let each = ids_of_each();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let commands = std::fs::read_to_string(root.join("target/clients/commands"));
    let commands =
        commands.expect("scripts/redis-clients prepares the clients; scripts/test runs it");
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let (segment, snowflake) = (Ledger::default(), Ledger::default());
    for line in commands.lines() {
        let mut words = line.split(' ');
        let issuer: Arc<str> = words.next().unwrap().into();
        let output = Command::new(words.next().unwrap())
            .args(words)
            .args([server.redis().port().to_string(), each.to_string(), each.to_string()])
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{issuer}: {errors}");
        let ids: Vec<i64> = told.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(ids.len(), 2 * each, "{issuer}: {errors}");
        let (increments, flakes) = ids.split_at(each);
        // On one connection they grow.
        assert!(increments.is_sorted() && flakes.is_sorted(), "{issuer}");
        increments.iter().for_each(|id| segment.record(&issuer, *id));
        flakes.iter().for_each(|id| snowflake.record(&issuer, *id));
    }
    segment.expect_at_least(each * commands.lines().count());
    snowflake.expect_at_least(each * commands.lines().count());
    println!("{}", commands.lines().count());
}

fn redis_cli(server: &LeafServer, words: &[&str]) -> String {
    let port = server.redis().port().to_string();
    let output = Command::new(require("redis-cli", "redis-tools"))
        .args(["-p", &port, "-e"])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn redis_cli_and_redis_benchmark_work() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    assert_eq!(redis_cli(&server, &["INCR", TAG]), "1");
    assert_eq!(redis_cli(&server, &["-3", "SEGMENT", TAG, "COUNT", "2"]), "2\n3");
    assert_eq!(redis_cli(&server, &["PING"]), "PONG");
    assert!(redis_cli(&server, &["INFO"]).contains("role:master"));
    let flake = redis_cli(&server, &["SNOWFLAKE"]);
    assert!(redis_cli(&server, &["-3", "DECODE", &flake]).contains(&format!("id {flake}")));

    let before: i64 = redis_cli(&server, &["GET", TAG]).parse().unwrap();
    let benchmark = Command::new(require("redis-benchmark", "redis-tools"))
        .args(["-p", &server.redis().port().to_string(), "-n", "100000", "-P", "16", "-q"])
        .args(["INCR", TAG])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&benchmark.stderr);
    assert!(benchmark.status.success() && errors.is_empty(), "{errors}");
    let mut client = RedisClient::connect(server.redis()).unwrap();
    let after = client.command(&["GET", TAG]).unwrap().id().unwrap();
    assert!(after >= before + 100_000, "{before} to {after}");
}
