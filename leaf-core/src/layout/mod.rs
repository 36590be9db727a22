//! How time, worker and sequence share the 63 bits of an id.
//!
//! Invariants: every field has at least one bit; together at most 63, so that an id is never
//! negative; the timestamp stands above the sequence, so that the ids of one worker increase.
//! The layout counts time in *ticks* of its unit since its epoch. Records hold Unix milliseconds:
//! when they are converted to ticks, a floor is rounded up and a ceiling down.

mod composer;
mod presets;
mod text;

use std::fmt;
use std::time::Duration;

pub use self::composer::Composer;
use crate::{Id, UnixMillis, WorkerId};

/// One of the three parts of a snowflake id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Ticks since the layout's epoch.
    Timestamp,
    /// The worker id.
    Worker,
    /// The counter within one tick.
    Sequence,
}

/// The length of a tick of the timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// 1 ms: Leaf and Twitter.
    Millisecond,
    /// 10 ms: Sonyflake.
    Centisecond,
    /// 1 s: uid-generator.
    Second,
}

impl Unit {
    /// Milliseconds in a tick.
    #[must_use]
    pub const fn millis(self) -> u64 {
        match self {
            Self::Millisecond => 1,
            Self::Centisecond => 10,
            Self::Second => 1000,
        }
    }
}

/// The order and width of the fields of an id, most significant first.
///
/// ```
/// use leaf_core::{Id, Layout, UnixMillis, WorkerId};
///
/// let layout = Layout::LEAF;
/// let tick = layout.tick_at(UnixMillis::new(1_567_733_700_834));
/// let id = layout.compose(tick, WorkerId::new(3), 39).expect("every part fits");
///
/// let parts = layout.decode(id).expect("an id of this layout");
/// assert_eq!(parts.timestamp.get(), 1_567_733_700_834);
/// assert_eq!((parts.worker.get(), parts.sequence), (3, 39));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    fields: [(Field, u32); 3],
    /// How many upper bits of the worker field name a datacenter; the ids are the same with any
    /// value.
    datacenter_bits: u32,
    unit: Unit,
    epoch: UnixMillis,
}

/// The parts of an id, as [`Layout::decode`] returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// The start of the tick in which the id was issued.
    pub timestamp: UnixMillis,
    /// The worker that issued the id.
    pub worker: WorkerId,
    /// The sequence: the number of the id within its tick.
    pub sequence: u64,
}

impl Layout {
    /// A layout of these fields, most significant first, each with its number of bits.
    ///
    /// # Errors
    /// [`LayoutError`] when a field is missing, has no bit or (the worker) more than 32, when the
    /// sum exceeds 63, or when the sequence stands above the timestamp.
    ///
    /// ```
    /// use leaf_core::{Field, Layout, UnixMillis, Unit};
    ///
    /// let sonyflake = Layout::new(
    ///     [(Field::Timestamp, 39), (Field::Sequence, 8), (Field::Worker, 16)],
    ///     Unit::Centisecond,
    ///     UnixMillis::new(1_409_529_600_000),
    /// )?;
    /// assert_eq!(sonyflake.shape(), "t39-s8-w16/10ms");
    /// # Ok::<(), leaf_core::LayoutError>(())
    /// ```
    pub fn new(
        fields: [(Field, u32); 3],
        unit: Unit,
        epoch: UnixMillis,
    ) -> Result<Self, LayoutError> {
        let place = |wanted| fields.iter().position(|(field, _)| *field == wanted);
        let (Some(timestamp), Some(_), Some(sequence)) =
            (place(Field::Timestamp), place(Field::Worker), place(Field::Sequence))
        else {
            return Err(LayoutError::FieldMissing);
        };
        if sequence < timestamp {
            return Err(LayoutError::SequenceAboveTimestamp);
        }
        // 63 each keeps the sum from overflowing.
        if let Some((field, bits)) = fields.iter().find(|(_, bits)| !(1..=63).contains(bits)) {
            return Err(LayoutError::FieldWidth { field: *field, bits: *bits, most: 63 });
        }
        let layout = Self { fields, datacenter_bits: 0, unit, epoch };
        let bits = layout.bits(Field::Worker);
        if bits > 32 {
            return Err(LayoutError::FieldWidth { field: Field::Worker, bits, most: 32 });
        }
        let sum = layout.sum_of_bits();
        if sum > 63 {
            return Err(LayoutError::TooWide { sum });
        }
        Ok(layout)
    }

