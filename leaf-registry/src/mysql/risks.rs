//! Lists the risks in the setup of a MySQL or MariaDB server that could cost ids, each with a
//! remedy.

use sqlx::{MySqlConnection, query_as};

use super::server_name;

/// The server's variables and counters, each a name and its value.
struct Values(Vec<(String, String)>);

impl Values {
    async fn read(connection: &mut MySqlConnection) -> Result<Self, sqlx::Error> {
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
            .fetch_all(connection)
            .await?,
        );
        Ok(Self(values))
    }

    fn is(&self, name: &str, wanted: &str) -> bool {
        self.0.iter().any(|(key, value)| key.eq_ignore_ascii_case(name) && value == wanted)
    }

    /// The risks that are not among [`Self::losses`].
    fn risks(&self) -> Vec<String> {
        told(&[
            (self.is("server_uid", server_name::UNKNOWN), server_name::UNKNOWN_TEXT),
            (
                self.is("log_bin", "ON") && !self.is("sync_binlog", "1"),
                "sync_binlog is not 1: after a crash replicas may have changes that the server lost, or lack changes that it kept; set it to 1",
            ),
        ])
    }

    /// Why the server may lose what it has acknowledged.
    fn losses(&self) -> Vec<String> {
        let fell_back = ["master", "source"].into_iter().any(|role| {
            self.is(&format!("rpl_semi_sync_{role}_enabled"), "ON")
                && self.is(&format!("rpl_semi_sync_{role}_status"), "OFF")
        });
        told(&[
            (
                fell_back,
                "semi-synchronous replication has fallen back to asynchronous: a failover now would lose \
                 allocations; bring a replica back",
            ),
            (
                !self.is("innodb_flush_log_at_trx_commit", "1"),
                "innodb_flush_log_at_trx_commit is not 1: a crash may lose allocations; set it to 1",
            ),
        ])
    }
}

/// The texts whose condition holds.
fn told(all: &[(bool, &str)]) -> Vec<String> {
    all.iter().filter(|(holds, _)| *holds).map(|(_, text)| (*text).into()).collect()
}

/// Why this server may lose what it has acknowledged.
pub(super) async fn losses_of(
    connection: &mut MySqlConnection,
) -> Result<Vec<String>, sqlx::Error> {
    Ok(Values::read(connection).await?.losses())
}

/// The risks on this server that are not among [`losses_of`].
pub(super) async fn of(connection: &mut MySqlConnection) -> Result<Vec<String>, sqlx::Error> {
    let mut found = Values::read(connection).await?.risks();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// MariaDB derives `server_uid` from the machine's hardware address, which no test can take
    /// away.
    #[test]
    fn a_server_without_a_name_of_its_own_is_a_risk() {
        let told = |uid: &str| Values(vec![("server_uid".into(), uid.into())]).risks();
        assert_eq!(told("7M0Tp1Vv5rC2zK8aJ9dQw3eXyZs="), [""; 0]);
        assert!(told("unknown")[0].contains("server_id"));
    }
    #[test]
    fn what_a_crash_or_a_failover_could_lose_is_told() {
        let told = |values: &[(&str, &str)]| {
            let values = values.iter().map(|(name, value)| (name.to_string(), value.to_string()));
            Values(values.collect()).losses()
        };
        let flushed = ("innodb_flush_log_at_trx_commit", "1");
        let on = ("rpl_semi_sync_master_enabled", "ON");
        assert_eq!(told(&[flushed]), [""; 0]);
        assert_eq!(told(&[flushed, on, ("Rpl_semi_sync_master_status", "ON")]), [""; 0]);
        let fell_back = told(&[flushed, on, ("Rpl_semi_sync_master_status", "OFF")]);
        assert!(fell_back[0].contains("fallen back"), "{fell_back:?}");
        let unflushed = told(&[("innodb_flush_log_at_trx_commit", "2")]);
        assert!(unflushed[0].contains("a crash may lose"), "{unflushed:?}");
    }
}
