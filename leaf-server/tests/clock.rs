//! A real server whose wall clock steps: within the tolerance nobody notices, beyond it ids stop,
//! and no id ever repeats. `LEAF_SEED` repeats the random steps.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::time::Duration;

use leaf_testkit::{FakeClock, HttpClient, LeafServer, Ledger, Load, Plan, wait_until};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SNOWFLAKE: &str = "/api/snowflake/get/x";
const SEGMENT: &str = "/api/segment/get/leaf-segment-test";

/// Requests for longer than the interval at which the server reads the wall clock.
const NOTICED: usize = 30;

/// How long a client may be without an id when it must notice nothing: these machines are shared.
const MOMENT: Duration = Duration::from_secs(1);

fn full() -> bool {
    std::env::var_os("LEAF_TEST_FULL").is_some()
}

struct Setting {
    directory: tempfile::TempDir,
    clock: FakeClock,
    ledger: Arc<Ledger>,
    issuer: Arc<str>,
}

/// Two clients that ask for ids all the time. While the clock is back they are refused.
fn load(setting: &Setting, server: &LeafServer) -> Load {
    let plan = Plan { clients: 2, pipeline: 500, pause: Duration::ZERO, ..Plan::of(SNOWFLAKE) };
    Load::at(&setting.ledger, &setting.issuer, server.ids(), &plan)
}

impl Setting {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            clock: FakeClock::new(),
            ledger: Arc::default(),
            issuer: "server".into(),
        }
    }

    fn start(&self) -> LeafServer {
        LeafServer::start(SERVER, self.directory.path(), &[], &self.clock.environment())
    }

    /// Starts a server that must refuse snowflake ids, since their timestamps were used before, but
    /// must serve ids of tags.
    fn refused_start(&self) -> LeafServer {
        let environment = self.clock.environment();
        let server = LeafServer::launch(SERVER, self.directory.path(), &[], &environment);
        let why = server.not_ready("correct the clock if it is wrong");
        assert_eq!(server.get(SNOWFLAKE).status, 503, "{why}");
        assert_eq!(server.get(SEGMENT).status, 200, "{why}");
        server
    }

    /// Asks for ids for about 0.3 s; how many requests were refused.
    fn issue(&self, server: &LeafServer) -> usize {
        let mut client = HttpClient::connect(server.ids()).unwrap();
        let mut refused = 0;
        for _ in 0..NOTICED {
            let answer = client.request("GET", SNOWFLAKE).unwrap();
            match answer.status {
                200 => self.ledger.record(&self.issuer, answer.body.parse().unwrap()),
                503 => {
                    assert_eq!(answer.header("retry-after"), Some("1"));
                    assert!(answer.body.contains("the clock went back"), "{}", answer.body);
                    refused += 1;
                }
                _ => panic!("{} {}", answer.status, answer.body),
            }
            pause();
        }
        refused
    }
}

fn expect_refusals(clients: &Load) {
    wait_until("the step is noticed", Duration::from_secs(10), || {
        (clients.take_refused() > 0).then_some(())
    });
}

fn pause() {
    pause_for(Duration::from_millis(10));
}

fn pause_for(duration: Duration) {
    let deadline = Instant::now() + duration;
    wait_until("time passes", 2 * duration + Duration::from_secs(1), || {
        (Instant::now() >= deadline).then_some(())
    });
}

/// W-07, W-08
#[test]
fn steps_within_the_tolerance_are_not_noticed_and_greater_ones_stop_the_ids_until_they_heal() {
    let setting = Setting::new();
    let server = setting.start();
    assert_eq!(setting.issue(&server), 0);

    for offset in ["-0.001", "-0.005", "-0.006", "-0.5", "-0.9", "+0", "+0.5", "+0"] {
        setting.clock.set(offset);
        assert_eq!(setting.issue(&server), 0, "{offset} s");
    }

    for offset in ["-60", "-3600"] {
        setting.clock.set(offset);
        wait_until("the step is noticed", Duration::from_secs(5), || {
            (setting.issue(&server) > 0).then_some(())
        });
        assert_eq!(setting.issue(&server), NOTICED, "{offset} s: every request is refused");
        let ready = HttpClient::once(server.ops(), "GET", "/readyz");
        assert_eq!(ready.status, 503, "{}", ready.body);
        setting.clock.set("+0");
        wait_until("ids flow again", Duration::from_secs(5), || {
            (setting.issue(&server) == 0).then_some(())
        });
    }

    setting.clock.set("+86400");
    assert_eq!(setting.issue(&server), 0, "a day ahead");
    wait_until("readiness says so", Duration::from_secs(5), || {
        let ready = HttpClient::once(server.ops(), "GET", "/readyz");
        ready.body.starts_with("degraded: snowflake: the clock jumped").then_some(())
    });
    setting.clock.set("+0");
    assert_eq!(setting.issue(&server), 0, "back from a day ahead");
    wait_until("it is ready again", Duration::from_secs(5), || {
        (HttpClient::once(server.ops(), "GET", "/readyz").body == "ready").then_some(())
    });
    setting.ledger.expect_at_least(12 * NOTICED);
}

