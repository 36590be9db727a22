//! How a generator talks to its store: every request has a deadline, and the last failure is told
//! to operators.

use std::sync::{Arc, Mutex};

use leaf_core::Tag;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{SegmentConfig, SegmentSource, StoreError, StoreErrorKind};

/// The store of a generator, and what its tags share: the configuration, the limit of concurrent
/// fetches, and the tasks that talk to the store.
#[derive(Debug)]
pub(crate) struct StoreClient {
    pub(crate) store: Arc<dyn SegmentSource>,
    pub(crate) config: SegmentConfig,
    pub(crate) permits: Semaphore,
    runtime: Handle,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// The whole set of tags is to be read soon.
    pub(crate) read_soon: Arc<Notify>,
    /// What the store said to the last request, of whatever tag, if it did not serve it.
    trouble: Mutex<Option<String>>,
}

impl StoreClient {
    pub(crate) fn new(store: Arc<dyn SegmentSource>, config: SegmentConfig) -> Self {
        Self {
            store,
            permits: Semaphore::new(config.concurrent_fetches.max(1)),
            config,
            runtime: Handle::current(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            read_soon: Arc::default(),
            trouble: Mutex::default(),
        }
    }

    /// Runs `task` until it ends or the generator closes.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn_on(
            async move {
                stop.run_until_cancelled_owned(task).await;
            },
            &self.runtime,
        );
    }

    /// Makes the mark of a tag durable, before any id of its range is handed out. A disk that fails
    /// or hangs costs the guard's memory, not the service: the health says so.
    pub(crate) async fn write_mark(&self, tag: &Tag) {
        if let Err(error) = self.config.marks.write(tag).await {
            tracing::warn!(tag = ?tag.as_str(), "{error}");
        }
    }

    /// What keeps the store from serving; for operators.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().expect("no holder of this lock panics").clone()
    }

    /// One request to the store under the attempt's deadline; notes what came of it.
    pub(crate) async fn ask<T>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let result = self.attempt(what, request).await;
        self.note(what, result.as_ref().err());
        result
    }

    /// One request to the store under the attempt's deadline.
    pub(crate) async fn attempt<T>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let deadline = self.config.attempt;
        tokio::time::timeout(deadline, request).await.unwrap_or_else(|_| {
            Err(StoreError::new(StoreErrorKind::Unavailable, what)
                .because(format!("no answer within {deadline:?}")))
        })
    }

    /// Notes what came of a request to the store.
    pub(crate) fn note(&self, what: &str, error: Option<&StoreError>) {
        let trouble = error.filter(|error| error.is_outage());
        let trouble = trouble.map(|it| format!("{} ({what}; the log says more)", it.kind()));
        *self.trouble.lock().expect("no holder of this lock panics") = trouble;
    }
}
