//! The meaning of SQLite's result codes (<https://www.sqlite.org/rescode.html>).

use leaf_segment::StoreErrorKind;

use crate::sql::dialect::ErrorMeanings;

/// Classifies the errors of SQLite.
pub(super) const MEANINGS: ErrorMeanings = ErrorMeanings {
    kind,
    // One connection writes at a time.
    is_conflict: |_| false,
    is_missing_table,
    is_existing_table: |_| false,
    is_missing_column,
    is_absent: is_missing_table,
    has_no_connection_left: |_| false,
};

/// Whether a table is missing: the message says so, SQLite has no code for it.
fn is_missing_table(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().starts_with("no such table"))
}

/// Whether a column is missing: the message says so, SQLite has no code for it.
fn is_missing_column(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| {
        error.message().starts_with("no such column")
            || error.message().contains(" has no column named ")
    })
}

/// Returns the kind of store error for an error of SQLite or the driver.
fn kind(error: &sqlx::Error) -> StoreErrorKind {
    let database = match error {
        sqlx::Error::Database(database) => database,
        sqlx::Error::Configuration(_) => return StoreErrorKind::Refused,
        _ => return StoreErrorKind::Unavailable,
    };
    if database.is_unique_violation() {
        return StoreErrorKind::TagExists;
    }
    // The primary code is the low byte of an extended one.
    let code: i32 = database.code().and_then(|code| code.parse().ok()).unwrap_or(0);
    match code & 0xff {
        // BUSY, LOCKED, NOMEM, IOERR, FULL, CANTOPEN
        5 | 6 | 7 | 10 | 13 | 14 => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Refused,
    }
}
