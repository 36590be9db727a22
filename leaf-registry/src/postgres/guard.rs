//! The failover guard's statements in PostgreSQL; see [`crate::failover_guard`].
//!
//! The server's name is its system identifier, which all replicas share, and its timeline, which a
//! promotion and a restore begin anew. The statement that allocates reads it itself, so that a pooler
//! between may give every statement another connection.

use sqlx::{Connection, PgConnection, query, query_as, query_scalar};

use super::error::is_forbidden;
use crate::Table;
use crate::failover_guard::{FailoverGuard, Found};

pub(super) const TABLE: Table = Table {
    name: "leaf_guard",
    statements: "\
CREATE TABLE leaf_guard (
    id         SMALLINT NOT NULL PRIMARY KEY,
    server_uid TEXT     NOT NULL
);
INSERT INTO leaf_guard (id, server_uid) VALUES (1, '');
",
};

/// The server that runs the statement.
macro_rules! server {
    () => {
        "((SELECT system_identifier FROM pg_control_system())::text || '/' || \
          left(pg_walfile_name(pg_current_wal_lsn()), 8))"
    };
}
pub(super) use server;

/// Finds out on a new connection whether the guard is on.
pub(super) async fn introduce(
    connection: &mut PgConnection,
    guard: &FailoverGuard,
) -> Result<(), sqlx::Error> {
    if !guard.wanted() {
        return Ok(());
    }
    let found: Result<bool, _> = query_scalar(
        "SELECT CASE WHEN to_regclass('leaf_guard') IS NULL THEN false \
         ELSE has_table_privilege('leaf_guard', 'SELECT, UPDATE') \
         AND has_function_privilege('pg_control_system()', 'EXECUTE') \
         AND has_function_privilege('pg_walfile_name(pg_lsn)', 'EXECUTE') END",
    )
    .fetch_one(connection)
    .await;
    match found {
        Ok(true) => guard.found(Found::Table),
        Ok(false) => guard.found(Found::NoTable),
        Err(error) if is_forbidden(&error) => guard.found(Found::NoTable),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Advances every tag if the connection's server is not the one that allocated last; tells whether
/// the allocation is worth another try.
pub(super) async fn jump(connection: &mut PgConnection, margin: i64) -> Result<bool, sqlx::Error> {
    let servers = concat!("SELECT server_uid, ", server!(), " FROM leaf_guard WHERE id = 1");
    let servers: Option<(String, String)> =
        query_as(servers).fetch_optional(&mut *connection).await?;
    if servers.is_some_and(|(last, own)| last == own) {
        return Ok(false);
    }
    // Rolled back where it is dropped before the commit.
    let mut transaction = connection.begin().await?;
    // A row that is missing is made by one of those who miss it; the others wait here.
    let made =
        query("INSERT INTO leaf_guard (id, server_uid) VALUES (1, '') ON CONFLICT DO NOTHING")
            .execute(&mut *transaction)
            .await?;
    let made = made.rows_affected() == 1;
    let servers =
        concat!("SELECT server_uid, ", server!(), " FROM leaf_guard WHERE id = 1 FOR UPDATE");
    let (last, own): (String, String) = query_as(servers).fetch_one(&mut *transaction).await?;
    if last == own {
        // Somebody else has jumped meanwhile.
        return Ok(true);
    }
    // Made new with the table: no server has allocated under the guard yet.
    let first = last.is_empty() && !made;
    if !first {
        query(
            "UPDATE leaf_alloc \
             SET max_id = CASE WHEN max_id > $1 THEN 9223372036854775807 ELSE max_id + $2 END \
             WHERE max_id >= 0",
        )
        .bind(i64::MAX - margin)
        .bind(margin)
        .execute(&mut *transaction)
        .await?;
    }
    query("UPDATE leaf_guard SET server_uid = $1 WHERE id = 1")
        .bind(&own)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    if !first {
        let last = if made { "nobody that is known" } else { &last };
        FailoverGuard::tell_jump(last, &own, margin);
    }
    Ok(true)
}
