//! How much to fetch: Leaf's dynamic step.
//!
//! If a segment lasted less than 15 minutes, the next one is twice as large, provided that this is
//! within the maximum; after 15 to 30 minutes it is as large; after 30 and more it is half as
//! large, never below the record's step. The rule is Meituan's
//! (`SegmentIDGenImpl.updateSegmentFromDb`); what differs is that the clock is monotonic, nothing
//! overflows, and a step changed in the record counts at once. Also, if a segment lasted less than
//! two fetches take, one doubling could be too little and callers would wait again: the step is
//! doubled until a segment would last that long, up to sixteenfold.

use std::time::Duration;

use leaf_core::Step;

use crate::SegmentConfig;
use crate::store::TagSettings;

const SHORT: Duration = Duration::from_secs(15 * 60);

/// Determines the dynamic step of one tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepPolicy {
    record: Step,
    /// The amount that was granted last; `None` if none was since the record was read or changed.
    current: Option<Step>,
    /// How long the last fetch took.
    fetch: Duration,
}

/// The limits of the dynamic step. A record's own step is honoured even if it is above `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    min: Step,
    max: Step,
}

impl Bounds {
    pub(crate) const fn of(config: &SegmentConfig) -> Self {
        Self { min: config.min_step, max: config.max_step }
    }

    /// A tag's own settings outrank the generator's.
    pub(crate) fn overruled_by(self, settings: &TagSettings) -> Self {
        Self {
            min: settings.min_step.unwrap_or(self.min),
            max: settings.max_step.unwrap_or(self.max),
        }
    }
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
    pub(crate) fn amount(self, ago: Duration, bounds: Bounds) -> Step {
        let least = self.record.max(bounds.min);
        let most = bounds.max.max(least);
        let Some(current) = self.current else { return least };
        let current = current.clamp(least, most);
        if ago < SHORT {
            // If the buffer had run dry, the last segment arrived `fetch` after its request and was
            // used from then on, and this fetch is due because a tenth of it is used.
            let lasted = ago.min(ago.saturating_sub(self.fetch).saturating_mul(10));
            let mut amount = current;
            for doublings in 1..=MOST_DOUBLINGS {
                let Some(double) = amount.double().filter(|double| *double <= most) else {
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
            current.half().max(least)
        }
    }

    /// Records that a fetch which took `fetch` was granted `amount`.
    pub(crate) const fn granted(&mut self, amount: Step, fetch: Duration) {
        self.current = Some(amount);
        self.fetch = fetch;
    }

    /// Applies the record's step. If it has changed, the next fetch starts with it again.
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

    fn up_to(max: i64) -> Bounds {
        Bounds { min: Step::MIN, max: step(max) }
    }

    fn after(policy: StepPolicy, minutes: u64) -> u32 {
        policy.amount(Duration::from_secs(minutes * 60), up_to(1_000_000)).get()
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
        let after = |millis| policy.amount(Duration::from_millis(millis), up_to(1_000_000)).get();

        assert_eq!(after(100), 200, "two fetches fit");
        assert_eq!(after(60), 200, "and into the double");
        assert_eq!(after(52), 800, "it ran dry: 20 ms after its arrival a tenth is gone in 2 ms");
        assert_eq!(after(51), 1600);
        assert_eq!(after(50), 1600, "no more than sixteenfold");
        let limited = policy.amount(Duration::from_millis(50), up_to(700));
        assert_eq!(limited.get(), 400, "within the maximum");
    }

    #[test]
    fn bounds_hold_at_once_when_they_change() {
        let mut policy = StepPolicy::new(step(100));
        let bounds = |min, max| Bounds { min: step(min), max: step(max) };
        let minute = Duration::from_secs(60);
        assert_eq!(policy.amount(minute, bounds(500, 1000)).get(), 500, "from the first on");

        policy.granted(step(8000), Duration::ZERO);
        assert_eq!(policy.amount(20 * minute, bounds(1, 1000)).get(), 1000);
        assert_eq!(policy.amount(20 * minute, bounds(9000, 1000)).get(), 9000, "the least wins");
        assert_eq!(policy.amount(60 * minute, bounds(6000, 9000)).get(), 6000);
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
