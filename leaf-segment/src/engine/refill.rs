//! Fetches of ranges from the store: one refill task per tag, and fetches without the buffer.
//!
//! Invariants: a tag has at most one refill task at a time (`TagState::fetching`); the task belongs
//! to no request, so that a caller that leaves does not interrupt it; if it is unclear whether a
//! range was granted, the range is lost and never requested again; a range below one that was
//! granted before is refused.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use leaf_core::{IdRange, RELEASED, Step, UnixMillis};
use leaf_shape::{Beyond, Order, Reset, Window};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::leased::Before;
use super::step_policy::Bounds;
use super::store_client::StoreClient;
use super::tag_state::{Failure, TagState, WHILE_REFUSED};
use crate::store::Expected;
use crate::{SegmentError, SegmentErrorKind, StoreError, StoreErrorKind};

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// While somebody waits the store is asked at least this often.
const BACKOFF_WITH_WAITERS: Duration = Duration::from_millis(500);

/// Starts the tag's refill task unless one is under way.
#[cold]
pub(crate) fn start(state: &Arc<TagState>) {
    if state.meaning().order == Order::Strict {
        // It has no buffer: its callers wait in `group_commit`.
        return;
    }
    // Pairs with the fence in `run`: either this caller sees that the last task has ended, or that
    // task sees that the buffer needs a refill.
    fence(Ordering::SeqCst);
    if state.fetching.swap(true, Ordering::AcqRel) {
        return;
    }
    let task = Arc::clone(state);
    state.store_client.spawn(async move { run(&task).await });
}

