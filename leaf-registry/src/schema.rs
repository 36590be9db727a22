//! The tables that a store needs.

use std::fmt;

use futures_core::future::BoxFuture;
use leaf_segment::StoreError;

/// Shows and makes a store's tables.
pub trait Schema: fmt::Debug + Send + Sync + 'static {
    /// The tables, each with the statements that make it, to be read or run by hand.
    fn tables(&self) -> &'static [Table];

    /// Makes the tables that do not exist yet, and with a new `leaf_alloc` Leaf's stock row
    /// `leaf-segment-test`. What exists stays as it is. Returns the names of those that it made.
    ///
    /// # Errors
    /// Failures of the store.
    fn apply(&self) -> BoxFuture<'_, Result<Vec<&'static str>, StoreError>>;
}

/// One table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// What makes it, and its first rows.
    pub statements: &'static str,
}
