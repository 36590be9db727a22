//! One SQLite file, for segments and for worker ids.
//!
//! Invariant: a write counts only after COMMIT has answered. `UPDATE … RETURNING` alone, fetched as
//! one row, reports success although the commit fails on a full disk. With WAL and
//! `synchronous=FULL` an answered COMMIT is on the disk.
//!
//! SQLite goes on in a file that was removed or renamed, while the next process opens what is at the path
//! by then: each would grant what the other grants. So nothing counts unless the paths of the file and of its
//! write-ahead log still lead to those that were opened.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

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
    /// Of the file that was opened. Never opened for this: closing a second descriptor of the file would end
    /// the process's locks on it.
    identity: Identity,
    /// Of the write-ahead log that the connection uses, once it was seen.
    log: Arc<Mutex<Option<Identity>>>,
}

/// Device, inode and, since an inode is used again, the time when it was made, where the file system has it.
type Identity = (u64, u64, Option<SystemTime>);

/// The identity of what is at `path`; `None` where nothing is.
fn identity(path: &Path) -> std::io::Result<Option<Identity>> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some((found.dev(), found.ino(), found.created().ok()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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
        let log = Arc::<Mutex<Option<Identity>>>::default();
        let used = Arc::clone(&log);
        let pool = SqlitePoolOptions::new()
            // The last connection that closes removes the log, and the next one makes another.
            .after_connect(move |_, _| {
                *used.lock().expect("no holder of this lock panics") = None;
                Box::pin(async { Ok(()) })
            })
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
        let identity = identity(path).map_err(|error| classify(operation(), error.into()))?;
        let identity =
            identity.ok_or_else(|| StoreError::new(StoreErrorKind::Replaced, operation()))?;
        Ok(Self { pool, path: path.to_owned(), identity, log })
    }

    /// Refuses what was read or is to be written, unless the paths still lead to what was opened. To be called
    /// while the connection is held, on which a transaction was begun: nobody else removes its log then.
    fn check_in_place(&self) -> Result<(), StoreErrorKind> {
        self.check_file()?;
        let mut path = self.path.clone().into_os_string();
        path.push("-wal");
        let found = identity(Path::new(&path)).map_err(|_| StoreErrorKind::Unavailable)?;
        let mut log = self.log.lock().expect("no holder of this lock panics");
        if log.is_some() && found != *log {
            return Err(StoreErrorKind::Replaced);
        }
        *log = found;
        Ok(())
    }

    fn check_file(&self) -> Result<(), StoreErrorKind> {
        match identity(&self.path) {
            Ok(Some(found)) if found == self.identity => Ok(()),
            Ok(_) => Err(StoreErrorKind::Replaced),
            Err(_) => Err(StoreErrorKind::Unavailable),
        }
    }

    /// The error of an operation: where the file is not in place any more, that is why.
    fn explain(&self, operation: String, error: sqlx::Error) -> StoreError {
        match self.check_file() {
            Err(StoreErrorKind::Replaced) => StoreError::new(StoreErrorKind::Replaced, operation),
            _ => classify(operation, error),
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
            let in_place = self.check_in_place();
            checkout.keep();
            Ok(in_place.map(|()| value))
        }
        .await;
        match result {
            Ok(outcome) => outcome.map_err(|kind| StoreError::new(kind, operation)),
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
            if let Err(replaced) = self.check_in_place() {
                outcome = Err(replaced);
            }
            let end = if outcome.is_ok() { "COMMIT" } else { "ROLLBACK" };
            query(end).execute(&mut *connection).await?;
            // Replaced while it was committed: whoever opens the new file knows nothing of it.
            if let Err(replaced) = self.check_in_place() {
                outcome = outcome.and(Err(replaced));
            }
            checkout.keep();
            Ok(outcome)
        }
        .await;
        match result {
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
