//! Limits how often requests are retried, so that retries do not double the load of servers that
//! are in trouble.

use std::sync::Mutex;

use tokio::time::Instant;

/// What one request earns. A retry costs 1, so ten requests pay for one retry.
const EARNED: f64 = 0.1;
/// What each second earns as well: a client with few requests may still retry once a second.
const PER_SECOND: f64 = 1.0;
/// The most retries that can be saved up.
const MOST: f64 = 10.0;

/// The number of retries that may be made now, and when it was last calculated. All requests of a
/// client share one budget.
#[derive(Debug)]
pub(crate) struct RetryBudget(Mutex<(f64, Instant)>);

impl RetryBudget {
    /// Returns a full budget: a client that has just started may retry [`MOST`] times.
    pub(crate) fn new() -> Self {
        Self(Mutex::new((MOST, Instant::now())))
    }

    /// Adds what one request earns.
    pub(crate) fn earn(&self) {
        self.change(EARNED);
    }

    /// Spends one retry; `false` if none is left.
    pub(crate) fn spend(&self) -> bool {
        self.change(-1.0)
    }

    /// Adds what the time since the last change has earned, then `by`, which is -1 for a retry.
    /// Returns whether the budget suffices; if not, `by` is not applied.
    fn change(&self, by: f64) -> bool {
        let mut budget = self.0.lock().expect("no holder of this lock panics");
        let now = Instant::now();
        let earned = (now - budget.1).as_secs_f64() * PER_SECOND;
        let saved = (budget.0 + earned).min(MOST);
        let after = (saved + by).min(MOST);
        *budget = (if after < 0.0 { saved } else { after }, now);
        after >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn retries_are_a_tenth_of_the_requests_and_one_a_second() {
        let budget = RetryBudget::new();
        assert_eq!((0..100).filter(|_| budget.spend()).count(), 10);
        for _ in 0..25 {
            budget.earn();
        }
        assert_eq!((0..100).filter(|_| budget.spend()).count(), 2);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!((0..100).filter(|_| budget.spend()).count(), 3);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!((0..100).filter(|_| budget.spend()).count(), 10);
    }
}
