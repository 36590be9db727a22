//! Whether a thread of the data plane has more to do than it can.
//!
//! Each thread notes how late it wakes from short sleeps: that is how long whatever becomes ready waits for
//! its turn, be it for other connections of the thread or for other programs of the machine. It also notes
//! how long a new connection waits until it is first looked at, which is longer: those that stand come
//! first. A refusal costs what an id costs, so that an overloaded thread does not answer more, but takes
//! on less: it gets next to no new connections, and, where that lasts, refuses lists and leases, so that
//! single ids stay quick.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long a sleep is meant to be.
const SLEEP: Duration = Duration::from_millis(20);
/// How many sleeps make one reading. The one that was least late counts: a moment's work makes some late,
/// an overload all.
const SLEEPS: u32 = 5;
/// Above this a thread is overloaded.
const HIGH: Duration = Duration::from_millis(5);
/// A thread is overloaded, too, where a new connection waits so long: longer, since those that come at
/// once wait for each other.
const NEWCOMER: Duration = Duration::from_millis(20);
/// After so many readings in a row above that an overload lasts: a crowd that comes at once is none.
const LASTS: u32 = 5;
/// Below this it no longer is.
const LOW: Duration = Duration::from_millis(2);

/// How much one thread has to do.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Pressure {
    /// How late it woke at least, in the last reading; in microseconds.
    delay: AtomicU32,
    overloaded: AtomicBool,
    /// How many readings were above the high mark since one was below the low one.
    readings: AtomicU32,
}

impl Pressure {
    /// How long whatever is ready waits for its turn.
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_micros(self.delay.load(Ordering::Relaxed).into())
    }

    /// Whether the thread should get no new connections.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.overloaded.load(Ordering::Relaxed)
    }

    /// Whether it has been overloaded for half a second and more.
    pub(crate) fn lasts(&self) -> bool {
        self.readings.load(Ordering::Relaxed) >= LASTS
    }

    /// A new connection has waited so long until it was looked at.
    pub(super) fn newcomer_waited(&self, delay: Duration) {
        if delay > NEWCOMER {
            self.overloaded.store(true, Ordering::Relaxed);
        }
    }

    /// Reads it for ever; to be run on the thread.
    pub(super) async fn watch(&self) {
        loop {
            let mut least = Duration::MAX;
            for _ in 0..SLEEPS {
                let due = Instant::now() + SLEEP;
                tokio::time::sleep_until(due).await;
                least = least.min(due.elapsed());
            }
            self.note(least);
        }
    }

    fn note(&self, delay: Duration) {
        let micros = u32::try_from(delay.as_micros()).unwrap_or(u32::MAX);
        self.delay.store(micros, Ordering::Relaxed);
        if delay > HIGH {
            self.overloaded.store(true, Ordering::Relaxed);
            let readings = self.readings.load(Ordering::Relaxed);
            self.readings.store(readings.saturating_add(1), Ordering::Relaxed);
        } else if delay < LOW {
            self.overloaded.store(false, Ordering::Relaxed);
            self.readings.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_overloaded_from_the_high_mark_to_the_low_one() {
        let pressure = Pressure::default();
        let after = |millis| {
            pressure.note(Duration::from_millis(millis));
            pressure.is_overloaded()
        };
        assert_eq!([4, 6, 4, 3, 1, 4].map(after), [false, true, true, true, false, false]);
        assert_eq!(pressure.delay(), Duration::from_millis(4));
        // Lists are refused when it lasts, and not for a crowd of newcomers.
        pressure.newcomer_waited(Duration::from_secs(1));
        assert!(pressure.is_overloaded() && !pressure.lasts());
        assert!(!after(1));
        assert_eq!(
            [6, 6, 3, 6, 6, 6, 3, 1].map(|millis| {
                after(millis);
                pressure.lasts()
            }),
            [false, false, false, false, false, true, true, false]
        );
    }
}
