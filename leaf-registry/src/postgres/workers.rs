//! The worker registry `postgres`.
//!
//! Invariant: a record is replaced by one statement that compares its nonce, and only on the server that
//! wrote last (`leaf_worker_guard`); whoever meets another one notes when, and claims wait until every
//! ceiling that may have been lost has passed.

use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{UnixMillis, WorkerId};
use leaf_segment::StoreError;
use leaf_snowflake::{Peer, RegistryError};
use sqlx::{Connection, PgConnection, Postgres, query, query_as, query_scalar};

use super::{error, guard::server, store};
use crate::failover_guard::FailoverGuard;
use crate::fenced::sql::{self, Row, Token};
use crate::fenced::{Answer, FenceStore, Found, Listing, Record};
use crate::sql_pool::SqlPool;
use crate::{Administration, Table};

const TABLES: &[Table] = &[
    Table {
        name: "leaf_worker_fence",
        statements: "\
CREATE TABLE leaf_worker_fence (
    worker_id INTEGER NOT NULL PRIMARY KEY,
    nonce     TEXT    NOT NULL,
    record    TEXT    NOT NULL,
    seen_at   BIGINT  NOT NULL
);
",
    },
    Table {
        name: "leaf_worker_guard",
        statements: "\
CREATE TABLE leaf_worker_guard (
    id         SMALLINT NOT NULL PRIMARY KEY,
    server_uid TEXT     NOT NULL,
    since      BIGINT   NOT NULL
);
INSERT INTO leaf_worker_guard (id, server_uid, since) VALUES (1, '', 0);
",
    },
];

/// A report and a claim at a time.
const CONNECTIONS: u32 = 2;

