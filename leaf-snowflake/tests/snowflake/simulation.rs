//! A day of a small cluster in simulated time: registry outages, lost answers, clock steps,
//! freezes, crashes and restarts, drawn from a seed. No id repeats, whatever happens.
//!
//! A repeat needs two holders in the same millisecond; with few ids per second that is rare. So the
//! test asserts what makes repeats impossible: all timestamps of a later term of a worker id are
//! above those of an earlier term.
//!
//! Every node has its own runtime with paused time, so that a crash ends this runtime and nothing
//! else; the driver moves the clocks. The test simulates two hours by default, and a day with
//! `scripts/test --full`. `LEAF_SEED` repeats a run.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Clock, Field, Id, Layout, ManualClock, Unit, UnixMillis};
use leaf_snowflake::{Identity, MemoryFenceStore, SnowflakeConfig, SnowflakeGenerator, StoreFault};
use leaf_testkit::Slices;
use tokio::runtime::Runtime;

const START: UnixMillis = UnixMillis::new(1_800_000_000_000);
/// The length of a simulated step. It divides no interval in the code, so steps meet every phase.
const STEP: Duration = Duration::from_millis(370);
const NODES: usize = 6;

fn simulated() -> Duration {
    let hours = if std::env::var_os("LEAF_TEST_FULL").is_some() { 24 } else { 2 };
    Duration::from_secs(hours * 3600)
}

