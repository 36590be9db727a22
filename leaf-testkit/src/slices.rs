//! Slices of time: who issued which timestamps of a worker id.
//!
//! Invariant: all timestamps of a later holder of a worker id are above those of an earlier holder.
//! Then ids cannot repeat. To look for equal ids would find an overlap only by luck, since they
//! must have the same sequence, too.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

/// Per worker id and holder, in the order of their claims, the least and the greatest timestamp.
#[derive(Debug, Default)]
pub struct Slices(HashMap<u32, BTreeMap<u64, (u64, u64)>>);

impl Slices {
    /// Records that the holder number `holder` of `worker` issued the timestamp `at`. The number is
    /// the term of its lease, or any other count of the holders.
    ///
    /// # Errors
    /// A text that names both holders, if their slices overlap.
    pub fn record(&mut self, worker: u32, holder: u64, at: u64) -> Result<(), String> {
        let holders = self.0.entry(worker).or_default();
        let (least, greatest) = holders.entry(holder).or_insert((at, at));
        (*least, *greatest) = (at.min(*least), at.max(*greatest));
        for (other, (least, greatest)) in holders {
            let apart = match (*other).cmp(&holder) {
                Ordering::Less => *greatest < at,
                Ordering::Equal => true,
                Ordering::Greater => at < *least,
            };
            if !apart {
                return Err(format!(
                    "{at} of worker {worker} was used by holder {holder}, although holder {other} used \
                     {least} to {greatest}"
                ));
            }
        }
        Ok(())
    }

    /// How many holders a worker id had.
    #[must_use]
    pub fn holders(&self, worker: u32) -> usize {
        self.0.get(&worker).map_or(0, BTreeMap::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_meet_or_interleave_are_told() {
        let mut slices = Slices::default();
        for (holder, at) in [(1, 10), (1, 20), (2, 21), (2, 30), (1, 15)] {
            slices.record(0, holder, at).unwrap();
        }
        slices.record(1, 2, 5).unwrap();
        assert_eq!((slices.holders(0), slices.holders(1), slices.holders(2)), (2, 1, 0));
        assert!(slices.record(0, 1, 21).unwrap_err().contains("holder 2 used 21 to 30"));
        assert!(Slices::default().record(0, 1, 1).is_ok());
        let mut slices = Slices::default();
        slices.record(0, 2, 100).unwrap();
        assert!(slices.record(0, 3, 100).is_err(), "the same timestamp");
    }
}
