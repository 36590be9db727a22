//! The double buffer: two slots of ids and one cursor.
//!
//! Invariant: every id of a published range is handed out at most once; ids may be lost (a gap),
//! never repeated.
//!
//! The cursor packs (generation: 32, offset: 32). `fetch_add(1)` therefore yields in one step which
//! segment and which place in it a caller owns, and no two callers get the same pair:
//!
//! - A caller that finds a segment used up, and no next one, sets a flag; callers read the flag
//!   before they add. So each caller adds beyond the end at most once per segment, and the offset
//!   (lengths are below 2^31) never carries into the generation. The flag is on a seldom written
//!   cache line, apart from the cursor: reading the cursor first would fetch its contended line
//!   twice.
//! - The switch to the next segment is `fetch_max`, which is idempotent: a caller that was late
//!   cannot reset the offset of a segment that others already draw from.
//! - A slot is rewritten only for the generation after the cursor's. A caller that was suspended
//!   between its addition and its read notices that the slot's generation is no longer its own and
//!   drops the offset.
//! - When the 32 bits of generations are used up, the buffer accepts no more segments: the tag then
//!   goes on with a new handle, which has a new buffer.
//!
//! This file has nothing to do with stores or tasks: ranges come in by [`DoubleBuffer::publish`],
//! and its caller must make sure that nobody else calls it at the same time.

mod slot;

#[cfg(all(test, leaf_loom))]
mod loom_tests;
#[cfg(all(test, not(leaf_loom)))]
mod tests;

use std::hint::black_box;

use leaf_core::{Id, IdRange};

use self::slot::{Cursor, Slot};
use crate::engine::sync::{AtomicBool, AtomicU64, Ordering};

/// The last generation that holds ids.
const LAST: u32 = u32::MAX - 2;
/// The cursor's generation once the buffer is closed.
const CLOSED: u32 = u32::MAX - 1;

/// Puts a value on its own cache line. `crossbeam_utils::CachePadded` takes 128 bytes, since
/// processors prefetch lines in pairs. That is welcome here: a caller that needs one of the two
/// lines needs the other, too, and a process may have 100,000 buffers.
#[derive(Debug)]
#[repr(align(64))]
struct OwnLine<T>(T);

/// Two slots and a cursor. Callers of [`Self::take`] need no coordination.
#[derive(Debug)]
pub(crate) struct DoubleBuffer {
    cursor: OwnLine<AtomicU64>,
    segments: OwnLine<Segments>,
}

/// The fields that every caller reads and few write, on one cache line. So a caller whose tag (one
/// of thousands) is not in the processor's cache fetches only this line and the cursor's.
#[derive(Debug)]
struct Segments {
    /// Whether the current segment is used up and there is no next one, or the buffer is closed.
    /// Only a hint: a caller that finds it set checks the cursor and the slots.
    drained: AtomicBool,
    slots: [Slot; 2],
}

/// The result of a take; `T` is one id or a range of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take<T> {
    /// The id belongs to the caller.
    Some(T),
    /// The id belongs to the caller, and this caller must start the fetch of the next segment.
    SomeAndPrefetch(T),
    /// Both slots are used up.
    Empty,
    /// [`DoubleBuffer::close`] was called.
    Closed,
}

/// Why a segment yields nothing more.
enum End {
    Empty,
    Closed,
}

/// The most ids that one addition takes: so small that the offset does not carry into the
/// generation even if all callers add as much beyond the end.
pub(crate) const MOST_AT_ONCE: u32 = 1 << 16;

/// The cursor of a buffer at the moment when it was closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClosedAt(Cursor);

/// The state of a buffer, for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) slots: [Option<IdRange>; 2],
    pub(crate) current: usize,
    pub(crate) position: Option<i64>,
}

impl DoubleBuffer {
    /// An empty buffer: the first [`Self::publish`] fills generation 1.
    pub(crate) fn new() -> Self {
        Self {
            cursor: OwnLine(AtomicU64::new(Cursor::start_of(0).0)),
            segments: OwnLine(Segments {
                drained: AtomicBool::new(true),
                slots: [Slot::unused(), Slot::unused()],
            }),
        }
    }

