//! The statements of SQLite. [`super::file`] says when a change is durable.

use leaf_core::Tag;

use super::errors;
use super::file::SqliteFile;
use crate::Table;
use crate::sql::dialect::{
    Dialect, ErrorMeaning, FenceStatements, SettingsStatements, TagStatements,
};
use crate::sql::values::{bound, run_statements};

/// SQLite.
#[derive(Debug)]
pub(crate) struct Sqlite;

/// The tables of a registry.
pub(super) const FENCE_TABLES: &[Table] = &[Table {
    name: "leaf_worker_fence",
    statements: "\
CREATE TABLE leaf_worker_fence (
    worker_id INTEGER NOT NULL PRIMARY KEY,
    nonce     TEXT    NOT NULL,
    record    TEXT    NOT NULL,
    seen_at   INTEGER NOT NULL
) STRICT;
",
}];

/// The host's clock, Unix milliseconds.
macro_rules! now {
    () => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
}

/// The `TagStatements` of one table of tags. SQLite cannot fail over, so that the `_guarded`
/// statements equal the others. The arguments are SQL fragments: see `tags!` in
/// postgres/dialect.rs.
macro_rules! tags {
    ($table:literal, $is_plain:literal, $copied:literal, $more:literal, $insert_tail:literal, $sum:literal, $condition:literal) => {
        TagStatements {
            allocate: tags!(allocate $table, $sum, $condition),
            allocate_guarded: tags!(allocate $table, $sum, $condition),
            read: concat!(tags!(columns $table, $more), " WHERE biz_tag = ?1"),
            read_many: concat!(
                tags!(columns $table, $more), " WHERE biz_tag IN (SELECT value FROM json_each(?1))"
            ),
            names_after: concat!(
                "SELECT biz_tag FROM ", $table, " WHERE biz_tag > ?1 ORDER BY biz_tag LIMIT ?2"
            ),
            names_between: concat!(
                "SELECT biz_tag FROM ", $table,
                " WHERE biz_tag > ?1 AND biz_tag < ?2 ORDER BY biz_tag LIMIT ?3"
            ),
            copy: concat!(
                "INSERT INTO ", $table, " (biz_tag, max_id, step, description", $copied, ") \
                 SELECT value, max_id, step, description", $copied, " FROM ", $table,
                ", json_each(?1) WHERE biz_tag = ?2"
            ),
            is_plain: $is_plain,
            create: concat!(
                "INSERT INTO ", $table, " (biz_tag, max_id, step, description", $insert_tail
            ),
            update: concat!(
                "UPDATE ", $table, " SET max_id = ?1, step = coalesce(?2, step), \
                 update_time = CURRENT_TIMESTAMP WHERE biz_tag = ?3"
            ),
            set_settings: concat!(
                "REPLACE INTO leaf_tag_settings (biz_tag, settings) SELECT biz_tag, ?1 FROM ",
                $table, " WHERE biz_tag = ?2"
            ),
            // A transaction that writes has the whole file.
            lock: concat!(tags!(columns $table, $more), " WHERE biz_tag = ?1"),
            give_back: tags!(give_back $table),
            give_back_guarded: tags!(give_back $table),
            replace_max_id: tags!(replace $table),
            replace_max_id_guarded: tags!(replace $table),
            delete: concat!("DELETE FROM ", $table, " WHERE biz_tag = ?1"),
            guard: None,
        }
    };
    (allocate $table:literal, $sum:literal, $condition:literal) => {
        concat!(
            "UPDATE ", $table, " SET max_id = ", $sum, ", update_time = CURRENT_TIMESTAMP WHERE ",
            $condition, " RETURNING max_id"
        )
    };
    (replace $table:literal) => {
        concat!(
            "UPDATE ", $table, " SET max_id = ?1, update_time = CURRENT_TIMESTAMP \
             WHERE biz_tag = ?2 AND max_id = ?3"
        )
    };
    (give_back $table:literal) => {
        concat!(
            tags!(replace $table),
            " AND (SELECT count(*) FROM leaf_tag_settings WHERE biz_tag = ?4 AND settings LIKE ?5) = ?6"
        )
    };
    (columns $table:literal, $more:literal) => {
        concat!("SELECT biz_tag, max_id, step, description", $more, " FROM ", $table)
    };
}

fn json(tags: &[Tag]) -> String {
    let names: Vec<&str> = tags.iter().map(Tag::as_str).collect();
    serde_json::Value::from(names).to_string()
}

impl Dialect for Sqlite {
    type Db = sqlx::Sqlite;
    type Connections = SqliteFile;

    const NAME: &'static str = "sqlite";
    const TYPE_OF: &'static str = "typeof({})";
    const INTEGER: &'static str = "INTEGER";
    const SHARES_COMMITS: bool = true;