/// The server's clock, Unix milliseconds.
macro_rules! now {
    () => {
        "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
}

macro_rules! guarded {
    () => {
        concat!("(SELECT server_uid FROM leaf_worker_guard WHERE id = 1) = ", server!())
    };
}

/// Worker ids in PostgreSQL.
#[derive(Debug)]
pub(crate) struct PostgresWorkers {
    pool: SqlPool<Postgres>,
    report_interval: Duration,
}

impl PostgresWorkers {
    /// Worker ids at `postgres://user:password@host:port/database`. Connects when it is first used.
    pub(crate) fn open(url: &str, report_interval: Duration) -> Result<Self, StoreError> {
        // The segments' guard is not wanted here: the statements name the server themselves.
        let guard = Arc::new(FailoverGuard::new(None));
        Ok(Self { pool: store::connect(url, &guard, CONNECTIONS)?, report_interval })
    }

    async fn run<T>(
        &self,
        operation: String,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, RegistryError> {
        self.pool.run(operation, work).await.map_err(|error| sql::refused(&error))
    }
}

/// When the server was first seen to be another one than before; notes that it is now.
async fn failover(connection: &mut PgConnection) -> Result<UnixMillis, sqlx::Error> {
    let millis = |at: i64| UnixMillis::new(u64::try_from(at).unwrap_or(0));
    let last: Option<(i64, bool)> = query_as(concat!(
        "SELECT since, server_uid = ",
        server!(),
        " FROM leaf_worker_guard WHERE id = 1"
    ))
    .fetch_optional(&mut *connection)
    .await?;
    if let Some((since, true)) = last {
        return Ok(millis(since));
    }
    let mut transaction = connection.begin().await?;
    let last: Option<(i64, String, bool)> = query_as(concat!(
        "SELECT since, server_uid, server_uid = ",
        server!(),
        " FROM leaf_worker_guard WHERE id = 1 FOR UPDATE"
    ))
    .fetch_optional(&mut *transaction)
    .await?;
    if let Some((since, _, true)) = last {
        return Ok(millis(since));
    }
    let since: i64 = query_scalar(concat!(
        "INSERT INTO leaf_worker_guard (id, server_uid, since) VALUES (1, ",
        server!(),
        ", ",
        now!(),
        ") ON CONFLICT (id) DO UPDATE SET server_uid = excluded.server_uid, since = excluded.since \
         RETURNING since"
    ))
    .fetch_one(&mut *transaction)
    .await?;
    transaction.commit().await?;
    let before = last.map(|(_, before, _)| before).unwrap_or_default();
    tracing::warn!(
        "the database of the worker ids was answered by server {before:?} and now is by another (a \
         failover?): claims wait until what may have been lost has passed"
    );
    Ok(millis(since))
}

async fn rows(
    connection: &mut PgConnection,
    only: Option<WorkerId>,
) -> Result<(UnixMillis, Vec<Row>), sqlx::Error> {
    let failover = failover(&mut *connection).await?;
    let rows = query_as(
        "SELECT worker_id::bigint, nonce, record FROM leaf_worker_fence \
         WHERE $1::bigint IS NULL OR worker_id = $1 ORDER BY worker_id",
    )
    .bind(only.map(|worker| i64::from(worker.get())))
    .fetch_all(connection)
    .await?;
    Ok((failover, rows))
}

impl FenceStore for PostgresWorkers {
    type Token = Token;

    fn place(&self) -> &'static str {
        "postgres"
    }

    fn list(&self, greatest: WorkerId) -> Answer<'_, Listing<Token>> {
        Box::pin(async move {
            let operation = "read the worker ids in postgres".to_owned();
            let (failover, rows) = self.run(operation, async |c| rows(c, None).await).await?;
            let found = |row: Row| Some((sql::worker(row.0)?, sql::found(Some(row), failover)));
            Ok(sql::listing(rows.into_iter().filter_map(found).collect(), 0, greatest))
        })
    }

    fn read(&self, worker: WorkerId) -> Answer<'_, Found<Token>> {
        Box::pin(async move {
            let operation = format!("read worker id {worker} in postgres");
            let (failover, mut rows) =
                self.run(operation, async |c| rows(c, Some(worker)).await).await?;
            Ok(sql::found(rows.pop(), failover))
        })
    }

    fn write<'a>(
        &'a self,
        worker: WorkerId,
        found: &'a Found<Token>,
        record: &'a Record,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            let operation = format!("write worker id {worker} in postgres");
            self.run(operation, async |connection| {
                let statement = match &found.token.nonce {
                    Some(_) => query(concat!(
                        "UPDATE leaf_worker_fence SET nonce = $1, record = $2, seen_at = ",
                        now!(),
                        " WHERE worker_id = $3 AND nonce = $4 AND ",
                        guarded!()
                    )),
                    None => query(concat!(
                        "INSERT INTO leaf_worker_fence (nonce, record, seen_at, worker_id) \
                         SELECT $1, $2, ",
                        now!(),
                        ", $3 WHERE ",
                        guarded!()
                    )),
                };
                let statement = statement
                    .bind(record.fence.nonce.to_string())
                    .bind(record.encode())
                    .bind(i64::from(worker.get()));
                let statement = match &found.token.nonce {
                    Some(nonce) => statement.bind(nonce),
                    None => statement,
                };
                match statement.execute(connection).await {
                    Ok(done) => Ok(done.rows_affected() == 1),
                    Err(error) if error::is_duplicate(&error) => Ok(false),
                    Err(error) => Err(error),
                }
            })
            .await
        })
    }

    fn peers(&self) -> Answer<'_, Vec<Peer>> {
        Box::pin(async {
            let operation = "look for live nodes in postgres".to_owned();
            let rows = self.run(operation, async |connection| {
                query_scalar(concat!(
                    "SELECT record FROM leaf_worker_fence WHERE seen_at >= ",
                    now!(),
                    " - $1"
                ))
                .bind(sql::silent_ms(self.report_interval))
                .fetch_all(connection)
                .await
            });
            Ok(sql::peers(rows.await?))
        })
    }
}

impl Administration for PostgresWorkers {
    fn tables(&self) -> &'static [Table] {
        TABLES
    }

    fn apply(&self) -> BoxFuture<'_, Result<Vec<&'static str>, StoreError>> {
        Box::pin(self.pool.run("make the tables in postgres".into(), async |connection| {
            let made = store::make(&mut *connection, TABLES).await?;
            if made.contains(&"leaf_worker_guard") {
                // Made by this connection, whose server is the one that writes.
                let statement = concat!(
                    "UPDATE leaf_worker_guard SET server_uid = ",
                    server!(),
                    " WHERE id = 1"
                );
                query(statement).execute(connection).await?;
            }
            Ok(made)
        }))
    }

    fn risks(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
