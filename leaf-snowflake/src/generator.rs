//! The public API of snowflake mode.
//!
//! Most calls read the clock once and take a timestamp with a sequence, or a run of them, from the
//! lease. If none is free now, the call waits, up to a deadline: it sleeps until the next tick, or
//! it wakes the keeper, which raises the ceiling. Waiting callers are served in the order in which
//! they came; `take` keeps its turn until its list is complete. Calls that never wait (`try_next`,
//! `try_take`) do not queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leaf_core::sequencer::{Refusal, Sequencer};
use leaf_core::{Clock, Health, Id, Layout, UnixMillis, WorkerId};
use tokio::sync::{AcquireError, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::keeper::{Held, Keeper};
use crate::peers::{self, PeerClock, Peers};
use crate::shared::{Phase, Shared};
use crate::{
    IdRun, Registry, RegistryError, SnowflakeConfig, SnowflakeError, SnowflakeErrorKind,
    SnowflakeView,
};

/// The most ids that one [`SnowflakeGenerator::take`] hands out.
const MOST_AT_ONCE: usize = 1_000_000;

/// Hands out snowflake ids of one node.
pub struct SnowflakeGenerator {
    shared: Arc<Shared>,
    keeper: tokio::sync::Mutex<KeeperState>,
    stop: CancellationToken,
    most_at_once: usize,
    /// Reads the clocks of other nodes, and this node's clock to compare them with.
    peers: Option<(Arc<dyn Peers>, Arc<dyn Clock>)>,
}

enum KeeperState {
    Idle(Box<Keeper>),
    Running(JoinHandle<()>),
    Ended,
}

impl SnowflakeGenerator {
    /// Opens the state file and claims a worker id. Call it in a tokio runtime.
    ///
    /// # Errors
    /// `BadConfig`, `StateFile`, `Registry`, `ClockRefused`, `ClockUnset`, `EndOfTime`.
    pub async fn open(
        registry: impl Into<Registry>,
        config: SnowflakeConfig,
    ) -> Result<Self, SnowflakeError> {
        let generator = Self::prepare(registry, config)?;
        generator.claim().await?;
        Ok(generator)
    }

    /// Opens and locks the state file, but claims no worker id yet. A service calls this first and
    /// [`Self::claim`] last, so that a process which cannot bind its port holds no worker id.
    ///
    /// # Errors
    /// `BadConfig`, `StateFile`.
    pub fn prepare(
        registry: impl Into<Registry>,
        config: SnowflakeConfig,
    ) -> Result<Self, SnowflakeError> {
        config.check_settings()?;
        let registry = registry.into();
        if registry.lives_in_state_file() && config.state_file.is_none() {
            let why = "this registry keeps its record in the state file: give one";
            return Err(SnowflakeErrorKind::BadConfig(why.into()).into());
        }
        let shared = Shared::new(&config);
        let most_at_once = most_at_once(&config);
        let peers = config.peers.clone().map(|peers| (peers, Arc::clone(&config.clock)));
        let keeper = Keeper::new(registry, config, Arc::clone(&shared))?;
        Ok(Self {
            shared,
            keeper: tokio::sync::Mutex::new(KeeperState::Idle(Box::new(keeper))),
            stop: CancellationToken::new(),
            most_at_once,
            peers,
        })
    }

    /// Claims a worker id; from then on ids are issued. After an error it may
    /// be called again; a [retryable](SnowflakeError::retryable) error may pass without a change.
    ///
    /// # Errors
    /// `Registry`, `StateFile`, `ClockRefused`, `ClockUnset`, `EndOfTime`, `BadConfig`, and
    /// `Closed` after [`Self::close`]. Called again after a success, it claims nothing: it returns
    /// the worker id that is held, `Starting` while a lost one is being replaced, or `Lost`.
    pub async fn claim(&self) -> Result<WorkerId, SnowflakeError> {
        let mut state = self.keeper.lock().await;
        let KeeperState::Idle(keeper) = &mut *state else {
            return self.shared.worker().ok_or_else(|| self.shared.why_no_lease());
        };
        let claimed = self.stop.run_until_cancelled(keeper.claim()).await;
        let held = claimed.unwrap_or_else(|| Err(SnowflakeErrorKind::Closed.into()))?;
        let worker = held.worker();
        if let KeeperState::Idle(keeper) = std::mem::replace(&mut *state, KeeperState::Ended) {
            *state = KeeperState::Running(self.spawn_keeper(*keeper, held));
        }
        Ok(worker)
    }

    /// Starts the keeper's task. Not part of the async `claim`, so that the keeper's future is
    /// compiled in this crate only, and not again in every crate that calls `claim`.
    fn spawn_keeper(&self, keeper: Keeper, held: Held) -> JoinHandle<()> {
        let (end, stop) = (EndOfIds(Arc::clone(&self.shared)), self.stop.clone());
        tokio::spawn(async move {
            let _end = end;
            keeper.run(held, stop).await;
        })
    }

    /// Takes the next id; never waits.
    ///
    /// # Errors
    /// `Exhausted` with the time until the next tick; `CeilingReached`, which also wakes
    /// the keeper; `Starting`, `ClockBehind`, `Lost`, `Closed`, `EndOfTime`, `Forked`.
    #[inline]
    pub fn try_next(&self) -> Result<Id, SnowflakeError> {
        self.shared.attempt(Sequencer::take)
    }

    /// Takes as many ids as are free now, at least 1 and at most `most`; never waits.
    ///
    /// # Errors
    /// The errors of [`Self::try_next`], and `BadCount` when `most` is 0.
    ///
    /// ```
    /// # use leaf_snowflake::{Identity, MemoryFenceStore, SnowflakeConfig, SnowflakeGenerator};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let config = SnowflakeConfig::new(Identity::parse("10.0.0.7:8080")?);
    /// # let flakes = SnowflakeGenerator::open(MemoryFenceStore::default(), config).await?;
    /// let run = flakes.try_take(500)?;
    /// assert!((1..=500).contains(&run.len()));
    /// let ids: Vec<_> = run.collect();
    /// assert!(ids.is_sorted());
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_take(&self, most: usize) -> Result<IdRun, SnowflakeError> {
        if most == 0 {
            return Err(self.bad_count(most));
        }
        self.shared.attempt(|sequencer: &Sequencer, tick| sequencer.take_run(tick, most as u64))
    }

    /// Takes the next id. If none is free, waits for the next tick or a higher ceiling, behind the
    /// callers that wait already; one that waits in [`Self::take`] gets its whole list first.
    ///
    /// # Errors
    /// After [`SnowflakeConfig::wait`]: `Exhausted` or `CeilingReached`. At once: `Starting`,
    /// `ClockBehind`, `Lost`, `Closed`, `EndOfTime`, `Forked`.
    pub async fn next(&self) -> Result<Id, SnowflakeError> {
        match self.shared.attempt_in_turn(Sequencer::take) {
            Ok(id) => Ok(id),
            Err(error) => self.wait_for(Sequencer::take, error, self.deadline()).await,
        }
    }

    /// Takes the next id without waiting; `None` when there is none now, or when other callers wait
    /// already.
    #[inline]
    #[must_use]
    pub fn try_next_unless_queued(&self) -> Option<Id> {
        self.shared.attempt_in_turn(Sequencer::take).ok()
    }

    /// Takes exactly `count` ids, in increasing order, and waits if necessary. There may be gaps
    /// between the ids, because other callers take ids meanwhile.
    ///
    /// # Errors
    /// The errors of [`Self::next`]; ids that this call has already taken are then lost, which
    /// makes a gap. `Exhausted` also if the rest of [`SnowflakeConfig::wait`] is too short for the
    /// list when this caller's turn comes. `BadCount` unless `count` is 1 to 1,000,000, and no more
    /// than the layout can issue in half of [`SnowflakeConfig::wait`].
    pub async fn take(&self, count: usize) -> Result<Vec<Id>, SnowflakeError> {
        let mut ids = Vec::with_capacity(count.min(self.most_at_once));
        ids.extend(self.take_runs(count).await?.into_iter().flatten());
        Ok(ids)
    }

    /// Takes exactly `count` ids as [`Self::take`] does, and returns them as runs. A run computes
    /// each id when it is read, so that many ids need little memory.
    ///
    /// # Errors
    /// The errors of [`Self::take`].
    ///
    /// ```
    /// # use leaf_snowflake::{Identity, MemoryFenceStore, SnowflakeConfig, SnowflakeGenerator};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let config = SnowflakeConfig::new(Identity::parse("10.0.0.7:8080")?);
    /// # let flakes = SnowflakeGenerator::open(MemoryFenceStore::default(), config).await?;
    /// let runs = flakes.take_runs(500).await?;
    /// assert_eq!(runs.into_iter().flatten().count(), 500);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn take_runs(&self, count: usize) -> Result<Vec<IdRun>, SnowflakeError> {
        if count == 0 || count > self.most_at_once {
            return Err(self.bad_count(count));
        }
        let deadline = self.deadline();
        let (mut runs, mut missing) = (Vec::with_capacity(1), count);
        // Held until the list is complete. If each run had to queue again, callers that together
        // want more ids than the layout can issue before their deadlines would all advance slowly,
        // and none would finish in time.
        let mut turn = None;
        while missing > 0 {
            let most = missing as u64;
            let take = |sequencer: &Sequencer, tick| sequencer.take_run(tick, most);
            let run = match &turn {
                Some(turn) => self.wait_in_turn(take, turn, deadline).await?,
                None => match self.shared.attempt_in_turn(take) {
                    Ok(run) => run,
                    Err(error) => {
                        let turn = turn.insert(self.line_up(error, deadline).await?);
                        self.check_time_for(missing, turn, deadline)?;
                        self.wait_in_turn(take, turn, deadline).await?
                    }
                },
            };
            missing -= run.len();
            runs.push(run);
        }
        Ok(runs)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.shared.wait
    }

    /// Waits in the line, and then for the next tick or a higher ceiling, whichever the caller
    /// needs. `error`: why the first attempt failed; `None` if it was not made, because others were
    /// waiting.
    #[cold]
    async fn wait_for<T>(
        &self,
        take: impl Fn(&Sequencer, u64) -> Result<T, Refusal> + Copy,
        error: Option<SnowflakeError>,
        deadline: Instant,
    ) -> Result<T, SnowflakeError> {
        let turn = self.line_up(error, deadline).await?;
        self.wait_in_turn(take, &turn, deadline).await
    }

    /// Waits for this caller's turn. Returns `error` (see [`Self::wait_for`]) at once if waiting
    /// cannot resolve it.
    async fn line_up(
        &self,
        error: Option<SnowflakeError>,
        deadline: Instant,
    ) -> Result<Turn<'_>, SnowflakeError> {
        if let Some(error) = error.filter(|error| !is_worth_waiting(error)) {
            return Err(error);
        }
        let shared = &*self.shared;
        if shared.fork.is_child() {
            // The queue of waiting callers belongs to the parent process.
            return Err(SnowflakeErrorKind::Forked.into());
        }
        Ok(tokio::time::timeout_at(deadline, shared.turn.acquire()).await.ok())
    }

    /// Waits for the next tick or a higher ceiling, whichever the caller needs.
    ///
    /// If the turn did not come before the deadline, this caller makes one last attempt and returns
    /// its result. The attempt fails for the reason for which the first caller in the line still
    /// waits, if for any: the tick is used up, or the ceiling is reached.
    async fn wait_in_turn<T>(
        &self,
        take: impl Fn(&Sequencer, u64) -> Result<T, Refusal>,
        turn: &Turn<'_>,
        deadline: Instant,
    ) -> Result<T, SnowflakeError> {
        let shared = &*self.shared;
        loop {
            let raised = shared.raised.notified();
            tokio::pin!(raised);
            // Registered before the attempt, so that a ceiling that is raised in between is not
            // missed.
            raised.as_mut().enable();
            let error = match shared.attempt(&take) {
                Err(error) if turn.is_some() && is_worth_waiting(&error) => error,
                result => return result,
            };
            let in_time = match error.kind() {
                SnowflakeErrorKind::Exhausted { after } => {
                    let until = Instant::now() + *after;
                    tokio::time::sleep_until(until.min(deadline)).await;
                    until <= deadline
                }
                _ => tokio::time::timeout_at(deadline, raised).await.is_ok(),
            };
            if !in_time {
                return Err(error);
            }
        }
    }

    /// Refuses a list that cannot be complete by its deadline: the ids taken for it would be lost.
    /// Under a steady load of more ids than the layout can issue, every list waits almost until its
    /// deadline. If each took ids until then, none would be complete.
    fn check_time_for(
        &self,
        missing: usize,
        turn: &Turn<'_>,
        deadline: Instant,
    ) -> Result<(), SnowflakeError> {
        if missing == 1 {
            return Ok(());
        }
        let layout = self.shared.layout;
        let unit = Duration::from_millis(layout.unit().millis());
        // A little more than a tick, since sleeps take a little too long.
        let each = unit + (unit / 4).min(Duration::from_millis(10));
        let left = deadline.saturating_duration_since(Instant::now());
        self.shared.attempt(|sequencer: &Sequencer, tick| {
            let (available, first) = match sequencer.available(tick) {
                Ok(available) => (available, tick),
                Err(Refusal::Wait(next)) => (0, next.saturating_sub(1)),
                // The keeper raises it in a moment.
                Err(Refusal::Ceiling) => (0, tick),
                Err(refusal) => return Err(refusal),
            };
            let later = (missing as u64).saturating_sub(available);
            let ticks = (first - tick) + later.div_ceil(layout.max_sequence() + 1);
            let needed = each.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX));
            match ticks == 0 || turn.is_some() && needed <= left {
                true => Ok(()),
                false => Err(Refusal::Wait(tick + ticks)),
            }
        })
    }

    #[cold]
    fn bad_count(&self, count: usize) -> SnowflakeError {
        SnowflakeErrorKind::BadCount { count, most: self.most_at_once }.into()
    }

    /// How ids are composed.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// The worker id that this generator holds; `None` if it holds none.
    #[must_use]
    pub fn worker(&self) -> Option<WorkerId> {
        self.shared.worker()
    }

    /// Whether ids can be issued now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Reads the clocks of up to 32 other live nodes, drawn at random; takes up to 3 s. Returns an
    /// empty list if [`SnowflakeConfig::peers`] is `None` or no node answers.
    ///
    /// # Errors
    /// The registry's error, if it cannot list the live nodes.
    pub async fn peer_clocks(&self) -> Result<Vec<PeerClock>, RegistryError> {
        match &self.peers {
            Some((peers, clock)) => peers::read_all(Arc::clone(peers), Arc::clone(clock)).await,
            None => Ok(Vec::new()),
        }
    }

    /// A snapshot for operators: lease, ceilings, clock and health.
    #[must_use]
    pub fn view(&self) -> SnowflakeView {
        self.shared.view()
    }

    /// Sets the ids' clock to the wall clock at once if the wall clock is ahead, even beyond
    /// [`SnowflakeConfig::max_step_forward`]. Call it only after checking that the wall clock is
    /// right.
    pub fn accept_clock(&self) {
        self.shared.accept_clock.notify_one();
    }

    /// Skips all timestamps before `instant`, because a program that composes ids itself has used
    /// them with the worker id that this generator holds for it. No later id, of this generator or
    /// of the next holder of the worker id, has such a timestamp. Does nothing if no worker id is
    /// held.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leaf_snowflake::{Identity, MemoryFenceStore, SnowflakeConfig, SnowflakeGenerator};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let config = SnowflakeConfig::new(Identity::parse("10.0.0.7:8080")?);
    /// # let flakes = SnowflakeGenerator::open(MemoryFenceStore::default(), config).await?;
    /// let instant = flakes.view().next_free + Duration::from_millis(20);
    /// flakes.skip_to(instant);
    /// let id = flakes.next().await?;
    /// assert!(flakes.layout().decode(id).is_some_and(|parts| parts.timestamp >= instant));
    /// # Ok(())
    /// # }
    /// ```
    pub fn skip_to(&self, instant: UnixMillis) {
        self.shared.skip_to(instant);
    }

    /// Why the last [`Self::claim`] failed, or what it still waits for; `None` once a claim has
    /// succeeded. The [health](Self::health) contains this reason, too, among others.
    #[must_use]
    pub fn claim_refusal(&self) -> Option<SnowflakeError> {
        self.shared.claim_refusal()
    }

    /// Whether this process is a forked child of the one that opened the generator.
    pub(crate) fn is_forked(&self) -> bool {
        self.shared.fork.is_child()
    }

    /// Stops issuing ids, records up to which timestamp ids were issued, and gives the worker id
    /// back. Does nothing in a forked child: the worker id belongs to the parent process.
    pub async fn close(&self) {
        if self.is_forked() {
            return;
        }
        self.stop.cancel();
        let mut state = self.keeper.lock().await;
        // `state` stays `Running` until the keeper has ended: if this future is dropped, `close`
        // can be called again and waits for the keeper.
        if let KeeperState::Running(keeper) = &mut *state
            && let Err(panic) = keeper.await
        {
            tracing::error!("the lease keeper ended badly: {panic}");
        }
        *state = KeeperState::Ended;
        self.shared.end(Phase::Closed);
    }
}

