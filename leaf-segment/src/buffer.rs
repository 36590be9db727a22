//! The double buffer: two slots of ids and one cursor.
//!
//! Invariant: every id of a published range is handed out at most once; ids may be lost (a gap),
//! never repeated.
//!
//! The cursor packs (generation: 32, offset: 32). `fetch_add(1)` therefore yields in one step which
//! segment and which place in it a caller owns, and no two callers get the same pair:
//!
//! - A caller that finds a segment used up, and no next one, says so in a flag; callers look at the
//!   flag before they add. Each adds beyond the end at most once per segment, so the offset (lengths
//!   end at 2^31) never carries into the generation. The flag stands on a line of its own that is
//!   seldom written: looking at the cursor itself would fetch its contended line twice.
//! - The switch to the next segment is `fetch_max`, which is idempotent: a caller that was late
//!   cannot reset the offset of a segment that others already draw from.
//! - A slot is rewritten only for the generation after the cursor's. A caller that was suspended
//!   between its addition and its read notices that the slot's generation is no longer its own and
//!   drops the offset.
//! - When 32 bits of generations are used up, a fresh buffer is chained behind this one.
//!
//! This file knows neither stores nor tasks: ranges are handed in by [`DoubleBuffer::publish`],
//! whose caller is responsible for being alone.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use leaf_core::{Id, IdRange};

use crate::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

/// The last generation that holds ids.
const LAST: u32 = u32::MAX - 2;
/// The cursor's generation once the buffer is closed.
const CLOSED: u32 = u32::MAX - 1;
/// A slot's generation while it holds nothing readable.
const INVALID: u32 = u32::MAX;

/// Two slots and a cursor. Callers of [`Self::take`] need no coordination.
#[derive(Debug)]
pub(crate) struct DoubleBuffer {
    cursor: CachePadded<AtomicU64>,
    /// The current segment is used up and the next one not there, or the buffer is closed. A hint:
    /// whoever sees it set looks for itself.
    drained: CachePadded<AtomicBool>,
    slots: [CachePadded<Slot>; 2],
    /// Follows when the generations are used up.
    successor: OnceLock<Box<DoubleBuffer>>,
}

/// One segment. Readable only while its generation is the cursor's, before and after.
#[derive(Debug)]
struct Slot {
    /// (generation: 32, length: 32); the length is at most `i32::MAX`.
    stamp: AtomicU64,
    base: AtomicI64,
    /// The offset whose taker starts the prefetch of the next segment.
    prefetch_at: AtomicU32,
}

/// What was taken, one id or a range of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take<T> {
    /// It is the caller's own.
    Some(T),
    /// The same, and this caller is the one who must see to the next segment.
    SomeAndPrefetch(T),
    /// Both slots are used up.
    Empty,
    /// [`DoubleBuffer::close`] was called.
    Closed,
}

/// Why a segment yields nothing more.
enum End<'a> {
    Empty,
    Closed,
    /// The buffer that follows.
    Successor(&'a DoubleBuffer),
}

/// The most ids of one addition: offsets of callers that all add so much beyond the end still do not
/// carry into the generation.
pub(crate) const MOST_AT_ONCE: u32 = 1 << 16;

/// Where a buffer stood when it was closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClosedAt(Cursor);

#[derive(Debug, Clone, Copy)]
struct Cursor(u64);

impl Cursor {
    const fn start_of(generation: u32) -> Self {
        Self((generation as u64) << 32)
    }

    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    const fn offset(self) -> u32 {
        self.0 as u32
    }
}

impl DoubleBuffer {
    /// An empty buffer: the first [`Self::publish`] fills generation 1.
    pub(crate) fn new() -> Self {
        Self::starting_at(0)
    }

    fn starting_at(generation: u32) -> Self {
        Self {
            cursor: CachePadded::new(AtomicU64::new(Cursor::start_of(generation).0)),
            drained: CachePadded::new(AtomicBool::new(true)),
            slots: [CachePadded::new(Slot::unused()), CachePadded::new(Slot::unused())],
            successor: OnceLock::new(),
        }
    }

