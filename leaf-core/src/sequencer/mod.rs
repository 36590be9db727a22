//! The sequence logic of snowflake ids: which (timestamp, sequence) comes next.
//!
//! Invariants: no position is given out twice, and the ids of one sequencer strictly increase; a
//! position is given out only from the floor up to the highest ceiling that [`Sequencer::raise`]
//! was called with; after [`Sequencer::close`] nothing is given out.
//!
//! The state is one 64-bit word, `tick << sequence bits | sequence`, which only grows. When the
//! sequence of a tick is used up, the addition carries into the next tick, which then starts at
//! sequence 0. A taker waits while that tick lies in the future. When the clock is up to 10 ms past
//! a tick that began by such a carry, the sequencer uses up that tick first, so that a caller who
//! slept slightly too long still gets every id of every tick.
//!
//! A plain addition in place of the compare-exchange was measured: it is no faster, neither alone
//! nor contended.
//!
//! This file reads no clock and stores nothing: the caller passes the current tick and decides when
//! a ceiling is durable.

#[cfg(all(test, leaf_loom))]
mod loom_tests;
mod run;
#[cfg(all(test, not(leaf_loom)))]
mod tests;

use std::time::Duration;

use crossbeam_utils::CachePadded;

pub use self::run::IdRun;
use crate::sync::{AtomicU64, Ordering};
use crate::{Composer, Field, Id, Layout, UnixMillis, WorkerId};

/// The word after [`Sequencer::close`]. No layout reaches it: a position has at most 63 bits.
const CLOSED: u64 = u64::MAX;
/// If the clock is less than this past a tick that began by a carry, that tick is used up before
/// the current one is begun.
const CATCH_UP_MILLIS: u64 = 10;

/// Gives out the ids of one worker id between a floor and a ceiling, to any number of threads.
///
/// Floor and ceiling are what makes ids unique across restarts and processes: a program that brings
/// its own clock and its own storage writes a ceiling down durably, then raises the sequencer to
/// it, and starts the next process at that ceiling. `leaf-snowflake` does this with a registry and
/// a state file.
///
/// ```
/// use leaf_core::sequencer::{Refusal, Sequencer};
/// use leaf_core::{Layout, UnixMillis, WorkerId};
///
/// let layout = Layout::LEAF;
/// let now = UnixMillis::new(1_800_000_000_000);
/// let sequencer = Sequencer::new(layout, WorkerId::new(3), now, now, 0);
/// assert_eq!(sequencer.take(layout.tick_at(now)), Err(Refusal::Ceiling));
///
/// let ceiling = UnixMillis::new(1_800_000_000_800); // written down durably, then:
/// sequencer.raise(ceiling);
/// let id = sequencer.take(layout.tick_at(now))?;
/// assert_eq!(layout.decode(id).map(|parts| parts.timestamp), Some(now));
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Debug)]
pub struct Sequencer {
    word: CachePadded<AtomicU64>,
    /// The first tick that must not be used.
    ceiling: AtomicU64,
    /// By how many ticks ids may run ahead of the clock: how far the floor was ahead at the start,
    /// 0 as soon as the clock has caught up.
    lead: AtomicU64,
    /// The last tick that began by a carry. It only decides which tick is next, never whether a
    /// position is free: a stale value costs ids, not uniqueness.
    carried: AtomicU64,
    layout: Layout,
    worker: WorkerId,
    composer: Composer,
    sequence_bits: u32,
    max_tick: u64,
    catch_up: u64,
    /// The sequence of a tick that begins without a carry starts below this.
    start_below: u64,
}

/// Why a [`Sequencer`] gave out no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The sequence of the tick is used up; ids are available once the clock reaches this tick.
    #[error("the sequence is used up until tick {0}")]
    Wait(u64),
    /// The next id's timestamp is at or above the ceiling: call [`Sequencer::raise`] first.
    #[error("the ceiling is reached")]
    Ceiling,
    /// The timestamp bits of the layout are used up.
    #[error("the timestamp bits of the layout are used up")]
    EndOfTime,
    /// [`Sequencer::close`] was called.
    #[error("the sequencer is closed")]
    Closed,
}

