//! The task that keeps a lease: it claims, raises both ceilings ahead of use, watches the clock and
//! gives the worker id back.
//!
//! Invariant: a ceiling in memory rises only after it was written down: the registry's by a
//! confirmed extension, the local one by a synced write that does not exceed the registry's.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::UnixMillis;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::generator::{Phase, Shared, Trouble};
use crate::id_clock::Look;
use crate::sequencer::Sequencer;
use crate::state_file::StateFile;
use crate::{
    ClaimRequest, FenceState, Lease, Memory, RegistryError, RegistryErrorKind, SnowflakeConfig,
    SnowflakeError, StateFileError, WorkerRegistry,
};

/// How far ahead of the clock the local ceiling is written. Less than the default rollback
/// tolerance, so that a restart after a crash need not wait.
const LOCAL_WINDOW: Duration = Duration::from_millis(800);
/// How far ahead of the last id at least: where ids run ahead of the clock after a restart, a
/// crash loop must not push them further each time.
const LEAST_WINDOW: Duration = Duration::from_millis(200);
/// How often the clock is watched and the local ceiling considered.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The local ceiling is not written again for less than this.
const LEAST_RAISE: Duration = Duration::from_millis(200);
/// Deadline of one request to the registry.
const ATTEMPT: Duration = Duration::from_secs(2);

type Extension = BoxFuture<'static, (Lease, Result<(), RegistryError>)>;

#[derive(Debug)]
pub(crate) struct Keeper {
    registry: Arc<dyn WorkerRegistry>,
    config: SnowflakeConfig,
    shared: Arc<Shared>,
    /// Shared with the write under way, so that a claim that is given up half-way keeps its lock.
    file: Option<Arc<Mutex<StateFile>>>,
    memory: Option<Memory>,
    instance: Uuid,
    nonce: Uuid,
}

impl Keeper {
    /// Opens and locks the state file.
    pub(crate) fn new(
        registry: Arc<dyn WorkerRegistry>,
        config: SnowflakeConfig,
        shared: Arc<Shared>,
    ) -> Result<Self, StateFileError> {
        let (file, memory) = match &config.state_file {
            Some(path) => {
                let (file, memory) = StateFile::open(path)?;
                (Some(Arc::new(Mutex::new(file))), memory)
            }
            None => (None, None),
        };
        if let (Some(Memory { genuine: false, .. }), Some(path)) = (&memory, &config.state_file) {
            tracing::warn!(
                "{} was copied from elsewhere: make sure that no process uses the original",
                path.display()
            );
        }
        // A copy is another instance: the original may be alive.
        let genuine = memory.as_ref().filter(|memory| memory.genuine);
        let instance = genuine.map_or_else(Uuid::new_v4, |memory| memory.fence.instance);
        Ok(Self { registry, config, shared, file, memory, instance, nonce: Uuid::new_v4() })
    }

    /// Takes a worker id and lets ids flow. On a retryable error it may be called again.
    pub(crate) async fn claim(&mut self) -> Result<Lease, SnowflakeError> {
        let lease = self.take_worker_id().await?;
        self.shared.clock.anchor();
        let now = self.config.layout.tick_at(self.shared.clock.wall());
        let sequencer = Arc::new(Sequencer::new(
            self.config.layout,
            lease.worker,
            lease.floor,
            now,
            self.config.sequence_start,
        ));
        self.memory = Some(Memory {
            worker: lease.worker.get(),
            fence: lease.fence.clone(),
            local_ceiling: lease.floor,
            lost: false,
            genuine: true,
        });
        self.raise(&sequencer, Urgency::CallersWait).await?;
        tracing::info!(worker = %lease.worker, epoch = lease.fence.epoch, "worker id claimed");
        self.shared.start(sequencer);
        Ok(lease)
    }

