//! For callers without a tokio runtime.
//!
//! The generator gets a runtime of its own with one thread, on which the keeper works. Do not call it
//! from asynchronous code: a wait would block the runtime there, and panics.

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
    // Before the runtime: the keeper is told to stop while it can still run.
    generator: crate::SnowflakeGenerator,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

/// Why a blocking generator did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system gave no thread.
    #[error("start a thread for the lease keeper: {0}")]
    Thread(#[source] io::Error),
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

    /// As [`crate::SnowflakeGenerator::try_next`].
    ///
    /// # Errors
    /// The same.
    #[inline]
    pub fn try_next(&self) -> Result<Id, SnowflakeError> {
        self.generator.try_next()
    }

    /// As [`crate::SnowflakeGenerator::try_take`].
    ///
    /// # Errors
    /// The same.
    pub fn try_take(&self, most: usize) -> Result<IdRun, SnowflakeError> {
        self.generator.try_take(most)
    }

    /// As [`crate::SnowflakeGenerator::next`].
    ///
    /// # Errors
    /// The same.
    #[inline]
    pub fn next(&self) -> Result<Id, SnowflakeError> {
        match self.generator.next_in_turn() {
            Some(id) => Ok(id),
            None => self.runtime().block_on(self.generator.next()),
        }
    }

    /// As [`crate::SnowflakeGenerator::take`].
    ///
    /// # Errors
    /// The same.
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

    /// What it looks like now.
    #[must_use]
    pub fn view(&self) -> SnowflakeView {
        self.generator.view()
    }

    /// As [`crate::SnowflakeGenerator::accept_clock`].
    pub fn accept_clock(&self) {
        self.generator.accept_clock();
    }

    /// As [`crate::SnowflakeGenerator::close`].
    pub fn close(&self) {
        self.runtime().block_on(self.generator.close());
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("taken by drop alone")
    }
}

impl Drop for SnowflakeGenerator {
    /// The keeper stops, and gives the worker id back if it comes to that: [`Self::close`] waits for
    /// it.
    fn drop(&mut self) {
        if self.generator.is_forked() {
            // Its threads are the parent's: waiting for their end would never end.
            std::mem::forget(self.runtime.take());
        }
    }
}
