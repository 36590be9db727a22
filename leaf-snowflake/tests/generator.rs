//! The generator with a registry in memory, a real state file, and clocks that the test moves.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{Field, Health, Layout, ManualClock, Unit, UnixMillis};
use leaf_snowflake::{
    ClaimRequest, FenceState, Identity, Lease, MemoryRegistry, RegistryError, RegistryErrorKind,
    SnowflakeConfig, SnowflakeError, SnowflakeErrorKind, SnowflakeGenerator, WorkerRecord,
    WorkerRegistry,
};

const START: UnixMillis = UnixMillis::new(1_700_000_000_000);

fn config(name: &str, clock: &Arc<ManualClock>, directory: Option<&Path>) -> SnowflakeConfig {
    let mut config = SnowflakeConfig::new(Identity::parse(name).unwrap());
    config.clock = Arc::clone(clock) as _;
    config.state_file = directory.map(|directory| directory.join("snowflake.state"));
    config
}

/// Timestamp, worker and sequence of these widths.
fn layout([timestamp, worker, sequence]: [u32; 3], unit: Unit) -> Layout {
    let fields =
        [(Field::Timestamp, timestamp), (Field::Worker, worker), (Field::Sequence, sequence)];
    Layout::new(fields, unit, Layout::LEAF.epoch()).unwrap()
}

fn two_workers() -> Layout {
    layout([41, 1, 12], Unit::Millisecond)
}

/// Lets the same time pass on the manual clock and on tokio's.
async fn pass(clock: &ManualClock, duration: Duration) {
    const STEP: Duration = Duration::from_millis(50);
    let mut left = duration;
    while !left.is_zero() {
        let step = left.min(STEP);
        clock.advance(step);
        tokio::time::sleep(step).await;
        left -= step;
    }
}

fn registry_error(error: &SnowflakeError) -> &RegistryErrorKind {
    match error.kind() {
        SnowflakeErrorKind::Registry(error) => error.kind(),
        other => panic!("not the registry's: {other}"),
    }
}

/// Runs `life` in a runtime of its own that is then torn down: what a kill -9 leaves behind.
fn until_killed<T>(life: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(life());
    runtime.shutdown_background();
    result
}

#[tokio::test(start_paused = true)]
async fn ids_increase_over_many_milliseconds() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(MemoryRegistry::default());
    let flakes = SnowflakeGenerator::open(registry, config("a:1", &clock, None)).await.unwrap();

    let mut last = flakes.next().await.unwrap();
    for _ in 0..100 {
        for _ in 0..1000 {
            let id = flakes.try_next().unwrap();
            assert!(id > last);
            last = id;
        }
        pass(&clock, Duration::from_millis(1)).await;
    }
    let parts = flakes.layout().decode(last).unwrap();
    assert!(parts.timestamp - START < Duration::from_millis(101));
}

#[tokio::test]
async fn a_full_millisecond_is_slept_over() {
    let registry = Arc::new(MemoryRegistry::default());
    let config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    let flakes = SnowflakeGenerator::open(registry, config).await.unwrap();

    let mut ids = HashSet::new();
    for _ in 0..50_000 {
        assert!(ids.insert(flakes.next().await.unwrap()));
    }
}

#[tokio::test(start_paused = true)]
async fn each_node_gets_its_own_worker_id() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(MemoryRegistry::default());
    let mut workers = HashSet::new();
    let mut nodes = Vec::new();

    for node in 0..40 {
        let config = config(&format!("node:{node}"), &clock, None);
        let flakes = SnowflakeGenerator::open(Arc::clone(&registry) as _, config).await.unwrap();
        assert!(workers.insert(flakes.worker().unwrap()));
        nodes.push(flakes);
    }
}

#[test]
fn a_killed_node_goes_on_at_once_and_repeats_nothing() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(MemoryRegistry::default());
    let directory = tempfile::tempdir().unwrap();
    let mut ids = HashSet::new();

    for round in 0..20 {
        until_killed(async || {
            let config = config("a:1", &clock, Some(directory.path()));
            let flakes =
                SnowflakeGenerator::open(Arc::clone(&registry) as _, config).await.unwrap();
            for _ in 0..100 {
                let id = flakes.try_next().unwrap();
                assert!(ids.insert(id), "round {round} repeated {id}");
            }
        });
        clock.advance(Duration::from_millis(250));
    }
}