    async fn take_worker_id(&self) -> Result<Lease, SnowflakeError> {
        loop {
            let now = self.shared.clock.wall();
            let layout = self.config.layout;
            self.config.check_against(now)?;
            let request = ClaimRequest {
                now,
                instance: self.instance,
                nonce: self.nonce,
                layout,
                memory: self.memory.clone(),
                offline_for: self.config.offline_for,
                tolerance: self.config.rollback_tolerance,
                startup_wait: self.config.startup_wait,
            };
            let claim = self.registry.claim(&self.config.identity, &request);
            let answer = tokio::time::timeout(ATTEMPT, claim).await;
            let error = match answer.unwrap_or_else(|_| Err(no_answer("claim a worker id"))) {
                Ok(lease) => return Ok(lease),
                Err(error) => error,
            };
            let RegistryErrorKind::NotYet { at } = *error.kind() else { return Err(error.into()) };
            tracing::info!("{error}; waiting for it");
            tokio::time::sleep((at - now).max(Duration::from_millis(1))).await;
        }
    }

    /// Keeps the lease until `stop`, then gives the worker id back.
    pub(crate) async fn run(mut self, lease: Lease, stop: CancellationToken) {
        let Some(sequencer) = self.shared.sequencer() else { return };
        let mut looks = every(LOOK_EVERY);
        let mut reports = every(self.config.report_interval);
        let mut lease = Some(lease);
        let mut extension: Option<Extension> = None;
        let wake = Arc::clone(&self.shared.wake);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = looks.tick() => self.look(&sequencer, Urgency::InTime).await,
                () = wake.notified() => self.look(&sequencer, Urgency::CallersWait).await,
                _ = reports.tick() => {
                    if let Some(lease) = lease.take() {
                        extension = Some(self.extend(&sequencer, lease));
                    }
                }
                (back, result) = finish(&mut extension) => {
                    extension = None;
                    lease = Some(back);
                    if let Err(error) = result {
                        if *error.kind() == RegistryErrorKind::Lost {
                            return self.lose(&sequencer, &error).await;
                        }
                        self.shared.report_trouble(Trouble::Registry, error.to_string());
                    } else if let (Some(memory), Some(lease)) = (&mut self.memory, &lease) {
                        memory.fence = lease.fence.clone();
                        self.shared.report_fine(Trouble::Registry);
                    }
                }
            }
        }
        if let Some(unfinished) = extension {
            lease = Some(unfinished.await.0);
        }
        if let Some(lease) = lease {
            self.release(&sequencer, lease).await;
        }
    }

    fn extend(&self, sequencer: &Sequencer, mut lease: Lease) -> Extension {
        // By the ids' own clock: a wall that jumped ahead must not lock the worker id for years.
        let clock = self.shared.clock.now().unwrap_or(UnixMillis::EPOCH);
        let ceiling = clock.max(sequencer.next_free()) + self.config.offline_for;
        let registry = Arc::clone(&self.registry);
        Box::pin(async move {
            let answer = tokio::time::timeout(ATTEMPT, registry.extend(&mut lease, ceiling)).await;
            (lease, answer.unwrap_or_else(|_| Err(no_answer("extend the lease"))))
        })
    }

    async fn look(&mut self, sequencer: &Sequencer, urgency: Urgency) {
        let next_free = sequencer.next_free();
        match self.shared.clock.look(next_free) {
            Look::Fine => self.shared.report_fine(Trouble::Clock),
            Look::StillBehind(_) => {}
            Look::WentBack(by) => {
                tracing::error!("the clock went back: {by:?} behind the ids; ids stop");
            }
            Look::CaughtUp => tracing::info!("the clock has caught up; ids flow again"),
            Look::FarAhead => {
                let limit = self.config.max_step_forward;
                let text = format!("the clock jumped ahead by more than {limit:?}: not followed");
                self.shared.report_trouble(Trouble::Clock, text);
            }
        }
        match self.raise(sequencer, urgency).await {
            Ok(()) => self.shared.report_fine(Trouble::StateFile),
            Err(error) => self.shared.report_trouble(Trouble::StateFile, error.to_string()),
        }
    }

    /// Raises the ceiling of the sequencer as far as the registry allows, after writing it down.
    async fn raise(
        &mut self,
        sequencer: &Sequencer,
        urgency: Urgency,
    ) -> Result<(), StateFileError> {
        let Some(memory) = &self.memory else { return Ok(()) };
        if self.config.state_file.is_none() {
            sequencer.raise(memory.fence.ceiling);
            self.shared.raised.notify_waiters();
            return Ok(());
        }
        let clock = self.shared.clock.now().unwrap_or(UnixMillis::EPOCH);
        // A ceiling counts from whole ticks on: where they are long it must be further ahead.
        let ticks = 2 * self.config.layout.tick_length();
        let wanted =
            (clock + LOCAL_WINDOW.max(ticks)).max(sequencer.next_free() + LEAST_WINDOW.max(ticks));
        let ceiling = wanted.min(memory.fence.ceiling);
        let least = match urgency {
            Urgency::InTime => LEAST_RAISE,
            Urgency::CallersWait => Duration::from_millis(1),
        };
        if ceiling - memory.local_ceiling < least {
            return Ok(());
        }
        let memory = Memory { local_ceiling: ceiling, ..memory.clone() };
        self.write(memory).await?;
        sequencer.raise(ceiling);
        self.shared.raised.notify_waiters();
        Ok(())
    }

    /// Writes the memory down; only then is it this keeper's.
    async fn write(&mut self, memory: Memory) -> Result<(), StateFileError> {
        if let Some(file) = &self.file {
            let (file, memory) = (Arc::clone(file), memory.clone());
            let written = tokio::task::spawn_blocking(move || {
                file.lock().expect("no holder of this lock panics").write(&memory)
            });
            written.await.expect("the write does not panic")?;
        }
        self.memory = Some(memory);
        Ok(())
    }

    async fn lose(mut self, sequencer: &Sequencer, error: &RegistryError) {
        sequencer.close();
        self.shared.end(Phase::Lost);
        tracing::error!("{error}; ids stop");
        if let Some(memory) = self.memory.clone() {
            self.note(Memory { lost: true, ..memory }).await;
        }
    }

    async fn release(mut self, sequencer: &Sequencer, lease: Lease) {
        let Some(next_free) = sequencer.close() else { return };
        self.shared.end(Phase::Closed);
        let Some(memory) = self.memory.clone() else { return };
        let kept = Memory { local_ceiling: next_free, ..memory };
        self.note(kept.clone()).await;
        let mut fence = lease.fence.clone();
        let release = self.registry.release(lease, next_free);
        match tokio::time::timeout(ATTEMPT, release).await {
            Ok(Ok(())) => {
                fence.state = FenceState::Released;
                fence.ceiling = next_free;
                self.note(Memory { fence, ..kept }).await;
                tracing::info!("worker id released");
            }
            Ok(Err(error)) => tracing::warn!("{error}"),
            Err(_) => tracing::warn!("{}", no_answer("release the worker id")),
        }
    }

    /// Writes what is good to remember and not fatal to forget.
    async fn note(&mut self, memory: Memory) {
        if let Err(error) = self.write(memory).await {
            tracing::warn!("{error}");
        }
    }
}

/// Whether somebody waits for the ceiling to rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Urgency {
    InTime,
    CallersWait,
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// The result of the extension under way; pending for ever when there is none.
async fn finish(extension: &mut Option<Extension>) -> (Lease, Result<(), RegistryError>) {
    match extension {
        Some(extension) => extension.await,
        None => std::future::pending().await,
    }
}

fn no_answer(operation: &str) -> RegistryError {
    RegistryError::new(RegistryErrorKind::Unavailable, operation)
        .because(format!("no answer within {ATTEMPT:?}"))
}
