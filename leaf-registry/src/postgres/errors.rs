//! The meaning of PostgreSQL's SQLSTATE codes
//! (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).

use crate::sql::dialect::ErrorMeaning;

/// What an error of PostgreSQL means.
pub(super) fn meaning(error: &sqlx::Error) -> ErrorMeaning {
    let Some(code) = code(error) else { return ErrorMeaning::of_driver(error) };
    match code.as_str() {
        // serialization_failure, deadlock_detected
        "40001" | "40P01" => ErrorMeaning::Conflict,
        // undefined_table
        "42P01" => ErrorMeaning::MissingTable,
        // duplicate_table; duplicate_object if another transaction makes the table at this moment,
        // since each table has a row type of the same name.
        "42P07" | "42710" => ErrorMeaning::ExistingTable,
        // undefined_column
        "42703" => ErrorMeaning::MissingColumn,
        // insufficient_privilege
        "42501" => ErrorMeaning::Forbidden,
        // too_many_connections
        "53300" => ErrorMeaning::NoConnectionLeft,
        // unique_violation; in the catalog, if another transaction makes a table at this moment.
        "23505" => ErrorMeaning::Duplicate,
        // numeric_value_out_of_range
        "22003" => ErrorMeaning::OutOfRange,
        // character_not_in_repertoire, untranslatable_character
        "22021" | "22P05" => ErrorMeaning::Unencodable,
        // read_only_sql_transaction, lock_not_available; a standby has no write-ahead log position
        // of its own.
        "25006" | "55P03" | "55000" => ErrorMeaning::Unavailable,
        // Connection exceptions, insufficient resources (disk full, too many connections), operator
        // intervention (shutdown, crash, starting up), system errors.
        code if ["08", "53", "57", "58"].contains(&&code[..2.min(code.len())]) => {
            ErrorMeaning::Unavailable
        }
        _ => ErrorMeaning::Refused,
    }
}

/// undefined_function, feature_not_supported, insufficient_privilege: the server does not reveal
/// its name to this user.
pub(super) fn has_no_name(error: &sqlx::Error) -> bool {
    matches!(code(error).as_deref(), Some("42883" | "0A000" | "42501"))
}

/// object_not_in_prerequisite_state: a standby has no write-ahead log position of its own.
pub(super) fn is_standby(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("55000")
}

/// The SQLSTATE of an error of the server.
fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error()?.code().map(Into::into)
}
