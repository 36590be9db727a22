//! A block of consecutive ids.
//!
//! Invariant: half-open, `0 <= start < end`; so a range is never empty and its length fits an
//! `i64`.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;

use crate::Id;

/// The ids from `start` up to, not including, `end`.
///
/// ```
/// use leaf_core::{Id, IdRange};
///
/// let range = IdRange::new(1, 2001).expect("0 <= start < end");
/// assert_eq!(range.len(), 2000);
/// assert_eq!(range.first(), Id::new(1).unwrap());
/// assert_eq!(range.to_string(), "[1, 2001)");
/// assert!(IdRange::new(5, 5).is_none());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdRange {
    start: i64,
    end: i64,
}

impl IdRange {
    /// The range `[start, end)`; `None` unless `0 <= start < end`.
    #[must_use]
    pub const fn new(start: i64, end: i64) -> Option<Self> {
        if 0 <= start && start < end { Some(Self { start, end }) } else { None }
    }

    /// The first id of the range.
    #[must_use]
    pub const fn first(self) -> Id {
        Id::from_low_bits(self.start.cast_unsigned())
    }

    /// Where the range starts, inclusive.
    #[must_use]
    pub const fn start(self) -> i64 {
        self.start
    }

    /// Where the range ends, exclusive.
    #[must_use]
    pub const fn end(self) -> i64 {
        self.end
    }

    /// How many ids it holds, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    #[must_use]
    pub const fn len(self) -> u64 {
        (self.end - self.start).cast_unsigned()
    }

    /// Whether `self` and `other` share an id.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The ids, in order.
    #[must_use]
    pub const fn iter(self) -> IdRangeIter {
        IdRangeIter(self.start..self.end)
    }
}

impl IntoIterator for IdRange {
    type Item = Id;
    type IntoIter = IdRangeIter;

    /// ```
    /// use leaf_core::IdRange;
    ///
    /// let range = IdRange::new(7, 10).expect("0 <= start < end");
    /// let ids: Vec<i64> = range.into_iter().map(i64::from).collect();
    /// assert_eq!(ids, [7, 8, 9]);
    /// ```
    fn into_iter(self) -> IdRangeIter {
        self.iter()
    }
}

/// The ids of an [`IdRange`], in order. A `Default` value has no ids.
#[derive(Debug, Clone, Default)]
pub struct IdRangeIter(Range<i64>);

impl IdRangeIter {
    /// The ids that are left; `None` if none is left.
    ///
    /// ```
    /// use leaf_core::IdRange;
    ///
    /// let mut ids = IdRange::new(7, 10).expect("0 <= start < end").iter();
    /// ids.next();
    /// assert_eq!(ids.rest(), IdRange::new(8, 10));
    /// ```
    #[must_use]
    pub fn rest(&self) -> Option<IdRange> {
        IdRange::new(self.0.start, self.0.end)
    }
}

impl Iterator for IdRangeIter {
    type Item = Id;

    #[inline]
    fn next(&mut self) -> Option<Id> {
        self.0.next().map(|id| Id::from_low_bits(id.cast_unsigned()))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }

    fn nth(&mut self, n: usize) -> Option<Id> {
        self.0.nth(n).map(|id| Id::from_low_bits(id.cast_unsigned()))
    }
}

impl DoubleEndedIterator for IdRangeIter {
    fn next_back(&mut self) -> Option<Id> {
        self.0.next_back().map(|id| Id::from_low_bits(id.cast_unsigned()))
    }
}

impl FusedIterator for IdRangeIter {}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

impl fmt::Debug for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdRange{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_empty_reversed_and_negative_ranges() {
        for (start, end) in [(0, 0), (5, 4), (-1, 3), (-5, -1)] {
            assert!(IdRange::new(start, end).is_none(), "{start}..{end}");
        }
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let left = IdRange::new(1, 11).unwrap();
        let right = IdRange::new(11, 21).unwrap();

        assert!(!left.overlaps(right) && !right.overlaps(left));
        assert!(left.overlaps(IdRange::new(10, 12).unwrap()));
    }

    #[test]
    fn lists_exactly_its_ids() {
        let ids: Vec<i64> = IdRange::new(7, 10).unwrap().iter().map(Id::get).collect();

        assert_eq!(ids, [7, 8, 9]);
    }
}