    /// Takes the next id. Wait-free but for retries when a segment ends under the caller.
    #[inline]
    pub(crate) fn take(&self) -> Take<Id> {
        loop {
            if !self.drained.load(Ordering::Relaxed) {
                let taken = Cursor(self.cursor.fetch_add(1, Ordering::AcqRel));
                if let Some(result) = self.slot(taken).read(taken) {
                    return result;
                }
            }
            match self.advance() {
                None => {}
                Some(End::Empty) => return Take::Empty,
                Some(End::Closed) => return Take::Closed,
                Some(End::Successor(next)) => return next.take(),
            }
        }
    }

    /// Takes the next ids of one segment: at least 1, at most `most` and [`MOST_AT_ONCE`].
    pub(crate) fn take_run(&self, most: u32) -> Take<IdRange> {
        let most = most.clamp(1, MOST_AT_ONCE);
        loop {
            if !self.drained.load(Ordering::Relaxed) {
                let taken = Cursor(self.cursor.fetch_add(u64::from(most), Ordering::AcqRel));
                if let Some(result) = self.slot(taken).read_run(taken, most) {
                    return result;
                }
            }
            match self.advance() {
                None => {}
                Some(End::Empty) => return Take::Empty,
                Some(End::Closed) => return Take::Closed,
                Some(End::Successor(next)) => return next.take_run(most),
            }
        }
    }

    /// Takes exactly `count` ids that follow each other, if the current segment has as many left.
    /// Where it has not it keeps them.
    pub(crate) fn take_contiguous(&self, count: u32) -> Option<Take<IdRange>> {
        loop {
            let now = self.now();
            let left = self.slot(now).length(now.generation()).saturating_sub(now.offset());
            if now.generation() == LAST && left == 0 {
                return self.successor.get()?.take_contiguous(count);
            }
            if left == 0 {
                match self.advance() {
                    None => continue,
                    Some(_) => return None,
                }
            }
            if left < count {
                return None;
            }
            let next = now.0 + u64::from(count);
            let taken =
                self.cursor.compare_exchange(now.0, next, Ordering::AcqRel, Ordering::Acquire);
            if let (Ok(_), Some(result)) = (taken, self.slot(now).read_run(now, count)) {
                return Some(result);
            }
        }
    }

