//! The registry `local`: what protects a node that has nothing but its clock and its file.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Id, ManualClock, UnixMillis, WorkerId};
use leaf_registry::local::{self, LocalWorkers};
use leaf_snowflake::{Identity, SnowflakeConfig, SnowflakeError, SnowflakeGenerator};

const START: UnixMillis = UnixMillis::new(1_800_000_000_501);

/// One life of a node: it starts, takes up to 500 ids until none is left, and is killed.
fn life(
    clock: &Arc<ManualClock>,
    directory: &Path,
    change: impl Fn(&mut SnowflakeConfig),
) -> Result<Vec<Id>, SnowflakeError> {
    let mut config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    config.clock = Arc::clone(clock) as _;
    config.state_file = Some(directory.join("snowflake.state"));
    change(&mut config);
    let registry = local::registry(LocalWorkers::Fixed(WorkerId::new(1)), None);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    let ids = runtime.block_on(async {
        let flakes = SnowflakeGenerator::open(registry, config).await?;
        Ok((0..500).map_while(|_| flakes.try_next().ok()).collect())
    });
    runtime.shutdown_background();
    ids
}

/// Every life begins without a state file, so only the floor's distance to the clock protects it. A
/// tick may be longer than a life.
#[test]
fn lives_without_a_state_file_repeat_nothing_while_the_clock_goes_on() {
    for layout in ["leaf", "t39-s8-w16/10ms", "t31-w10-s20/1s"] {
        let clock = Arc::new(ManualClock::at(START));
        let mut ids = HashSet::new();
        for round in 0..300 {
            let directory = tempfile::tempdir().unwrap();
            let set = |config: &mut SnowflakeConfig| config.layout = layout.parse().unwrap();
            for id in life(&clock, directory.path(), set).unwrap() {
                assert!(ids.insert(id), "{layout}: life {round} repeated {id}");
            }
            clock.advance(Duration::from_millis(1 + round % 97));
        }
        // Ticks of a second are longer than most of these lives.
        assert!(ids.len() >= 500, "{layout}: only {} ids", ids.len());
    }
}

#[test]
fn every_tolerance_that_may_be_configured_starts() {
    for tolerance in [1, 5, 1000, 16_000, 60_000] {
        let clock = Arc::new(ManualClock::at(START));
        let directory = tempfile::tempdir().unwrap();
        let set = |config: &mut SnowflakeConfig| {
            config.rollback_tolerance = Duration::from_millis(tolerance);
        };
        assert!(!life(&clock, directory.path(), set).unwrap().is_empty(), "{tolerance} ms");
    }
}

/// The ids of the first life reach up to its floor and beyond; the second goes on above them.
#[test]
fn a_killed_node_goes_on_above_what_it_wrote_down() {
    let clock = Arc::new(ManualClock::at(START));
    let directory = tempfile::tempdir().unwrap();
    let mut last = None;
    for _ in 0..20 {
        let ids = life(&clock, directory.path(), |_| {}).unwrap();
        assert!(ids.first().copied() > last);
        last = ids.last().copied();
        clock.advance(Duration::from_millis(300));
    }
}

/// A node that the configuration does not name gets no worker id, not even a default one.
#[tokio::test]
async fn a_node_that_is_not_named_gets_no_worker_id() {
    let workers = [("a:1".to_owned(), WorkerId::new(1))].into();
    let registry = local::registry(LocalWorkers::ByIdentity(workers), None);
    let directory = tempfile::tempdir().unwrap();
    let mut config = SnowflakeConfig::new(Identity::parse("b:1").unwrap());
    config.state_file = Some(directory.path().join("snowflake.state"));

    let refused = SnowflakeGenerator::open(registry, config).await.map(|it| it.worker());

    let text = refused.unwrap_err().to_string();
    assert!(text.contains("no worker id is assigned to b:1"), "{text}");
}

/// A worker id outside the configured range, here that of another data centre, is refused.
#[tokio::test]
async fn a_worker_id_outside_the_range_is_refused() {
    let range = Some("512..1023".parse().unwrap());
    for (worker, expected) in [(5, false), (512, true)] {
        let registry = local::registry(LocalWorkers::Fixed(WorkerId::new(worker)), range);
        let directory = tempfile::tempdir().unwrap();
        let config = SnowflakeConfig {
            state_file: Some(directory.path().join("snowflake.state")),
            ..SnowflakeConfig::new(Identity::parse("a:1").unwrap())
        };
        let claimed = SnowflakeGenerator::open(registry, config).await;
        match claimed {
            Ok(generator) => {
                assert!(expected);
                generator.close().await;
            }
            Err(error) => {
                assert!(!expected && error.to_string().contains("outside 512..1023"), "{error}")
            }
        }
    }
}
