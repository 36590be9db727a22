//! The handle of a tag in use: takes ids from the buffer, and waits for refills.
//!
//! The fast path is [`DoubleBuffer::take`] alone. A caller that finds both segments used up asks
//! for a refill and waits for its arrival with a deadline; it never talks to the store itself, so a
//! caller that gives up disturbs nobody.
//!
//! [`DoubleBuffer::take`]: super::buffer::DoubleBuffer::take

use std::fmt;
use std::sync::Arc;

use leaf_core::{Id, IdRange, Step, Tag};
use leaf_shape::{Ids, Meaning, Order, TextError, Texts};
use tokio::time::Instant;

use super::buffer::Take;
use super::refill::{self, Direct};
use super::tag_state::TagState;
use crate::engine::group_commit;
use crate::store::TagGeneration;
use crate::{SegmentError, SegmentErrorKind};

/// A tag, ready to hand out ids. Cheap to clone; keep it instead of looking the tag up again.
///
/// When the tag's record is deleted, disabled, made again, repaired or reopened, or its ids get
/// another key, the handle ends: every call then fails with [`SegmentErrorKind::UnknownTag`],
/// [`SegmentErrorKind::Disabled`] or [`SegmentErrorKind::Changed`], also after the record was made
/// or enabled again. Ask the generator for a new handle.
#[derive(Clone)]
pub struct TagHandle {
    pub(crate) state: Arc<TagState>,
}

impl TagHandle {
    /// The tag.
    #[must_use]
    pub fn tag(&self) -> &Tag {
        &self.state.tag
    }

    /// Takes the next id if one is in memory; never waits. If there is none it starts a refill, so
    /// that a later call succeeds. A tag in strict order keeps none in memory: there this returns
    /// `None`, and starts nothing.
    #[inline]
    #[must_use]
    pub fn try_next(&self) -> Option<Id> {
        match self.state.buffer.take() {
            Take::Empty => self.try_next_of_numbers(),
            taken => self.taken(taken),
        }
    }

    /// Takes the next id; at once while a segment is there, else as soon as the refill arrives.
    ///
    /// # Errors
    /// At the latest after [`SegmentConfig::wait`](crate::SegmentConfig::wait): `StoreDown`,
    /// `StoreRefused` or `Deadline`. At once: `UnknownTag` when the record is gone, `Changed` when
    /// it was made again or reopened, or has another key, `Moved`, `Disabled`, `Exhausted` at the
    /// end of the ids, `ClockBehind` where numbers of a later period were granted, `Key` where the
    /// key of scrambled ids is missing, `Guard` or `Record` when an operator must repair it,
    /// `Closed`.
    pub async fn next(&self) -> Result<Id, SegmentError> {
        match self.try_next() {
            Some(id) => Ok(id),
            None if self.is_strict() => {
                Ok(self.id_of(self.in_turn(Step::MIN, self.deadline()).await?.first()))
            }
            None => self.wait_for(self.deadline(), Self::try_next).await,
        }
    }

    /// Waits until ids are in memory, and takes none, so that the first caller need not wait. Does
    /// nothing in a tag in strict order, which never has ids in memory.
    ///
    /// # Errors
    /// The errors of [`Self::next`].
    pub async fn load(&self) -> Result<(), SegmentError> {
        if self.is_strict() || self.stock() > 0 {
            return Ok(());
        }
        refill::start(&self.state);
        self.wait_for(self.deadline(), |handle| (handle.stock() > 0).then_some(())).await
    }

    /// Takes several ids from one segment: at least 1, at most `most`, and never more than 65,536.
    /// Does not wait: if there are none, it returns `None` and starts a refill, so that a later
    /// call succeeds.
    #[must_use]
    pub fn try_take(&self, most: usize) -> Option<Ids> {
        let numbers = self.try_take_numbers(most)?;
        Some(Ids::of_range(numbers, self.state.mapping()))
    }

    /// Does what [`Self::try_take`] does, but returns the numbers, before ids are made of them.
    pub(crate) fn try_take_numbers(&self, most: usize) -> Option<IdRange> {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        self.taken(self.state.numbers().take_run(most))
    }

