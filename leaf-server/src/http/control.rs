//! What a listener tells its connections, and sees of them.
//!
//! A connection looks at one word each time it runs, and is woken when that changes. Nothing else is
//! between a request and its answer: no timer, no channel.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// How a connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// As it is.
    Serve,
    /// To its end, after what is under way.
    Finish,
    /// It ends now.
    Close,
}

/// One connection, as its listener sees it.
#[derive(Debug, Default)]
pub(super) struct Control {
    /// How many requests have begun.
    pub(super) requests: AtomicUsize,
    /// How many of them wait for their answers.
    pub(super) under_way: AtomicUsize,
    http2: AtomicBool,
    order: AtomicU8,
    /// Of the connection's task, set once it has run.
    waker: Mutex<Option<Waker>>,
    /// Whether `waker` is set: a task has one for all its life.
    registered: AtomicBool,
    /// What `requests` was at the last sweep, and for how many it has been that.
    seen: Mutex<(usize, u32)>,
}

impl Control {
    pub(super) fn is_http2(&self) {
        self.http2.store(true, Ordering::Relaxed);
    }

    /// What to do now; its task is woken when that changes.
    pub(super) fn order(&self, context: &Context<'_>) -> Order {
        if !self.registered.load(Ordering::Relaxed) {
            *self.waker() = Some(context.waker().clone());
            self.registered.store(true, Ordering::Relaxed);
        }
        // Read after the waker stands: an order that was given before is seen here, one after wakes.
        match self.order.load(Ordering::SeqCst) {
            0 => Order::Serve,
            1 => Order::Finish,
            _ => Order::Close,
        }
    }

    /// The result of `future`, or `None` when the connection is not to go on.
    pub(super) async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if self.order(context) == Order::Serve => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    fn give(&self, order: Order) {
        let word = match order {
            Order::Serve => 0,
            Order::Finish => 1,
            Order::Close => 2,
        };
        self.order.fetch_max(word, Ordering::SeqCst);
        let waker = self.waker().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().expect("no holder of this lock panics")
    }

    /// For how many sweeps nothing has been asked, and nothing is to be answered.
    fn silent(&self) -> u32 {
        let requests = self.requests.load(Ordering::Relaxed);
        let mut seen = self.seen.lock().expect("no holder of this lock panics");
        let quiet = seen.0 == requests && self.under_way.load(Ordering::Relaxed) == 0;
        *seen = (requests, if quiet { seen.1 + 1 } else { 0 });
        seen.1
    }
}

/// The connections of a listener.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: Mutex<(u64, HashMap<u64, Arc<Control>>)>,
}

/// One of them, for as long as it is open.
pub(super) struct Open {
    all: Arc<Connections>,
    number: u64,
    pub(super) control: Arc<Control>,
}

impl Connections {
    pub(super) fn add(self: &Arc<Self>) -> Open {
        let control = Arc::<Control>::default();
        let mut open = self.open.lock().expect("no holder of this lock panics");
        let number = open.0;
        open.0 += 1;
        open.1.insert(number, Arc::clone(&control));
        drop(open);
        Open { all: Arc::clone(self), number, control }
    }

    fn all(&self) -> Vec<Arc<Control>> {
        self.open.lock().expect("no holder of this lock panics").1.values().cloned().collect()
    }

    /// HTTP/2 says by itself that no more requests are wanted, and loses none by that; HTTP/1 says it
    /// with its next answer.
    pub(super) fn announce_end(&self) {
        for control in self.all().iter().filter(|control| control.http2.load(Ordering::Relaxed)) {
            control.give(Order::Finish);
        }
    }

    pub(super) fn finish(&self) {
        self.all().iter().for_each(|control| control.give(Order::Finish));
    }

    /// Asks those to end that were silent for so many sweeps, this one included, and closes those that
    /// were asked before.
    pub(super) fn sweep(&self, sweeps: u32) {
        for control in &self.all() {
            match control.silent() {
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
            all.sweep(4);
        }
        let order = |open: &Open| open.control.order(&Context::from_waker(Waker::noop()));
        assert_eq!(order(&silent), Order::Finish);
        asking.control.requests.fetch_add(1, Ordering::Relaxed);
        all.sweep(4);
        assert_eq!(order(&silent), Order::Close);
        assert_eq!((order(&asking), order(&waiting)), (Order::Serve, Order::Serve));
        all.finish();
        assert_eq!((order(&silent), order(&asking)), (Order::Close, Order::Finish));
        drop(asking);
        assert_eq!(all.all().len(), 2);
    }
}
