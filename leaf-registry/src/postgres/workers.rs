//! The worker registry `postgres`.
//!
//! Invariant: a record is replaced by one statement that compares its nonce, and only on the server that
//! wrote last (`leaf_worker_guard`); whoever meets another one notes when, and claims wait until every
//! ceiling that may have been lost has passed.

use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::WorkerId;
use leaf_segment::StoreError;
use leaf_snowflake::{
    FenceStore, Peer, Purpose, RegistryError, Stored, StoredWorker, WorkerRecord,
};
use sqlx::{Connection, PgConnection, Postgres, query, query_as, query_scalar};

use super::{error, guard::server, store};
use crate::failover_guard::FailoverGuard;
use crate::sql::fence_rows::{self, LastSeen, Row, Version};
use crate::sql_pool::SqlPool;
use crate::worker_ids::translate;
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
    last_seen: LastSeen,
}

impl PostgresWorkers {
    /// Worker ids at `postgres://user:password@host:port/database`. Connects when it is first used.
    pub(crate) fn open(url: &str, report_interval: Duration) -> Result<Self, StoreError> {
        // The segments' guard is not wanted here: the statements name the server themselves.
        let guard = Arc::new(FailoverGuard::new(None));
        let pool = store::connect(url, &guard, CONNECTIONS)?;
        Ok(Self { pool, report_interval, last_seen: LastSeen::default() })
    }

    async fn run<T>(
        &self,
        operation: String,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, RegistryError> {
        self.pool.run(operation, work).await.map_err(|error| translate(&error))
    }

    /// Since when the server is the one that writes; notes that it is now where another one was, unless
    /// that is only to be shown.
    async fn guard(
        &self,
        connection: &mut PgConnection,
        purpose: Purpose,
    ) -> Result<i64, sqlx::Error> {
        const READ: &str = concat!(
            "SELECT since, server_uid, server_uid = ",
            server!(),
            " FROM leaf_worker_guard WHERE id = 1"
        );
        let believed = |last: &Option<(i64, String, bool)>| {
            let ours = last.as_ref().filter(|(_, _, ours)| *ours).map(|(since, ..)| *since);
            ours.filter(|since| self.last_seen.takes(*since))
        };
        let last = query_as(READ).fetch_optional(&mut *connection).await?;
        if let Some(since) = believed(&last) {
            return Ok(since);
        }
        let Purpose::Replace(now) = purpose else {
            return Ok(last.map_or(0, |(since, ..)| since));
        };
        let mut transaction = connection.begin().await?;
        query("SELECT id FROM leaf_worker_guard WHERE id = 1 FOR UPDATE")
            .execute(&mut *transaction)
            .await?;
        let last = query_as(READ).fetch_optional(&mut *transaction).await?;
        if let Some(since) = believed(&last) {
            transaction.rollback().await?;
            return Ok(since);
        }
        let used: bool = query_scalar("SELECT EXISTS (SELECT 1 FROM leaf_worker_fence)")
            .fetch_one(&mut *transaction)
            .await?;
        // Tables that were made by hand, and nobody has used.
        let new = !used && last.as_ref().is_some_and(|(_, name, _)| name.is_empty());
        let since = query_scalar(concat!(
            "INSERT INTO leaf_worker_guard (id, server_uid, since) VALUES (1, ",
            server!(),
            ", CASE WHEN $1 THEN 0 ELSE greatest($2, ",
            now!(),
            ") END) ON CONFLICT (id) DO UPDATE \
               SET server_uid = excluded.server_uid, since = excluded.since RETURNING since"
        ))
        .bind(new)
        .bind(self.last_seen.next(now))
        .fetch_one(&mut *transaction)
        .await?;
        transaction.commit().await?;
        if !new {
            fence_rows::log_failover(last.as_ref().map(|(_, name, _)| name.as_str()));
        }
        self.last_seen.takes(since);
        Ok(since)
    }

    /// All records, or one; and since when the server is the one that writes.
    async fn rows(
        &self,
        connection: &mut PgConnection,
        only: Option<WorkerId>,
        purpose: Purpose,
    ) -> Result<(i64, Vec<Row>), sqlx::Error> {
        let since = self.guard(&mut *connection, purpose).await?;
        let rows = query_as(
            "SELECT worker_id::bigint, nonce, record FROM leaf_worker_fence \
             WHERE $1::bigint IS NULL OR worker_id = $1 ORDER BY worker_id",
        )
        .bind(only.map(|worker| i64::from(worker.get())))
        .fetch_all(connection)
        .await?;
        Ok((since, rows))
    }
}

impl FenceStore for PostgresWorkers {
    type Version = Version;

    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn list(&self, purpose: Purpose) -> Result<Vec<StoredWorker<Version>>, RegistryError> {
        let operation = "read the worker ids in postgres".to_owned();
        let (since, rows) =
            self.run(operation, async |c| self.rows(c, None, purpose).await).await?;
        Ok(fence_rows::listed(rows, since))
    }

    async fn read(
        &self,
        worker: WorkerId,
        purpose: Purpose,
    ) -> Result<Stored<Version>, RegistryError> {
        let operation = format!("read worker id {worker} in postgres");
        let (since, mut rows) =
            self.run(operation, async |c| self.rows(c, Some(worker), purpose).await).await?;
        Ok(fence_rows::stored(rows.pop(), since))
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<Version>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        let operation = format!("write worker id {worker} in postgres");
        self.run(operation, async |connection| {
            let token = &read.version;
            let statement = match &token.record {
                Some(_) => query(concat!(
                    "UPDATE leaf_worker_fence SET nonce = $1, record = $2, seen_at = ",
                    now!(),
                    " WHERE worker_id = $3 AND nonce = $5 AND record = $6 AND ",
                    guarded!(),
                    " AND (SELECT since FROM leaf_worker_guard WHERE id = 1) = $4"
                )),
                None => query(concat!(
                    "INSERT INTO leaf_worker_fence (nonce, record, seen_at, worker_id) \
                     SELECT $1, $2, ",
                    now!(),
                    ", $3 FROM leaf_worker_guard WHERE id = 1 AND since = $4 AND ",
                    guarded!()
                )),
            };
            let statement = statement
                .bind(record.fence.nonce.to_string())
                .bind(record.encode())
                .bind(i64::from(worker.get()))
                .bind(token.since);
            let statement = match &token.record {
                Some((nonce, text)) => statement.bind(nonce).bind(text),
                None => statement,
            };
            match statement.execute(connection).await {
                Ok(done) => Ok(done.rows_affected() == 1),
                Err(error) if error::is_duplicate(&error) => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await
    }

    async fn peers(&self) -> Result<Vec<Peer>, RegistryError> {
        let operation = "look for live nodes in postgres".to_owned();
        let rows = self.run(operation, async |connection| {
            query_scalar(concat!(
                "SELECT record FROM leaf_worker_fence WHERE seen_at >= ",
                now!(),
                " - $1"
            ))
            .bind(fence_rows::silent_ms(self.report_interval))
            .fetch_all(connection)
            .await
        });
        Ok(fence_rows::peers(rows.await?))
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
