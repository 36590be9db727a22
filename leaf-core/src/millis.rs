//! An instant of the wall clock, as every record of Leaf holds it.

use std::fmt;
use std::time::Duration;

/// Milliseconds since 1970-01-01T00:00:00Z. Arithmetic saturates at both ends.
///
/// ```
/// use std::time::Duration;
/// use leaf_core::UnixMillis;
///
/// let noon = UnixMillis::new(1_700_000_000_000);
/// let later = noon + Duration::from_secs(3);
/// assert_eq!(later - noon, Duration::from_secs(3));
/// assert_eq!(noon - later, Duration::ZERO);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(u64);

impl UnixMillis {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// The instant `millis` after the Unix epoch.
    #[must_use]
    pub const fn new(millis: u64) -> Self {
        Self(millis)
    }

    /// The instant `since_epoch` after the Unix epoch, rounded down.
    #[must_use]
    pub fn from_duration(since_epoch: Duration) -> Self {
        Self(whole_millis(since_epoch))
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Formats the instant for people: date and time in UTC, to the second.
    ///
    /// ```
    /// use leaf_core::UnixMillis;
    ///
    /// assert_eq!(UnixMillis::new(1_709_164_800_999).utc().to_string(), "2024-02-29 00:00:00 UTC");
    /// ```
    #[must_use]
    pub fn utc(self) -> impl fmt::Display {
        let seconds = self.0 / 1000;
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        // Years are counted from March, so that a leap day is the last day of its year: then one
        // division turns the number of a day in the year into its month. The calendar repeats every
        // 400 years (`civil_from_days` of <https://howardhinnant.github.io/date_algorithms.html>).
        let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let year = era * 400 + year + next;
        fmt::from_fn(move |f| {
            write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
        })
    }

    /// Time since the Unix epoch.
    #[must_use]
    pub const fn since_epoch(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl std::ops::Add<Duration> for UnixMillis {
    type Output = Self;

    /// Adds `duration`, rounded down to whole milliseconds.
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_millis(duration)))
    }
}

impl std::ops::Sub<Duration> for UnixMillis {
    type Output = Self;

    /// Subtracts `duration`, rounded down to whole milliseconds. The result is not before the Unix
    /// epoch.
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(whole_millis(duration)))
    }
}

impl std::ops::Sub for UnixMillis {
    type Output = Duration;

    /// How much later `self` is than `earlier`; zero when it is not.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for UnixMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_told_as_dates() {
        for (millis, date) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399_000, "2000-02-28 23:59:59 UTC"),
            (951_782_400_000, "2000-02-29 00:00:00 UTC"),
            (4_107_542_400_000, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799_999, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(UnixMillis::new(millis).utc().to_string(), date);
        }
        assert!(!UnixMillis::new(u64::MAX).utc().to_string().is_empty());
    }
}
