//! A tag in use: its buffer, and how a caller waits for it.
//!
//! The fast path is [`DoubleBuffer::take`] alone. A caller that finds both segments used up asks
//! for a refill and waits for its arrival with a deadline; it never talks to the store itself, so a
//! caller that gives up disturbs nobody.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use leaf_core::{Id, IdRange, Step, StepError, Tag};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::buffer::{ClosedAt, DoubleBuffer, Take};
use crate::refill::{self, Backend};
use crate::step_policy::StepPolicy;
use crate::{SegmentError, SegmentErrorKind, StoreError, StoreErrorKind};

/// An error that only an operator can cure is told to callers for this long before the store is
/// asked again.
const ERROR_HOLDS: Duration = Duration::from_secs(1);

/// The most ids that one call takes.
const MOST_AT_ONCE: usize = 1_000_000;

/// A tag, ready to hand out ids. Cheap to clone; keep it instead of looking the tag up again.
///
/// When the tag's record is deleted the handle ends: every call then fails with
/// [`SegmentErrorKind::UnknownTag`], also after the record was made again. Ask the generator for a
/// new handle.
#[derive(Clone)]
pub struct TagHandle {
    pub(crate) state: Arc<TagState>,
}

impl TagHandle {
    pub(crate) fn new(tag: Tag, step: Result<Step, StepError>, backend: Arc<Backend>) -> Self {
        Self { state: Arc::new(TagState::new(tag, step, None, backend)) }
    }

    /// The handle that replaces this one after the record was deleted and made again. It remembers
    /// what was granted, so that no id below is accepted.
    pub(crate) fn revived(&self, step: Result<Step, StepError>) -> Self {
        let old = &self.state;
        let granted = old.refill().granted;
        let backend = Arc::clone(&old.backend);
        Self { state: Arc::new(TagState::new(old.tag.clone(), step, granted, backend)) }
    }

    /// The tag.
    #[must_use]
    pub fn tag(&self) -> &Tag {
        &self.state.tag
    }

    /// Takes the next id if one is there; never waits. `None` also starts a refill, so that a later
    /// call succeeds.
    #[inline]
    #[must_use]
    pub fn try_next(&self) -> Option<Id> {
        self.taken(self.state.buffer.take())
    }

    /// Takes the next id; at once while a segment is there, else as soon as the refill arrives.
    ///
    /// # Errors
    /// After [`SegmentConfig::wait`](crate::SegmentConfig::wait): `StoreDown` or `Deadline`. At
    /// once: `UnknownTag` when the record is gone, `Record` when an operator must repair it,
    /// `Closed`.
    pub async fn next(&self) -> Result<Id, SegmentError> {
        match self.try_next() {
            Some(id) => Ok(id),
            None => self.wait_for(self.deadline(), Self::try_next).await,
        }
    }

    /// Takes what one segment has at once: at least 1 id, at most `most` and 65,536; never waits.
    /// `None` also starts a refill, so that a later call succeeds.
    #[must_use]
    pub fn try_take(&self, most: usize) -> Option<IdRange> {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        self.taken(self.state.buffer.take_run(most))
    }

