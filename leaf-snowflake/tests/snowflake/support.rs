//! What the tests of the generator share: a configuration, two clocks that move together, a crash.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Id, Layout, ManualClock, UnixMillis, WorkerId};
use leaf_snowflake::{
    ClaimRequest, FenceStore, Identity, MemoryFenceStore, Purpose, RecordState, Registry,
    RegistryError, RegistryErrorKind, Report, SnowflakeConfig, SnowflakeError, SnowflakeErrorKind,
    SnowflakeGenerator, Stored, StoredWorker, WorkerRecord, WorkerView,
};

pub(crate) const START: UnixMillis = UnixMillis::new(1_800_000_000_000);

pub(crate) fn config(
    name: &str,
    clock: &Arc<ManualClock>,
    directory: Option<&Path>,
) -> SnowflakeConfig {
    let mut config = SnowflakeConfig::new(Identity::parse(name).unwrap());
    config.clock = Arc::clone(clock) as _;
    config.state_file = directory.map(|directory| directory.join("snowflake.state"));
    config
}

/// Two worker ids for everybody.
pub(crate) fn two_workers() -> Layout {
    "t41-w1-s12/1ms".parse().unwrap()
}

pub(crate) async fn open(
    store: &Arc<MemoryFenceStore>,
    config: SnowflakeConfig,
) -> Result<SnowflakeGenerator, SnowflakeError> {
    SnowflakeGenerator::open(Arc::clone(store), config).await
}

/// Lets the same time pass on the manual clock and on tokio's.
pub(crate) async fn pass(clock: &ManualClock, duration: Duration) {
    const STEP: Duration = Duration::from_millis(50);
    let mut left = duration;
    while !left.is_zero() {
        let step = left.min(STEP);
        clock.advance(step);
        tokio::time::sleep(step).await;
        left -= step;
    }
}

pub(crate) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The report of a holder at the time `START` that wants to issue up to `ceiling`.
pub(crate) fn report(ceiling: UnixMillis) -> Report {
    Report { now: START, tolerance: Duration::from_secs(1), ceiling }
}

/// The registry's reason.
pub(crate) fn registry_error(error: &SnowflakeError) -> &RegistryErrorKind {
    match error.kind() {
        SnowflakeErrorKind::Registry(error) => error.kind(),
        other => panic!("not the registry's: {other}"),
    }
}

/// Runs `life` in a runtime of its own with paused time that is then torn down: what a kill -9
/// leaves behind.
pub(crate) fn until_killed<T>(life: impl AsyncFnOnce() -> T) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    let result = runtime.block_on(life());
    runtime.shutdown_background();
    result
}

/// A [`MemoryFenceStore`] that is different in some way.
#[derive(Debug, Default)]
pub(crate) struct Odd {
    pub(crate) memory: MemoryFenceStore,
    /// As a bug in a driver would, once there is a record.
    pub(crate) panics: bool,
    /// How long a write takes, once there is a record.
    pub(crate) answers_after: Duration,
}

impl FenceStore for Odd {
    type Version = ();

    fn name(&self) -> &'static str {
        "an odd store"
    }

    async fn list(&self, purpose: Purpose) -> Result<Vec<StoredWorker<()>>, RegistryError> {
        self.memory.list(purpose).await
    }

    async fn read(&self, worker: WorkerId, purpose: Purpose) -> Result<Stored<()>, RegistryError> {
        self.memory.read(worker, purpose).await
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<()>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        if read.record != RecordState::Absent {
            assert!(!self.panics, "a bug in a driver");
            tokio::time::sleep(self.answers_after).await;
        }
        self.memory.replace(worker, read, record).await
    }
}

/// Nodes on one registry and one clock, each with a state file of its name.
pub(crate) struct Cluster {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) store: Arc<MemoryFenceStore>,
    pub(crate) directory: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self {
            clock: Arc::new(ManualClock::at(START)),
            store: Arc::default(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn config(&self, name: &str) -> SnowflakeConfig {
        let mut config = config(name, &self.clock, None);
        config.state_file = Some(self.directory.path().join(name));
        config
    }

    /// The registry that the nodes share.
    pub(crate) fn registry(&self) -> Registry {
        Arc::clone(&self.store).into()
    }

    /// The worker ids as an operator sees them.
    pub(crate) async fn workers(&self) -> Vec<WorkerView> {
        self.registry().workers().await.unwrap()
    }

    pub(crate) async fn open(&self, name: &str) -> SnowflakeGenerator {
        open(&self.store, self.config(name)).await.unwrap()
    }

    /// A life of this node, from the start to a kill -9, beside the runtime of the test.
    pub(crate) fn live_and_die(&self, name: &str) {
        std::thread::scope(|scope| {
            let life = || until_killed(async || self.open(name).await.next().await.unwrap());
            scope.spawn(life).join().unwrap();
        });
    }

    pub(crate) async fn pass(&self, duration: Duration) {
        pass(&self.clock, duration).await;
    }
}

/// Takes `count` ids, none of which may be in `ids`.
pub(crate) fn take_all(flakes: &SnowflakeGenerator, count: usize, ids: &mut HashSet<Id>) {
    for _ in 0..count {
        let id = flakes.try_next().unwrap();
        assert!(ids.insert(id), "{id} was issued twice");
    }
}

/// The claim of a new instance.
pub(crate) fn request(now: UnixMillis) -> ClaimRequest {
    ClaimRequest {
        now,
        instance: uuid::Uuid::new_v4(),
        nonce: uuid::Uuid::new_v4(),
        layout: Layout::LEAF,
        saved: None,
        least_floor: UnixMillis::EPOCH,
        watched: Default::default(),
        offline_for: seconds(600),
        report_interval: seconds(3),
        tolerance: seconds(1),
        startup_wait: seconds(15),
    }
}
