//! The error of values that are written as one of a few names.

use thiserror::Error;

/// The text is not one of the names or forms that the value can have. The message lists them.
///
/// # Examples
/// ```
/// use leaf_core::UnknownName;
///
/// const ORDER: UnknownName = UnknownName::new("give relaxed or strict");
/// assert_eq!(ORDER.to_string(), "give relaxed or strict");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct UnknownName(&'static str);

impl UnknownName {
    /// Makes the error. `instead` is its message, like "give daily, monthly or yearly".
    #[must_use]
    pub const fn new(instead: &'static str) -> Self {
        Self(instead)
    }
}