async fn run(state: &Arc<TagState>) {
    loop {
        let task = Task(state);
        let decided = fetch_until_decided(state).await;
        drop(task);
        fence(Ordering::SeqCst);
        // Callers may have used up a tenth of the new segment before `fetching` was cleared.
        let again = decided == Decided::Full && state.numbers().prefetch_due();
        if !again || state.fetching.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

/// Marks the refill task as running until this is dropped, even if the store panics.
struct Task<'a>(&'a TagState);

impl Drop for Task<'_> {
    fn drop(&mut self) {
        self.0.fetching.store(false, Ordering::Release);
        // After a panic of the store callers wait their time instead of asking again at once.
        if !std::thread::panicking() {
            self.0.refilled.notify_waiters();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decided {
    /// The next segment is there.
    Full,
    /// A retry cannot change the result.
    Stop,
}

async fn fetch_until_decided(state: &Arc<TagState>) -> Decided {
    let mut failures = 0;
    loop {
        if state.immediate_error().is_some() {
            return Decided::Stop;
        }
        // A caller that was suspended before it asked may come after another one's refill.
        if state.numbers().next_is_ready() {
            return Decided::Full;
        }
        if state.numbers().is_last() {
            // A new handle has a new buffer.
            if state.numbers().stock() == 0 {
                state.end(SegmentErrorKind::Changed);
            }
            return Decided::Stop;
        }
        let fetched = {
            let _turn = state.fetch_turn.lock().await;
            fetch(state, Amount::Segment).await
        };
        match fetched {
            Ok(range) => {
                // Together, so that whoever holds the lock sees both or neither.
                let mut control = state.control();
                if state.numbers().publish(range) {
                    control.granted += range.len();
                }
                drop(control);
                return Decided::Full;
            }
            Err(error) => {
                failures += 1;
                if !record_failure_and_back_off(state, error, failures).await {
                    return Decided::Stop;
                }
            }
        }
    }
}

/// A range that was fetched without the buffer, and the tag's state before that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Direct {
    pub(crate) range: IdRange,
    pub(crate) before: Before,
}

/// Fetches `count` ids without the buffer, and retries as long as the caller waits for the answer.
/// A task of its own does this, so that a caller that leaves cannot interrupt a request half-way.
pub(crate) fn fetch_directly(
    state: &Arc<TagState>,
    count: Step,
) -> oneshot::Receiver<Result<Direct, SegmentError>> {
    let (mut answer, range) = oneshot::channel();
    let state = Arc::clone(state);
    let store_client = Arc::clone(&state.store_client);
    store_client.spawn(async move {
        let mut failures = 0;
        loop {
            let turn = tokio::select! {
                // A caller who leaves also leaves the queue, so that others do not wait for it.
                () = answer.closed() => break,
                turn = state.fetch_turn.lock() => turn,
            };
            if answer.is_closed() || state.immediate_error().is_some() {
                break;
            }
            let before = state.control().before(state.store_client.config.marks.get(&state.tag));
            let fetched = fetch(&state, Amount::Exactly(count)).await;
            drop(turn);
            match fetched {
                Ok(range) => {
                    // A caller that left meanwhile leaves a gap.
                    if answer.send(Ok(Direct { range, before })).is_ok() {
                        state.control().granted += range.len();
                    }
                    return;
                }
                // Fewer are left: the tag has not failed, and others may have them.
                Err(error) if *error.kind() == StoreErrorKind::Exhausted && count > Step::MIN => {
                    let _ = answer.send(Err(SegmentError::of_store(&state.tag, Arc::new(error))));
                    return;
                }
                Err(error) => {
                    failures += 1;
                    if !record_failure_and_back_off(&state, error, failures).await {
                        return;
                    }
                }
            }
        }
        if failures > 0 {
            // Keep trying the store without callers: a load balancer may send none as long as this
            // node is not ready. The refill task does so if the buffer has room.
            match state.numbers().next_is_ready() {
                true => state.store_client.soon.try_store(),
                false => start(&state),
            }
        }
    });
    range
}

/// Records why there are no ids. Returns `false` if a retry cannot change that.
pub(crate) fn record_failure(state: &TagState, error: &Arc<StoreError>) -> bool {
    if state.has_ended() {
        return false;
    }
    let failure = Some(Failure { error: Arc::clone(error), at: Instant::now() });
    let before = std::mem::replace(&mut state.control().failure, failure);
    let before = before.map(|before| before.error.kind().clone());
    match error.kind() {
        StoreErrorKind::StepChanged(step) => state.step_seen(Ok(*step)),
        StoreErrorKind::Unavailable
        | StoreErrorKind::Conflict
        | StoreErrorKind::Full
        | StoreErrorKind::Refused
        | StoreErrorKind::SecondName => {}
        StoreErrorKind::UnknownTag => {
            tracing::info!(tag = ?state.tag.as_str(), "the tag's record is gone");
            state.end_without_record();
            return false;
        }
        StoreErrorKind::MeaningChanged => {
            tracing::info!(tag = ?state.tag.as_str(), "the tag's record changed; it is read again");
            state.end(SegmentErrorKind::Changed);
            state.store_client.soon.read_tag(&state.tag);
            return false;
        }
        _ if error.is_another_store() => {
            tracing::error!(tag = ?state.tag.as_str(), "{error}");
            state.end(SegmentErrorKind::StoreRefused);
            // All its tags are concerned: whoever tries to read it ends them.
            state.store_client.soon.try_store();
            return false;
        }
        _ => {
            // Told once: a full tag is asked on and on.
            if before.as_ref() != Some(error.kind()) {
                tracing::error!(tag = ?state.tag.as_str(), "{error}");
            }
            return false;
        }
    }
    true
}

/// Records why there are no ids, and waits until a retry makes sense. Returns `false` if none ever
/// does.
async fn record_failure_and_back_off(state: &TagState, error: StoreError, failures: u32) -> bool {
    let error = Arc::new(error);
    if !record_failure(state, &error) {
        return false;
    }
    if failures > 1 || !matches!(error.kind(), StoreErrorKind::StepChanged(_)) {
        let pause = backoff(failures, state.somebody_waits());
        state.store_client.tell_failure(&error);
        rest(state, pause).await;
    }
    true
}

/// How much to fetch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    /// What the step policy says.
    Segment,
    Exactly(Step),
}

pub(crate) async fn fetch(state: &Arc<TagState>, wanted: Amount) -> Result<IdRange, StoreError> {
    let operation = || format!("allocate tag {:?}", state.tag.as_str());
    let refuse = |kind| StoreError::new(kind, operation());
    let StoreClient { store, config, permits, .. } = &*state.store_client;
    let permit = permits.acquire().await.expect("the semaphore is never closed");
    if state.control().suspect() {
        let record = state.store_client.read(&operation(), store.tag(&state.tag)).await?;
        let mut record = record.ok_or_else(|| refuse(StoreErrorKind::UnknownTag))?;
        if let Some(family) = record.made_by() {
            let family = state.store_client.read(&operation(), store.tag(&family)).await?;
            family.iter().for_each(|family| record.follow_family(family));
        }
        state.record_seen(&record);
        state.control().check(record.max_id, config.marks.get(&state.tag)).map_err(refuse)?;
    }
    let planned = state.control().plan(state.meaning(), Bounds::of(config));
    let (planned, expected) = planned.map_err(refuse)?;
    // Read before the request is sent: the mark may rise meanwhile by a later range, and the answer
    // to this request may then rightly be lower.
    let mark = config.marks.get(&state.tag);
    let amount = match wanted {
        Amount::Segment => planned,
        Amount::Exactly(count) => count,
    };

    let sent = Instant::now();
    let (range, amount) = match (state.meaning().order, wanted) {
        // A conflict with another node is not a failure of the store: `group_commit` retries, and
        // records the outcome.
        (Order::Strict, _) => (fetch_in_order(state, amount, expected).await?, amount),
        (Order::Relaxed, Amount::Exactly(_)) => {
            let request = store.allocate(&state.tag, amount, expected);
            (state.store_client.ask(&operation(), request).await?, amount)
        }
        (Order::Relaxed, Amount::Segment) => fetch_what_is_left(state, amount, expected).await?,
    };
    if range.end() > expected.end && state.meaning().reset.is_none() {
        // A store that knows nothing of ends.
        return Err(refuse(StoreErrorKind::Exhausted));
    }

    if let Some(mark) = mark.filter(|mark| range.start() < *mark) {
        refuse_range(state, range).await;
        return Err(refuse(StoreErrorKind::Regression { start: range.start(), mark }));
    }
    if !is_granted(state, wanted, range, amount, sent) {
        return Err(refuse(StoreErrorKind::UnknownTag));
    }
    drop(permit);
    match state.meaning().order {
        Order::Relaxed => state.store_client.write_mark(&state.tag).await,
        // Nothing is kept in memory that a restart could repeat: the mark only has to be near.
        Order::Strict => state.write_mark_behind(),
    }
    Ok(range)
}

/// Records in memory what was granted. Returns `false` if the tag has ended; then the range must
/// not be handed out: the tag may have been made again, and its new handle cannot take this range
/// into account.
fn is_granted(
    state: &TagState,
    wanted: Amount,
    range: IdRange,
    amount: Step,
    sent: Instant,
) -> bool {
    let mut control = state.control();
    if control.ended.is_some() {
        return false;
    }
    state.store_client.config.marks.raise_in_memory(&state.tag, range.end());
    control.granted_range(range, sent);
    match wanted {
        Amount::Segment => control.segment_granted(amount, sent),
        Amount::Exactly(_) => control.direct_end = control.direct_end.max(Some(range.end())),
    }
    true
}

/// Drops a range below the tag's mark, which this node or another one may have handed out.
async fn refuse_range(state: &Arc<TagState>, range: IdRange) {
    state.control().refused = true;
    state.read_again_in(WHILE_REFUSED);
    if !give_back(state, range).await {
        let marks = &state.store_client.config.marks;
        // The refused range itself must not count as the raise that an operator is asked for.
        marks.raise_in_memory(&state.tag, range.end().saturating_add(1));
        state.store_client.write_mark(&state.tag).await;
    }
}

/// Fetches a segment: a smaller one where there are fewer numbers left.
async fn fetch_what_is_left(
    state: &TagState,
    mut amount: Step,
    expected: Expected,
) -> Result<(IdRange, Step), StoreError> {
    let StoreClient { store, .. } = &*state.store_client;
    let operation = format!("allocate tag {:?}", state.tag.as_str());
    loop {
        let request = store.allocate(&state.tag, amount, expected);
        match state.store_client.ask(&operation, request).await {
            Err(error) if *error.kind() == StoreErrorKind::Exhausted && amount > Step::MIN => {
                amount = Step::new(i64::from(amount.get() / 2)).unwrap_or(Step::MIN);
            }
            range => return Ok((range?, amount)),
        }
    }
}

/// Fetches numbers of a tag in strict order; in a tag with periods, numbers of the present period.
async fn fetch_in_order(
    state: &TagState,
    amount: Step,
    expected: Expected,
) -> Result<IdRange, StoreError> {
    let StoreClient { store, period_clock, .. } = &*state.store_client;
    let operation = format!("allocate tag {:?}", state.tag.as_str());
    let allocate = async |expected| {
        let request = store.allocate(&state.tag, amount, expected);
        state.store_client.attempt(&operation, request).await
    };
    let Some(reset) = state.meaning().reset else { return allocate(expected).await };
    let now = period_clock.now();
    let window = reset.window_at(now);
    if state.control().period != Some(window.code) {
        compare_clocks(state, reset, window, now).await?;
        state.control().period = Some(window.code);
    }
    let full = match allocate(Expected { least: window.least, end: window.end, ..expected }).await {
        Err(error) if *error.kind() == StoreErrorKind::Exhausted => error,
        Ok(range) if range.end() > window.end => {
            // A jump has left too few of the period.
            return Err(StoreError::new(StoreErrorKind::Exhausted, operation));
        }
        range => return range,
    };
    let record = state.store_client.attempt(&operation, store.tag(&state.tag)).await?;
    let next = record.map_or(0, |record| record.max_id);
    match reset.beyond(window, next, now) {
        Beyond::Full => Err(full),
        Beyond::Next(window) => {
            allocate(Expected { least: window.least, end: window.end, ..expected }).await
        }
        Beyond::Later(opened) => {
            let kind = StoreErrorKind::ClockBehind { opened, own: window.code };
            Err(StoreError::new(kind, operation))
        }
    }
}

/// Refuses a period that has not begun by the clock of the store's server, and any period if this
/// host's clock is not set: a period that is opened too early leaves the tag without ids until it
/// begins.
async fn compare_clocks(
    state: &TagState,
    reset: Reset,
    window: Window,
    now: UnixMillis,
) -> Result<(), StoreError> {
    let operation = format!("compare the clocks for tag {:?}", state.tag.as_str());
    if now < RELEASED {
        return Err(StoreError::new(StoreErrorKind::ClockUnset { now }, operation));
    }
    let Some(request) = state.store_client.store.clock() else { return Ok(()) };
    let theirs = state.store_client.attempt(&operation, request).await?;
    if reset.has_begun(window.code, theirs) {
        return Ok(());
    }
    // Open already: there is nothing left to protect.
    let record = state.store_client.attempt(&operation, state.store_client.store.tag(&state.tag));
    if record.await?.is_some_and(|record| record.max_id >= window.least) {
        return Ok(());
    }
    let kind =
        StoreErrorKind::ClockAhead { own: window.code, theirs: reset.window_at(theirs).code };
    Err(StoreError::new(kind, operation))
}

/// Gives a refused range back, so that refusals do not raise the record past the mark. Tries only
/// once and immediately: later, the same `max_id` may be an operator's repair, or the end of
/// another node's range.
async fn give_back(state: &TagState, refused: IdRange) -> bool {
    let request = state.store_client.store.give_back(&state.tag, state.generation(), refused);
    match state.store_client.ask("give back a refused range", request).await {
        Ok(given_back) => given_back,
        Err(error) => {
            tracing::warn!(tag = ?state.tag.as_str(), "{error}");
            false
        }
    }
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
