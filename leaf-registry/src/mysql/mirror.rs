//! `leaf_workerid_alloc`, the table of the community fork's MySQL registry: the mirror of the
//! fence.
//!
//! A row's id is the worker id, from 1 to 1023. Into `max_timestamp` a Java Leaf writes its clock
//! at each report; Leaf writes the ceiling. Java nodes insert and report without regard to the
//! fence.

use std::ops::RangeInclusive;

use leaf_core::UnixMillis;
use leaf_segment::StoreErrorKind;
use leaf_snowflake::{Identity, JavaMirror, JavaReport, StoredWorker, WorkerRecord};
use sqlx::{MySqlConnection, query, query_as};

use super::errors;
use crate::Table;
use crate::sql::fences::{self, FenceVersion, mirrored_ceiling};

/// The worker ids that a Java Leaf can have in this registry.
pub(super) const RANGE: RangeInclusive<u32> = 1..=1023;

/// The table as the community fork's own script makes it.
pub(super) const TABLE: Table = Table {
    name: "leaf_workerid_alloc",
    statements: "\
CREATE TABLE leaf_workerid_alloc (
    id            BIGINT       NOT NULL AUTO_INCREMENT,
    ip            VARCHAR(127) NULL DEFAULT NULL,
    port          VARCHAR(127) NULL DEFAULT NULL,
    ip_port       VARCHAR(127) NOT NULL,
    max_timestamp BIGINT       NULL DEFAULT NULL,
    create_time   TIMESTAMP    NULL DEFAULT NULL,
    update_time   TIMESTAMP    NULL DEFAULT NULL ON UPDATE CURRENT_TIMESTAMP,
    PRIMARY KEY (id),
    UNIQUE KEY (ip_port)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
",
};

/// Worker id, nonce, record, `ip_port`, `max_timestamp`.
type Row = (i64, Option<String>, Option<String>, Option<String>, Option<i64>);

/// Reads fences and mirrors in one snapshot, of all worker ids or of one.
pub(super) async fn read(
    connection: &mut MySqlConnection,
    worker: Option<i64>,
    failed_over_at: i64,
) -> Result<Vec<StoredWorker<FenceVersion>>, sqlx::Error> {
    let rows: Vec<Row> = query_as(
        "SELECT CAST(f.worker_id AS SIGNED) AS id, f.nonce, f.record, \
                CAST(a.ip_port AS CHAR) AS ip_port, a.max_timestamp \
           FROM leaf_worker_fence f LEFT JOIN leaf_workerid_alloc a ON a.id = f.worker_id \
          WHERE ? IS NULL OR f.worker_id = ? \
         UNION ALL \
         SELECT a.id, NULL, NULL, CAST(a.ip_port AS CHAR), a.max_timestamp \
           FROM leaf_workerid_alloc a LEFT JOIN leaf_worker_fence f ON f.worker_id = a.id \
          WHERE f.worker_id IS NULL AND (? IS NULL OR a.id = ?) \
          ORDER BY id",
    )
    .bind(worker)
    .bind(worker)
    .bind(worker)
    .bind(worker)
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().filter_map(|row| stored(row, failed_over_at)).collect())
}

/// Converts a row, and finds out whether its mirror says what its fence says. If not, a Java Leaf
/// has written the mirror since.
fn stored(row: Row, failed_over_at: i64) -> Option<StoredWorker<FenceVersion>> {
    let (id, nonce, record, ip_port, max_timestamp) = row;
    let (worker, mut found) = fences::stored(id, nonce.zip(record), failed_over_at)?;
    if let Some(ip_port) = ip_port {
        let ours = found.record.written().is_some_and(|record| {
            record.holder.as_str() == ip_port && max_timestamp == Some(mirrored_ceiling(record))
        });
        if !ours {
            let at = max_timestamp.and_then(|at| u64::try_from(at).ok()).map(UnixMillis::new);
            found.mirror = JavaMirror::Java(JavaReport { holder: ip_port.clone(), at });
        }
        found.version.mirror = Some((ip_port, max_timestamp));
    }
    Some((worker, found))
}

/// Writes the mirror of `record`; `false` when the stored one is no longer what was read.
pub(super) async fn write(
    connection: &mut MySqlConnection,
    worker: i64,
    read: &FenceVersion,
    record: &WorkerRecord,
) -> Result<bool, sqlx::Error> {
    let (ip, port) = ip_and_port(&record.holder);
    let statement = match &read.mirror {
        Some(_) => {
            "UPDATE leaf_workerid_alloc SET ip = ?, port = ?, ip_port = ?, max_timestamp = ? \
             WHERE id = ? AND ip_port = ? AND max_timestamp <=> ?"
        }
        None => {
            "INSERT INTO leaf_workerid_alloc \
             (ip, port, ip_port, max_timestamp, id, create_time, update_time) \
             VALUES (?, ?, ?, ?, ?, NOW(), NOW())"
        }
    };
    let statement = query(statement)
        .bind(ip)
        .bind(port)
        .bind(record.holder.as_str())
        .bind(mirrored_ceiling(record))
        .bind(worker);
    let statement = match &read.mirror {
        Some((ip_port, max_timestamp)) => statement.bind(ip_port).bind(max_timestamp),
        None => statement,
    };
    match statement.execute(connection).await {
        Ok(done) => Ok(done.rows_affected() == 1),
        Err(error) if (errors::MEANINGS.kind)(&error) == StoreErrorKind::TagExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// `ip` and `port`, which the Java program keeps beside `ip_port`.
pub(super) fn ip_and_port(who: &Identity) -> (&str, &str) {
    who.as_str().rsplit_once(':').unwrap_or((who.as_str(), ""))
}
