//! The worker id: the number in a snowflake id that no two nodes use at the same time.
//!
//! The layout decides which values fit ([`crate::Layout::max_worker`]).

use std::fmt;

/// A worker id, counted from 0.
///
/// ```
/// use leaf_core::{Layout, WorkerId};
///
/// assert!(WorkerId::new(1023) <= Layout::LEAF.max_worker());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u32);

impl WorkerId {
    /// The worker id of this number.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
