//! The state that the handles of one tag share: the buffer, and the control plane's state of the
//! tag.
//!
//! While ids are in memory, a caller touches only the buffer. Most of the rest is behind one lock,
//! which only refills, waiting callers and views of the tag take.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use leaf_core::{IdRange, Step, StepError, Tag};
use leaf_shape::{Mapping, Meaning, TextFormat};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::buffer::{ClosedAt, DoubleBuffer};
use super::group_commit::Queue;
use super::leased::{Before, Leased};
use super::rate::Rate;
use super::step_policy::{Bounds, StepPolicy};
use super::store_client::StoreClient;
use crate::store::{Expected, Family, TagGeneration, TagSettings, TagSettingsError};
use crate::{SegmentError, SegmentErrorKind, StoreError, StoreErrorKind, TagRecord};

/// How long callers get an error that only an operator can fix, before the store is asked again.
const ERROR_HOLDS: Duration = Duration::from_secs(1);

/// How long callers get the error that a period is full: the next period may begin at any moment.
const FULL_HOLDS: Duration = Duration::from_millis(50);

/// How long the mark on the disk may lag behind, in a tag in strict order.
const MARK_BEHIND: Duration = Duration::from_secs(1);

/// After this time a record that seems to have gone back is read again, to make sure.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How often the record of a tag that waits for an operator is read, so that the operator soon sees
/// the effect of a repair.
pub(crate) const WHILE_REFUSED: Duration = Duration::from_secs(10);

/// How many fetches are remembered for operators.
const HISTORY: usize = 16;

pub(crate) struct TagState {
    /// The ids of a tag whose numbers are its ids. In any other tag it stays empty, so that the
    /// fast path need not check the shape. The first field, so that the fast path finds it at the
    /// start of the allocation.
    pub(crate) buffer: DoubleBuffer,
    /// The numbers of a tag whose ids are made from them; `None` in any other tag.
    pub(crate) shaped: Option<Box<Shaped>>,
    pub(crate) tag: Tag,
    /// None in a plain tag, as most are.
    meaning: Option<Box<Meaning>>,
    /// How ids are written, where the tag has a template.
    pub(crate) text: Option<Box<TextFormat>>,
    pub(crate) store_client: Arc<StoreClient>,
    /// The callers that wait for ids in strict order; empty in a tag in relaxed order.
    pub(crate) queue: Queue,
    /// Whether the mark is to be written soon.
    mark_due: AtomicBool,
    /// Whether a refill task is running. Only the task that set this may call
    /// `DoubleBuffer::publish`.
    pub(crate) fetching: AtomicBool,
    /// Allows one fetch of this tag at a time, including those without the buffer (a tag in strict
    /// order has only one task anyway). A request must not be under way while the answer to another
    /// one raises the mark: its range is checked against the mark as it was before.
    pub(crate) fetch_turn: tokio::sync::Mutex<()>,
    /// Notified when a refill task or the tag ends.
    pub(crate) refilled: Notify,
    /// Notified when the first caller begins to wait, so that a task that backs off asks sooner.
    pub(crate) hurry: Notify,
    waiters: AtomicUsize,
    /// Whether a task waits to have the record read again.
    reads_again: AtomicBool,
    control: Mutex<TagControl>,
}

/// The settings that are fixed when a tag is made or repaired. Its meaning is compared elsewhere.
fn made(settings: &TagSettings) -> impl PartialEq + '_ {
    (settings.generation, settings.slice, &settings.text, settings.time_zone)
}

/// Shares the default settings, which most tags have, so that they are in memory only once.
fn share(settings: &TagSettings) -> Arc<TagSettings> {
    static DEFAULT: LazyLock<Arc<TagSettings>> = LazyLock::new(Arc::default);
    let default = *settings == **DEFAULT;
    if default { Arc::clone(&DEFAULT) } else { Arc::new(settings.clone()) }
}

/// The buffer of a tag's numbers, and the mapping that makes ids of them.
pub(crate) struct Shaped {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) buffer: DoubleBuffer,
}

