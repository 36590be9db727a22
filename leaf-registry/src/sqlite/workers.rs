//! The worker registry `sqlite`: several processes of one host share a file.
//!
//! Invariant: a record is replaced in a transaction of its own that compares its nonce, and counts after
//! COMMIT has answered. No failover loses a write; a file put back from a copy does, see the docs.

use std::path::Path;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::WorkerId;
use leaf_segment::StoreError;
use leaf_snowflake::Peer;
use sqlx::{query, query_as, query_scalar};

use super::file::{SqliteFile, make};
use crate::fenced::sql::{self, Token};
use crate::fenced::{Answer, FenceStore, Found, Known, Purpose, Record, translate};
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
    type Token = Token;

    fn place(&self) -> &'static str {
        "sqlite"
    }

    fn known(&self, _purpose: Purpose) -> Answer<'_, Vec<Known<Token>>> {
        Box::pin(async {
            let operation = "read the worker ids in sqlite".to_owned();
            let rows = self.file.read(operation, async |connection| {
                query_as(
                    "SELECT worker_id, nonce, record FROM leaf_worker_fence ORDER BY worker_id",
                )
                .fetch_all(connection)
                .await
            });
            Ok(sql::known(rows.await.map_err(|error| translate(&error))?, 0))
        })
    }

    fn read(&self, worker: WorkerId, _purpose: Purpose) -> Answer<'_, Found<Token>> {
        Box::pin(async move {
            let operation = format!("read worker id {worker} in sqlite");
            let row = self.file.read(operation, async |connection| {
                query_as(
                    "SELECT worker_id, nonce, record FROM leaf_worker_fence WHERE worker_id = ?1",
                )
                .bind(worker.get())
                .fetch_optional(connection)
                .await
            });
            Ok(sql::found(row.await.map_err(|error| translate(&error))?, 0))
        })
    }

    fn write<'a>(
        &'a self,
        worker: WorkerId,
        found: &'a Found<Token>,
        record: &'a Record,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            let operation = format!("write worker id {worker} in sqlite");
            let written = self.file.write(operation, async |connection| {
                let statement = match &found.token.record {
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
                let statement = match &found.token.record {
                    Some((nonce, text)) => statement.bind(nonce).bind(text),
                    None => statement,
                };
                Ok(Ok(statement.execute(connection).await?.rows_affected() == 1))
            });
            written.await.map_err(|error| translate(&error))
        })
    }

    fn peers(&self) -> Answer<'_, Vec<Peer>> {
        Box::pin(async {
            let operation = "look for live nodes in sqlite".to_owned();
            let rows = self.file.read(operation, async |connection| {
                query_scalar(concat!(
                    "SELECT record FROM leaf_worker_fence WHERE seen_at >= ",
                    now!(),
                    " - ?1"
                ))
                .bind(sql::silent_ms(self.report_interval))
                .fetch_all(connection)
                .await
            });
            Ok(sql::peers(rows.await.map_err(|error| translate(&error))?))
        })
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
