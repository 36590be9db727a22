//! Composes the ids of one worker from positions.

use super::{Field, Layout};
use crate::{Id, WorkerId};

/// Puts the ids of one worker together from positions, with the layout's shifts looked up once.
///
/// A position is `tick << sequence bits | sequence`: positions of one worker increase with its ids.
///
/// ```
/// use leaf_core::{Layout, WorkerId};
///
/// let composer = Layout::LEAF.composer(WorkerId::new(3));
/// assert_eq!(Some(composer.id(1 << 12 | 39)), Layout::LEAF.compose(1, WorkerId::new(3), 39));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Composer {
    worker: u64,
    sequence_bits: u32,
    max_sequence: u64,
    timestamp_shift: u32,
    sequence_shift: u32,
}

impl Layout {
    /// The composer of a worker's ids. Bits of `worker` beyond its field are dropped.
    #[must_use]
    pub const fn composer(self, worker: WorkerId) -> Composer {
        let worker = worker.get() & self.max_worker().get();
        Composer {
            worker: (worker as u64) << self.shift(Field::Worker),
            sequence_bits: self.bits(Field::Sequence),
            max_sequence: self.max_sequence(),
            timestamp_shift: self.shift(Field::Timestamp),
            sequence_shift: self.shift(Field::Sequence),
        }
    }
}

impl Composer {
    /// The id at `position`. The caller must ensure that the tick is at most [`Layout::max_tick`]:
    /// with a later tick the result could equal another id.
    #[inline]
    #[must_use]
    pub const fn id(self, position: u64) -> Id {
        let tick = position >> self.sequence_bits;
        let sequence = position & self.max_sequence;
        Id::from_low_bits(
            tick << self.timestamp_shift | self.worker | sequence << self.sequence_shift,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn composes_what_the_layout_does(tick in any::<u64>(), worker in any::<u32>(), n in any::<u64>()) {
            for layout in [Layout::LEAF, Layout::SONYFLAKE, Layout::UID_GENERATOR] {
                let tick = tick & layout.max_tick();
                let worker = WorkerId::new(worker & layout.max_worker().get());
                let sequence = n & layout.max_sequence();

                let position = tick << layout.bits(Field::Sequence) | sequence;

                let id = layout.composer(worker).id(position);
                let at = |field, value: u64| value << layout.place(field).0;
                let bits = at(Field::Timestamp, tick)
                    | at(Field::Worker, worker.get().into())
                    | at(Field::Sequence, sequence);
                prop_assert_eq!(id, Id::from_low_bits(bits));
            }
        }
    }
}
