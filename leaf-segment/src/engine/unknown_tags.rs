//! Names that the store was asked for in vain: a flood of them must not become a flood of queries.
//!
//! Invariant: bounded memory, and a bounded number of look-ups of single tags per second. A tag
//! that is made later is found within [`HOLDS`].

use std::collections::HashMap;
use std::time::Duration;

use leaf_core::Tag;
use tokio::time::Instant;

use crate::SegmentErrorKind;

/// How long a refusal is repeated without a look at the store.
const HOLDS: Duration = Duration::from_secs(1);
/// How long [`UnknownTags::remember`] tells what was remembered before.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// How many names are remembered.
const ENTRIES: usize = 1000;
/// How many look-ups of single tags may begin at once, and in each second.
const SINGLE_LOOK_UPS: f64 = 32.0;

/// Names that were just looked up and yield no ids, since they do not exist or are disabled; and
/// how many more may be looked up one by one.
#[derive(Debug)]
pub(crate) struct UnknownTags {
    names: HashMap<Tag, (SegmentErrorKind, Instant)>,
    look_ups_left: f64,
    counted_at: Instant,
}

impl Default for UnknownTags {
    fn default() -> Self {
        Self { names: HashMap::new(), look_ups_left: SINGLE_LOOK_UPS, counted_at: Instant::now() }
    }
}

impl UnknownTags {
    /// Why the tag is refused without a look at the store.
    pub(crate) fn holds(&self, tag: &Tag) -> Option<SegmentErrorKind> {
        let (why, since) = self.names.get(tag)?;
        (since.elapsed() < HOLDS).then(|| why.clone())
    }

    /// The store does not have the tag, or it is disabled there, or its record cannot be read.
    /// Returns what was remembered of it within the last minute.
    pub(crate) fn remember(&mut self, tag: Tag, why: SegmentErrorKind) -> Option<SegmentErrorKind> {
        if self.names.len() >= ENTRIES {
            self.names.retain(|_, (_, since)| since.elapsed() < HOLDS);
        }
        if self.names.len() >= ENTRIES {
            return None;
        }
        let before = self.names.insert(tag, (why, Instant::now()));
        before.filter(|(_, since)| since.elapsed() < FORGOTTEN).map(|(before, _)| before)
    }

    /// The tag may be there by now.
    pub(crate) fn forget(&mut self, tag: &Tag) {
        self.names.remove(tag);
    }

    /// Whether one more tag may be looked up by a query of its own; counts it.
    pub(crate) fn may_look_up(&mut self) -> bool {
        let now = Instant::now();
        let earned = (now - self.counted_at).as_secs_f64() * SINGLE_LOOK_UPS;
        self.look_ups_left = (self.look_ups_left + earned).min(SINGLE_LOOK_UPS);
        self.counted_at = now;
        if self.look_ups_left < 1.0 {
            return false;
        }
        self.look_ups_left -= 1.0;
        true
    }
}
