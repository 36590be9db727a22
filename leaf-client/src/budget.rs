//! How often a request may be tried again: retries must not double the load of servers that are in
//! trouble.

use std::sync::Mutex;

use tokio::time::Instant;

/// A retry costs 1; a request earns this much, so that retries are a tenth of the requests.
const EARNED: f64 = 0.1;
/// A client that asks seldom may retry this often in a second all the same.
const PER_SECOND: f64 = 1.0;
/// What can be saved up.
const MOST: f64 = 10.0;

/// How many retries may be made now, and when that was last reckoned. One for all requests of a
/// client.
#[derive(Debug)]
pub(crate) struct RetryBudget(Mutex<(f64, Instant)>);

impl RetryBudget {
    /// A full one: a client that has just started may retry [`MOST`] times.
    pub(crate) fn new() -> Self {
        Self(Mutex::new((MOST, Instant::now())))
    }

    /// A request is made.
    pub(crate) fn earn(&self) {
        self.change(EARNED);
    }

    /// Whether a request may be tried again.
    pub(crate) fn spend(&self) -> bool {
        self.change(-1.0)
    }

    /// Adds what the time since the last change has earned, then `by`. Returns whether it sufficed;
    /// a budget that does not suffice is left as it is.
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