impl Sequencer {
    /// A sequencer whose first id has a timestamp at or above `floor`. It gives out nothing before
    /// the first [`Self::raise`].
    ///
    /// `now` is the clock's current time. A floor ahead of it makes ids run ahead of the clock, by
    /// as many whole ticks, until the clock has caught up. The number of ticks is rounded down. If
    /// it were rounded up, two sequencers that start one after the other within one tick would
    /// share the next tick.
    ///
    /// `sequence_start` spreads ids: a tick that begins without a carry starts its sequence below
    /// this, so that `id % n` does not favour one shard. At most 1/16 of the sequence is used for
    /// it; 0 starts every tick at sequence 0.
    #[must_use]
    pub fn new(
        layout: Layout,
        worker: WorkerId,
        floor: UnixMillis,
        now: UnixMillis,
        sequence_start: u64,
    ) -> Self {
        let first = layout.tick_from(floor).min(layout.max_tick() + 1);
        let sequence_bits = layout.bits(Field::Sequence);
        Self {
            word: CachePadded::new(AtomicU64::new(first << sequence_bits)),
            ceiling: AtomicU64::new(0),
            lead: AtomicU64::new((floor - now).as_millis() as u64 / layout.unit().millis()),
            carried: AtomicU64::new(first),
            layout,
            worker,
            composer: layout.composer(worker),
            sequence_bits,
            max_tick: layout.max_tick(),
            catch_up: CATCH_UP_MILLIS / layout.unit().millis(),
            start_below: sequence_start.min((layout.max_sequence() + 1) / 16).min(1 << 31),
        }
    }

    /// Gives out the next id. `now` is the clock's current tick, see [`Layout::tick_at`]; a tick
    /// behind the last id is allowed.
    ///
    /// # Errors
    /// A [`Refusal`]; nothing was given out then.
    #[inline]
    pub fn take(&self, now: u64) -> Result<Id, Refusal> {
        self.reserve(now, 1).map(|(position, _)| self.composer.id(position))
    }

    /// Gives out the next ids: at least 1, at most `most`, as many as are available at tick `now`.
    ///
    /// # Errors
    /// A [`Refusal`]; nothing was given out then.
    pub fn take_run(&self, now: u64, most: u64) -> Result<IdRun, Refusal> {
        let (position, end) = self.reserve(now, most)?;
        Ok(IdRun::new(self.composer, position, end))
    }

