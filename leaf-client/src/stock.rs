//! Ids that are fetched in lists ahead of callers: ids of tags that cannot be leased, and snowflake
//! ids.
//!
//! Invariant: an id of a server's answer is handed out at most once. A list has about as many ids
//! as callers use in a second; fewer if servers allow or have only fewer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leaf_core::Id;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::Api;
use crate::calls::{AskIds, IdsOf};
use crate::error::{ClientError, ClientErrorKind};
use crate::failure::AskError;

/// The size of the first list, and the least size to which lists shrink when callers take few ids.
const LEAST: usize = 16;
/// How long a list is meant to last. If it was used up faster, the next one has twice as many ids;
/// if it lasted more than four times as long, half as many.
const LASTS: Duration = Duration::from_secs(1);

/// The ids of one tag, or snowflake ids, that this client has fetched and not handed out.
#[derive(Debug)]
pub(crate) struct Stock {
    /// Sends the requests for lists.
    api: Arc<Api>,
    /// Like `tag "orders"`.
    name: String,
    /// Which ids these are: those of a tag, or snowflake ids.
    of: IdsOf,
    /// The most ids of a list.
    most: AtomicUsize,
    /// How old an id may become before it is dropped; `None`: any age.
    life: Option<Duration>,
    /// How long a caller waits.
    wait: Duration,
    /// The runtime that made the stock: lists are fetched on it, whichever thread calls.
    runtime: Handle,
    /// Locked for moments, never across a request.
    held: Mutex<Held>,
    /// Whether a list is on its way: one at a time.
    fetching: AtomicBool,
    /// Wakes waiting callers after a fetch has succeeded or failed, and when the stock ends.
    decided: Notify,
}

/// The lists of a [`Stock`], and the state of its fetches.
#[derive(Debug)]
struct Held {
    /// The list that is used, then those that came after it.
    lists: VecDeque<List>,
    /// How many ids the next list has.
    size: usize,
    /// When the last list was requested: from then on it is measured how long the list lasts.
    asked_at: Option<Instant>,
    /// Why the last fetch failed; `None` if it succeeded.
    failure: Option<AskError>,
    /// Why the stock has ended; `None` while it has not.
    ended: Option<ClientErrorKind>,
}

/// The ids of one answer.
#[derive(Debug)]
struct List {
    ids: std::vec::IntoIter<Id>,
    /// When the ids that are left are dropped; `None`: never.
    until: Option<Instant>,
}

impl Held {
    /// The next id of the first list that has one and is not too old.
    fn take(&mut self) -> Option<Id> {
        loop {
            let list = self.lists.front_mut()?;
            let alive = list.until.is_none_or(|until| Instant::now() < until);
            match list.ids.next().filter(|_| alive) {
                Some(id) => return Some(id),
                None => _ = self.lists.pop_front(),
            }
        }
    }

    /// How many ids the lists have, expired ones included.
    fn left(&self) -> usize {
        self.lists.iter().map(|list| list.ids.len()).sum()
    }
}

