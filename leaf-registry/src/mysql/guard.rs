//! The failover guard's statements in MySQL and MariaDB; see [`crate::failover_guard`].
//!
//! The server's name is a user variable of the connection, set from its variables when it is opened.
//! Statements that name the variable are replicated with its value, in every binary log format.

use sqlx::{Connection, MySqlConnection, query, query_as};

use super::error::{is_forbidden, is_missing_table};
use crate::Table;
use crate::failover_guard::{FailoverGuard, Found};

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

/// Gives a new connection its server's name and finds out whether the guard is on.
pub(super) async fn introduce(
    connection: &mut MySqlConnection,
    guard: &FailoverGuard,
) -> Result<(), sqlx::Error> {
    if !guard.wanted() {
        return Ok(());
    }
    let variables: Vec<(String, String)> = query_as(
        "SHOW VARIABLES WHERE Variable_name IN \
         ('server_uuid', 'server_uid', 'server_id', 'wsrep_on', 'group_replication_group_name')",
    )
    .fetch_all(&mut *connection)
    .await?;
    let value = |wanted: &str| {
        let found = variables.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    };
    if value("wsrep_on") == Some("ON") || value("group_replication_group_name").is_some() {
        guard.found(Found::Quorum);
        return Ok(());
    }
    // MariaDB derives its `server_uid` from hardware and port, which containers may share; two servers
    // of one replication have different numbers.
    let name = [value("server_uuid").or(value("server_uid")), value("server_id")];
    let name = name.into_iter().flatten().collect::<Vec<_>>().join("/");
    query("SET @leaf_server = ?").bind(&name).execute(&mut *connection).await?;
    let row: Result<Option<(i64,)>, _> =
        query_as("SELECT CAST(id AS SIGNED) FROM leaf_guard WHERE id = 1")
            .fetch_optional(&mut *connection)
            .await;
    match row {
        Ok(_) => guard.found(Found::Table),
        Err(error) if is_missing_table(&error) || is_forbidden(&error) => {
            guard.found(Found::NoTable);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Advances every tag if the connection's server is not the one that allocated last; tells whether
/// the allocation is worth another try.
pub(super) async fn jump(
    connection: &mut MySqlConnection,
    margin: i64,
) -> Result<bool, sqlx::Error> {
    type Servers = Option<(String, String)>;
    let servers: Servers =
        query_as("SELECT server_uid, CAST(@leaf_server AS CHAR) FROM leaf_guard WHERE id = 1")
            .fetch_optional(&mut *connection)
            .await?;
    if servers.is_some_and(|(last, own)| last == own) {
        return Ok(false);
    }
    // Rolled back where it is dropped before the commit.
    let mut transaction = connection.begin().await?;
    let servers: Servers = query_as(
        "SELECT server_uid, CAST(@leaf_server AS CHAR) FROM leaf_guard WHERE id = 1 FOR UPDATE",
    )
    .fetch_optional(&mut *transaction)
    .await?;
    match &servers {
        // Somebody else has jumped meanwhile.
        Some((last, own)) if last == own => return Ok(true),
        // Made new: no server has allocated under the guard yet.
        Some((last, _)) if last.is_empty() => {}
        _ => {
            query(
                "UPDATE leaf_alloc \
                 SET max_id = IF(max_id > ?, 9223372036854775807, max_id + ?) WHERE max_id >= 0",
            )
            .bind(i64::MAX - margin)
            .bind(margin)
            .execute(&mut *transaction)
            .await?;
        }
    }
    query("REPLACE INTO leaf_guard (id, server_uid) VALUES (1, @leaf_server)")
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    match servers {
        Some((last, _)) if last.is_empty() => {}
        Some((last, own)) => FailoverGuard::tell_jump(&last, &own, margin),
        None => FailoverGuard::tell_jump("nobody that is known", "another", margin),
    }
    Ok(true)
}
