//! How much to fetch: Leaf's dynamic step.
//!
//! A segment that lasted under 15 minutes doubles the next one while the double stays within the
//! maximum; 15 to 30 minutes keep it; over 30 minutes halve it, never below the record's step.
//! The rule is Meituan's (`SegmentIDGenImpl.updateSegmentFromDb`); what differs is that the clock
//! is monotonic, nothing overflows, and a step changed in the record counts at once. And where a
//! segment lasted less than two fetches take, doubling once would leave callers waiting a few times
//! more: it is doubled until it would last that long, up to sixteenfold.

use std::time::Duration;

use leaf_core::Step;

const SHORT: Duration = Duration::from_secs(15 * 60);

/// The step of one tag's next fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepPolicy {
    record: Step,
    /// What was granted last; nothing yet since the record was read or changed.
    current: Option<Step>,
    /// How long the last fetch took.
    fetch: Duration,
}

/// How often a step is doubled at most for one fetch.
const MOST_DOUBLINGS: u32 = 4;

impl StepPolicy {
    /// Starts at the record's own step.
    pub(crate) const fn new(record: Step) -> Self {
        Self { record, current: None, fetch: Duration::ZERO }
    }

    /// The step that the record was last seen with.
    pub(crate) const fn record(self) -> Step {
        self.record
    }

    /// The amount to fetch when the last one was fetched `ago`.
    pub(crate) fn amount(self, ago: Duration, max_step: Step) -> Step {
        let Some(current) = self.current else { return self.record };
        if ago < SHORT {
            // A segment that ran dry was asked for while nobody was served, and asked for the next
            // when a tenth of it was gone.
            let lasted = ago.min(ago.saturating_sub(self.fetch).saturating_mul(10));
            let mut amount = current;
            for doublings in 1..=MOST_DOUBLINGS {
                let Some(double) = amount.double().filter(|double| *double <= max_step) else {
                    break;
                };
                amount = double;
                if lasted.saturating_mul(1 << doublings) >= 2 * self.fetch {
                    break;
                }
            }
            amount
        } else if ago < 2 * SHORT {
            current
        } else {
            current.half().max(self.record)
        }
    }

    /// `amount` was granted by a fetch that took so long.
    pub(crate) const fn granted(&mut self, amount: Step, fetch: Duration) {
        self.current = Some(amount);
        self.fetch = fetch;
    }

    /// The record's step was changed: it counts from the next fetch on.
    pub(crate) fn record_changed(&mut self, step: Step) {
        if step != self.record {
            *self = Self::new(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(value: i64) -> Step {
        Step::new(value).unwrap()
    }

    fn after(policy: StepPolicy, minutes: u64) -> u32 {
        policy.amount(Duration::from_secs(minutes * 60), step(1_000_000)).get()
    }

    #[test]
    fn follows_leafs_rule() {
        let mut policy = StepPolicy::new(step(1000));
        assert_eq!(after(policy, 1), 1000);
        policy.granted(step(4000), Duration::ZERO);

        assert_eq!(after(policy, 14), 8000);
        assert_eq!(after(policy, 15), 4000);
        assert_eq!(after(policy, 29), 4000);
        assert_eq!(after(policy, 30), 2000);
    }

    #[test]
    fn stays_between_the_record_and_the_maximum() {
        let mut policy = StepPolicy::new(step(300_000));
        policy.granted(step(600_000), Duration::ZERO);
        assert_eq!(after(policy, 1), 600_000, "the double would exceed the maximum");

        policy.granted(step(400_000), Duration::ZERO);
        assert_eq!(after(policy, 60), 300_000, "not below the record");
    }

    #[test]
    fn a_segment_that_is_outrun_grows_at_once() {
        let mut policy = StepPolicy::new(step(100));
        policy.granted(step(100), Duration::from_millis(50));
        let after = |millis| policy.amount(Duration::from_millis(millis), step(1_000_000)).get();

        assert_eq!(after(100), 200, "two fetches fit");
        assert_eq!(after(60), 200, "and into the double");
        assert_eq!(after(52), 800, "it ran dry: 20 ms after its arrival a tenth is gone in 2 ms");
        assert_eq!(after(51), 1600);
        assert_eq!(after(50), 1600, "no more than sixteenfold");
        let limited = policy.amount(Duration::from_millis(50), step(700));
        assert_eq!(limited.get(), 400, "within the maximum");
    }

    #[test]
    fn a_record_above_the_maximum_is_honoured() {
        let mut policy = StepPolicy::new(Step::MAX);
        policy.granted(Step::MAX, Duration::ZERO);

        assert_eq!(after(policy, 1), Step::MAX.get());
        assert_eq!(after(policy, 60), Step::MAX.get());
    }

    #[test]
    fn a_changed_record_counts_at_once() {
        let mut policy = StepPolicy::new(step(1000));
        policy.granted(step(64_000), Duration::ZERO);

        policy.record_changed(step(1000));
        assert_eq!(after(policy, 20), 64_000, "nothing changed");

        policy.record_changed(step(10));
        assert_eq!(after(policy, 1), 10);
    }
}