fn seed() -> u64 {
    let given = std::env::var("LEAF_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| fastrand::u64(..))
}

/// Four worker ids for six nodes, so that worker ids change holders.
fn layout() -> Layout {
    Layout::new(
        [(Field::Timestamp, 41), (Field::Worker, 2), (Field::Sequence, 12)],
        Unit::Millisecond,
        UnixMillis::new(1_288_834_974_657),
    )
    .unwrap()
}

struct Node {
    config: SnowflakeConfig,
    clock: Arc<ManualClock>,
    life: Option<(Runtime, SnowflakeGenerator)>,
    frozen: Duration,
}

impl Node {
    fn new(number: usize, directory: &std::path::Path) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let identity = Identity::parse(&format!("node:{number}")).unwrap();
        let mut config = SnowflakeConfig::new(identity);
        config.layout = layout();
        config.clock = Arc::clone(&clock) as _;
        config.state_file = Some(PathBuf::from(directory).join(format!("state-{number}")));
        Self { config, clock, life: None, frozen: Duration::ZERO }
    }

    /// Starts the process where none runs; a refused or waiting start is tried again later.
    fn start(&mut self, registry: &Arc<MemoryFenceStore>) {
        if self.life.is_some() {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let claimed = runtime.block_on(async {
            let port = Arc::clone(registry);
            let generator = SnowflakeGenerator::prepare(port, self.config.clone()).ok()?;
            let claim = tokio::time::timeout(Duration::from_millis(1), generator.claim());
            claim.await.ok()?.ok()?;
            Some(generator)
        });
        match claimed {
            Some(generator) => self.life = Some((runtime, generator)),
            None => runtime.shutdown_background(),
        }
    }

    /// kill -9.
    fn crash(&mut self) {
        if let Some((runtime, generator)) = self.life.take() {
            // Without its runtime the generator cannot give anything back.
            runtime.shutdown_background();
            drop(generator);
        }
    }

    fn stop(&mut self) {
        if let Some((runtime, generator)) = self.life.take() {
            runtime.block_on(generator.close());
        }
    }

    /// Lets time pass; a frozen process does not notice it yet.
    fn pass(&mut self, duration: Duration) {
        self.clock.advance(duration);
        self.frozen = self.frozen.saturating_sub(duration);
        if let (Some((runtime, _)), true) = (&self.life, self.frozen.is_zero()) {
            runtime.block_on(async { tokio::time::sleep(duration).await });
        }
    }

    /// An id and the term that it was issued in.
    fn issue(&self) -> Option<(Id, u64)> {
        let (_, generator) = self.life.as_ref()?;
        let id = generator.try_next().ok()?;
        Some((id, generator.view().term))
    }
}

#[test]
fn a_day_of_faults_repeats_nothing() {
    let seed = seed();
    println!("LEAF_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().unwrap();
    let registry = Arc::new(MemoryFenceStore::default());
    let mut nodes: Vec<Node> = (0..NODES).map(|n| Node::new(n, directory.path())).collect();
    for node in &mut nodes {
        // Short, so that ids change hands often.
        node.config.offline_for = Duration::from_secs(60);
    }
    let mut ids = HashSet::new();
    let mut slices = Slices::default();
    let (mut outage, mut fault) = (Duration::ZERO, StoreFault::None);
    let mut restarts = 0;
    let mut elapsed = Duration::ZERO;
    let minutes =
        |random: &mut fastrand::Rng, most: u64| Duration::from_secs(random.u64(1..most * 60));

    while elapsed < simulated() {
        elapsed += STEP;
        outage = outage.saturating_sub(STEP);
        // Something goes wrong about once in twenty seconds.
        if random.u32(..54) == 0 {
            let node = random.choice(&mut nodes).unwrap();
            match random.u32(..9) {
                0 => {
                    outage = minutes(&mut random, 3);
                    let lost = random.u32(..3) == 0;
                    fault = if lost { StoreFault::AnswersLost } else { StoreFault::Away };
                }
                1 | 2 => node.crash(),
                3 => node.stop(),
                4 => node.frozen = minutes(&mut random, 5),
                5 => {
                    node.crash();
                    let _ = std::fs::remove_file(node.config.state_file.as_ref().unwrap());
                }
                _ => {
                    // An hour only now and then: a node that believes it holds its id that long.
                    let by = Duration::from_millis(match random.u32(..30) {
                        0 => random.u64(..3_600_000),
                        1..10 => random.u64(..10),
                        10..20 => random.u64(..1000),
                        _ => random.u64(..20_000),
                    });
                    let wall = node.clock.wall_millis();
                    // Most clocks are put right again in the end.
                    let right = START + elapsed;
                    node.clock.set_wall(match random.u32(..4) {
                        0 => wall - by,
                        1 => wall + by,
                        _ => right,
                    });
                }
            }
        }
        registry.set_fault(if outage.is_zero() { StoreFault::None } else { fault });
        for (number, node) in nodes.iter_mut().enumerate() {
            node.pass(STEP);
            if node.life.is_none() && random.u32(..5) == 0 {
                node.start(&registry);
                restarts += u32::from(node.life.is_some());
            }
            for _ in 0..random.u32(..6) {
                if let Some((id, term)) = node.issue() {
                    assert!(
                        ids.insert(id),
                        "LEAF_SEED={seed}: {id} is repeated by node {number}, {elapsed:?}"
                    );
                    let parts = layout().decode(id).unwrap();
                    let (worker, at) = (parts.worker.get(), parts.timestamp.get());
                    if let Err(broken) = slices.record(worker, term, at) {
                        panic!("LEAF_SEED={seed}: {broken}, by node {number}, {elapsed:?}");
                    }
                }
            }
        }
    }

    let calls = elapsed.as_millis() / STEP.as_millis() * NODES as u128;
    println!("{} ids, {restarts} starts", ids.len());
    assert!(ids.len() as u128 > calls / 8, "LEAF_SEED={seed}: only {} ids", ids.len());
    assert!(restarts > 20, "LEAF_SEED={seed}: only {restarts} starts");
}

#[test]
fn outages_shorter_than_offline_for_are_not_noticed() {
    let seed = seed();
    println!("LEAF_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().unwrap();
    let registry = Arc::new(MemoryFenceStore::default());
    let mut node = Node::new(0, directory.path());
    node.start(&registry);
    let offline_for = node.config.offline_for;
    let mut elapsed = Duration::ZERO;
    let mut last = None;

    while elapsed < simulated() {
        // The ceiling was last raised up to a report interval before the outage began.
        let longest = offline_for - 2 * node.config.report_interval;
        let mut outage = longest.mul_f64(random.f64());
        let mut peace = Duration::from_secs(random.u64(8..60));
        while !(outage.is_zero() && peace.is_zero()) {
            let away = if outage.is_zero() { StoreFault::None } else { StoreFault::Away };
            registry.set_fault(away);
            if outage.is_zero() {
                peace = peace.saturating_sub(STEP);
            }
            outage = outage.saturating_sub(STEP);
            elapsed += STEP;
            node.pass(STEP);
            let id = node.issue().map(|(id, _)| id);
            assert!(id > last, "LEAF_SEED={seed}: no id after {elapsed:?}");
            last = id;
        }
    }
}
