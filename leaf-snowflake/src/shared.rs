//! State that callers and the keeper share: the leases, the ids' clock, and the reason why no id
//! can be issued at the moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use leaf_core::sequencer::{Refusal, Sequencer};
use leaf_core::{Field, Health, HealthCode, HealthReason, Layout, UnixMillis, WorkerId};
use tokio::sync::{Notify, Semaphore};

use crate::fork::ForkGuard;
use crate::id_clock::IdClock;
use crate::lease_chain::LeaseSequencer;
use crate::ticker::{Ticker, Ticking};
use crate::{SavedLease, SnowflakeConfig, SnowflakeError, SnowflakeErrorKind, SnowflakeView};

/// How many days before the end of the layout's timestamps the health warns of it.
const END_IS_NEAR: u64 = 180;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: IdClock,
    pub(crate) fork: ForkGuard,
    pub(crate) ticker: Ticker,
    /// Handed to the ticker's thread, which must not keep the generator alive.
    myself: Weak<Self>,
    /// Notified when a ceiling rises, and when a lease begins or ends.
    pub(crate) raised: Notify,
    /// Orders the callers that wait, first come, first served. The caller whose turn it is holds
    /// the one permit, and other callers that may wait queue for it; `try_next` and `try_take`
    /// ignore it.
    pub(crate) turn: Semaphore,
    /// Notified when a caller has reached the ceiling; wakes the keeper.
    pub(crate) wake: Notify,
    /// Notified when the keeper is to follow a clock that jumped ahead.
    pub(crate) accept_clock: Notify,
    pub(crate) layout: Layout,
    /// How long a caller waits.
    pub(crate) wait: Duration,
    /// If the ids' clock is behind the wall clock by more than this, the health reports it.
    max_offset: Duration,
    /// The first lease. It links to the later ones, see [`LeaseSequencer::successor`].
    first: OnceLock<Arc<LeaseSequencer>>,
    status: Mutex<Status>,
}

#[derive(Debug, Default)]
struct Status {
    phase: Phase,
    /// The error of the last claim; `None` once a claim has succeeded. The caller of the claim gets
    /// the error, too, so that it is not logged here.
    claim_refusal: Option<SnowflakeError>,
    /// The current troubles: for each its health code and a text.
    trouble: BTreeMap<Trouble, (HealthCode, String)>,
    leases_lost: u64,
    /// The lease as the keeper last wrote it down, and whether the registry confirmed it.
    lease: Option<(SavedLease, bool)>,
}

/// A part that can be in trouble, for health and log. [`Self::means`] describes the effect on ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    Lease,
    Registry,
    StateFile,
    Clock,
}

impl Trouble {
    const fn code(self) -> HealthCode {
        match self {
            Self::Lease => HealthCode::LeaseLost,
            Self::Registry => HealthCode::Registry,
            Self::StateFile => HealthCode::StateFile,
            Self::Clock => HealthCode::Clock,
        }
    }

    /// The effect of the trouble on ids, as the end of a log line.
    const fn means(self) -> &'static str {
        match self {
            Self::Registry | Self::StateFile => "; ids flow up to the ceiling that is written down",
            Self::Clock => "; ids flow by their own clock",
            Self::Lease => "; no ids until a worker id is claimed",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    /// No worker id is held: before the first claim, or after a loss until the next claim.
    #[default]
    Starting,
    Held,
    /// The worker id was lost, and this node may not claim another one: final.
    Lost,
    Closed,
}

impl Ticking for Shared {
    fn ticker(&self) -> &Ticker {
        &self.ticker
    }

    /// The position of the first lease's sequencer; `None` once that lease is closed.
    fn position(&self) -> Option<u64> {
        self.first.get()?.position()
    }

    fn now_nanos(&self) -> Option<u64> {
        self.clock.now_nanos()
    }

    fn tick(&self, nanos: u64) -> u64 {
        Self::tick(self, nanos)
    }

