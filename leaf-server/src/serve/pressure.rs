//! Measures whether a thread of the data plane is overloaded.
//!
//! The control plane gives each thread a small task now and then. The task measures how long it
//! waits for its first turn, as a new connection does: behind older connections, newcomers or other
//! programs of the machine. Then it measures how long it waits for a second turn, as every request
//! of the thread does. To refuse a request costs as much as to issue an id, so that an overloaded
//! thread does not refuse single ids, but gets less to do: almost no new connections and, once
//! second turns have been late for half a second, no lists and leases.
//!
//! A timer on the thread itself would be simpler. But while one is pending, tokio reads the clock
//! once more for each wait for the network: 2 % to 5 % of the work for a single id.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

/// The pause between two tasks that measure a thread.
const PAUSE: Duration = Duration::from_millis(20);
/// How many tasks make one reading. Its value is the smallest delay: a burst of work delays some
/// tasks, an overload all.
const TASKS: u32 = 5;
/// A thread is overloaded if its tasks wait longer than this for both turns together.
const HIGH: Duration = Duration::from_millis(5);
/// A thread is also overloaded if a new connection waits longer than this for its first turn. More
/// than [`HIGH`], since connections that come at once wait for each other.
const NEWCOMER: Duration = Duration::from_millis(20);
/// An overload lasts once this many readings of the second turn were above [`HIGH`], without one below
/// [`LOW`] between them. A crowd of new clients delays only first turns, and is over sooner.
const LASTS: u32 = 5;
/// A thread whose tasks wait less than this for both turns is no longer overloaded.
const LOW: Duration = Duration::from_millis(2);

/// The measured load of one thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Pressure {
    /// The last reading: the smallest delay of its tasks, in microseconds.
    delay: AtomicU32,
    overloaded: AtomicBool,
    /// How many readings had a second turn above [`HIGH`], since the last one below [`LOW`].
    readings: AtomicU32,
}

impl Pressure {
    /// How long a new task waits for two turns, by the last reading.
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_micros(self.delay.load(Ordering::Relaxed).into())
    }

    /// Whether the thread should get no new connections.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.overloaded.load(Ordering::Relaxed)
    }

    /// Whether requests of open connections have waited too long for half a second or more.
    pub(crate) fn lasts(&self) -> bool {
        self.readings.load(Ordering::Relaxed) >= LASTS
    }

    /// Records how long a new connection waited for its first turn.
    pub(super) fn newcomer_waited(&self, delay: Duration) {
        if delay > NEWCOMER {
            self.overloaded.store(true, Ordering::Relaxed);
        }
    }

    /// Takes readings of a thread until its runtime ends. Must run elsewhere.
    pub(super) async fn watch(&self, thread: &Handle) {
        loop {
            let (mut both, mut second) = (Duration::MAX, Duration::MAX);
            for _ in 0..TASKS {
                tokio::time::sleep(PAUSE).await;
                let begun = Instant::now();
                let turns = thread.spawn(async move {
                    let first = begun.elapsed();
                    // A task that yields comes behind most that are ready.
                    tokio::task::yield_now().await;
                    let both = begun.elapsed();
                    (both, both - first)
                });
                let Ok(delays) = turns.await else { return };
                (both, second) = (both.min(delays.0), second.min(delays.1));
            }
            self.note(both, second);
        }
    }

    /// Records a reading: how long a task waited for both turns, and for the second one.
    fn note(&self, both: Duration, second: Duration) {
        let micros = u32::try_from(both.as_micros()).unwrap_or(u32::MAX);
        self.delay.store(micros, Ordering::Relaxed);
        if both > HIGH {
            self.overloaded.store(true, Ordering::Relaxed);
        } else if both < LOW {
            self.overloaded.store(false, Ordering::Relaxed);
        }
        if second > HIGH {
            let readings = self.readings.load(Ordering::Relaxed);
            self.readings.store(readings.saturating_add(1), Ordering::Relaxed);
        } else if second < LOW {
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
        let note = |both, second| {
            pressure.note(Duration::from_millis(both), Duration::from_millis(second));
        };
        let after = |millis| {
            note(millis, millis);
            pressure.is_overloaded()
        };
        assert_eq!([4, 6, 4, 3, 1, 4].map(after), [false, true, true, true, false, false]);
        assert_eq!(pressure.delay(), Duration::from_millis(4));
        // Lists are refused when it lasts, and not for a crowd of newcomers.
        pressure.newcomer_waited(Duration::from_secs(1));
        (0..10).for_each(|_| note(6, 1));
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
