//! The orders that a listener gives to its connections, and what it observes of them.
//!
//! A connection reads one atomic number each time it runs, and is woken when that changes. Nothing
//! else is added to a request for this: no timer, no channel.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

/// What a connection must do. [`Control`] holds the number; a higher one is stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Goes on serving.
    Serve = 0,
    /// Ends after the requests that are under way.
    Finish = 1,
    /// Ends now.
    Close = 2,
}

/// One connection, as its listener sees it. The fields that every request touches are on one cache
/// line: with hundreds of busy connections, each further line is a cache miss.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Control {
    /// How many requests have begun.
    pub(crate) requests: AtomicUsize,
    /// How many requests wait for their answers.
    pub(crate) under_way: AtomicUsize,
    /// How many requests were answered immediately, from memory, and are not in the metrics yet.
    /// Only the connection's own task changes it.
    pub(crate) at_once: AtomicU32,
    /// How many sweeps have looked at the connection.
    sweeps: AtomicU32,
    /// Whether a request's head could be read in two ways: the connection is given up.
    pub(crate) ambiguous: AtomicBool,
    /// Whether the connection speaks HTTP/2.
    http2: AtomicBool,
    /// The number of the current [`Order`].
    order: AtomicU8,
    /// Whether `waker` is set: it is set once, since a task has one waker for all its life.
    registered: AtomicBool,
    /// Wakes the connection's task; set when the task first runs.
    waker: Mutex<Option<Waker>>,
    /// Pending transfers (unread answers, unfinished requests): how many of them, by the count of
    /// sweeps at their last progress.
    pending: Mutex<BTreeMap<u32, usize>>,
    /// The connection's state at the last sweep.
    seen: Mutex<Seen>,
}

/// The state of a connection at a sweep.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    /// How many requests had begun by then.
    requests: usize,
    /// For how many sweeps the connection has been silent.
    silent: u32,
}

impl Control {
    /// Records that the connection speaks HTTP/2, which can announce the end without an answer.
    pub(crate) fn is_http2(&self) {
        self.http2.store(true, Ordering::Relaxed);
    }

    /// The current order. The connection's task, which calls this, is woken when the order changes.
    pub(crate) fn order(&self, context: &Context<'_>) -> Order {
        if !self.registered.load(Ordering::Relaxed) {
            *self.waker() = Some(context.waker().clone());
            self.registered.store(true, Ordering::Relaxed);
        }
        // Read after the waker is set: an order that was given before is read here, and an order
        // that is given later wakes the task.
        match self.order.load(Ordering::SeqCst) {
            0 => Order::Serve,
            1 => Order::Finish,
            _ => Order::Close,
        }
    }

    /// Runs `future` to its result, or returns `None` once this order or a stricter one is given.
    pub(crate) async fn unless<T>(
        &self,
        ordered: Order,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if self.order(context) < ordered => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    /// Gives an order, and wakes the connection's task. A milder order than the last one has no
    /// effect.
    fn give(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::SeqCst);
        let waker = self.waker().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Locks the waker of the connection's task.
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().expect("no holder of this lock panics")
    }

    /// Records the beginning of a transfer that the client may do in parts: it reads an answer, or
    /// sends the rest of a request. Returns a mark for [`Self::transfer_moves`] and
    /// [`Self::transfer_ends`].
    pub(crate) fn transfer_begins(&self) -> u32 {
        let now = self.sweeps.load(Ordering::Relaxed);
        *self.pending().entry(now).or_default() += 1;
        now
    }

    /// Records that the client did a part of the transfer.
    pub(crate) fn transfer_moves(&self, mark: &mut u32) {
        let now = self.sweeps.load(Ordering::Relaxed);
        if now != *mark {
            let mut pending = self.pending();
            remove_transfer(&mut pending, *mark);
            *pending.entry(now).or_default() += 1;
            *mark = now;
        }
    }

    /// Records that the transfer is complete or given up.
    pub(crate) fn transfer_ends(&self, mark: u32) {
        remove_transfer(&mut self.pending(), mark);
    }

