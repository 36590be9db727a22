//! One SQLite file, for segments and for worker ids.
//!
//! Invariant: a write counts only after its commit was answered: by the answer to `COMMIT`, or, for
//! a statement outside of a transaction, by the end of its rows. (A caller that stops after the
//! first row of an `UPDATE … RETURNING` would not see that the commit fails, as on a full disk.)
//! With WAL and `synchronous=FULL` an answered commit is on the disk.
//!
//! SQLite continues to use a file that was removed or renamed, while the next process opens another
//! file at the same path: both would grant the same ids. So nothing counts unless the paths of the
//! file and of its write-ahead log still lead to the files that were opened. Nothing counts either
//! if the file has a second name: a process that opens it by that name uses another log, and
//! neither process sees what the other commits.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use leaf_segment::{StoreError, StoreErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, query};

use crate::sql::connections::{Access, Connections, WorkError, classify};
use crate::sql::pool::{Checkout, Pool};

/// How long to wait for another process of the host that holds the write lock. Less than the
/// generator's own deadline.
const BUSY_TIMEOUT: Duration = Duration::from_millis(1500);

/// An open file, with what is needed to notice that it was replaced.
#[derive(Debug)]
pub(crate) struct SqliteFile {
    /// One connection: SQLite has one writer anyway.
    pool: Pool<Sqlite>,
    path: PathBuf,
    /// The identity of the file that was opened. It is read without opening the file again: to
    /// close a second descriptor would end the process's locks on it.
    identity: FileId,
    /// The path of the write-ahead log. SQLite makes the log beside the file itself, even if `path`
    /// is a symbolic link to the file.
    log_path: PathBuf,
    /// The identity of the write-ahead log that the connection uses, once it was seen.
    log: Arc<Mutex<Option<FileId>>>,
}

/// Whether `path` itself is a mount point: then its file is shared under another name. `false`
/// where the system does not tell (Linux before 5.8).
fn is_mount(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
        statx(CWD, path, AtFlags::empty(), StatxFlags::empty())
            .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Device, inode and, because inodes are reused, the time when the file was made, where the file
/// system has it.
type FileId = (u64, u64, Option<SystemTime>);

/// The identity of the file at `path`, and how many names it has; `None` if there is no file.
fn identity(path: &Path) -> std::io::Result<Option<(FileId, u64)>> {
    match std::fs::metadata(path) {
        Ok(found) => {
            let identity = (found.dev(), found.ino(), found.created().ok());
            Ok(Some((identity, found.nlink())))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl SqliteFile {
    /// Opens the file, and makes it where it does not exist.
    pub(super) async fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |error| classify::<super::Sqlite>(format!("open {}", path.display()), error);
        let second_name = || failed(WorkError::Refused(StoreErrorKind::SecondName));
        let names = |path| identity(path).ok().flatten().map_or(0, |(_, names)| names);
        // Before SQLite makes a log beside this name.
        if is_mount(path) || names(path) > 1 {
            return Err(second_name());
        }
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            // 512 KiB instead of 2 MiB: an allocation touches a few pages, and a long list of tags
            // is read through the system's cache.
            .pragma("cache_size", "-512");
        let log = Arc::<Mutex<Option<FileId>>>::default();
        let log_in_use = Arc::clone(&log);
        let pool = SqlitePoolOptions::new()
            // The last connection that closes removes the log, and the next one makes another.
            .after_connect(move |_, _| {
                *log_in_use.lock().expect("no holder of this lock panics") = None;
                Box::pin(async { Ok(()) })
            })
            .max_connections(1)
            .acquire_timeout(Duration::from_secs(2))
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options.clone())
            .await
            .map_err(|error| failed(error.into()))?;
        // A later connection must not make the file anew.
        pool.set_connect_options(options.create_if_missing(false));
        let identity = identity(path).map_err(|error| failed(sqlx::Error::Io(error).into()))?;
        let (identity, _) =
            identity.ok_or_else(|| failed(WorkError::Refused(StoreErrorKind::Replaced)))?;
        let real = std::fs::canonicalize(path);
        let mut log_path =
            real.map_err(|error| failed(sqlx::Error::Io(error).into()))?.into_os_string();
        log_path.push("-wal");
        Ok(Self {
            pool: Pool::new(pool, |_| false),
            path: path.to_owned(),
            identity,
            log_path: log_path.into(),
            log,
        })
    }

    /// Refuses the result of the work unless the paths still lead to the files that were opened.
    /// Call it while the connection is held and after a statement has run on it: the connection
    /// then has the log open, so that nobody else removes the log.
    fn check_in_place(&self) -> Result<(), StoreErrorKind> {
        self.check_file()?;
        let found = identity(&self.log_path).map_err(|_| StoreErrorKind::Unavailable)?;
        let found = found.map(|(identity, _)| identity);
        let mut log = self.log.lock().expect("no holder of this lock panics");
        if log.is_some() && found != *log {
            return Err(StoreErrorKind::Replaced);
        }
        *log = found;
        Ok(())
    }

    /// Checks that the file is still the one that was opened, and has no second name.
    fn check_file(&self) -> Result<(), StoreErrorKind> {
        match identity(&self.path) {
            Ok(Some((found, 0..=1))) if found == self.identity => Ok(()),
            Ok(Some((found, _))) if found == self.identity => Err(StoreErrorKind::SecondName),
            Ok(_) => Err(StoreErrorKind::Replaced),
            Err(_) => Err(StoreErrorKind::Unavailable),
        }
    }
}

/// Whether work begins with `BEGIN IMMEDIATE` and ends with `COMMIT`.
const fn in_transaction(access: Access) -> bool {
    matches!(access, Access::Write | Access::Transaction | Access::TransactionThenClose)
}

impl Connections for SqliteFile {
    type Db = Sqlite;

    fn pool(&self) -> &Pool<Sqlite> {
        &self.pool
    }

    /// Work of several statements runs inside `BEGIN IMMEDIATE … COMMIT`. A single statement runs
    /// without these two: each costs another trip to SQLite's thread, and a tag in strict order
    /// would pay both with every request.
    async fn begin(&self, access: Access) -> Result<Checkout<Sqlite>, sqlx::Error> {
        let mut checkout = self.pool.acquire().await?;
        if in_transaction(access) {
            query("BEGIN IMMEDIATE").execute(checkout.connection()).await?;
        }
        Ok(checkout)
    }

    async fn finish<T: Send>(
        &self,
        mut checkout: Checkout<Sqlite>,
        access: Access,
        result: Result<T, WorkError>,
    ) -> Result<T, WorkError> {
        if matches!(result, Err(WorkError::Database(_))) {
            return result;
        }
        let mut result = result;
        if let Err(replaced) = self.check_in_place() {
            result = Err(WorkError::Refused(replaced));
        }
        if in_transaction(access) {
            let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
            query(end).execute(checkout.connection()).await?;
            // Replaced while it was committed: whoever opens the new file knows nothing of it.
            if let Err(replaced) = self.check_in_place() {
                result = result.and(Err(WorkError::Refused(replaced)));
            }
        }
        checkout.give_back();
        result
    }

    /// If the file was removed or replaced, or has a second name, reports that instead of SQLite's
    /// error.
    async fn explain(&self, operation: String, error: WorkError) -> StoreError {
        match self.check_file() {
            Err(kind @ (StoreErrorKind::Replaced | StoreErrorKind::SecondName)) => {
                StoreError::new(kind, operation)
            }
            _ => classify::<super::Sqlite>(operation, error),
        }
    }
}