    /// Reserves 1 to `most` positions, and returns them as a half-open range.
    #[inline]
    fn reserve(&self, now: u64, most: u64) -> Result<(u64, u64), Refusal> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let position = self.next_position(word, now)?;
            let tick = self.allow(position)?;
            let end = if most == 1 {
                position + 1
            } else {
                position.saturating_add(most).min(self.usable_end(tick, now))
            };
            let swapped =
                self.word.compare_exchange_weak(word, end, Ordering::AcqRel, Ordering::Acquire);
            match swapped {
                Ok(_) => {
                    let last = end >> self.sequence_bits;
                    // Relaxed: a stale value costs ids at most, see the field.
                    if last != tick {
                        self.carried.store(last, Ordering::Relaxed);
                    }
                    return Ok((position, end));
                }
                Err(changed) => word = changed,
            }
        }
    }

    /// The position after the last tick that is available now. `tick` itself is available.
    fn usable_end(&self, tick: u64, now: u64) -> u64 {
        let last = now.saturating_add(self.lead.load(Ordering::Relaxed)).min(self.max_tick);
        let last = last.min(self.ceiling.load(Ordering::Acquire) - 1).max(tick);
        (last + 1) << self.sequence_bits
    }

    /// How many ids could be taken at tick `now` without a wait, if nobody else took some: at least
    /// 1.
    ///
    /// # Errors
    /// The [`Refusal`] of [`Self::take`].
    ///
    /// ```
    /// use leaf_core::sequencer::Sequencer;
    /// use leaf_core::{Layout, UnixMillis, WorkerId};
    ///
    /// let now = UnixMillis::new(1_800_000_000_000);
    /// let sequencer = Sequencer::new(Layout::LEAF, WorkerId::new(7), now, now, 0);
    /// sequencer.raise(now + std::time::Duration::from_secs(1));
    /// let tick = Layout::LEAF.tick_at(now);
    /// sequencer.take_run(tick, 96)?;
    /// assert_eq!(sequencer.available(tick), Ok(4000));
    /// # Ok::<(), leaf_core::sequencer::Refusal>(())
    /// ```
    pub fn available(&self, now: u64) -> Result<u64, Refusal> {
        let position = self.next_position(self.word.load(Ordering::Acquire), now)?;
        let tick = self.allow(position)?;
        Ok(self.usable_end(tick, now).saturating_sub(position).max(1))
    }

    /// Returns the [`Refusal`] that [`Self::take`] would return at tick `now`, but takes nothing.
    /// `None` if `take` would give out an id now, or after a wait of at most `patience`.
    #[must_use]
    pub fn refuses(&self, now: u64, patience: Duration) -> Option<Refusal> {
        let patience = patience.as_millis() as u64 / self.layout.unit().millis();
        match self.next_position(self.word.load(Ordering::Acquire), now) {
            Err(Refusal::Wait(tick)) if tick <= now.saturating_add(patience) => None,
            Err(refusal) => Some(refusal),
            Ok(position) => self.allow(position).err(),
        }
    }

    /// The tick of `position`, if it lies within the layout and below the ceiling.
    #[inline]
    fn allow(&self, position: u64) -> Result<u64, Refusal> {
        let tick = position >> self.sequence_bits;
        if tick > self.max_tick {
            Err(Refusal::EndOfTime)
        } else if tick >= self.ceiling.load(Ordering::Acquire) {
            Err(Refusal::Ceiling)
        } else {
            Ok(tick)
        }
    }

    #[inline]
    fn next_position(&self, word: u64, now: u64) -> Result<u64, Refusal> {
        if word == CLOSED {
            return Err(Refusal::Closed);
        }
        // Beyond the last tick the shift would lose bits.
        let now = now.min(self.max_tick + 1);
        let tick = word >> self.sequence_bits;
        if tick >= now {
            let lead = self.lead.load(Ordering::Relaxed);
            return if tick > now + lead { Err(Refusal::Wait(tick - lead)) } else { Ok(word) };
        }
        if self.lead.load(Ordering::Relaxed) != 0 {
            self.lead.store(0, Ordering::Relaxed);
        }
        if now - tick < self.catch_up && tick == self.carried.load(Ordering::Relaxed) {
            return Ok(word);
        }
        Ok(now << self.sequence_bits | self.quiet_start(now))
    }

    /// Where the sequence of a tick that begins without a carry starts: spread evenly over
    /// `0..start_below`, so that `id % n` spreads over shards.
    fn quiet_start(&self, tick: u64) -> u64 {
        // Fibonacci hashing of tick and worker (Knuth, TAOCP 6.4): the upper bits are well mixed.
        let mixed = (tick ^ u64::from(self.worker.get()) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 32) * self.start_below) >> 32
    }

    /// Allows ids whose tick ends at or before `ceiling`. Returns whether this raised the ceiling;
    /// a lower ceiling is ignored. Call it only after `ceiling` is durable.
    pub fn raise(&self, ceiling: UnixMillis) -> bool {
        // Rounded down: a tick must not be used unless all of it lies below the ceiling.
        let tick = self.layout.tick_at(ceiling);
        self.ceiling.fetch_max(tick, Ordering::AcqRel) < tick
    }

    /// Skips all positions before `tick`, because ids with these timestamps are made elsewhere.
    /// `tick` may be above the ceiling.
    ///
    /// ```
    /// use leaf_core::sequencer::Sequencer;
    /// use leaf_core::{Layout, UnixMillis, WorkerId};
    ///
    /// let now = UnixMillis::new(1_800_000_000_000);
    /// let sequencer = Sequencer::new(Layout::LEAF, WorkerId::new(7), now, now, 0);
    /// let tick = Layout::LEAF.tick_at(now);
    /// sequencer.skip_to(tick + 5);
    /// sequencer.skip_to(tick + 3);
    /// assert_eq!(sequencer.position(), Some((tick + 5) << 12));
    /// ```
    pub fn skip_to(&self, tick: u64) {
        let position = tick.min(self.max_tick + 1) << self.sequence_bits;
        // A closed sequencer stays closed: `CLOSED` is above every position.
        self.word.fetch_max(position, Ordering::AcqRel);
    }

    /// The position after the last one that was given out: `tick << sequence bits | sequence`.
    /// `None` after [`Self::close`].
    ///
    /// ```
    /// use leaf_core::sequencer::Sequencer;
    /// use leaf_core::{Layout, UnixMillis, WorkerId};
    ///
    /// let now = UnixMillis::new(1_800_000_000_000);
    /// let sequencer = Sequencer::new(Layout::LEAF, WorkerId::new(7), now, now, 0);
    /// let tick = Layout::LEAF.tick_at(now);
    /// assert_eq!(sequencer.position(), Some(tick << 12));
    /// sequencer.close();
    /// assert_eq!(sequencer.position(), None);
    /// ```
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        Some(self.word.load(Ordering::Acquire)).filter(|word| *word != CLOSED)
    }

    /// The first instant above every id given out so far. After [`Self::close`] it is meaningless.
    #[must_use]
    pub fn next_free(&self) -> UnixMillis {
        self.after(self.word.load(Ordering::Acquire))
    }

    /// Closes the sequencer for good. Returns the first instant above every id given out, the
    /// lowest floor for the next holder of the worker id. `None` if the sequencer was closed
    /// before.
    pub fn close(&self) -> Option<UnixMillis> {
        let word = self.word.swap(CLOSED, Ordering::AcqRel);
        (word != CLOSED).then(|| self.after(word))
    }

    /// The worker id in every id.
    #[must_use]
    pub const fn worker(&self) -> WorkerId {
        self.worker
    }

    const fn after(&self, word: u64) -> UnixMillis {
        let unused_tick = word.div_ceil(1 << self.sequence_bits);
        self.layout.instant(unused_tick)
    }
}
