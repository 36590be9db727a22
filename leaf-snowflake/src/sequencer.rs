//! The hot path: one word per lease that says which (timestamp, sequence) is next.
//!
//! Invariants: the word only grows, so no position is given out twice and the ids of a lease
//! strictly increase; a position is given out only from the floor up to the ceiling as it was
//! confirmed *before*; once closed, nothing is given out.
//!
//! The word is `tick << sequence bits | sequence`. A sequence that runs over therefore carries into
//! the next tick by itself and starts there at 0. Where that tick lies in the future its taker must
//! wait; where the clock has meanwhile moved on by up to 10 ms, ticks that began by such a carry are
//! used up first, so that a caller who slept a little too long still gets every id of every tick.
//!
//! A plain addition in place of the compare-exchange was tried: it is no faster, alone or contended.
//!
//! This file reads no clock: the tick is handed in.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use leaf_core::{Composer, Field, Id, Layout, UnixMillis, WorkerId};

use crate::IdRun;
use crate::sync::{AtomicU64, Ordering};

/// The word after [`Sequencer::close`]: no layout reaches it, 63 bits are the most.
const CLOSED: u64 = u64::MAX;
/// How far behind the clock an exhausted sequencer goes on tick by tick.
const CATCH_UP_MILLIS: u64 = 10;

/// Worker id, floor, ceiling and word of one lease: one object, so that no caller can combine an old
/// worker id with a new lease's time.
#[derive(Debug)]
pub(crate) struct Sequencer {
    word: CachePadded<AtomicU64>,
    /// The first tick that may not be used.
    ceiling: AtomicU64,
    /// By how many ticks ids may run ahead of the clock: what the floor was ahead at the start,
    /// 0 once the clock has caught up.
    lead: AtomicU64,
    /// The last tick that began by a carry. It only decides which tick is next, never whether a
    /// position is free: a value that is late costs ids, not uniqueness.
    carried: AtomicU64,
    layout: Layout,
    worker: WorkerId,
    composer: Composer,
    sequence_bits: u32,
    max_tick: u64,
    catch_up: u64,
    /// A quiet tick's sequence starts below this.
    start_below: u64,
    /// The lease that came after this one was lost. A chain, because the first link is then found
    /// without a counted reference; it is as long as the process lost leases.
    successor: OnceLock<Arc<Sequencer>>,
}

/// Why no position was given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The next position becomes usable when the clock reaches this tick.
    Wait(u64),
    Ceiling,
    EndOfTime,
    Closed,
}

