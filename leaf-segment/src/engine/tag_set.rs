//! The tags that a generator has in memory: those that it was asked for, of the many in its store.
//!
//! Readers look up a tag in an immutable map without a lock; a change replaces the whole map. A new
//! tag first goes into a second, small map behind a lock, until the new tags are worth a copy of
//! the first map: so the cost of a new tag does not depend on how many there are.
//!
//! The set also determines whose record is read next, so that each record is read regularly.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwap;

use super::handle::TagHandle;
use super::known_tags::{KnownTags, TagMap};

/// The map is copied when the number of new tags reaches the number of its own tags divided by
/// this.
const WORTH_A_COPY: usize = 8;

/// The tags of a generator.
#[derive(Debug, Default)]
pub(crate) struct TagSet {
    map: Arc<ArcSwap<TagMap>>,
    /// Only the holder of this lock may replace the map.
    changes: Mutex<Changes>,
}

#[derive(Debug, Default)]
struct Changes {
    /// Tags that were added since the map was copied. They take precedence over those of the map.
    recent: TagMap,
    /// Every handle of both maps, the one whose record was read longest ago first; and some that
    /// were replaced or removed since.
    queue: VecDeque<TagHandle>,
    /// How many ids were issued by handles that have since been replaced or removed.
    departed: u64,
}

impl TagSet {
    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().expect("no holder of this lock panics")
    }

    /// A look-up for one thread.
    pub(crate) fn known_tags(&self) -> KnownTags {
        KnownTags::of(&self.map)
    }

    /// The handle of a tag, also one that has ended.
    pub(crate) fn find(&self, tag: &str) -> Option<TagHandle> {
        if let Some(handle) = self.map.load().get(tag).filter(|handle| !handle.state.has_ended()) {
            return Some(handle.clone());
        }
        let changes = self.changes();
        let map = self.map.load();
        changes.recent.get(tag).or_else(|| map.get(tag)).cloned()
    }

    /// Whether this is the handle that serves its tag.
    fn is_current(&self, changes: &Changes, handle: &TagHandle) -> bool {
        let map = self.map.load();
        let current = changes.recent.get(handle.tag()).or_else(|| map.get(handle.tag()));
        current.is_some_and(|current| Arc::ptr_eq(&current.state, &handle.state))
    }

    /// Adds a handle, in the place of the one that the tag had.
    pub(crate) fn insert(&self, handle: TagHandle) {
        let mut changes = self.changes();
        changes.queue.push_back(handle.clone());
        let map = self.map.load();
        let before = changes.recent.get(handle.tag()).or_else(|| map.get(handle.tag()));
        changes.departed += before.map_or(0, |before| before.state.issued());
        changes.recent.insert(handle.tag().clone(), handle);
        if changes.recent.len() * WORTH_A_COPY >= self.map.load().len() {
            self.copy_with(&mut changes);
        }
    }

    /// Removes those of these handles that still serve their tags. The marks keep what was granted.
    pub(crate) fn remove(&self, handles: &[TagHandle]) {
        if handles.is_empty() {
            return;
        }
        let mut changes = self.changes();
        let mut map = TagMap::clone(&self.map.load());
        map.extend(changes.recent.drain());
        for handle in handles {
            let tag = handle.tag();
            if map.get(tag).is_some_and(|current| Arc::ptr_eq(&current.state, &handle.state)) {
                map.remove(tag);
                changes.departed += handle.state.issued();
            }
        }
        self.map.store(Arc::new(map));
    }

    fn copy_with(&self, changes: &mut Changes) {
        let mut map = TagMap::clone(&self.map.load());
        map.extend(changes.recent.drain());
        self.map.store(Arc::new(map));
    }

    /// All handles, also those that have ended. From now on every thread finds the new ones without
    /// a lock.
    pub(crate) fn all(&self) -> Arc<TagMap> {
        self.all_and_departed().0
    }

    /// All handles, and how many ids were issued by handles that have since been replaced or
    /// removed.
    pub(crate) fn all_and_departed(&self) -> (Arc<TagMap>, u64) {
        let mut changes = self.changes();
        if !changes.recent.is_empty() {
            self.copy_with(&mut changes);
        }
        (self.map.load_full(), changes.departed)
    }

    /// How many tags there are, about: some may have been replaced.
    pub(crate) fn len(&self) -> usize {
        self.changes().queue.len()
    }

    /// Takes up to `most` handles out of the queue, those whose records were read longest ago. They
    /// are to come back by [`Self::queue_again`].
    pub(crate) fn take_from_queue(&self, most: usize) -> Vec<TagHandle> {
        let mut changes = self.changes();
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(handle) = changes.queue.pop_front()
        {
            if self.is_current(&changes, &handle) {
                taken.push(handle);
            }
        }
        taken
    }

    /// Puts handles at the end of the queue, if they still serve their tags.
    pub(crate) fn queue_again(&self, handles: Vec<TagHandle>) {
        let mut changes = self.changes();
        for handle in handles {
            if self.is_current(&changes, &handle) {
                changes.queue.push_back(handle);
            }
        }
    }
}
