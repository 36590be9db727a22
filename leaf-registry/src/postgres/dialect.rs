//! The statements of PostgreSQL.
//!
//! The row of `UPDATE … RETURNING` arrives before its commit: a client that stops reading there may
//! use a range that is not durable. So every answer is read to its end. If a server commits without
//! waiting for its disk (`synchronous_commit = off`), every connection sets it to wait.
//!
//! The server's name consists of its system identifier, which all replicas share, and its timeline,
//! which changes with a promotion and with a recovery to a point in time. The statements themselves
//! read the name.

use leaf_core::Tag;
use sqlx::{PgConnection, Postgres, Row, query_as, raw_sql};

use super::errors;
use crate::Table;
use crate::sql::connections::ServerPool;
use crate::sql::dialect::{
    Dialect, ErrorMeaning, FenceStatements, GuardStatements, MarginStatements, SettingsStatements,
    TagStatements, WriterStatements,
};
use crate::sql::failover_guard::{FailoverGuard, GuardTable};
use crate::sql::values::{bound, run_statements};

/// PostgreSQL.
#[derive(Debug)]
pub(crate) struct Postgresql;

/// The tables of a registry.
pub(super) const FENCE_TABLES: &[Table] = &[
    Table {
        name: "leaf_worker_fence",
        statements: "\
CREATE TABLE leaf_worker_fence (
    worker_id INTEGER NOT NULL PRIMARY KEY,
    nonce     TEXT    NOT NULL,
    record    TEXT    NOT NULL,
    seen_at   BIGINT  NOT NULL
);
",
    },
    Table {
        name: "leaf_worker_guard",
        statements: "\
CREATE TABLE leaf_worker_guard (
    id         SMALLINT NOT NULL PRIMARY KEY,
    server_uid TEXT     NOT NULL,
    since      BIGINT   NOT NULL
);
INSERT INTO leaf_worker_guard (id, server_uid, since) VALUES (1, '', 0);
",
    },
];

/// The name of the server that runs the statement.
macro_rules! server {
    () => {
        "((SELECT system_identifier FROM pg_control_system())::text || '/' || \
          left(pg_walfile_name(pg_current_wal_lsn()), 8))"
    };
}

/// The failover guard's condition, appended to a statement: this server is the one that allocated
/// last.
macro_rules! guarded {
    ($row:literal) => {
        concat!(" AND (SELECT server_uid FROM leaf_guard WHERE id = ", $row, ") = ", server!())
    };
}

/// One more condition: that the tag has the given number (0 or 1) of rows of settings that match a
/// pattern of LIKE. The statement reads the settings and the tag's row in one snapshot.
macro_rules! of_generation {
    () => {
        " AND (SELECT count(*) FROM leaf_tag_settings WHERE biz_tag = $4 AND settings LIKE $5) = $6"
    };
}

/// Whether this server is the one that writes worker ids.
macro_rules! is_writer {
    () => {
        concat!("(SELECT server_uid FROM leaf_worker_guard WHERE id = 1) = ", server!())
    };
}

