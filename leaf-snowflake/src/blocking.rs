//! For callers without a tokio runtime.
//!
//! The generator gets a runtime of its own with one thread, on which the keeper works. Not for
//! asynchronous code, where these panic: `open`, `take`, `close`, a `next` that must wait, and the
//! drop of the generator.

use std::io;

use leaf_core::{Health, Id, Layout, WorkerId};
use tokio::runtime::{Builder, Runtime};

use crate::{IdRun, Registry, SnowflakeConfig, SnowflakeError, SnowflakeView};

/// Hands out snowflake ids of one node; blocks the calling thread where it must wait.
///
/// ```
/// use leaf_snowflake::{Identity, MemoryFenceStore, SnowflakeConfig, blocking};
///
/// let registry = MemoryFenceStore::default();
/// let config = SnowflakeConfig::new(Identity::parse("10.0.0.7:8080")?);
/// let flakes = blocking::SnowflakeGenerator::open(registry, config)?;
///
/// let first = flakes.next()?;
/// assert!(flakes.take(10_000)?.iter().all(|id| *id > first));
/// flakes.close();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SnowflakeGenerator {
    // Declared, and so dropped, before the runtime: the keeper is told to stop while it can still
    // run.
    generator: crate::SnowflakeGenerator,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

/// Why a blocking generator did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system gave no thread.
    #[error("start the background thread: {0}")]
    Thread(io::Error),
    /// The generator.
    #[error(transparent)]
    Generator(#[from] SnowflakeError),
}

impl SnowflakeGenerator {
    /// Opens the state file and claims a worker id.
    ///
    /// # Errors
    /// Those of [`crate::SnowflakeGenerator::open`], and when no thread can be started.
    pub fn open(registry: impl Into<Registry>, config: SnowflakeConfig) -> Result<Self, OpenError> {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(1).thread_name("leaf-snowflake").enable_all();
        let runtime = builder.build().map_err(OpenError::Thread)?;
        let generator = runtime.block_on(crate::SnowflakeGenerator::open(registry, config))?;
        Ok(Self { generator, runtime: Some(runtime) })
    }

    /// Takes the next id; never waits.
    ///
    /// # Errors
    /// `Exhausted` with the time until the next tick; `CeilingReached`; `Starting`, `ClockBehind`,
    /// `Lost`, `Closed`, `EndOfTime`, `Forked`.
    #[inline]
    pub fn try_next(&self) -> Result<Id, SnowflakeError> {
        self.generator.try_next()
    }

    /// Takes the ids that are there at once: at least 1, at most `most`, in increasing order; never
    /// waits.
    ///
    /// # Errors
    /// Those of [`Self::try_next`]; `BadCount` when `most` is 0.
    pub fn try_take(&self, most: usize) -> Result<IdRun, SnowflakeError> {
        self.generator.try_take(most)
    }

    /// Takes the next id. Blocks until the next tick or a higher ceiling where it must, after the
    /// callers that wait already.
    ///
    /// # Errors
    /// After [`SnowflakeConfig::wait`](crate::SnowflakeConfig::wait): `Exhausted` or
    /// `CeilingReached`. At once: `Starting`, `ClockBehind`, `Lost`, `Closed`, `EndOfTime`,
    /// `Forked`.
    #[inline]
    pub fn next(&self) -> Result<Id, SnowflakeError> {
        match self.generator.try_next_unless_queued() {
            Some(id) => Ok(id),
            None => self.runtime().block_on(self.generator.next()),
        }
    }

    /// Takes exactly `count` ids, in increasing order; blocks until they are there.
    ///
    /// # Errors
    /// Those of [`Self::next`], and `BadCount`.
    pub fn take(&self, count: usize) -> Result<Vec<Id>, SnowflakeError> {
        self.runtime().block_on(self.generator.take(count))
    }

    /// How ids are composed.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.generator.layout()
    }

    /// The worker id that is held, if one is.
    #[must_use]
    pub fn worker(&self) -> Option<WorkerId> {
        self.generator.worker()
    }

    /// Whether ids can be issued now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.generator.health()
    }

    /// A snapshot for operators: lease, ceilings, clock and health.
    #[must_use]
    pub fn view(&self) -> SnowflakeView {
        self.generator.view()
    }

    /// Sets the ids' clock to the wall clock at once if the wall clock is ahead, even beyond
    /// [`SnowflakeConfig::max_step_forward`](crate::SnowflakeConfig::max_step_forward). Call it
    /// only after checking that the wall clock is right.
    pub fn accept_clock(&self) {
        self.generator.accept_clock();
    }

    /// Ends issuing, writes down what was used and gives the worker id back. In a forked child it
    /// does nothing: the worker id is the parent's.
    pub fn close(&self) {
        self.runtime().block_on(self.generator.close());
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("taken by drop alone")
    }
}

impl Drop for SnowflakeGenerator {
    /// Tells the keeper to stop, but may end it before the worker id is given back; [`Self::close`]
    /// waits for that.
    fn drop(&mut self) {
        if self.generator.is_forked() {
            // Its threads are the parent's: waiting for their end would never end.
            std::mem::forget(self.runtime.take());
        }
    }
}