#[test]
fn a_killed_node_whose_clock_went_back_an_hour_refuses_and_writes_nothing() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(MemoryRegistry::default());
    let directory = tempfile::tempdir().unwrap();
    let open = async || {
        let config = config("a:1", &clock, Some(directory.path()));
        SnowflakeGenerator::open(Arc::clone(&registry) as _, config).await
    };
    until_killed(async || open().await.unwrap().next().await.unwrap());
    clock.set_wall(START - Duration::from_secs(3600));

    let before = until_killed(async || registry.workers().await.unwrap());
    for _crash_loop in 0..5 {
        let error = until_killed(async || open().await.unwrap_err());
        assert!(matches!(registry_error(&error), RegistryErrorKind::FloorAhead { .. }), "{error}");
    }

    let after = until_killed(async || registry.workers().await.unwrap());
    assert_eq!(before[0].fence, after[0].fence);
}

#[test]
fn a_node_without_its_state_file_waits_for_the_registry_ceiling() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(MemoryRegistry::default());
    let first = tempfile::tempdir().unwrap();
    let open = async |directory: &Path| {
        let mut config = config("a:1", &clock, Some(directory));
        config.layout = two_workers();
        SnowflakeGenerator::open(Arc::clone(&registry) as _, config).await
    };
    let second = tempfile::tempdir().unwrap();
    until_killed(async || open(first.path()).await.unwrap().next().await.unwrap());
    until_killed(async || open(second.path()).await.unwrap().next().await.unwrap());

    let fresh = tempfile::tempdir().unwrap();
    let error = until_killed(async || open(fresh.path()).await.unwrap_err());
    assert!(matches!(registry_error(&error), RegistryErrorKind::FloorAhead { .. }), "{error}");

    clock.advance(Duration::from_secs(601));
    until_killed(async || open(fresh.path()).await.unwrap().next().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_frees_the_worker_id_at_once() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(MemoryRegistry::default());
    let open = async |name: &str| {
        SnowflakeGenerator::open(Arc::clone(&registry) as _, config(name, &clock, None)).await
    };
    let first = open("a:1").await.unwrap();
    let last = first.next().await.unwrap();
    first.close().await;

    let record = &registry.workers().await.unwrap()[0];
    assert_eq!(record.fence.state, FenceState::Released);
    let used = first.layout().decode(last).unwrap().timestamp;
    assert_eq!(record.fence.ceiling, used + Duration::from_millis(1), "last used + 1");
    assert!(matches!(first.try_next().unwrap_err().kind(), SnowflakeErrorKind::Closed));
    assert!(!first.health().can_answer());
}

#[tokio::test(start_paused = true)]
async fn ids_flow_without_the_registry_up_to_the_ceiling_and_no_further() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(MemoryRegistry::default());
    let directory = tempfile::tempdir().unwrap();
    let flakes = SnowflakeGenerator::open(
        Arc::clone(&registry) as _,
        config("a:1", &clock, Some(directory.path())),
    )
    .await
    .unwrap();

    registry.set_away(true);
    pass(&clock, Duration::from_secs(590)).await;
    flakes.next().await.unwrap();
    assert!(matches!(flakes.health(), Health::Degraded(_)), "{}", flakes.health());

    pass(&clock, Duration::from_secs(15)).await;
    let error = flakes.next().await.unwrap_err();
    assert!(matches!(error.kind(), SnowflakeErrorKind::CeilingReached), "{error}");
    assert!(!flakes.health().can_answer());

    registry.set_away(false);
    pass(&clock, Duration::from_secs(6)).await;
    flakes.next().await.unwrap();
    assert_eq!(flakes.health(), Health::Ready);
}

