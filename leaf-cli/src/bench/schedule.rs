//! When requests are due.
//!
//! All moments are fixed before the run: one every `interval`. A free connection takes the next
//! moment, even if that has already passed. A separate thread wakes the connections, to within
//! about 50 microseconds: the runtime's timer is accurate only to a millisecond.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The moments of one thread's requests.
pub(super) struct Schedule {
    begins: Instant,
    interval: Duration,
    /// One permit for each moment that has come and was not taken.
    due: Semaphore,
    come: AtomicU64,
    taken: AtomicU64,
}

impl Schedule {
    pub(super) fn new(begins: Instant, interval: Duration) -> Self {
        let (come, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { begins, interval, due: Semaphore::new(0), come, taken }
    }

    fn at(&self, index: u64) -> Instant {
        self.begins + Duration::from_nanos((self.interval.as_nanos() as u64).saturating_mul(index))
    }

    /// Adds a permit at each moment, until `end` or until `over` is set. It blocks, so it needs its
    /// own thread.
    #[expect(clippy::disallowed_methods, reason = "a thread of its own, which may sleep")]
    pub(super) fn keep(&self, end: Instant, over: &AtomicBool) {
        let mut come = 0;
        loop {
            let at = self.at(come);
            if at >= end || over.load(Ordering::Relaxed) {
                return;
            }
            let left = at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                std::thread::sleep(left);
                continue;
            }
            come += 1;
            self.come.store(come, Ordering::Relaxed);
            self.due.add_permits(1);
        }
    }

    /// The next moment, once it has come; `None` after [`Self::close`].
    pub(super) async fn next(&self) -> Option<Instant> {
        self.due.acquire().await.ok()?.forget();
        Some(self.at(self.taken.fetch_add(1, Ordering::Relaxed)))
    }

    /// Ends the schedule. Returns the moments that have come and were not taken.
    pub(super) fn close(&self) -> impl Iterator<Item = Instant> {
        self.due.close();
        let (taken, come) = (self.taken.load(Ordering::Relaxed), self.come.load(Ordering::Relaxed));
        (taken..come).map(|index| self.at(index))
    }
}
