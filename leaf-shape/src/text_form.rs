//! Snowflake ids written as the 128-bit, 96-bit and base-32 ids that other programs expect.
//!
//! Invariant: one-to-one within a layout. Two ids never have the same text, and a text is read only
//! if it is exactly what the id is written as: every unused bit is checked. So these texts are
//! unique because snowflake ids are unique, not by chance. They look like random ids of these
//! forms, but can be converted back to the snowflake ids.
//!
//! Texts of one form sort by the timestamps of their ids, then by sequence, then by worker id.
//! TSIDs sort like the ids as numbers.

use std::fmt;
use std::str::FromStr;

use leaf_core::{Id, Layout, UnixMillis, UnknownName, WorkerId};
use thiserror::Error;

use crate::template::CROCKFORD;

/// How many bits of a UUID are free beside time, version and variant.
const UUID_FREE: u32 = 74;
/// How many of the free bits of a UUID are in its upper half, behind the version.
const UUID_UPPER: u32 = 12;
/// The bits of a ULID beside the time.
const ULID_FREE: u32 = 80;
/// The bits of an ObjectId beside the seconds.
const OBJECT_ID_FREE: u32 = 64;
/// Bits that hold the milliseconds of a second.
const MILLI_BITS: u32 = 10;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// A form in which a snowflake id is written.
///
/// ```
/// use leaf_core::{Layout, WorkerId};
/// use leaf_shape::TextForm;
///
/// let id = Layout::LEAF.compose(500_000_000_000, WorkerId::new(7), 42).ok_or("parts that fit")?;
/// let uuid = TextForm::Uuid.write(Layout::LEAF, id)?;
/// assert_eq!(uuid.as_str(), "01a07edf-8bc1-702a-8000-000000000007");
/// assert_eq!(TextForm::Uuid.read(Layout::LEAF, uuid.as_str())?, id);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextForm {
    /// A UUID of version 7 (RFC 9562): Unix milliseconds, the sequence behind the version, the
    /// worker id at the end.
    Uuid,
    /// A ULID: 26 characters of Crockford's base 32.
    Ulid,
    /// A TSID: the id's 64 bits as 13 characters of Crockford's base 32, in any layout.
    Tsid,
    /// A MongoDB ObjectId: 24 hexadecimal digits, the first 8 of them Unix seconds.
    ObjectId,
}

/// Why an id has no text of a form, or a text is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TextFormError {
    /// The id has bits that the layout does not use.
    #[error("the id has bits that the configured layout does not use")]
    OtherLayout,
    /// The layout has more bits than the form has room for.
    #[error(
        "ids of the configured layout do not fit into {form}: {free} bits for worker and sequence"
    )]
    TooWide {
        /// The form.
        form: TextForm,
        /// How many bits the form has for worker id and sequence.
        free: u32,
    },
    /// The id's timestamp is later than the form can hold.
    #[error("{0} cannot hold a time that late")]
    TooLate(TextForm),
    /// The text has another length or other characters.
    #[error("the text is not {0}")]
    Malformed(TextForm),
    /// The text has the form, but was not written from an id of the layout: a bit is set, for
    /// example, that is zero in all such texts.
    #[error("the text is {0} that was not made from an id of the configured layout")]
    Foreign(TextForm),
}

/// A text of up to 64 characters that is stored in place, without an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IdText {
    bytes: [u8; IdText::CAPACITY],
    length: usize,
}

impl TextForm {
    /// All forms.
    pub const ALL: [Self; 4] = [Self::Uuid, Self::Ulid, Self::Tsid, Self::ObjectId];

