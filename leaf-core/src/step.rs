//! The step: how many ids one trip to the store reserves.
//!
//! Invariant: 1 to `i32::MAX`, the positive values of Leaf's column `step int`. With a step of 0
//! the store would grant the same range again, and with a negative step ids that were issued
//! before.

use std::fmt;

/// How many ids a segment holds, 1 to `i32::MAX`.
///
/// ```
/// use leaf_core::Step;
///
/// assert_eq!(Step::new(2000).map(Step::get), Ok(2000));
/// assert!(Step::new(0).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step(u32);

impl Step {
    /// The least step, one id.
    pub const MIN: Self = Self(1);
    /// The greatest step, `i32::MAX`.
    pub const MAX: Self = Self(i32::MAX as u32);

    /// A step of `value` ids.
    ///
    /// # Errors
    /// [`StepError`] unless `1 <= value <= i32::MAX`.
    pub const fn new(value: i64) -> Result<Self, StepError> {
        if 1 <= value && value <= Self::MAX.0 as i64 {
            Ok(Self(value as u32))
        } else {
            Err(StepError(value))
        }
    }

    /// The number of ids.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Twice this step; `None` above [`Step::MAX`].
    #[must_use]
    pub const fn double(self) -> Option<Self> {
        if self.0 <= Self::MAX.0 / 2 { Some(Self(self.0 * 2)) } else { None }
    }

    /// Half of this step, rounded down, at least 1.
    #[must_use]
    pub const fn half(self) -> Self {
        if self.0 < 2 { Self::MIN } else { Self(self.0 / 2) }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The value is no step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("step {0} is out of range: give 1 to 2147483647")]
pub struct StepError(i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_the_column_can_mean() {
        for value in [1, 2000, i64::from(i32::MAX)] {
            assert_eq!(Step::new(value).map(|step| i64::from(step.get())), Ok(value));
        }
        for value in [0, -5, i64::from(i32::MAX) + 1, i64::MIN] {
            assert_eq!(Step::new(value), Err(StepError(value)));
        }
    }

    #[test]
    fn doubles_without_overflow() {
        let largest_half = Step::new(1 << 30).unwrap();

        assert_eq!(Step::MAX.double(), None);
        assert_eq!(largest_half.double(), None);
        assert_eq!(largest_half.half().double(), Some(largest_half));
        assert_eq!(Step::MIN.half(), Step::MIN);
    }
}
