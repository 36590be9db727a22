//! How fast ids flow, over the last minute.
//!
//! The count is looked at now and then instead of timing every id: the hot path pays nothing.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How often the count is looked at.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
const WINDOW: Duration = Duration::from_secs(60);

/// What the count was at moments of the last minute.
#[derive(Debug, Default)]
pub(crate) struct Rate(VecDeque<(Instant, u64)>);

impl Rate {
    /// Remembers the count; call it every [`EVERY`].
    pub(crate) fn sample(&mut self, now: Instant, count: u64) {
        while self.0.front().is_some_and(|(at, _)| now - *at > WINDOW) {
            self.0.pop_front();
        }
        self.0.push_back((now, count));
    }

    /// Ids per second since the oldest moment that is remembered; 0 when there is none.
    pub(crate) fn per_second(&self, now: Instant, count: u64) -> f64 {
        let Some((at, before)) = self.0.front() else { return 0.0 };
        let seconds = (now - *at).as_secs_f64();
        if seconds > 0.0 { count.saturating_sub(*before) as f64 / seconds } else { 0.0 }
    }
}

#[cfg(all(test, not(leaf_loom)))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn is_that_of_the_last_minute() {
        let mut rate = Rate::default();
        let start = Instant::now();
        assert_eq!(rate.per_second(start, 500), 0.0);
        // 100 ids a second for two minutes, then 10.
        let count = |seconds: u64| 100 * seconds.min(120) + 10 * seconds.saturating_sub(120);
        for seconds in (0..=240).step_by(5) {
            let now = start + Duration::from_secs(seconds);
            rate.sample(now, count(seconds));
            let measured = rate.per_second(now + Duration::from_secs(1), count(seconds + 1));
            match seconds {
                5..=115 => assert_eq!(measured, 100.0),
                185.. => assert_eq!(measured, 10.0),
                _ => {}
            }
        }
        assert!(rate.0.len() <= 14, "bounded");
    }
}