    /// Counts a sweep. Returns the number of sweeps since the last progress, and whether a transfer
    /// is pending. If so, only the oldest transfer's progress counts; else a request that has begun
    /// or waits for its answer is progress.
    fn silent(&self) -> (u32, bool) {
        let requests = self.requests.load(Ordering::Relaxed);
        let sweeps = self.sweeps.fetch_add(1, Ordering::Relaxed) + 1;
        let oldest = self.pending().first_key_value().map(|(mark, _)| *mark);
        let mut seen = self.seen();
        let silent = match oldest {
            // One may begin while this looks.
            Some(mark) => sweeps.saturating_sub(mark + 1),
            None if seen.requests == requests && self.under_way.load(Ordering::Relaxed) == 0 => {
                seen.silent + 1
            }
            None => 0,
        };
        *seen = Seen { requests, silent };
        (silent, oldest.is_some())
    }

    /// The pending transfers.
    fn pending(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        self.pending.lock().expect("no holder of this lock panics")
    }

    /// The connection's state at the last sweep.
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no holder of this lock panics")
    }
}

/// Removes one pending transfer from the count of a sweep.
fn remove_transfer(pending: &mut BTreeMap<u32, usize>, mark: u32) {
    if let Some(count) = pending.get_mut(&mark) {
        *count -= 1;
        if *count == 0 {
            pending.remove(&mark);
        }
    }
}

/// The connections of a listener.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: Mutex<(u64, HashMap<u64, Arc<Control>>)>,
    /// Notified whenever a connection ends.
    pub(super) freed: Notify,
}

/// One connection of a listener, for as long as it is open.
pub(super) struct Open {
    all: Arc<Connections>,
    number: u64,
    pub(super) control: Arc<Control>,
}

impl Connections {
    /// Adds a connection that was just accepted, until the result is dropped.
    pub(super) fn add(self: &Arc<Self>) -> Open {
        let control = Arc::<Control>::default();
        let mut open = self.open.lock().expect("no holder of this lock panics");
        let number = open.0;
        open.0 += 1;
        open.1.insert(number, Arc::clone(&control));
        drop(open);
        Open { all: Arc::clone(self), number, control }
    }

    /// How many connections are open now.
    pub(super) fn len(&self) -> usize {
        self.open.lock().expect("no holder of this lock panics").1.len()
    }

    /// All connections that are open now.
    fn all(&self) -> Vec<Arc<Control>> {
        self.open.lock().expect("no holder of this lock panics").1.values().cloned().collect()
    }

    /// Makes HTTP/2 connections announce that they take no more requests; no request is lost by
    /// that. HTTP/1 connections announce it with their next answer.
    pub(super) fn announce_end(&self) {
        for control in self.all().iter().filter(|control| control.http2.load(Ordering::Relaxed)) {
            control.give(Order::Finish);
        }
    }

    /// Orders all connections to end after what is under way.
    pub(super) fn finish(&self) {
        self.all().iter().for_each(|control| control.give(Order::Finish));
    }

    /// Orders all connections to end now.
    pub(super) fn close(&self) {
        self.all().iter().for_each(|control| control.give(Order::Close));
    }

    /// Ends one connection to make room for another: the one that has been silent for the most
    /// sweeps, but at least for `sweeps`; of several, the oldest. Never ends one that waits for an
    /// answer. The connection is asked to end and, if it does not, closed by a later call; with
    /// `at_once` it is closed now. Returns `false` if no connection can make room.
    pub(super) fn evict(&self, sweeps: u32, at_once: bool) -> bool {
        let open = self.open.lock().expect("no holder of this lock panics");
        let silent = |control: &Control| control.seen().silent;
        let told = |control: &Control| control.order.load(Ordering::SeqCst) != 0;
        let candidates = open.1.iter().filter(|(_, control)| {
            // A sweep may have come right behind a connection whose first request is on its way.
            let new = control.requests.load(Ordering::Relaxed) == 0;
            control.under_way.load(Ordering::Relaxed) == 0
                && silent(control) >= sweeps + u32::from(new)
        });
        // One that was told to finish has its time to, unless there is no other.
        let first = candidates
            .min_by_key(|(number, control)| (told(control), Reverse(silent(control)), **number));
        let Some(control) = first.map(|(_, control)| Arc::clone(control)) else { return false };
        drop(open);
        let told = told(&control);
        // An ordered end lets a connection answer what has been asked already. A connection that
        // never asked for anything, or did not end when it was asked to, is closed. (After one
        // sweep it may just be new.)
        let never_asked = silent(&control) > 1 && control.requests.load(Ordering::Relaxed) == 0;
        control.give(if at_once || told || never_asked { Order::Close } else { Order::Finish });
        true
    }

