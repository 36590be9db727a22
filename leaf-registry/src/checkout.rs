//! A connection that goes back to its pool only after it has answered.
//!
//! Invariant: no connection with an unfinished request or transaction is ever reused. A future that
//! is dropped half-way (a deadline passed) drops the checkout with it, which closes the connection
//! instead of returning it.

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};

pub(crate) struct Checkout<DB: Database>(Option<PoolConnection<DB>>);

impl<DB: Database> Checkout<DB> {
    pub(crate) async fn from(pool: &Pool<DB>) -> Result<Self, sqlx::Error> {
        Ok(Self(Some(pool.acquire().await?)))
    }

    pub(crate) fn connection(&mut self) -> &mut DB::Connection {
        self.0.as_mut().expect("taken out only by `keep` and `drop`")
    }

    /// Returns the connection to the pool: the server has answered, and nothing is left open.
    pub(crate) fn keep(mut self) {
        drop(self.0.take());
    }
}

impl<DB: Database> Drop for Checkout<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

/// What was read of a table that need not be there.
pub(crate) fn or_default<T: Default>(
    result: Result<T, sqlx::Error>,
    absent: impl Fn(&sqlx::Error) -> bool,
) -> Result<T, sqlx::Error> {
    match result {
        Err(error) if absent(&error) => Ok(T::default()),
        result => result,
    }
}
