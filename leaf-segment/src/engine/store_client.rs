//! The requests of a generator to its store: each has a deadline, and the last failure is reported
//! to operators.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_core::{Durations, Tag};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::period_clock::PeriodClock;
use crate::{SegmentConfig, SegmentSource, StoreError, StoreErrorKind};

/// For this long after the store refused a write, a read that it answers does not count as
/// recovery. Tags that want ids try their writes again more often than that, so that the trouble
/// stays visible as long as writes are refused.
const REFUSES_WRITES: Duration = Duration::from_secs(15);

/// How often a failure that lasts is logged.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// How many causes are remembered, so that each is logged at most once per [`TELL_AGAIN`].
const MOST_CAUSES: usize = 8;

/// The store of a generator, and what its tags share: the configuration, the limit of concurrent
/// fetches, and the tasks that talk to the store.
#[derive(Debug)]
pub(crate) struct StoreClient {
    pub(crate) store: Arc<dyn SegmentSource>,
    pub(crate) config: SegmentConfig,
    pub(crate) permits: Semaphore,
    /// The clock that says which day, month or year it is.
    pub(crate) period_clock: PeriodClock,
    runtime: Handle,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// Requests to read records before their regular time.
    pub(crate) soon: Soon,
    /// Why the store did not serve the last request, of any tag; `None` if it did.
    trouble: Mutex<Option<Trouble>>,
    /// When the last request was sent to the store.
    asked_at: Mutex<Instant>,
    /// The failures that were logged recently, the newest first.
    told: Mutex<Vec<Told>>,
    /// How long the store took to answer; `failures` counts the requests that it did not serve.
    pub(crate) answers: Durations,
    pub(crate) failures: AtomicU64,
    /// How often this process was restored from a snapshot of its memory.
    beginnings: AtomicU64,
}

/// Requests to the task that reads records: what to read before the regular time.
#[derive(Debug, Default)]
pub(crate) struct Soon {
    pub(crate) wake: Arc<Notify>,
    due: Mutex<Due>,
}

#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Whether to check that the store can be read.
    pub(crate) store: bool,
    /// Whether the records of all known tags are to be read.
    pub(crate) all: bool,
    /// The tags whose records are to be read, if they are known.
    pub(crate) tags: HashSet<Tag>,
}

impl Soon {
    fn due(&self, change: impl FnOnce(&mut Due)) {
        change(&mut self.due.lock().expect("no holder of this lock panics"));
        self.wake.notify_one();
    }

    /// Requests a check whether the store can be read.
    pub(crate) fn try_store(&self) {
        self.due(|due| due.store = true);
    }

    /// Requests that the record of a tag is read.
    pub(crate) fn read_tag(&self, tag: &Tag) {
        self.due(|due| _ = due.tags.insert(tag.clone()));
    }

    /// Requests that the records of all tags in memory are read.
    pub(crate) fn read_all(&self) {
        self.due(|due| due.all = true);
    }

    /// Takes what is due.
    pub(crate) fn take(&self) -> Due {
        std::mem::take(&mut self.due.lock().expect("no holder of this lock panics"))
    }

    /// Puts back what could not be read.
    pub(crate) fn put_back(&self, before: Due) {
        let mut due = self.due.lock().expect("no holder of this lock panics");
        due.all |= before.all;
        due.tags.extend(before.tags);
    }
}

/// A failure of the store that was logged.
#[derive(Debug)]
struct Told {
    cause: String,
    at: Instant,
    /// How often it occurred again since `at`.
    again: u64,
}

/// Why the store did not serve a request.
#[derive(Debug)]
struct Trouble {
    text: String,
    /// When the store refused a write. An answered read does not prove that it accepts writes
    /// again.
    write_refused_at: Option<Instant>,
    /// Whether the store refused a read. An accepted write does not prove that it answers reads
    /// again: reads are tried twice a second until one succeeds.
    read_refused: bool,
}