impl Sequencer {
    /// Starts at `floor` with a ceiling at or below it: nothing is given out before
    /// [`Self::raise`]. Ids may run ahead of the clock by as many whole ticks as the floor does: were
    /// it rounded up, two lives that start within one tick would share the next.
    pub(crate) fn new(
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
            successor: OnceLock::new(),
        }
    }

    /// Gives out the next id. `now` is the clock's tick.
    #[inline]
    pub(crate) fn take(&self, now: u64) -> Result<Id, Refusal> {
        self.reserve(now, 1).map(|(position, _)| self.composer.id(position))
    }

    /// Gives out the next ids: at least 1, at most `most`.
    pub(crate) fn take_run(&self, now: u64, most: u64) -> Result<IdRun, Refusal> {
        let (position, end) = self.reserve(now, most)?;
        Ok(IdRun::new(self.composer, position, end))
    }

    /// Takes positions, from the first up to, not including, the second.
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
                    if last != tick {
                        self.carried.store(last, Ordering::Relaxed);
                    }
                    return Ok((position, end));
                }
                Err(changed) => word = changed,
            }
        }
    }

    /// The end of the last tick that may be used now; `tick` may.
    fn usable_end(&self, tick: u64, now: u64) -> u64 {
        let last = now.saturating_add(self.lead.load(Ordering::Relaxed)).min(self.max_tick);
        let last = last.min(self.ceiling.load(Ordering::Acquire) - 1).max(tick);
        (last + 1) << self.sequence_bits
    }

    /// Why nothing can be given out at `now`, if so: what [`Self::take`] would answer, except that
    /// a tick that is at most `patience` away is no reason.
    pub(crate) fn refuses(&self, now: u64, patience: Duration) -> Option<Refusal> {
        let patience = patience.as_millis() as u64 / self.layout.unit().millis();
        match self.next_position(self.word.load(Ordering::Acquire), now) {
            Err(Refusal::Wait(tick)) if tick <= now.saturating_add(patience) => None,
            Err(refusal) => Some(refusal),
            Ok(position) => self.allow(position).err(),
        }
    }

    /// Whether `position` lies within the layout and below the ceiling; its tick.
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

    /// Where a quiet tick's sequence starts: spread evenly, so that `id % n` spreads shards.
    fn quiet_start(&self, tick: u64) -> u64 {
        // Fibonacci hashing of tick and worker (Knuth, TAOCP 6.4): the upper bits are well mixed.
        let mixed = (tick ^ u64::from(self.worker.get()) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 32) * self.start_below) >> 32
    }

    /// Allows ticks that start before `ceiling`. Call it only after the ceiling was confirmed
    /// durable. Never lowers it.
    pub(crate) fn raise(&self, ceiling: UnixMillis) {
        // Rounded down: a tick may be used only if it ends before the ceiling.
        self.ceiling.fetch_max(self.layout.tick_at(ceiling), Ordering::AcqRel);
    }

    /// The first instant above everything given out so far.
    pub(crate) fn next_free(&self) -> UnixMillis {
        self.after(self.word.load(Ordering::Acquire))
    }

    /// Ends the lease: nothing is given out any more. Returns the first instant above everything
    /// that was; `None` when it was closed before.
    pub(crate) fn close(&self) -> Option<UnixMillis> {
        let word = self.word.swap(CLOSED, Ordering::AcqRel);
        (word != CLOSED).then(|| self.after(word))
    }

    /// The lease after this one, once there is one.
    #[cold]
    pub(crate) fn successor(&self) -> Option<&Arc<Self>> {
        self.successor.get()
    }

    /// Lets callers go on with another lease. Called at most once, after [`Self::close`].
    pub(crate) fn succeed(&self, by: Arc<Self>) {
        // It is set once, by the one keeper.
        let _ = self.successor.set(by);
    }

    pub(crate) const fn worker(&self) -> WorkerId {
        self.worker
    }

    const fn after(&self, word: u64) -> UnixMillis {
        let unused_tick = word.div_ceil(1 << self.sequence_bits);
        self.layout.instant(unused_tick)
    }
}

#[cfg(all(test, not(leaf_loom)))]
mod tests {
    use super::*;
    use leaf_core::Unit;
    use proptest::prelude::*;

    const NOW: u64 = 1_000_000;

    fn instant(tick: u64) -> UnixMillis {
        Layout::LEAF.instant(tick)
    }

    fn sequencer(floor: u64, now: u64) -> Sequencer {
        let floor = instant(floor);
        let sequencer = Sequencer::new(Layout::LEAF, WorkerId::new(5), floor, instant(now), 100);
        sequencer.raise(UnixMillis::new(u64::MAX));
        sequencer
    }

    fn take(sequencer: &Sequencer, now: u64) -> (u64, u64) {
        let parts = Layout::LEAF.decode(sequencer.take(now).unwrap()).unwrap();
        assert_eq!(parts.worker.get(), 5);
        (Layout::LEAF.tick_at(parts.timestamp), parts.sequence)
    }

    #[test]
    fn a_quiet_millisecond_starts_below_the_bound_and_evenly() {
        let sequencer = sequencer(0, NOW);

        let starts: Vec<u64> =
            (0..10_000).map(|i| take(&sequencer, NOW + 50 * i)).map(|(_, start)| start).collect();

        assert!(starts.iter().all(|start| *start < 100));
        for residue in 0..10 {
            let share = starts.iter().filter(|start| *start % 10 == residue).count();
            assert!((900..1100).contains(&share), "{share} of 10,000 are {residue} mod 10");
        }
    }

    #[test]
    fn a_full_millisecond_has_to_wait_for_the_next() {
        let sequencer = sequencer(NOW, NOW);
        for sequence in 0..4096 {
            assert_eq!(take(&sequencer, NOW), (NOW, sequence));
        }

        assert_eq!(sequencer.take(NOW), Err(Refusal::Wait(NOW + 1)));
        assert_eq!(take(&sequencer, NOW + 1), (NOW + 1, 0));
    }