/// The state of a tag in the control plane, which alone locks it.
#[derive(Debug)]
pub(crate) struct TagControl {
    pub(crate) policy: Result<StepPolicy, StepError>,
    /// The last settings that could be read; `None` if they never could.
    settings: Option<Arc<TagSettings>>,
    /// Why the settings could not be read the last time.
    pub(crate) unreadable: Option<Box<TagSettingsError>>,
    /// How many ids were granted to this process, for its callers.
    pub(crate) granted: u64,
    /// When the last segment was asked for.
    asked_at: Option<Instant>,
    /// The last fetches, the newest last.
    pub(crate) fetches: VecDeque<Fetched>,
    /// Whether a range below the tag's mark was refused. Until the record is raised, nothing is
    /// allocated from it.
    pub(crate) refused: bool,
    /// Set when a record below the tag's mark was read: the mark, and the time. One such record
    /// proves nothing: it may have been read before the allocation that raised the mark. If a
    /// record that is read later is still below this mark, it went back.
    low: Option<(i64, Instant)>,
    /// Whether a refresh found the record below the tag's mark. Operators are told, but allocations
    /// are still tried, since the next one may make the failover guard raise the record.
    pub(crate) went_back: bool,
    /// The highest end of a range that was granted to this state.
    pub(crate) granted_end: Option<i64>,
    /// One past the highest id that was handed out without the buffer.
    pub(crate) direct_end: Option<i64>,
    /// The ranges that were leased last.
    pub(crate) leased: Option<Box<Leased>>,
    /// The last period for which the clocks were compared, in a tag with periods.
    pub(crate) period: Option<i64>,
    /// The tag's mark when this state was made.
    mark_at_open: Option<i64>,
    /// The error of the last attempt; `None` after a success.
    pub(crate) failure: Option<Failure>,
    pub(crate) ended: Option<SegmentErrorKind>,
    closed_at: Option<ClosedAt>,
    /// The number of issued ids when it was last seen to change, and when that was.
    used: (u64, Instant),
    /// Whether the tag was dropped from memory because nobody used it.
    left: bool,
    pub(crate) rate: Rate,
}

/// A range that was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetched {
    pub(crate) at: Instant,
    /// Microseconds.
    took: u32,
    pub(crate) amount: u32,
}

impl Fetched {
    pub(crate) fn took(&self) -> Duration {
        Duration::from_micros(self.took.into())
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: Arc<StoreError>,
    pub(crate) at: Instant,
}

impl TagControl {
    /// Whether the record must be read before anything is allocated from it.
    pub(crate) fn suspect(&self) -> bool {
        self.refused || self.policy.is_err() || self.unreadable.is_some()
    }

    /// Fails if `max_id` is below `mark`; otherwise allows allocations from the record again.
    pub(crate) fn check(&mut self, max_id: i64, mark: Option<i64>) -> Result<(), StoreErrorKind> {
        if let Some(mark) = mark.filter(|mark| max_id < *mark) {
            return Err(StoreErrorKind::Regression { start: max_id, mark });
        }
        self.refused = false;
        Ok(())
    }

    /// The values that the grant about to be requested will change, for restoring them later.
    pub(crate) const fn before(&self, mark: Option<i64>) -> Before {
        Before { granted_end: self.granted_end, direct_end: self.direct_end, mark }
    }

    /// The settings as they were read last, or why they could not be read.
    pub(crate) fn settings(&self) -> Result<Arc<TagSettings>, &TagSettingsError> {
        match &self.unreadable {
            Some(error) => Err(error),
            None => Ok(self.settings.clone().unwrap_or_default()),
        }
    }

    fn settings_seen(&mut self, settings: &Result<TagSettings, TagSettingsError>) {
        match settings {
            Ok(seen) => {
                self.unreadable = None;
                if self.settings.as_deref() != Some(seen) {
                    self.settings = Some(share(seen));
                }
            }
            Err(error) => self.unreadable = Some(Box::new(error.clone())),
        }
    }

