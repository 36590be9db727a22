//! The clocks of the machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::Clock;

/// The wall clock of the standard library and `CLOCK_BOOTTIME`, which goes on in suspend.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    /// A wall clock before 1970 reads as 1970.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    #[inline]
    fn boot(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        // Neither field is negative: this clock starts at 0.
        Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_clocks() {
        let (wall, boot) = (SystemClock.wall(), SystemClock.boot());

        assert!(SystemClock.boot() >= boot);
        assert!(wall > Duration::from_secs(1_700_000_000));
        assert!(boot > Duration::ZERO && boot < wall);
    }
}
