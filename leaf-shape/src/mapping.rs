//! Computes ids from numbers, for tags whose numbers are not the ids.
//!
//! Invariant: the mapping is one-to-one for all numbers that can be allocated. They end where the
//! ids end (`TagSettings::number_end` in leaf-segment).

use std::fmt;
use std::sync::Arc;

use leaf_core::{Id, IdRange, IdRangeIter, Tag};

use crate::keys::{KeyProblem, KeyRing, Scramble};
use crate::{Interleave, Meaning, Shape};

/// How many ids are computed from numbers at a time, for tags that have a [`Mapping`].
const BATCH: usize = 32;

/// Computes ids from the numbers of a tag.
#[derive(Debug)]
pub struct Mapping(Way);

#[derive(Debug)]
enum Way {
    /// The ids are the numbers minus this.
    Offset(i64),
    Interleave(Interleave),
    Scramble(Box<Scramble>),
}

impl Mapping {
    /// The mapping of a tag's numbers to ids; `None` where the numbers are the ids.
    ///
    /// # Errors
    /// The key of scrambled ids is missing in `keys`, or is another one.
    pub fn of(meaning: Meaning, tag: &Tag, keys: &KeyRing) -> Result<Option<Self>, KeyProblem> {
        let way = match meaning.shape {
            Shape::Plain => {
                Some(meaning.counter_offset()).filter(|offset| *offset > 0).map(Way::Offset)
            }
            Shape::Interleave(part) => Some(Way::Interleave(part)),
            Shape::Scramble { domain, key } => {
                Some(Way::Scramble(Box::new(keys.scramble(domain, key, tag)?)))
            }
        };
        Ok(way.map(Self))
    }

    /// The id of a number.
    ///
    /// # Panics
    /// If no tag of this meaning can have the number.
    #[must_use]
    pub fn id(&self, number: Id) -> Id {
        let id = match &self.0 {
            Way::Offset(offset) => Id::new(number.get() - offset),
            Way::Interleave(part) => part.id(number.get()).and_then(Id::new),
            Way::Scramble(scramble) => scramble.id(number.get()),
        };
        id.expect("ranges end where the ids do")
    }

    /// What to subtract from numbers to get ids; `None` if the mapping does something else.
    const fn counter_offset(&self) -> Option<i64> {
        match self.0 {
            Way::Offset(offset) => Some(offset),
            Way::Interleave(_) | Way::Scramble(_) => None,
        }
    }

    /// Fills `to` with the ids of the numbers from `first` on.
    fn ids(&self, first: Id, to: &mut [Id]) {
        match &self.0 {
            Way::Offset(_) | Way::Interleave(_) => {
                for (id, number) in to.iter_mut().zip(first.get()..) {
                    *id = self.id(Id::new(number).expect("ranges end where the ids do"));
                }
            }
            Way::Scramble(scramble) => {
                let made = scramble.ids(first.get(), to);
                assert_eq!(made, to.len(), "ranges end where the ids do");
            }
        }
    }
}

/// Ids that were taken, in the order in which they were taken.
#[derive(Debug)]
pub struct Ids {
    /// The range whose ids come next.
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
    #[must_use]
    pub fn of_range(range: IdRange, mapping: Option<&Arc<Mapping>>) -> Self {
        let batch = mapping.map(|mapping| {
            let mapping = Arc::clone(mapping);
            Box::new(Batch { mapping, ids: [Id::MAX; BATCH], at: 0, end: 0 })
        });
        Self { current: range.iter(), rest: Vec::new().into_iter(), left: range.len(), batch }
    }

    /// The ids of several ranges of numbers; `None` if `ranges` is empty.
    #[must_use]
    pub fn of_ranges(ranges: Vec<IdRange>, mapping: Option<&Arc<Mapping>>) -> Option<Self> {
        let left = ranges.iter().map(|range| range.len()).sum();
        let mut rest = ranges.into_iter();
        let first = rest.next()?;
        Some(Self { rest, left, ..Self::of_range(first, mapping) })
    }

    /// The ids that were not read yet, as ranges, in the order in which they were taken. `None` if
    /// consecutive numbers form no range of ids ([`Meaning::has_ranges`]), or if a mapping has
    /// already computed some ids.
    ///
    /// ```
    /// use leaf_core::IdRange;
    /// use leaf_shape::Ids;
    ///
    /// let range = IdRange::new(1, 4).ok_or("a range")?;
    /// assert_eq!(Ids::of_range(range, None).into_ranges(), Some(vec![range]));
    /// # Ok::<(), &str>(())
    /// ```
    #[must_use]
    pub fn into_ranges(self) -> Option<Vec<IdRange>> {
        let offset = match &self.batch {
            None => 0,
            Some(batch) if batch.end == 0 => batch.mapping.counter_offset()?,
            Some(_) => return None,
        };
        let numbers = self.current.rest().into_iter().chain(self.rest);
        numbers.map(|range| IdRange::new(range.start() - offset, range.end() - offset)).collect()
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

    /// Computes the next batch of ids, and returns the first of them.
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
        let domain = crate::keys::ScrambleDomain::Digits10;
        let key = ring.newest(domain, &tag).unwrap().key();
        let part = Interleave::new(2, 8).unwrap();
        let range = |start, end| IdRange::new(start, end).unwrap();
        let ranges = vec![range(1, 3), range(10, 110), range(500, 501)];
        for shape in [Shape::Plain, Shape::Interleave(part), Shape::Scramble { domain, key }] {
            let meaning = Meaning { shape, ..Meaning::PLAIN };
            let mapping = Mapping::of(meaning, &tag, &ring).unwrap().map(Arc::new);
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
