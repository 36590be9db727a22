//! One SQLite file, for segments and for worker ids.
//!
//! Invariant: a write counts only after COMMIT has answered. `UPDATE … RETURNING` alone, fetched as
//! one row, reports success although the commit fails on a full disk. With WAL and
//! `synchronous=FULL` an answered COMMIT is on the disk.

use std::path::Path;
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
            .connect_with(options)
            .await
            .map_err(|error| classify(format!("open {}", path.display()), error))?;
        Ok(Self { pool })
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
        result.map_err(|error| classify(operation, error))
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
            let outcome = work(&mut *connection).await?;
            let end = if outcome.is_ok() { "COMMIT" } else { "ROLLBACK" };
            query(end).execute(&mut *connection).await?;
            checkout.keep();
            Ok(outcome)
        }
        .await;
        match result {
            Ok(outcome) => outcome.map_err(|kind| StoreError::new(kind, operation)),
            Err(error) => Err(classify(operation, error)),
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
