//! Segments and worker ids in one SQLite file: the embedded default of `leaf-server`.
//!
//! Several processes of one host may share the file.

mod dialect;
mod errors;
mod file;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leaf_segment::StoreError;

pub(crate) use dialect::Sqlite;

use self::file::SqliteFile;
use crate::backend::Backend;
use crate::sql::failover_guard::FailoverGuard;
use crate::sql::fences::SqlFences;
use crate::sql::store::SqlStore;
use crate::{OpenRegistry, OpenStore, RegistryKind, SettingError};

/// Describes an SQLite file as a store of segments and worker ids: `sqlite:PATH`.
pub(crate) const BACKEND: Backend = Backend {
    schemes: &["sqlite"],
    registry: RegistryKind::Store("sqlite"),
    check: |url| match path(url).map(|path| path.strip_prefix("//").unwrap_or(path)) {
        None | Some("") => Err(SettingError::new("sqlite: needs a path, like sqlite:leaf.db")),
        Some(path) if path.contains('?') => {
            Err(SettingError::new("sqlite: takes a path without parameters"))
        }
        Some(path) => Ok(format!("sqlite:{path}")),
    },
    show: str::to_owned,
    hosts: |_| Vec::new(),
    path,
    open: |url, data_dir, _| {
        Box::pin(async move { Ok(OpenStore::of(store(&at(data_dir, url)).await?)) })
    },
    open_workers: |url, kind, data_dir, options| {
        Box::pin(async move {
            let workers = fences(&at(data_dir, url), options.report_interval).await?;
            Ok(OpenRegistry::with_tables(workers, kind, options))
        })
    },
};

/// The part of the URL behind `sqlite:`.
fn path(url: &str) -> Option<&str> {
    url.strip_prefix("sqlite:")
}

/// The path of the file; a relative path in the URL counts from `data_dir`.
fn at(data_dir: &Path, url: &str) -> PathBuf {
    data_dir.join(path(url).unwrap_or_default())
}

/// Segments in a file, which is made where it does not exist.
async fn store(path: &Path) -> Result<SqlStore<Sqlite>, StoreError> {
    Ok(SqlStore::new(SqliteFile::open(path).await?, Arc::new(FailoverGuard::new(None))))
}

/// Worker ids in a file, which is made if it does not exist. There is no failover that could lose a
/// write; but to restore the file from a copy loses writes, see docs/registries.md.
async fn fences(path: &Path, report_interval: Duration) -> Result<SqlFences<Sqlite>, StoreError> {
    let guard = Arc::new(FailoverGuard::new(None));
    let file = SqliteFile::open(path).await?;
    Ok(SqlFences::new(file, guard, dialect::FENCE_TABLES, report_interval))
}
