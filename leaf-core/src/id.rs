//! The id, the number that Leaf hands out.
//!
//! Invariant: an id is never negative, so that it fits a signed BIGINT and Java's `long`.

use std::fmt;
use std::str::FromStr;

/// A 64-bit id between 0 and `i64::MAX`.
///
/// In JSON write it as a string: JavaScript loses digits above 2^53.
///
/// ```
/// use leaf_core::Id;
///
/// let id = Id::new(42).expect("not negative");
/// assert_eq!(id.get(), 42);
/// assert_eq!(id.to_string(), "42");
/// assert!(Id::new(-1).is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(i64);

impl Id {
    /// The greatest id, `i64::MAX`.
    pub const MAX: Self = Self(i64::MAX);

    /// The id of this value; `None` when it is negative.
    #[inline]
    #[must_use]
    pub const fn new(value: i64) -> Option<Self> {
        if value < 0 { None } else { Some(Self(value)) }
    }

    /// The id in the lower 63 bits of `bits`.
    #[inline]
    pub(crate) const fn from_low_bits(bits: u64) -> Self {
        Self((bits & i64::MAX as u64).cast_signed())
    }

    /// The value, 0 to `i64::MAX`.
    #[inline]
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Id> for i64 {
    fn from(id: Id) -> Self {
        id.0
    }
}

impl FromStr for Id {
    type Err = ParseIdError;

    /// Reads decimal digits.
    ///
    /// # Errors
    /// [`ParseIdError`] for anything that is not a decimal number from 0 to `i64::MAX`.
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let value = if digits { text.parse().ok() } else { None };
        value.and_then(Self::new).ok_or(ParseIdError)
    }
}

/// The text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an id: give a decimal number from 0 to 9223372036854775807")]
pub struct ParseIdError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for value in [0, 1, i64::MAX] {
            let id = Id::new(value).unwrap();

            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn refuses_what_is_no_id() {
        for text in ["", "abc", "-1", "+1", "9223372036854775808", "1.0", " 1"] {
            assert_eq!(text.parse::<Id>(), Err(ParseIdError), "{text:?}");
        }
    }
}
