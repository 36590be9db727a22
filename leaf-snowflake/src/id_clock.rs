//! The clock that ids are made of.
//!
//! Invariant: between two looks at the wall clock it advances exactly with the boot clock, so that
//! nothing on the hot path can see a step. It reads `boot + offset`; a watcher moves the offset
//! towards the wall by at most 500 ppm.
//!
//! A wall clock that falls behind by more than the tolerance stops the ids (the offset is then
//! [`BLOCKED`]) until it is within the tolerance of the last id issued: Leaf's rule, where the
//! tolerance is 5 ms. A wall clock that jumps ahead by more than `max_step_forward` is not followed.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leaf_core::{Clock, UnixMillis};

const BLOCKED: i64 = i64::MIN;
const SLEW_PER_MILLION: i64 = 500;
/// A wall reading that took longer than this says too little about when it was taken.
const WIDEST_READING: Duration = Duration::from_micros(500);

#[derive(Debug)]
pub(crate) struct IdClock {
    clock: Arc<dyn Clock>,
    tolerance: i64,
    max_step_forward: i64,
    /// Nanoseconds to add to the boot clock.
    offset: AtomicI64,
    /// The boot clock at the last look; only the watcher locks it.
    watched: Mutex<Duration>,
}

/// What a look at the wall clock found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Fine,
    /// The wall fell behind the ids' clock by this much; ids stop.
    WentBack(Duration),
    /// The wall is still behind the last id by this much.
    StillBehind(Duration),
    /// The wall has caught up; ids flow again.
    CaughtUp,
    /// The wall jumped ahead and is not followed.
    FarAhead,
}