#[tokio::test(start_paused = true)]
async fn ids_stop_at_the_ceiling_that_was_written_down() {
    let clock = Arc::new(ManualClock::at(START));
    let directory = tempfile::tempdir().unwrap();
    let flakes = SnowflakeGenerator::open(
        Arc::new(MemoryRegistry::default()),
        config("a:1", &clock, Some(directory.path())),
    )
    .await
    .unwrap();
    pass(&clock, Duration::from_secs(5)).await;
    flakes.next().await.unwrap();
    let file = directory.path().join("snowflake.state");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();

    let mut last = flakes.next().await.unwrap();
    for _ in 0..200 {
        pass(&clock, Duration::from_millis(10)).await;
        if let Ok(id) = flakes.try_next() {
            last = id;
        }
    }

    let written = text.split("\"local_ceiling\":").skip(1);
    let written = written.map(|rest| rest[..13].parse::<u64>().unwrap()).max().unwrap();
    let issued = flakes.layout().decode(last).unwrap().timestamp;
    assert!(issued.get() < written, "{issued} was issued, {written} is written down");
    assert!(matches!(flakes.try_next().unwrap_err().kind(), SnowflakeErrorKind::CeilingReached));
    assert!(flakes.health().to_string().contains("removed or replaced"), "{}", flakes.health());
}

#[tokio::test(start_paused = true)]
async fn a_frozen_node_whose_id_was_taken_stops_for_good() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(MemoryRegistry::default());
    let narrow = |name: &str| {
        let mut config = config(name, &clock, None);
        config.layout = two_workers();
        config
    };
    let open = async |name: &str| {
        SnowflakeGenerator::open(Arc::clone(&registry) as _, narrow(name)).await.unwrap()
    };
    let frozen = open("a:1").await;
    let _other = open("b:1").await;
    let mut ids: HashSet<_> = (0..1000).map(|_| frozen.try_next().unwrap()).collect();

    // No await in between: neither keeper runs, as under SIGSTOP.
    clock.advance(Duration::from_secs(3600));
    let successor = open("c:1").await;
    assert_eq!(successor.worker(), frozen.worker(), "both ids are used, the first is recycled");

    for _ in 0..1000 {
        if let Ok(id) = frozen.try_next() {
            assert!(ids.insert(id));
        }
        assert!(ids.insert(successor.next().await.unwrap()));
    }
    pass(&clock, Duration::from_secs(6)).await;
    assert!(matches!(frozen.try_next().unwrap_err().kind(), SnowflakeErrorKind::Lost));
    assert!(!frozen.health().can_answer());
    successor.next().await.unwrap();
}

/// A registry with a bug in its driver.
#[derive(Debug, Default)]
struct Panicking(MemoryRegistry);

impl WorkerRegistry for Panicking {
    fn claim<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
    ) -> BoxFuture<'a, Result<Lease, RegistryError>> {
        self.0.claim(who, request)
    }

    fn extend<'a>(
        &'a self,
        _: &'a mut Lease,
        _: UnixMillis,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        panic!("as a bug in a driver would")
    }

    fn release<'a>(
        &'a self,
        lease: Lease,
        next_free: UnixMillis,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        self.0.release(lease, next_free)
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerRecord>, RegistryError>> {
        self.0.workers()
    }
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_ends_badly_ends_the_ids_and_says_so() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(Panicking::default());
    let flakes = SnowflakeGenerator::open(registry, config("a:1", &clock, None)).await.unwrap();

    pass(&clock, Duration::from_secs(4)).await;

    let error = flakes.try_next().unwrap_err();
    assert!(matches!(error.kind(), SnowflakeErrorKind::Closed), "{error}");
    assert!(!flakes.health().can_answer());
    flakes.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_rollback_within_the_tolerance_goes_unnoticed_and_beyond_it_stops_the_ids() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(MemoryRegistry::default());
    let flakes = SnowflakeGenerator::open(registry, config("a:1", &clock, None)).await.unwrap();
    let first = flakes.next().await.unwrap();

    clock.set_wall(START - Duration::from_millis(900));
    pass(&clock, Duration::from_secs(1)).await;
    let second = flakes.next().await.unwrap();
    assert!(second > first);

    clock.set_wall(START - Duration::from_secs(60));
    pass(&clock, Duration::from_millis(200)).await;
    let error = flakes.next().await.unwrap_err();
    assert!(matches!(error.kind(), SnowflakeErrorKind::ClockBehind { .. }), "{error}");
    assert!(!flakes.health().can_answer());

    clock.set_wall(START + Duration::from_secs(10));
    pass(&clock, Duration::from_millis(200)).await;
    assert!(flakes.next().await.unwrap() > second);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_time_bits_is_an_error() {
    let layout = Layout::LEAF;
    let clock = Arc::new(ManualClock::at(layout.end() - Duration::from_millis(100)));
    let registry = Arc::new(MemoryRegistry::default());
    let flakes = SnowflakeGenerator::open(Arc::clone(&registry) as _, config("a:1", &clock, None))
        .await
        .unwrap();
    flakes.next().await.unwrap();

    clock.advance(Duration::from_millis(200));
    let error = flakes.next().await.unwrap_err();
    assert!(matches!(error.kind(), SnowflakeErrorKind::EndOfTime), "{error}");

    let late = SnowflakeGenerator::open(registry, config("b:1", &clock, None)).await;
    assert!(matches!(late.unwrap_err().kind(), SnowflakeErrorKind::EndOfTime));
}

