//! Limits how many members of each family a node makes in a second.
//!
//! Invariant: a flood of new names costs the store no more than a family allows each node in a
//! second.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use leaf_core::Tag;
use tokio::time::Instant;

/// How long a family makes no members after some could not be made in time.
const RESTS: Duration = Duration::from_secs(3);

/// For each family: how many members this node may still make, and when this was computed.
#[derive(Debug, Default)]
pub(crate) struct MemberRates(Mutex<HashMap<Tag, (f64, Instant)>>);

impl MemberRates {
    /// Stops a family for [`RESTS`], after members could not be made in time: look-ups of other
    /// names must not wait for it again and again.
    pub(crate) fn rest(&self, family: &Tag) {
        let mut rates = self.0.lock().expect("no holder of this lock panics");
        // What it may make grows from then on.
        rates.insert(family.clone(), (0.0, Instant::now() + RESTS));
    }

    /// Takes up to `wanted` of the members that a family still allows, and returns how many. At
    /// most `per_second` are available at once, and as many are added in each second.
    pub(crate) fn take(&self, family: &Tag, per_second: u32, wanted: usize) -> usize {
        let (most, now) = (f64::from(per_second), Instant::now());
        let mut rates = self.0.lock().expect("no holder of this lock panics");
        let (left, at) = rates.get(family).copied().unwrap_or((most, now));
        let since = now.saturating_duration_since(at);
        let left = since.as_secs_f64().mul_add(most, left).min(most);
        let taken = wanted.min(left as usize);
        // A family that was asked for none in a second has all it may again.
        rates.retain(|_, (_, at)| now.saturating_duration_since(*at) < Duration::from_secs(1));
        rates.insert(family.clone(), (left - taken as f64, now.max(at)));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_family_makes_no_more_than_it_may_in_a_second() {
        let rates = MemberRates::default();
        let [a, b] = ["a/*", "b/*"].map(|name| Tag::parse(name).unwrap());
        assert_eq!(rates.take(&a, 100, 80), 80);
        assert_eq!(rates.take(&a, 100, 80), 20);
        assert_eq!(rates.take(&b, 100, 80), 80, "each family has its own");
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(rates.take(&a, 100, 80), 50);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(rates.take(&a, 100, 1000), 100);
        assert_eq!(rates.0.lock().unwrap().len(), 1, "nothing is kept of those that rest");
        rates.rest(&a);
        for _ in 0..2 {
            assert_eq!(rates.take(&a, 100, 1000), 0);
            tokio::time::advance(RESTS / 2).await;
        }
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(rates.take(&a, 100, 1000), 50);
    }
}