    /// Its name: `uuid`, `ulid`, `tsid`, `objectid`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uuid => "uuid",
            Self::Ulid => "ulid",
            Self::Tsid => "tsid",
            Self::ObjectId => "objectid",
        }
    }

    /// How many characters its texts have.
    #[must_use]
    pub const fn length(self) -> usize {
        match self {
            Self::Uuid => 36,
            Self::Ulid => 26,
            Self::Tsid => 13,
            Self::ObjectId => 24,
        }
    }

    /// Finds the form of a text by its length; `None` if the text is an id in decimal digits, or no
    /// form has that length. A TSID that consists of digits only is taken for a decimal id: read it
    /// by [`Self::Tsid`].
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let is_number = text.parse::<Id>().is_ok();
        Self::ALL.into_iter().find(|form| form.length() == text.len() && !is_number)
    }

    /// The text of an id.
    ///
    /// # Errors
    /// The id is of another layout, or the layout or the time does not fit into the form.
    pub fn write(self, layout: Layout, id: Id) -> Result<IdText, TextFormError> {
        let parts = layout.decode(id).ok_or(TextFormError::OtherLayout)?;
        let millis = u128::from(parts.timestamp.get());
        let mut text = IdText { length: self.length(), ..IdText::default() };
        if self == Self::Tsid {
            text.base32(u128::from(id.get().cast_unsigned()));
            return Ok(text);
        }
        let low = u128::from(parts.sequence) << self.sequence_shift(layout)?
            | u128::from(parts.worker.get());
        match self {
            Self::Uuid => {
                let upper = low >> (UUID_FREE - UUID_UPPER);
                let lower = low & mask(UUID_FREE - UUID_UPPER);
                let bits = self.time(millis, 48)? << 80 | 7 << 76 | upper << 64 | 2 << 62 | lower;
                text.hexadecimal(bits, &[8, 13, 18, 23]);
            }
            Self::Ulid => text.base32(self.time(millis, 48)? << ULID_FREE | low),
            Self::ObjectId => {
                let seconds = self.time(millis / 1000, 32)?;
                let within = (millis % 1000) << (OBJECT_ID_FREE - MILLI_BITS);
                text.hexadecimal(seconds << OBJECT_ID_FREE | within | low, &[]);
            }
            Self::Tsid => {}
        }
        Ok(text)
    }

    /// Returns the id of a text, which may be written in capitals or small letters.
    ///
    /// # Errors
    /// The text is not of this form, or was not written from an id of this layout.
    pub fn read(self, layout: Layout, text: &str) -> Result<Id, TextFormError> {
        if text.len() != self.length() {
            return Err(TextFormError::Malformed(self));
        }
        let bits = match self {
            Self::Uuid => read_hexadecimal(text, &[8, 13, 18, 23]),
            Self::ObjectId => read_hexadecimal(text, &[]),
            Self::Ulid | Self::Tsid => read_base32(text),
        };
        let bits = bits.ok_or(TextFormError::Malformed(self))?;
        let foreign = TextFormError::Foreign(self);
        let id = match self {
            Self::Tsid => i64::try_from(bits).ok().and_then(Id::new).ok_or(foreign)?,
            _ => {
                let (millis, low) = match self {
                    Self::Uuid => {
                        let upper = bits >> 64 & mask(UUID_UPPER);
                        let lower = bits & mask(UUID_FREE - UUID_UPPER);
                        (bits >> 80, upper << (UUID_FREE - UUID_UPPER) | lower)
                    }
                    Self::Ulid => (bits >> ULID_FREE, bits & mask(ULID_FREE)),
                    _ => {
                        let within = bits >> (OBJECT_ID_FREE - MILLI_BITS) & mask(MILLI_BITS);
                        let low = bits & mask(OBJECT_ID_FREE - MILLI_BITS);
                        ((bits >> OBJECT_ID_FREE) * 1000 + within, low)
                    }
                };
                let shift = self.sequence_shift(layout)?;
                let tick =
                    layout.tick_at(UnixMillis::new(u64::try_from(millis).unwrap_or(u64::MAX)));
                let worker =
                    u32::try_from(low & mask(shift)).ok().map(WorkerId::new).ok_or(foreign)?;
                let sequence = u64::try_from(low >> shift).map_err(|_| foreign)?;
                layout.compose(tick, worker, sequence).ok_or(foreign)?
            }
        };
        // If the id is not written as this text, Leaf did not write the text: it has, for example,
        // a time between two ticks or a bit that Leaf never sets.
        match self.write(layout, id) {
            Ok(written) if written.as_str().eq_ignore_ascii_case(text) => Ok(id),
            _ => Err(foreign),
        }
    }

    /// By how many bits the sequence is shifted above the worker id: as many as possible, so that
    /// texts sort by the sequence.
    fn sequence_shift(self, layout: Layout) -> Result<u32, TextFormError> {
        use leaf_core::Field::{Sequence, Worker};
        let (sequence, worker) = (layout.bits(Sequence), layout.bits(Worker));
        let (free, least) = match self {
            // If the sequence has up to 12 bits, the 12 bits behind the version hold nothing else.
            Self::Uuid => (UUID_FREE, UUID_UPPER),
            Self::Ulid => (ULID_FREE, 16),
            Self::ObjectId => (OBJECT_ID_FREE - MILLI_BITS, 0),
            Self::Tsid => (64, 0),
        };
        let above = free.checked_sub(sequence.max(least)).filter(|shift| *shift >= worker);
        above.ok_or(TextFormError::TooWide { form: self, free })
    }

    /// The time, if it fits into `bits` bits.
    fn time(self, value: u128, bits: u32) -> Result<u128, TextFormError> {
        if value > mask(bits) { Err(TextFormError::TooLate(self)) } else { Ok(value) }
    }
}

