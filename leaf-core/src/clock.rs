//! The two clocks that Leaf reads, wall clock and boot clock, behind one trait.
//!
//! No other code in the workspace may read the system's time, so that a test can hand in a
//! [`ManualClock`] and set it freely.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use crate::UnixMillis;

/// The release date of this version, 2026-11-01. A wall clock that shows an earlier time is wrong:
/// it was not set yet, for example after a boot without a battery.
pub const RELEASED: UnixMillis = UnixMillis::new(1_793_491_200_000);

/// A source of time. Both methods must be cheap: each call that takes snowflake ids reads `boot`
/// once.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Time since the Unix epoch by the wall clock. It may jump either way at any moment.
    fn wall(&self) -> Duration;

    /// Time since the machine booted, suspend included. It never goes back.
    fn boot(&self) -> Duration;

    /// The wall clock in whole milliseconds.
    fn wall_millis(&self) -> UnixMillis {
        UnixMillis::from_duration(self.wall())
    }
}

/// A clock for tests, whose time changes only by [`Self::advance`] and [`Self::set_wall`].
///
/// ```
/// use std::time::Duration;
/// use leaf_core::{Clock, ManualClock, UnixMillis};
///
/// let clock = ManualClock::at(UnixMillis::new(1_700_000_000_000));
/// clock.advance(Duration::from_secs(2));
/// clock.set_wall(UnixMillis::new(1_600_000_000_000));
/// assert_eq!(clock.boot(), Duration::from_secs(2));
/// assert_eq!(clock.wall_millis().get(), 1_600_000_000_000);
/// ```
#[derive(Debug)]
pub struct ManualClock {
    now: Mutex<Reading>,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    wall: Duration,
    boot: Duration,
}

impl ManualClock {
    /// Creates a clock whose wall clock shows `wall` and whose boot clock shows 0.
    #[must_use]
    pub fn at(wall: UnixMillis) -> Self {
        Self { now: Mutex::new(Reading { wall: wall.since_epoch(), boot: Duration::ZERO }) }
    }

    /// Lets `duration` pass on both clocks.
    pub fn advance(&self, duration: Duration) {
        self.change(|now| {
            now.wall += duration;
            now.boot += duration;
        });
    }

    /// Sets the wall clock, as an administrator or NTP would. The boot clock is unchanged.
    pub fn set_wall(&self, wall: UnixMillis) {
        self.change(|now| now.wall = wall.since_epoch());
    }

    fn change(&self, f: impl FnOnce(&mut Reading)) {
        f(&mut self.now.lock().expect("no holder of this lock panics"));
    }

    fn read(&self) -> Reading {
        *self.now.lock().expect("no holder of this lock panics")
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Duration {
        self.read().wall
    }

    fn boot(&self) -> Duration {
        self.read().boot
    }
}