    /// The amount to fetch, and the record that an allocation from a tag of this meaning expects.
    pub(crate) fn plan(
        &self,
        meaning: Meaning,
        bounds: Bounds,
    ) -> Result<(Step, Expected), StoreErrorKind> {
        let bad_step =
            |error: &StepError| StoreErrorKind::BadRecord(format!("{error}; correct its step"));
        let policy = self.policy.as_ref().map_err(bad_step)?;
        let ago = self.asked_at.map_or(Duration::MAX, |at| at.elapsed());
        let settings = self.settings();
        let settings = settings.map_err(|error| StoreErrorKind::BadRecord(error.to_string()))?;
        let bounds = bounds.overruled_by(&settings);
        let end = settings.number_end(meaning);
        let expected = Expected { end, ..Expected::new(policy.record(), meaning) };
        Ok((policy.amount(ago, bounds), expected))
    }

    /// Records that `range` was granted to a request that was sent at `sent`.
    pub(crate) fn granted_range(&mut self, range: IdRange, sent: Instant) {
        self.granted_end = self.granted_end.max(Some(range.end()));
        self.failure = None;
        if self.fetches.len() == HISTORY {
            self.fetches.pop_front();
        }
        let now = Instant::now();
        let took = u32::try_from((now - sent).as_micros()).unwrap_or(u32::MAX);
        let amount = u32::try_from(range.len()).unwrap_or(u32::MAX);
        self.fetches.push_back(Fetched { at: now, took, amount });
    }

    /// Records that a request for the buffer, of `amount` ids and sent at `sent`, was granted.
    pub(crate) fn segment_granted(&mut self, amount: Step, sent: Instant) {
        self.asked_at = Some(sent);
        if let Ok(policy) = &mut self.policy {
            policy.granted(amount, sent.elapsed());
        }
    }
}

impl TagState {
    pub(crate) fn new(
        record: &TagRecord,
        meaning: Meaning,
        mapping: Option<Mapping>,
        store_client: Arc<StoreClient>,
    ) -> Self {
        let settings = record.settings.as_ref().ok();
        let text = settings.and_then(|settings| {
            let template = settings.text.clone()?;
            Some(Box::new(TextFormat::new(template, settings.time_zone, meaning.reset)))
        });
        let mark_at_open = store_client.config.marks.get(&record.tag);
        Self {
            buffer: DoubleBuffer::new(),
            shaped: mapping.map(|mapping| {
                Box::new(Shaped { mapping: Arc::new(mapping), buffer: DoubleBuffer::new() })
            }),
            tag: record.tag.clone(),
            meaning: (!meaning.is_plain()).then(|| Box::new(meaning)),
            text,
            store_client,
            queue: Queue::default(),
            mark_due: AtomicBool::new(false),
            fetching: AtomicBool::new(false),
            fetch_turn: tokio::sync::Mutex::new(()),
            refilled: Notify::new(),
            hurry: Notify::new(),
            waiters: AtomicUsize::new(0),
            reads_again: AtomicBool::new(false),
            control: Mutex::new(TagControl {
                policy: record.step.map(StepPolicy::new),
                settings: settings.map(share),
                unreadable: record.settings.clone().err().map(Box::new),
                granted: 0,
                asked_at: None,
                // Many tags never fetch again.
                fetches: VecDeque::with_capacity(1),
                refused: false,
                low: None,
                went_back: false,
                granted_end: None,
                direct_end: None,
                leased: None,
                period: None,
                mark_at_open,
                failure: None,
                ended: None,
                closed_at: None,
                used: (0, Instant::now()),
                left: false,
                rate: Rate::new(Instant::now()),
            }),
        }
    }

    /// If the record went back: the number from which it must go on, at least. Else `None`.
    pub(crate) fn advance_to(&self, control: &TagControl) -> Option<i64> {
        let mark = || self.store_client.config.marks.get(&self.tag);
        (control.refused || control.went_back).then(mark).flatten()
    }

