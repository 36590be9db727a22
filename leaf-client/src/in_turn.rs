//! Ids in strict order: fetched when callers want them, never ahead.
//!
//! Invariant: an id goes to a call that began before the request that fetched it was sent. So a
//! call that begins after another call has ended gets the higher id, as the tag promises. A task
//! sends each request, for all callers that wait: a caller that gives up does not cancel the
//! request of the others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_core::Id;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::api::Api;
use crate::calls::{AskIds, IdsOf};
use crate::error::{ClientError, ClientErrorKind};
use crate::failure::AskError;

/// Sends a waiting caller its id, or the error.
type Caller = oneshot::Sender<Result<Id, AskError>>;

/// A tag in strict order: one task asks for its ids, one request at a time, for all callers that
/// wait. The task lives as long as this handle.
#[derive(Debug)]
pub(crate) struct InTurn {
    /// Shared with the task.
    asking: Arc<Asking>,
    /// Passes waiting callers to the task; `None` once the handle has ended.
    waiting: Mutex<Option<UnboundedSender<Caller>>>,
    /// Why the handle has ended; `None` while it has not.
    ended: Mutex<Option<ClientErrorKind>>,
}

/// What the task needs to send requests.
#[derive(Debug)]
struct Asking {
    api: Arc<Api>,
    /// Like `tag "orders"`.
    name: String,
    of: IdsOf,
    /// The most ids of a request.
    most: AtomicUsize,
    /// How long a caller waits.
    wait: Duration,
}

impl InTurn {
    /// Starts the task. Call it in a tokio runtime.
    pub(crate) fn new(api: Arc<Api>, tag: &str, most: usize, wait: Duration) -> Arc<Self> {
        let most = AtomicUsize::new(most.max(1));
        let (name, of) = (format!("tag {tag:?}"), IdsOf::Tag(tag.to_owned()));
        let asking = Arc::new(Asking { api, name, of, most, wait });
        let (waiting, callers) = mpsc::unbounded_channel();
        // It ends with the last handle.
        tokio::spawn(Arc::clone(&asking).serve(callers));
        Arc::new(Self { asking, waiting: Mutex::new(Some(waiting)), ended: Mutex::default() })
    }

    fn name(&self) -> &str {
        &self.asking.name
    }

    /// Sets the most ids of a request, after the servers' limit has changed.
    pub(crate) fn set_most(&self, most: usize) {
        self.asking.most.store(most.max(1), Ordering::Relaxed);
    }

    /// Ends the handle: no more ids are requested.
    pub(crate) fn end(&self, why: ClientErrorKind) {
        self.ended.lock().expect("no holder of this lock panics").get_or_insert(why);
        *self.waiting.lock().expect("no holder of this lock panics") = None;
    }

    /// Returns an error if the handle has ended.
    fn check(&self) -> Result<(), ClientError> {
        let ended = *self.ended.lock().expect("no holder of this lock panics");
        ended.map_or(Ok(()), |why| Err(ClientError::ended(self.name(), why)))
    }

    /// The next id, by a request that is sent after this call began.
    pub(crate) async fn next(&self) -> Result<Id, ClientError> {
        self.check()?;
        let (caller, answer) = oneshot::channel();
        if let Some(waiting) = &*self.waiting.lock().expect("no holder of this lock panics") {
            // Where its task is gone the answer never comes.
            let _ = waiting.send(caller);
        }
        match tokio::time::timeout(self.asking.wait, answer).await {
            Ok(Ok(id)) => id.map_err(|error| ClientError::asking(self.name(), &error)),
            Ok(Err(_)) => {
                self.check()?;
                Err(ClientError::ended(self.name(), ClientErrorKind::Closed))
            }
            Err(_) => {
                let text = format!("{}: no id within {:?}", self.name(), self.asking.wait);
                Err(ClientError::new(ClientErrorKind::Unavailable, text))
            }
        }
    }

    /// Takes `count` ids that follow each other in the order of the tag.
    pub(crate) async fn take(&self, count: usize) -> Result<Vec<Id>, ClientError> {
        self.check()?;
        let most = self.asking.most.load(Ordering::Relaxed);
        if !(1..=most).contains(&count) {
            let text = format!("{}: {count} ids at once: give 1 to {most}", self.name());
            return Err(ClientError::new(ClientErrorKind::BadCount, text));
        }
        let ids = self.asking.ask(count).await;
        ids.map_err(|error| ClientError::asking(self.name(), &error))
    }
}

impl Asking {
    /// The task's loop: fetches ids from a server on behalf of all callers that wait, one request
    /// at a time, until the last handle is gone.
    async fn serve(self: Arc<Self>, mut callers: UnboundedReceiver<Caller>) {
        let mut waiting: Vec<Caller> = Vec::new();
        loop {
            if waiting.is_empty() {
                let Some(caller) = callers.recv().await else { return };
                waiting.push(caller);
            }
            // Whoever came until now began before the request that is sent next.
            while let Ok(caller) = callers.try_recv() {
                waiting.push(caller);
            }
            // Those who left need none.
            waiting.retain(|caller| !caller.is_closed());
            let mut count = waiting.len().min(self.most.load(Ordering::Relaxed));
            while count > 0 {
                match self.ask(count).await {
                    Ok(ids) => {
                        for (caller, id) in waiting.drain(..count).zip(ids) {
                            // A caller that left meanwhile leaves a gap.
                            let _ = caller.send(Ok(id));
                        }
                    }
                    // The tag has fewer, or servers allow fewer by now.
                    Err(error) if error.is_too_many() && count > 1 => {
                        count /= 2;
                        continue;
                    }
                    Err(error) => {
                        for caller in waiting.drain(..count) {
                            let _ = caller.send(Err(error.clone()));
                        }
                    }
                }
                break;
            }
        }
    }

    /// Takes `count` ids by one request, from whichever server serves it.
    async fn ask(&self, count: usize) -> Result<Vec<Id>, AskError> {
        // Its failure, which names a server, comes before its callers' deadlines.
        let deadline = Instant::now() + self.wait.mul_f64(0.9);
        self.api.ask_on(&AskIds { of: &self.of, count }, deadline).await
    }
}