impl Stock {
    /// Creates an empty stock. Call it in a tokio runtime.
    pub(crate) fn new(
        api: Arc<Api>,
        name: String,
        of: IdsOf,
        most: usize,
        life: Option<Duration>,
        wait: Duration,
    ) -> Arc<Self> {
        let most = most.max(1);
        Arc::new(Self {
            api,
            name,
            of,
            most: AtomicUsize::new(most),
            life,
            wait,
            runtime: Handle::current(),
            held: Mutex::new(Held {
                lists: VecDeque::new(),
                size: LEAST.min(most),
                asked_at: None,
                failure: None,
                ended: None,
            }),
            fetching: AtomicBool::new(false),
            decided: Notify::new(),
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no holder of this lock panics")
    }

    /// Sets the most ids of a list, after the servers' limit has changed.
    pub(crate) fn set_most(&self, most: usize) {
        self.most.store(most.max(1), Ordering::Relaxed);
    }

    /// Ends the stock: drops its ids and wakes all waiting callers.
    pub(crate) fn end(&self, why: ClientErrorKind) {
        let mut held = self.held();
        held.ended.get_or_insert(why);
        held.lists.clear();
        drop(held);
        self.decided.notify_waiters();
    }

    /// Takes the next id if one is in memory. Starts a fetch if half a list or less is left.
    pub(crate) fn try_next(self: &Arc<Self>) -> Option<Id> {
        let mut held = self.held();
        let id = held.take();
        let due = held.left() <= held.size / 2 && held.ended.is_none();
        drop(held);
        if due {
            self.fetch();
        }
        id
    }

    /// Waits until at least one id is there; takes none.
    pub(crate) async fn load(self: &Arc<Self>) -> Result<(), ClientError> {
        self.wait_for(Instant::now() + self.wait, |stock| {
            let is_empty = stock.held().left() == 0;
            if is_empty {
                stock.fetch();
            }
            (!is_empty).then_some(())
        })
        .await
    }

    /// Takes the next id, and waits where it must.
    pub(crate) async fn next(self: &Arc<Self>) -> Result<Id, ClientError> {
        match self.try_next() {
            Some(id) => Ok(id),
            None => self.wait_for(Instant::now() + self.wait, Self::try_next).await,
        }
    }

    /// Takes `count` ids, in the order in which servers gave them. On an error, the ids taken so
    /// far are lost.
    pub(crate) async fn take(self: &Arc<Self>, count: usize) -> Result<Vec<Id>, ClientError> {
        let most = self.most.load(Ordering::Relaxed);
        if !(1..=most).contains(&count) {
            let text = format!("{}: {count} ids at once: give 1 to {most}", self.name);
            return Err(ClientError::new(ClientErrorKind::BadCount, text));
        }
        let deadline = Instant::now() + self.wait;
        let mut ids = Vec::with_capacity(count);
        while ids.len() < count {
            match self.try_next() {
                Some(id) => ids.push(id),
                None => {
                    // What is missing comes in one list.
                    self.grow_to((count - ids.len()).min(most));
                    ids.push(self.wait_for(deadline, Self::try_next).await?);
                }
            }
        }
        Ok(ids)
    }

    /// Makes the next list at least `size` ids long, within the servers' limit.
    fn grow_to(&self, size: usize) {
        let mut held = self.held();
        held.size = held.size.max(size);
    }

    /// Calls `take`, and again after each fetch that has succeeded or failed, until it returns
    /// `Some`.
    ///
    /// # Errors
    /// Why the stock has ended; a server's refusal; at the deadline, why the last fetch failed.
    async fn wait_for<T>(
        self: &Arc<Self>,
        deadline: Instant,
        take: impl Fn(&Arc<Self>) -> Option<T>,
    ) -> Result<T, ClientError> {
        loop {
            let decided = self.decided.notified();
            tokio::pin!(decided);
            // Registered before the look, so that a list that comes in between is not missed.
            decided.as_mut().enable();
            let ended = self.held().ended;
            if let Some(why) = ended {
                return Err(ClientError::ended(&self.name, why));
            }
            if let Some(taken) = take(self) {
                return Ok(taken);
            }
            let in_time = tokio::time::timeout_at(deadline, decided).await.is_ok();
            let failure = self.held().failure.clone();
            match failure {
                Some(error @ AskError::Refused { .. }) => {
                    return Err(ClientError::asking(&self.name, &error));
                }
                Some(error) if !in_time => return Err(ClientError::asking(&self.name, &error)),
                None if !in_time => {
                    let text = format!("{}: no ids within {:?}", self.name, self.wait);
                    return Err(ClientError::new(ClientErrorKind::Unavailable, text));
                }
                _ => {}
            }
        }
    }

    /// Fetches a list unless one is on its way.
    fn fetch(self: &Arc<Self>) {
        if self.fetching.swap(true, Ordering::AcqRel) {
            return;
        }
        let stock = Arc::clone(self);
        self.runtime.spawn(async move {
            // Cleared also when the runtime ends, or the task panics.
            let _fetching = Fetching(&stock);
            stock.fetch_now().await;
        });
    }

    /// Fetches one list, a shorter one where servers refuse so many ids.
    async fn fetch_now(&self) {
        let mut count = self.next_size();
        let asked_at = Instant::now();
        // Its failure, which names a server, comes before its callers' deadlines.
        let answer = loop {
            let ask = AskIds { of: &self.of, count };
            match self.api.ask_on(&ask, asked_at + self.wait.mul_f64(0.9)).await {
                Err(error) if error.is_too_many() && count > 1 => count /= 2,
                answer => break answer,
            }
        };
        let mut held = self.held();
        match answer {
            Ok(_) if held.ended.is_some() => {}
            Ok(ids) => {
                held.size = count;
                held.asked_at = Some(asked_at);
                let until = self.life.map(|life| asked_at + life);
                held.lists.push_back(List { ids: ids.into_iter(), until });
                held.failure = None;
            }
            Err(error) => held.failure = Some(error),
        }
    }

    /// How many ids the next list has, by how long the last one lasted.
    fn next_size(&self) -> usize {
        let mut held = self.held();
        let most = self.most.load(Ordering::Relaxed);
        if let Some(asked_at) = held.asked_at.take() {
            let lasted = asked_at.elapsed();
            if lasted < LASTS {
                held.size *= 2;
            } else if lasted > LASTS * 4 {
                held.size = (held.size / 2).max(LEAST);
            }
        }
        held.size = held.size.min(most);
        held.size
    }
}

/// Exists while a fetch is under way. When dropped, it permits the next fetch and wakes all waiting
/// callers.
struct Fetching<'a>(&'a Stock);

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.0.fetching.store(false, Ordering::Release);
        self.0.decided.notify_waiters();
    }
}
