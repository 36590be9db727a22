//! The face of snowflake mode.
//!
//! A call loads the current lease's sequencer, reads the clock once and takes a position. What it
//! cannot have at once it waits for with a deadline: the next millisecond by sleeping, a ceiling by
//! waking the keeper.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use leaf_core::{Health, Id, Layout, WorkerId};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::id_clock::IdClock;
use crate::keeper::Keeper;
use crate::sequencer::{Refusal, Sequencer};
use crate::{SnowflakeConfig, SnowflakeError, SnowflakeErrorKind, WorkerRegistry};

/// Hands out snowflake ids of one node.
pub struct SnowflakeGenerator {
    shared: Arc<Shared>,
    keeper: tokio::sync::Mutex<KeeperState>,
    stop: CancellationToken,
}

enum KeeperState {
    Idle(Box<Keeper>),
    Running(JoinHandle<()>),
    Ended,
}

/// What callers and the keeper share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: IdClock,
    /// Told when a ceiling rose or the lease ended.
    pub(crate) raised: Notify,
    /// Wakes the keeper: a caller met the ceiling.
    pub(crate) wake: Arc<Notify>,
    layout: Layout,
    wait: Duration,
    /// Set once: a lease that ended is not replaced.
    active: OnceLock<Arc<Sequencer>>,
    status: Mutex<Status>,
}

#[derive(Debug)]
struct Status {
    phase: Phase,
    /// What is not as it should be at the moment.
    trouble: BTreeMap<Trouble, String>,
}

/// What can be in trouble without stopping the ids at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    Registry,
    StateFile,
    Clock,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Held,
    Lost,
    Closed,
}

impl SnowflakeGenerator {
    /// Opens the state file and claims a worker id. Call it in a tokio runtime.
    ///
    /// # Errors
    /// `BadConfig`, `StateFile`, `Registry`, `EndOfTime`.
    pub async fn open(
        registry: Arc<dyn WorkerRegistry>,
        config: SnowflakeConfig,
    ) -> Result<Self, SnowflakeError> {
        let generator = Self::prepare(registry, config)?;
        generator.claim().await?;
        Ok(generator)
    }

    /// Opens and locks the state file, without a worker id yet. A service calls this first,
    /// [`Self::claim`] last: whoever cannot bind its port must not hold a worker id.
    ///
    /// # Errors
    /// `BadConfig`, `EndOfTime`, `StateFile`.
    pub fn prepare(
        registry: Arc<dyn WorkerRegistry>,
        config: SnowflakeConfig,
    ) -> Result<Self, SnowflakeError> {
        config.check()?;
        if registry.needs_state_file() && config.state_file.is_none() {
            let why = "this worker registry keeps its record in the state file: give one";
            return Err(SnowflakeErrorKind::BadConfig(why.into()).into());
        }
        let clock = IdClock::new(
            Arc::clone(&config.clock),
            config.rollback_tolerance,
            config.max_step_forward,
        );
        let shared = Arc::new(Shared {
            clock,
            raised: Notify::new(),
            wake: Arc::default(),
            layout: config.layout,
            wait: config.wait,
            active: OnceLock::new(),
            status: Mutex::new(Status { phase: Phase::Starting, trouble: BTreeMap::new() }),
        });
        let keeper = Keeper::new(registry, config, Arc::clone(&shared))?;
        Ok(Self {
            shared,
            keeper: tokio::sync::Mutex::new(KeeperState::Idle(Box::new(keeper))),
            stop: CancellationToken::new(),
        })
    }