    /// Called at the end of a segment: switches to the next if it is there. `None`: try again.
    #[cold]
    fn advance(&self) -> Option<End<'_>> {
        let now = self.now();
        if now.generation() == CLOSED {
            self.drained.store(true, Ordering::Relaxed);
            return Some(End::Closed);
        }
        if now.offset() < self.slot(now).length(now.generation()) {
            // Another caller has switched, or this one lost its offset.
            self.drained.store(false, Ordering::Relaxed);
            return None;
        }
        if now.generation() == LAST {
            self.drained.store(true, Ordering::Relaxed);
            return Some(self.successor.get().map_or(End::Empty, |next| End::Successor(next)));
        }
        let next = Cursor::start_of(now.generation() + 1);
        if self.slot(next).holds(next.generation()) {
            self.cursor.fetch_max(next.0, Ordering::AcqRel);
            self.drained.store(false, Ordering::Relaxed);
            return None;
        }
        self.drained.store(true, Ordering::Relaxed);
        // What was read at first may be old: then another caller has switched meanwhile.
        (self.now().generation() == now.generation()).then_some(End::Empty)
    }

    /// Makes `range` the next segment. The caller must be the only one to publish.
    ///
    /// Returns `false` when there is no room or the buffer is closed: the range is then lost.
    pub(crate) fn publish(&self, range: IdRange) -> bool {
        let now = self.now();
        match now.generation() {
            CLOSED => false,
            LAST => self.successor.get_or_init(|| Box::new(Self::new())).publish(range),
            generation => {
                let next = Cursor::start_of(generation + 1);
                self.slot(next).fill(next.generation(), range)
            }
        }
    }

    /// Whether the next segment should be fetched: it is not there, and of the current one less
    /// than 90 % is left.
    pub(crate) fn prefetch_due(&self) -> bool {
        let now = self.now();
        !self.next_is_ready()
            && (now.generation() == LAST
                || now.offset() > self.slot(now).prefetch_at.load(Ordering::Relaxed))
    }

    /// Whether [`Self::publish`] would find no room.
    pub(crate) fn next_is_ready(&self) -> bool {
        let now = self.now();
        match now.generation() {
            CLOSED => true,
            LAST => self.successor.get().is_some_and(|next| next.next_is_ready()),
            generation => {
                let next = Cursor::start_of(generation + 1);
                self.slot(next).holds(next.generation())
            }
        }
    }

    /// The length of the current segment; 0 before the first.
    pub(crate) fn segment_length(&self) -> u32 {
        let now = self.now();
        match (now.generation(), self.successor.get()) {
            (LAST, Some(next)) => next.segment_length(),
            (generation, _) => self.slot(now).length(generation),
        }
    }

    /// Whether an id can be taken without waiting.
    pub(crate) fn has_stock(&self) -> bool {
        let now = self.now();
        match now.generation() {
            CLOSED => false,
            LAST if self.successor.get().is_some_and(|next| next.has_stock()) => true,
            generation => {
                let next = Cursor::start_of(generation.saturating_add(1));
                now.offset() < self.slot(now).length(generation)
                    || self.slot(next).holds(next.generation())
            }
        }
    }

    /// Ends the buffer: what is left in it is never handed out. Returns where it stood; `None` when
    /// it was closed before, or the generations are used up.
    pub(crate) fn close(&self) -> Option<ClosedAt> {
        // The offset lies above any length: also a caller that has not seen the flag gets nothing.
        self.drained.store(true, Ordering::Relaxed);
        let before =
            Cursor(self.cursor.swap(Cursor::start_of(CLOSED).0 | 1 << 31, Ordering::AcqRel));
        if let Some(next) = self.successor.get() {
            next.close();
        }
        (before.generation() < LAST).then_some(ClosedAt(before))
    }

    /// The ids up to the end of the last segment that were never handed out and follow each other.
    /// To be asked when nobody publishes any more.
    pub(crate) fn unused(&self, ClosedAt(at): ClosedAt) -> Option<IdRange> {
        let left = self.slot(at).from(at);
        let next = Cursor::start_of(at.generation() + 1);
        match (left, self.slot(next).from(next)) {
            (Some(left), Some(next)) if left.end() == next.start() => {
                IdRange::new(left.start(), next.end())
            }
            (left, next) => next.or(left),
        }
    }

    fn now(&self) -> Cursor {
        Cursor(self.cursor.load(Ordering::Acquire))
    }

    fn slot(&self, cursor: Cursor) -> &Slot {
        &self.slots[(cursor.generation() & 1) as usize]
    }
}

impl Slot {
    fn unused() -> Self {
        Self {
            stamp: AtomicU64::new(Cursor::start_of(INVALID).0),
            base: AtomicI64::new(0),
            prefetch_at: AtomicU32::new(0),
        }
    }

    /// Reads the id at the cursor's offset; `None` when the offset is lost.
    #[inline]
    fn read(&self, taken: Cursor) -> Option<Take<Id>> {
        let (base, _, prefetch_at) = self.fill_of(taken)?;
        let id = Id::new(base + i64::from(taken.offset()))?;
        Some(if taken.offset() == prefetch_at { Take::SomeAndPrefetch(id) } else { Take::Some(id) })
    }

    /// Reads up to `most` ids from the cursor's offset on; `None` when the offset is lost.
    fn read_run(&self, taken: Cursor, most: u32) -> Option<Take<IdRange>> {
        let (base, length, prefetch_at) = self.fill_of(taken)?;
        let end = taken.offset().saturating_add(most).min(length);
        let range = IdRange::new(base + i64::from(taken.offset()), base + i64::from(end))?;
        let prefetch = (taken.offset()..end).contains(&prefetch_at);
        Some(if prefetch { Take::SomeAndPrefetch(range) } else { Take::Some(range) })
    }

    /// Base, length and prefetch offset of the segment that the cursor's offset lies in.
    #[inline]
    fn fill_of(&self, taken: Cursor) -> Option<(i64, u32, u32)> {
        let base = self.base.load(Ordering::Relaxed);
        let prefetch_at = self.prefetch_at.load(Ordering::Relaxed);
        // Pairs with the release fence in `fill`: whoever read any of a later filling above sees
        // its generation (or INVALID) below.
        fence(Ordering::Acquire);
        let stamp = Cursor(self.stamp.load(Ordering::Relaxed));
        let own = stamp.generation() == taken.generation() && taken.offset() < stamp.offset();
        own.then(|| (base, stamp.offset(), prefetch_at))
    }

