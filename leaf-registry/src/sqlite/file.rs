//! One SQLite file, for segments and for worker ids.
//!
//! Invariant: a write counts only after COMMIT has answered. `UPDATE … RETURNING` alone, fetched as
//! one row, reports success although the commit fails on a full disk. With WAL and
//! `synchronous=FULL` an answered COMMIT is on the disk.
//!
//! SQLite goes on in a file that was removed or renamed, while the next process opens what is at the path
//! by then: each would grant what the other grants. So nothing counts unless the path still leads to the
//! file that was opened.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leaf_segment::{StoreError, StoreErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, SqliteConnection, SqlitePool, query, query_scalar};

use super::error::classify;
use crate::Table;
use crate::checkout::Checkout;

/// Another process of the host may hold the write lock; below the generator's own deadline.
const BUSY_TIMEOUT: Duration = Duration::from_millis(1500);

#[derive(Debug)]
pub(super) struct SqliteFile {
    /// One connection: SQLite has one writer anyway.
    pool: SqlitePool,
    path: PathBuf,
    /// Device and inode of the file that was opened. Never opened for this: closing a second descriptor of
    /// the file would end the process's locks on it.
    identity: (u64, u64),
}

/// Device and inode of what is at `path`.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

impl SqliteFile {
    /// Opens the file, and makes it where it does not exist.
    pub(super) async fn open(path: &Path) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(Duration::from_secs(2))
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options.clone())
            .await
            .map_err(|error| classify(format!("open {}", path.display()), error))?;
        // A later connection must not make the file anew.
        pool.set_connect_options(options.create_if_missing(false));
        let operation = || format!("open {}", path.display());
        let identity =
            identity(path).ok_or_else(|| StoreError::new(StoreErrorKind::Replaced, operation()))?;
        Ok(Self { pool, path: path.to_owned(), identity })
    }

    /// Whether the path still leads to the file that was opened.
    fn is_in_place(&self) -> bool {
        identity(&self.path) == Some(self.identity)
    }

    /// The error of an operation: where the file is not in place any more, that is why.
    fn explain(&self, operation: String, error: sqlx::Error) -> StoreError {
        match self.is_in_place() {
            true => classify(operation, error),
            false => StoreError::new(StoreErrorKind::Replaced, operation),
        }
    }

    pub(super) const fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// Runs `work`, which changes nothing, on a connection of its own.
    pub(super) async fn read<T>(
        &self,
        operation: String,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let result: Result<_, sqlx::Error> = async {
            let mut checkout = Checkout::<Sqlite>::from(&self.pool).await?;
            let value = work(checkout.connection()).await?;
            checkout.keep();
            Ok(value)
        }
        .await;
        match result {
            Ok(value) if self.is_in_place() => Ok(value),
            Ok(_) => Err(StoreError::new(StoreErrorKind::Replaced, operation)),
            Err(error) => Err(self.explain(operation, error)),
        }
    }

    /// Runs `work` on a connection of its own, inside `BEGIN IMMEDIATE … COMMIT`. What `work`
    /// refuses is rolled back.
    pub(super) async fn write<T>(
        &self,
        operation: String,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<Result<T, StoreErrorKind>, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let result: Result<_, sqlx::Error> = async {
            let mut checkout = Checkout::<Sqlite>::from(&self.pool).await?;
            let connection = checkout.connection();
            query("BEGIN IMMEDIATE").execute(&mut *connection).await?;
            let mut outcome = work(&mut *connection).await?;
            if !self.is_in_place() {
                outcome = Err(StoreErrorKind::Replaced);
            }
            let end = if outcome.is_ok() { "COMMIT" } else { "ROLLBACK" };
            query(end).execute(&mut *connection).await?;
            checkout.keep();
            Ok(outcome)
        }
        .await;
        match result {
            // Replaced while it was committed: whoever opens the new file knows nothing of it.
            Ok(Ok(_)) if !self.is_in_place() => {
                Err(StoreError::new(StoreErrorKind::Replaced, operation))
            }
            Ok(outcome) => outcome.map_err(|kind| StoreError::new(kind, operation)),
            Err(error) => Err(self.explain(operation, error)),
        }
    }
}

/// Makes the tables that do not exist; returns their names.
pub(super) async fn make(
    connection: &mut SqliteConnection,
    tables: &[Table],
) -> Result<Vec<&'static str>, sqlx::Error> {
    let mut made = Vec::new();
    for table in tables {
        let exists: bool =
            query_scalar("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = ?1)")
                .bind(table.name)
                .fetch_one(&mut *connection)
                .await?;
        if !exists {
            sqlx::raw_sql(table.statements).execute(&mut *connection).await?;
            made.push(table.name);
        }
    }
    Ok(made)
}
