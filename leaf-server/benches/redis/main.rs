//! Ids over the Redis protocol beside redis-server in one run on one machine: commands per second
//! and CPU per command, by redis-benchmark. `scripts/bench redis` runs it, and `scripts/bench
//! strict` its part for tags in strict order.
//!
//! The servers have one processor and one thread for commands each, redis-benchmark the other
//! processor.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

mod strict;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leaf_testkit::{
    HttpClient, LeafServer, Process, RedisClient, RedisReply, free_port, require, wait_until,
};
use rustix::param::clock_ticks_per_second;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAG: &str = "leaf-segment-test";
const ROUNDS: usize = 3;
const TAGS: usize = 10_000;

struct Contender {
    name: &'static str,
    address: SocketAddr,
    pid: u32,
}

/// How redis-benchmark asks.
struct Load {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Millions of commands that take about a second.
    commands: f64,
}

const LOADS: &[Load] = &[
    Load { name: "1 client", arguments: &["-c", "1"], commands: 0.03 },
    Load { name: "32 clients", arguments: &["-c", "32"], commands: 0.15 },
    Load { name: "32, 16 deep", arguments: &["-c", "32", "-P", "16"], commands: 2.0 },
    Load { name: "32, 64 deep", arguments: &["-c", "32", "-P", "64"], commands: 4.0 },
    Load {
        name: "64, 16 deep, 2 threads",
        arguments: &["-c", "64", "-P", "16", "--threads", "2"],
        commands: 2.0,
    },
    Load {
        name: "64, 64 deep, 2 threads",
        arguments: &["-c", "64", "-P", "64", "--threads", "2"],
        commands: 4.0,
    },
    Load { name: "512 clients", arguments: &["-c", "512"], commands: 0.15 },
    Load { name: "512, 16 deep", arguments: &["-c", "512", "-P", "16"], commands: 2.0 },
];

fn main() {
    let directory = tempfile::tempdir().unwrap();
    if std::env::args().any(|arg| arg == "--strict") {
        return strict::run_all(directory.path());
    }
    let leaf = ["-c", "1", SERVER];
    let leaf = LeafServer::start_wrapped("taskset", &leaf, &directory.path().join("leaf"));
    let (volatile, volatile_at) = redis(directory.path(), &["--appendonly", "no"]);
    let (durable, durable_at) =
        redis(directory.path(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let contenders = [
        Contender { name: "leaf", address: leaf.redis(), pid: leaf.pid() },
        Contender { name: "redis", address: volatile_at, pid: volatile.pid() },
        Contender { name: "durable redis", address: durable_at, pid: durable.pid() },
    ];

    println!("INCR {TAG}; {ROUNDS} rounds, medians");
    println!(
        "{:>24} {:>14} {:>10} {:>12} {:>8} {:>8}",
        "", "", "k/s", "us CPU/cmd", "x redis", "CPU x"
    );
    for load in LOADS {
        compare(&contenders, load, TAG);
    }
    println!("INCR of 10,000 tags in random order, and of one of them");
    make_tags(&leaf);
    let load = |name, arguments| Load { name, arguments, commands: 4.0 };
    let deep = &["-c", "32", "-P", "64"];
    compare(&contenders[..2], &load("one tag, 64 deep", deep), "tag-000000000000");
    let deep = &["-c", "32", "-P", "64", "-r", "10000"];
    compare(&contenders[..2], &load("10,000 tags, 64 deep", deep), "tag-__rand_int__");
}

/// A redis-server on the servers' processor.
fn redis(directory: &Path, how: &[&str]) -> (Process, SocketAddr) {
    let port = free_port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let home = directory.join(port.to_string());
    std::fs::create_dir(&home).unwrap();
    let program = require("redis-server", "redis-server").display().to_string();
    let (port, home) = (port.to_string(), home.display().to_string());
    let own = ["-c", "1", &program, "--port", &port, "--dir", &home, "--save", ""];
    let arguments: Vec<String> = own.iter().chain(how).map(ToString::to_string).collect();
    let process = Process::start("taskset", &arguments, &[]);
    wait_until("redis-server serves", Duration::from_secs(10), || {
        RedisClient::connect(address).ok()
    });
    (process, address)
}

/// Makes tags with the names that redis-benchmark asks for, twelve digits each, and takes an id of
/// each, so that all are in memory.
fn make_tags(leaf: &LeafServer) {
    let mut ops = HttpClient::connect(leaf.ops()).unwrap();
    let mut client = RedisClient::connect(leaf.redis()).unwrap();
    let tags = (0..TAGS).map(|number| format!("tag-{number:012}"));
    for tag in tags.clone() {
        let body = format!("{{\"tag\":\"{tag}\",\"step\":100000}}");
        let length = body.len();
        ops.send(&format!("POST /v1/tags HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")).unwrap();
        assert_eq!(ops.read().unwrap().status, 201);
    }
    // Behind them: the server reads all new tags at once then.
    for tag in tags {
        assert_eq!(client.command(&["INCR", &tag]).unwrap(), RedisReply::Integer(1));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Commands per second and CPU per command of each, beside redis.
fn compare(contenders: &[Contender], load: &Load, key: &str) {
    let mut runs = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        // Alternating, so that what else the machine does is felt by all.
        for (contender, runs) in contenders.iter().zip(&mut runs) {
            let slow = if contender.name == "durable redis" { 10.0 } else { 1.0 };
            let commands = load.commands * 1e6 / slow;
            let before = cpu(contender.pid);
            let rate = run(contender.address, load.arguments, commands as u64, key);
            runs.push((rate, (cpu(contender.pid) - before) * 1e6 / commands));
        }
    }
    let figures: Vec<_> = runs
        .iter()
        .map(|runs| {
            let part = |part: fn(&(f64, f64)) -> f64| median(runs.iter().map(part).collect());
            (part(|run| run.0), part(|run| run.1))
        })
        .collect();
    let (reference, reference_cpu) = figures[1];
    for (contender, (rate, cpu)) in contenders.iter().zip(&figures) {
        println!(
            "{:>24} {:>14} {:>10.1} {cpu:>12.3} {:>8.2} {:>8.2}",
            load.name,
            contender.name,
            rate / 1000.0,
            rate / reference,
            cpu / reference_cpu
        );
    }
}

/// Commands per second.
fn run(address: SocketAddr, load: &[&str], commands: u64, key: &str) -> f64 {
    let output = Command::new("taskset")
        .args(["-c", "0", "redis-benchmark", "-p", &address.port().to_string(), "-q"])
        .args(["-n", &commands.to_string()])
        .args(load)
        .args(["INCR", key])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text.rsplit(": ").find_map(|part| {
        part.split_once(" requests per second").and_then(|(rate, _)| rate.parse().ok())
    });
    rate.unwrap_or_else(|| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)))
}

/// Seconds of CPU that a process has used.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / clock_ticks_per_second() as f64
}