    /// Takes exactly `count` ids, as one or more ranges in increasing order, and waits where it must.
    /// More than a segment holds is fetched from the store directly: such a range is unordered
    /// against the ids of [`Self::next`].
    ///
    /// # Errors
    /// `BadCount` unless `count` is 1 to 1,000,000; else those of [`Self::next`]. Ids that were
    /// taken before an error are lost, which makes a gap.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator, SegmentStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Arc::new(MemoryStore::default());
    /// # store.create(&NewTag::stock()).await?;
    /// # let segments = SegmentGenerator::open(store, SegmentConfig::default()).await;
    /// let orders = segments.tag("leaf-segment-test").await?;
    /// let ranges = orders.take(500).await?;
    /// assert_eq!(ranges.iter().map(|range| range.len()).sum::<u64>(), 500);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn take(&self, count: usize) -> Result<Vec<IdRange>, SegmentError> {
        let step = self.check_count(count)?;
        let deadline = self.deadline();
        if count > self.state.segment_length() {
            return Ok(vec![self.fetch(step, deadline).await?]);
        }
        let mut ranges: Vec<IdRange> = Vec::with_capacity(1);
        let mut missing = count;
        while missing > 0 {
            let range = match self.try_take(missing) {
                Some(range) => range,
                None => self.wait_for(deadline, |handle| handle.try_take(missing)).await?,
            };
            missing -= range.len() as usize;
            match ranges.last_mut() {
                Some(last) if last.end() == range.start() => {
                    *last = IdRange::new(last.start(), range.end()).unwrap_or(range);
                }
                _ => ranges.push(range),
            }
        }
        Ok(ranges)
    }

    /// Takes exactly `count` ids that follow each other without a gap. What the current segment has
    /// left is kept for others when it is too little: then the ids are fetched from the store
    /// directly, unordered against those of [`Self::next`].
    ///
    /// # Errors
    /// As [`Self::take`].
    pub async fn take_contiguous(&self, count: usize) -> Result<IdRange, SegmentError> {
        let step = self.check_count(count)?;
        let taken = self.state.buffer.take_contiguous(step.get());
        match taken.and_then(|taken| self.taken(taken)) {
            Some(range) => Ok(range),
            None => self.fetch(step, self.deadline()).await,
        }
    }

    /// What was taken; sees to the refill.
    #[inline]
    fn taken<T>(&self, taken: Take<T>) -> Option<T> {
        match taken {
            Take::Some(taken) => Some(taken),
            Take::SomeAndPrefetch(taken) => {
                refill::start(&self.state);
                Some(taken)
            }
            Take::Empty => {
                refill::start(&self.state);
                None
            }
            Take::Closed => None,
        }
    }

    #[cold]
    async fn wait_for<T>(
        &self,
        deadline: Instant,
        take: impl Fn(&Self) -> Option<T>,
    ) -> Result<T, SegmentError> {
        let state = &self.state;
        let _waiting = state.announce_waiter();
        loop {
            let refilled = state.refilled.notified();
            tokio::pin!(refilled);
            // Registered before the look, so that a refill in between is not missed.
            refilled.as_mut().enable();
            if let Some(error) = state.verdict() {
                return Err(error);
            }
            if let Some(taken) = take(self) {
                return Ok(taken);
            }
            if tokio::time::timeout_at(deadline, refilled).await.is_err() {
                return Err(state.deadline_error());
            }
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.state.backend.config.wait
    }

    fn check_count(&self, count: usize) -> Result<Step, SegmentError> {
        let step = i64::try_from(count).ok().and_then(|count| Step::new(count).ok());
        step.filter(|_| count <= MOST_AT_ONCE).ok_or_else(|| {
            let kind = SegmentErrorKind::BadCount { count, most: MOST_AT_ONCE };
            SegmentError::new(kind, self.state.tag.as_str())
        })
    }

    /// Fetches `count` ids past the buffer.
    async fn fetch(&self, count: Step, deadline: Instant) -> Result<IdRange, SegmentError> {
        let state = &self.state;
        if let Some(error) = state.verdict() {
            return Err(error);
        }
        let range = refill::fetch_directly(state, count);
        match tokio::time::timeout_at(deadline, range).await {
            Ok(Ok(range)) => Ok(range),
            // The task gave up: it has written down why.
            Ok(Err(_)) => Err(state.verdict().unwrap_or_else(|| state.deadline_error())),
            Err(_) => Err(state.deadline_error()),
        }
    }
}

impl fmt::Debug for TagHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagHandle").field("tag", &self.state.tag).finish_non_exhaustive()
    }
}

/// What the handles of one tag share.
pub(crate) struct TagState {
    /// First, so that the fast path finds it at the start of the allocation.
    pub(crate) buffer: DoubleBuffer,
    pub(crate) tag: Tag,
    pub(crate) backend: Arc<Backend>,
    /// Whether a refill task is under way; the one who sets it owns `DoubleBuffer::publish`.
    pub(crate) fetching: AtomicBool,
    /// One fetch of this tag at a time, also of those past the buffer: a request must not be on its
    /// way while another one's answer raises the mark that it is judged by.
    pub(crate) fetch_turn: tokio::sync::Mutex<()>,
    /// Told when a refill arrived or ended for good.
    pub(crate) refilled: Notify,
    /// Told when the first caller begins to wait: a task that backs off shall hurry.
    pub(crate) hurry: Notify,
    waiters: AtomicUsize,
    refill: Mutex<Refill>,
}

/// What the refill task knows. Only the control plane locks it.
#[derive(Debug)]
pub(crate) struct Refill {
    pub(crate) policy: Result<StepPolicy, StepError>,
    /// End of the last range granted to this process.
    pub(crate) granted: Option<i64>,
    granted_at: Option<Instant>,
    /// The range, below `granted`, that was refused: until the record was raised, nothing is
    /// allocated from it.
    pub(crate) refused: Option<Refused>,
    /// The error of the last attempt; `None` after a success.
    pub(crate) failure: Option<Failure>,
    pub(crate) ended: Option<SegmentErrorKind>,
    closed_at: Option<ClosedAt>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) range: IdRange,
    /// The record stands again where it stood before.
    pub(crate) given_back: bool,
}

impl Refused {
    /// The `max_id` from which on the record is trusted again: the refused range itself must not
    /// count as the raise.
    pub(crate) fn least_accepted(self, mark: i64) -> i64 {
        if self.given_back { mark } else { mark.max(self.range.end().saturating_add(1)) }
    }
}

impl Refill {
    /// Whether the record must be read before anything is allocated from it.
    pub(crate) const fn suspect(&self) -> bool {
        self.refused.is_some() || self.policy.is_err()
    }

    /// Whether a record with this `max_id` can be allocated from again.
    pub(crate) fn check(&mut self, max_id: i64) -> Result<(), StoreErrorKind> {
        if let (Some(mark), Some(refused)) = (self.granted, self.refused) {
            let mark = refused.least_accepted(mark);
            if max_id < mark {
                return Err(StoreErrorKind::Regression { start: max_id, mark });
            }
        }
        self.refused = None;
        Ok(())
    }

