//! The clock that periods are opened by.
//!
//! Invariant: the wall clock is believed only while it goes on evenly with the boot clock. One that
//! was set is looked at for [`SETTLED`]; meanwhile periods go by the time that it would show if
//! nobody had set it. So a clock that is a year ahead for a moment opens no period, which could not
//! be closed again, and callers get ids meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leaf_core::Clock;

/// A wall clock that changes by more than this between two looks was set; NTP moves it by less.
const STEP: SignedDuration = SignedDuration::from_secs(5);
/// A clock that was set is believed once it has gone on evenly for so long.
const SETTLED: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct PeriodClock {
    clock: Arc<dyn Clock>,
    seen: Mutex<Seen>,
}

/// What the wall clock showed, each as its distance from the boot clock.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Wall clock minus boot clock, when both were read last.
    offset: SignedDuration,
    /// The boot clock when it was set last.
    set_at: Duration,
    /// What is believed.
    believed: SignedDuration,
}

impl PeriodClock {
    /// Believes what the clock shows now: there is nothing to compare it with.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let (offset, boot) = look(&*clock);
        let seen = Seen { offset, set_at: boot, believed: offset };
        Self { clock, seen: Mutex::new(seen) }
    }

    /// The time that periods go by. Also to be asked now and then while nobody needs it: a look
    /// that comes late cannot tell how long a clock has been where it is.
    pub(crate) fn now(&self) -> Timestamp {
        let (offset, boot) = look(&*self.clock);
        let mut seen = self.seen.lock().expect("no holder of this lock panics");
        if (offset - seen.offset).abs() > STEP {
            seen.set_at = boot;
            let by = offset - seen.believed;
            if by.abs() > STEP {
                tracing::warn!(
                    "the clock was set by {by:#}; periods follow it if it stays so for {SETTLED:?}"
                );
            }
        }
        seen.offset = offset;
        if (offset - seen.believed).abs() <= STEP {
            seen.believed = offset;
        } else if boot.saturating_sub(seen.set_at) >= SETTLED {
            tracing::warn!(
                "periods follow the clock, which was set by {:#}",
                offset - seen.believed
            );
            seen.believed = offset;
        }
        let now = SignedDuration::try_from(boot).unwrap_or(SignedDuration::MAX);
        Timestamp::from_duration(now.saturating_add(seen.believed)).unwrap_or(Timestamp::MAX)
    }

    /// By how much the clock was set, where that is not believed yet.
    pub(crate) fn in_doubt(&self) -> Option<SignedDuration> {
        let seen = self.seen.lock().expect("no holder of this lock panics");
        Some(seen.offset - seen.believed).filter(|by| by.abs() > STEP)
    }
}

/// Wall minus boot clock, and the boot clock.
fn look(clock: &dyn Clock) -> (SignedDuration, Duration) {
    let boot = clock.boot();
    let signed = |time: Duration| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
    (signed(clock.wall()).saturating_sub(signed(boot)), boot)
}

#[cfg(test)]
mod tests {
    use leaf_core::{ManualClock, UnixMillis};

    use super::*;

    const START: UnixMillis = UnixMillis::new(1_800_000_000_000);
    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What is believed, in seconds after the start.
    fn at(clock: &PeriodClock) -> i64 {
        clock.now().as_second() - 1_800_000_000
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
