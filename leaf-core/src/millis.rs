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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    /// Later by whole milliseconds of `duration`.
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_millis(duration)))
    }
}

impl std::ops::Sub<Duration> for UnixMillis {
    type Output = Self;

    /// Earlier by whole milliseconds of `duration`, not before the Unix epoch.
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

impl fmt::Debug for UnixMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnixMillis({})", self.0)
    }
}
