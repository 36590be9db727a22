//! The meaning of PostgreSQL's SQLSTATE codes
//! (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).

use leaf_segment::StoreErrorKind;

use crate::sql::dialect::ErrorMeanings;

/// Classifies the errors of PostgreSQL.
pub(super) const MEANINGS: ErrorMeanings = ErrorMeanings {
    kind,
    is_conflict,
    is_missing_table,
    is_existing_table,
    is_missing_column,
    is_absent,
    has_no_connection_left,
};

/// serialization_failure, deadlock_detected
fn is_conflict(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("40001" | "40P01"))
}

/// undefined_table
fn is_missing_table(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("42P01")
}

/// duplicate_table. If another transaction makes the table at this moment: unique_violation in the
/// catalog, or duplicate_object, since each table has a row type of the same name.
fn is_existing_table(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("42P07" | "42710" | "23505"))
}

/// undefined_column
fn is_missing_column(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("42703")
}

/// insufficient_privilege
fn is_forbidden(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("42501")
}

/// Whether an optional table is missing, or this user has no right on it.
fn is_absent(error: &sqlx::Error) -> bool {
    is_missing_table(error) || is_forbidden(error)
}

/// undefined_function, feature_not_supported, insufficient_privilege: the server does not reveal
/// its name to this user.
pub(super) fn has_no_name(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("42883" | "0A000")) || is_forbidden(error)
}

/// object_not_in_prerequisite_state: a standby has no write-ahead log position of its own.
pub(super) fn is_standby(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("55000")
}

/// too_many_connections
fn has_no_connection_left(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("53300")
}

/// The SQLSTATE of an error of the server.
fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error()?.code().map(Into::into)
}

/// Returns the kind of store error for an error of the server or the driver.
fn kind(error: &sqlx::Error) -> StoreErrorKind {
    let Some(code) = code(error) else {
        return match error {
            sqlx::Error::Configuration(_) | sqlx::Error::ColumnDecode { .. } => {
                StoreErrorKind::Refused
            }
            _ => StoreErrorKind::Unavailable,
        };
    };
    match code.as_str() {
        // unique_violation
        "23505" => StoreErrorKind::TagExists,
        // numeric_value_out_of_range
        "22003" => StoreErrorKind::Exhausted,
        // character_not_in_repertoire, untranslatable_character: a tag that the database's encoding
        // cannot hold is in no row.
        "22021" | "22P05" => StoreErrorKind::UnknownTag,
        // read_only_sql_transaction, serialization_failure, deadlock_detected, lock_not_available;
        // a standby has no write-ahead log position of its own.
        "25006" | "40001" | "40P01" | "55P03" | "55000" => StoreErrorKind::Unavailable,
        // Connection exceptions, insufficient resources (disk full, too many connections), operator
        // intervention (shutdown, crash, starting up), system errors.
        code if ["08", "53", "57", "58"].contains(&&code[..2.min(code.len())]) => {
            StoreErrorKind::Unavailable
        }
        _ => StoreErrorKind::Refused,
    }
}
