//! The uniqueness ledger: every id with its issuer and the time it arrived.
//!
//! Invariant: no repeat goes unnoticed. The second record of an id panics and names both issuers
//! and times.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

const SHARDS: usize = 16;

/// Records ids of one space, from any thread.
#[derive(Debug)]
pub struct Ledger {
    start: Instant,
    shards: [Mutex<HashMap<i64, Entry>>; SHARDS],
}

#[derive(Debug, Clone)]
struct Entry {
    issuer: std::sync::Arc<str>,
    at: Duration,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { start: Instant::now(), shards: Default::default() }
    }
}

impl Ledger {
    /// Records an id.
    ///
    /// # Panics
    /// When it was recorded before.
    pub fn record(&self, issuer: &std::sync::Arc<str>, id: i64) {
        let entry = Entry { issuer: issuer.clone(), at: self.start.elapsed() };
        let shard = &self.shards[(id.unsigned_abs() % SHARDS as u64) as usize];
        let before =
            shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(id, entry.clone());
        if let Some(before) = before {
            panic!(
                "id {id} was issued twice: by {} after {:?} and by {} after {:?}",
                before.issuer, before.at, entry.issuer, entry.at
            );
        }
    }

    /// How many ids are recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        let count = |shard: &Mutex<HashMap<_, _>>| {
            shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).len()
        };
        self.shards.iter().map(count).sum()
    }

    /// Whether no id is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All ids, each with its issuer, in no order.
    #[must_use]
    pub fn ids(&self) -> Vec<(i64, std::sync::Arc<str>)> {
        let mut ids = Vec::with_capacity(self.len());
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            ids.extend(shard.iter().map(|(id, entry)| (*id, entry.issuer.clone())));
        }
        ids
    }

    /// The least and the greatest id; `None` if no id is recorded.
    #[must_use]
    pub fn bounds(&self) -> Option<(i64, i64)> {
        let mut bounds = None;
        for shard in &self.shards {
            for id in shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).keys() {
                let (low, high) = bounds.unwrap_or((*id, *id));
                bounds = Some((low.min(*id), high.max(*id)));
            }
        }
        bounds
    }

    /// The runs of numbers from 1 up to, not including, `end` that are not recorded. All recorded
    /// ids must be in this range.
    #[must_use]
    pub fn gaps_below(&self, end: i64) -> Vec<std::ops::Range<i64>> {
        let mut ids: Vec<i64> = Vec::with_capacity(self.len());
        for shard in &self.shards {
            ids.extend(shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).keys());
        }
        ids.push(end);
        ids.sort_unstable();
        let mut gaps = Vec::new();
        let mut expected = 1;
        for id in ids {
            if id > expected {
                gaps.push(expected..id);
            }
            expected = id + 1;
        }
        gaps
    }

    /// Asserts that enough ids are recorded: a test without ids proves nothing.
    ///
    /// # Panics
    /// When fewer than `expected` are recorded.
    pub fn expect_at_least(&self, expected: usize) {
        let found = self.len();
        assert!(found >= expected, "only {found} ids were issued, {expected} expected");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "id 7 was issued twice: by a after")]
    fn a_repeat_is_a_failure_that_names_both() {
        let ledger = Ledger::default();
        ledger.record(&"a".into(), 7);
        ledger.record(&"b".into(), 8);

        ledger.record(&"b".into(), 7);
    }

    #[test]
    #[should_panic(expected = "only 0 ids were issued")]
    fn no_id_at_all_is_a_failure() {
        Ledger::default().expect_at_least(1);
    }
}