    /// Takes exactly `count` ids; waits for a refill if necessary. If `count` is more than a
    /// segment holds, the ids are fetched from the store directly; then there is no order between
    /// them and those of [`Self::next`]. In strict order no other caller's ids lie between them.
    ///
    /// # Errors
    /// `BadCount` unless `count` is 1 to
    /// [`SegmentConfig::max_take`](crate::SegmentConfig::max_take) or the tag's own limit; else
    /// those of [`Self::next`]. Ids that were taken before an error are lost, which makes a gap.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator, TagStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Arc::new(MemoryStore::default());
    /// # store.create(&NewTag::sample()).await?;
    /// # let segments = SegmentGenerator::open(store, SegmentConfig::default()).await;
    /// let orders = segments.tag("leaf-segment-test").await?;
    /// let ids = orders.take(500).await?;
    /// assert_eq!(ids.len(), 500);
    /// let ranges = ids.into_ranges().ok_or("the ids of a plain tag are ranges")?;
    /// assert_eq!(ranges.iter().map(|range| range.len()).sum::<u64>(), 500);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn take(&self, count: usize) -> Result<Ids, SegmentError> {
        let numbers = self.take_numbers(count).await?;
        let ids = Ids::of_ranges(numbers, self.state.mapping());
        Ok(ids.expect("at least one id was asked for, and taken"))
    }

    async fn take_numbers(&self, count: usize) -> Result<Vec<IdRange>, SegmentError> {
        let step = self.check_count(count)?;
        let deadline = self.deadline();
        if self.is_strict() {
            return Ok(vec![self.in_turn(step, deadline).await?]);
        }
        if count > self.state.segment_length() {
            return Ok(vec![self.fetch(step, deadline).await?.range]);
        }
        let mut ranges: Vec<IdRange> = Vec::with_capacity(1);
        let mut missing = count;
        while missing > 0 {
            let range = match self.try_take_numbers(missing) {
                Some(range) => range,
                None => self.wait_for(deadline, |handle| handle.try_take_numbers(missing)).await?,
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

    /// Takes exactly `count` consecutive ids. If the current segment has too few left, they stay
    /// there for other callers, and the ids are fetched from the store directly; then there is no
    /// order between them and those of [`Self::next`].
    ///
    /// # Errors
    /// `NoRanges` in a tag whose ids are scrambled or interleaved, so that they form no ranges;
    /// else those of [`Self::take`].
    pub async fn take_contiguous(&self, count: usize) -> Result<IdRange, SegmentError> {
        self.check_ranges()?;
        let step = self.check_count(count)?;
        let taken = match self.is_strict() {
            true => return Ok(self.ids_of(self.in_turn(step, self.deadline()).await?)),
            false => self.state.numbers().take_contiguous(step.get()),
        };
        match taken.and_then(|taken| self.taken(taken)) {
            Some(range) => Ok(range),
            None => Ok(self.fetch(step, self.deadline()).await?.range),
        }
    }

    /// Returns the range of ids for a range of numbers, in a tag whose ids form ranges.
    fn ids_of(&self, numbers: IdRange) -> IdRange {
        let ids = Ids::of_range(numbers, self.state.mapping()).into_ranges();
        ids.and_then(|ranges| ranges.first().copied()).expect("a tag that has ranges")
    }

    /// The tag's meaning: its order, shape and periods.
    #[must_use]
    pub fn meaning(&self) -> Meaning {
        self.state.meaning()
    }

    /// The generation of the record that this handle's ids belong to; `None` if the record has
    /// none.
    #[must_use]
    pub fn generation(&self) -> Option<TagGeneration> {
        self.state.generation()
    }

    /// The step of the tag's record: how many ids a node reserves at least. `None` if the number in
    /// the record is not a valid step.
    #[must_use]
    pub fn step(&self) -> Option<Step> {
        self.state.control().policy.as_ref().ok().map(|policy| policy.record())
    }

    /// The most ids that one call takes:
    /// [`SegmentConfig::max_take`](crate::SegmentConfig::max_take), or the tag's own limit.
    #[must_use]
    pub fn max_take(&self) -> usize {
        self.state.max_take()
    }

    /// Returns the writer of this tag's ids as texts, with the present date; `None` for a tag
    /// without a template.
    #[must_use]
    pub fn texts(&self) -> Option<Texts> {
        let text = self.state.text.as_ref()?;
        Some(text.at(self.state.store_client.config.clock.wall_millis()))
    }

    /// Reads the id from a text. Does not check whether the id was ever issued.
    ///
    /// # Errors
    /// The tag has no template, or the text does not match it: a check digit is wrong, for example.
    pub fn read_text(&self, text: &str) -> Result<Id, TextError> {
        self.state.text.as_ref().ok_or(TextError::NoTemplate)?.read(text)
    }

    fn is_strict(&self) -> bool {
        self.state.meaning().order == Order::Strict
    }

    /// The id of the highest number that callers of this handle or its clones took, which is the
    /// highest id unless ids are scrambled; `None` before the first. Other processes may have taken
    /// higher ones. While the segment changes, an id taken shortly before may be returned.
    #[must_use]
    pub fn last_issued(&self) -> Option<Id> {
        let direct = self.state.control().direct_end.map(|end| end - 1);
        let last = self.state.numbers().last_taken().max(direct)?;
        Id::new(last).map(|number| self.id_of(number))
    }

    /// How many ids can be taken without waiting for the store.
    #[must_use]
    pub fn stock(&self) -> u64 {
        self.state.numbers().stock()
    }

    /// The slow path of [`Self::try_next`]: makes an id of the next number, or starts a fetch and
    /// returns `None`.
    #[cold]
    fn try_next_of_numbers(&self) -> Option<Id> {
        let Some(shaped) = &self.state.shaped else {
            refill::start(&self.state);
            return None;
        };
        self.taken(shaped.buffer.take()).map(|number| shaped.mapping.id(number))
    }

    fn id_of(&self, number: Id) -> Id {
        match self.state.mapping() {
            None => number,
            Some(mapping) => mapping.id(number),
        }
    }

    pub(crate) fn check_ranges(&self) -> Result<(), SegmentError> {
        match self.meaning().has_ranges() {
            true => Ok(()),
            false => Err(SegmentError::new(SegmentErrorKind::NoRanges, self.state.tag.as_str())),
        }
    }

    /// Returns what was taken, and starts a refill if one is due.
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
            if let Some(error) = state.immediate_error() {
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

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.state.store_client.config.wait
    }

    pub(crate) fn check_count(&self, count: usize) -> Result<Step, SegmentError> {
        let most = self.state.max_take();
        let step = i64::try_from(count).ok().and_then(|count| Step::new(count).ok());
        step.filter(|_| count <= most).ok_or_else(|| {
            SegmentError::new(SegmentErrorKind::BadCount { count, most }, self.state.tag.as_str())
        })
    }

    /// Takes `count` consecutive numbers of a tag in strict order.
    async fn in_turn(&self, count: Step, deadline: Instant) -> Result<IdRange, SegmentError> {
        let state = &self.state;
        if let Some(error) = state.immediate_error() {
            return Err(error);
        }
        let range = group_commit::join(state, count);
        match tokio::time::timeout_at(deadline, range).await {
            Ok(Ok(granted)) => granted,
            // The tag or the generator has ended, or the store panicked.
            Ok(Err(_)) => Err(state.immediate_error().unwrap_or_else(|| {
                let kind = match state.store_client.stop.is_cancelled() {
                    true => SegmentErrorKind::Closed,
                    false => SegmentErrorKind::StoreDown,
                };
                SegmentError::new(kind, state.tag.as_str())
            })),
            Err(_) => Err(state.deadline_error()),
        }
    }

    /// Fetches `count` ids from the store directly, without the buffer.
    pub(crate) async fn fetch(
        &self,
        count: Step,
        deadline: Instant,
    ) -> Result<Direct, SegmentError> {
        let state = &self.state;
        if let Some(error) = state.immediate_error() {
            return Err(error);
        }
        let range = refill::fetch_directly(state, count);
        match tokio::time::timeout_at(deadline, range).await {
            Ok(Ok(direct)) => direct,
            // The task gave up: it has written down why.
            Ok(Err(_)) => Err(state.immediate_error().unwrap_or_else(|| state.deadline_error())),
            Err(_) => Err(state.deadline_error()),
        }
    }
}

impl fmt::Debug for TagHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagHandle").field("tag", &self.state.tag).finish_non_exhaustive()
    }
}
