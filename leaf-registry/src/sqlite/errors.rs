//! The meaning of SQLite's result codes (<https://www.sqlite.org/rescode.html>).

use crate::sql::dialect::ErrorMeaning;

/// What an error of SQLite means. That a table or a column is missing only the message says.
pub(super) fn meaning(error: &sqlx::Error) -> ErrorMeaning {
    let database = match error {
        sqlx::Error::Database(database) => database,
        sqlx::Error::Configuration(_) => return ErrorMeaning::Refused,
        _ => return ErrorMeaning::Unavailable,
    };
    let message = database.message();
    if message.starts_with("no such table") {
        return ErrorMeaning::MissingTable;
    }
    if message.starts_with("no such column") || message.contains(" has no column named ") {
        return ErrorMeaning::MissingColumn;
    }
    if database.is_unique_violation() {
        return ErrorMeaning::Duplicate;
    }
    // The primary code is the low byte of an extended one.
    let code: i32 = database.code().and_then(|code| code.parse().ok()).unwrap_or(0);
    match code & 0xff {
        // BUSY, LOCKED, NOMEM, IOERR, FULL, CANTOPEN
        5 | 6 | 7 | 10 | 13 | 14 => ErrorMeaning::Unavailable,
        _ => ErrorMeaning::Refused,
    }
}