impl IdClock {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        tolerance: Duration,
        max_step_forward: Duration,
    ) -> Self {
        let this = Self {
            clock,
            tolerance: nanos(tolerance),
            max_step_forward: nanos(max_step_forward),
            offset: AtomicI64::new(0),
            watched: Mutex::new(Duration::ZERO),
        };
        this.anchor();
        this
    }

    /// Sets the clock to the wall.
    pub(crate) fn anchor(&self) {
        let boot = self.clock.boot();
        *self.watched.lock().expect("no holder of this lock panics") = boot;
        self.offset.store(nanos(self.clock.wall()) - nanos(boot), Ordering::Release);
    }

    /// The time for the next id; `None` while the wall clock is behind.
    #[inline]
    pub(crate) fn now(&self) -> Option<UnixMillis> {
        let offset = self.offset.load(Ordering::Acquire);
        if offset == BLOCKED {
            return None;
        }
        let since_epoch = nanos(self.clock.boot()).saturating_add(offset).max(0);
        Some(UnixMillis::new(since_epoch.cast_unsigned() / 1_000_000))
    }

    pub(crate) fn wall(&self) -> UnixMillis {
        self.clock.wall_millis()
    }

    /// Looks at the wall clock. `last_issued` is the first instant above all ids issued so far.
    /// Called by one watcher, several times a second.
    pub(crate) fn look(&self, last_issued: UnixMillis) -> Look {
        let before = self.clock.boot();
        let wall = nanos(self.clock.wall());
        let boot = self.clock.boot();
        let mut watched = self.watched.lock().expect("no holder of this lock panics");
        if boot.saturating_sub(before) > WIDEST_READING {
            return Look::Fine;
        }
        let elapsed = boot.saturating_sub(*watched);
        *watched = boot;
        let target = wall - nanos(boot);
        let last_issued = nanos(last_issued.since_epoch());
        let behind_ids = last_issued - wall;
        let offset = self.offset.load(Ordering::Acquire);
        if offset == BLOCKED {
            if behind_ids > self.tolerance {
                return Look::StillBehind(Duration::from_nanos(behind_ids.unsigned_abs()));
            }
            self.offset.store(target + behind_ids.max(0), Ordering::Release);
            return Look::CaughtUp;
        }
        let difference = target - offset;
        if difference < -self.tolerance {
            // Also where the ids did not come that far: a caller may be about to take one. The next
            // look sees what was taken, and then follows the wall.
            self.offset.store(BLOCKED, Ordering::Release);
            return Look::WentBack(Duration::from_nanos(difference.unsigned_abs()));
        }
        if difference > self.max_step_forward {
            return Look::FarAhead;
        }
        let slew = nanos(elapsed) / 1_000_000 * SLEW_PER_MILLION;
        self.offset.store(offset + difference.clamp(-slew, slew), Ordering::Release);
        Look::Fine
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaf_core::ManualClock;

    const START: UnixMillis = UnixMillis::new(1_700_000_000_000);
    const TICK: Duration = Duration::from_millis(100);

    fn clock(tolerance: Duration) -> (Arc<ManualClock>, IdClock) {
        let manual = Arc::new(ManualClock::at(START));
        manual.advance(TICK);
        let hour = Duration::from_secs(3600);
        (Arc::clone(&manual), IdClock::new(manual, tolerance, hour))
    }

    fn step_back(manual: &ManualClock, by: Duration) {
        manual.set_wall(manual.wall_millis() - by);
    }

    #[test]
    fn leafs_rule_at_5_ms() {
        let five = Duration::from_millis(5);
        for (back, served) in [(5, true), (6, false)] {
            let (manual, ids) = clock(five);
            let last_issued = ids.now().unwrap();

            step_back(&manual, Duration::from_millis(back));
            let look = ids.look(last_issued);

            assert_eq!(ids.now().is_some(), served, "{back} ms back: {look:?}");
        }
    }

    #[test]
    fn a_step_within_the_tolerance_is_not_seen() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let before = ids.now().unwrap();

        step_back(&manual, Duration::from_secs(1));
        assert_eq!(ids.look(before), Look::Fine);
        manual.advance(TICK);

        let difference = ids.now().unwrap() - before;
        assert!(difference >= TICK - Duration::from_millis(1), "{difference:?}");
    }

    #[test]
    fn an_hour_back_stops_the_ids_until_the_wall_is_at_the_last_one() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let last_issued = ids.now().unwrap();
        let hour = Duration::from_secs(3600);

        step_back(&manual, hour);
        assert_eq!(ids.look(last_issued), Look::WentBack(hour));
        assert_eq!(ids.now(), None);
        manual.advance(hour - Duration::from_secs(2));
        assert!(matches!(ids.look(last_issued), Look::StillBehind(_)));
        manual.advance(Duration::from_secs(1));
        assert_eq!(ids.look(last_issued), Look::CaughtUp);

        assert_eq!(ids.now(), Some(last_issued), "never before the last id");
    }

    #[test]
    fn a_corrected_clock_heals_at_once() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let last_issued = ids.now().unwrap();
        step_back(&manual, Duration::from_secs(60));
        ids.look(last_issued);

        manual.set_wall(START + TICK + TICK);

        assert_eq!(ids.look(last_issued), Look::CaughtUp);
        assert_eq!(ids.now(), Some(START + TICK + TICK));
    }

    #[test]
    fn a_node_that_issued_nothing_lately_follows_back_at_the_next_look() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let last_issued = START - Duration::from_secs(7200);

        step_back(&manual, Duration::from_secs(3600));

        assert!(matches!(ids.look(last_issued), Look::WentBack(_)));
        assert_eq!(ids.look(last_issued), Look::CaughtUp);
        assert_eq!(ids.now(), Some(manual.wall_millis()));
    }

    #[test]
    fn a_jump_ahead_is_slewed_and_a_great_one_not_followed() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let before = ids.now().unwrap();
        manual.set_wall(START + Duration::from_secs(60));
        manual.advance(Duration::from_secs(1));

        assert_eq!(ids.look(before), Look::Fine);
        let ahead = ids.now().unwrap() - before;
        assert!(ahead <= Duration::from_micros(1_000_600), "at most 500 ppm faster: {ahead:?}");

        manual.set_wall(START + Duration::from_secs(86_400));
        assert_eq!(ids.look(before), Look::FarAhead);
    }
}
