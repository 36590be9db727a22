//! Segments and worker ids in one SQLite file: the embedded default of `leaf-server`.
//!
//! Several processes of one host may share the file.

mod dialect;
mod errors;
mod file;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leaf_segment::StoreError;

pub(crate) use dialect::Sqlite;

use self::file::SqliteFile;
use crate::sql::failover_guard::FailoverGuard;
use crate::sql::fences::SqlFences;
use crate::sql::store::SqlStore;

/// Segments in a file, which is made where it does not exist.
pub(crate) async fn store(path: &Path) -> Result<SqlStore<Sqlite>, StoreError> {
    Ok(SqlStore::new(SqliteFile::open(path).await?, Arc::new(FailoverGuard::new(None))))
}

/// Worker ids in a file, which is made where it does not exist. No failover loses a write; a file
/// that is put back from a copy does, see docs/registries.md.
pub(crate) async fn fences(
    path: &Path,
    report_interval: Duration,
) -> Result<SqlFences<Sqlite>, StoreError> {
    let guard = Arc::new(FailoverGuard::new(None));
    let file = SqliteFile::open(path).await?;
    Ok(SqlFences::new(file, guard, dialect::FENCE_TABLES, report_interval))
}
