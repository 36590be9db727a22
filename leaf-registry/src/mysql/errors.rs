//! The meaning of the server's error numbers
//! (<https://mariadb.com/kb/en/mariadb-error-code-reference/>).

use leaf_segment::StoreErrorKind;
use sqlx::mysql::MySqlDatabaseError;

use crate::sql::dialect::ErrorMeanings;

/// Classifies the errors of MySQL and MariaDB.
pub(super) const MEANINGS: ErrorMeanings = ErrorMeanings {
    kind,
    is_conflict,
    is_missing_table,
    is_existing_table,
    is_missing_column,
    is_absent,
    has_no_connection_left,
};

/// ER_LOCK_DEADLOCK, which Galera also returns if another member's transaction came first;
/// ER_TRANSACTION_ROLLBACK_DURING_COMMIT, its equivalent in Group Replication.
fn is_conflict(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1213 | 3101))
}

/// ER_NO_SUCH_TABLE
fn is_missing_table(error: &sqlx::Error) -> bool {
    number(error) == Some(1146)
}

/// ER_TABLE_EXISTS_ERROR
fn is_existing_table(error: &sqlx::Error) -> bool {
    number(error) == Some(1050)
}

/// ER_TABLEACCESS_DENIED_ERROR
fn is_forbidden(error: &sqlx::Error) -> bool {
    number(error) == Some(1142)
}

/// Whether an optional table is missing, or this user has no right on it. To a user without any
/// right on the table the server gives the same error in both cases.
pub(super) fn is_absent(error: &sqlx::Error) -> bool {
    is_missing_table(error) || is_forbidden(error)
}

/// ER_BAD_FIELD_ERROR
fn is_missing_column(error: &sqlx::Error) -> bool {
    number(error) == Some(1054)
}

/// ER_OPTION_PREVENTS_STATEMENT (read_only)
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    number(error) == Some(1290)
}

/// ER_CON_COUNT_ERROR, ER_TOO_MANY_USER_CONNECTIONS, ER_USER_LIMIT_REACHED
fn has_no_connection_left(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1040 | 1203 | 1226))
}

/// The number of an error of the server.
fn number(error: &sqlx::Error) -> Option<u16> {
    let database = error.as_database_error()?;
    Some(database.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// Returns the kind of store error for an error of the server or the driver.
fn kind(error: &sqlx::Error) -> StoreErrorKind {
    match number(error) {
        // ER_CANT_AGGREGATE_2COLLATIONS, ER_IMPOSSIBLE_STRING_CONVERSION: a tag that the column's
        // character set cannot hold is in no row.
        Some(1267 | 3988) => StoreErrorKind::UnknownTag,
        // ER_DUP_ENTRY
        Some(1062) => StoreErrorKind::TagExists,
        // ER_DATA_OUT_OF_RANGE, ER_WARN_DATA_OUT_OF_RANGE (a narrow column)
        Some(1690 | 1264) => StoreErrorKind::Exhausted,
        _ if has_no_connection_left(error) => StoreErrorKind::Unavailable,
        // Shutdown, node not ready (Galera), lock wait timeout, read-only, interrupted, killed.
        Some(1047 | 1053 | 1205 | 1290 | 1317 | 1792 | 1836 | 1927 | 3024) => {
            StoreErrorKind::Unavailable
        }
        Some(_) => StoreErrorKind::Refused,
        None => match error {
            sqlx::Error::Configuration(_) | sqlx::Error::ColumnDecode { .. } => {
                StoreErrorKind::Refused
            }
            _ => StoreErrorKind::Unavailable,
        },
    }
}
