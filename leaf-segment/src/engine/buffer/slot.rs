//! One slot of the buffer, and the cursor's two halves.
//!
//! Invariant: base and length are read together with the generation that they belong to, or not at
//! all. A generation is filled once; what was read of it stays true.

use std::hint::select_unpredictable;

use leaf_core::{Id, IdRange};

use super::Take;
use crate::engine::sync::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

/// A slot's generation while it holds nothing readable.
const INVALID: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor(pub(super) u64);

impl Cursor {
    pub(super) const fn start_of(generation: u32) -> Self {
        Self((generation as u64) << 32)
    }

    pub(super) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) const fn offset(self) -> u32 {
        self.0 as u32
    }
}

/// One segment. A read counts only if the slot's generation is still the cursor's afterwards.
#[derive(Debug)]
pub(super) struct Slot {
    /// (generation: 32, length: 32); the length is at most `i32::MAX`.
    stamp: AtomicU64,
    base: AtomicI64,
    /// The offset whose taker starts the prefetch of the next segment.
    prefetch_at: AtomicU32,
}

impl Slot {
    pub(super) fn unused() -> Self {
        Self {
            stamp: AtomicU64::new(Cursor::start_of(INVALID).0),
            base: AtomicI64::new(0),
            prefetch_at: AtomicU32::new(0),
        }
    }

    /// Reads the id at the cursor's offset; `None` if the offset is lost: it is beyond the end, or
    /// the slot was refilled.
    ///
    /// Reads both slots, so that the loads do not wait until the result of the addition shows which
    /// slot counts: this saves a tenth of the whole time.
    #[inline]
    pub(super) fn read(slots: &[Self; 2], taken: Cursor) -> Option<Take<Id>> {
        let [even, odd] = slots;
        let bases = [even.base.load(Ordering::Relaxed), odd.base.load(Ordering::Relaxed)];
        let prefetches =
            [even.prefetch_at.load(Ordering::Relaxed), odd.prefetch_at.load(Ordering::Relaxed)];
        // As in `fill_of`.
        fence(Ordering::Acquire);
        let stamps = [even.stamp.load(Ordering::Relaxed), odd.stamp.load(Ordering::Relaxed)];
        let is_odd = taken.generation() & 1 == 1;
        let base = select_unpredictable(is_odd, bases[1], bases[0]);
        let prefetch_at = select_unpredictable(is_odd, prefetches[1], prefetches[0]);
        let stamp = Cursor(select_unpredictable(is_odd, stamps[1], stamps[0]));
        if stamp.generation() != taken.generation() || taken.offset() >= stamp.offset() {
            return None;
        }
        let id = Id::new(base + i64::from(taken.offset()))?;
        Some(if taken.offset() == prefetch_at { Take::SomeAndPrefetch(id) } else { Take::Some(id) })
    }

    /// Reads up to `most` ids from the cursor's offset on; `None` if the offset is beyond the end,
    /// or the slot was refilled.
    pub(super) fn read_run(&self, taken: Cursor, most: u32) -> Option<Take<IdRange>> {
        let (base, length, prefetch_at) = self.fill_of(taken)?;
        let end = taken.offset().saturating_add(most).min(length);
        let range = IdRange::new(base + i64::from(taken.offset()), base + i64::from(end))?;
        let prefetch = (taken.offset()..end).contains(&prefetch_at);
        Some(if prefetch { Take::SomeAndPrefetch(range) } else { Take::Some(range) })
    }

    /// Base, length and prefetch offset of the cursor's segment; `None` if the cursor's offset is
    /// beyond the end, or the slot holds another generation.
    #[inline]
    pub(super) fn fill_of(&self, taken: Cursor) -> Option<(i64, u32, u32)> {
        let base = self.base.load(Ordering::Relaxed);
        let prefetch_at = self.prefetch_at.load(Ordering::Relaxed);
        // Pairs with the release fence in `fill`: a reader that saw anything of a later filling
        // above sees that filling's generation (or INVALID) below.
        fence(Ordering::Acquire);
        let stamp = Cursor(self.stamp.load(Ordering::Relaxed));
        let own = stamp.generation() == taken.generation() && taken.offset() < stamp.offset();
        own.then(|| (base, stamp.offset(), prefetch_at))
    }

    /// Whether the slot holds the segment of this generation. If so, its base and length are
    /// visible.
    pub(super) fn holds(&self, generation: u32) -> bool {
        Cursor(self.stamp.load(Ordering::Acquire)).generation() == generation
    }

    /// How many ids the segment of this generation has; 0 when the slot holds another.
    pub(super) fn length(&self, generation: u32) -> u32 {
        let stamp = Cursor(self.stamp.load(Ordering::Relaxed));
        if stamp.generation() == generation { stamp.offset() } else { 0 }
    }

    /// The offset whose taker starts the prefetch.
    pub(super) fn prefetch_at(&self) -> u32 {
        self.prefetch_at.load(Ordering::Relaxed)
    }

    /// The ids from the cursor's offset on; `None` when there are none.
    pub(super) fn from(&self, at: Cursor) -> Option<IdRange> {
        let (base, length, _) = self.fill_of(at)?;
        IdRange::new(base + i64::from(at.offset()), base + i64::from(length))
    }

    /// All ids of the segment that the slot holds, whatever its generation; `None` if it holds
    /// none.
    pub(super) fn range(&self) -> Option<IdRange> {
        let generation = Cursor(self.stamp.load(Ordering::Acquire)).generation();
        self.from(Cursor::start_of(generation))
    }

    pub(super) fn fill(&self, generation: u32, range: IdRange) -> bool {
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
