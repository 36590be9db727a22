//! A real server whose wall clock steps: within the tolerance nobody notices, beyond it ids stop, and
//! no id ever repeats.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::time::Duration;

use leaf_testkit::{FakeClock, HttpClient, LeafServer, Ledger, wait_until};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SNOWFLAKE: &str = "/api/snowflake/get/x";

/// Longer than the pause between two looks at the wall clock.
const NOTICED: usize = 30;

struct Setting {
    directory: tempfile::TempDir,
    clock: FakeClock,
    ledger: Ledger,
    issuer: Arc<str>,
}

impl Setting {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            clock: FakeClock::new(),
            ledger: Ledger::default(),
            issuer: "server".into(),
        }
    }

    fn start(&self) -> LeafServer {
        LeafServer::start(SERVER, self.directory.path(), &[], &self.clock.environment())
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

fn pause() {
    let deadline = tokio::time::Instant::now() + Duration::from_millis(10);
    wait_until("10 ms pass", Duration::from_secs(1), || {
        (tokio::time::Instant::now() >= deadline).then_some(())
    });
}

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

#[test]
fn a_clock_that_strobes_repeats_nothing() {
    let setting = Setting::new();
    let server = setting.start();
    for round in 0..20 {
        setting.clock.set(["-0.7", "+0", "-3", "+2", "-0.001", "-600"][round % 6]);
        let _ = setting.issue(&server);
    }
    setting.ledger.expect_at_least(5 * NOTICED);
}

#[test]
fn a_server_killed_before_the_clock_went_back_waits_or_refuses_and_repeats_nothing() {
    let setting = Setting::new();
    let mut server = setting.start();
    setting.issue(&server);

    for offset in ["-0.1", "-2", "-4"] {
        server.kill();
        setting.clock.set(offset);
        // Up to the tolerance of 1 s it starts at once, else it waits for the ids before.
        server = setting.start();
        assert_eq!(setting.issue(&server), 0, "{offset} s");
    }

    server.kill();
    setting.clock.set("-3600");
    for _crash_loop in 0..3 {
        let environment = setting.clock.environment();
        let mut process = LeafServer::process(SERVER, setting.directory.path(), &[], &environment);
        let code = process.wait(Duration::from_secs(20)).code();
        let text = wait_until("its error", Duration::from_secs(5), || {
            let output = process.output();
            output.lines().find(|line| line.starts_with("leaf-server: ")).map(str::to_owned)
        });
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("correct the clock, or wait"), "{text}");
    }

    setting.clock.set("+0");
    let server = setting.start();
    assert_eq!(setting.issue(&server), 0, "the refused starts pushed nothing");
    setting.ledger.expect_at_least(5 * NOTICED);
}
