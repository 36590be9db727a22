//! `leaf_workerid_alloc`, the table of the community fork's MySQL registry: the mirror of the
//! fence.
//!
//! A row's id is the worker id, from 1 to 1023. Into `max_timestamp` a Java Leaf writes its clock
//! at each report; Leaf writes the ceiling. Java nodes insert and report without regard to the
//! fence.

use std::ops::RangeInclusive;

use leaf_core::UnixMillis;
use leaf_snowflake::{Identity, JavaMirror, JavaReport, StoredWorker, WorkerRecord};
use sqlx::MySqlConnection;

use super::Mysql;
use crate::Table;
use crate::sql::dialect::Dialect as _;
use crate::sql::fences::{self, FenceVersion, mirrored_ceiling};
use crate::sql::values::{Cells, Column, Value};

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

/// Reads fences and mirrors in one snapshot, of all worker ids or of one.
pub(super) async fn read(
    connection: &mut MySqlConnection,
    worker: Option<i64>,
    failed_over_at: i64,
) -> Result<Vec<StoredWorker<FenceVersion>>, sqlx::Error> {
    let statement = "SELECT CAST(f.worker_id AS SIGNED) AS id, f.nonce, f.record, \
                CAST(a.ip_port AS CHAR) AS ip_port, a.max_timestamp \
           FROM leaf_worker_fence f LEFT JOIN leaf_workerid_alloc a ON a.id = f.worker_id \
          WHERE ? IS NULL OR f.worker_id = ? \
         UNION ALL \
         SELECT a.id, NULL, NULL, CAST(a.ip_port AS CHAR), a.max_timestamp \
           FROM leaf_workerid_alloc a LEFT JOIN leaf_worker_fence f ON f.worker_id = a.id \
          WHERE f.worker_id IS NULL AND (? IS NULL OR a.id = ?) \
          ORDER BY id";
    let columns = &[Column::Int, Column::Text, Column::Text, Column::Text, Column::Int];
    let rows = Mysql::fetch(connection, statement, &[Value::MaybeInt(worker); 4], columns).await?;
    Ok(rows.into_iter().filter_map(|row| stored(row, failed_over_at)).collect())
}

/// Converts a row, and finds out whether its mirror says what its fence says. If not, a Java Leaf
/// has written the mirror since.
fn stored(mut row: Cells, failed_over_at: i64) -> Option<StoredWorker<FenceVersion>> {
    let record = row.text(1).zip(row.text(2));
    let (worker, mut found) = fences::stored(row.int(0)?, record, failed_over_at)?;
    if let Some(ip_port) = row.text(3) {
        let max_timestamp = row.int(4);
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
    let mut values = vec![
        Value::Text(ip),
        Value::Text(port),
        Value::Text(record.holder.as_str()),
        Value::Int(mirrored_ceiling(record)),
        Value::Int(worker),
    ];
    let statement = match &read.mirror {
        Some((ip_port, max_timestamp)) => {
            values.extend([Value::Text(ip_port), Value::MaybeInt(*max_timestamp)]);
            "UPDATE leaf_workerid_alloc SET ip = ?, port = ?, ip_port = ?, max_timestamp = ? \
             WHERE id = ? AND ip_port = ? AND max_timestamp <=> ?"
        }
        None => {
            "INSERT INTO leaf_workerid_alloc \
             (ip, port, ip_port, max_timestamp, id, create_time, update_time) \
             VALUES (?, ?, ?, ?, ?, NOW(), NOW())"
        }
    };
    Mysql::write(connection, statement, &values).await
}

/// `ip` and `port`, which the Java program keeps beside `ip_port`.
pub(super) fn ip_and_port(who: &Identity) -> (&str, &str) {
    who.as_str().rsplit_once(':').unwrap_or((who.as_str(), ""))
}