    #[test]
    fn skipped_milliseconds_are_used_after_exhaustion() {
        let sequencer = sequencer(NOW, NOW);
        for _ in 0..4096 {
            take(&sequencer, NOW);
        }

        assert_eq!(take(&sequencer, NOW + 10), (NOW + 1, 0), "10 ms behind: none is skipped");
        for _ in 1..4096 {
            take(&sequencer, NOW + 10);
        }
        assert_eq!(take(&sequencer, NOW + 13).0, NOW + 13, "11 ms behind: they are");
    }

    #[test]
    fn a_run_ends_where_the_usable_time_does() {
        let run = |sequencer: &Sequencer, now, most| {
            let ids: Vec<_> = sequencer.take_run(now, most).unwrap().collect();
            let at = |id: &Id| Layout::LEAF.decode(*id).unwrap();
            let (first, last) = (at(&ids[0]), at(ids.last().unwrap()));
            (ids.len(), Layout::LEAF.tick_at(first.timestamp), Layout::LEAF.tick_at(last.timestamp))
        };
        let busy = sequencer(NOW, NOW);
        assert_eq!(run(&busy, NOW, 100), (100, NOW, NOW));
        assert_eq!(run(&busy, NOW, 5000), (3996, NOW, NOW), "no further than this millisecond");
        assert_eq!(busy.take_run(NOW, 1).unwrap_err(), Refusal::Wait(NOW + 1));
        assert_eq!(run(&busy, NOW + 3, 10_000), (10_000, NOW + 1, NOW + 3), "over skipped ones");
        assert_eq!(run(&busy, NOW + 5, 1), (1, NOW + 3, NOW + 3), "the rest of a carried one");

        let near = Sequencer::new(Layout::LEAF, WorkerId::new(5), instant(NOW), instant(NOW), 100);
        near.raise(instant(NOW + 2));
        assert_eq!(run(&near, NOW + 1, u64::MAX), (8192, NOW, NOW + 1), "up to the ceiling");
        assert_eq!(near.take_run(NOW + 2, 5).unwrap_err(), Refusal::Ceiling);
        near.raise(instant(NOW + 4));
        assert_eq!(
            run(&near, NOW + 9, u64::MAX),
            (8192, NOW + 2, NOW + 3),
            "over skipped ones too"
        );

        let last = Layout::LEAF.max_tick();
        let ending = sequencer(last, last);
        assert_eq!(run(&ending, u64::MAX, u64::MAX), (4096, last, last), "up to the end of time");
    }

    #[test]
    fn a_clock_behind_the_last_id_changes_nothing() {
        let sequencer = sequencer(0, NOW);
        let first = take(&sequencer, NOW);

        assert_eq!(take(&sequencer, NOW), (NOW, first.1 + 1));
        assert_eq!(sequencer.take(NOW - 1), Err(Refusal::Wait(NOW)));
    }

    #[test]
    fn a_floor_ahead_of_the_clock_is_served_at_full_rate() {
        let sequencer = sequencer(NOW + 900, NOW);

        for millisecond in 0..5 {
            for sequence in 0..4096 {
                let expected = (NOW + 900 + millisecond, sequence);
                assert_eq!(take(&sequencer, NOW + millisecond), expected);
            }
            assert_eq!(
                sequencer.take(NOW + millisecond),
                Err(Refusal::Wait(NOW + millisecond + 1))
            );
        }
        assert_eq!(take(&sequencer, NOW + 2000).0, NOW + 2000, "the clock has caught up");
        for _ in 0..4095 {
            let _ = sequencer.take(NOW + 2000);
        }
        assert_eq!(sequencer.take(NOW + 2000), Err(Refusal::Wait(NOW + 2001)), "no lead is left");
    }

    #[test]
    fn nothing_at_or_above_the_ceiling_is_given_out() {
        let sequencer =
            Sequencer::new(Layout::LEAF, WorkerId::new(5), instant(NOW), instant(NOW), 100);
        assert_eq!(sequencer.take(NOW), Err(Refusal::Ceiling), "nothing is confirmed yet");

        sequencer.raise(instant(NOW + 20));
        assert!(sequencer.take(NOW + 19).is_ok());
        assert_eq!(sequencer.take(NOW + 20), Err(Refusal::Ceiling));

        sequencer.raise(instant(NOW + 1));
        assert!(sequencer.take(NOW + 19).is_ok(), "a ceiling is never lowered");
    }