    /// The family that made the tag; `None` if none did.
    pub(crate) fn made_by(&self) -> Option<Tag> {
        let is_member = self.control().settings.as_ref().is_some_and(|settings| settings.member);
        is_member.then(|| Family::of(&self.tag)).flatten()
    }

    pub(crate) fn meaning(&self) -> Meaning {
        self.meaning.as_deref().copied().unwrap_or(Meaning::PLAIN)
    }

    /// The buffer that refills go to.
    pub(crate) fn numbers(&self) -> &DoubleBuffer {
        self.shaped.as_ref().map_or(&self.buffer, |shaped| &shaped.buffer)
    }

    /// The mapping from numbers to ids; `None` if the numbers are the ids.
    pub(crate) fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.shaped.as_ref().map(|shaped| &shaped.mapping)
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, TagControl> {
        self.control.lock().expect("no holder of this lock panics")
    }

    /// The generation of the record that this state was made for. Unused ids are given back only to
    /// a record of this generation.
    pub(crate) fn generation(&self) -> Option<TagGeneration> {
        self.control().settings.as_ref()?.generation
    }

    /// Whether the record is still the one that this state was made for: the tag may have been made
    /// again, or repaired because the database had granted ids twice. `true` if the settings cannot
    /// be read, since that proves nothing.
    pub(crate) fn is_made_as(&self, record: &TagRecord) -> bool {
        let control = self.control();
        let before = control.settings.as_deref().map(made);
        record.settings.as_ref().map_or(true, |settings| before == Some(made(settings)))
    }

    /// Takes over what was read from the record.
    pub(crate) fn record_seen(&self, record: &TagRecord) {
        let mut control = self.control();
        control.settings_seen(&record.settings);
        // It may have been corrected: the next request tells.
        control.failure.take_if(|it| matches!(it.error.kind(), StoreErrorKind::BadRecord(_)));
        drop(control);
        self.step_seen(record.step);
    }

    /// Compares a record with the tag's mark, so that this node reports how far it was granted ids
    /// even while it has ids in memory and nothing is refused: after a restore an operator needs
    /// the greatest number of all nodes. A record that reaches the mark ends the report.
    pub(crate) fn compare_with_mark(self: &Arc<Self>, max_id: i64) {
        let mark = self.store_client.config.marks.get(&self.tag);
        let mut control = self.control();
        let Some(mark) = mark.filter(|mark| max_id < *mark) else {
            (control.low, control.went_back, control.refused) = (None, false, false);
            return;
        };
        let again = if control.refused || control.went_back { WHILE_REFUSED } else { LOOK_AGAIN };
        match control.low {
            Some((before, at)) if max_id < before && at.elapsed() >= LOOK_AGAIN => {
                if !std::mem::replace(&mut control.went_back, true) {
                    let why = StoreErrorKind::Regression { start: max_id, mark };
                    tracing::error!(tag = ?self.tag.as_str(), "{why}");
                }
            }
            Some((before, _)) if max_id < before => {}
            _ => {
                control.low = Some((mark, Instant::now()));
            }
        }
        drop(control);
        self.read_again_in(again);
    }

    /// Requests that the record is read again after `pause`, unless such a request is pending.
    pub(crate) fn read_again_in(self: &Arc<Self>, pause: Duration) {
        if self.reads_again.swap(true, Ordering::Relaxed) {
            return;
        }
        let state = Arc::clone(self);
        self.store_client.spawn(async move {
            tokio::time::sleep(pause).await;
            state.reads_again.store(false, Ordering::Relaxed);
            if !state.has_ended() {
                state.store_client.soon.read_tag(&state.tag);
            }
        });
    }

    /// Logs why the tag needs an operator, where its record is the reason.
    pub(crate) fn tell_if_suspect(&self, record: &TagRecord) {
        if !self.control().suspect() {
            return;
        }
        let settings = record.settings.as_ref().err().map(ToString::to_string);
        let why = settings.or_else(|| record.step.err().map(|error| error.to_string()));
        if let Some(why) = why {
            tracing::error!(tag = ?self.tag.as_str(), "no ids but those in memory: {why}");
        }
    }

