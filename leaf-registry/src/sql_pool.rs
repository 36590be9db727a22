//! The connections to a database server, and how a statement uses one.
//!
//! Invariant: a connection is used again only after an answer that shows it to be in order. A server
//! that has become read-only answers, too: whoever meets it connects anew, for its address may lead
//! elsewhere by now.

use std::fmt;
use std::sync::{Arc, Mutex};

use leaf_segment::{StoreError, StoreErrorKind};
use sqlx::{Database, Pool};

use crate::checkout::Checkout;

/// Connections to one server, made when they are needed.
pub(crate) struct SqlPool<DB: Database> {
    pool: Pool<DB>,
    trouble: Trouble,
    classify: fn(String, sqlx::Error) -> StoreError,
}

/// Why the last connection could not be prepared. The pool itself only says that it has waited.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    /// Takes over what became of a new connection.
    pub(crate) fn of<T>(&self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        *self.0.lock().expect("no holder of this lock panics") =
            result.as_ref().err().map(ToString::to_string);
        result
    }
}

impl<DB: Database> SqlPool<DB> {
    pub(crate) const fn new(
        pool: Pool<DB>,
        trouble: Trouble,
        classify: fn(String, sqlx::Error) -> StoreError,
    ) -> Self {
        Self { pool, trouble, classify }
    }

    /// The pool itself, for work that outlives the statement.
    pub(crate) const fn connections(&self) -> &Pool<DB> {
        &self.pool
    }

    /// Runs `work` on a connection.
    pub(crate) async fn run<T>(
        &self,
        operation: String,
        work: impl AsyncFnOnce(&mut DB::Connection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let mut checkout = match Checkout::<DB>::from(&self.pool).await {
            Ok(checkout) => checkout,
            Err(error) => return Err(self.no_connection(operation, error)),
        };
        match work(checkout.connection()).await {
            Ok(value) => {
                checkout.keep();
                Ok(value)
            }
            Err(error) => {
                let error = (self.classify)(operation, error);
                use StoreErrorKind::{Exhausted, TagExists, UnknownTag};
                if matches!(error.kind(), Exhausted | TagExists | UnknownTag) {
                    checkout.keep();
                }
                Err(error)
            }
        }
    }

    fn no_connection(&self, operation: String, error: sqlx::Error) -> StoreError {
        let sqlx::Error::PoolTimedOut = error else { return (self.classify)(operation, error) };
        let trouble = self.trouble.0.lock().expect("no holder of this lock panics").clone();
        let why = trouble.unwrap_or_else(|| {
            "no connection in time: is the server up, are host and port right, has it connections \
             left?"
                .into()
        });
        StoreError::new(StoreErrorKind::Unavailable, operation).because(why)
    }
}

impl<DB: Database> fmt::Debug for SqlPool<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The pool's own text has the connection's options in it.
        f.debug_struct("SqlPool").field("size", &self.pool.size()).finish_non_exhaustive()
    }
}