    /// Asks connections to end that have been silent for `sweeps` sweeps, this one included, and
    /// closes those that have been silent for longer. With `idle_stays` this concerns only clients
    /// that have a transfer pending.
    pub(super) fn sweep(&self, sweeps: u32, idle_stays: bool) {
        for control in &self.all() {
            let (silent, owes) = control.silent();
            match silent {
                _ if idle_stays && !owes => {}
                silent if silent > sweeps => control.give(Order::Close),
                silent if silent == sweeps => control.give(Order::Finish),
                _ => {}
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.all.open.lock().expect("no holder of this lock panics").1.remove(&self.number);
        self.all.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_that_ask_and_wait_for_nothing_are_ended() {
        let all = Arc::<Connections>::default();
        let (silent, asking, waiting) = (all.add(), all.add(), all.add());
        waiting.control.under_way.store(1, Ordering::Relaxed);
        for _ in 0..4 {
            asking.control.requests.fetch_add(1, Ordering::Relaxed);
            all.sweep(4, false);
        }
        let order = |open: &Open| open.control.order(&Context::from_waker(Waker::noop()));
        assert_eq!(order(&silent), Order::Finish);
        asking.control.requests.fetch_add(1, Ordering::Relaxed);
        all.sweep(4, false);
        assert_eq!(order(&silent), Order::Close);
        assert_eq!((order(&asking), order(&waiting)), (Order::Serve, Order::Serve));
        all.finish();
        assert_eq!((order(&silent), order(&asking)), (Order::Close, Order::Finish));
        drop(asking);
        assert_eq!(all.all().len(), 2);
    }

    #[test]
    fn answers_that_are_not_taken_end_a_connection_that_goes_on_asking() {
        let all = Arc::<Connections>::default();
        let (stalled, reading) = (all.add(), all.add());
        let mut mark = reading.control.transfer_begins();
        stalled.control.transfer_begins();
        for _ in 0..6 {
            // What is asked and given up meanwhile is no excuse.
            stalled.control.requests.fetch_add(1, Ordering::Relaxed);
            let other = stalled.control.transfer_begins();
            stalled.control.transfer_ends(other);
            reading.control.transfer_moves(&mut mark);
            all.sweep(4, false);
        }
        let order = |open: &Open| open.control.order(&Context::from_waker(Waker::noop()));
        assert_eq!((order(&stalled), order(&reading)), (Order::Close, Order::Serve));
    }

    #[test]
    fn the_one_that_was_silent_longest_makes_room() {
        let all = Arc::<Connections>::default();
        let (waiting, asking, silent, young) = (all.add(), all.add(), all.add(), all.add());
        waiting.control.under_way.store(1, Ordering::Relaxed);
        for open in [&asking, &silent] {
            open.control.requests.fetch_add(1, Ordering::Relaxed);
        }
        all.sweep(100, false);
        asking.control.requests.fetch_add(1, Ordering::Relaxed);
        young.control.requests.fetch_add(1, Ordering::Relaxed);
        all.sweep(100, false);
        let order = |open: &Open| open.control.order(&Context::from_waker(Waker::noop()));

        assert!(all.evict(1, false));
        assert_eq!(order(&silent), Order::Finish);
        assert!(all.evict(0, false), "the others asked lately: the oldest of them");
        assert_eq!((order(&asking), order(&young)), (Order::Finish, Order::Serve));
        assert!(all.evict(0, false) && all.evict(0, false));
        assert_eq!(order(&young), Order::Finish);
        assert_eq!(order(&silent), Order::Close, "it had its time");
        assert_eq!(order(&waiting), Order::Serve);
    }
}
