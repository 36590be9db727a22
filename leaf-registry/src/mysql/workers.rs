//! The worker registry `mysql`.
//!
//! Invariant: fence and mirror change in one transaction, each compared with what was read before. A
//! claim, and every report, is written only on the server that wrote last (`leaf_worker_guard`); whoever
//! meets another one notes when, and claims wait until every ceiling that may have been lost has passed.

use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{UnixMillis, WorkerId};
use leaf_segment::StoreError;
use leaf_snowflake::{ClaimRequest, Identity, Peer, RegistryError};
use sqlx::{Connection, MySql, MySqlConnection, query, query_as, query_scalar};

use super::{error, guard, mirror, store};
use crate::failover_guard::FailoverGuard;
use crate::fenced::sql::{self, Row, Token};
use crate::fenced::{Answer, FenceStore, Found, Listing, Record};
use crate::sql_pool::SqlPool;
use crate::{Administration, Table};

const FENCE: Table = Table {
    name: "leaf_worker_fence",
    statements: "\
CREATE TABLE leaf_worker_fence (
    worker_id INT           NOT NULL,
    nonce     CHAR(36)      NOT NULL,
    record    VARCHAR(2000) NOT NULL,
    seen_at   BIGINT        NOT NULL,
    PRIMARY KEY (worker_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
",
};

const GUARD: Table = Table {
    name: "leaf_worker_guard",
    statements: "\
CREATE TABLE leaf_worker_guard (
    id         TINYINT      NOT NULL,
    server_uid VARCHAR(255) NOT NULL,
    since      BIGINT       NOT NULL,
    PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT INTO leaf_worker_guard (id, server_uid, since) VALUES (1, '', 0);
",
};

const TABLES: &[Table] = &[FENCE, GUARD];
const WITH_MIRROR: &[Table] = &[FENCE, GUARD, mirror::TABLE];

/// A report and a claim at a time.
const CONNECTIONS: u32 = 2;

/// The server's clock, Unix milliseconds.
macro_rules! now {
    () => {
        "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
    };
}

/// As [`guard::guarded`], for the workers' own row.
macro_rules! guarded {
    () => {
        "(SELECT CAST(server_uid AS BINARY) FROM leaf_worker_guard WHERE id = 1) \
         = CAST(@leaf_server AS BINARY)"
    };
}

/// Worker ids in MySQL or MariaDB.
#[derive(Debug)]
pub(crate) struct MysqlWorkers {
    pool: SqlPool<MySql>,
    guard: Arc<FailoverGuard>,
    /// Whether `leaf_workerid_alloc` is kept for Java Leafs.
    mirrored: bool,
    report_interval: Duration,
}

impl MysqlWorkers {
    /// Worker ids at `mysql://user:password@host:port/database`. Connects when it is first used.
    pub(crate) fn open(
        url: &str,
        mirrored: bool,
        report_interval: Duration,
    ) -> Result<Self, StoreError> {
        // The guard's margin is the segments'; the server's name is wanted here.
        let guard = Arc::new(FailoverGuard::new(Some(0)));
        let pool = store::connect(url, &guard, CONNECTIONS)?;
        Ok(Self { pool, guard, mirrored, report_interval })
    }

    async fn run<T>(
        &self,
        operation: String,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, RegistryError> {
        self.pool.run(operation, work).await.map_err(|error| sql::refused(&error))
    }

    /// When the server was first seen to be another one than before; notes that it is now.
    async fn failover(&self, connection: &mut MySqlConnection) -> Result<UnixMillis, sqlx::Error> {
        const LAST: &str = concat!(
            "SELECT since, CAST(server_uid AS CHAR), COALESCE(",
            guarded!(),
            ", FALSE) FROM leaf_worker_guard WHERE id = 1"
        );
        let last: Option<(i64, String, bool)> =
            query_as(LAST).fetch_optional(&mut *connection).await?;
        if let Some((since, _, true)) = last {
            return Ok(sql_millis(since));
        }
        // The name may have changed since the connection was made.
        guard::introduce(&mut *connection, &self.guard).await?;
        let mut transaction = connection.begin().await?;
        let last: Option<(i64, String, bool)> = query_as(concat!(
            "SELECT since, CAST(server_uid AS CHAR), COALESCE(",
            guarded!(),
            ", FALSE) FROM leaf_worker_guard WHERE id = 1 FOR UPDATE"
        ))
        .fetch_optional(&mut *transaction)
        .await?;
        if let Some((since, _, true)) = last {
            return Ok(sql_millis(since));
        }
        query(concat!(
            "REPLACE INTO leaf_worker_guard (id, server_uid, since) VALUES (1, @leaf_server, ",
            now!(),
            ")"
        ))
        .execute(&mut *transaction)
        .await?;
        let since: i64 = query_scalar("SELECT since FROM leaf_worker_guard WHERE id = 1")
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        let before = last.map(|(_, before, _)| before).unwrap_or_default();
        tracing::warn!(
            "the database of the worker ids was answered by server {before:?} and now is by another (a \
             failover?): claims wait until what may have been lost has passed"
        );
        Ok(sql_millis(since))
    }

    async fn rows(
        &self,
        connection: &mut MySqlConnection,
        worker: Option<WorkerId>,
    ) -> Result<Vec<(WorkerId, Found<Token>)>, sqlx::Error> {
        let failover = self.failover(&mut *connection).await?;
        let only = worker.map(WorkerId::get);
        if self.mirrored {
            let rows = mirror::read(connection, only).await?;
            return Ok(rows.into_iter().filter_map(|row| mirror::found(row, failover)).collect());
        }
        let rows: Vec<Row> = query_as(
            "SELECT CAST(worker_id AS SIGNED), nonce, record FROM leaf_worker_fence \
             WHERE ? IS NULL OR worker_id = ? ORDER BY worker_id",
        )
        .bind(only)
        .bind(only)
        .fetch_all(connection)
        .await?;
        let found = |row: Row| Some((sql::worker(row.0)?, sql::found(Some(row), failover)));
        Ok(rows.into_iter().filter_map(found).collect())
    }

    /// Fence and mirror, if both are still what was read.
    async fn replace(
        &self,
        connection: &mut MySqlConnection,
        worker: WorkerId,
        token: &Token,
        record: &Record,
    ) -> Result<bool, sqlx::Error> {
        let mut transaction = connection.begin().await?;
        let statement = match &token.nonce {
            Some(_) => query(concat!(
                "UPDATE leaf_worker_fence SET nonce = ?, record = ?, seen_at = ",
                now!(),
                " WHERE worker_id = ? AND nonce = ? AND ",
                guarded!()
            )),
            None => query(concat!(
                "INSERT INTO leaf_worker_fence (nonce, record, seen_at, worker_id) \
                 SELECT ?, ?, ",
                now!(),
                ", ? FROM leaf_worker_guard WHERE id = 1 AND ",
                guarded!()
            )),
        };
        let statement =
            statement.bind(record.fence.nonce.to_string()).bind(record.encode()).bind(worker.get());
        let statement = match &token.nonce {
            Some(nonce) => statement.bind(nonce),
            None => statement,
        };
        let fence = statement.execute(&mut *transaction).await?.rows_affected() == 1;
        if !fence
            || self.mirrored && !mirror::write(&mut transaction, worker, token, record).await?
        {
            transaction.rollback().await?;
            return Ok(false);
        }
        transaction.commit().await?;
        Ok(true)
    }
}

fn sql_millis(at: i64) -> UnixMillis {
    UnixMillis::new(u64::try_from(at).unwrap_or(0))
}

impl FenceStore for MysqlWorkers {
    type Token = Token;

    fn place(&self) -> &'static str {
        "mysql"
    }

    fn list(&self, greatest: WorkerId) -> Answer<'_, Listing<Token>> {
        Box::pin(async move {
            let operation = "read the worker ids in mysql".to_owned();
            let known = self.run(operation, async |c| self.rows(c, None).await).await?;
            // The Java program's ids start at 1 and end there.
            let (from, greatest) = match self.mirrored {
                true => (1, greatest.min(mirror::GREATEST)),
                false => (0, greatest),
            };
            Ok(sql::listing(known, from, greatest))
        })
    }

    fn read(&self, worker: WorkerId) -> Answer<'_, Found<Token>> {
        Box::pin(async move {
            let operation = format!("read worker id {worker} in mysql");
            self.run(operation, async |connection| {
                let found = self.rows(&mut *connection, Some(worker)).await?.pop();
                match found {
                    Some((_, found)) => Ok(found),
                    None => Ok(sql::found(None, self.failover(connection).await?)),
                }
            })
            .await
        })
    }

    fn write<'a>(
        &'a self,
        worker: WorkerId,
        found: &'a Found<Token>,
        record: &'a Record,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            let operation = format!("write worker id {worker} in mysql");
            self.run(operation, async |connection| {
                match self.replace(connection, worker, &found.token, record).await {
                    Err(error) if error::is_duplicate(&error) => Ok(false),
                    written => written,
                }
            })
            .await
        })
    }

    fn assigned<'a>(
        &'a self,
        who: &'a Identity,
        _request: &'a ClaimRequest,
        listing: &'a Listing<Token>,
    ) -> Answer<'a, Option<WorkerId>> {
        let own = listing.known.iter().find(|(_, found)| {
            found.token.mirror.as_ref().is_some_and(|(ip_port, _)| ip_port == who.as_str())
        });
        let own = own.map(|(worker, _)| *worker);
        Box::pin(async move { Ok(own) })
    }

    fn peers(&self) -> Answer<'_, Vec<Peer>> {
        Box::pin(async {
            let operation = "look for live nodes in mysql".to_owned();
            let rows = self.run(operation, async |connection| {
                query_scalar(concat!(
                    "SELECT record FROM leaf_worker_fence WHERE seen_at >= ",
                    now!(),
                    " - ?"
                ))
                .bind(sql::silent_ms(self.report_interval))
                .fetch_all(connection)
                .await
            });
            Ok(sql::peers(rows.await?))
        })
    }
}

impl Administration for MysqlWorkers {
    fn tables(&self) -> &'static [Table] {
        if self.mirrored { WITH_MIRROR } else { TABLES }
    }

    fn apply(&self) -> BoxFuture<'_, Result<Vec<&'static str>, StoreError>> {
        Box::pin(self.pool.run("make the tables in mysql".into(), async |connection| {
            let made = store::make(&mut *connection, self.tables()).await?;
            if made.contains(&"leaf_worker_guard") {
                // Made by this connection, whose server is the one that writes.
                guard::introduce(&mut *connection, &self.guard).await?;
                query("UPDATE leaf_worker_guard SET server_uid = @leaf_server WHERE id = 1")
                    .execute(connection)
                    .await?;
            }
            Ok(made)
        }))
    }

    fn risks(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
