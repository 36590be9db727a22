//! The tables that a store needs.

use std::fmt;

use futures_core::future::BoxFuture;
use leaf_segment::StoreError;

/// Shows and makes a store's tables.
pub trait Schema: fmt::Debug + Send + Sync + 'static {
    /// The statements, to be read or run by hand.
    fn statements(&self) -> &'static str;

    /// Makes the tables that do not exist yet, and with a new table Leaf's stock row
    /// `leaf-segment-test`. What exists stays as it is. Tells whether anything was made.
    ///
    /// # Errors
    /// Failures of the store.
    fn apply(&self) -> BoxFuture<'_, Result<bool, StoreError>>;
}