    /// Claims the worker id and lets ids flow. After an error that is
    /// [retryable](SnowflakeError::retryable) it may be called again.
    ///
    /// # Errors
    /// `Registry`, `StateFile`, `EndOfTime`, `BadConfig`, and `Closed` after [`Self::close`].
    pub async fn claim(&self) -> Result<WorkerId, SnowflakeError> {
        let mut state = self.keeper.lock().await;
        let KeeperState::Idle(keeper) = &mut *state else {
            return match self.shared.sequencer() {
                Some(sequencer) => Ok(sequencer.worker()),
                None => Err(self.shared.why_no_lease()),
            };
        };
        let claimed = self.stop.run_until_cancelled(keeper.claim()).await;
        let lease = claimed.unwrap_or_else(|| Err(SnowflakeErrorKind::Closed.into()))?;
        let worker = lease.worker;
        if let KeeperState::Idle(keeper) = std::mem::replace(&mut *state, KeeperState::Ended) {
            let (end, stop) = (EndOfLease(Arc::clone(&self.shared)), self.stop.clone());
            *state = KeeperState::Running(tokio::spawn(async move {
                let _end = end;
                keeper.run(lease, stop).await;
            }));
        }
        Ok(worker)
    }

    /// Takes the next id; never waits.
    ///
    /// # Errors
    /// `Exhausted` with the time until the next millisecond; `CeilingReached`, which also wakes
    /// the keeper; `Starting`, `ClockBehind`, `Lost`, `Closed`, `EndOfTime`.
    #[inline]
    pub fn try_next(&self) -> Result<Id, SnowflakeError> {
        let shared = &*self.shared;
        let (Some(sequencer), Some(now)) = (shared.active.get(), shared.clock.now()) else {
            return Err(shared.why_no_id());
        };
        sequencer.take(shared.layout.tick_at(now)).map_err(|refusal| shared.explain(refusal).into())
    }

    /// Takes the next id, and waits for the next millisecond or for the ceiling where it must.
    ///
    /// # Errors
    /// After [`SnowflakeConfig::wait`]: `Exhausted` or `CeilingReached`. At once: `Starting`,
    /// `ClockBehind`, `Lost`, `Closed`, `EndOfTime`.
    pub async fn next(&self) -> Result<Id, SnowflakeError> {
        match self.try_next() {
            Ok(id) => Ok(id),
            Err(error) => self.wait_for_next(error).await,
        }
    }

    #[cold]
    async fn wait_for_next(&self, mut error: SnowflakeError) -> Result<Id, SnowflakeError> {
        let deadline = Instant::now() + self.shared.wait;
        loop {
            let raised = self.shared.raised.notified();
            tokio::pin!(raised);
            // Registered before the look, so that a rise in between is not missed.
            raised.as_mut().enable();
            match error.kind() {
                SnowflakeErrorKind::Exhausted { after } => {
                    let until = Instant::now() + *after;
                    if until > deadline {
                        return Err(error);
                    }
                    tokio::time::sleep_until(until).await;
                }
                SnowflakeErrorKind::CeilingReached => {
                    error = match self.try_next() {
                        Err(error) => error,
                        id => return id,
                    };
                    if !matches!(error.kind(), SnowflakeErrorKind::CeilingReached) {
                        continue;
                    }
                    if tokio::time::timeout_at(deadline, raised).await.is_err() {
                        return Err(error);
                    }
                }
                _ => return Err(error),
            }
            match self.try_next() {
                Err(again) if Instant::now() < deadline => error = again,
                result => return result,
            }
        }
    }

    /// How ids are composed.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// The worker id that is held, if one is.
    #[must_use]
    pub fn worker(&self) -> Option<WorkerId> {
        self.shared.sequencer().map(|sequencer| sequencer.worker())
    }

    /// Whether ids can be issued now.
    #[must_use]
    pub fn health(&self) -> Health {
        let shared = &self.shared;
        let Some(sequencer) = shared.sequencer() else {
            return Health::NotReady(format!("snowflake: {}", shared.why_no_lease()));
        };
        let Some(now) = shared.clock.now() else {
            return Health::NotReady(format!("snowflake: {}", shared.why_no_id()));
        };
        let trouble: Vec<String> = shared.status().trouble.values().cloned().collect();
        let trouble = (!trouble.is_empty()).then(|| trouble.join("; "));
        if let Some(refusal) = sequencer.refuses(shared.layout.tick_at(now), shared.wait) {
            let because = trouble.map(|trouble| format!(" ({trouble})")).unwrap_or_default();
            return Health::NotReady(format!("snowflake: {}{because}", shared.explain(refusal)));
        }
        match trouble {
            Some(trouble) => Health::Degraded(format!("snowflake: {trouble}")),
            None => Health::Ready,
        }
    }