    const SEGMENT_TABLES: &'static [Table] = &[
        Table {
            name: "leaf_alloc",
            statements: "\
CREATE TABLE leaf_alloc (
    biz_tag     TEXT    NOT NULL PRIMARY KEY,
    max_id      INTEGER NOT NULL DEFAULT 1,
    step        INTEGER NOT NULL,
    description TEXT,
    update_time TEXT    NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT;
INSERT INTO leaf_alloc (biz_tag, max_id, step, description)
VALUES ('leaf-segment-test', 1, 2000, 'Test leaf Segment Mode Get Id');
",
        },
        Table {
            name: "leaf_tag_settings",
            statements: "\
CREATE TABLE leaf_tag_settings (
    biz_tag  TEXT NOT NULL PRIMARY KEY,
    settings TEXT NOT NULL
) STRICT;
",
        },
        Table {
            name: "leaf_sequence",
            statements: "\
CREATE TABLE leaf_sequence (
    biz_tag         TEXT    NOT NULL PRIMARY KEY,
    max_id          INTEGER NOT NULL,
    step            INTEGER NOT NULL,
    meaning         TEXT    NOT NULL,
    failover_margin INTEGER,
    description     TEXT,
    update_time     TEXT    NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT;
",
        },
    ];

    const ALLOC: TagStatements = tags!(
        "leaf_alloc",
        true,
        "",
        "",
        ") VALUES (?1, ?2, ?3, ?4)",
        "max_id + ?1",
        "biz_tag = ?2 AND step = ?3 AND max_id BETWEEN 0 AND ?4"
    );
    const SEQUENCE: TagStatements = tags!(
        "leaf_sequence",
        false,
        ", meaning, failover_margin",
        ", meaning",
        ", meaning, failover_margin) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        // A file does not fail over, so nothing is skipped. The third and fourth parameter are the
        // first two again.
        "MAX(max_id, ?4) + ?3",
        "biz_tag = ?5 AND step = ?6 AND max_id BETWEEN 0 AND ?7 AND meaning = ?8"
    );
    const SET_MEANING: &'static str =
        "UPDATE leaf_sequence SET meaning = ?1, update_time = CURRENT_TIMESTAMP WHERE biz_tag = ?2";

    const RESERVE: &'static str = "INSERT INTO leaf_sequence (biz_tag, max_id, step, meaning) \
                                   SELECT value, 0, 1, 'reserved' FROM json_each(?1)";
    const RELEASE: &'static str =
        "DELETE FROM leaf_sequence WHERE biz_tag IN (SELECT value FROM json_each(?1))";
    const SETTINGS: SettingsStatements = SettingsStatements {
        set_many: "REPLACE INTO leaf_tag_settings (settings, biz_tag) \
                   SELECT ?1, value FROM json_each(?2)",
        read: "SELECT biz_tag, settings FROM leaf_tag_settings WHERE biz_tag = ?1",
        read_many: "SELECT biz_tag, settings FROM leaf_tag_settings \
                    WHERE biz_tag IN (SELECT value FROM json_each(?1))",
        read_all: "SELECT biz_tag, settings FROM leaf_tag_settings",
        delete: "DELETE FROM leaf_tag_settings WHERE biz_tag = ?1",
        insert: "INSERT INTO leaf_tag_settings (biz_tag, settings) VALUES (?1, ?2)",
        replace: "UPDATE leaf_tag_settings SET settings = ?1 WHERE biz_tag = ?2 AND settings = ?3",
    };

    const FENCES: FenceStatements = FenceStatements {
        list: "SELECT worker_id, nonce, record FROM leaf_worker_fence ORDER BY worker_id",
        read: "SELECT worker_id, nonce, record FROM leaf_worker_fence WHERE worker_id = ?1",
        update: concat!(
            "UPDATE leaf_worker_fence SET nonce = ?1, record = ?2, seen_at = ",
            now!(),
            " WHERE worker_id = ?3 AND nonce = ?4 AND record = ?5"
        ),
        insert: concat!(
            "INSERT INTO leaf_worker_fence (nonce, record, seen_at, worker_id) VALUES (?1, ?2, ",
            now!(),
            ", ?3) ON CONFLICT DO NOTHING"
        ),
        peers: concat!("SELECT record FROM leaf_worker_fence WHERE seen_at >= ", now!(), " - ?1"),
        writer: None,
    };

    const BEGIN: Option<&'static str> = None;
    const PREPARE: Option<&'static str> = None;
    const LIMIT_LOCKS: Option<&'static str> = None;
    const SERVER_CLOCK: Option<&'static str> = None;
    const TABLE_EXISTS: &'static str =
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = ?1)";
    const ERROR_MEANING: fn(&sqlx::Error) -> ErrorMeaning = errors::meaning;

    run_statements!(
        sqlx::Sqlite,
        |query, tag| query.bind(tag),
        |query, tags| query.bind(json(tags)),
        |query, names| query.bind(json(names))
    );
}