    /// This layout with another epoch, the start of its time.
    #[must_use]
    pub const fn with_epoch(self, epoch: UnixMillis) -> Self {
        Self { epoch, ..self }
    }

    /// This layout with its worker field read as two numbers: a datacenter in the upper `bits` and
    /// a worker in the rest. Ids do not change by it.
    ///
    /// # Errors
    /// [`LayoutError::DatacenterWidth`] unless at least one bit is left for the worker.
    pub const fn with_datacenter_bits(self, bits: u32) -> Result<Self, LayoutError> {
        let worker_bits = self.bits(Field::Worker);
        if bits >= worker_bits {
            return Err(LayoutError::DatacenterWidth { bits, worker_bits });
        }
        Ok(Self { datacenter_bits: bits, ..self })
    }

    /// How many of the worker's bits name a datacenter; 0 where none do.
    #[must_use]
    pub const fn datacenter_bits(self) -> u32 {
        self.datacenter_bits
    }

    /// The worker id of a worker in a datacenter; `None` when one does not fit its bits.
    ///
    /// ```
    /// use leaf_core::{Layout, WorkerId};
    ///
    /// let worker = Layout::TWITTER.worker_in(3, 7).expect("both fit 5 bits");
    /// assert_eq!(worker, WorkerId::new(3 << 5 | 7));
    /// assert_eq!(Layout::TWITTER.datacenter_of(worker), (3, 7));
    /// ```
    #[must_use]
    pub const fn worker_in(self, datacenter: u32, worker: u32) -> Option<WorkerId> {
        let bits = self.bits(Field::Worker) - self.datacenter_bits;
        if datacenter as u64 > max_of(self.datacenter_bits) || worker as u64 > max_of(bits) {
            return None;
        }
        Some(WorkerId::new(((datacenter as u64) << bits) as u32 | worker))
    }

    /// Splits a worker id into the datacenter and the number of the worker in it.
    #[must_use]
    pub const fn datacenter_of(self, worker: WorkerId) -> (u32, u32) {
        let bits = self.bits(Field::Worker) - self.datacenter_bits;
        let worker = worker.get() as u64;
        ((worker >> bits) as u32, (worker & max_of(bits)) as u32)
    }

    /// The width of a field.
    #[must_use]
    pub const fn bits(self, field: Field) -> u32 {
        self.place(field).1
    }

    /// How many bits are to the right of a field.
    #[must_use]
    pub const fn shift(self, field: Field) -> u32 {
        self.place(field).0
    }

    /// The length of a tick.
    #[must_use]
    pub const fn unit(self) -> Unit {
        self.unit
    }

    /// The instant of tick 0.
    #[must_use]
    pub const fn epoch(self) -> UnixMillis {
        self.epoch
    }

    /// The greatest worker id.
    #[must_use]
    pub const fn max_worker(self) -> WorkerId {
        WorkerId::new(max_of(self.bits(Field::Worker)) as u32)
    }

    /// The greatest sequence number of a tick.
    #[must_use]
    pub const fn max_sequence(self) -> u64 {
        max_of(self.bits(Field::Sequence))
    }

    /// The last tick that the timestamp can hold.
    #[must_use]
    pub const fn max_tick(self) -> u64 {
        max_of(self.bits(Field::Timestamp))
    }

    /// The first instant that the layout can no longer represent.
    #[must_use]
    pub const fn end(self) -> UnixMillis {
        let span = (self.max_tick() + 1).saturating_mul(self.unit.millis());
        UnixMillis::new(self.epoch.get().saturating_add(span))
    }

    /// The tick that `instant` falls into; 0 before the epoch. It may exceed [`Self::max_tick`].
    #[inline]
    #[must_use]
    pub const fn tick_at(self, instant: UnixMillis) -> u64 {
        let since_epoch = instant.get().saturating_sub(self.epoch.get());
        // Divided by constants: a division by a value takes several times as long.
        match self.unit {
            Unit::Millisecond => since_epoch,
            Unit::Centisecond => since_epoch / Unit::Centisecond.millis(),
            Unit::Second => since_epoch / Unit::Second.millis(),
        }
    }