    fn sequence_bits(&self) -> u32 {
        self.layout.bits(Field::Sequence)
    }
}

impl Shared {
    pub(crate) fn new(config: &SnowflakeConfig) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            clock: IdClock::new(
                Arc::clone(&config.clock),
                config.rollback_tolerance,
                config.max_step_forward,
            ),
            fork: ForkGuard::new(),
            ticker: Ticker::new(config.sequence_start),
            myself: Weak::clone(myself),
            raised: Notify::new(),
            turn: Semaphore::new(1),
            wake: Notify::new(),
            accept_clock: Notify::new(),
            layout: config.layout,
            wait: config.wait,
            max_offset: config.max_offset,
            first: OnceLock::new(),
            status: Mutex::default(),
        })
    }

    /// Calls `take` with the sequencer of the current lease and the current tick.
    #[inline]
    pub(crate) fn attempt<T>(
        &self,
        take: impl Fn(&Sequencer, u64) -> Result<T, Refusal>,
    ) -> Result<T, SnowflakeError> {
        let Some(first) = self.first.get() else { return Err(self.why_no_id()) };
        if let Some(tick) = self.ticker.tick()
            && let Ok(taken) = take(first, tick)
        {
            return Ok(taken);
        }
        let Some(now) = self.clock.now_nanos() else { return Err(self.why_no_id()) };
        if let Some(interval) = self.fork.is_due(now)
            && self.compare_and_look(first, interval)
        {
            return Err(SnowflakeErrorKind::Forked.into());
        }
        let tick = self.tick(now);
        match take(first, tick) {
            Ok(taken) => Ok(taken),
            Err(refusal) => self.retry_on_successor(first, tick, refusal, take),
        }
    }

    /// Called once in 16 us. Returns whether this process is a forked child. Also measures the
    /// load: if it is high, the ticker starts, so that the clock is not read for each id.
    #[cold]
    fn compare_and_look(&self, first: &Sequencer, interval: u64) -> bool {
        if let Some(position) = first.position() {
            self.ticker.look(interval, position, &self.myself);
        }
        self.fork.compare(interval)
    }

    #[inline]
    pub(crate) fn tick(&self, nanos: u64) -> u64 {
        self.layout.tick_at(UnixMillis::new(nanos / 1_000_000))
    }

    /// Tries again with the leases that came after a lost one. On `Wait` it reads the clock again:
    /// another caller that read it later may have moved the sequencer to a tick that is later than
    /// `tick`.
    #[cold]
    fn retry_on_successor<T>(
        &self,
        mut lease: &Arc<LeaseSequencer>,
        mut tick: u64,
        mut refusal: Refusal,
        take: impl Fn(&Sequencer, u64) -> Result<T, Refusal>,
    ) -> Result<T, SnowflakeError> {
        loop {
            match (refusal, lease.successor()) {
                (Refusal::Closed, Some(next)) => lease = next,
                (Refusal::Wait(_), _) => match self.clock.now_nanos().map(|now| self.tick(now)) {
                    Some(now) if now > tick => tick = now,
                    _ => return Err(self.explain(refusal).into()),
                },
                _ => return Err(self.explain(refusal).into()),
            }
            match take(lease, tick) {
                Ok(taken) => return Ok(taken),
                Err(why) => refusal = why,
            }
        }
    }

    /// Calls [`Self::attempt`] for a caller that may wait. Returns `Err(None)` without an attempt
    /// while other callers wait already.
    #[inline]
    pub(crate) fn attempt_in_turn<T>(
        &self,
        take: impl Fn(&Sequencer, u64) -> Result<T, Refusal>,
    ) -> Result<T, Option<SnowflakeError>> {
        if self.turn.available_permits() == 0 {
            return Err(None);
        }
        self.attempt(take).map_err(Some)
    }

    /// The newest lease, open or closed.
    fn newest(&self) -> Option<&Arc<LeaseSequencer>> {
        let mut newest = self.first.get()?;
        while let Some(next) = newest.successor() {
            newest = next;
        }
        Some(newest)
    }

    /// The lease that is held; `None` if no lease is held.
    fn held(&self) -> Option<&Arc<LeaseSequencer>> {
        let held = self.status().phase == Phase::Held;
        self.newest().filter(|_| held)
    }

    pub(crate) fn worker(&self) -> Option<WorkerId> {
        self.held().map(|sequencer| sequencer.worker())
    }

    /// Skips all timestamps before this instant. Does nothing if no lease is held.
    pub(crate) fn skip_to(&self, instant: UnixMillis) {
        if let Some(sequencer) = self.held() {
            sequencer.skip_to(self.layout.tick_from(instant));
        }
    }

    /// Lets callers take from this lease. The one before it, if any, must already be closed.
    pub(crate) fn start(&self, sequencer: Arc<LeaseSequencer>) {
        match self.newest() {
            None => {
                // It is set once, by the one keeper.
                let _ = self.first.set(sequencer);
            }
            Some(lost) => lost.set_successor(sequencer),
        }
        let mut status = self.status();
        if status.phase == Phase::Starting {
            status.phase = Phase::Held;
        }
        drop(status);
        self.raised.notify_waiters();
    }

    /// Records that the lease is over. The phase is `Starting` until the keeper claims again or
    /// calls [`Self::end`].
    pub(crate) fn lease_lost(&self) {
        let mut status = self.status();
        status.leases_lost += 1;
        if status.phase == Phase::Held {
            status.phase = Phase::Starting;
        }
        drop(status);
        self.raised.notify_waiters();
    }

    /// Stops the issuing of ids and sets the phase, unless it is already `Lost` or `Closed`.
    pub(crate) fn end(&self, phase: Phase) {
        if let Some(sequencer) = self.newest() {
            sequencer.close();
        }
        let mut status = self.status();
        if matches!(status.phase, Phase::Starting | Phase::Held) {
            status.phase = phase;
        }
        drop(status);
        self.raised.notify_waiters();
    }

    /// Records a trouble for the health. It is logged when it begins, and not again until it is
    /// resolved.
    pub(crate) fn set_trouble(&self, with: Trouble, what: String) {
        // Logged without the lock.
        let before = self.status().trouble.insert(with, (with.code(), what.clone()));
        if before.is_none() {
            tracing::warn!("{what}{}", with.means());
        }
    }

    /// Records for the health why the claim has not succeeded yet, or with `None` that it has; logs
    /// nothing.
    pub(crate) fn note_claim(&self, refusal: Option<&SnowflakeError>) {
        self.status().claim_refusal = refusal.cloned();
    }

    pub(crate) fn claim_refusal(&self) -> Option<SnowflakeError> {
        self.status().claim_refusal.clone()
    }

    pub(crate) fn clear_trouble(&self, with: Trouble) {
        let before = self.status().trouble.remove(&with);
        if let Some((_, what)) = before {
            tracing::info!("resolved: {what}");
        }
    }

    /// Stores the lease, as it was written down, for the view.
    pub(crate) fn publish(&self, saved: SavedLease, confirmed: bool) {
        self.status().lease = Some((saved, confirmed));
    }

    /// Stores a raised local ceiling for the view.
    pub(crate) fn publish_local_ceiling(&self, ceiling: UnixMillis) {
        if let Some((saved, _)) = &mut self.status().lease {
            saved.local_ceiling = ceiling;
        }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn health(&self) -> Health {
        let reason =
            |code, text: &dyn fmt::Display| HealthReason::new(code, format!("snowflake: {text}"));
        let mut trouble: Vec<HealthReason> = {
            let status = self.status();
            let refusal = status.claim_refusal.as_ref().map(SnowflakeError::kind);
            let refusal = refusal.map(|why| reason(why.health_code(), why));
            let others = status.trouble.values().map(|(code, text)| reason(*code, text));
            refusal.into_iter().chain(others).collect()
        };
        let behind = self.clock.ahead_of_wall().map_or(0, |ahead| ahead.saturating_neg());
        let behind = Duration::from_millis(u64::try_from(behind).unwrap_or(0));
        let is_held = self.held().is_some();
        if is_held
            && behind > self.max_offset
            && trouble.iter().all(|known| known.code != HealthCode::Clock)
        {
            let text = format!(
                "the clock was set ahead, and the ids' time is {behind:.0?} behind it: it catches up by a second in 33 minutes, or \
                 at once with a restart"
            );
            trouble.push(reason(HealthCode::Clock, &text));
        }
        let (end, days_left) = (self.layout.end(), self.days_left());
        if days_left < END_IS_NEAR {
            let text = format!(
                "the timestamps of the layout end on {}, in {days_left} days: plan another layout",
                end.utc()
            );
            trouble.push(reason(HealthCode::EndOfTimeNear, &text));
        }
        let not_ready = |why: &SnowflakeErrorKind| {
            Health::NotReady([vec![reason(why.health_code(), why)], trouble.clone()].concat())
        };
        if self.fork.is_child() {
            return not_ready(&SnowflakeErrorKind::Forked);
        }
        let (Some(sequencer), Some(now)) = (self.held(), self.clock.now()) else {
            return not_ready(self.why_no_id().kind());
        };
        if let Some(refusal) = sequencer.refuses(self.layout.tick_at(now), self.wait) {
            let why = self.explain(refusal);
            // After a crash ids may run ahead of the clock for a while. Under load they reach the
            // ceiling, which the keeper raises again and again: that is no failure. Report the
            // ceiling only once the clock has reached it, or if the ids are ahead of the clock by
            // more than callers wait.
            let ahead = sequencer.next_free() - now;
            let ran_ahead =
                refusal == Refusal::Ceiling && ahead > Duration::ZERO && ahead <= self.wait;
            if !ran_ahead {
                return not_ready(&why);
            }
        }
        if trouble.is_empty() { Health::Ready } else { Health::Degraded(trouble) }
    }

    /// Whole days until the layout's last timestamp.
    fn days_left(&self) -> u64 {
        (self.layout.end() - self.clock.wall()).as_secs() / 86_400
    }

    pub(crate) fn view(&self) -> SnowflakeView {
        let health = self.health();
        let held = self.held();
        let next_free = held.map_or(UnixMillis::EPOCH, |sequencer| sequencer.next_free());
        let status = self.status();
        let lease = status.lease.as_ref().filter(|_| status.phase == Phase::Held);
        let of_lease = |part: fn(&SavedLease) -> UnixMillis| {
            lease.map_or(UnixMillis::EPOCH, |(saved, _)| part(saved))
        };
        SnowflakeView {
            health,
            worker: held.map(|sequencer| sequencer.worker()),
            term: lease.map_or(0, |(saved, _)| saved.fence.term),
            confirmed: lease.is_some_and(|(_, confirmed)| *confirmed),
            local_ceiling: of_lease(|saved| saved.local_ceiling),
            registry_ceiling: of_lease(|saved| saved.fence.ceiling),
            next_free,
            ahead_of_wall: self.clock.ahead_of_wall(),
            clock_steps: self.clock.steps(),
            leases_lost: status.leases_lost,
            days_left: self.days_left(),
        }
    }

    #[cold]
    pub(crate) fn why_no_lease(&self) -> SnowflakeError {
        match self.status().phase {
            Phase::Starting | Phase::Held => SnowflakeErrorKind::Starting,
            Phase::Lost => SnowflakeErrorKind::Lost,
            Phase::Closed => SnowflakeErrorKind::Closed,
        }
        .into()
    }

    #[cold]
    fn why_no_id(&self) -> SnowflakeError {
        match self.held() {
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
                // At least 1 ms: the clock may have reached that tick meanwhile, and then the
                // difference is 0.
                let after = (self.layout.instant(tick) - now).max(Duration::from_millis(1));
                SnowflakeErrorKind::Exhausted { after }
            }
            Refusal::Ceiling => {
                self.wake.notify_one();
                SnowflakeErrorKind::CeilingReached
            }
            Refusal::EndOfTime => {
                let now = self.clock.now().unwrap_or_else(|| self.clock.wall());
                SnowflakeErrorKind::EndOfTime { now, end: self.layout.end() }
            }
            Refusal::Closed => self.why_no_lease().kind().clone(),
        }
    }
}
