//! HTTP beside a bare hyper and nginx, in one run on one machine: throughput and CPU per request at
//! rising numbers of connections, then latency at a constant rate.
//!
//! Servers run on one processor, the load on another. `scripts/bench http` runs it.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

mod constant_rate;
mod servers;

use std::process::Command;
use std::time::Duration;

use servers::{Contender, SEGMENT};

const CONNECTIONS: [usize; 5] = [1, 8, 32, 128, 512];
const ROUNDS: usize = 3;
/// wrk script: several requests in one write.
const PIPELINE: &str = r#"
init = function(args)
  local requests = {}
  for i = 1, 16 do requests[i] = wrk.format() end
  all = table.concat(requests)
end
request = function() return all end
"#;

fn main() {
    let mut seconds = 3;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bare-hyper" => return servers::bare_hyper(&args.next().unwrap()),
            "--seconds" => seconds = args.next().unwrap().parse().unwrap(),
            // What cargo itself says.
            _ => {}
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let contenders = servers::start(directory.path());
    let pipeline = directory.path().join("pipeline.lua");
    std::fs::write(&pipeline, PIPELINE).unwrap();

    println!("GET {SEGMENT}, keep-alive; {ROUNDS} rounds of {seconds} s, medians");
    println!(
        "{:>12} {:>12} {:>10} {:>12} {:>10} {:>10}",
        "connections", "", "k/s", "us CPU/req", "x nginx", "CPU x"
    );
    let mut peak = 0.0;
    for connections in CONNECTIONS {
        let all = compare(&contenders, connections, seconds, None);
        if connections == 32 {
            peak = all[0].0;
        }
    }
    println!("pipelined, 16 deep, 32 connections");
    compare(&contenders, 32, seconds, pipeline.to_str());

    let rate = (peak * 1e6 / 2.0) as u64;
    println!(
        "constant rate, half of the peak: {} k/s on 32 connections, counted from when a request was due",
        rate / 1000
    );
    for contender in &contenders {
        let at = contender.address;
        let latencies =
            constant_rate::run(at, contender.path, rate, Duration::from_secs(seconds * 2));
        let of = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
        println!(
            "{:>12}: p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, p99.99 {:.0} us, max {:.0} us",
            contender.name,
            of(0.5),
            of(0.99),
            of(0.999),
            of(0.9999),
            latencies.max() as f64 / 1000.0
        );
    }
}

/// Millions of requests per second and microseconds of CPU per request of each, in their order.
fn compare(
    contenders: &[Contender],
    connections: usize,
    seconds: u64,
    script: Option<&str>,
) -> Vec<(f64, f64)> {
    let mut runs = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        // Alternating, so that what else the machine does is felt by all.
        for (contender, runs) in contenders.iter().zip(&mut runs) {
            let before = contender.cpu();
            let (requests, per_second) = wrk(contender, connections, seconds, script);
            let spent = contender.cpu() - before;
            runs.push((per_second / 1e6, spent.as_secs_f64() * 1e6 / requests));
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let figures: Vec<_> = runs
        .iter()
        .map(|runs| {
            let part = |part: fn(&(f64, f64)) -> f64| median(runs.iter().map(part).collect());
            (part(|run| run.0), part(|run| run.1))
        })
        .collect();
    let (reference, reference_cpu) = *figures.last().unwrap();
    for (contender, (rate, cpu)) in contenders.iter().zip(&figures) {
        println!(
            "{connections:>12} {:>12} {:>10.1} {cpu:>12.2} {:>10.2} {:>10.2}",
            contender.name,
            rate * 1000.0,
            rate / reference,
            cpu / reference_cpu
        );
    }
    figures
}

/// How many requests were answered, and per second.
fn wrk(
    contender: &Contender,
    connections: usize,
    seconds: u64,
    script: Option<&str>,
) -> (f64, f64) {
    let mut command = Command::new("taskset");
    command.args(["-c", "0", "wrk", "-t1", "-c", &connections.to_string()]);
    command.args(["-d", &format!("{seconds}s")]).args(script.map(|script| format!("-s{script}")));
    let output = command.arg(format!("http://{}{}", contender.address, contender.path)).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(!text.contains("Non-2xx"), "{}: {text}", contender.name);
    let word_before = |what: &str| -> f64 {
        let line =
            text.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let after = text.split("Requests/sec:").nth(1).unwrap_or_else(|| panic!("{text}"));
    (word_before("requests in"), after.split_whitespace().next().unwrap().parse().unwrap())
}
