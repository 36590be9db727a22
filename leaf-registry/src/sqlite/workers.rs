//! The worker registry `sqlite`: several processes of one host share a file.
//!
//! Invariant: a record is replaced in a transaction of its own that compares its nonce, and counts after
//! COMMIT has answered. No failover loses a write; a file put back from a copy does, see the docs.

use std::path::Path;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::WorkerId;
use leaf_segment::StoreError;
use leaf_snowflake::{
    FenceStore, Peer, Purpose, RegistryError, Stored, StoredWorker, WorkerRecord,
};
use sqlx::{query, query_as, query_scalar};

use super::file::{SqliteFile, make};
use crate::sql::fence_rows::{self, Version};
use crate::worker_ids::translate;
use crate::{Administration, Table};

const TABLES: &[Table] = &[Table {
    name: "leaf_worker_fence",
    statements: "\
CREATE TABLE leaf_worker_fence (
    worker_id INTEGER NOT NULL PRIMARY KEY,
    nonce     TEXT    NOT NULL,
    record    TEXT    NOT NULL,
    seen_at   INTEGER NOT NULL
) STRICT;
",
}];

/// The host's clock, Unix milliseconds.
macro_rules! now {
    () => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
}

/// Worker ids in an SQLite file.
#[derive(Debug)]
pub(crate) struct SqliteWorkers {
    file: SqliteFile,
    report_interval: Duration,
}

impl SqliteWorkers {
    /// Opens the file, and makes it where it does not exist.
    pub(crate) async fn open(path: &Path, report_interval: Duration) -> Result<Self, StoreError> {
        Ok(Self { file: SqliteFile::open(path).await?, report_interval })
    }
}

impl FenceStore for SqliteWorkers {
    type Version = Version;

    fn name(&self) -> &'static str {
        "sqlite"
    }

    async fn list(&self, _purpose: Purpose) -> Result<Vec<StoredWorker<Version>>, RegistryError> {
        let operation = "read the worker ids in sqlite".to_owned();
        let rows = self.file.read(operation, async |connection| {
            query_as("SELECT worker_id, nonce, record FROM leaf_worker_fence ORDER BY worker_id")
                .fetch_all(connection)
                .await
        });
        Ok(fence_rows::listed(rows.await.map_err(|error| translate(&error))?, 0))
    }

    async fn read(
        &self,
        worker: WorkerId,
        _purpose: Purpose,
    ) -> Result<Stored<Version>, RegistryError> {
        let operation = format!("read worker id {worker} in sqlite");
        let row = self.file.read(operation, async |connection| {
            query_as("SELECT worker_id, nonce, record FROM leaf_worker_fence WHERE worker_id = ?1")
                .bind(worker.get())
                .fetch_optional(connection)
                .await
        });
        Ok(fence_rows::stored(row.await.map_err(|error| translate(&error))?, 0))
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<Version>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        let operation = format!("write worker id {worker} in sqlite");
        let written = self.file.write(operation, async |connection| {
            let statement = match &read.version.record {
                Some(_) => query(concat!(
                    "UPDATE leaf_worker_fence SET nonce = ?1, record = ?2, seen_at = ",
                    now!(),
                    " WHERE worker_id = ?3 AND nonce = ?4 AND record = ?5"
                )),
                None => query(concat!(
                    "INSERT INTO leaf_worker_fence (nonce, record, seen_at, worker_id) \
                     VALUES (?1, ?2, ",
                    now!(),
                    ", ?3) ON CONFLICT DO NOTHING"
                )),
            };
            let statement = statement
                .bind(record.fence.nonce.to_string())
                .bind(record.encode())
                .bind(worker.get());
            let statement = match &read.version.record {
                Some((nonce, text)) => statement.bind(nonce).bind(text),
                None => statement,
            };
            Ok(Ok(statement.execute(connection).await?.rows_affected() == 1))
        });
        written.await.map_err(|error| translate(&error))
    }

    async fn peers(&self) -> Result<Vec<Peer>, RegistryError> {
        let operation = "look for live nodes in sqlite".to_owned();
        let rows = self.file.read(operation, async |connection| {
            query_scalar(concat!(
                "SELECT record FROM leaf_worker_fence WHERE seen_at >= ",
                now!(),
                " - ?1"
            ))
            .bind(fence_rows::silent_ms(self.report_interval))
            .fetch_all(connection)
            .await
        });
        Ok(fence_rows::peers(rows.await.map_err(|error| translate(&error))?))
    }
}

impl Administration for SqliteWorkers {
    fn tables(&self) -> &'static [Table] {
        TABLES
    }

    fn apply(&self) -> BoxFuture<'_, Result<Vec<&'static str>, StoreError>> {
        Box::pin(self.file.write("make the tables in sqlite".into(), async |connection| {
            make(connection, TABLES).await.map(Ok)
        }))
    }

    fn risks(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
