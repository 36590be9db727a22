//! A blocking client, for callers without a tokio runtime.
//!
//! The client has its own runtime with one thread, which runs the requests. Do not call it from
//! asynchronous code: a call that must wait panics there.
//!
//! ```no_run
//! use leaf_client::{LeafClient, blocking};
//!
//! # fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let builder = LeafClient::builder().endpoint("http://leaf-1:8080");
//! let client = blocking::LeafClient::open(builder)?;
//! let orders = client.tag("orders")?;
//! let id = orders.next()?;
//! client.close();
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use leaf_core::{Id, IdRange, Tag};
use tokio::runtime::{Builder, Runtime};

use crate::LeafClientBuilder;
use crate::error::{ClientError, ClientErrorKind};

/// A client of one cluster of `leaf-server`s; blocks the calling thread where it must wait. Cheap
/// to clone.
#[derive(Debug, Clone)]
pub struct LeafClient {
    client: crate::LeafClient,
    runtime: Arc<Runtime>,
}

/// A tag, ready to hand out ids. Cheap to clone; keep it instead of asking for the tag again.
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

/// Snowflake ids, see [`crate::Snowflake`].
#[derive(Debug, Clone)]
pub struct Snowflake {
    ids: crate::Snowflake,
    runtime: Arc<Runtime>,
}

impl LeafClient {
    /// Makes the client. No server is asked yet.
    ///
    /// # Errors
    /// The errors of [`LeafClientBuilder::build`]; `BadConfig` if the runtime's thread cannot be
    /// started.
    pub fn open(builder: LeafClientBuilder) -> Result<Self, ClientError> {
        let mut threads = Builder::new_multi_thread();
        let runtime = threads.worker_threads(1).thread_name("leaf-client").enable_all().build();
        let runtime = runtime.map_err(|error| {
            ClientError::new(ClientErrorKind::BadConfig, format!("start a thread: {error}"))
        })?;
        let client = {
            let _inside = runtime.enter();
            builder.build()?
        };
        Ok(Self { client, runtime: Arc::new(runtime) })
    }

    /// Returns the handle of a tag. The first call for a tag asks a server for its properties.
    ///
    /// # Errors
    /// The errors of [`crate::LeafClient::tag`].
    pub fn tag(&self, tag: &str) -> Result<TagHandle, ClientError> {
        let handle = self.runtime.block_on(self.client.tag(tag))?;
        Ok(TagHandle { handle, runtime: Arc::clone(&self.runtime) })
    }

    /// Returns the source of snowflake ids. No server is asked yet.
    #[must_use]
    pub fn snowflake(&self) -> Snowflake {
        let _inside = self.runtime.enter();
        Snowflake { ids: self.client.snowflake(), runtime: Arc::clone(&self.runtime) }
    }

    /// Drops every id that this client holds, see [`crate::LeafClient::begin_anew`].
    pub fn begin_anew(&self) {
        self.client.begin_anew();
    }

    /// Ends every handle and gives unused ids back, see [`crate::LeafClient::close`].
    pub fn close(&self) {
        self.runtime.block_on(self.client.close());
    }
}

impl TagHandle {
    /// The tag.
    #[must_use]
    pub const fn tag(&self) -> &Tag {
        self.handle.tag()
    }

    /// Takes the next id if one is in memory; never waits.
    #[inline]
    #[must_use]
    pub fn try_next(&self) -> Option<Id> {
        self.handle.try_next()
    }

    /// Takes the next id; blocks where it must wait.
    ///
    /// # Errors
    /// The errors of [`crate::TagHandle::next`].
    #[inline]
    pub fn next(&self) -> Result<Id, ClientError> {
        match self.handle.try_next() {
            Some(id) => Ok(id),
            None => self.runtime.block_on(self.handle.next()),
        }
    }

    /// Takes exactly `count` ids, as one or more ranges; blocks until they are there.
    ///
    /// # Errors
    /// The errors of [`crate::TagHandle::take`].
    pub fn take(&self, count: usize) -> Result<Vec<IdRange>, ClientError> {
        self.runtime.block_on(self.handle.take(count))
    }

    /// Takes exactly `count` ids as a list, which works for every kind of tag; blocks until they
    /// are there.
    ///
    /// # Errors
    /// The errors of [`crate::TagHandle::take_ids`].
    pub fn take_ids(&self, count: usize) -> Result<Vec<Id>, ClientError> {
        self.runtime.block_on(self.handle.take_ids(count))
    }

    /// Returns a [`LocalIds`] for one thread, which takes up to `size` ids from the tag at a time,
    /// see [`crate::TagHandle::local`].
    #[must_use]
    pub fn local(&self, size: usize) -> LocalIds {
        LocalIds { ids: self.handle.local(size), runtime: Arc::clone(&self.runtime) }
    }

    /// Fetches the first ids, so that the first caller need not wait. Takes none.
    ///
    /// # Errors
    /// The errors of [`Self::next`].
    pub fn warm_up(&self) -> Result<(), ClientError> {
        self.runtime.block_on(self.handle.warm_up())
    }
}

impl LocalIds {
    /// Takes the next id if one is in memory; never waits.
    #[inline]
    #[must_use]
    pub fn try_next(&mut self) -> Option<Id> {
        self.ids.try_next()
    }

    /// Takes the next id; blocks where it must wait.
    ///
    /// # Errors
    /// The errors of [`TagHandle::next`].
    #[inline(always)]
    #[expect(clippy::should_implement_trait, reason = "no iterator: it fails, and never ends")]
    pub fn next(&mut self) -> Result<Id, ClientError> {
        match self.ids.try_next() {
            Some(id) => Ok(id),
            None => self.runtime.block_on(self.ids.next()),
        }
    }
}

impl Snowflake {
    /// Takes the next id if one is in memory; never waits.
    #[must_use]
    pub fn try_next(&self) -> Option<Id> {
        self.ids.try_next()
    }

    /// Takes the next id; blocks where it must wait.
    ///
    /// # Errors
    /// The errors of [`crate::Snowflake::next`].
    pub fn next(&self) -> Result<Id, ClientError> {
        match self.ids.try_next() {
            Some(id) => Ok(id),
            None => self.runtime.block_on(self.ids.next()),
        }
    }

    /// Takes `count` ids, 1 to 1,000; blocks until they are there.
    ///
    /// # Errors
    /// The errors of [`crate::Snowflake::take`].
    pub fn take(&self, count: usize) -> Result<Vec<Id>, ClientError> {
        self.runtime.block_on(self.ids.take(count))
    }
}
