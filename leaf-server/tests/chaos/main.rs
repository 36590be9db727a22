//! Chaos: three servers, MariaDB and ZooKeeper, and everything that goes wrong with them at once, while
//! clients write every id that they get into one ledger. A repeated id ends the run.
//!
//! `scripts/chaos --seed N` makes the same faults at the same times; what the processes do in between
//! is their own.
#![allow(clippy::disallowed_methods, reason = "plain threads let other processes run for a while")]

mod clients;
mod cluster;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use clients::Clients;
use cluster::{Cluster, Link};

const USAGE: &str = "usage: scripts/chaos [--seconds N] [--seed N]";
/// How long everything may take to be well again after the last fault.
const RECOVERY: Duration = Duration::from_secs(40);

/// A repeated id, or another failure of a thread.
static FAILED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let Some((seconds, seed)) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        FAILED.store(true, Ordering::SeqCst);
        report(panic);
    }));
    println!(
        "chaos for {seconds} s: repeat it with scripts/chaos --seconds {seconds} --seed {seed}"
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime for the proxies");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run(&runtime, Duration::from_secs(seconds), seed);
    }));
    runtime.shutdown_background();
    if outcome.is_err() || FAILED.load(Ordering::SeqCst) {
        eprintln!("chaos failed: scripts/chaos --seconds {seconds} --seed {seed}");
        // As a test that fails.
        return ExitCode::from(101);
    }
    ExitCode::SUCCESS
}

fn arguments() -> Option<(u64, u64)> {
    let (mut seconds, mut seed) = (60, fastrand::u64(..1_000_000));
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok());
        match (name.as_str(), value) {
            ("--seconds", Some(value)) => seconds = value,
            ("--seed", Some(value)) => seed = value,
            _ => return None,
        }
    }
    Some((seconds, seed))
}

fn run(runtime: &tokio::runtime::Runtime, length: Duration, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut cluster = Cluster::start(runtime);
    let clients = Clients::start(cluster.addresses());
    let start = Instant::now();
    let mut next = Duration::ZERO;
    while start.elapsed() < length && !FAILED.load(Ordering::SeqCst) {
        if start.elapsed() >= next {
            next += millis(&mut random, 200, 1200);
            strike(&mut cluster, &mut random, start.elapsed());
        }
        cluster.tick();
        std::thread::sleep(Duration::from_millis(20));
    }
    cluster.heal();
    let healed = Instant::now();
    while !cluster.all_ready() && !FAILED.load(Ordering::SeqCst) {
        assert!(healed.elapsed() < RECOVERY, "not well again: {}", cluster.describe());
        cluster.tick();
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("all ready {:.1} s after the last fault", healed.elapsed().as_secs_f64());
    clients.expect_more_from_everybody(Duration::from_secs(10));
    clients.end(length);
    println!("faults: {}", cluster.faults());
    println!("{} worker ids were taken over from silent nodes", cluster.taken_over());
}

/// One fault, chosen by the seed.
fn strike(cluster: &mut Cluster, random: &mut fastrand::Rng, at: Duration) {
    let node = random.usize(..3);
    let short = millis(random, 100, 1500);
    // A node's time is over after 1 s: somebody else may have its worker id then.
    let long = millis(random, 200, 4000);
    let link = if random.bool() { Link::Database } else { Link::Registry };
    let kind = random.u32(..100);
    let what = match kind {
        0..10 => cluster.kill(node, short, false),
        // Who lost its data is a stranger, and takes what a silent node had.
        10..30 => cluster.kill(node, short, true),
        30..36 => cluster.stop(node, short),
        36..54 => cluster.freeze(node, long),
        54..68 => {
            // The one that starts anew takes the frozen one's worker id before that goes on.
            let frozen = cluster.freeze(node, Duration::from_millis(3500));
            frozen + "; " + &cluster.kill((node + 1) % 3, Duration::from_millis(1200), true)
        }
        68..92 => cluster.disturb(node, link, random.usize(..5), long),
        92..96 => cluster.crash_database(),
        _ => cluster.crash_registry(),
    };
    println!("{:7.2} s  {what}", at.as_secs_f64());
}

fn millis(random: &mut fastrand::Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.u64(from..to))
}
