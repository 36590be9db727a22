//! Several ids of one sequencer at once.

use std::fmt;
use std::iter::FusedIterator;

use crate::{Composer, Id};

/// Ids of one worker id that were taken together: an iterator in increasing order, which composes
/// each id when it is read.
pub struct IdRun {
    composer: Composer,
    position: u64,
    end: u64,
}

impl IdRun {
    /// The ids at the positions from `position` up to, not including, `end`.
    pub(super) const fn new(composer: Composer, position: u64, end: u64) -> Self {
        Self { composer, position, end }
    }
}

impl Iterator for IdRun {
    type Item = Id;

    #[inline]
    fn next(&mut self) -> Option<Id> {
        (self.position < self.end).then(|| {
            let id = self.composer.id(self.position);
            self.position += 1;
            id
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

impl ExactSizeIterator for IdRun {}
impl FusedIterator for IdRun {}

impl fmt::Debug for IdRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdRun({} ids)", self.len())
    }
}