    /// Amount, the step that the record should have, and the mark below which nothing is accepted.
    pub(crate) fn plan(&self, max_step: Step) -> Result<(Step, Step, Option<i64>), StoreErrorKind> {
        let bad_step = |error: &StepError| {
            StoreErrorKind::BadRecord(format!("{error}; correct the row in leaf_alloc"))
        };
        let policy = self.policy.as_ref().map_err(bad_step)?;
        let ago = self.granted_at.map_or(Duration::MAX, |at| at.elapsed());
        Ok((policy.amount(ago, max_step), policy.record(), self.granted))
    }

    /// `range` was granted to this process: nothing below its end is accepted from a later request.
    pub(crate) fn mark(&mut self, range: IdRange) {
        self.granted = self.granted.max(Some(range.end()));
        self.failure = None;
    }

    /// `range` was granted for the buffer on a request of `amount` that was sent at `sent`.
    pub(crate) fn grant(&mut self, range: IdRange, amount: Step, sent: Instant) {
        self.mark(range);
        self.granted_at = Some(sent);
        if let Ok(policy) = &mut self.policy {
            policy.granted(amount, sent.elapsed());
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: Arc<StoreError>,
    pub(crate) at: Instant,
}

impl TagState {
    fn new(
        tag: Tag,
        step: Result<Step, StepError>,
        granted: Option<i64>,
        backend: Arc<Backend>,
    ) -> Self {
        Self {
            buffer: DoubleBuffer::new(),
            tag,
            backend,
            fetching: AtomicBool::new(false),
            fetch_turn: tokio::sync::Mutex::new(()),
            refilled: Notify::new(),
            hurry: Notify::new(),
            waiters: AtomicUsize::new(0),
            refill: Mutex::new(Refill {
                policy: step.map(StepPolicy::new),
                granted,
                granted_at: None,
                refused: None,
                failure: None,
                ended: None,
                closed_at: None,
            }),
        }
    }

    pub(crate) fn refill(&self) -> MutexGuard<'_, Refill> {
        self.refill.lock().expect("no holder of this lock panics")
    }

    /// Takes over a step that was read from the record.
    pub(crate) fn record_step(&self, step: Result<Step, StepError>) {
        let mut refill = self.refill();
        match (&mut refill.policy, step) {
            (Ok(policy), Ok(step)) => policy.record_changed(step),
            (policy, step) => *policy = step.map(StepPolicy::new),
        }
    }

    /// Ends the tag: no id leaves it any more.
    pub(crate) fn end(&self, why: SegmentErrorKind) {
        let mut refill = self.refill();
        refill.ended.get_or_insert(why);
        if let Some(at) = self.buffer.close() {
            refill.closed_at = Some(at);
        }
        drop(refill);
        self.refilled.notify_waiters();
    }

    /// The ids that were fetched last and never handed out, once the tag was closed and its tasks
    /// have ended. Told once: given back they may be somebody else's the next moment. A record that
    /// is gone has no use for them.
    pub(crate) fn take_unused(&self) -> Option<IdRange> {
        let mut refill = self.refill();
        let closed = refill.ended == Some(SegmentErrorKind::Closed);
        let at = refill.closed_at.take().filter(|_| closed)?;
        self.buffer.unused(at)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.refill().ended.is_some()
    }

    pub(crate) fn somebody_waits(&self) -> bool {
        self.waiters.load(Ordering::Acquire) > 0
    }

    /// Why neither waiting nor asking the store makes sense now, if so.
    pub(crate) fn verdict(&self) -> Option<SegmentError> {
        let refill = self.refill();
        if let Some(kind) = &refill.ended {
            return Some(SegmentError::new(kind.clone(), self.tag.as_str()));
        }
        let failure = refill.failure.as_ref()?;
        if failure.error.retryable() || failure.at.elapsed() > ERROR_HOLDS {
            return None;
        }
        let kind = match failure.error.kind() {
            StoreErrorKind::UnknownTag => SegmentErrorKind::UnknownTag,
            StoreErrorKind::Refused => return None,
            _ => SegmentErrorKind::Record,
        };
        Some(SegmentError::of_tag(kind, &self.tag, Arc::clone(&failure.error)))
    }

    /// How many ids a segment holds: the one in use, before that what the record says.
    fn segment_length(&self) -> usize {
        match self.buffer.segment_length() {
            0 => {
                let refill = self.refill();
                refill.policy.as_ref().map_or(0, |policy| policy.record().get() as usize)
            }
            length => length as usize,
        }
    }

    fn deadline_error(&self) -> SegmentError {
        let wait = self.backend.config.wait;
        match &self.refill().failure {
            Some(failure) => SegmentError::of_store(&self.tag, Arc::clone(&failure.error)),
            None => SegmentError::new(SegmentErrorKind::Deadline(wait), self.tag.as_str()),
        }
    }

    fn announce_waiter(&self) -> WaiterGuard<'_> {
        if self.waiters.fetch_add(1, Ordering::AcqRel) == 0 {
            self.hurry.notify_one();
        }
        WaiterGuard(self)
    }
}

struct WaiterGuard<'a>(&'a TagState);

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}
