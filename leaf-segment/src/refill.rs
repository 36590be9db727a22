//! The one task per tag that talks to the store.
//!
//! Invariants: at most one task per tag at a time (`TagState::fetching`); it belongs to no request,
//! so that a caller who leaves disturbs nothing; a range whose answer was not clear is lost, never
//! asked for again; a range below one granted before is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use leaf_core::{IdRange, Step};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::handle::{Failure, TagState};
use crate::{SegmentConfig, SegmentErrorKind, SegmentStore, StoreError, StoreErrorKind};

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// While somebody waits the store is asked at least this often.
const BACKOFF_WITH_WAITERS: Duration = Duration::from_millis(500);

/// What all tags of a generator share.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) store: Arc<dyn SegmentStore>,
    pub(crate) config: SegmentConfig,
    permits: Semaphore,
    runtime: Handle,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// Whether the last request of any tag, or the last refresh, reached the store.
    reachable: AtomicBool,
}

impl Backend {
    pub(crate) fn new(store: Arc<dyn SegmentStore>, config: SegmentConfig) -> Self {
        Self {
            store,
            permits: Semaphore::new(config.concurrent_fetches.max(1)),
            config,
            runtime: Handle::current(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            reachable: AtomicBool::new(true),
        }
    }

    /// Runs `task` until it ends or the generator closes.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn_on(
            async move {
                stop.run_until_cancelled_owned(task).await;
            },
            &self.runtime,
        );
    }

    pub(crate) fn reachable(&self) -> bool {
        self.reachable.load(Ordering::Relaxed)
    }

    /// One request to the store under the attempt's deadline.
    pub(crate) async fn ask<T>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let deadline = self.config.attempt;
        let result = match tokio::time::timeout(deadline, request).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::new(StoreErrorKind::Unavailable, what)
                .because(format!("no answer within {deadline:?}"))),
        };
        let unavailable = matches!(&result, Err(error)
            if matches!(error.kind(), StoreErrorKind::Unavailable | StoreErrorKind::Refused));
        self.reachable.store(!unavailable, Ordering::Relaxed);
        result
    }
}

/// Starts the tag's refill task unless one is under way.
#[cold]
pub(crate) fn start(state: &Arc<TagState>) {
    // Pairs with the fence in `run`: either this caller sees that the task has ended, or the task
    // sees what made this caller come.
    fence(Ordering::SeqCst);
    if state.fetching.swap(true, Ordering::AcqRel) {
        return;
    }
    let task = Arc::clone(state);
    state.backend.spawn(async move { run(&task).await });
}

async fn run(state: &TagState) {
    loop {
        let refilled = fetch_until_decided(state).await;
        state.fetching.store(false, Ordering::Release);
        state.refilled.notify_waiters();
        fence(Ordering::SeqCst);
        // Callers may have used up a tenth of the new segment before `fetching` was cleared.
        let again = refilled && state.buffer.prefetch_due();
        if !again || state.fetching.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

/// Asks until the store granted a range (true) or said something that asking again cannot change.
async fn fetch_until_decided(state: &TagState) -> bool {
    let mut failures = 0;
    loop {
        if state.verdict().is_some() {
            return false;
        }
        match fetch(state).await {
            Ok(range) => {
                return state.buffer.publish(range);
            }
            Err(error) => {
                let error = Arc::new(error);
                state.refill().failure =
                    Some(Failure { error: Arc::clone(&error), at: Instant::now() });
                match error.kind() {
                    StoreErrorKind::StepChanged(step) if failures == 0 => {
                        state.record_step(Ok(*step));
                        failures += 1;
                        continue;
                    }
                    StoreErrorKind::StepChanged(step) => state.record_step(Ok(*step)),
                    StoreErrorKind::Unavailable | StoreErrorKind::Refused => {}
                    StoreErrorKind::UnknownTag => {
                        tracing::warn!(tag = %state.tag, "the tag's record is gone");
                        state.end(SegmentErrorKind::UnknownTag);
                        return false;
                    }
                    _ => {
                        tracing::error!(tag = %state.tag, "{error}");
                        return false;
                    }
                }
                failures += 1;
                let pause = backoff(failures, state.somebody_waits());
                tracing::warn!(tag = %state.tag, "{error}; asking again in {pause:?}");
                rest(state, pause).await;
            }
        }
    }
}

async fn fetch(state: &TagState) -> Result<IdRange, StoreError> {
    let operation = || format!("allocate tag {:?}", state.tag.as_str());
    let backend = &state.backend;
    let _permit = backend.permits.acquire().await.expect("the semaphore is never closed");
    let (amount, seen, mark) = plan(state).map_err(|kind| StoreError::new(kind, operation()))?;

    let sent = Instant::now();
    let range = backend.ask(&operation(), backend.store.allocate(&state.tag, amount, seen)).await?;

    if let Some(mark) = mark.filter(|mark| range.start() < *mark) {
        let kind = StoreErrorKind::Regression { start: range.start(), mark };
        return Err(StoreError::new(kind, operation()));
    }
    let mut refill = state.refill();
    refill.granted = Some(range.end());
    refill.granted_at = Some(sent);
    refill.failure = None;
    if let Ok(policy) = &mut refill.policy {
        policy.granted(amount);
    }
    Ok(range)
}

/// Amount, the step that the record should have, and the mark below which nothing is accepted.
fn plan(state: &TagState) -> Result<(Step, Step, Option<i64>), StoreErrorKind> {
    let refill = state.refill();
    let policy =
        refill.policy.as_ref().map_err(|error| StoreErrorKind::BadRecord(error.to_string()))?;
    let ago = refill.granted_at.map_or(Duration::MAX, |at| at.elapsed());
    let amount = policy.amount(ago, state.backend.config.max_step);
    Ok((amount, policy.record(), refill.granted))
}

/// Exponential with full jitter.
fn backoff(failures: u32, somebody_waits: bool) -> Duration {
    let longest = if somebody_waits { BACKOFF_WITH_WAITERS } else { LONGEST_BACKOFF };
    let ceiling = FIRST_BACKOFF.saturating_mul(1 << failures.min(10)).min(longest);
    ceiling.mul_f64(fastrand::f64())
}

/// Pauses; not longer than [`BACKOFF_WITH_WAITERS`] from the moment somebody begins to wait.
async fn rest(state: &TagState, pause: Duration) {
    let end = Instant::now() + pause;
    let hurried = async {
        state.hurry.notified().await;
        let pause = BACKOFF_WITH_WAITERS.mul_f64(fastrand::f64());
        tokio::time::sleep_until(end.min(Instant::now() + pause)).await;
    };
    tokio::select! {
        () = tokio::time::sleep_until(end) => {}
        () = hurried => {}
    }
}