    /// Whether it holds the segment of this generation; then all of it is visible.
    fn holds(&self, generation: u32) -> bool {
        Cursor(self.stamp.load(Ordering::Acquire)).generation() == generation
    }

    /// How many ids the segment of this generation has; 0 when the slot holds another.
    fn length(&self, generation: u32) -> u32 {
        let stamp = Cursor(self.stamp.load(Ordering::Relaxed));
        if stamp.generation() == generation { stamp.offset() } else { 0 }
    }

    /// The ids from the cursor's offset on; `None` when there are none.
    fn from(&self, at: Cursor) -> Option<IdRange> {
        let (base, length, _) = self.fill_of(at)?;
        IdRange::new(base + i64::from(at.offset()), base + i64::from(length))
    }

    fn fill(&self, generation: u32, range: IdRange) -> bool {
        let length = range.len();
        if length > i32::MAX as u64 || self.holds(generation) {
            return false;
        }
        self.stamp.store(Cursor::start_of(INVALID).0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.base.store(range.start(), Ordering::Relaxed);
        self.prefetch_at.store((length / 10) as u32, Ordering::Relaxed);
        self.stamp.store(Cursor::start_of(generation).0 | length, Ordering::Release);
        true
    }
}

#[cfg(all(test, not(leaf_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn range(start: i64, end: i64) -> IdRange {
        IdRange::new(start, end).unwrap()
    }

    fn drain(buffer: &DoubleBuffer) -> Vec<i64> {
        std::iter::from_fn(|| match buffer.take() {
            Take::Some(id) | Take::SomeAndPrefetch(id) => Some(id.get()),
            Take::Empty | Take::Closed => None,
        })
        .collect()
    }

    #[test]
    fn serves_two_segments_in_order_then_is_empty() {
        let buffer = DoubleBuffer::new();
        assert_eq!(buffer.take(), Take::Empty);

        assert!(buffer.publish(range(1, 4)));
        assert_eq!(drain(&buffer), [1, 2, 3]);
        assert!(buffer.publish(range(10, 12)));

        assert_eq!(drain(&buffer), [10, 11]);
        assert_eq!(buffer.take(), Take::Empty);
    }

    #[test]
    fn holds_one_segment_ahead_and_no_more() {
        let buffer = DoubleBuffer::new();
        buffer.publish(range(1, 4));
        buffer.take();

        assert!(buffer.publish(range(10, 12)));
        assert!(!buffer.publish(range(20, 22)), "both slots are full");

        assert_eq!(drain(&buffer), [2, 3, 10, 11]);
    }

    #[test]
    fn a_run_ends_with_its_segment() {
        let buffer = DoubleBuffer::new();
        buffer.publish(range(1, 101));
        assert_eq!(buffer.take_run(10), Take::Some(range(1, 11)));
        assert_eq!(buffer.take_run(20), Take::SomeAndPrefetch(range(11, 31)), "the tenth");
        buffer.publish(range(500, 600));

        assert_eq!(buffer.take_run(u32::MAX), Take::Some(range(31, 101)));
        assert_eq!(buffer.take_run(0), Take::Some(range(500, 501)), "at least 1");
        assert_eq!(buffer.take_run(1000), Take::SomeAndPrefetch(range(501, 600)));
        assert_eq!(buffer.take_run(1000), Take::Empty);
        buffer.close();
        assert_eq!(buffer.take_run(1), Take::Closed);
    }

    #[test]
    fn ids_that_follow_each_other_leave_a_tail_that_is_too_short() {
        let buffer = DoubleBuffer::new();
        assert_eq!(buffer.take_contiguous(1), None);
        buffer.publish(range(1, 11));
        assert_eq!(buffer.take_contiguous(8), Some(Take::SomeAndPrefetch(range(1, 9))));
        buffer.publish(range(50, 60));

        assert_eq!(buffer.take_contiguous(3), None, "2 are left");
        assert_eq!(buffer.take(), Take::Some(Id::new(9).unwrap()));
        assert_eq!(buffer.take(), Take::Some(Id::new(10).unwrap()));
        assert_eq!(buffer.take_contiguous(3), Some(Take::SomeAndPrefetch(range(50, 53))));
        buffer.close();
        assert_eq!(buffer.take_contiguous(1), None);
    }

    #[test]
    fn runs_beyond_the_last_generation_come_from_the_fresh_buffer() {
        let buffer = DoubleBuffer::starting_at(LAST - 1);
        buffer.publish(range(1, 4));
        assert_eq!(buffer.take_run(9), Take::SomeAndPrefetch(range(1, 4)));
        buffer.publish(range(10, 14));

        assert_eq!(buffer.take_run(2), Take::SomeAndPrefetch(range(10, 12)));
        assert_eq!(buffer.take_contiguous(2), Some(Take::Some(range(12, 14))));
        assert_eq!(buffer.take_contiguous(1), None);
    }

    /// Threads that take single ids, runs and contiguous ranges while segments are published.
    #[test]
    fn whatever_is_taken_is_taken_once() {
        const SEGMENTS: i64 = 2000;
        const LENGTH: i64 = 257;
        let buffer = DoubleBuffer::new();
        let done = AtomicBool::new(false);
        let taker = |seed: u64| {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut taken = Vec::new();
            loop {
                let last = done.load(Ordering::Acquire);
                let found = match random.u32(..3) {
                    0 => match buffer.take() {
                        Take::Some(id) | Take::SomeAndPrefetch(id) => {
                            IdRange::new(id.get(), id.get() + 1)
                        }
                        _ => None,
                    },
                    1 => match buffer.take_run(random.u32(1..100)) {
                        Take::Some(run) | Take::SomeAndPrefetch(run) => Some(run),
                        _ => None,
                    },
                    _ => match buffer.take_contiguous(random.u32(1..20)) {
                        Some(Take::Some(run) | Take::SomeAndPrefetch(run)) => Some(run),
                        _ => None,
                    },
                };
                match found {
                    Some(range) => taken.extend(range.iter().map(Id::get)),
                    None if last && !buffer.has_stock() => return taken,
                    None => std::thread::yield_now(),
                }
            }
        };
        let mut ids: Vec<i64> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..3).map(|seed| scope.spawn(move || taker(seed))).collect();
            for segment in 0..SEGMENTS {
                while !buffer.publish(range(segment * LENGTH, (segment + 1) * LENGTH)) {
                    std::thread::yield_now();
                }
            }
            done.store(true, Ordering::Release);
            takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
        });

        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "repeated");
        assert!(ids.iter().all(|id| (0..SEGMENTS * LENGTH).contains(id)));
        // What a suspended caller loses is a gap.
        assert!(all as i64 > SEGMENTS * LENGTH * 9 / 10, "{all} ids");
    }

    #[test]
    fn asks_for_the_next_segment_once_a_tenth_is_used() {
        for (length, first_over_a_tenth) in [(1, 1), (9, 1), (10, 2), (100, 11), (1005, 101)] {
            let buffer = DoubleBuffer::new();
            buffer.publish(range(0, length));

            let asked: Vec<usize> = (1..=length as usize)
                .filter(|_| matches!(buffer.take(), Take::SomeAndPrefetch(_)))
                .collect();

            assert_eq!(asked.len(), 1);
            let buffer = DoubleBuffer::new();
            buffer.publish(range(0, length));
            let when = (1..).find(|_| matches!(buffer.take(), Take::SomeAndPrefetch(_)));
            assert_eq!(when, Some(first_over_a_tenth), "segment of {length}");
            assert!(buffer.prefetch_due());
        }
    }

    /// Loom does not reach this schedule in reasonable time, so it is written out.
    #[test]
    fn a_caller_suspended_before_its_read_loses_the_offset() {
        let buffer = DoubleBuffer::new();
        buffer.publish(range(10, 12));
        buffer.take();

        let suspended = Cursor(buffer.cursor.fetch_add(1, Ordering::AcqRel));
        buffer.publish(range(20, 21));
        assert_eq!(drain(&buffer), [20]);
        buffer.publish(range(30, 32));
        assert_eq!(drain(&buffer), [30, 31]);

        assert_eq!(buffer.slot(suspended).read(suspended), None, "31 was handed out already");
    }

    /// Else callers that ask an empty buffer for long enough would carry into the generation.
    #[test]
    fn nobody_adds_to_a_segment_that_is_used_up() {
        let buffer = DoubleBuffer::new();
        buffer.publish(range(10, 12));
        drain(&buffer);
        for _ in 0..1000 {
            assert_eq!(buffer.take(), Take::Empty);
        }
        assert!(buffer.now().offset() <= 3, "{} for 2 ids", buffer.now().offset());

        buffer.publish(range(20, 22));
        assert_eq!(drain(&buffer), [20, 21]);
        buffer.close();
        let closed = buffer.now().0;
        for _ in 0..1000 {
            assert_eq!(buffer.take(), Take::Closed);
        }
        assert_eq!(buffer.now().0, closed);
    }

    #[test]
    fn what_is_left_at_the_close_is_told_if_it_reaches_the_end() {
        let left = |segments: &[IdRange], taken: u32| {
            let buffer = DoubleBuffer::new();
            assert!(segments.iter().all(|segment| buffer.publish(*segment)));
            if taken > 0 {
                buffer.take_run(taken);
            }
            let unused = buffer.close().and_then(|at| buffer.unused(at));
            assert!(buffer.close().is_none(), "once");
            unused
        };
        assert_eq!(left(&[], 0), None);
        assert_eq!(left(&[range(1, 11)], 0), Some(range(1, 11)), "fetched and not begun");
        assert_eq!(left(&[range(1, 11)], 4), Some(range(5, 11)));
        assert_eq!(left(&[range(1, 11)], 10), None);
    }

    #[test]
    fn what_is_left_spans_both_segments_only_where_they_touch() {
        for (second, unused) in [(range(11, 21), range(5, 21)), (range(50, 60), range(50, 60))] {
            let buffer = DoubleBuffer::new();
            buffer.publish(range(1, 11));
            buffer.take_run(4);
            buffer.publish(second);
            assert_eq!(buffer.close().and_then(|at| buffer.unused(at)), Some(unused));
        }
    }

    #[test]
    fn a_closed_buffer_gives_nothing_and_takes_nothing() {
        let buffer = DoubleBuffer::new();
        buffer.publish(range(1, 4));
        buffer.take();

        buffer.close();

        assert_eq!(buffer.take(), Take::Closed);
        assert!(!buffer.publish(range(10, 12)));
        assert!(!buffer.has_stock() && !buffer.prefetch_due());
    }

    #[test]
    fn a_fresh_buffer_follows_the_last_generation() {
        let buffer = DoubleBuffer::starting_at(LAST - 1);
        let mut expected = Vec::new();
        let mut seen = Vec::new();

        for start in [10, 20, 30, 40] {
            assert!(buffer.publish(range(start, start + 3)));
            assert!(buffer.has_stock());
            expected.extend(start..start + 3);
            seen.extend(drain(&buffer));
        }

        assert_eq!(seen, expected);
        buffer.close();
        assert_eq!(buffer.take(), Take::Closed);
    }

    #[test]
    fn threads_on_one_buffer_never_share_an_id() {
        const SEGMENTS: i64 = 500;
        const LENGTH: i64 = 50;
        let buffer = Arc::new(DoubleBuffer::new());
        let done = Arc::new(AtomicBool::new(false));
        let takers: Vec<_> = (0..4)
            .map(|_| {
                let (buffer, done) = (Arc::clone(&buffer), Arc::clone(&done));
                std::thread::spawn(move || {
                    let mut ids = Vec::new();
                    loop {
                        let last_round = done.load(std::sync::atomic::Ordering::SeqCst);
                        ids.extend(drain(&buffer));
                        if last_round {
                            return ids;
                        }
                    }
                })
            })
            .collect();

        for segment in 0..SEGMENTS {
            while !buffer.publish(range(segment * LENGTH, (segment + 1) * LENGTH)) {
                std::thread::yield_now();
            }
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        let mut ids: Vec<i64> = takers.into_iter().flat_map(|t| t.join().unwrap()).collect();

        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "an id was handed out twice");
        assert!(all as i64 > SEGMENTS * LENGTH * 9 / 10, "most ids arrive: {all}");
    }

    proptest! {
        /// The model is a queue of two ranges; a fresh buffer holds a first one that is empty.
        #[test]
        fn behaves_like_a_queue_of_two_segments(
            steps in prop::collection::vec(prop_oneof![
                3 => Just(None),
                1 => (1i64..20).prop_map(Some),
            ], 1..200),
        ) {
            let buffer = DoubleBuffer::new();
            let mut queue: Vec<Vec<i64>> = vec![Vec::new()];
            let mut next_start = 0;
            for step in steps {
                match step {
                    Some(length) => {
                        let fits = queue.len() < 2;
                        prop_assert_eq!(buffer.publish(range(next_start, next_start + length)), fits);
                        if fits {
                            queue.push((next_start..next_start + length).rev().collect());
                        }
                        next_start += length;
                    }
                    None => {
                        // The switch happens when somebody finds the current segment used up.
                        if queue.len() == 2 && queue[0].is_empty() {
                            queue.remove(0);
                        }
                        let expected = queue.first_mut().and_then(Vec::pop);
                        let taken = match buffer.take() {
                            Take::Some(id) | Take::SomeAndPrefetch(id) => Some(id.get()),
                            _ => None,
                        };
                        prop_assert_eq!(taken, expected);
                    }
                }
            }
        }
    }
}