const fn mask(bits: u32) -> u128 {
    (1 << bits) - 1
}

/// An empty text.
impl Default for IdText {
    fn default() -> Self {
        // The places that a form skips are its dashes.
        Self { bytes: [b'-'; Self::CAPACITY], length: 0 }
    }
}

impl IdText {
    /// The most characters of a text.
    pub(crate) const CAPACITY: usize = 64;

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }

    /// Adds ASCII characters; there must be room for them.
    pub(crate) fn push(&mut self, more: &[u8]) {
        self.bytes[self.length..self.length + more.len()].copy_from_slice(more);
        self.length += more.len();
    }

    /// Adds a number with exactly this many decimal digits.
    pub(crate) fn push_decimal(&mut self, mut value: u32, digits: usize) {
        for place in (self.length..self.length + digits).rev() {
            self.bytes[place] = b'0' + (value % 10) as u8;
            value /= 10;
        }
        self.length += digits;
    }

    /// Writes the number from the right, leaving the places of the dashes.
    fn hexadecimal(&mut self, mut bits: u128, dashes: &[usize]) {
        for place in (0..self.length).rev().filter(|place| !dashes.contains(place)) {
            self.bytes[place] = HEX[(bits & 15) as usize];
            bits >>= 4;
        }
    }

    fn base32(&mut self, mut bits: u128) {
        for place in (0..self.length).rev() {
            self.bytes[place] = CROCKFORD[(bits & 31) as usize];
            bits >>= 5;
        }
    }
}

fn read_hexadecimal(text: &str, dashes: &[usize]) -> Option<u128> {
    text.bytes().enumerate().try_fold(0, |bits: u128, (place, byte)| {
        if dashes.contains(&place) {
            return (byte == b'-').then_some(bits);
        }
        let digit = HEX.iter().position(|digit| *digit == byte.to_ascii_lowercase())?;
        Some(bits << 4 | digit as u128)
    })
}

fn read_base32(text: &str) -> Option<u128> {
    text.bytes().try_fold(0, |bits: u128, byte| {
        let digit = CROCKFORD.iter().position(|digit| *digit == byte.to_ascii_uppercase())?;
        // The first character may hold more than there is room for.
        Some(bits.checked_mul(32)? | digit as u128)
    })
}

impl fmt::Display for TextForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uuid => "a UUID",
            Self::Ulid => "a ULID",
            Self::Tsid => "a TSID",
            Self::ObjectId => "an ObjectId",
        })
    }
}

impl FromStr for TextForm {
    type Err = UnknownName;

    /// Reads a name, in capitals or small letters.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|form| form.name().eq_ignore_ascii_case(name));
        found.ok_or(UnknownName::new("give one of uuid, ulid, tsid, objectid"))
    }
}