    /// Ends issuing, writes down what was used and gives the worker id back.
    pub async fn close(&self) {
        self.stop.cancel();
        let mut state = self.keeper.lock().await;
        if let KeeperState::Running(keeper) = std::mem::replace(&mut *state, KeeperState::Ended)
            && let Err(panic) = keeper.await
        {
            tracing::error!("the lease keeper ended badly: {panic}");
        }
        self.shared.end(Phase::Closed);
    }
}

/// Whatever ends the keeper ends the ids: nobody raises the ceiling or watches the clock any more.
struct EndOfLease(Arc<Shared>);

impl Drop for EndOfLease {
    fn drop(&mut self) {
        if let Some(sequencer) = self.0.active.get() {
            sequencer.close();
        }
        self.0.end(Phase::Closed);
    }
}

impl fmt::Debug for SnowflakeGenerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnowflakeGenerator")
            .field("layout", &self.shared.layout)
            .field("worker", &self.worker())
            .finish_non_exhaustive()
    }
}

impl Drop for SnowflakeGenerator {
    /// The keeper stops and gives the worker id back, if the runtime still runs it.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Shared {
    pub(crate) fn sequencer(&self) -> Option<Arc<Sequencer>> {
        self.active.get().cloned()
    }

    pub(crate) fn start(&self, sequencer: Arc<Sequencer>) {
        // A second claim after a success is answered without the keeper.
        if self.active.set(sequencer).is_ok() {
            self.status().phase = Phase::Held;
        }
    }

    /// Ends the lease for callers. The first reason stands.
    pub(crate) fn end(&self, phase: Phase) {
        let mut status = self.status();
        if matches!(status.phase, Phase::Starting | Phase::Held) {
            status.phase = phase;
        }
        self.raised.notify_waiters();
    }

    /// Something is not as it should be; logged once per event.
    pub(crate) fn report_trouble(&self, with: Trouble, what: String) {
        // Logged without the lock.
        let before = self.status().trouble.insert(with, what.clone());
        if before.as_ref() != Some(&what) {
            tracing::error!("{what}; ids flow up to the ceiling that is written down");
        }
    }

    pub(crate) fn report_fine(&self, with: Trouble) {
        let before = self.status().trouble.remove(&with);
        if let Some(what) = before {
            tracing::info!("no longer: {what}");
        }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().expect("no holder of this lock panics")
    }

    #[cold]
    fn why_no_lease(&self) -> SnowflakeError {
        match self.status().phase {
            Phase::Starting | Phase::Held => SnowflakeErrorKind::Starting,
            Phase::Lost => SnowflakeErrorKind::Lost,
            Phase::Closed => SnowflakeErrorKind::Closed,
        }
        .into()
    }

    #[cold]
    fn why_no_id(&self) -> SnowflakeError {
        let held = self.status().phase == Phase::Held;
        match self.sequencer().filter(|_| held) {
            None => self.why_no_lease(),
            Some(sequencer) => {
                let by = sequencer.next_free() - self.clock.wall();
                SnowflakeErrorKind::ClockBehind { by }.into()
            }
        }
    }

    #[cold]
    fn explain(&self, refusal: Refusal) -> SnowflakeErrorKind {
        match refusal {
            Refusal::Wait(tick) => {
                let now = self.clock.now().unwrap_or_else(|| self.clock.wall());
                // At least 1 ms: the reading is rounded down and may be of the tick itself.
                let after = (self.layout.instant(tick) - now).max(Duration::from_millis(1));
                SnowflakeErrorKind::Exhausted { after }
            }
            Refusal::Ceiling => {
                self.wake.notify_one();
                SnowflakeErrorKind::CeilingReached
            }
            Refusal::EndOfTime => SnowflakeErrorKind::EndOfTime,
            Refusal::Closed => match self.status().phase {
                Phase::Lost => SnowflakeErrorKind::Lost,
                _ => SnowflakeErrorKind::Closed,
            },
        }
    }
}
