//! Checks strict order: a call that was sent after another one was answered must get greater ids.
//!
//! Every call is recorded with the instants at which it was sent and answered. All instants are of
//! one clock, so all callers are in one process, on any number of threads. A call without an answer
//! is not recorded.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A call that was answered with ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// When it was sent, on a clock that all calls share.
    pub sent: Duration,
    /// When its answer was read.
    pub answered: Duration,
    /// The least id that it got.
    pub least: i64,
    /// The greatest id that it got.
    pub greatest: i64,
}

/// A call that got an id which is not greater than an id that was answered before the call was
/// sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfOrder {
    /// The call.
    pub call: Call,
    /// The greatest id that was answered before the call was sent.
    pub answered_before: i64,
}

/// The calls that break strict order.
#[must_use]
pub fn out_of_order(calls: &[Call]) -> Vec<OutOfOrder> {
    let mut by_sent = calls.to_vec();
    by_sent.sort_unstable_by_key(|call| call.sent);
    let mut by_answer = by_sent.clone();
    by_answer.sort_unstable_by_key(|call| call.answered);
    let (mut complete, mut answered_before, mut broken) = (0, i64::MIN, Vec::new());
    for call in by_sent {
        while let Some(earlier) = by_answer.get(complete).filter(|it| it.answered < call.sent) {
            answered_before = answered_before.max(earlier.greatest);
            complete += 1;
        }
        if call.least <= answered_before {
            broken.push(OutOfOrder { call, answered_before });
        }
    }
    broken
}

/// Records calls, from any thread.
#[derive(Debug)]
pub struct CallLog {
    start: Instant,
    calls: Mutex<Vec<Call>>,
}

impl Default for CallLog {
    fn default() -> Self {
        Self { start: Instant::now(), calls: Mutex::default() }
    }
}

impl CallLog {
    /// The present instant. Take it before the call is sent, and pass it to [`Self::record`].
    #[must_use]
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Records a call that was sent at `sent` and is answered now, with the ids from `least` to
    /// `greatest`.
    pub fn record(&self, sent: Duration, least: i64, greatest: i64) {
        let answered = self.now();
        let call = Call { sent, answered, least, greatest };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// How many calls are recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether no call is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asserts strict order among at least `expected` calls.
    ///
    /// # Panics
    /// When a call breaks strict order, or fewer calls are recorded.
    pub fn expect_strict_order(&self, expected: usize) {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(calls.len() >= expected, "only {} calls were answered", calls.len());
        let broken = out_of_order(&calls);
        if let Some(first) = broken.first() {
            panic!(
                "strict order is broken by {} of {} calls, first by {:?}: {} was answered before it was sent",
                broken.len(),
                calls.len(),
                first.call,
                first.answered_before
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(sent: u64, answered: u64, least: i64, greatest: i64) -> Call {
        let at = Duration::from_micros;
        Call { sent: at(sent), answered: at(answered), least, greatest }
    }

    #[test]
    fn calls_at_the_same_time_may_have_any_order() {
        assert!(
            out_of_order(&[call(0, 10, 5, 5), call(3, 9, 1, 4), call(10, 12, 6, 6)]).is_empty()
        );
    }

    #[test]
    fn a_later_call_with_a_lower_id_is_found() {
        let broken = out_of_order(&[call(11, 12, 3, 8), call(0, 10, 4, 5)]);
        assert_eq!(broken, [OutOfOrder { call: call(11, 12, 3, 8), answered_before: 5 }]);
    }
}
