//! The tags that a generator knows: those that it was asked for, out of the many that its store has.
//!
//! Readers look a tag up in an immutable map that is swapped whole; nobody waits for a lock there.
//! A tag that is new stands in a second, small map behind a lock until enough have come together to
//! copy the first one: so a new tag costs the same however many are known.
//!
//! The set also says whose record is to be read next, so that each is read once in a while.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwap;

use super::handle::TagHandle;
use super::known_tags::{KnownTags, TagMap};

/// New tags are worth a copy of the map where they are such a part of it.
const WORTH_A_COPY: usize = 8;

/// The tags of a generator.
#[derive(Debug, Default)]
pub(crate) struct TagSet {
    map: Arc<ArcSwap<TagMap>>,
    /// Whoever holds it may swap the map.
    changes: Mutex<Changes>,
}

#[derive(Debug, Default)]
struct Changes {
    /// Tags that came since the map was copied. They count before those of the map.
    recent: TagMap,
    /// Every handle of both maps, the one whose record was read longest ago first; and some that
    /// were replaced or removed since.
    queue: VecDeque<TagHandle>,
    /// How many ids of handles that were replaced or removed were issued.
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

    /// Removes handles, if they still serve their tags. What was granted of the tags the marks
    /// remember.
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

    /// All handles, and how many ids were issued by handles that have since been replaced or removed.
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
