//! A duration as people write it: `5ms`, `1s`, `10min`.
//!
//! A number alone is refused: whether `30` means seconds or milliseconds differs from program to
//! program.

use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ConfigError;

/// A duration that is written like `10min`.
///
/// Serializes to the form that is read. Negative durations do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(Duration);

impl Span {
    /// A duration of `seconds`.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// The duration as the type of the standard library.
    #[must_use]
    pub const fn duration(self) -> Duration {
        self.0
    }

    /// Refuses a duration that is not `least` to `most` milliseconds. `key` is for the error.
    pub(super) fn check_bounds(
        self,
        key: &str,
        least: u128,
        most: u128,
    ) -> Result<(), ConfigError> {
        if (least..=most).contains(&self.0.as_millis()) {
            return Ok(());
        }
        Err(ConfigError::new(format!("{key}: give {least} ms to {} s", most / 1000)))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let signed = SignedDuration::try_from(self.0).map_err(serde::ser::Error::custom)?;
        to.collect_str(&format_args!("{signed:#}"))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for Span {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.parse::<SignedDuration>().ok();
        parsed
            .and_then(|signed| Duration::try_from(signed).ok())
            .map(Self)
            .ok_or_else(|| ConfigError::new("no duration: write it like 5ms, 1s, 10min"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, millis) in [("5ms", 5), ("1s", 1000), ("10min", 600_000), ("1h 30m", 5_400_000)]
        {
            let span: Span = serde_json::from_value(text.into()).unwrap();
            assert_eq!(span.duration(), Duration::from_millis(millis), "{text}");
        }
        for text in ["", "5", "soon", "-1s"] {
            assert!(serde_json::from_value::<Span>(text.into()).is_err(), "{text}");
        }
    }
}