    /// The first tick that starts at or after `instant`: how a floor is rounded.
    #[must_use]
    pub const fn tick_from(self, instant: UnixMillis) -> u64 {
        instant.get().saturating_sub(self.epoch.get()).div_ceil(self.unit.millis())
    }

    /// When `tick` starts.
    #[must_use]
    pub const fn instant(self, tick: u64) -> UnixMillis {
        let since_epoch = tick.saturating_mul(self.unit.millis());
        UnixMillis::new(self.epoch.get().saturating_add(since_epoch))
    }

    /// How long a tick lasts.
    #[must_use]
    pub const fn tick_length(self) -> Duration {
        Duration::from_millis(self.unit.millis())
    }

    /// The id of these parts; `None` when one does not fit its field.
    #[inline]
    #[must_use]
    pub const fn compose(self, tick: u64, worker: WorkerId, sequence: u64) -> Option<Id> {
        if tick > self.max_tick()
            || worker.get() > self.max_worker().get()
            || sequence > self.max_sequence()
        {
            return None;
        }
        Some(self.composer(worker).id(tick << self.bits(Field::Sequence) | sequence))
    }

    /// Takes an id apart; `None` when it has bits that this layout does not use.
    #[must_use]
    pub const fn decode(self, id: Id) -> Option<Parts> {
        let bits = id.get().cast_unsigned();
        if bits > max_of(self.sum_of_bits()) {
            return None;
        }
        Some(Parts {
            timestamp: self.instant(self.read(bits, Field::Timestamp)),
            worker: WorkerId::new(self.read(bits, Field::Worker) as u32),
            sequence: self.read(bits, Field::Sequence),
        })
    }

    const fn read(self, bits: u64, field: Field) -> u64 {
        let (shift, width) = self.place(field);
        bits >> shift & max_of(width)
    }

    /// Shift and width of a field.
    #[inline]
    const fn place(self, field: Field) -> (u32, u32) {
        let [(_, _), second, third] = self.fields;
        if third.0 as u8 == field as u8 {
            (0, third.1)
        } else if second.0 as u8 == field as u8 {
            (third.1, second.1)
        } else {
            (third.1 + second.1, self.fields[0].1)
        }
    }

    const fn sum_of_bits(self) -> u32 {
        self.fields[0].1 + self.fields[1].1 + self.fields[2].1
    }
}

const fn max_of(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Layout({self} from {})", self.epoch)
    }
}