    /// Takes over a step that was read from the record.
    pub(crate) fn step_seen(&self, step: Result<Step, StepError>) {
        let mut control = self.control();
        match (&mut control.policy, step) {
            (Ok(policy), Ok(step)) => policy.record_changed(step),
            (policy, step) => *policy = step.map(StepPolicy::new),
        }
    }

    /// Ends the tag: its handles hand out no more ids.
    pub(crate) fn end(&self, why: SegmentErrorKind) {
        let mut control = self.control();
        control.ended.get_or_insert(why);
        control.granted = control.granted.saturating_sub(self.numbers().stock());
        if let Some(at) = self.numbers().close() {
            control.closed_at = Some(at);
        }
        // Already closed but where it is empty; `has_ended` looks at this one.
        self.buffer.close();
        drop(control);
        self.queue.clear();
        self.refilled.notify_waiters();
    }

    /// Ends the tag, because its record is gone. A member of a family ends with `Changed`, so that
    /// callers ask for the tag again: a failover may have lost its record, and the family then
    /// makes it again. If the family is gone too, or the member was deleted, that look-up says so.
    pub(crate) fn end_without_record(&self) {
        let is_member = self.made_by().is_some();
        self.end(if is_member { SegmentErrorKind::Changed } else { SegmentErrorKind::UnknownTag });
    }

    /// Ends the tag if nobody has used it for `idle`, and returns whether it did. A handle that
    /// somebody still holds ends with `Changed`. A tag that is being fetched, has waiting callers
    /// or waits for an operator stays.
    pub(crate) fn leave_if_idle(&self, idle: Duration) -> bool {
        let (issued, waits) = (self.issued(), self.somebody_waits() || self.queue.is_served());
        // Whoever holds it fetches.
        let Ok(_turn) = self.fetch_turn.try_lock() else { return false };
        let mut control = self.control();
        if control.used.0 != issued {
            control.used = (issued, Instant::now());
        }
        let waits = waits || control.went_back || control.suspect();
        if waits || control.used.1.elapsed() < idle {
            return false;
        }
        control.left = control.ended.is_none();
        drop(control);
        self.end(SegmentErrorKind::Changed);
        true
    }

    /// Lowers the mark of a tag that was closed or dropped to one past the last id that was handed
    /// out, by this process or an earlier one, and returns the ids that were fetched last and never
    /// handed out. Call it once the tag's tasks have ended. Only the first call returns ids: once
    /// given back, they may be granted to somebody else. `None` if the record is gone or suspect,
    /// or nothing was granted; `Some(None)` if no ids are left.
    pub(crate) fn take_unused(&self) -> Option<Option<IdRange>> {
        let mut control = self.control();
        let closed = control.left || control.ended == Some(SegmentErrorKind::Closed);
        let closed = closed && !control.suspect();
        let at = control.closed_at.take().filter(|_| closed)?;
        let ends = [control.mark_at_open, control.direct_end, self.numbers().issued_end(at)];
        let issued_end = ends.into_iter().flatten().max().unwrap_or(0);
        // A handle that was granted nothing has nothing to say of the mark.
        let granted_end = control.granted_end?;
        let marks = &self.store_client.config.marks;
        marks.lower_in_memory(&self.tag, granted_end, issued_end);
        Some(self.numbers().unused(at))
    }

    /// Whether the tag has ended. Every look-up calls this: so it takes no lock, and reads only
    /// memory that taking the next id reads anyway.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.buffer.is_closed()
    }

    /// Reads the memory that taking the next id reads, which brings it into the processor's cache.
    pub(crate) fn touch(&self) {
        self.buffer.touch();
    }

    pub(crate) fn somebody_waits(&self) -> bool {
        self.waiters.load(Ordering::Acquire) > 0
    }

