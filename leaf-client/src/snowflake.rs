//! Snowflake ids, in lists.

use std::sync::Arc;

use leaf_core::Id;

use crate::error::ClientError;
use crate::stock::Stock;

/// Snowflake ids of the servers, fetched in lists ahead of callers. An id lies here a second at
/// most, so that its timestamp is that old at most. Ids of lists of several servers are in the
/// order of those servers' clocks.
#[derive(Debug, Clone)]
pub struct Snowflake {
    pub(crate) stock: Arc<Stock>,
}

impl Snowflake {
    /// Takes the next id if one is there; never waits. `None` also sees to it that a later call
    /// succeeds.
    #[must_use]
    pub fn try_next(&self) -> Option<Id> {
        self.stock.try_next()
    }

    /// Takes the next id, and waits where it must.
    ///
    /// # Errors
    /// `Unavailable` after the client's deadline, also where no server makes snowflake ids;
    /// `Unauthorized`, `Refused`, `Closed`.
    pub async fn next(&self) -> Result<Id, ClientError> {
        self.stock.next().await
    }

    /// Takes so many ids, at most 1,000.
    ///
    /// # Errors
    /// `BadCount`; else those of [`Self::next`].
    pub async fn take(&self, count: usize) -> Result<Vec<Id>, ClientError> {
        self.stock.take(count).await
    }
}
