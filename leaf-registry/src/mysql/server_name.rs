//! The name of the server that a connection leads to, by which a failover is noticed.
//!
//! A connection keeps its server's name in a user variable, which the server itself computes from
//! its own variables: so a proxy that repeats the statement on another server gets the name of that
//! server. Statements that use the variable are replicated with its value, in every binary log
//! format. In a cluster whose members commit by quorum the name is the cluster's: a switch within
//! the cluster loses nothing; only a switch to another cluster counts as a failover.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{AssertSqlSafe, MySqlConnection, Row, query_as, raw_sql};

use super::errors::{is_read_only, meaning};
use crate::sql::failover_guard::{FailoverGuard, GuardTable};

/// The value of MariaDB's `server_uid` if MariaDB could not read the hardware address.
pub(super) const UNKNOWN: &str = "unknown";
pub(super) const UNKNOWN_TEXT: &str = "the server's server_uid is unknown, so that only server_id tells it from others: give every server \
     that may take over from another one a server_id of its own, or a failover is not noticed";
/// Whether [`UNKNOWN_TEXT`] was logged.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Sets the server's name on a connection, and reports to the guard whether `leaf_guard` is usable.
/// Does nothing if the guard is switched off.
pub(super) async fn set(
    connection: &mut MySqlConnection,
    guard: &FailoverGuard,
) -> Result<(), sqlx::Error> {
    if guard.configured_margin().is_none() {
        return Ok(());
    }
    // All of this is plain text in place of prepared statements, in few packets (two if the server
    // is in no cluster), to save round trips to a distant server. The update changes nothing, but
    // needs the right that a jump will need.
    let name = name(connection).await?;
    // In a Galera cluster, reads on this connection wait for what other members have committed.
    let wait = if name.starts_with("'galera/") { "SET SESSION wsrep_sync_wait = 1; " } else { "" };
    let statements = format!(
        "{wait}SET @leaf_server = {name}; SELECT id FROM leaf_guard WHERE id = 1; \
         UPDATE leaf_guard SET id = id WHERE id = 0"
    );
    let usable = raw_sql(AssertSqlSafe(statements)).execute(&mut *connection).await.map(|_| ());
    match usable {
        Ok(()) => guard.found(GuardTable::Usable),
        Err(error) if is_read_only(&error) => guard.found(GuardTable::Usable),
        Err(error) if meaning(&error).is_absent() => guard.found(GuardTable::Missing),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Returns the SQL expression that yields the server's name.
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
        // A server that has left the group, or never started it, counts as a single server.
        let state: Result<Option<(String,)>, _> = query_as(
            "SELECT CAST(MEMBER_STATE AS CHAR) FROM performance_schema.replication_group_members \
             WHERE MEMBER_ID = @@global.server_uuid",
        )
        .fetch_optional(&mut *connection)
        .await;
        let online = match state {
            Ok(state) => state.is_some_and(|(state,)| state == "ONLINE"),
            // A user who may not look at the members' states: the group's name is taken, as for a
            // member that is online.
            Err(error) => meaning(&error).is_absent(),
        };
        if online {
            return Ok(format!("'group/{group}'"));
        }
    }
    // MariaDB derives its `server_uid` from hardware and port, which containers may share. So
    // `server_id` is added, which differs between the servers of one replication.
    let name = ["server_uuid", "server_uid"].into_iter().find(|name| value(name).is_some());
    let name = name.unwrap_or("hostname");
    if name == "server_uid" && value(name) == Some(UNKNOWN) && !TOLD.swap(true, Ordering::Relaxed) {
        tracing::warn!("{UNKNOWN_TEXT}");
    }
    Ok(format!("CONCAT_WS('/', @@global.{name}, @@global.server_id)"))
}

/// Runs a SHOW statement; returns names and values.
async fn show(
    connection: &mut MySqlConnection,
    statement: &'static str,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    let rows = raw_sql(statement).fetch_all(connection).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}