impl StoreClient {
    pub(crate) fn new(store: Arc<dyn SegmentSource>, config: SegmentConfig) -> Self {
        Self {
            store,
            permits: Semaphore::new(config.concurrent_fetches.max(1)),
            period_clock: PeriodClock::new(Arc::clone(&config.clock)),
            config,
            runtime: Handle::current(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            soon: Soon::default(),
            trouble: Mutex::default(),
            asked_at: Mutex::new(Instant::now()),
            told: Mutex::default(),
            answers: Durations::default(),
            failures: AtomicU64::new(0),
            beginnings: AtomicU64::new(0),
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

    /// Records that the process was restored from a snapshot: no ids from before may be given back.
    pub(crate) fn begin_anew(&self) {
        self.beginnings.fetch_add(1, Ordering::SeqCst);
    }

    /// How often the process was restored from a snapshot so far.
    pub(crate) fn beginning(&self) -> u64 {
        self.beginnings.load(Ordering::SeqCst)
    }

    /// Makes the mark of a tag durable, before any id of its range is handed out. If the disk fails
    /// or hangs, ids are served all the same; only the guard does not remember the mark after a
    /// crash. The health reports this.
    pub(crate) async fn write_mark(&self, tag: &Tag) {
        if let Err(error) = self.config.marks.write(tag).await {
            tracing::warn!(tag = ?tag.as_str(), "{error}");
        }
    }

    /// Why the store does not serve requests, for operators; `None` if it does.
    pub(crate) fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock().expect("no holder of this lock panics");
        trouble.as_ref().map(|trouble| trouble.text.clone())
    }

    /// Sends one read, with the deadline of an attempt, and records the outcome. A store that
    /// answers reads and refuses writes, like a full etcd, stays in trouble for a while unless a
    /// write succeeds.
    pub(crate) async fn read<T>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let result = self.attempt(what, request).await;
        if !self.refuses_writes() {
            let error = result.as_ref().err();
            let read_refused = error.is_some_and(|it| *it.kind() == StoreErrorKind::Refused);
            self.set_trouble(error, None, read_refused);
        }
        result
    }

    /// How long ago the last request was sent to the store.
    pub(crate) fn idle_for(&self) -> Duration {
        self.asked_at.lock().expect("no holder of this lock panics").elapsed()
    }

    /// Checks whether the store would allocate, if it supports such a check, and records the
    /// outcome. A success proves no more than a read does: nothing was written, so the disk may
    /// still be full.
    pub(crate) async fn try_allocating(&self) {
        let Some(tried) = self.store.try_allocating() else { return };
        match self.attempt("try to allocate", tried).await {
            Ok(()) if self.refuses_writes() => {}
            Ok(()) => self.note(None),
            Err(error) => {
                self.note(Some(&error));
                self.tell_failure(&error);
                if error.is_another_store() {
                    // Whoever reads its tags ends them.
                    self.soon.try_store();
                }
            }
        }
    }

    /// Whether the store refused a write a moment ago.
    fn refuses_writes(&self) -> bool {
        self.troubled(|trouble| {
            trouble.write_refused_at.is_some_and(|at| at.elapsed() < REFUSES_WRITES)
        })
    }

    /// Logs a failure: each cause when it first occurs, then at most once a minute, with how often
    /// it occurred. Tags share this, since an outage of the store concerns them all.
    pub(crate) fn tell_failure(&self, error: &StoreError) {
        let cause = error.cause().map(ToString::to_string);
        let cause = format!("{}: {}", error.kind(), cause.unwrap_or_default());
        let mut told = self.told.lock().expect("no holder of this lock panics");
        told.retain(|told| told.at.elapsed() < 2 * TELL_AGAIN);
        match told.iter_mut().find(|told| told.cause == cause) {
            Some(told) if told.at.elapsed() < TELL_AGAIN => told.again += 1,
            Some(told) => {
                let again = std::mem::take(&mut told.again) + 1;
                tracing::warn!("{error}; {again} such failures in {:.0?}", told.at.elapsed());
                told.at = Instant::now();
            }
            None => {
                tracing::warn!("{error}; asking again");
                told.truncate(MOST_CAUSES - 1);
                told.insert(0, Told { cause, at: Instant::now(), again: 0 });
            }
        }
    }

    /// Whether the store is in trouble, and `sort` is true of that trouble.
    fn troubled(&self, sort: impl Fn(&Trouble) -> bool) -> bool {
        let trouble = self.trouble.lock().expect("no holder of this lock panics");
        trouble.as_ref().is_some_and(sort)
    }

    /// Sends one write, with the deadline of an attempt, and records the outcome.
    pub(crate) async fn ask<T>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let result = self.attempt(what, request).await;
        self.note(result.as_ref().err());
        result
    }

