//! The rate at which ids of a tag are issued, over the last minute.
//!
//! The count of issued ids is sampled at intervals, so that the hot path measures nothing.

use std::time::Duration;

use tokio::time::Instant;

/// How often the count is sampled.
pub(crate) const EVERY: Duration = Duration::from_secs(30);

/// The count at two moments of the last minute: the last sample, and the one before.
#[derive(Debug)]
pub(crate) struct Rate {
    before: (Instant, u64),
    last: (Instant, u64),
}

impl Rate {
    /// Starts with a count of 0.
    pub(crate) fn new(now: Instant) -> Self {
        Self { before: (now, 0), last: (now, 0) }
    }

    /// Remembers the count; call it every [`EVERY`].
    pub(crate) fn sample(&mut self, now: Instant, count: u64) {
        self.before = std::mem::replace(&mut self.last, (now, count));
    }

    /// Ids per second over the last 30 to 60 seconds, or since the beginning.
    pub(crate) fn per_second(&self, now: Instant, count: u64) -> f64 {
        let (at, before) = self.before;
        let seconds = (now - at).as_secs_f64().max(1.0);
        count.saturating_sub(before) as f64 / seconds
    }
}

#[cfg(all(test, not(leaf_loom)))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn is_that_of_the_last_minute() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert_eq!(rate.per_second(start, 500), 500.0, "within the first second");
        // 100 ids a second for two minutes, then 10.
        let count = |seconds: u64| 100 * seconds.min(120) + 10 * seconds.saturating_sub(120);
        for seconds in 1..=240 {
            let now = start + Duration::from_secs(seconds);
            if now.duration_since(start).as_secs().is_multiple_of(EVERY.as_secs()) {
                rate.sample(now, count(seconds));
            }
            let measured = rate.per_second(now, count(seconds));
            match seconds {
                ..=120 => assert_eq!(measured, 100.0),
                180.. => assert_eq!(measured, 10.0),
                _ => assert!((10.0..=100.0).contains(&measured)),
            }
        }
    }
}
