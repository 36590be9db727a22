//! The tags of the page of metrics: some by name, all others together.
//!
//! Invariant: no count falls from one page to the next, whatever tags enter and leave memory in
//! between. When a tag that had left memory comes back, the generator counts its ids from 0 again;
//! the page adds this count to the last one.

use std::collections::BTreeMap;
use std::sync::Mutex;

use leaf_core::Tag;
use leaf_node::Shards;
use leaf_segment::view::TagView;

use crate::node::Store;

/// How many tags have series of their own. The tags that were seen first keep theirs: series that
/// end and begin all the time are of no use.
pub(super) const NAMED: usize = 2000;

/// The counts of the tags, kept from one page to the next.
#[derive(Debug, Default)]
pub(crate) struct TagMemory(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    named: BTreeMap<Tag, Rising>,
    /// How many ids were issued of all tags that are not in `named`.
    other: u64,
}

/// A count that never falls. Where its source begins from 0 again, it goes on from the last value.
#[derive(Debug, Default)]
struct Rising {
    /// The sum of what the source counted until it last began again.
    before: u64,
    since: u64,
}

/// The counts of all tags, for one page.
#[derive(Debug, Default)]
pub(super) struct TagCounts {
    /// The tags that have series of their own.
    pub(super) named: Vec<TagCount>,
    /// How many ids of all other tags were issued.
    pub(super) other: u64,
}

/// A tag that has series of its own.
#[derive(Debug)]
pub(super) struct TagCount {
    pub(super) tag: Tag,
    pub(super) issued: u64,
    /// `None` if the tag is not in memory now.
    pub(super) view: Option<TagView>,
}

impl Rising {
    /// Takes the current count of the source, and returns the count that never falls. `None` stands
    /// for a tag that is not in memory: its next count begins from 0.
    fn follow(&mut self, count: Option<u64>) -> u64 {
        if count.is_none_or(|count| count < self.since) {
            self.before += self.since;
        }
        self.since = count.unwrap_or(0);
        self.before + self.since
    }
}

impl TagMemory {
    /// Updates the counts from the tags of these stores.
    pub(super) fn follow(&self, stores: &Shards<Store>) -> TagCounts {
        let mut memory = self.0.lock().expect("no holder of this lock panics");
        let totals: Vec<_> = stores.iter().map(|store| store.generator.totals()).collect();
        let known: usize = totals.iter().map(|totals| totals.tags).sum();
        let looked_at = |(tag, rising): (&Tag, &mut Rising)| {
            let view = stores.of(tag.as_str()).generator.view(tag.as_str());
            // If a tag left memory and came back since the last page, and has issued more ids than
            // it had before, nothing shows that its count began again: it is too low here. The
            // missing ids are counted in `other`.
            let issued = rising.follow(view.as_ref().map(|view| view.issued));
            TagCount { tag: tag.clone(), issued, view }
        };
        let mut named: Vec<TagCount> = memory.named.iter_mut().map(looked_at).collect();
        // Named tags that left memory say nothing of those that came.
        let present = named.iter().filter(|tag| tag.view.is_some()).count();
        if memory.named.len() < NAMED && present < known {
            for view in stores.iter().flat_map(|store| store.generator.views(None, NAMED)) {
                if memory.named.len() < NAMED && !memory.named.contains_key(&view.tag) {
                    let tag = view.tag.clone();
                    let rising = memory.named.entry(view.tag).or_default();
                    named.push(looked_at((&tag, rising)));
                }
            }
        }
        // Read before the named ones, so it may be some ids behind them.
        let all: u64 = totals.iter().map(|totals| totals.issued).sum();
        let of_named: u64 = named.iter().map(|tag| tag.issued).sum();
        memory.other = memory.other.max(all.saturating_sub(of_named));
        TagCounts { named, other: memory.other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_begins_again_goes_on() {
        let mut count = Rising::default();
        let told = [0, 5, 5, 9, 2, 2, 3, 0, 1].map(|seen| count.follow(Some(seen)));
        assert_eq!(told, [0, 5, 5, 9, 11, 11, 12, 12, 13]);
        let told = [Some(2), None, None, Some(2), Some(7)].map(|seen| count.follow(seen));
        assert_eq!(told, [14, 14, 14, 16, 21]);
    }
}
