//! The look-up of a tag on the hot path: an immutable map that is swapped whole, and a reference to it that each thread
//! keeps.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use leaf_core::Tag;

use crate::handle::TagHandle;

pub(crate) type TagMap = HashMap<Tag, TagHandle, foldhash::fast::RandomState>;

/// The tags that a generator knows, seen from one thread.
///
/// ```
/// # use std::sync::Arc;
/// # use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = Arc::new(MemoryStore::with_tags([NewTag::stock()]));
/// let segments = SegmentGenerator::open(store, SegmentConfig::default()).await;
/// let mut tags = segments.known_tags();
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

    /// The handle of a tag that is known and in use; follows the generator's set of tags.
    pub fn get(&mut self, tag: &str) -> Option<&TagHandle> {
        self.0.load().get(tag).filter(|handle| !handle.state.has_ended())
    }
}

impl fmt::Debug for KnownTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownTags").finish_non_exhaustive()
    }
}
