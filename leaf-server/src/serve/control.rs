//! What a listener tells its connections, and sees of them.
//!
//! A connection looks at one word each time it runs, and is woken when that changes. Nothing else
//! is between a request and its answer: no timer, no channel.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// How a connection goes on; by number, as it is kept in [`Control`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// As it is.
    Serve = 0,
    /// To its end, after what is under way.
    Finish = 1,
    /// The connection ends now.
    Close = 2,
}

/// One connection, as its listener sees it. What every request touches stands on one cache line:
/// with hundreds of busy connections each line more is a miss.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Control {
    /// How many requests have begun.
    pub(crate) requests: AtomicUsize,
    /// How many of them wait for their answers.
    pub(crate) under_way: AtomicUsize,
    /// How many requests were answered at once since the connection last ran. Only its own task
    /// changes it.
    pub(crate) at_once: AtomicU32,
    /// How often it was swept.
    sweeps: AtomicU32,
    /// Whether a request's head could be read in two ways: the connection is given up.
    pub(crate) ambiguous: AtomicBool,
    /// Whether it speaks HTTP/2.
    http2: AtomicBool,
    /// The order that counts: 0, 1 and 2 stand for the three.
    order: AtomicU8,
    /// Whether `waker` is set: a task has one for all its life.
    registered: AtomicBool,
    /// Wakes the connection's task; set once that has run.
    waker: Mutex<Option<Waker>>,
    /// Pending transfers (unread answers, unfinished requests), counted by the sweep of their last
    /// progress.
    pending: Mutex<BTreeMap<u32, usize>>,
    /// What the last sweep found.
    seen: Mutex<Seen>,
}

/// What a sweep found.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    /// How many requests had begun by then.
    requests: usize,
    /// For how many sweeps that number has not changed.
    silent: u32,
}

impl Control {
    /// Notes that the connection speaks HTTP/2, which can say by itself that no more requests are
    /// wanted.
    pub(crate) fn is_http2(&self) {
        self.http2.store(true, Ordering::Relaxed);
    }

    /// What to do now; its task is woken when that changes.
    pub(crate) fn order(&self, context: &Context<'_>) -> Order {
        if !self.registered.load(Ordering::Relaxed) {
            *self.waker() = Some(context.waker().clone());
            self.registered.store(true, Ordering::Relaxed);
        }
        // Read after the waker stands: an order that was given before is seen here, one after
        // wakes.
        match self.order.load(Ordering::SeqCst) {
            0 => Order::Serve,
            1 => Order::Finish,
            _ => Order::Close,
        }
    }

    /// The result of `future`, or `None` when this is ordered, or more.
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

    /// Orders, and wakes the connection's task. An order never becomes a milder one.
    fn give(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::SeqCst);
        let waker = self.waker().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// What wakes the connection's task.
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().expect("no holder of this lock panics")
    }

    /// A transfer begins that the client may do in parts: to read an answer, or to send the rest of
    /// a request. Returns its mark for the two calls below.
    pub(crate) fn transfer_begins(&self) -> u32 {
        let now = self.sweeps.load(Ordering::Relaxed);
        *self.pending().entry(now).or_default() += 1;
        now
    }

    /// The client did a part of the transfer.
    pub(crate) fn transfer_moves(&self, mark: &mut u32) {
        let now = self.sweeps.load(Ordering::Relaxed);
        if now != *mark {
            let mut pending = self.pending();
            remove_transfer(&mut pending, *mark);
            *pending.entry(now).or_default() += 1;
            *mark = now;
        }
    }

    /// The transfer is complete, or given up.
    pub(crate) fn transfer_ends(&self, mark: u32) {
        remove_transfer(&mut self.pending(), mark);
    }

    /// The number of sweeps since the last progress, and whether a transfer is pending. With one
    /// pending only its progress counts; without, a request that has begun or waits for its answer
    /// is progress.
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

    /// What the last sweep saw.
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
}

/// One connection of a listener, for as long as it is open.
pub(super) struct Open {
    all: Arc<Connections>,
    number: u64,
    pub(super) control: Arc<Control>,
}

impl Connections {
    /// The control of a connection that was just accepted; it is forgotten when the result is
    /// dropped.
    pub(super) fn add(self: &Arc<Self>) -> Open {
        let control = Arc::<Control>::default();
        let mut open = self.open.lock().expect("no holder of this lock panics");
        let number = open.0;
        open.0 += 1;
        open.1.insert(number, Arc::clone(&control));
        drop(open);
        Open { all: Arc::clone(self), number, control }
    }

    /// All connections that are open now.
    fn all(&self) -> Vec<Arc<Control>> {
        self.open.lock().expect("no holder of this lock panics").1.values().cloned().collect()
    }

    /// HTTP/2 says by itself that no more requests are wanted, and loses none by that; HTTP/1 says
    /// it with its next answer.
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

    /// Ends one connection, so that another gets its place: that which was silent for the most
    /// sweeps, at least so many, of several the oldest. One that waits for an answer is never it.
    /// It is asked to end, and closed if it does not, or `at_once`. Tells whether there was one.
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
        // What it has asked already is answered; one that never asked for anything, or does not
        // end, is closed. The first sweep may have come right behind the connection.
        let never_asked = silent(&control) > 1 && control.requests.load(Ordering::Relaxed) == 0;
        control.give(if at_once || told || never_asked { Order::Close } else { Order::Finish });
        true
    }

    /// Asks those to end that were silent for so many sweeps, this one included, and closes those
    /// that were asked before. Where `idle_stays` only those are meant whose clients owe something.
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