    /// Takes the next id. Wait-free except for retries when the segment ends during the call.
    #[inline]
    pub(crate) fn take(&self) -> Take<Id> {
        loop {
            if !self.segments.0.drained.load(Ordering::Relaxed) {
                let taken = Cursor(self.cursor.0.fetch_add(1, Ordering::AcqRel));
                if let Some(result) = Slot::read(&self.segments.0.slots, taken) {
                    return result;
                }
            }
            match self.advance() {
                None => {}
                Some(End::Empty) => return Take::Empty,
                Some(End::Closed) => return Take::Closed,
            }
        }
    }

    /// Takes the next ids of one segment: at least 1, at most `most` and [`MOST_AT_ONCE`].
    pub(crate) fn take_run(&self, most: u32) -> Take<IdRange> {
        let most = most.clamp(1, MOST_AT_ONCE);
        loop {
            if !self.segments.0.drained.load(Ordering::Relaxed) {
                let taken = Cursor(self.cursor.0.fetch_add(u64::from(most), Ordering::AcqRel));
                if let Some(result) = self.slot(taken).read_run(taken, most) {
                    return result;
                }
            }
            match self.advance() {
                None => {}
                Some(End::Empty) => return Take::Empty,
                Some(End::Closed) => return Take::Closed,
            }
        }
    }

    /// Takes exactly `count` consecutive ids if the current segment has that many left. Otherwise
    /// leaves them there and returns `None`.
    pub(crate) fn take_contiguous(&self, count: u32) -> Option<Take<IdRange>> {
        loop {
            let now = self.now();
            let left = self.slot(now).length(now.generation()).saturating_sub(now.offset());
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
                self.cursor.0.compare_exchange(now.0, next, Ordering::AcqRel, Ordering::Acquire);
            if let (Ok(_), Some(result)) = (taken, self.slot(now).read_run(now, count)) {
                return Some(result);
            }
        }
    }

    /// Switches to the next segment if it is there; called at the end of a segment. `None`: the
    /// caller tries again.
    #[cold]
    fn advance(&self) -> Option<End> {
        let now = self.now();
        if now.generation() == CLOSED {
            self.segments.0.drained.store(true, Ordering::Relaxed);
            return Some(End::Closed);
        }
        if now.offset() < self.slot(now).length(now.generation()) {
            // Another caller has switched, or this one lost its offset.
            self.segments.0.drained.store(false, Ordering::Relaxed);
            return None;
        }
        let next = Cursor::start_of(now.generation() + 1);
        if self.slot(next).holds(next.generation()) {
            self.cursor.0.fetch_max(next.0, Ordering::AcqRel);
            self.segments.0.drained.store(false, Ordering::Relaxed);
            return None;
        }
        self.segments.0.drained.store(true, Ordering::Relaxed);
        // What was read at first may be old: then another caller has switched meanwhile.
        (self.now().generation() == now.generation()).then_some(End::Empty)
    }

    /// Makes `range` the next segment. The caller must be the only one to publish.
    ///
    /// Returns `false` when there is no room, the buffer is closed or its generations are used up:
    /// the range is then lost.
    pub(crate) fn publish(&self, range: IdRange) -> bool {
        let now = self.now();
        match now.generation() {
            CLOSED | LAST => false,
            generation => {
                let next = Cursor::start_of(generation + 1);
                self.slot(next).fill(next.generation(), range)
            }
        }
    }

    /// Whether the next segment should be fetched: it is missing, and more than a tenth of the
    /// current one is used.
    pub(crate) fn prefetch_due(&self) -> bool {
        let now = self.now();
        !self.next_is_ready() && now.offset() > self.slot(now).prefetch_at()
    }

    /// True if the next segment is there already, or the buffer is closed: [`Self::publish`] would
    /// refuse a range.
    pub(crate) fn next_is_ready(&self) -> bool {
        let now = self.now();
        match now.generation() {
            CLOSED => true,
            generation => {
                let next = Cursor::start_of(generation + 1);
                self.slot(next).holds(next.generation())
            }
        }
    }

