//! The worker registry `mysql`.
//!
//! Invariant: fence and mirror change in one transaction, each compared with what was read before. A
//! claim, and every report, is written only on the server that wrote last (`leaf_worker_guard`); whoever
//! meets another one notes when, and claims wait until every ceiling that may have been lost has passed.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::WorkerId;
use leaf_segment::StoreError;
use leaf_snowflake::{
    ClaimRequest, FenceStore, Identity, Peer, Purpose, RegistryError, Stored, StoredWorker,
    WorkerRecord,
};
use sqlx::{Connection, MySql, MySqlConnection, query, query_as, query_scalar};

use super::{error, guard, mirror, store};
use crate::failover_guard::FailoverGuard;
use crate::sql::fence_rows::{self, LastSeen, Version};
use crate::sql_pool::SqlPool;
use crate::worker_ids::translate;
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
    last_seen: LastSeen,
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
        let last_seen = LastSeen::default();
        Ok(Self { pool, guard, mirrored, report_interval, last_seen })
    }

    async fn run<T>(
        &self,
        operation: String,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, RegistryError> {
        self.pool.run(operation, work).await.map_err(|error| translate(&error))
    }

    /// Since when the server is the one that writes; notes that it is now where another one was, unless
    /// that is only to be shown.
    async fn guard(
        &self,
        connection: &mut MySqlConnection,
        purpose: Purpose,
    ) -> Result<i64, sqlx::Error> {
        const READ: &str = concat!(
            "SELECT since, CAST(server_uid AS CHAR), COALESCE(",
            guarded!(),
            ", FALSE) FROM leaf_worker_guard WHERE id = 1"
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
        // The name may have changed since the connection was made.
        guard::introduce(&mut *connection, &self.guard).await?;
        let mut transaction = connection.begin().await?;
        // For the lock alone: what is read with a lock and without one may differ.
        query("SELECT id FROM leaf_worker_guard WHERE id = 1 FOR UPDATE")
            .execute(&mut *transaction)
            .await?;
        let last = query_as(READ).fetch_optional(&mut *transaction).await?;
        if let Some(since) = believed(&last) {
            transaction.rollback().await?;
            return Ok(since);
        }
        let used: bool = query_scalar("SELECT COUNT(*) > 0 FROM leaf_worker_fence")
            .fetch_one(&mut *transaction)
            .await?;
        // Tables that were made by hand, and nobody has used.
        let new = !used && last.as_ref().is_some_and(|(_, name, _)| name.is_empty());
        query(concat!(
            "REPLACE INTO leaf_worker_guard (id, server_uid, since) \
             VALUES (1, @leaf_server, IF(?, 0, GREATEST(?, ",
            now!(),
            ")))"
        ))
        .bind(new)
        .bind(self.last_seen.next(now))
        .execute(&mut *transaction)
        .await?;
        let since = query_scalar("SELECT since FROM leaf_worker_guard WHERE id = 1")
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
        connection: &mut MySqlConnection,
        only: Option<WorkerId>,
        purpose: Purpose,
    ) -> Result<(i64, Vec<StoredWorker<Version>>), sqlx::Error> {
        let since = self.guard(&mut *connection, purpose).await?;
        let only = only.map(WorkerId::get);
        if self.mirrored {
            let rows = mirror::read(connection, only).await?;
            let known = rows.into_iter().filter_map(|row| mirror::found(row, since)).collect();
            return Ok((since, known));
        }
        let rows = query_as(
            "SELECT CAST(worker_id AS SIGNED), nonce, record FROM leaf_worker_fence \
             WHERE ? IS NULL OR worker_id = ? ORDER BY worker_id",
        )
        .bind(only)
        .bind(only)
        .fetch_all(connection)
        .await?;
        Ok((since, fence_rows::listed(rows, since)))
    }

    /// Fence and mirror, if both are still what was read.
    async fn replace(
        &self,
        connection: &mut MySqlConnection,
        worker: WorkerId,
        token: &Version,
        record: &WorkerRecord,
    ) -> Result<bool, sqlx::Error> {
        let mut transaction = connection.begin().await?;
        let statement = match &token.record {
            Some(_) => query(concat!(
                "UPDATE leaf_worker_fence SET nonce = ?, record = ?, seen_at = ",
                now!(),
                " WHERE worker_id = ? AND nonce = ? AND record = ? AND ",
                guarded!(),
                " AND (SELECT since FROM leaf_worker_guard WHERE id = 1) = ?"
            )),
            None => query(concat!(
                "INSERT INTO leaf_worker_fence (nonce, record, seen_at, worker_id) SELECT ?, ?, ",
                now!(),
                ", ? FROM leaf_worker_guard WHERE id = 1 AND ",
                guarded!(),
                " AND since = ?"
            )),
        };
        let statement =
            statement.bind(record.fence.nonce.to_string()).bind(record.encode()).bind(worker.get());
        let statement = match &token.record {
            Some((nonce, text)) => statement.bind(nonce).bind(text),
            None => statement,
        };
        let fence =
            statement.bind(token.since).execute(&mut *transaction).await?.rows_affected() == 1;
        let written = fence
            && (!self.mirrored || mirror::write(&mut transaction, worker, token, record).await?);
        match written {
            true => transaction.commit().await?,
            false => {
                transaction.rollback().await?;
                // The server's name may have changed since this connection was made.
                guard::introduce(connection, &self.guard).await?;
            }
        }
        Ok(written)
    }
}

impl FenceStore for MysqlWorkers {
    type Version = Version;

    fn name(&self) -> &'static str {
        "mysql"
    }

    fn range(&self) -> RangeInclusive<u32> {
        if self.mirrored { mirror::RANGE } else { 0..=u32::MAX }
    }

    async fn list(&self, purpose: Purpose) -> Result<Vec<StoredWorker<Version>>, RegistryError> {
        let operation = "read the worker ids in mysql".to_owned();
        self.run(operation, async |c| self.rows(c, None, purpose).await)
            .await
            .map(|(_, known)| known)
    }

    async fn read(
        &self,
        worker: WorkerId,
        purpose: Purpose,
    ) -> Result<Stored<Version>, RegistryError> {
        let operation = format!("read worker id {worker} in mysql");
        let (since, mut known) =
            self.run(operation, async |c| self.rows(c, Some(worker), purpose).await).await?;
        Ok(known.pop().map_or_else(|| fence_rows::stored(None, since), |(_, found)| found))
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<Version>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        let operation = format!("write worker id {worker} in mysql");
        self.run(operation, async |connection| {
            match self.replace(connection, worker, &read.version, record).await {
                Err(error) if error::is_duplicate(&error) => Ok(false),
                written => written,
            }
        })
        .await
    }

    async fn assigned(
        &self,
        who: &Identity,
        _request: &ClaimRequest,
        listed: &[StoredWorker<Version>],
    ) -> Result<Option<WorkerId>, RegistryError> {
        let own = listed.iter().find(|(_, stored)| {
            stored.version.mirror.as_ref().is_some_and(|(ip_port, _)| ip_port == who.as_str())
        });
        let own = own.map(|(worker, _)| *worker);
        Ok(own)
    }

    async fn peers(&self) -> Result<Vec<Peer>, RegistryError> {
        let operation = "look for live nodes in mysql".to_owned();
        let rows = self.run(operation, async |connection| {
            query_scalar(concat!(
                "SELECT record FROM leaf_worker_fence WHERE seen_at >= ",
                now!(),
                " - ?"
            ))
            .bind(fence_rows::silent_ms(self.report_interval))
            .fetch_all(connection)
            .await
        });
        Ok(fence_rows::peers(rows.await?))
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
