//! The error of values that are written as one of a few names.

use thiserror::Error;

/// The text is none of the names, or forms, that the value can have. The message says which there
/// are.
///
/// # Examples
/// ```
/// let error = "uuidv7".parse::<leaf_core::TextForm>().unwrap_err();
/// assert_eq!(error.to_string(), "give one of uuid, ulid, tsid, objectid");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct UnknownName(&'static str);

impl UnknownName {
    /// `instead` says what to give, like "give daily, monthly or yearly".
    #[must_use]
    pub const fn new(instead: &'static str) -> Self {
        Self(instead)
    }
}