impl fmt::Display for IdText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for IdText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdText({})", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUTS: [Layout; 4] =
        [Layout::LEAF, Layout::TWITTER, Layout::SONYFLAKE, Layout::JAVASCRIPT];

    fn compose(layout: Layout, tick: u64, worker: u64, sequence: u64) -> Id {
        let worker = worker % (u64::from(layout.max_worker().get()) + 1);
        let worker = WorkerId::new(u32::try_from(worker).unwrap());
        layout
            .compose(tick % (layout.max_tick() + 1), worker, sequence % (layout.max_sequence() + 1))
            .unwrap()
    }

    /// Texts that were written once must be read for ever, and by programs in other languages.
    #[test]
    fn fixed_texts() {
        let id = compose(Layout::LEAF, 500_000_000_000, 1023, 4095);
        let write = |form: TextForm| form.write(Layout::LEAF, id).unwrap().to_string();
        assert_eq!(write(TextForm::Uuid), "01a07edf-8bc1-7fff-8000-0000000003ff");
        assert_eq!(write(TextForm::Ulid), "01M1ZDZ2Y11ZZG0000000000ZZ");
        assert_eq!(write(TextForm::Tsid), "1T6MMM803ZZZZ");
        assert_eq!(write(TextForm::ObjectId), "6a9f749ea47ffc00000003ff");
    }

    proptest! {
        #[test]
        fn every_text_is_read_back_and_sorts_by_time_and_sequence(
            layout in 0..4usize,
            parts in prop::array::uniform2((any::<u64>(), any::<u64>(), any::<u64>())),
        ) {
            let layout = LAYOUTS[layout];
            let ids = parts.map(|(tick, worker, sequence)| compose(layout, tick, worker, sequence));
            for form in TextForm::ALL {
                let texts = ids.map(|id| form.write(layout, id));
                // An ObjectId ends in 2106.
                let [Ok(one), Ok(other)] = texts else {
                    prop_assert_eq!(form, TextForm::ObjectId);
                    continue;
                };
                prop_assert_eq!(one.as_str().len(), form.length());
                for (id, text) in [(ids[0], one), (ids[1], other)] {
                    prop_assert_eq!(form.read(layout, text.as_str()), Ok(id));
                    prop_assert_eq!(form.read(layout, &text.as_str().to_uppercase()), Ok(id));
                }
                if form != TextForm::Tsid {
                    let key = |id| {
                        let parts = layout.decode(id).unwrap();
                        (parts.timestamp, parts.sequence, parts.worker)
                    };
                    let order = key(ids[0]).cmp(&key(ids[1]));
                    prop_assert_eq!(one.as_str().cmp(other.as_str()), order);
                }
            }
        }

        /// A text with one changed character is another id or none, never the same id.
        #[test]
        fn a_changed_text_is_another_id_or_none(
            tick in 0..1u64 << 41, worker in 0..1024u64, sequence in 0..4096u64,
            place in 0..36usize, byte in 0x20..0x7fu8,
        ) {
            let id = compose(Layout::LEAF, tick, worker, sequence);
            for form in TextForm::ALL {
                let Ok(text) = form.write(Layout::LEAF, id) else { continue };
                let mut bytes = text.as_str().as_bytes().to_vec();
                let place = place % bytes.len();
                if bytes[place].eq_ignore_ascii_case(&byte) { continue }
                bytes[place] = byte;
                let changed = String::from_utf8(bytes).unwrap();
                prop_assert_ne!(form.read(Layout::LEAF, &changed), Ok(id));
            }
        }

        #[test]
        fn anything_else_is_refused_without_a_panic(text in "\\PC{0,40}") {
            for form in TextForm::ALL {
                if let Ok(id) = form.read(Layout::LEAF, &text) {
                    prop_assert!(form.write(Layout::LEAF, id).unwrap().as_str().eq_ignore_ascii_case(&text));
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        use leaf_core::{Field, Unit};
        let fields = [(Field::Timestamp, 8), (Field::Worker, 31), (Field::Sequence, 24)];
        let wide = Layout::new(fields, Unit::Second, UnixMillis::EPOCH).unwrap();
        let id = compose(wide, 1, 2, 3);
        let refused = TextForm::ObjectId.write(wide, id);
        assert_eq!(refused, Err(TextFormError::TooWide { form: TextForm::ObjectId, free: 54 }));
        assert!(TextForm::Uuid.write(wide, id).is_ok());

        let late = Layout::LEAF.with_epoch(UnixMillis::new((1 << 32) * 1000));
        let id = compose(late, 0, 0, 0);
        let refused = TextForm::ObjectId.write(late, id);
        assert_eq!(
            refused,
            Err(TextFormError::TooLate(TextForm::ObjectId)),
            "the seconds have 32 bits"
        );
        assert!(TextForm::Ulid.write(late, id).is_ok());
    }

    #[test]
    fn what_others_made_is_told_from_what_is_malformed() {
        let foreign = "01a07edf-8bc1-7fff-8abc-0000000003ff";
        assert_eq!(
            TextForm::Uuid.read(Layout::LEAF, foreign),
            Err(TextFormError::Foreign(TextForm::Uuid))
        );
        for malformed in
            ["", "01a07edf-8bc1-7fff-8abc-0000000003fg", "01a07edf08bc1-7fff-8abc-0000000003ff"]
        {
            let refused = TextForm::Uuid.read(Layout::LEAF, malformed);
            assert_eq!(refused, Err(TextFormError::Malformed(TextForm::Uuid)), "{malformed}");
        }
        let version_4 = "01a07edf-8bc1-4fff-8000-0000000003ff";
        assert!(TextForm::Uuid.read(Layout::LEAF, version_4).is_err());
    }
}