    /// The length of the current segment; 0 before the first.
    pub(crate) fn segment_length(&self) -> u32 {
        let now = self.now();
        self.slot(now).length(now.generation())
    }

    /// How many ids can be taken without waiting.
    pub(crate) fn stock(&self) -> u64 {
        let now = self.now();
        let generation = now.generation();
        let left = u64::from(self.slot(now).length(generation).saturating_sub(now.offset()));
        match generation {
            CLOSED => 0,
            generation => {
                let next = Cursor::start_of(generation + 1);
                left + u64::from(self.slot(next).length(next.generation()))
            }
        }
    }

    /// Returns the ranges in the slots and the position of the cursor, for operators.
    pub(crate) fn view(&self) -> View {
        let now = self.now();
        View {
            slots: [self.segments.0.slots[0].range(), self.segments.0.slots[1].range()],
            current: (now.generation() & 1) as usize,
            position: self.slot(now).from(now).map(IdRange::start),
        }
    }

    /// The last id that was taken; `None` if there is none. Not exact while the segment changes:
    /// then it may be an id that was taken shortly before, or `None`.
    pub(crate) fn last_taken(&self) -> Option<i64> {
        let now = self.now();
        let current = self.slot(now).from(Cursor::start_of(now.generation()));
        match current.filter(|_| now.offset() > 0) {
            Some(range) => Some(range.end().min(range.start() + i64::from(now.offset())) - 1),
            // Nothing was taken of this segment. The one before is in the other slot, unless the
            // next one has replaced it.
            None => {
                let before = Cursor::start_of(now.generation().checked_sub(1)?);
                self.slot(before).from(before).map(|range| range.end() - 1)
            }
        }
    }

    /// Closes the buffer: the ids left in it are never handed out. Returns the cursor at this
    /// moment; `None` if the buffer was closed before.
    pub(crate) fn close(&self) -> Option<ClosedAt> {
        // The offset lies above any length: also a caller that has not seen the flag gets nothing.
        self.segments.0.drained.store(true, Ordering::Relaxed);
        let before =
            Cursor(self.cursor.0.swap(Cursor::start_of(CLOSED).0 | 1 << 31, Ordering::AcqRel));
        (before.generation() != CLOSED).then_some(ClosedAt(before))
    }

    /// Reads the memory that [`Self::take`] reads, which brings it into the processor's cache.
    /// Changes nothing.
    pub(crate) fn touch(&self) {
        // Nobody uses what is read: without these the compiler would leave the reading out.
        black_box(self.cursor.0.load(Ordering::Relaxed));
        black_box(self.segments.0.drained.load(Ordering::Relaxed));
    }

    /// Whether the current segment is the last one that the buffer can hold, after four billion:
    /// then no other may be fetched.
    pub(crate) fn is_last(&self) -> bool {
        self.now().generation() == LAST
    }

    /// Skips generations, so that the buffer accepts one more segment and no other.
    #[cfg(all(test, not(leaf_loom)))]
    pub(crate) fn skip_generations(&self) {
        self.cursor.0.store(Cursor::start_of(LAST - 1).0, Ordering::SeqCst);
    }

    /// Whether [`Self::close`] was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.now().generation() == CLOSED
    }

    /// The unused ids that can be given back: the consecutive ones up to the end of the last
    /// segment. Call it only when nobody publishes any more.
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

    /// One past the last id that was handed out, or the start of the current segment if none of its
    /// ids was; `None` if no id was handed out at all. Call it only when nobody publishes any more.
    pub(crate) fn issued_end(&self, ClosedAt(at): ClosedAt) -> Option<i64> {
        let segment = self.slot(at).from(Cursor::start_of(at.generation()))?;
        if at.offset() == 0 && at.generation() == 1 {
            return None;
        }
        Some(segment.end().min(segment.start() + i64::from(at.offset())))
    }

    fn now(&self) -> Cursor {
        Cursor(self.cursor.0.load(Ordering::Acquire))
    }

    fn slot(&self, cursor: Cursor) -> &Slot {
        &self.segments.0.slots[(cursor.generation() & 1) as usize]
    }
}
