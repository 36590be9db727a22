//! For callers without a tokio runtime.
//!
//! The generator gets a runtime of its own with one thread, on which refills run. Do not call it
//! from asynchronous code: a wait would block the runtime there, and panics.

use std::io;
use std::sync::Arc;

use leaf_core::{Health, Id, IdRange, Tag};
use tokio::runtime::{Builder, Runtime};

use crate::{Ids, SegmentConfig, SegmentError, SegmentSource, TextError, Texts};

/// Hands out ids of the tags of one [`SegmentSource`]; blocks the calling thread where it must
/// wait.
///
/// ```
/// use std::sync::Arc;
/// use leaf_segment::{MemoryStore, NewTag, SegmentConfig, blocking::SegmentGenerator};
///
/// let store = Arc::new(MemoryStore::with_tags([NewTag::sample()]));
/// let segments = SegmentGenerator::open(store, SegmentConfig::default())?;
/// let orders = segments.tag("leaf-segment-test")?;
///
/// assert_eq!(orders.next()?.get(), 1);
/// assert_eq!(orders.take_contiguous(500)?.len(), 500);
/// segments.close();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SegmentGenerator {
    generator: crate::SegmentGenerator,
    runtime: Arc<Runtime>,
}

/// A tag, ready to hand out ids. Cheap to clone; keep it instead of looking the tag up again.
#[derive(Debug, Clone)]
pub struct TagHandle {
    handle: crate::TagHandle,
    runtime: Arc<Runtime>,
}

/// Ids of a tag for one thread, see [`TagHandle::local`].
#[derive(Debug)]
pub struct LocalIds {
    ids: crate::LocalIds,
    runtime: Arc<Runtime>,
}

impl SegmentGenerator {
    /// Reads the set of tags and starts to keep it up to date. A store that does not answer is no
    /// error: [`Self::health`] says so.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn open(store: Arc<dyn SegmentSource>, config: SegmentConfig) -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("leaf-segment").enable_all().build()?;
        let generator = runtime.block_on(crate::SegmentGenerator::open(store, config));
        Ok(Self { generator, runtime: Arc::new(runtime) })
    }

    /// The handle of a tag, which the store is asked for where this generator does not know it.
    /// Keep the handle: it takes ids without a look-up.
    ///
    /// # Errors
    /// `BadTag`, `UnknownTag`, `Disabled`, `Closed`; `StoreDown` or `StoreRefused` when the store
    /// yields no answer.
    pub fn tag(&self, tag: &str) -> Result<TagHandle, SegmentError> {
        let handle = self.runtime.block_on(self.generator.tag(tag))?;
        Ok(TagHandle { handle, runtime: Arc::clone(&self.runtime) })
    }

    /// Whether ids can be had: `NotReady` before the set of tags was read once and when a tag in
    /// use is out of ids, `Degraded` while the store is away and ids are served from memory.
    #[must_use]
    pub fn health(&self) -> Health {
        self.generator.health()
    }

    /// Ends every handle and gives unused ids back to the store, where nobody allocated since.
    pub fn close(&self) {
        self.runtime.block_on(self.generator.close());
    }
}

impl TagHandle {
    /// The tag.
    #[must_use]
    pub fn tag(&self) -> &Tag {
        self.handle.tag()
    }

    /// Takes the next id if one is there; never waits. `None` also starts a refill, so that a later
    /// call succeeds.
    #[inline]
    #[must_use]
    pub fn try_next(&self) -> Option<Id> {
        self.handle.try_next()
    }

    /// Takes the next id; blocks while both segments are used up, until the refill arrives.
    ///
    /// # Errors
    /// After [`SegmentConfig::wait`](crate::SegmentConfig::wait): `StoreDown`, `StoreRefused` or
    /// `Deadline`. At once: `UnknownTag`, `Disabled`, `Exhausted`, `ClockBehind`, `Key`, `Guard` or
    /// `Record` when an operator must repair the record, `Closed`.
    #[inline]
    pub fn next(&self) -> Result<Id, SegmentError> {
        match self.handle.try_next() {
            Some(id) => Ok(id),
            None => self.runtime.block_on(self.handle.next()),
        }
    }

    /// Hands out ids to one thread, a run of up to `size` at a time, see
    /// [`TagHandle::local`](crate::TagHandle::local): most ids cost no atomic operation; they rise
    /// within one thread only.
    #[must_use]
    pub fn local(&self, size: usize) -> LocalIds {
        LocalIds { ids: self.handle.local(size), runtime: Arc::clone(&self.runtime) }
    }

    /// Takes what one segment has at once: at least 1 id, at most `most` and 65,536; never waits.
    /// `None` also starts a refill.
    #[must_use]
    pub fn try_take(&self, most: usize) -> Option<IdRange> {
        self.handle.try_take(most)
    }

    /// As [`Self::try_take`], in every tag: one whose ids are no ranges never has those.
    #[must_use]
    pub fn try_take_ids(&self, most: usize) -> Option<Ids> {
        self.handle.try_take_ids(most)
    }

    /// Takes exactly `count` ids, in every tag; blocks until they are there.
    ///
    /// # Errors
    /// Those of [`Self::take`], but `NoRanges`.
    pub fn take_ids(&self, count: usize) -> Result<Ids, SegmentError> {
        self.runtime.block_on(self.handle.take_ids(count))
    }

    /// How this tag's ids are written now; `None` for a tag without a template.
    #[must_use]
    pub fn texts(&self) -> Option<Texts> {
        self.handle.texts()
    }

    /// The id of a text. Whether it was ever issued, the text does not tell.
    ///
    /// # Errors
    /// The tag has no template, or the text is none of its texts.
    pub fn read_text(&self, text: &str) -> Result<Id, TextError> {
        self.handle.read_text(text)
    }

    /// Takes exactly `count` ids in as few ranges as possible; blocks until they are there.
    ///
    /// # Errors
    /// Those of [`Self::next`]; `BadCount` for 0 or more than
    /// [`SegmentConfig::max_take`](crate::SegmentConfig::max_take); `NoRanges` in a tag whose ids
    /// are none.
    pub fn take(&self, count: usize) -> Result<Vec<IdRange>, SegmentError> {
        self.runtime.block_on(self.handle.take(count))
    }

    /// Takes exactly `count` ids that follow each other without a gap; blocks until they are there.
    /// They may be fetched from the store directly, unordered against those of [`Self::next`].
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn take_contiguous(&self, count: usize) -> Result<IdRange, SegmentError> {
        self.runtime.block_on(self.handle.take_contiguous(count))
    }
}

impl LocalIds {
    /// Takes the next id if one is there; never waits. `None` also starts a refill, so that a later
    /// call succeeds.
    #[inline]
    #[must_use]
    pub fn try_next(&mut self) -> Option<Id> {
        self.ids.try_next()
    }

    /// Takes the next id; blocks where it must wait.
    ///
    /// # Errors
    /// Those of [`TagHandle::next`].
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "no iterator: it fails, and never ends")]
    pub fn next(&mut self) -> Result<Id, SegmentError> {
        match self.ids.try_next() {
            Some(id) => Ok(id),
            None => self.runtime.block_on(self.ids.next()),
        }
    }
}
