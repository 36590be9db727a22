//! kill -9, or a power loss, and start again: both modes go on at once and repeat nothing.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leaf_testkit::{FakeClock, HttpClient, LeafServer, Ledger, PowerLoss};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SEGMENT: &str = "/api/segment/get/leaf-segment-test";
const SNOWFLAKE: &str = "/api/snowflake/get/test";

/// Kills a server under load so many times, each time at a different instant, and calls
/// `after_kill`.
fn kill_under_load(
    rounds: usize,
    directory: &Path,
    env: &[(&str, String)],
    mut after_kill: impl FnMut(),
) {
    let (segment, snowflake) = (Arc::new(Ledger::default()), Arc::new(Ledger::default()));
    let mut slowest = Duration::ZERO;

    for round in 0..rounds {
        let started = Instant::now();
        let mut server = LeafServer::start(SERVER, directory, &[], env);
        let issuer: Arc<str> = format!("round {round}").into();
        segment.record(&issuer, server.id(SEGMENT));
        snowflake.record(&issuer, server.id(SNOWFLAKE));
        slowest = slowest.max(started.elapsed());

        let killed = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = [(SEGMENT, &segment), (SNOWFLAKE, &snowflake)]
            .map(|(path, ledger)| {
                let (ledger, issuer) = (Arc::clone(ledger), Arc::clone(&issuer));
                let (address, killed) = (server.ids(), Arc::clone(&killed));
                std::thread::spawn(move || {
                    let mut client = HttpClient::connect(address).unwrap();
                    loop {
                        match client.ids(path, 32, |id| ledger.record(&issuer, id)) {
                            Ok(()) => {}
                            Err(_) if killed.load(Ordering::SeqCst) => return,
                            Err(error) => panic!("{issuer}: {error}"),
                        }
                    }
                })
            })
            .into();
        // A different instant every round, within and beyond the state file's own rhythm.
        let enough = segment.len() + 200 + 131 * round;
        leaf_testkit::wait_until("ids flow", Duration::from_secs(30), || {
            (segment.len() > enough).then_some(())
        });
        killed.store(true, Ordering::SeqCst);
        server.kill();
        clients.into_iter().for_each(|client| client.join().unwrap());
        after_kill();
    }

    segment.expect_at_least(200 * rounds);
    snowflake.expect_at_least(2 * rounds);
    println!("slowest start to both first ids: {slowest:?}");
}

fn full(default: usize, full: usize) -> usize {
    if std::env::var_os("LEAF_TEST_FULL").is_some() { full } else { default }
}

#[test]
fn a_killed_server_goes_on_at_once_and_repeats_nothing() {
    let directory = tempfile::tempdir().unwrap();
    kill_under_load(full(20, 100), directory.path(), &[], || {});
}

/// After kill -9 the kernel still has all writes. After a power loss only synced writes remain, and
/// the clock may be behind.
#[test]
fn what_a_power_loss_takes_away_was_never_relied_on() {
    let directory = tempfile::tempdir().unwrap();
    let power = PowerLoss::of(directory.path());
    let clock = FakeClock::new();
    let preload = |(name, value): (&'static str, String)| match name {
        "LD_PRELOAD" => (name, format!("{value} {}", power.library().display())),
        _ => (name, value),
    };
    let mut env: Vec<_> = clock.environment().map(preload).into_iter().chain(power.env()).collect();
    // Many small ranges.
    env.push(("LEAF_SEGMENT__MAX_STEP", "1".into()));
    // Two ids a millisecond, so that those of one life reach into the time of the next.
    env.push(("LEAF_SNOWFLAKE__LAYOUT", "t51-w10-s1/1ms".into()));
    env.push(("LEAF_SNOWFLAKE__SEQUENCE_START", "0".into()));
    let (mut behind, mut started) = (0.0, Instant::now());
    kill_under_load(full(10, 60), directory.path(), &env, || {
        // The next one lives in the time of this one.
        behind += started.elapsed().as_secs_f64() * 0.9;
        started = Instant::now();
        clock.set(&format!("-{behind:.3}"));
        let left = power.strike();
        for file in ["leaf.db", "segment.marks", "snowflake.state"] {
            assert!(left.iter().any(|name| name == file), "{file}: {left:?}");
        }
    });
}