    /// Sends one request to the store, with the deadline of an attempt, and counts its outcome.
    pub(crate) async fn attempt<T>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        *self.asked_at.lock().expect("no holder of this lock panics") = begun;
        let deadline = self.config.attempt;
        let request = request.instrument(tracing::info_span!("store", what));
        let result = tokio::time::timeout(deadline, request).await.unwrap_or_else(|_| {
            Err(StoreError::new(StoreErrorKind::Unavailable, what)
                .because(format!("no answer within {deadline:?}")))
        });
        match &result {
            Err(error) if error.is_outage() => _ = self.failures.fetch_add(1, Ordering::Relaxed),
            _ => self.answers.add(begun.elapsed(), 1),
        }
        result
    }

    /// Records the outcome of a write: its error, or `None` for success.
    pub(crate) fn note(&self, error: Option<&StoreError>) {
        let refuses =
            |it: &&StoreError| matches!(it.kind(), StoreErrorKind::Refused | StoreErrorKind::Full);
        let refused = error.filter(refuses);
        if error.is_some() || !self.troubled(|trouble| trouble.read_refused) {
            self.set_trouble(error, refused.map(|_| Instant::now()), false);
        }
    }

    fn set_trouble(
        &self,
        error: Option<&StoreError>,
        write_refused_at: Option<Instant>,
        read_refused: bool,
    ) {
        let trouble = error.filter(|error| error.is_outage()).map(|error| Trouble {
            text: error.to_string(),
            write_refused_at,
            read_refused,
        });
        *self.trouble.lock().expect("no holder of this lock panics") = trouble;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    /// S-21: a store that answers reads and refuses writes stays in trouble after a read.
    #[tokio::test(start_paused = true)]
    async fn reads_do_not_hide_that_writes_are_refused() {
        let client = StoreClient::new(Arc::new(MemoryStore::default()), SegmentConfig::default());
        let fail = async |kind| {
            let _ = client.ask("write", async { Err::<(), _>(StoreError::new(kind, "x")) }).await;
        };
        let read = async || client.read("read", async { Ok(()) }).await.unwrap();
        for _ in 0..10 {
            fail(StoreErrorKind::Full).await;
            tokio::time::sleep(REFUSES_WRITES / 2).await;
            read().await;
            assert!(client.trouble().is_some());
        }
        tokio::time::sleep(REFUSES_WRITES).await;
        read().await;
        assert_eq!(client.trouble(), None, "nobody has wanted to write since");
        fail(StoreErrorKind::Refused).await;
        client.ask("write", async { Ok(()) }).await.unwrap();
        assert_eq!(client.trouble(), None);
        fail(StoreErrorKind::Unavailable).await;
        read().await;
        assert_eq!(client.trouble(), None, "a line that is back");
        // Without the right to read the settings, say, the node does not know what holds.
        let refused = async { Err::<(), _>(StoreError::new(StoreErrorKind::Refused, "x")) };
        let _ = client.read("read", refused).await;
        client.ask("write", async { Ok(()) }).await.unwrap();
        assert!(client.trouble().is_some(), "writes do not hide that reads are refused");
        read().await;
        assert_eq!(client.trouble(), None);
    }
}
