//! Ids from numbers, in tags whose numbers are not the ids.
//!
//! Invariant: one-to-one for the numbers that an allocation may have, which end where the ids end
//! (`Meaning::number_end`).

use std::fmt;
use std::sync::Arc;

use leaf_core::{Id, IdRange, IdRangeIter, Scramble, Tag};

use crate::meaning::{Interleave, KeyProblem, KeyRing, Shape};

/// How many ids are computed from numbers at a time, for tags that are not in plain shape.
const BATCH: usize = 32;

/// What makes ids of numbers.
#[derive(Debug)]
pub(crate) enum Mapping {
    Interleave(Interleave),
    Scramble(Box<Scramble>),
}

impl Mapping {
    /// The mapping of a tag's numbers to ids; `None` where the numbers are the ids.
    pub(crate) fn of(shape: Shape, tag: &Tag, keys: &KeyRing) -> Result<Option<Self>, KeyProblem> {
        Ok(match shape {
            Shape::Plain => None,
            Shape::Interleave(part) => Some(Self::Interleave(part)),
            Shape::Scramble { domain, key } => {
                Some(Self::Scramble(Box::new(keys.scramble(domain, key, tag)?)))
            }
        })
    }

    /// The id of a number.
    pub(crate) fn id(&self, number: Id) -> Id {
        let id = match self {
            Self::Interleave(part) => part.id(number.get()).and_then(Id::new),
            Self::Scramble(scramble) => scramble.id(number.get()),
        };
        id.expect("ranges end where the ids do")
    }

    /// The ids of the numbers from `first` on.
    fn ids(&self, first: Id, to: &mut [Id]) {
        match self {
            Self::Interleave(_) => {
                for (id, number) in to.iter_mut().zip(first.get()..) {
                    *id = self.id(Id::new(number).expect("ranges end where the ids do"));
                }
            }
            Self::Scramble(scramble) => {
                let made = scramble.ids(first.get(), to);
                assert_eq!(made, to.len(), "ranges end where the ids do");
            }
        }
    }
}

/// Ids that were taken, in the order in which they were.
#[derive(Debug)]
pub struct Ids {
    /// Whose ids are next.
    current: IdRangeIter,
    rest: std::vec::IntoIter<IdRange>,
    left: u64,
    batch: Option<Box<Batch>>,
}

/// Ids that were made and not yielded yet.
struct Batch {
    mapping: Arc<Mapping>,
    ids: [Id; BATCH],
    at: usize,
    end: usize,
}

impl Ids {
    /// The ids of one range of numbers.
    pub(crate) fn of_range(range: IdRange, mapping: Option<&Arc<Mapping>>) -> Self {
        let batch = mapping.map(|mapping| {
            let mapping = Arc::clone(mapping);
            Box::new(Batch { mapping, ids: [Id::MAX; BATCH], at: 0, end: 0 })
        });
        Self { current: range.iter(), rest: Vec::new().into_iter(), left: range.len(), batch }
    }

    /// The ids of several ranges of numbers, at least one.
    pub(crate) fn of_ranges(ranges: Vec<IdRange>, mapping: Option<&Arc<Mapping>>) -> Option<Self> {
        let left = ranges.iter().map(|range| range.len()).sum();
        let mut rest = ranges.into_iter();
        let first = rest.next()?;
        Some(Self { rest, left, ..Self::of_range(first, mapping) })
    }

    #[inline]
    fn next_number(&mut self) -> Option<Id> {
        loop {
            if let Some(number) = self.current.next() {
                return Some(number);
            }
            self.current = self.rest.next()?.iter();
        }
    }

    /// Makes the next ids.
    #[cold]
    fn fill(&mut self) -> Option<Id> {
        let first = self.next_number()?;
        let more = self.current.by_ref().take(BATCH - 1).count();
        let batch = self.batch.as_mut()?;
        batch.end = 1 + more;
        batch.mapping.ids(first, &mut batch.ids[..batch.end]);
        batch.at = 1;
        Some(batch.ids[0])
    }
}

impl Iterator for Ids {
    type Item = Id;

    #[inline]
    fn next(&mut self) -> Option<Id> {
        let id = match &mut self.batch {
            None => self.next_number()?,
            Some(batch) if batch.at < batch.end => {
                batch.at += 1;
                batch.ids[batch.at - 1]
            }
            Some(_) => self.fill()?,
        };
        self.left -= 1;
        Some(id)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Ids {}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("mapping", &self.mapping).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_yields_what_one_by_one_does() {
        let ring = KeyRing::new(
            "1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f".parse().unwrap(),
        );
        let tag = Tag::parse("orders").unwrap();
        let domain = leaf_core::ScrambleDomain::Digits10;
        let key = ring.newest(domain, &tag).unwrap().key();
        let part = Interleave::new(2, 8).unwrap();
        let range = |start, end| IdRange::new(start, end).unwrap();
        let ranges = vec![range(1, 3), range(10, 110), range(500, 501)];
        for shape in [Shape::Plain, Shape::Interleave(part), Shape::Scramble { domain, key }] {
            let mapping = Mapping::of(shape, &tag, &ring).unwrap().map(Arc::new);
            let mut ids = Ids::of_ranges(ranges.clone(), mapping.as_ref()).unwrap();
            assert_eq!(ids.len(), 103);
            for number in ranges.iter().flat_map(|range| range.iter()) {
                let expected = mapping.as_ref().map_or(number, |mapping| mapping.id(number));
                assert_eq!(ids.next(), Some(expected), "{shape} {number}");
            }
            assert_eq!((ids.next(), ids.len()), (None, 0));
        }
    }
}
