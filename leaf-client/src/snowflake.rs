//! Snowflake ids, in lists.

use std::sync::Arc;

use leaf_core::Id;

use crate::error::ClientError;
use crate::stock::Stock;

/// Hands out snowflake ids, which it fetches from the servers in lists ahead of callers. An id is
/// in memory for at most one second, so its timestamp is at most one second old. Ids from different
/// servers are only as well ordered as those servers' clocks.
#[derive(Debug, Clone)]
pub struct Snowflake {
    pub(crate) stock: Arc<Stock>,
}

impl Snowflake {
    /// Takes the next id if one is in memory; never waits. If it returns `None`, a fetch is under
    /// way, so that a later call can succeed.
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

    /// Takes `count` ids, 1 to 1,000.
    ///
    /// # Errors
    /// `BadCount`; else those of [`Self::next`].
    pub async fn take(&self, count: usize) -> Result<Vec<Id>, ClientError> {
        self.stock.take(count).await
    }
}
