//! Leaf for callers without a tokio runtime.
//!
//! [`Leaf`] has its own runtime with one thread, on which refills and the keeper of the worker id
//! run. Do not call it from asynchronous code: waiting there panics, because it would block the
//! caller's runtime. A forked child must not take ids from it: the child has a copy of the parent's
//! ids.

use leaf_core::{Health, Id};
use leaf_segment::{SegmentError, TagHandle};
use leaf_snowflake::SnowflakeError;
use tokio::runtime::{Builder, Runtime};

use crate::config::Config;
use crate::{LeafBuilder, OpenError};

/// A node of Leaf inside a program; blocks the calling thread where it must wait.
///
/// ```
/// use leaf_node::blocking::Leaf;
///
/// # let directory = tempfile::tempdir()?;
/// let leaf = Leaf::build(leaf_node::Leaf::builder().data_dir(directory.path()))?;
/// let orders = leaf.segment("leaf-segment-test")?;
///
/// assert_eq!(leaf.next(&orders)?.get(), 1);
/// assert!(leaf.next_snowflake()?.get() > 0);
/// // Whatever else the handle or the generator can do:
/// assert_eq!(leaf.wait(orders.take_contiguous(500))?.len(), 500);
/// leaf.close();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Leaf {
    // Declared before the runtime, so that it is dropped first: its tasks are told to stop while
    // they can still run.
    leaf: Option<crate::Leaf>,
    /// `None` only while this value is being dropped.
    runtime: Option<Runtime>,
    process: u32,
}

impl Leaf {
    /// Opens a node, see [`crate::Leaf::open`].
    ///
    /// # Errors
    /// The errors of [`crate::Leaf::open`], and `Thread` if the system starts no thread.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        Self::run(crate::Leaf::open(config))
    }

    /// Opens the node that `builder` describes, see [`LeafBuilder::open`].
    ///
    /// # Errors
    /// The errors of [`LeafBuilder::open`], and `Thread` if the system starts no thread.
    pub fn build(builder: LeafBuilder) -> Result<Self, OpenError> {
        Self::run(builder.open())
    }

    /// Opens a node on a runtime of its own.
    fn run(open: impl Future<Output = Result<crate::Leaf, OpenError>>) -> Result<Self, OpenError> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("leaf").enable_all().build();
        let runtime = runtime.map_err(OpenError::Thread)?;
        let leaf = Some(runtime.block_on(open)?);
        Ok(Self { leaf, runtime: Some(runtime), process: std::process::id() })
    }

    /// The handle of a tag, which must exist. Keep it: it yields ids without a look-up.
    ///
    /// # Errors
    /// The errors of [`crate::Leaf::segment`].
    ///
    /// # Panics
    /// When segment mode was switched off.
    pub fn segment(&self, tag: &str) -> Result<TagHandle, SegmentError> {
        self.wait(self.leaf().segment(tag))
    }

    /// The next id of a tag.
    ///
    /// # Errors
    /// The errors of [`TagHandle::next`].
    #[inline]
    pub fn next(&self, tag: &TagHandle) -> Result<Id, SegmentError> {
        tag.try_next().map_or_else(|| self.wait(tag.next()), Ok)
    }

    /// The next snowflake id.
    ///
    /// # Errors
    /// The errors of [`SnowflakeGenerator::next`](leaf_snowflake::SnowflakeGenerator::next).
    ///
    /// # Panics
    /// When snowflake mode was switched off.
    #[inline]
    pub fn next_snowflake(&self) -> Result<Id, SnowflakeError> {
        let generator = self.leaf().snowflake();
        generator.try_next_unless_queued().map_or_else(|| self.wait(generator.next()), Ok)
    }

    /// Blocks until the future `work` is done, and returns its result. `work` is any other call of
    /// a handle or of a generator of [`Self::leaf`].
    pub fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("taken by drop alone").block_on(work)
    }

    /// Whether the node can issue ids now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.leaf().health()
    }

    /// The node.
    #[must_use]
    pub fn leaf(&self) -> &crate::Leaf {
        self.leaf.as_ref().expect("taken by close alone")
    }

    /// Gives the worker id and the unused ids back, see [`crate::Leaf::close`]. In a forked child
    /// it does nothing: both are the parent's.
    pub fn close(mut self) {
        if self.process != std::process::id() {
            return;
        }
        let leaf = self.leaf.take().expect("taken here alone");
        self.wait(leaf.close());
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // After a fork its threads are the parent's: waiting for their end would never end.
            std::mem::forget(self.runtime.take());
        }
    }
}
