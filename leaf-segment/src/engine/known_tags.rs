//! The look-up of a tag on the hot path: an immutable map that is swapped whole, and a reference to
//! it that each thread keeps.

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use leaf_core::Tag;

use super::handle::TagHandle;

pub(crate) type TagMap = HashMap<Tag, TagHandle, foldhash::fast::RandomState>;

/// A look-up of the tags that a generator has in memory, for one thread.
///
/// ```
/// # use std::sync::Arc;
/// # use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = Arc::new(MemoryStore::with_tags([NewTag::sample()]));
/// let segments = SegmentGenerator::open(store, SegmentConfig::default()).await;
/// let mut tags = segments.known_tags();
/// assert!(tags.get("leaf-segment-test").is_none(), "nobody has asked for it");
/// segments.tag("leaf-segment-test").await?;
///
/// let stock = tags.get("leaf-segment-test").ok_or("not known")?;
/// assert_eq!(stock.next().await?.get(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct KnownTags(Cache<Arc<ArcSwap<TagMap>>, Arc<TagMap>>);

impl KnownTags {
    pub(crate) fn of(tags: &Arc<ArcSwap<TagMap>>) -> Self {
        Self(Cache::new(Arc::clone(tags)))
    }

    /// The handle of a tag that is in memory and has not ended. New tags may be missing for a
    /// second.
    #[inline]
    pub fn get(&mut self, tag: &str) -> Option<&TagHandle> {
        self.0.load().get(tag).filter(|handle| !handle.state.has_ended())
    }

    /// Looks all of these tags up, then calls `using` for each of them in turn, with the handle
    /// that [`Self::get`] returns, until `using` returns `Break`.
    ///
    /// For callers that take ids of many tags in turn. The memory that the look-up and the next id
    /// need is read for [`Self::AT_A_TIME`] tags at once. If the tags came one by one, each would
    /// wait for memory, because taking an id is an atomic addition, and the processor starts no
    /// later read before it is done.
    pub fn each<'a>(
        &'a mut self,
        tags: &[&str],
        mut using: impl FnMut(Option<&'a TagHandle>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let known: &'a TagMap = self.0.load();
        for tags in tags.chunks(Self::AT_A_TIME) {
            let mut found = [None; Self::AT_A_TIME];
            for (found, tag) in found.iter_mut().zip(tags) {
                *found = known.get(*tag);
            }
            for handle in found.into_iter().flatten() {
                handle.state.touch();
            }
            for handle in &found[..tags.len()] {
                using(handle.filter(|handle| !handle.state.has_ended()))?;
            }
        }
        ControlFlow::Continue(())
    }

    /// How many tags [`Self::each`] looks up before it calls `using` for them, so that the reads
    /// from memory overlap: more than a processor can have under way, but few enough that all data
    /// fits into its smallest cache.
    pub const AT_A_TIME: usize = 16;
}

impl fmt::Debug for KnownTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownTags").finish_non_exhaustive()
    }
}
