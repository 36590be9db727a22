//! The failover guard's statements in MySQL and MariaDB; see [`crate::failover_guard`].
//!
//! The server's name is a user variable of the connection, which the server itself sets from its own
//! variables: a proxy that repeats the statement on another server gets that one's name. Statements
//! that use the variable are replicated with its value, in every binary log format. In a cluster whose
//! members commit by quorum the name is the cluster's: nothing is lost among them, but where another
//! cluster takes over.

use sqlx::{
    AssertSqlSafe, Connection, MySql, MySqlConnection, Pool, Row, query, query_as, query_scalar,
    raw_sql,
};

use super::error::{is_absent, is_read_only};
use crate::Table;
use crate::checkout::or_default;
use crate::failover_guard::{FailoverGuard, Found, STEPS};

pub(super) const TABLE: Table = Table {
    name: "leaf_guard",
    statements: "\
CREATE TABLE leaf_guard (
    id         TINYINT      NOT NULL,
    server_uid VARCHAR(255) NOT NULL,
    PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT INTO leaf_guard (id, server_uid) VALUES (1, '');
",
};

/// The guard as one more condition. As bytes: whatever the table's collation, it cannot fail.
macro_rules! guarded {
    () => {
        " AND (SELECT CAST(server_uid AS BINARY) FROM leaf_guard WHERE id = 1) \
          = CAST(@leaf_server AS BINARY)"
    };
}
pub(super) use guarded;