/// W-07, W-08: a million ids (four with --full) while the clock goes back, ahead, and strobes.
#[test]
fn a_clock_that_does_anything_repeats_nothing() {
    let least = if full() { 4_000_000 } else { 1_000_000 };
    let setting = Setting::new();
    let server = setting.start();
    let clients = load(&setting, &server);

    for offset in ["-0.001", "+0", "-0.005", "+0", "-0.006", "+0", "-0.9", "+0"] {
        setting.clock.set(offset);
        pause_for(Duration::from_millis(300));
        clients.expect_unnoticed(&format!("{offset} s"), MOMENT);
    }
    for (offset, refuses) in [("-1.5", true), ("-3600", true), ("+3600", false), ("+86400", false)]
    {
        setting.clock.set(offset);
        if refuses {
            expect_refusals(&clients);
        } else {
            pause_for(Duration::from_millis(400));
            assert_eq!(clients.take_refused(), 0, "{offset} s");
        }
        setting.clock.set("+0");
        wait_until("ids flow again", Duration::from_secs(10), || {
            let _ = clients.take_refused();
            let issued = clients.report().issued;
            pause_for(Duration::from_millis(400));
            (clients.take_refused() == 0 && clients.report().issued > issued).then_some(())
        });
    }
    let mut strobes = ["-0.7", "+0", "-3", "+2", "-0.001", "-600", "+0"].iter().cycle();
    let deadline = Instant::now() + Duration::from_secs(if full() { 900 } else { 300 });
    while setting.ledger.len() < least {
        setting.clock.set(strobes.next().unwrap());
        pause_for(Duration::from_millis(137));
        assert!(Instant::now() < deadline, "only {} ids", setting.ledger.len());
    }

    assert_eq!(clients.end().lost_connections, 0);
    setting.ledger.expect_at_least(least);
}

/// W-07: Leaf's published rule, when it is asked for.
#[test]
fn at_a_tolerance_of_5_ms_6_ms_stop_the_ids_and_5_do_not() {
    for (offset, refuses) in [("-0.001", false), ("-0.005", false), ("-0.006", true)] {
        let setting = Setting::new();
        let tolerance = ("LEAF_SNOWFLAKE__ROLLBACK_TOLERANCE", "5ms".to_owned());
        let environment: Vec<_> =
            setting.clock.environment().into_iter().chain([tolerance]).collect();
        let server = LeafServer::start(SERVER, setting.directory.path(), &[], &environment);
        let clients = load(&setting, &server);
        pause_for(Duration::from_millis(300));
        clients.expect_unnoticed("before the step", MOMENT);

        setting.clock.set(offset);
        if refuses {
            expect_refusals(&clients);
        } else {
            pause_for(Duration::from_millis(300));
            assert_eq!(clients.take_refused(), 0, "{offset} s");
        }
        assert_eq!(clients.end().lost_connections, 0);
        setting.ledger.expect_at_least(1000);
    }
}

/// W-09: kill -9 at random instants, with the clock set back by up to an hour before the next
/// start. Within the tolerance the server starts at once; a little beyond it waits, and far beyond
/// it refuses ids.
#[test]
fn kills_at_random_instants_with_the_clock_set_back_repeat_nothing() {
    let given = std::env::var("LEAF_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("LEAF_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let setting = Setting::new();
    let (mut started, mut refused) = (0, 0);

    let rounds = if full() { 100 } else { 25 };
    while started < rounds {
        let mut server = setting.start();
        started += 1;
        let clients = load(&setting, &server);
        pause_for(Duration::from_micros(random.u64(20_000..400_000)));
        server.kill();
        let _ = clients.end();

        let back = match random.u32(..8) {
            0..3 => 0.0,
            3..5 => random.f64() * 0.9,
            5 => 1.0 + random.f64(),
            // Refused from 15 s on; the ids are at most 2 s ahead of the clock.
            _ => 20.0 + random.f64() * 3580.0,
        };
        setting.clock.set(&format!("-{back:.6}"));
        if back > 20.0 {
            refused += 1;
            drop(setting.refused_start());
            setting.clock.set("+0");
        }
    }

    println!("{} ids, {started} starts, {refused} refused", setting.ledger.len());
    assert!(refused > 0, "LEAF_SEED={seed}");
    setting.ledger.expect_at_least(1000 * rounds);
}

/// W-09
#[test]
fn a_server_killed_before_the_clock_went_back_waits_or_refuses_and_repeats_nothing() {
    let setting = Setting::new();
    let mut server = setting.start();
    setting.issue(&server);

    for offset in ["-0.001", "-0.005", "-0.006", "-1", "-4"] {
        server.kill();
        setting.clock.set(offset);
        // Up to the tolerance of 1 s it starts at once, else it waits for the ids before.
        server = setting.start();
        assert_eq!(setting.issue(&server), 0, "{offset} s");
    }

    server.kill();
    setting.clock.set("-3600");
    for _crash_loop in 0..3 {
        drop(setting.refused_start());
    }

    let mut server = setting.refused_start();
    setting.clock.set("+0");
    // By itself, and the refused starts pushed nothing.
    server.wait_ready();
    assert_eq!(setting.issue(&server), 0);
    setting.ledger.expect_at_least(5 * NOTICED);
}