/// The reason why fields or a text cannot be made a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Timestamp, worker and sequence must each stand once.
    #[error("a layout needs timestamp, worker and sequence, each once")]
    FieldMissing,
    /// A field is too narrow or too wide.
    #[error("{bits} bits for the {field:?} field: give 1 to {most}")]
    FieldWidth {
        /// The field.
        field: Field,
        /// The number of bits of the field.
        bits: u32,
        /// The greatest number of bits that the field may have.
        most: u32,
    },
    /// More than 63 bits in all.
    #[error("the fields have {sum} bits: at most 63 fit a non-negative 64-bit id")]
    TooWide {
        /// The sum of the widths.
        sum: u32,
    },
    /// No bit would be left for the worker.
    #[error("{bits} of {worker_bits} worker bits name a datacenter: at least 1 must remain")]
    DatacenterWidth {
        /// The bits of the datacenter.
        bits: u32,
        /// The bits of the whole field.
        worker_bits: u32,
    },
    /// The text names no layout.
    #[error(
        "unknown layout: give leaf, twitter, sonyflake, uid-generator, javascript, or a split like \
         t41-w10-s12/1ms"
    )]
    Syntax,
    /// Ids of one worker would not increase.
    #[error("the sequence stands above the timestamp: ids would not increase with time")]
    SequenceAboveTimestamp,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shuffled(widths: [u32; 3], order: usize) -> [(Field, u32); 3] {
        let [t, w, s] = widths;
        let (t, w, s) = ((Field::Timestamp, t), (Field::Worker, w), (Field::Sequence, s));
        [[t, w, s], [t, s, w], [w, t, s]][order]
    }

    #[test]
    fn leaf_is_what_java_leaf_composes() {
        let id = Layout::LEAF.compose(1, WorkerId::new(1), 1).unwrap();

        assert_eq!(id.get(), 1 << 22 | 1 << 12 | 1);
        assert_eq!(Layout::LEAF.shape(), "t41-w10-s12/1ms");
        assert_eq!(Layout::LEAF.end().get(), 1_288_834_974_657 + (1 << 41));
        assert_eq!(Layout::LEAF.max_worker(), WorkerId::new(1023));
    }

    #[test]
    fn nothing_beyond_a_field_is_composed() {
        let layout = Layout::LEAF;
        let last = layout.max_tick();

        assert_eq!(
            layout.compose(last, layout.max_worker(), layout.max_sequence()),
            Some(Id::MAX),
            "all 63 bits set"
        );
        assert_eq!(layout.compose(last + 1, WorkerId::new(0), 0), None);
        assert_eq!(layout.compose(0, WorkerId::new(1024), 0), None);
        assert_eq!(layout.compose(0, WorkerId::new(0), 4096), None);
    }

    #[test]
    fn refuses_fields_that_make_no_layout() {
        use Field::{Sequence, Timestamp, Worker};
        let epoch = UnixMillis::EPOCH;
        let refused = |fields| Layout::new(fields, Unit::Millisecond, epoch).unwrap_err();

        assert_eq!(
            refused([(Timestamp, 42), (Worker, 10), (Sequence, 12)]),
            LayoutError::TooWide { sum: 64 }
        );
        assert_eq!(
            refused([(Timestamp, 41), (Worker, 0), (Sequence, 12)]),
            LayoutError::FieldWidth { field: Worker, bits: 0, most: 63 }
        );
        assert_eq!(
            refused([(Timestamp, 20), (Worker, 33), (Sequence, 1)]),
            LayoutError::FieldWidth { field: Worker, bits: 33, most: 32 }
        );
        assert_eq!(
            refused([(Timestamp, 41), (Sequence, 10), (Sequence, 12)]),
            LayoutError::FieldMissing
        );
        assert_eq!(
            refused([(Sequence, 12), (Timestamp, 41), (Worker, 10)]),
            LayoutError::SequenceAboveTimestamp
        );
    }

    #[test]
    fn decodes_no_id_of_a_wider_layout() {
        let narrow = Layout::new(
            [(Field::Timestamp, 31), (Field::Worker, 10), (Field::Sequence, 12)],
            Unit::Second,
            UnixMillis::EPOCH,
        )
        .unwrap();

        assert!(narrow.decode(Id::new((1 << 53) - 1).unwrap()).is_some());
        assert!(narrow.decode(Id::new(1 << 53).unwrap()).is_none());
    }

    #[test]
    fn floors_round_up_and_ceilings_down() {
        let seconds = Layout::new(
            [(Field::Timestamp, 31), (Field::Worker, 10), (Field::Sequence, 12)],
            Unit::Second,
            UnixMillis::new(500),
        )
        .unwrap();

        assert_eq!(seconds.tick_from(UnixMillis::new(1501)), 2);
        assert_eq!(seconds.tick_from(UnixMillis::new(1500)), 1);
        assert_eq!(seconds.tick_at(UnixMillis::new(2499)), 1);
        assert_eq!(seconds.tick_at(UnixMillis::new(0)), 0);
        assert_eq!(seconds.instant(1).get(), 1500);
    }

    proptest! {
        #[test]
        fn every_part_comes_back(
            widths in (1u32..=41, 1u32..=10, 1u32..=12),
            order in 0usize..3,
            values in any::<[u64; 3]>(),
        ) {
            let (t, w, s) = widths;
            let epoch = UnixMillis::new(1_288_834_974_657);
            let layout =
                Layout::new(shuffled([t, w, s], order), Unit::Millisecond, epoch).unwrap();
            let tick = values[0] & layout.max_tick();
            let worker = WorkerId::new(values[1] as u32 & layout.max_worker().get());
            let sequence = values[2] & layout.max_sequence();

            let id = layout.compose(tick, worker, sequence).unwrap();

            let parts = layout.decode(id).unwrap();
            prop_assert_eq!(parts, Parts { timestamp: layout.instant(tick), worker, sequence });
        }
    }
}
