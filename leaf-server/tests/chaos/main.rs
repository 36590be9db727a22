//! Chaos: many faults at once of servers, their store and their registry, while clients record
//! everything that they get. The history is judged at the end: see [`history`].
//!
//! `scripts/chaos --seed N` makes the same faults at the same times, with the same kinds of store
//! and registry; the timing inside the processes still varies. `--check FILE` judges the history of
//! an earlier run.
//!
//! Every node has a small disk of its own, mounted in a namespace of this process, which is gone
//! with it.
#![allow(clippy::disallowed_methods, reason = "plain threads let other processes run for a while")]

mod backends;
mod clients;
mod cluster;
mod history;
mod node;

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leaf_testkit::Fault;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use backends::Kinds;
use clients::Clients;
use cluster::{Cluster, NODES};
use history::Line;
use node::Link;

const USAGE: &str = "usage: scripts/chaos [--seconds N] [--seed N] [--history FILE] | --check FILE";
/// How long all nodes may take to become ready after the last fault. After a failover of the
/// registry's database, claims wait for half a minute.
const RECOVERY: Duration = Duration::from_secs(60);
/// Says that this process has a namespace of its own.
const INSIDE: &str = "CHAOS_INSIDE";

/// Whether a thread has failed.
static FAILED: AtomicBool = AtomicBool::new(false);

struct Arguments {
    seconds: u64,
    seed: u64,
    history: Option<PathBuf>,
    check: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    history::check_the_judge();
    if let Some(file) = &arguments.check {
        let opened = File::open(file).map_err(|error| error.to_string());
        return match opened.and_then(|file| history::read(BufReader::new(file))) {
            Ok(lines) => tell(&lines),
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                ExitCode::from(2)
            }
        };
    }
    if std::env::var_os(INSIDE).is_none() {
        return enter_a_namespace(arguments.seed);
    }
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        FAILED.store(true, Ordering::SeqCst);
        report(panic);
    }));
    let (seconds, seed) = (arguments.seconds, arguments.seed);
    let again = format!("scripts/chaos --seconds {seconds} --seed {seed}");
    println!("chaos for {seconds} s: repeat it with {again}");
    let runtime = Runtime::new().expect("a runtime for the proxies");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run(&runtime, Duration::from_secs(seconds), seed)
    }));
    runtime.shutdown_background();
    let Some(lines) = outcome.ok().filter(|_| !FAILED.load(Ordering::SeqCst)) else {
        eprintln!("chaos failed: {again}");
        // As a test that fails.
        return ExitCode::from(101);
    };
    let code = tell(&lines);
    let failed = code != ExitCode::SUCCESS;
    let kept = failed.then(|| std::env::temp_dir().join(format!("leaf-chaos-{seed}.jsonl")));
    if let Some(file) = arguments.history.or(kept) {
        let written =
            File::create(&file).and_then(|file| history::write(&lines, &mut BufWriter::new(file)));
        match written {
            Ok(()) => println!("history: scripts/chaos --check {}", file.display()),
            Err(error) => eprintln!("{}: {error}", file.display()),
        }
    }
    if failed {
        eprintln!("chaos failed: {again}");
    }
    code
}

fn arguments() -> Option<Arguments> {
    let seed = fastrand::u64(..1_000_000);
    let mut given = Arguments { seconds: 60, seed, history: None, check: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next()?;
        match name.as_str() {
            "--seconds" => given.seconds = value.parse().ok()?,
            "--seed" => given.seed = value.parse().ok()?,
            "--history" => given.history = Some(value.into()),
            "--check" => given.check = Some(value.into()),
            _ => return None,
        }
    }
    Some(given)
}

/// Runs this program again in a namespace where it may mount file systems. Without root, a user
/// namespace gives it that right.
fn enter_a_namespace(seed: u64) -> ExitCode {
    let root = std::fs::metadata("/proc/self")
        .is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    let mut again = Command::new("unshare");
    if !root {
        again.arg("--map-root-user");
    }
    again.args(["--mount", "--"]).args(std::env::args_os());
    // The one that was drawn.
    again.args(["--seed", &seed.to_string()]).env(INSIDE, "1");
    eprintln!("unshare (util-linux): {}", again.exec());
    ExitCode::from(1)
}

/// Judges a history and says so.
fn tell(lines: &[Line]) -> ExitCode {
    let verdict = history::check(lines);
    verdict.report.iter().for_each(|line| println!("{line}"));
    verdict.too_little.iter().for_each(|line| println!("TOO LITTLE  {line}"));
    verdict.broken.iter().for_each(|line| println!("BROKEN  {line}"));
    match verdict.broken.is_empty() && verdict.too_little.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(101),
    }
}