    #[test]
    fn past_the_last_representable_instant_it_is_an_error() {
        let end = Layout::LEAF.max_tick();
        let sequencer = sequencer(end, end);

        for _ in 0..4096 {
            assert!(sequencer.take(end).unwrap().get() > 0);
        }
        assert_eq!(sequencer.take(end), Err(Refusal::Wait(end + 1)));
        assert_eq!(sequencer.take(end + 1), Err(Refusal::EndOfTime));
        assert_eq!(sequencer.take(u64::MAX), Err(Refusal::EndOfTime));
    }

    #[test]
    fn close_tells_the_first_unused_instant() {
        let unused = sequencer(NOW, NOW);
        assert_eq!(unused.close(), Some(instant(NOW)));

        let used = sequencer(NOW, NOW);
        take(&used, NOW + 50);
        assert_eq!(used.next_free(), instant(NOW + 51));
        assert_eq!(used.close(), Some(instant(NOW + 51)));
        assert_eq!(used.close(), None);
        assert_eq!(used.take(NOW + 60), Err(Refusal::Closed));
    }

    #[test]
    fn coarse_ticks_round_the_floor_up_and_the_ceiling_down() {
        let layout = Layout::new(
            [(Field::Timestamp, 31), (Field::Worker, 10), (Field::Sequence, 12)],
            Unit::Second,
            UnixMillis::EPOCH,
        )
        .unwrap();
        let sequencer = Sequencer::new(
            layout,
            WorkerId::new(0),
            UnixMillis::new(1_000_001),
            UnixMillis::new(1_000_000),
            0,
        );
        sequencer.raise(UnixMillis::new(1_002_999));

        let first = layout.decode(sequencer.take(1001).unwrap()).unwrap();
        assert_eq!(first.timestamp, UnixMillis::new(1_001_000));
        assert_eq!(sequencer.take(1002), Err(Refusal::Ceiling));
    }

    proptest! {
        /// The clock may do anything; ids strictly increase and stay within their slice.
        #[test]
        fn ids_increase_within_floor_and_ceiling(
            floor in NOW - 2000..NOW + 2000,
            ceiling in NOW..NOW + 3000,
            moves in prop::collection::vec((-1500i64..1500, 0usize..6000, 1u64..9000), 1..20),
        ) {
            let sequencer =
                Sequencer::new(Layout::LEAF, WorkerId::new(5), instant(floor), instant(NOW), 100);
            sequencer.raise(instant(ceiling));
            let mut last = None;
            for (offset, ids, most) in moves {
                let now = NOW.saturating_add_signed(offset);
                let singles = (0..ids).map_while(|_| sequencer.take(now).ok());
                let run = || sequencer.take_run(now, most).into_iter().flatten();
                for id in singles.chain(std::iter::once_with(run).flatten()) {
                    prop_assert!(Some(id) > last);
                    last = Some(id);
                    let at = Layout::LEAF.decode(id).unwrap().timestamp;
                    prop_assert!(instant(floor) <= at && at < instant(ceiling));
                    let lead = Duration::from_millis(floor.saturating_sub(NOW));
                    prop_assert!(at <= instant(now) + lead);
                }
            }
        }
    }
}

#[cfg(all(test, leaf_loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    const NOW: u64 = 1000;

    #[test]
    fn callers_never_share_an_id_and_close_is_final() {
        loom::model(|| {
            let floor = Layout::LEAF.instant(NOW);
            let sequencer = Sequencer::new(Layout::LEAF, WorkerId::new(5), floor, floor, 0);
            sequencer.raise(Layout::LEAF.instant(NOW + 10));
            let sequencer = loom::sync::Arc::new(sequencer);
            let takers: Vec<_> = [NOW, NOW + 1]
                .into_iter()
                .map(|now| {
                    let sequencer = loom::sync::Arc::clone(&sequencer);
                    thread::spawn(move || sequencer.take_run(now, now - NOW + 1).ok())
                })
                .collect();

            let next_free = sequencer.close().unwrap();
            let runs = takers.into_iter().filter_map(|taker| taker.join().unwrap());
            let ids: Vec<_> = runs.flatten().collect();

            for (nth, id) in ids.iter().enumerate() {
                assert!(!ids[..nth].contains(id), "{ids:?}");
                assert!(Layout::LEAF.decode(*id).unwrap().timestamp < next_free);
            }
        });
    }
}
