//! The worker ids that one of several registries gives out.

use std::fmt;
use std::str::FromStr;

use leaf_core::WorkerId;
use thiserror::Error;

/// The worker ids that a registry gives out, the first and the last included, so that another
/// registry, of a second data centre say, can give out the others.
///
/// ```
/// use leaf_snowflake::{WorkerId, WorkerRange};
///
/// let range: WorkerRange = "512..1023".parse()?;
/// assert!(range.contains(WorkerId::new(1023)) && !range.contains(WorkerId::new(511)));
/// # Ok::<(), leaf_snowflake::WorkerRangeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerRange {
    first: u32,
    last: u32,
}

/// The text is no valid [`WorkerRange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("give the first and the last worker id, like 512..1023")]
pub struct WorkerRangeError;

impl WorkerRange {
    /// Whether the range has this worker id.
    #[must_use]
    pub const fn contains(self, worker: WorkerId) -> bool {
        self.first <= worker.get() && worker.get() <= self.last
    }

    /// Its last worker id.
    #[must_use]
    pub const fn last(self) -> WorkerId {
        WorkerId::new(self.last)
    }
}

impl FromStr for WorkerRange {
    type Err = WorkerRangeError;

    fn from_str(text: &str) -> Result<Self, WorkerRangeError> {
        let number = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits)
        };
        let (first, last) = text.split_once("..").ok_or(WorkerRangeError)?;
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(WorkerRangeError),
        }
    }
}

impl fmt::Display for WorkerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_numbers() {
        assert_eq!("0..0".parse::<WorkerRange>().unwrap().to_string(), "0..0");
        for bad in
            ["", "5", "5..", "..5", "6..5", "-1..5", "1..+5", "1...5", "1..5..6", "0..4294967296"]
        {
            assert_eq!(bad.parse::<WorkerRange>(), Err(WorkerRangeError), "{bad}");
        }
    }
}
