//! The failover guard's statements in PostgreSQL; see [`crate::failover_guard`].
//!
//! The server's name is its system identifier, which all replicas share, and its timeline, which a
//! promotion and a recovery to a point in time begin anew. The statement that allocates reads it
//! itself.

use sqlx::{Connection, PgConnection, Pool, Postgres, Row, query, query_as, query_scalar, raw_sql};

use super::error::{has_no_name, is_absent, is_standby};
use crate::Table;
use crate::checkout::or_default;
use crate::failover_guard::{FailoverGuard, Found, STEPS};

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

/// The guard as one more condition.
macro_rules! guarded {
    () => {
        concat!(
            " AND (SELECT server_uid FROM leaf_guard WHERE id = 1) = ",
            $crate::postgres::guard::server!()
        )
    };
}
pub(super) use {guarded, server};

/// Finds out on a new connection whether the guard is on.
pub(super) async fn introduce(
    connection: &mut PgConnection,
    guard: &FailoverGuard,
) -> Result<(), sqlx::Error> {
    if guard.wanted().is_none() {
        return Ok(());
    }
    // As text: a distant server is asked as seldom as can be.
    let name = raw_sql(concat!("SELECT ", server!())).fetch_one(&mut *connection).await;
    match name {
        Ok(_) => {}
        Err(error) if has_no_name(&error) => {
            guard.found(Found::NoTable);
            return Ok(());
        }
        // The connection outlives its promotion.
        Err(error) if is_standby(&error) => {}
        Err(error) => return Err(error),
    }
    let usable = raw_sql(
        "SELECT CASE WHEN to_regclass('leaf_guard') IS NULL THEN false \
         ELSE has_table_privilege('leaf_guard', 'SELECT') \
         AND has_table_privilege('leaf_guard', 'UPDATE') END",
    )
    .fetch_one(connection)
    .await?;
    let usable: bool = usable.try_get(0)?;
    guard.found(if usable { Found::Table } else { Found::NoTable });
    Ok(())
}

/// The table was just made by this connection, whose server is the one that allocates.
pub(super) async fn claim(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let statement = concat!(
        "UPDATE leaf_guard SET server_uid = ",
        server!(),
        " WHERE id = 1 AND server_uid = ''"
    );
    query(statement).execute(connection).await.map(|_| ())
}

/// Whether the connection's server is the one that allocated last.
pub(super) async fn is_ours(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let statement = concat!("SELECT server_uid = ", server!(), " FROM leaf_guard WHERE id = 1");
    let ours: Option<bool> = query_scalar(statement).fetch_optional(connection).await?;
    Ok(ours == Some(true))
}

/// Advances every tag, unless somebody else has done so meanwhile. Takes a connection of its own, which
/// is not used again.
pub(super) async fn jump(pool: Pool<Postgres>, margin: i64) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?.detach();
    // If this process or its host dies half-way, the server must not keep the locks for long.
    query(
        "SELECT set_config('lock_timeout', '50s', false), \
           set_config('idle_in_transaction_session_timeout', '10s', false)",
    )
    .execute(&mut connection)
    .await?;
    // A tag's own settings may allow more at once than the margin was chosen for.
    let largest: Result<Vec<i64>, _> = query_scalar(
        "SELECT coalesce(max(greatest(max_step, max_take)), 0)::bigint FROM leaf_tag_settings",
    )
    .fetch_all(&mut connection)
    .await;
    let largest = or_default(largest, is_absent)?.first().copied().unwrap_or(0);
    let margin = margin.max(largest.saturating_mul(STEPS));

    let mut transaction = connection.begin().await?;
    let servers =
        concat!("SELECT server_uid, ", server!(), " FROM leaf_guard WHERE id = 1 FOR UPDATE");
    let servers: Option<(String, String)> =
        query_as(servers).fetch_optional(&mut *transaction).await?;
    if servers.as_ref().is_some_and(|(last, own)| last == own) {
        return Ok(());
    }
    query(
        // Not a sealed tag, and none becomes one: the end of the ids is one below.
        "UPDATE leaf_alloc SET max_id = CASE \
             WHEN max_id > 9223372036854775806 - greatest($1, $2 * step::bigint) \
             THEN 9223372036854775806 \
             ELSE max_id + greatest($1, $2 * step::bigint) END \
         WHERE max_id BETWEEN 0 AND 9223372036854775806",
    )
    .bind(margin)
    .bind(STEPS)
    .execute(&mut *transaction)
    .await?;
    let statement = match servers {
        Some(_) => concat!("UPDATE leaf_guard SET server_uid = ", server!(), " WHERE id = 1"),
        None => concat!("INSERT INTO leaf_guard (id, server_uid) VALUES (1, ", server!(), ")"),
    };
    query(statement).execute(&mut *transaction).await?;
    transaction.commit().await?;
    let (last, own) = servers.unwrap_or_default();
    FailoverGuard::tell_jump(&last, &own, margin);
    connection.close().await
}
