//! What could cost ids as a MySQL or MariaDB is set up, each with the way out.

use sqlx::{MySqlConnection, query_as};

use super::server_name;

/// What could cost ids on this server.
pub(super) async fn of(connection: &mut MySqlConnection) -> Result<Vec<String>, sqlx::Error> {
    let mut values: Vec<(String, String)> = query_as(
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
         ('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', \
          'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'server_uid')",
    )
    .fetch_all(&mut *connection)
    .await?;
    values.extend(
        query_as(
            "SHOW GLOBAL STATUS WHERE Variable_name IN \
             ('Rpl_semi_sync_master_status', 'Rpl_semi_sync_source_status')",
        )
        .fetch_all(&mut *connection)
        .await?,
    );
    let mut found = risks(&values);
    // Shown to users who have the right TRIGGER on the table.
    let triggers: Vec<(String, String)> = query_as(
        "SELECT CAST(trigger_name AS CHAR), CAST(event_object_table AS CHAR) \
         FROM information_schema.triggers WHERE event_object_schema = DATABASE() \
         AND event_object_table IN ('leaf_alloc', 'leaf_sequence')",
    )
    .fetch_all(connection)
    .await?;
    found.extend(triggers.into_iter().map(|(trigger, table)| {
        format!(
            "table {table} has the trigger {trigger}: one that uses LAST_INSERT_ID, or inserts into a table with an \
             AUTO_INCREMENT column, changes what an allocation is answered (MariaDB then answers 0, and Leaf refuses the \
             tag); drop it, or make sure that it does neither"
        )
    }));
    Ok(found)
}

/// What the server's variables and counters say.
fn risks(values: &[(String, String)]) -> Vec<String> {
    let is = |name: &str, wanted: &str| {
        values.iter().any(|(key, value)| key.eq_ignore_ascii_case(name) && value == wanted)
    };
    let semi_sync = ["master", "source"].into_iter().any(|role| {
        is(&format!("rpl_semi_sync_{role}_enabled"), "ON")
            && is(&format!("rpl_semi_sync_{role}_status"), "OFF")
    });
    let risks = [
        (is("server_uid", server_name::UNKNOWN), server_name::UNKNOWN_TEXT),
        (
            semi_sync,
            "semi-synchronous replication has fallen back to asynchronous: a failover now would lose \
             allocations; bring a replica back",
        ),
        (
            !is("innodb_flush_log_at_trx_commit", "1"),
            "innodb_flush_log_at_trx_commit is not 1: a crash may lose allocations; set it to 1",
        ),
        (
            is("log_bin", "ON") && !is("sync_binlog", "1"),
            "sync_binlog is not 1: after a crash replicas may have changes that the server lost, or lack changes that it kept; set it to 1",
        ),
    ];
    risks.into_iter().filter(|(risky, _)| *risky).map(|(_, text)| text.into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variable is made of the machine's hardware address; no test can take that away.
    #[test]
    fn a_server_without_a_name_of_its_own_is_a_risk() {
        let told = |uid: &str| {
            let flushed = ("innodb_flush_log_at_trx_commit".into(), "1".into());
            risks(&[flushed, ("server_uid".into(), uid.into())])
        };
        assert_eq!(told("7M0Tp1Vv5rC2zK8aJ9dQw3eXyZs="), [""; 0]);
        assert!(told("unknown")[0].contains("server_id"));
    }
}