/// Gives a connection its server's name and finds out whether the guard is on.
pub(super) async fn introduce(
    connection: &mut MySqlConnection,
    guard: &FailoverGuard,
) -> Result<(), sqlx::Error> {
    if guard.wanted().is_none() {
        return Ok(());
    }
    // As text, and together: a distant server is asked as seldom as can be. The update changes nothing,
    // but needs the right that a jump will need.
    let name = name(connection).await?;
    // What another node of the cluster has committed is read here, too.
    let wait = if name.starts_with("'galera/") { "SET SESSION wsrep_sync_wait = 1; " } else { "" };
    let statements = format!(
        "{wait}SET @leaf_server = {name}; SELECT id FROM leaf_guard WHERE id = 1; \
         UPDATE leaf_guard SET id = id WHERE id = 0"
    );
    let usable = raw_sql(AssertSqlSafe(statements)).execute(&mut *connection).await.map(|_| ());
    match usable {
        Ok(()) => guard.found(Found::Table),
        Err(error) if is_read_only(&error) => guard.found(Found::Table),
        Err(error) if is_absent(&error) => guard.found(Found::NoTable),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The expression that yields the server's name on the server.
async fn name(connection: &mut MySqlConnection) -> Result<String, sqlx::Error> {
    let mut values = show(
        connection,
        "SHOW VARIABLES WHERE Variable_name IN \
         ('server_uuid', 'server_uid', 'wsrep_on', 'group_replication_group_name')",
    )
    .await?;
    if values.contains(&("wsrep_on".to_owned(), "ON".to_owned())) {
        let status = "SHOW STATUS WHERE Variable_name IN \
                      ('wsrep_cluster_status', 'wsrep_cluster_state_uuid')";
        values.extend(show(connection, status).await?);
    }
    let value = |wanted: &str| {
        let found = values.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    };
    let plain = |name: &&str| name.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if value("wsrep_cluster_status") == Some("Primary")
        && let Some(cluster) = value("wsrep_cluster_state_uuid").filter(plain)
    {
        return Ok(format!("'galera/{cluster}'"));
    }
    if let Some(group) = value("group_replication_group_name").filter(plain) {
        // A server that has left the group, or never started it, is one of its own.
        let state: Result<Option<(String,)>, _> = query_as(
            "SELECT CAST(MEMBER_STATE AS CHAR) FROM performance_schema.replication_group_members \
             WHERE MEMBER_ID = @@global.server_uuid",
        )
        .fetch_optional(&mut *connection)
        .await;
        let online = match state {
            Ok(state) => state.is_some_and(|(state,)| state == "ONLINE"),
            Err(error) => is_absent(&error),
        };
        if online {
            return Ok(format!("'group/{group}'"));
        }
    }
    // MariaDB derives its `server_uid` from hardware and port, which containers may share; two servers
    // of one replication have different numbers.
    let name = ["server_uuid", "server_uid"].into_iter().find(|name| value(name).is_some());
    let name = name.unwrap_or("hostname");
    Ok(format!("CONCAT_WS('/', @@global.{name}, @@global.server_id)"))
}

/// Names and values.
async fn show(
    connection: &mut MySqlConnection,
    statement: &'static str,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    let rows = raw_sql(statement).fetch_all(connection).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// The table was just made by this connection, whose server is the one that allocates.
pub(super) async fn claim(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    query("UPDATE leaf_guard SET server_uid = @leaf_server WHERE id = 1 AND server_uid = ''")
        .execute(connection)
        .await
        .map(|_| ())
}

/// Whether the connection's server is the one that allocated last. Its name is looked at anew: it may
/// have changed since the connection was made.
pub(super) async fn is_ours(
    connection: &mut MySqlConnection,
    guard: &FailoverGuard,
) -> Result<bool, sqlx::Error> {
    introduce(connection, guard).await?;
    let ours: Option<(bool,)> = query_as(
        "SELECT CAST(server_uid AS BINARY) = CAST(@leaf_server AS BINARY) \
         FROM leaf_guard WHERE id = 1",
    )
    .fetch_optional(connection)
    .await?;
    Ok(ours == Some((true,)))
}

/// Advances every tag, unless somebody else has done so meanwhile. Takes a connection of its own, which
/// is not used again.
pub(super) async fn jump(
    pool: Pool<MySql>,
    guard: std::sync::Arc<FailoverGuard>,
    margin: i64,
) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?.detach();
    introduce(&mut connection, &guard).await?;
    // If this process or its host dies half-way, the server must not keep the locks for long.
    query("SET SESSION innodb_lock_wait_timeout = 50, wait_timeout = 10, sql_safe_updates = 0")
        .execute(&mut connection)
        .await?;
    // A tag's own settings may allow more at once than the margin was chosen for.
    let largest: Result<Vec<i64>, _> = query_scalar(
        "SELECT CAST(COALESCE(MAX(GREATEST(COALESCE(max_step, 0), COALESCE(max_take, 0))), 0) \
         AS SIGNED) FROM leaf_tag_settings",
    )
    .fetch_all(&mut connection)
    .await;
    let largest = or_default(largest, is_absent)?.first().copied().unwrap_or(0);
    let margin = margin.max(largest.saturating_mul(STEPS));

    let mut transaction = connection.begin().await?;
    let servers: Option<(String, String)> = query_as(
        "SELECT CAST(server_uid AS CHAR), CAST(@leaf_server AS CHAR) \
         FROM leaf_guard WHERE id = 1 FOR UPDATE",
    )
    .fetch_optional(&mut *transaction)
    .await?;
    if servers.as_ref().is_some_and(|(last, own)| last == own) {
        return Ok(());
    }
    query(
        // Not a sealed tag, and none becomes one: the end of the ids is one below.
        "UPDATE leaf_alloc SET max_id = IF( \
             max_id > 9223372036854775806 - GREATEST(?, ? * COALESCE(step, 0)), \
             9223372036854775806, \
             max_id + GREATEST(?, ? * COALESCE(step, 0))) \
         WHERE max_id BETWEEN 0 AND 9223372036854775806",
    )
    .bind(margin)
    .bind(STEPS)
    .bind(margin)
    .bind(STEPS)
    .execute(&mut *transaction)
    .await?;
    let statement = match servers {
        Some(_) => "UPDATE leaf_guard SET server_uid = @leaf_server WHERE id = 1",
        None => "INSERT INTO leaf_guard (id, server_uid) VALUES (1, @leaf_server)",
    };
    query(statement).execute(&mut *transaction).await?;
    transaction.commit().await?;
    let (last, own) = servers.unwrap_or_default();
    FailoverGuard::tell_jump(&last, &own, margin);
    connection.close().await
}
