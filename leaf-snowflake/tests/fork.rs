//! W-11: a forked child has a copy of the generator and must not use it. Alone in its file: a fork
//! of a test process that runs other tests could deadlock.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fork::{Fork, fork, waitpid, waitpid_nohang};
use leaf_core::WorkerId;
use leaf_snowflake::{
    FenceStore, Identity, MemoryFenceStore, Purpose, RegistryError, SnowflakeConfig,
    SnowflakeErrorKind, SnowflakeGenerator, Stored, StoredWorker, WorkerRecord,
};
use rustix::process::{Pid, Signal, getpid, kill_process};
use tokio::runtime::{Builder, Runtime};

/// The signal with which a child kills itself if its check succeeded.
const FINE: i32 = Signal::KILL.as_raw();

/// Ends a child without a destructor and without the locks that other threads of the parent held.
fn end(fine: bool) -> ! {
    let signal = if fine { Signal::KILL } else { Signal::TERM };
    loop {
        let _ = kill_process(getpid(), signal);
    }
}

/// Returns the wait status of a child. A child that hangs is aborted after 10 s.
#[expect(clippy::disallowed_methods, reason = "a process is waited for in real time")]
fn ended(child: i32) -> i32 {
    for _ in 0..1000 {
        if let Some(status) = waitpid_nohang(child).unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = kill_process(Pid::from_raw(child).unwrap(), Signal::ABORT);
    waitpid(child).unwrap()
}

/// Polls `work` once. It must be ready: in a child nobody would wake it.
fn poll<T>(work: impl Future<Output = T>) -> T {
    match std::pin::pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => end(false),
    }
}

/// A runtime for the keeper.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// The fork happens while other callers wait.
#[test]
fn a_forked_child_never_waits() {
    let mut config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    config.layout = "t41-w1-s4/1ms".parse().unwrap();
    let runtime = runtime();
    let registry = Arc::new(MemoryFenceStore::default());
    let flakes = runtime.block_on(SnowflakeGenerator::open(registry, config)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = || {
            while !stop.load(Ordering::Relaxed) {
                runtime.block_on(flakes.next()).unwrap();
            }
        };
        let _busy: Vec<_> = (0..4).map(|_| scope.spawn(busy)).collect();
        // No assertion here: the busy threads must be stopped first.
        let fine = (0..20).all(|_| match fork().unwrap() {
            Fork::Child => {
                let kinds = [
                    poll(flakes.next()).map_err(|error| error.kind().clone()),
                    poll(flakes.take(100)).map(|ids| ids[0]).map_err(|error| error.kind().clone()),
                ];
                poll(flakes.close());
                let forked =
                    kinds.iter().all(|kind| matches!(kind, Err(SnowflakeErrorKind::Forked)));
                end(forked && !flakes.health().can_answer());
            }
            Fork::Parent(child) => ended(child) == FINE,
        });
        stop.store(true, Ordering::Relaxed);
        assert!(fine, "a child got an id, or waited for one");
    });
}

/// A store that keeps a list of the processes that used it, in a file that a fork shares.
#[derive(Debug)]
struct Witness(MemoryFenceStore, std::path::PathBuf);

impl Witness {
    fn record_caller(&self) {
        let mut file = OpenOptions::new().append(true).create(true).open(&self.1).unwrap();
        writeln!(file, "{}", std::process::id()).unwrap();
    }
}

impl FenceStore for Witness {
    type Version = ();

    fn name(&self) -> &'static str {
        "a witness"
    }

    async fn list(&self, purpose: Purpose) -> Result<Vec<StoredWorker<()>>, RegistryError> {
        self.record_caller();
        self.0.list(purpose).await
    }

    async fn read(&self, worker: WorkerId, purpose: Purpose) -> Result<Stored<()>, RegistryError> {
        self.record_caller();
        self.0.read(worker, purpose).await
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<()>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        self.record_caller();
        self.0.replace(worker, read, record).await
    }
}

/// The child goes on with the runtime that the keeper lives in.
#[test]
fn a_forked_child_neither_extends_nor_releases() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("writers");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    config.report_interval = Duration::from_millis(20);
    let registry = Arc::new(Witness(MemoryFenceStore::default(), list.clone()));
    let flakes =
        runtime.block_on(leaf_snowflake::SnowflakeGenerator::open(registry, config)).unwrap();
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(100)).await });
    match fork().unwrap() {
        Fork::Child => {
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(200)).await });
            drop(flakes);
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(200)).await });
            end(true);
        }
        Fork::Parent(child) => assert_eq!(ended(child), FINE),
    }
    runtime.block_on(flakes.close());

    let writers = std::fs::read_to_string(list).unwrap();
    let own = std::process::id().to_string();
    assert!(writers.lines().count() >= 3, "claim, extend, release");
    assert!(writers.lines().all(|line| line == own), "{own}: {writers}");
}

/// The load is so high that the clock is not read for each id.
#[test]
fn a_forked_child_under_load_gets_no_id() {
    let mut config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    config.layout = "t40-w1-s22/1ms".parse().unwrap();
    let runtime = runtime();
    let registry = Arc::new(MemoryFenceStore::default());
    let flakes = runtime.block_on(SnowflakeGenerator::open(registry, config)).unwrap();
    for round in 0..50 {
        for _ in 0..200_000 {
            flakes.try_next().unwrap();
        }
        match fork().unwrap() {
            Fork::Child => {
                let refused = flakes.try_next().map_err(|error| error.kind().clone());
                end(matches!(refused, Err(SnowflakeErrorKind::Forked)));
            }
            Fork::Parent(child) => assert_eq!(ended(child), FINE, "fork {round} got an id"),
        }
    }
}

#[test]
fn a_forked_child_gets_no_id() {
    let config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    let runtime = runtime();
    let registry = Arc::new(MemoryFenceStore::default());
    let flakes = runtime.block_on(SnowflakeGenerator::open(registry, config)).unwrap();
    for round in 0..200 {
        // So that the process id was compared a moment before.
        let before = runtime.block_on(flakes.next()).unwrap();
        match fork().unwrap() {
            Fork::Child => {
                let refused = flakes.try_next().map_err(|error| error.kind().clone());
                let refused = matches!(refused, Err(SnowflakeErrorKind::Forked));
                end(refused);
            }
            Fork::Parent(child) => {
                assert_eq!(ended(child), FINE, "fork {round} got an id");
                assert!(runtime.block_on(flakes.next()).unwrap() > before, "the parent goes on");
            }
        }
    }
}
