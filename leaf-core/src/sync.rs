//! The one place that chooses between real atomics and loom's model of them.

#[cfg(not(leaf_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(leaf_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