#[cfg(all(test, leaf_loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn take(buffer: &DoubleBuffer) -> Option<i64> {
        match buffer.take() {
            Take::Some(id) | Take::SomeAndPrefetch(id) => Some(id.get()),
            Take::Empty | Take::Closed => None,
        }
    }

    /// A taker beside one that uses its slot up and sees it filled again.
    #[test]
    fn a_refilled_slot_never_repeats_an_id() {
        loom::model(|| {
            let buffer = Arc::new(DoubleBuffer::new());
            buffer.publish(IdRange::new(10, 12).unwrap());
            let mut ids = vec![take(&buffer)];
            buffer.publish(IdRange::new(20, 21).unwrap());
            let taker = {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || take(&buffer))
            };

            ids.push(take(&buffer));
            buffer.publish(IdRange::new(30, 32).unwrap());
            ids.extend([take(&buffer), take(&buffer)]);
            ids.push(taker.join().unwrap());

            let mut ids: Vec<i64> = ids.into_iter().flatten().collect();
            ids.sort_unstable();
            assert!(ids.iter().all(|id| [10, 11, 20, 30, 31].contains(id)), "foreign: {ids:?}");
            assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "repeated: {ids:?}");
        });
    }

    /// A run and a contiguous range beside each other, over the end of a segment.
    #[test]
    fn runs_never_overlap() {
        loom::model(|| {
            let buffer = Arc::new(DoubleBuffer::new());
            buffer.publish(IdRange::new(10, 14).unwrap());
            buffer.publish(IdRange::new(20, 21).unwrap());
            let taker = {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || match buffer.take_contiguous(2) {
                    Some(Take::Some(run) | Take::SomeAndPrefetch(run)) => Some(run),
                    _ => None,
                })
            };

            let mut runs = Vec::new();
            for _ in 0..2 {
                if let Take::Some(run) | Take::SomeAndPrefetch(run) = buffer.take_run(3) {
                    runs.push(run);
                }
            }
            runs.extend(taker.join().unwrap());

            for (nth, run) in runs.iter().enumerate() {
                assert!(runs[..nth].iter().all(|other| !run.overlaps(*other)), "{runs:?}");
                assert!(run.start() >= 10 && (run.end() <= 14 || run.start() == 20), "{runs:?}");
            }
        });
    }

    /// Two takers that both find the segment used up and switch.
    #[test]
    fn a_late_switch_resets_nothing() {
        loom::model(|| {
            let buffer = Arc::new(DoubleBuffer::new());
            buffer.publish(IdRange::new(10, 12).unwrap());
            let taker = {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || [take(&buffer), take(&buffer)])
            };

            let mut ids = vec![take(&buffer), take(&buffer)];
            ids.extend(taker.join().unwrap());

            let mut ids: Vec<i64> = ids.into_iter().flatten().collect();
            ids.sort_unstable();
            assert_eq!(ids, [10, 11]);
        });
    }

    #[test]
    fn nothing_is_taken_after_close() {
        loom::model(|| {
            let buffer = Arc::new(DoubleBuffer::new());
            buffer.publish(IdRange::new(10, 12).unwrap());
            let taker = {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || [take(&buffer), take(&buffer)])
            };

            buffer.close();
            assert_eq!(buffer.take(), Take::Closed);

            let [first, second] = taker.join().unwrap();
            assert!(first.is_none() || first == Some(10));
            assert!(second.is_none() || second == Some(11));
        });
    }
}
