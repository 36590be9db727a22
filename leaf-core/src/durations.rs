//! A histogram of durations, for a page of metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The bound of the first bucket, in nanoseconds.
const FIRST: u64 = 16_000;
/// How many buckets have a bound.
const BOUNDED: usize = 20;

/// Counts of durations in buckets whose bounds double, from 16 µs to 8.4 s, and the sum of the
/// durations.
///
/// [`Self::add`] costs two atomic additions, whatever `times` is. A thread that adds often should
/// have its own `Durations`: two threads that add to the same one slow each other down.
///
/// ```
/// use std::time::Duration;
/// use leaf_core::Durations;
///
/// let durations = Durations::default();
/// durations.add(Duration::from_micros(20), 3);
/// let counts = durations.counts();
/// assert_eq!((counts.buckets[0], counts.buckets[1]), (0, 3));
/// assert_eq!(counts.sum, Duration::from_micros(60));
/// ```
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [AtomicU64; BOUNDED + 1],
    /// Nanoseconds: enough for 584 years.
    sum: AtomicU64,
}

/// A snapshot of a [`Durations`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurationCounts {
    /// How many durations each bucket has: those above the bound of the bucket before it, up to and
    /// including its own bound. The last bucket has no bound.
    pub buckets: [u64; BOUNDED + 1],
    /// The sum of all durations. If it is read while other threads add, it may be ahead of the
    /// buckets or behind them, by the additions under way.
    pub sum: Duration,
}

impl Durations {
    /// Counts `times` operations that took `duration` each.
    pub fn add(&self, duration: Duration, times: u64) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)].fetch_add(times, Ordering::Relaxed);
        self.sum.fetch_add(nanos.saturating_mul(times), Ordering::Relaxed);
    }

    /// Returns the present counts and the present sum.
    #[must_use]
    pub fn counts(&self) -> DurationCounts {
        DurationCounts {
            buckets: self.buckets.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum: Duration::from_nanos(self.sum.load(Ordering::Relaxed)),
        }
    }
}

impl DurationCounts {
    /// The upper bounds of the buckets in ascending order. The last bucket has none and is left
    /// out.
    pub fn bounds() -> impl Iterator<Item = Duration> {
        (0..BOUNDED).map(|bucket| Duration::from_nanos(FIRST << bucket))
    }

    /// How many durations there were.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds the counts and the sum of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += more;
        }
        self.sum += other.sum;
    }
}

/// The index of the first bucket whose bound is at least `nanos`.
fn bucket(nanos: u64) -> usize {
    let firsts = nanos.div_ceil(FIRST).max(1);
    // The binary logarithm, rounded up.
    let doublings = (u64::BITS - (firsts - 1).leading_zeros()) as usize;
    doublings.min(BOUNDED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_is_not_below() {
        let bounds: Vec<u64> =
            DurationCounts::bounds().map(|bound| bound.as_nanos() as u64).collect();
        assert_eq!((bounds[0], bounds[19]), (16_000, 8_388_608_000));
        for nanos in bounds.iter().flat_map(|bound| [bound - 1, *bound, bound + 1]) {
            let expected = bounds.iter().position(|bound| nanos <= *bound);
            assert_eq!(bucket(nanos), expected.unwrap_or(BOUNDED), "{nanos}");
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BOUNDED));
    }

    #[test]
    fn counts_of_several_are_added() {
        let (one, other) = (Durations::default(), Durations::default());
        one.add(Duration::from_micros(1), 2);
        one.add(Duration::MAX, 1);
        other.add(Duration::from_micros(17), 1);
        let mut counts = DurationCounts::default();
        counts.merge(&other.counts());
        assert_eq!((counts.total(), counts.sum), (1, Duration::from_micros(17)));
        counts.merge(&DurationCounts { sum: Duration::ZERO, ..one.counts() });
        assert_eq!((counts.buckets[0], counts.buckets[1], counts.buckets[20]), (2, 1, 1));
    }
}