    /// How many ids were taken from the buffer or fetched without it, including leased ids that
    /// were given back. Never falls: no segment is added while the lock is held, so that `granted`
    /// and the stock belong together, and when the tag ends, its stock is subtracted from
    /// `granted`.
    pub(crate) fn issued(&self) -> u64 {
        let control = self.control();
        control.granted.saturating_sub(self.numbers().stock())
    }

    /// How many numbers are left: those after the last range that this process was granted, up to
    /// the end of the tag or of that range's period, and those in stock. It is an upper bound:
    /// other nodes may have been granted some of the former.
    pub(crate) fn remaining(&self, control: &TagControl) -> Option<u64> {
        let granted = control.granted_end?;
        let end = match self.meaning().reset {
            Some(reset) => reset.start_of(granted - 1) + reset.capacity(),
            None => control.settings().ok()?.number_end(self.meaning()),
        };
        let behind = end.saturating_sub(granted).max(0).cast_unsigned();
        Some(behind.saturating_add(self.numbers().stock()))
    }

    /// Returns an error if neither waiting nor a request to the store makes sense now.
    pub(crate) fn immediate_error(&self) -> Option<SegmentError> {
        let control = self.control();
        if let Some(kind) = &control.ended {
            return Some(SegmentError::new(kind.clone(), self.tag.as_str()));
        }
        let failure = control.failure.as_ref()?;
        // The next period may begin at any moment.
        let full =
            self.meaning().reset.is_some() && *failure.error.kind() == StoreErrorKind::Exhausted;
        let holds = if full { FULL_HOLDS } else { ERROR_HOLDS };
        let refused = *failure.error.kind() == StoreErrorKind::Refused;
        if refused || failure.error.retryable() || failure.at.elapsed() > holds {
            return None;
        }
        Some(SegmentError::of_store(&self.tag, Arc::clone(&failure.error)))
    }

    /// The error of the last attempt, if that was an outage of the store less than `within` ago.
    pub(crate) fn recent_outage(&self, within: Duration) -> Option<SegmentError> {
        let control = self.control();
        let recent =
            |failure: &&Failure| failure.error.is_outage() && failure.at.elapsed() < within;
        let failure = control.failure.as_ref().filter(recent)?;
        Some(SegmentError::of_store(&self.tag, Arc::clone(&failure.error)))
    }

    /// Writes the mark to the disk after [`MARK_BEHIND`], with all that is granted until then.
    pub(crate) fn write_mark_behind(self: &Arc<Self>) {
        if self.mark_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let state = Arc::clone(self);
        self.store_client.spawn(async move {
            tokio::time::sleep(MARK_BEHIND).await;
            state.mark_due.store(false, Ordering::Release);
            state.store_client.write_mark(&state.tag).await;
        });
    }

    /// The length of the segment in use; before the first one, the record's step.
    pub(crate) fn segment_length(&self) -> usize {
        match self.numbers().segment_length() {
            0 => {
                let control = self.control();
                control.policy.as_ref().map_or(0, |policy| policy.record().get() as usize)
            }
            length => length as usize,
        }
    }

    /// The most ids that one call may take.
    pub(crate) fn max_take(&self) -> usize {
        let own = self.control().settings().ok().and_then(|settings| settings.max_take);
        own.unwrap_or(self.store_client.config.max_take).get() as usize
    }

    pub(crate) fn deadline_error(&self) -> SegmentError {
        let wait = self.store_client.config.wait;
        match &self.control().failure {
            Some(failure) => SegmentError::of_store(&self.tag, Arc::clone(&failure.error)),
            None => SegmentError::new(SegmentErrorKind::Deadline(wait), self.tag.as_str()),
        }
    }

    pub(crate) fn announce_waiter(&self) -> WaiterGuard<'_> {
        if self.waiters.fetch_add(1, Ordering::AcqRel) == 0 {
            self.hurry.notify_one();
        }
        WaiterGuard(self)
    }
}

pub(crate) struct WaiterGuard<'a>(&'a TagState);

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}