/// A caller's turn among those that wait; `None` if it did not come before the caller's deadline.
type Turn<'a> = Option<Result<SemaphorePermit<'a>, AcquireError>>;

/// Whether a caller waits after this error: for the next tick or a higher ceiling.
fn is_worth_waiting(error: &SnowflakeError) -> bool {
    let kind = error.kind();
    matches!(kind, SnowflakeErrorKind::Exhausted { .. } | SnowflakeErrorKind::CeilingReached)
}

/// The most ids that one call may ask for: as many as the layout issues in half the time that a
/// caller waits, at most `MOST_AT_ONCE`.
fn most_at_once(config: &SnowflakeConfig) -> usize {
    let layout = config.layout;
    // Half of the wait, so that a sleep that takes a little too long causes no error.
    let ticks = config.wait.as_millis() / 2 / u128::from(layout.unit().millis());
    let within_wait = ticks.max(1).saturating_mul(u128::from(layout.max_sequence()) + 1);
    usize::try_from(within_wait).unwrap_or(MOST_AT_ONCE).min(MOST_AT_ONCE)
}

/// Ends the issuing of ids when it is dropped, that is, when the keeper's task ends for any reason:
/// without the keeper nothing raises the ceiling or watches the clock.
struct EndOfIds(Arc<Shared>);

impl Drop for EndOfIds {
    fn drop(&mut self) {
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
    /// Stops the keeper. It gives the worker id back if the runtime still runs its task.
    fn drop(&mut self) {
        // A forked child has nothing to give back.
        if !self.is_forked() {
            self.stop.cancel();
        }
    }
}