/// The server's clock, Unix milliseconds.
macro_rules! now {
    () => {
        "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
}

/// The statements about one table of tags.
/// The arguments are pieces of statements:
/// - `$table`, and `$row`, its row in `leaf_guard`;
/// - `$is_plain`: whether it is `leaf_alloc`; `$copied`: further columns that a member copies from
///   its family;
/// - `$more`: further columns to read;
/// - `$insert_tail`: further columns of a new row, and its values;
/// - `$sum`: what an allocation sets `max_id` to, and further assignments;
/// - `$condition`: the condition of an allocation;
/// - `$margin`: the row's own margin; `$skip`: the assignment to the column `skip` in a jump, if
///   any.
macro_rules! tags {
    ($table:literal, $row:literal, $is_plain:literal, $copied:literal, $more:literal, $insert_tail:literal, $sum:literal, $condition:literal, $margin:literal, $skip:literal) => {
        TagStatements {
            allocate: tags!(allocate $table, $sum, $condition, ""),
            allocate_guarded: tags!(allocate $table, $sum, $condition, guarded!($row)),
            read: concat!(tags!(columns $table, $more), " WHERE biz_tag = $1"),
            read_many: concat!(tags!(columns $table, $more), " WHERE biz_tag = ANY ($1)"),
            names_after: concat!(
                "SELECT biz_tag FROM ", $table, " WHERE biz_tag > $1 ORDER BY biz_tag LIMIT $2"
            ),
            names_between: concat!(
                "SELECT biz_tag FROM ", $table,
                " WHERE biz_tag > $1 AND biz_tag < $2 ORDER BY biz_tag LIMIT $3"
            ),
            copy: concat!(
                "INSERT INTO ", $table, " (biz_tag, max_id, step, description", $copied, ") \
                 SELECT name, max_id, step, description", $copied, " FROM ", $table,
                ", unnest($1) AS new (name) WHERE biz_tag = $2"
            ),
            is_plain: $is_plain,
            create: concat!(
                "INSERT INTO ", $table, " (biz_tag, max_id, step, description", $insert_tail
            ),
            update: concat!(
                "UPDATE ", $table, " SET max_id = $1, step = coalesce($2, step), \
                 update_time = now() WHERE biz_tag = $3"
            ),
            set_settings: concat!(
                "INSERT INTO leaf_tag_settings (biz_tag, settings) SELECT biz_tag, $1 FROM ",
                $table,
                " WHERE biz_tag = $2 ON CONFLICT (biz_tag) DO UPDATE SET settings = excluded.settings"
            ),
            lock: concat!(tags!(columns $table, $more), " WHERE biz_tag = $1 FOR UPDATE"),
            give_back: tags!(replace $table, of_generation!()),
            give_back_guarded: tags!(replace $table, concat!(of_generation!(), guarded!($row))),
            replace_max_id: tags!(replace $table, ""),
            replace_max_id_guarded: tags!(replace $table, guarded!($row)),
            delete: concat!("DELETE FROM ", $table, " WHERE biz_tag = $1"),
            guard: Some(guard!($table, $row, $margin, $skip)),
        }
    };
    (allocate $table:literal, $sum:literal, $condition:literal, $guarded:expr) => {
        concat!(
            "UPDATE ", $table, " SET max_id = ", $sum, ", update_time = now() WHERE ", $condition,
            $guarded, " RETURNING max_id"
        )
    };
    (replace $table:literal, $guarded:expr) => {
        concat!(
            "UPDATE ", $table, " SET max_id = $1, update_time = now() \
             WHERE biz_tag = $2 AND max_id = $3",
            $guarded
        )
    };
    (columns $table:literal, $more:literal) => {
        concat!("SELECT biz_tag, max_id, step::bigint, description", $more, " FROM ", $table)
    };
}

/// The statements of a table's failover guard.
macro_rules! guard {
    ($table:literal, $row:literal, $margin:literal, $skip:literal) => {
        GuardStatements {
            table: $table,
            allocated_last: concat!(
                "SELECT (server_uid = ",
                server!(),
                ")::int::bigint FROM leaf_guard WHERE id = ",
                $row
            ),
            fill_empty: concat!(
                "UPDATE leaf_guard SET server_uid = ",
                server!(),
                " WHERE id = ",
                $row,
                " AND server_uid = ''"
            ),
            // If this process or its host dies half-way, the server must not keep the locks for
            // long.
            limit_jump: "SELECT set_config('lock_timeout', '50s', false), \
                         set_config('idle_in_transaction_session_timeout', '10s', false)",
            lock: concat!(
                "SELECT server_uid, ",
                server!(),
                " FROM leaf_guard WHERE id = ",
                $row,
                " FOR UPDATE"
            ),
            advance_all: concat!(
                "UPDATE ",
                $table,
                " SET ",
                $skip,
                "max_id = max_id + least(coalesce(",
                $margin,
                ", greatest($1, $2 * step::bigint)), 9223372036854775806 - max_id) \
                 WHERE max_id BETWEEN 0 AND 9223372036854775806"
            ),
            take: concat!("UPDATE leaf_guard SET server_uid = ", server!(), " WHERE id = ", $row),
            insert_missing: concat!(
                "INSERT INTO leaf_guard (id, server_uid) VALUES (",
                $row,
                ", ",
                server!(),
                ")"
            ),
        }
    };
}

fn texts(tags: &[Tag]) -> Vec<String> {
    tags.iter().map(|tag| tag.as_str().to_owned()).collect()
}

impl Dialect for Postgresql {
    type Db = Postgres;
    type Connections = ServerPool<Self>;

    const NAME: &'static str = "postgres";
    const TYPE_OF: &'static str = "CAST(pg_typeof({}) AS text)";

    const SEGMENT_TABLES: &'static [Table] = &[
        Table {
            name: "leaf_guard",
            statements: "\
CREATE TABLE leaf_guard (
    id         SMALLINT NOT NULL PRIMARY KEY,
    server_uid TEXT     NOT NULL
);
INSERT INTO leaf_guard (id, server_uid) VALUES (1, ''), (2, ''), (3, '0');
",
        },
        Table {
            name: "leaf_alloc",
            statements: "\
CREATE TABLE leaf_alloc (
    biz_tag     VARCHAR(128) COLLATE \"C\" NOT NULL PRIMARY KEY,
    max_id      BIGINT       NOT NULL DEFAULT 1,
    step        INTEGER      NOT NULL,
    description VARCHAR(256),
    update_time TIMESTAMPTZ  NOT NULL DEFAULT now()
);
",
        },
        Table {
            name: "leaf_tag_settings",
            statements: "\
CREATE TABLE leaf_tag_settings (
    biz_tag  VARCHAR(128) COLLATE \"C\" NOT NULL PRIMARY KEY,
    settings TEXT NOT NULL
);
",
        },
        Table {
            name: "leaf_sequence",
            statements: "\
CREATE TABLE leaf_sequence (
    biz_tag         VARCHAR(128) COLLATE \"C\" NOT NULL PRIMARY KEY,
    max_id          BIGINT       NOT NULL,
    step            INTEGER      NOT NULL,
    meaning         TEXT         NOT NULL,
    failover_margin BIGINT,
    skip            BIGINT       NOT NULL DEFAULT 0,
    description     VARCHAR(256),
    update_time     TIMESTAMPTZ  NOT NULL DEFAULT now()
);
",
        },
    ];

    const ALLOC: TagStatements = tags!(
        "leaf_alloc",
        "1",
        true,
        "",
        "",
        ") VALUES ($1, $2, $3, $4)",
        "max_id + $1",
        "biz_tag = $2 AND step = $3 AND max_id BETWEEN 0 AND $4",
        "NULL",
        ""
    );
    const SEQUENCE: TagStatements = tags!(
        "leaf_sequence",
        "2",
        false,
        ", meaning, failover_margin, skip",
        ", meaning",
        ", meaning, failover_margin) VALUES ($1, $2, $3, $4, $5, $6)",
        // $3 and $4 are $1 and $2 again, as MySQL needs them. `$3 > 0` always holds: PostgreSQL
        // wants every parameter used.
        "greatest(max_id, $2 + skip) + $1, \
         skip = CASE WHEN max_id < $4 + skip AND $3 > 0 THEN 0 ELSE skip END",
        "biz_tag = $5 AND step = $6 AND max_id BETWEEN 0 AND $7 AND meaning = $8",
        "failover_margin",
        "skip = skip + coalesce(failover_margin, 0), "
    );
    const ENTER_PERIOD: Option<&'static str> = Some(
        "UPDATE leaf_sequence SET max_id = $1 + skip, skip = 0 \
         WHERE biz_tag = $2 AND max_id < $3 + skip AND skip > 0",
    );
    const SET_MEANING: &'static str =
        "UPDATE leaf_sequence SET meaning = $1, update_time = now() WHERE biz_tag = $2";

    const RESERVE: &'static str = "INSERT INTO leaf_sequence (biz_tag, max_id, step, meaning) \
                                   SELECT name, 0, 1, 'reserved' FROM unnest($1) AS new (name)";
    const RELEASE: &'static str = "DELETE FROM leaf_sequence WHERE biz_tag = ANY ($1)";
    const SETTINGS: SettingsStatements = SettingsStatements {
        set_many: "INSERT INTO leaf_tag_settings (biz_tag, settings) \
                   SELECT name, $1 FROM unnest($2) AS new (name) \
                   ON CONFLICT (biz_tag) DO UPDATE SET settings = excluded.settings",
        read: "SELECT biz_tag, settings FROM leaf_tag_settings WHERE biz_tag = $1",
        read_many: "SELECT biz_tag, settings FROM leaf_tag_settings WHERE biz_tag = ANY ($1)",
        read_all: "SELECT biz_tag, settings FROM leaf_tag_settings",
        delete: "DELETE FROM leaf_tag_settings WHERE biz_tag = $1",
        insert: "INSERT INTO leaf_tag_settings (biz_tag, settings) VALUES ($1, $2)",
        replace: "UPDATE leaf_tag_settings SET settings = $1 WHERE biz_tag = $2 AND settings = $3",
    };

    const MARGIN: Option<MarginStatements> = Some(MarginStatements {
        read: "SELECT server_uid FROM leaf_guard WHERE id = 3",
        replace: "UPDATE leaf_guard SET server_uid = $1 WHERE id = 3 AND server_uid = $2",
        insert_missing: "INSERT INTO leaf_guard (id, server_uid) VALUES (3, '0') ON CONFLICT DO NOTHING",
    });

    const FENCES: FenceStatements = FenceStatements {
        list: "SELECT worker_id::bigint, nonce, record FROM leaf_worker_fence ORDER BY worker_id",
        read: "SELECT worker_id::bigint, nonce, record FROM leaf_worker_fence \
               WHERE worker_id = $1",
        update: concat!(
            "UPDATE leaf_worker_fence SET nonce = $1, record = $2, seen_at = ",
            now!(),
            " WHERE worker_id = $3 AND nonce = $4 AND record = $5 AND ",
            is_writer!(),
            " AND (SELECT since FROM leaf_worker_guard WHERE id = 1) = $6"
        ),
        insert: concat!(
            "INSERT INTO leaf_worker_fence (nonce, record, seen_at, worker_id) SELECT $1, $2, ",
            now!(),
            ", $3 FROM leaf_worker_guard WHERE id = 1 AND since = $4 AND ",
            is_writer!()
        ),
        peers: concat!("SELECT record FROM leaf_worker_fence WHERE seen_at >= ", now!(), " - $1"),
        writer: Some(WriterStatements {
            read: concat!(
                "SELECT since, server_uid, (server_uid = ",
                server!(),
                ")::int::bigint FROM leaf_worker_guard WHERE id = 1"
            ),
            lock: "SELECT id FROM leaf_worker_guard WHERE id = 1 FOR UPDATE",
            used: "SELECT count(*) FROM (SELECT 1 FROM leaf_worker_fence LIMIT 1) AS used",
            take: concat!(
                "INSERT INTO leaf_worker_guard (id, server_uid, since) VALUES (1, ",
                server!(),
                ", CASE WHEN $1 = 1 THEN 0 ELSE greatest($2, ",
                now!(),
                ") END) ON CONFLICT (id) DO UPDATE \
                   SET server_uid = excluded.server_uid, since = excluded.since"
            ),
            fill_empty: concat!(
                "UPDATE leaf_worker_guard SET server_uid = ",
                server!(),
                " WHERE id = 1 AND server_uid = ''"
            ),
        }),
    };

    const BEGIN: Option<&'static str> = Some("BEGIN ISOLATION LEVEL READ COMMITTED");
    // A range counts when its statement was answered: it must be durable then. A statement whose
    // caller has left must not wait for its lock much longer.
    const PREPARE: Option<&'static str> = Some(
        "SET lock_timeout = '1500ms'; \
        SELECT set_config('synchronous_commit', 'on', false) \
        WHERE current_setting('synchronous_commit') = 'off'",
    );
    const LIMIT_LOCKS: Option<&'static str> =
        Some("SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '10s'");
    const SERVER_CLOCK: Option<&'static str> = Some(concat!("SELECT ", now!()));
    const TABLE_EXISTS: &'static str = "SELECT (to_regclass($1) IS NOT NULL)::int::bigint";
    const ERROR_MEANING: fn(&sqlx::Error) -> ErrorMeaning = errors::meaning;

    run_statements!(
        Postgres,
        |query, tag| query.bind(tag),
        |query, tags| query.bind(texts(tags)),
        |query, names| query.bind(texts(names))
    );

    async fn identify_server(
        connection: &mut PgConnection,
        guard: &FailoverGuard,
    ) -> Result<(), sqlx::Error> {
        if guard.configured_margin().is_none() {
            return Ok(());
        }
        // Plain text, not a prepared statement: a distant server is asked as seldom as can be.
        let name = raw_sql(concat!("SELECT ", server!())).fetch_one(&mut *connection).await;
        match name {
            Ok(_) => {}
            Err(error) if errors::has_no_name(&error) => {
                guard.found(GuardTable::NoServerName);
                return Ok(());
            }
            // A standby: the connection may stay open when the standby is promoted.
            Err(error) if errors::is_standby(&error) => {}
            Err(error) => return Err(error),
        }
        let usable = raw_sql(
            "SELECT CASE WHEN to_regclass('leaf_guard') IS NULL THEN false \
             ELSE has_table_privilege('leaf_guard', 'SELECT') \
             AND has_table_privilege('leaf_guard', 'UPDATE') END",
        )
        .fetch_one(connection)
        .await?;
        let usable: bool = usable.try_get(0)?;
        guard.found(if usable { GuardTable::Usable } else { GuardTable::Missing });
        Ok(())
    }

    async fn losses(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
        let (fsync, pages, waits): (bool, bool, bool) = query_as(
            "SELECT current_setting('fsync')::boolean, \
             current_setting('full_page_writes')::boolean, \
             (SELECT reset_val <> 'off' FROM pg_settings WHERE name = 'synchronous_commit')",
        )
        .fetch_one(connection)
        .await?;
        let losses = [
            (
                waits,
                "synchronous_commit is off: behind a pooler that shares connections a crash may lose \
                 allocations; set it to on for this user",
            ),
            (fsync, "fsync is off: a crash may lose allocations; set it to on"),
            (pages, "full_page_writes is off: a crash may lose allocations; set it to on"),
        ];
        Ok(losses.into_iter().filter(|(safe, _)| !safe).map(|(_, text)| text.into()).collect())
    }
}
