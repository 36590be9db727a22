//! The worker registry `sqlite`: several processes of one host share a file.
//!
//! Invariant: a record is replaced in a transaction of its own that compares its nonce, and counts after
//! COMMIT has answered. No failover loses a write; a file put back from a copy does, see the docs.

use std::path::Path;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{UnixMillis, WorkerId};
use leaf_segment::StoreError;
use leaf_snowflake::{Peer, RegistryError};
use sqlx::{SqliteConnection, query, query_as, query_scalar};

use super::file::{SqliteFile, make};
use crate::fenced::sql::{self, Row, Token};
use crate::fenced::{Answer, FenceStore, Found, Listing, Record};
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
    /// Opens the file, and makes it and its table where they do not exist.
    pub(crate) async fn open(path: &Path, report_interval: Duration) -> Result<Self, StoreError> {
        let workers = Self { file: SqliteFile::open(path).await?, report_interval };
        workers.apply().await?;
        Ok(workers)
    }

    async fn run<T>(
        &self,
        operation: String,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, RegistryError> {
        let outcome = self.file.write(operation, async |c| work(c).await.map(Ok)).await;
        outcome.map_err(|error| sql::refused(&error))
    }
}

impl FenceStore for SqliteWorkers {
    type Token = Token;

    fn place(&self) -> &'static str {
        "sqlite"
    }

    fn list(&self, greatest: WorkerId) -> Answer<'_, Listing<Token>> {
        Box::pin(async move {
            let operation = "read the worker ids in sqlite".to_owned();
            let rows: Vec<Row> = self
                .run(operation, async |connection| {
                    query_as(
                        "SELECT worker_id, nonce, record FROM leaf_worker_fence ORDER BY worker_id",
                    )
                    .fetch_all(connection)
                    .await
                })
                .await?;
            let found =
                |row: Row| Some((sql::worker(row.0)?, sql::found(Some(row), UnixMillis::EPOCH)));
            Ok(sql::listing(rows.into_iter().filter_map(found).collect(), 0, greatest))
        })
    }

    fn read(&self, worker: WorkerId) -> Answer<'_, Found<Token>> {
        Box::pin(async move {
            let operation = format!("read worker id {worker} in sqlite");
            let row = self
                .run(operation, async |connection| {
                    query_as(
                        "SELECT worker_id, nonce, record FROM leaf_worker_fence WHERE worker_id = ?1",
                    )
                    .bind(worker.get())
                    .fetch_optional(connection)
                    .await
                })
                .await?;
            Ok(sql::found(row, UnixMillis::EPOCH))
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
            self.run(operation, async |connection| {
                let statement = match &found.token.nonce {
                    Some(_) => query(concat!(
                        "UPDATE leaf_worker_fence SET nonce = ?1, record = ?2, seen_at = ",
                        now!(),
                        " WHERE worker_id = ?3 AND nonce = ?4"
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
                let statement = match &found.token.nonce {
                    Some(nonce) => statement.bind(nonce),
                    None => statement,
                };
                Ok(statement.execute(connection).await?.rows_affected() == 1)
            })
            .await
        })
    }

    fn peers(&self) -> Answer<'_, Vec<Peer>> {
        Box::pin(async {
            let operation = "look for live nodes in sqlite".to_owned();
            let rows = self.run(operation, async |connection| {
                query_scalar(concat!(
                    "SELECT record FROM leaf_worker_fence WHERE seen_at >= ",
                    now!(),
                    " - ?1"
                ))
                .bind(sql::silent_ms(self.report_interval))
                .fetch_all(connection)
                .await
            });
            Ok(sql::peers(rows.await?))
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
