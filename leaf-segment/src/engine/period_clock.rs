//! The clock that decides which period is opened.
//!
//! Invariant: the wall clock is believed only while it advances evenly with the boot clock. After
//! it was set, it is observed for [`SETTLED`]; until then periods follow the time that it would
//! show if nobody had set it. So a clock that is a year ahead for a moment opens no period, which
//! could not be closed again, and callers still get ids.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_core::{Clock, UnixMillis};

/// The wall clock was set if it moves against the boot clock by more than this, in milliseconds,
/// between two readings; NTP moves it by less.
const STEP: i64 = 5000;
/// A clock that was set is believed once it has advanced evenly for this long.
const SETTLED: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct PeriodClock {
    clock: Arc<dyn Clock>,
    seen: Mutex<Seen>,
}

/// The last readings. An offset is the wall clock minus the boot clock, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The offset at the last reading.
    offset: i64,
    /// The boot clock when the wall clock was last found to be set.
    set_at: Duration,
    /// The offset that is believed, which periods follow.
    believed: i64,
}

/// By how many milliseconds a clock was set forward; negative if it was set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SetBy(i64);

/// Writes a text like `365 days forward`, `3 h back` or `7 s forward`.
impl fmt::Display for SetBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.0 < 0 { "back" } else { "forward" };
        match self.0.unsigned_abs() / 1000 {
            seconds @ 0..7200 => write!(f, "{seconds} s {way}"),
            seconds @ 7200..172_800 => write!(f, "{} h {way}", seconds / 3600),
            seconds => write!(f, "{} days {way}", seconds / 86_400),
        }
    }
}

impl PeriodClock {
    /// Accepts the time that the clock shows now, since there is no earlier reading to compare it
    /// with.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let (offset, boot) = look(&*clock);
        let seen = Seen { offset, set_at: boot, believed: offset };
        Self { clock, seen: Mutex::new(seen) }
    }

    /// The time that periods follow. Call it regularly even if nobody needs the time: a late call
    /// cannot tell how long ago the clock was set.
    pub(crate) fn now(&self) -> UnixMillis {
        let (offset, boot) = look(&*self.clock);
        let mut seen = self.seen.lock().expect("no holder of this lock panics");
        let by = SetBy(offset - seen.believed);
        if (offset - seen.offset).abs() > STEP {
            seen.set_at = boot;
            if by.is_step() {
                tracing::warn!(
                    "the clock was set {by}; periods follow it if it stays so for {SETTLED:?}"
                );
            }
        }
        seen.offset = offset;
        if !by.is_step() {
            seen.believed = offset;
        } else if boot.saturating_sub(seen.set_at) >= SETTLED {
            tracing::warn!("periods follow the clock, which was set {by}");
            seen.believed = offset;
        }
        UnixMillis::new(millis(boot).saturating_add(seen.believed).max(0).unsigned_abs())
    }

    /// By how much the clock was set, if that is not believed yet; else `None`.
    pub(crate) fn in_doubt(&self) -> Option<SetBy> {
        let seen = self.seen.lock().expect("no holder of this lock panics");
        Some(SetBy(seen.offset - seen.believed)).filter(|by| by.is_step())
    }
}

impl SetBy {
    fn is_step(self) -> bool {
        self.0.abs() > STEP
    }
}

/// Returns the wall clock minus the boot clock, in milliseconds, and the boot clock.
fn look(clock: &dyn Clock) -> (i64, Duration) {
    let boot = clock.boot();
    (millis(clock.wall()) - millis(boot), boot)
}

/// Milliseconds, at most half of `i64::MAX`, so that no difference overflows.
fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use leaf_core::ManualClock;

    use super::*;

    const START: UnixMillis = UnixMillis::new(1_800_000_000_000);
    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The time that is believed, in seconds after the start.
    fn at(clock: &PeriodClock) -> i64 {
        clock.now().get().cast_signed() / 1000 - 1_800_000_000
    }

    #[test]
    fn a_clock_that_is_a_year_ahead_for_a_moment_is_not_followed() {
        let wall = Arc::new(ManualClock::at(START));
        let clock = PeriodClock::new(Arc::clone(&wall) as _);
        for _ in 0..3 {
            let before = at(&clock);
            wall.set_wall(wall.wall_millis() + YEAR);
            assert_eq!(at(&clock), before);
            assert!(clock.in_doubt().is_some());
            wall.advance(seconds(50));
            assert_eq!(at(&clock), before + 50);
            wall.set_wall(wall.wall_millis() - YEAR);
            assert_eq!(at(&clock), before + 50);
            assert_eq!(clock.in_doubt(), None);
        }
    }

    #[test]
    fn a_clock_that_stays_is_followed_either_way() {
        let wall = Arc::new(ManualClock::at(START));
        let clock = PeriodClock::new(Arc::clone(&wall) as _);
        wall.set_wall(START + YEAR);
        for second in 0..60 {
            assert_eq!(at(&clock), second);
            wall.advance(seconds(1));
        }
        assert_eq!(at(&clock), 365 * 86_400 + 60);
        assert_eq!(clock.in_doubt(), None);
        // Set again before it was believed: it is looked at anew.
        wall.set_wall(START);
        assert_eq!(at(&clock), 365 * 86_400 + 60);
        wall.advance(seconds(59));
        wall.set_wall(START + seconds(1000));
        assert_eq!(at(&clock), 365 * 86_400 + 119);
        wall.advance(seconds(59));
        assert_eq!(at(&clock), 365 * 86_400 + 178);
        wall.advance(seconds(1));
        assert_eq!(at(&clock), 1060);
    }

    #[test]
    fn ntp_is_followed_at_once() {
        let wall = Arc::new(ManualClock::at(START));
        let clock = PeriodClock::new(Arc::clone(&wall) as _);
        for step in 1..100 {
            wall.set_wall(wall.wall_millis() + seconds(4));
            assert_eq!(at(&clock), 4 * step);
        }
        assert_eq!(clock.in_doubt(), None);
    }
}