fn run(runtime: &Runtime, length: Duration, seed: u64) -> Vec<Line> {
    let mut random = fastrand::Rng::with_seed(seed);
    let kinds = Kinds::of_seed(seed);
    let idle = if kinds.idle { ", idle tags leave" } else { "" };
    println!("store {}, registry {}{idle}", kinds.store, kinds.registry);
    let mut cluster = Cluster::start(runtime, kinds);
    // A long run must fit into memory.
    let pause = Duration::from_millis(if length > Duration::from_secs(300) { 25 } else { 5 });
    let start = cluster.since_start();
    let clients = Clients::start(cluster.addresses(), start, pause, kinds.idle);
    let mut next = Duration::ZERO;
    let mut fail_over_at = millis(&mut random, 10_000, 25_000);
    while start.elapsed() < length && !FAILED.load(Ordering::SeqCst) {
        if start.elapsed() >= next {
            next += millis(&mut random, 200, 1200);
            strike(&mut cluster, &mut random, kinds, start.elapsed());
        }
        if start.elapsed() >= fail_over_at {
            let stale = millis(&mut random, 100, 2000);
            let rest = if kinds.together() { 90_000 } else { 20_000 };
            fail_over_at = start.elapsed() + millis(&mut random, rest, 2 * rest);
            println!("{:7.2} s  {}", start.elapsed().as_secs_f64(), cluster.fail_over(stale));
        }
        cluster.tick();
        std::thread::sleep(Duration::from_millis(20));
    }
    cluster.heal();
    let healed = Instant::now();
    let give_up = || FAILED.load(Ordering::SeqCst) || clients.saw_the_unexplained();
    while !cluster.all_ready() && !give_up() {
        assert!(healed.elapsed() < RECOVERY, "not well again: {}", cluster.describe());
        cluster.tick();
        std::thread::sleep(Duration::from_millis(50));
    }
    if !give_up() {
        println!("all ready {:.1} s after the last fault", healed.elapsed().as_secs_f64());
        clients.expect_more_from(NODES, Duration::from_secs(10));
    }
    let length = start.elapsed();
    let mut lines = clients.end();
    let end = cluster.end(runtime, seed, length);
    lines.extend(cluster.take_faults());
    lines.push(end);
    lines
}

/// One fault, chosen by the seed.
fn strike(cluster: &mut Cluster, random: &mut fastrand::Rng, kinds: Kinds, at: Duration) {
    let node = random.usize(..NODES);
    let short = millis(random, 100, 1500);
    // A node's time is over after 1 s: another one may have its worker id then.
    let long = millis(random, 200, 4000);
    let link = if random.bool() { Link::Database } else { Link::Registry };
    let what = match random.u32(..100) {
        0..10 => cluster.kill(node, short, false),
        // A node that lost its data is a stranger, and takes what a silent node had.
        10..26 => cluster.kill(node, short, true),
        26..31 => cluster.stop(node, short),
        31..43 => cluster.freeze(node, long),
        // The node that starts anew takes the frozen node's worker id before that node thaws. Where
        // worker ids are bound to names, the frozen node's twin takes it.
        43..56 if kinds.bound() => {
            let frozen = cluster.freeze(0, Duration::from_millis(4500));
            frozen + "; " + &cluster.invite(None, Duration::from_millis(6000))
        }
        43..56 => {
            let frozen = cluster.freeze(node, Duration::from_millis(3500));
            let stranger = cluster.kill((node + 1) % 3, Duration::from_millis(1200), true);
            frozen + "; " + &stranger
        }
        // Far beyond the takeover, two at once.
        56..58 => {
            let first = cluster.freeze(node, Duration::from_millis(6000));
            first + "; " + &cluster.freeze((node + 1) % 3, Duration::from_millis(5000))
        }
        58..62 => cluster.invite(None, long + short),
        62..66 => cluster.invite(Some(node), long + short),
        66..81 => {
            let faults = [
                Fault::Cut,
                Fault::Reset,
                // What is held arrives afterwards, when another node may have the worker id.
                Fault::BlackHole,
                Fault::SwallowReplies,
                Fault::SwallowRequests,
                Fault::Delay(Duration::from_millis(150)),
            ];
            let fault = faults[random.usize(..faults.len())];
            cluster.disturb(node, link, fault, long)
        }
        81..87 => {
            let offsets = ["-0.001", "-0.005", "-0.9", "-2", "-60", "-3600", "+0.5", "+2", "+10"];
            cluster.set_clock(node, offsets[random.usize(..offsets.len())], long)
        }
        // A year ahead, for a moment: neither a claim nor a ceiling may follow it.
        87..89 => cluster.set_clock(node, "+31536000", Duration::from_secs(2)),
        89..91 => cluster.leave_the_log(node, long + long),
        91..94 => cluster.fill_the_disk(node, long),
        94..96 => cluster.crash_store(),
        96..98 => cluster.crash_registry(),
        _ => cluster.stop_registry(long),
    };
    println!("{:7.2} s  {what}", at.as_secs_f64());
}

fn millis(random: &mut fastrand::Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.u64(from..to))
}
