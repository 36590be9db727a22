//! The tags of the page of metrics: some by name, all others together.
//!
//! Invariant: no count falls from one look to the next, whatever tags come and leave meanwhile. A tag
//! that leaves memory and comes back counts from 0 again: its count goes on from the last one.

use std::collections::BTreeMap;
use std::sync::Mutex;

use leaf_core::Tag;
use leaf_segment::shards::Shards;
use leaf_segment::view::TagView;

use crate::node::Store;

/// How many tags are named. The first ones that are seen stay: a series that ends and begins all the
/// time is of no use.
pub(super) const NAMED: usize = 2000;

/// What is remembered of the tags between two looks.
#[derive(Debug, Default)]
pub(crate) struct TagMemory(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    named: BTreeMap<Tag, Rising>,
    /// Of the tags that have no name here.
    other: u64,
}

/// A count that goes on where it begins again.
#[derive(Debug, Default)]
struct Rising {
    /// Up to the last time that it began again.
    before: u64,
    since: u64,
}

/// What a look found.
#[derive(Debug, Default)]
pub(super) struct TagCounts {
    /// By name.
    pub(super) named: Vec<TagCount>,
    /// How many ids of all other tags were issued.
    pub(super) other: u64,
}

/// A tag that is named.
#[derive(Debug)]
pub(super) struct TagCount {
    pub(super) tag: Tag,
    pub(super) issued: u64,
    /// None of a tag that is not in memory now.
    pub(super) view: Option<TagView>,
}

impl Rising {
    /// Takes over a count, and returns the one that goes on. `None` where nothing is counted now: the
    /// next count begins again.
    fn follow(&mut self, count: Option<u64>) -> u64 {
        if count.is_none_or(|count| count < self.since) {
            self.before += self.since;
        }
        self.since = count.unwrap_or(0);
        self.before + self.since
    }
}

impl TagMemory {
    /// Looks at the tags of these stores.
    pub(super) fn follow(&self, stores: &Shards<Store>) -> TagCounts {
        let mut memory = self.0.lock().expect("no holder of this lock panics");
        let totals: Vec<_> = stores.iter().map(|store| store.generator.totals()).collect();
        let known: usize = totals.iter().map(|totals| totals.tags).sum();
        let looked_at = |(tag, rising): (&Tag, &mut Rising)| {
            let view = stores.of(tag.as_str()).generator.view(tag.as_str());
            // One that left and came back since the last look, and issued more than before, counts too
            // little here; what is missing is told of the others.
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
