//! Ids for one thread, in runs.

use std::vec;

use leaf_core::Id;

use crate::error::ClientError;
use crate::tag::{TagHandle, TagIds};

/// Ids of a tag for one thread, see [`TagHandle::local`].
#[derive(Debug)]
pub struct LocalIds {
    ids: Run,
    handle: TagHandle,
}

#[derive(Debug)]
enum Run {
    Leased(leaf_segment::LocalIds),
    /// The ids left of the current run, and the size of a run.
    Listed(vec::IntoIter<Id>, usize),
}

impl TagHandle {
    /// Hands out ids to one thread, from runs of up to `size` ids that it takes at once: most ids
    /// cost no atomic operation. Ids rise within one `LocalIds` only. When it is dropped, the
    /// unused rest of its run is lost, which makes a gap. See [`leaf_segment::TagHandle::local`].
    #[must_use]
    pub fn local(&self, size: usize) -> LocalIds {
        let ids = match &self.ids {
            TagIds::Leased(handle) => Run::Leased(handle.local(size)),
            TagIds::Listed(_) | TagIds::InTurn(_) => Run::Listed(Vec::new().into_iter(), size),
        };
        LocalIds { ids, handle: self.clone() }
    }
}

impl LocalIds {
    /// Takes the next id if one is in memory; never waits.
    #[inline(always)]
    #[must_use]
    pub fn try_next(&mut self) -> Option<Id> {
        match &mut self.ids {
            Run::Leased(local) => local.try_next(),
            Run::Listed(run, size) => next_of_list(run, *size, &self.handle),
        }
    }

    /// Takes the next id, and waits where it must.
    ///
    /// # Errors
    /// The errors of [`TagHandle::next`].
    #[inline]
    pub async fn next(&mut self) -> Result<Id, ClientError> {
        match self.try_next() {
            Some(id) => Ok(id),
            None => self.handle.next().await,
        }
    }
}

/// Takes the next id of a tag that cannot be leased. Kept out of line, so that the fast path stays
/// short.
#[cold]
fn next_of_list(run: &mut vec::IntoIter<Id>, size: usize, handle: &TagHandle) -> Option<Id> {
    if run.as_slice().is_empty() {
        let ids: Vec<Id> = std::iter::from_fn(|| handle.try_next()).take(size.max(1)).collect();
        *run = ids.into_iter();
    }
    run.next()
}
