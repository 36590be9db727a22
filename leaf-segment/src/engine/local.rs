//! Ids for one thread, without an atomic operation each.
//!
//! Invariant: a run that was taken from the shared cursor belongs to one [`LocalIds`], which hands
//! each of its ids out once. Runs of several threads lie side by side, so ids rise within one
//! `LocalIds` only.

use leaf_core::{Id, IdRangeIter};
use leaf_shape::Ids;

use crate::{SegmentError, TagHandle};

/// Ids of a tag for one thread, see [`TagHandle::local`].
#[derive(Debug)]
pub struct LocalIds {
    /// The rest of the run, in a tag whose ids form ranges; empty in any other tag.
    run: IdRangeIter,
    /// The rest of the run, in a tag whose ids form no ranges.
    made: Option<Ids>,
    handle: TagHandle,
    size: usize,
}

impl TagHandle {
    /// Returns an object for one thread, which takes ids from this handle in runs of up to `size`
    /// (1 to 65,536) and hands them out. If many threads share a handle, most of the time goes into
    /// the one word that all of them change; with runs it is changed once in `size` ids.
    ///
    /// Ids rise within one `LocalIds`; those of different threads are up to some runs apart. The
    /// rest of a run is lost when its `LocalIds` is dropped, which makes a gap. A tag in strict
    /// order has no runs: each id is requested on its own.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Arc::new(MemoryStore::with_tags([NewTag::sample()]));
    /// # let segments = SegmentGenerator::open(store, SegmentConfig::default()).await;
    /// let orders = segments.tag("leaf-segment-test").await?;
    /// orders.load().await?;
    /// let (mut here, mut there) = (orders.local(64), orders.local(64));
    /// assert_eq!(here.next().await?.get(), 1);
    /// assert_eq!(there.next().await?.get(), 65);
    /// assert_eq!(here.next().await?.get(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn local(&self, size: usize) -> LocalIds {
        LocalIds {
            run: IdRangeIter::default(),
            made: None,
            handle: self.clone(),
            size: size.max(1),
        }
    }
}

impl LocalIds {
    /// Takes the next id if one is in memory; never waits. If there is none, it returns `None` and
    /// starts a refill, so that a later call succeeds. The rest of a run is handed out even if the
    /// handle has ended.
    #[inline]
    #[must_use]
    pub fn try_next(&mut self) -> Option<Id> {
        match self.run.next() {
            Some(id) => Some(id),
            None => self.begin_run(),
        }
    }

    /// Takes the next id; waits for a refill if none is in memory.
    ///
    /// # Errors
    /// The errors of [`TagHandle::next`].
    pub async fn next(&mut self) -> Result<Id, SegmentError> {
        if let Some(id) = self.try_next() {
            return Ok(id);
        }
        // It waits for one id; the run behind it is there then.
        self.handle.next().await
    }

    /// The handle that the runs are taken from.
    #[must_use]
    pub const fn handle(&self) -> &TagHandle {
        &self.handle
    }

    #[cold]
    fn begin_run(&mut self) -> Option<Id> {
        if self.handle.meaning().has_ranges() {
            self.run = self.handle.try_take_numbers(self.size)?.iter();
            return self.run.next();
        }
        if let Some(id) = self.made.as_mut().and_then(Iterator::next) {
            return Some(id);
        }
        self.made.insert(self.handle.try_take(self.size)?).next()
    }
}
