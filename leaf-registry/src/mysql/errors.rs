//! The meaning of the server's error numbers
//! (<https://mariadb.com/kb/en/mariadb-error-code-reference/>).

use sqlx::mysql::MySqlDatabaseError;

use crate::sql::dialect::ErrorMeaning;

/// What an error of MySQL or MariaDB means.
pub(super) fn meaning(error: &sqlx::Error) -> ErrorMeaning {
    match number(error) {
        // ER_LOCK_DEADLOCK, which Galera also returns if another member's transaction came first;
        // ER_TRANSACTION_ROLLBACK_DURING_COMMIT, its equivalent in Group Replication.
        Some(1213 | 3101) => ErrorMeaning::Conflict,
        // ER_NO_SUCH_TABLE
        Some(1146) => ErrorMeaning::MissingTable,
        // ER_TABLE_EXISTS_ERROR
        Some(1050) => ErrorMeaning::ExistingTable,
        // ER_TABLEACCESS_DENIED_ERROR. To a user without any right on a table the server gives this
        // error also where the table is missing.
        Some(1142) => ErrorMeaning::Forbidden,
        // ER_BAD_FIELD_ERROR
        Some(1054) => ErrorMeaning::MissingColumn,
        // ER_CON_COUNT_ERROR, ER_TOO_MANY_USER_CONNECTIONS, ER_USER_LIMIT_REACHED
        Some(1040 | 1203 | 1226) => ErrorMeaning::NoConnectionLeft,
        // ER_CANT_AGGREGATE_2COLLATIONS, ER_IMPOSSIBLE_STRING_CONVERSION
        Some(1267 | 3988) => ErrorMeaning::Unencodable,
        // ER_DUP_ENTRY
        Some(1062) => ErrorMeaning::Duplicate,
        // ER_DATA_OUT_OF_RANGE, ER_WARN_DATA_OUT_OF_RANGE (a narrow column)
        Some(1690 | 1264) => ErrorMeaning::OutOfRange,
        // Shutdown, node not ready (Galera), lock wait timeout, read-only, interrupted, killed.
        Some(1047 | 1053 | 1205 | 1290 | 1317 | 1792 | 1836 | 1927 | 3024) => {
            ErrorMeaning::Unavailable
        }
        Some(_) => ErrorMeaning::Refused,
        None => ErrorMeaning::of_driver(error),
    }
}

/// ER_OPTION_PREVENTS_STATEMENT (read_only)
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    number(error) == Some(1290)
}

/// The number of an error of the server.
fn number(error: &sqlx::Error) -> Option<u16> {
    let database = error.as_database_error()?;
    Some(database.try_downcast_ref::<MySqlDatabaseError>()?.number())
}