#[tokio::test(start_paused = true)]
async fn senseless_settings_are_refused_by_name() {
    let clock = Arc::new(ManualClock::at(UnixMillis::new(1_000_000)));
    let registry = Arc::new(MemoryRegistry::default());

    let mut short = config("a:1", &clock, None);
    short.offline_for = Duration::from_secs(5);
    let error = SnowflakeGenerator::prepare(Arc::clone(&registry) as _, short).unwrap_err();
    assert!(error.to_string().contains("offline_for is 5s"), "{error}");

    let early = SnowflakeGenerator::open(registry, config("a:1", &clock, None)).await.unwrap_err();
    assert!(early.to_string().contains("before the layout's epoch"), "{early}");

    let mut lax = config("a:1", &Arc::new(ManualClock::at(START)), None);
    lax.rollback_tolerance = Duration::from_secs(3600);
    let error = SnowflakeGenerator::prepare(Arc::new(MemoryRegistry::default()), lax).unwrap_err();
    assert!(error.to_string().contains("rollback_tolerance is 3600s"), "{error}");

    type Change = fn(&mut SnowflakeConfig);
    let cases: [(&str, Change); 2] = [
        ("rollback_tolerance is 0ns", |config| config.rollback_tolerance = Duration::ZERO),
        ("report_interval is 0", |config| config.report_interval = Duration::ZERO),
    ];
    for (setting, change) in cases {
        let mut config = config("a:1", &Arc::new(ManualClock::at(START)), None);
        change(&mut config);
        let refused = SnowflakeGenerator::prepare(Arc::new(MemoryRegistry::default()), config);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(setting), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_layout_in_seconds_never_meets_its_ceiling() {
    let clock = Arc::new(ManualClock::at(START));
    let directory = tempfile::tempdir().unwrap();
    let mut config = config("a:1", &clock, Some(directory.path()));
    config.layout = layout([31, 10, 20], Unit::Second);
    let flakes =
        SnowflakeGenerator::open(Arc::new(MemoryRegistry::default()), config).await.unwrap();

    for _ in 0..400 {
        pass(&clock, Duration::from_millis(10)).await;
        flakes.try_next().unwrap();
        assert_eq!(flakes.health(), Health::Ready);
    }
}

#[tokio::test]
async fn a_claim_that_is_given_up_keeps_its_file_and_lock() {
    let directory = tempfile::tempdir().unwrap();
    let registry = Arc::new(MemoryRegistry::default());
    let clock = Arc::new(ManualClock::at(START));
    let config = config("a:1", &clock, Some(directory.path()));
    let file = config.state_file.clone().unwrap();
    let flakes = SnowflakeGenerator::prepare(Arc::clone(&registry) as _, config.clone()).unwrap();
    // Polled until its write is under way.
    for _ in 0..3 {
        let claim = flakes.claim();
        let _ = tokio::time::timeout(Duration::ZERO, claim).await;
    }

    flakes.claim().await.unwrap();

    flakes.next().await.unwrap();
    let second = SnowflakeGenerator::prepare(registry, config).unwrap_err();
    assert!(second.to_string().contains("another process uses"), "{second}");
    assert!(std::fs::read_to_string(file).unwrap().contains("\"epoch\":"));
}
