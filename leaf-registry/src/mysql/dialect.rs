//! The statements of MySQL and MariaDB.
//!
//! The new `max_id` of an allocation comes back in the statement's own OK packet
//! (`LAST_INSERT_ID(expression)`). Tags are compared as bytes. A comparison by the column's
//! collation comes first, so that the index is used; alone it would treat `order ` and `Order` as
//! `order`.

use leaf_core::Tag;
use leaf_segment::store::MOST_RECORDS;
use leaf_snowflake::{StoredWorker, WorkerRecord};
use sqlx::{MySql, MySqlConnection};

use super::{errors, mirror, risks, server_name};
use crate::Table;
use crate::sql::connections::ServerPool;
use crate::sql::dialect::{
    Dialect, ErrorMeaning, FenceStatements, GuardStatements, MarginStatements, SettingsStatements,
    TagStatements, WriterStatements,
};
use crate::sql::failover_guard::FailoverGuard;
use crate::sql::fences::{self, FenceVersion};
use crate::sql::values::{Value, bound, run_statements};

/// MySQL and MariaDB.
#[derive(Debug)]
pub(crate) struct Mysql;

/// One record per worker id, never deleted. `record` is the JSON of [`WorkerRecord`], which holds
/// ceiling and holder; `nonce` changes with every write; `seen_at` is the server's clock at the
/// last write, for the list of live nodes.
const FENCE: Table = Table {
    name: "leaf_worker_fence",
    statements: "\
CREATE TABLE leaf_worker_fence (
    worker_id INT           NOT NULL,
    nonce     CHAR(36)      NOT NULL,
    record    VARCHAR(2000) NOT NULL,
    seen_at   BIGINT        NOT NULL,
    PRIMARY KEY (worker_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
",
};

/// Which server writes worker ids: the name of the server that wrote last, and when the database
/// failed over to it (`since`), in Unix milliseconds; 0 if it was the first server.
const WRITER: Table = Table {
    name: "leaf_worker_guard",
    statements: "\
CREATE TABLE leaf_worker_guard (
    id         TINYINT      NOT NULL,
    server_uid VARCHAR(255) NOT NULL,
    since      BIGINT       NOT NULL,
    PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT INTO leaf_worker_guard (id, server_uid, since) VALUES (1, '', 0);
",
};

/// The tables of a registry without Java Leafs.
pub(super) const FENCE_TABLES: &[Table] = &[FENCE, WRITER];
/// The tables of a registry that Java Leafs share.
pub(super) const MIRRORED_TABLES: &[Table] = &[FENCE, WRITER, mirror::TABLE];

/// A statement about one tag: `$head`, the condition on the tag (its name), `$tail`.
macro_rules! of_tag {
    ($head:expr $(, $tail:expr)*) => {
        concat!(
            $head,
            " WHERE biz_tag = ? AND CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) = ?"
            $(, $tail)*
        )
    };
}

/// A statement about several tags, with [`MOST_RECORDS`] parameters.
macro_rules! among_tags {
    ($head:expr) => {
        concat!($head, " WHERE biz_tag IN (", among_tags!(four among_tags!(four among_tags!(four among_tags!(four "?")))), ")")
    };
    (four $part:expr) => {
        concat!($part, ", ", $part, ", ", $part, ", ", $part)
    };
}

/// Turns the lines of a text into rows with a column `name`, without functions that only some
/// versions of the server have. Its parameters are the text and the number of its lines, at most
/// [`MOST_RECORDS`].
macro_rules! names {
    () => {
        concat!(
            "(SELECT SUBSTRING_INDEX(SUBSTRING_INDEX(text, '\n', 1 + line), '\n', -1) AS name FROM \
             (SELECT a.i + 4 * b.i + 16 * c.i + 64 * d.i AS line FROM ",
            names!(digit "a"), " JOIN ", names!(digit "b"), " JOIN ", names!(digit "c"), " JOIN ",
            names!(digit "d"),
            ") AS numbers JOIN (SELECT ? AS text, ? AS many) AS given WHERE line < many) AS new_names"
        )
    };
    (digit $name:literal) => {
        concat!(
            "(SELECT 0 AS i UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS ",
            $name
        )
    };
}

/// The failover guard's condition, appended to a statement: this server is the one that allocated
/// last. Names are compared as bytes, so that no collation of the table makes the statement an
/// error.
macro_rules! guarded {
    ($row:literal) => {
        concat!(
            " AND (SELECT CAST(server_uid AS BINARY) FROM leaf_guard WHERE id = ",
            $row,
            ") = CAST(@leaf_server AS BINARY)"
        )
    };
}

/// One more condition: that the tag has the given number (0 or 1) of rows of settings that match a
/// pattern of LIKE. At the isolation level REPEATABLE READ, which `PREPARE` sets, nobody changes
/// the settings between this condition and the end of the statement.
macro_rules! of_generation {
    () => {
        concat!(
            " AND (",
            of_tag!("SELECT COUNT(*) FROM leaf_tag_settings", " AND settings LIKE ?"),
            ") = ?"
        )
    };
}

/// Whether this server is the one that writes worker ids.
macro_rules! is_writer {
    () => {
        "(SELECT CAST(server_uid AS BINARY) FROM leaf_worker_guard WHERE id = 1) \
         = CAST(@leaf_server AS BINARY)"
    };
}

/// The server's clock, Unix milliseconds.
macro_rules! now {
    () => {
        "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
    };
}

/// Replaces a fence and its mirror, if both are still what was read.
const UPDATE_BOTH: &str = concat!(
    "UPDATE leaf_worker_fence f JOIN leaf_workerid_alloc a ON a.id = f.worker_id \
     SET f.nonce = ?, f.record = ?, f.seen_at = ",
    now!(),
    ", a.ip = ?, a.port = ?, a.ip_port = ?, a.max_timestamp = ? \
     WHERE f.worker_id = ? AND f.nonce = ? AND f.record = ? AND ",
    is_writer!(),
    " AND (SELECT since FROM leaf_worker_guard WHERE id = 1) = ? \
     AND a.ip_port = ? AND a.max_timestamp = ?"
);

/// The statements about one table of tags. Columns with numbers are read as integers, whatever
/// types the table has if Leaf did not make it. The arguments are pieces of statements:
/// - `$table`, and `$row`, its row in `leaf_guard`;
/// - `$is_plain`: whether it is `leaf_alloc`; `$copied`: further columns that a member copies from
///   its family;
/// - `$sum`: what follows `SET max_id = LAST_INSERT_ID(`, its closing bracket included, and further
///   assignments;
/// - `$more`: further columns to read;
/// - `$insert_tail`: the rest of an INSERT: further columns, and the values;
/// - `$condition`: a further condition of an allocation;
/// - `$margin`: the row's own margin; `$skip`: the assignment to the column `skip` in a jump, if
///   any.
macro_rules! tags {
    ($table:literal, $row:literal, $is_plain:literal, $copied:literal, $sum:literal, $more:literal, $insert_tail:literal, $condition:literal, $margin:literal, $skip:literal) => {
        TagStatements {
            allocate: of_tag!(
                concat!("UPDATE ", $table, " SET max_id = LAST_INSERT_ID(", $sum),
                " AND step = ? AND max_id BETWEEN 0 AND ?",
                $condition
            ),
            allocate_guarded: of_tag!(
                concat!("UPDATE ", $table, " SET max_id = LAST_INSERT_ID(", $sum),
                " AND step = ? AND max_id BETWEEN 0 AND ?",
                $condition,
                guarded!($row)
            ),
            read: of_tag!(tags!(columns $table, $more)),
            read_many: among_tags!(tags!(columns $table, $more)),
            names_after: concat!(
                "SELECT biz_tag FROM ", $table, " WHERE biz_tag > ? ORDER BY biz_tag LIMIT ?"
            ),
            names_between: concat!(
                "SELECT biz_tag FROM ", $table,
                " WHERE biz_tag > ? AND biz_tag < ? ORDER BY biz_tag LIMIT ?"
            ),
            copy: of_tag!(concat!(
                "INSERT INTO ", $table, " (biz_tag, max_id, step, description", $copied, ") \
                 SELECT name, max_id, step, description", $copied, " FROM ", names!(), " JOIN ",
                $table
            )),
            is_plain: $is_plain,
            create: concat!(
                "INSERT INTO ", $table, " (biz_tag, max_id, step, description", $insert_tail
            ),
            update: of_tag!(concat!("UPDATE ", $table, " SET max_id = ?, step = COALESCE(?, step)")),
            set_settings: of_tag!(concat!(
                "REPLACE INTO leaf_tag_settings (settings, biz_tag) SELECT ?, biz_tag FROM ",
                $table
            )),
            lock: of_tag!(tags!(columns $table, $more), " FOR UPDATE"),
            give_back: of_tag!(
                concat!("UPDATE ", $table, " SET max_id = ?"), " AND max_id = ?", of_generation!()
            ),
            give_back_guarded: of_tag!(
                concat!("UPDATE ", $table, " SET max_id = ?"),
                " AND max_id = ?",
                of_generation!(),
                guarded!($row)
            ),
            replace_max_id: of_tag!(
                concat!("UPDATE ", $table, " SET max_id = ?"), " AND max_id = ?"
            ),
            replace_max_id_guarded: of_tag!(
                concat!("UPDATE ", $table, " SET max_id = ?"), " AND max_id = ?", guarded!($row)
            ),
            delete: of_tag!(concat!("DELETE FROM ", $table)),
            guard: Some(guard!($table, $row, $margin, $skip)),
        }
    };
    (columns $table:literal, $more:literal) => {
        concat!(
            "SELECT biz_tag, CAST(max_id AS SIGNED), CAST(step AS SIGNED), description", $more,
            " FROM ", $table
        )
    };
}

/// The statements of a table's failover guard.
macro_rules! guard {
    ($table:literal, $row:literal, $margin:literal, $skip:literal) => {
        GuardStatements {
            table: $table,
            allocated_last: concat!(
                "SELECT CAST(server_uid AS BINARY) = CAST(@leaf_server AS BINARY) \
                 FROM leaf_guard WHERE id = ",
                $row
            ),
            fill_empty: concat!(
                "UPDATE leaf_guard SET server_uid = @leaf_server WHERE id = ",
                $row,
                " AND server_uid = ''"
            ),
            // If this process or its host dies half-way, the server must not keep the locks for
            // long.
            limit_jump: "SET SESSION innodb_lock_wait_timeout = 50, wait_timeout = 10, \
                         sql_safe_updates = 0",
            lock: concat!(
                "SELECT CAST(server_uid AS CHAR), CAST(@leaf_server AS CHAR) \
                 FROM leaf_guard WHERE id = ",
                $row,
                " FOR UPDATE"
            ),
            advance_all: concat!(
                "UPDATE ",
                $table,
                " SET ",
                $skip,
                "max_id = max_id + LEAST(COALESCE(",
                $margin,
                ", GREATEST(?, ? * COALESCE(step, 0))), 9223372036854775806 - max_id) \
                 WHERE max_id BETWEEN 0 AND 9223372036854775806"
            ),
            take: concat!("UPDATE leaf_guard SET server_uid = @leaf_server WHERE id = ", $row),
            insert_missing: concat!(
                "INSERT INTO leaf_guard (id, server_uid) VALUES (",
                $row,
                ", @leaf_server)"
            ),
        }
    };
}

impl Dialect for Mysql {
    type Db = MySql;
    type Connections = ServerPool<Self>;

    const NAME: &'static str = "mysql";
    const TYPE_OF: &'static str = "JSON_TYPE(JSON_EXTRACT(JSON_ARRAY({}), '$[0]'))";
    const QUOTE: char = '`';
    const INTEGER: &'static str = "SIGNED";
    /// MariaDB 10.11 finds no tag of a list if the column's character set cannot hold one of them.
    const LISTS_ANY_NAME: bool = false;

    /// `leaf_guard` comes first: `sql/administration.rs` relies on that. `leaf_alloc` is the table
    /// as the Java Leaf's own script makes it, but in a character set that holds every tag.
    const SEGMENT_TABLES: &'static [Table] = &[
        Table {
            name: "leaf_guard",
            statements: "\
CREATE TABLE leaf_guard (
    id         TINYINT      NOT NULL,
    server_uid VARCHAR(255) NOT NULL,
    PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT INTO leaf_guard (id, server_uid) VALUES (1, ''), (2, ''), (3, '0');
",
        },
        Table {
            name: "leaf_alloc",
            statements: "\
CREATE TABLE leaf_alloc (
    biz_tag     VARCHAR(128) NOT NULL DEFAULT '',
    max_id      BIGINT       NOT NULL DEFAULT 1,
    step        INT          NOT NULL,
    description VARCHAR(256) NULL DEFAULT NULL,
    update_time TIMESTAMP    NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
    PRIMARY KEY (biz_tag)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
",
        },
        Table {
            name: "leaf_tag_settings",
            statements: "\
CREATE TABLE leaf_tag_settings (
    biz_tag  VARCHAR(128)  NOT NULL,
    settings VARCHAR(2000) NOT NULL,
    PRIMARY KEY (biz_tag)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
",
        },
        Table {
            name: "leaf_sequence",
            statements: "\
CREATE TABLE leaf_sequence (
    biz_tag         VARCHAR(128)  NOT NULL,
    max_id          BIGINT        NOT NULL,
    step            INT           NOT NULL,
    meaning         VARCHAR(2000) NOT NULL,
    failover_margin BIGINT        NULL DEFAULT NULL,
    skip            BIGINT        NOT NULL DEFAULT 0,
    description     VARCHAR(256)  NULL DEFAULT NULL,
    update_time     TIMESTAMP     NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
    PRIMARY KEY (biz_tag)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
",
        },
    ];

    const ALLOC: TagStatements = tags!(
        "leaf_alloc",
        "1",
        true,
        "",
        "? + max_id)",
        "",
        ") VALUES (?, ?, ?, ?)",
        "",
        "NULL",
        ""
    );
    const SEQUENCE: TagStatements = tags!(
        "leaf_sequence",
        "2",
        false,
        ", meaning, failover_margin, skip",
        // MySQL assigns from left to right: in the second assignment `max_id` is the new value, so
        // that `max_id - amount` is where this range starts.
        "? + GREATEST(max_id, ? + skip)), skip = IF(max_id - ? = ? + skip, 0, skip)",
        ", meaning",
        ", meaning, failover_margin) VALUES (?, ?, ?, ?, ?, ?)",
        " AND meaning = ?",
        "failover_margin",
        "skip = skip + COALESCE(failover_margin, 0), "
    );
    const SET_MEANING: &'static str = of_tag!("UPDATE leaf_sequence SET meaning = ?");
    // From left to right: `skip` is the former one in the first assignment.
    const ENTER_PERIOD: Option<&'static str> = Some(of_tag!(
        "UPDATE leaf_sequence SET max_id = ? + skip, skip = 0",
        " AND max_id < ? + skip AND skip > 0"
    ));

    const RESERVE: &'static str = concat!(
        "INSERT INTO leaf_sequence (biz_tag, max_id, step, meaning) SELECT name, 0, 1, 'reserved' FROM ",
        names!()
    );
    const RELEASE: &'static str = among_tags!("DELETE FROM leaf_sequence");
    const SETTINGS: SettingsStatements = SettingsStatements {
        set_many: concat!(
            "REPLACE INTO leaf_tag_settings (settings, biz_tag) SELECT ?, name FROM ",
            names!()
        ),
        read: of_tag!("SELECT biz_tag, settings FROM leaf_tag_settings"),
        read_many: among_tags!("SELECT biz_tag, settings FROM leaf_tag_settings"),
        read_all: "SELECT biz_tag, settings FROM leaf_tag_settings",
        delete: of_tag!("DELETE FROM leaf_tag_settings"),
        insert: "INSERT INTO leaf_tag_settings (biz_tag, settings) VALUES (?, ?)",
        replace: "UPDATE leaf_tag_settings SET settings = ? WHERE biz_tag = ? AND settings = ?",
    };

    const MARGIN: Option<MarginStatements> = Some(MarginStatements {
        read: "SELECT server_uid FROM leaf_guard WHERE id = 3",
        replace: "UPDATE leaf_guard SET server_uid = ? WHERE id = 3 AND server_uid = ?",
        insert_missing: "INSERT IGNORE INTO leaf_guard (id, server_uid) VALUES (3, '0')",
    });

    const FENCES: FenceStatements = FenceStatements {
        list: "SELECT CAST(worker_id AS SIGNED), nonce, record FROM leaf_worker_fence \
               ORDER BY worker_id",
        read: "SELECT CAST(worker_id AS SIGNED), nonce, record FROM leaf_worker_fence \
               WHERE worker_id = ?",
        update: concat!(
            "UPDATE leaf_worker_fence SET nonce = ?, record = ?, seen_at = ",
            now!(),
            " WHERE worker_id = ? AND nonce = ? AND record = ? AND ",
            is_writer!(),
            " AND (SELECT since FROM leaf_worker_guard WHERE id = 1) = ?"
        ),
        insert: concat!(
            "INSERT INTO leaf_worker_fence (nonce, record, seen_at, worker_id) SELECT ?, ?, ",
            now!(),
            ", ? FROM leaf_worker_guard WHERE id = 1 AND ",
            is_writer!(),
            " AND since = ?"
        ),
        peers: concat!("SELECT record FROM leaf_worker_fence WHERE seen_at >= ", now!(), " - ?"),
        writer: Some(WriterStatements {
            read: concat!(
                "SELECT since, CAST(server_uid AS CHAR), COALESCE(",
                is_writer!(),
                ", FALSE) FROM leaf_worker_guard WHERE id = 1"
            ),
            lock: "SELECT id FROM leaf_worker_guard WHERE id = 1 FOR UPDATE",
            used: "SELECT COUNT(*) > 0 FROM leaf_worker_fence",
            take: concat!(
                "REPLACE INTO leaf_worker_guard (id, server_uid, since) \
                 VALUES (1, @leaf_server, IF(?, 0, GREATEST(?, ",
                now!(),
                ")))"
            ),
            fill_empty: "UPDATE leaf_worker_guard SET server_uid = @leaf_server WHERE id = 1 AND server_uid = ''",
        }),
    };

    const BEGIN: Option<&'static str> = Some("BEGIN");
    // A range counts once its statement was answered: it must be committed by then, and a commit
    // must not begin another transaction. `of_generation` needs this isolation level. A narrow
    // column must refuse a value that it cannot hold. A statement whose caller has left must not
    // wait much longer for its lock. `skip` is computed from the new `max_id`, so columns must be
    // assigned from left to right: the modes SIMULTANEOUS_ASSIGNMENT and ORACLE must be off.
    // EMPTY_STRING_IS_NULL must be off, too, since the tables cannot be made in it. All three are
    // replaced by STRICT_TRANS_TABLES, which is wanted anyway, and not by '', which may be NULL
    // here: then the whole text would be NULL.
    const PREPARE: Option<&'static str> = Some(
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
        SET autocommit = 1, completion_type = 0, \
        sql_mode = CONCAT(REPLACE(REPLACE(REPLACE(@@sql_mode, \
        'EMPTY_STRING_IS_NULL', 'STRICT_TRANS_TABLES'), 'ORACLE', 'STRICT_TRANS_TABLES'), \
        'SIMULTANEOUS_ASSIGNMENT', 'STRICT_TRANS_TABLES'), ',STRICT_TRANS_TABLES'), \
        innodb_lock_wait_timeout = 1, lock_wait_timeout = 2",
    );
    const LIMIT_LOCKS: Option<&'static str> =
        Some("SET SESSION innodb_lock_wait_timeout = 10, wait_timeout = 10");
    const SERVER_CLOCK: Option<&'static str> = Some(concat!("SELECT ", now!()));
    const TABLE_EXISTS: &'static str = "SELECT COUNT(*) > 0 FROM information_schema.tables \
                                        WHERE table_schema = DATABASE() AND table_name = ?";
    const ERROR_MEANING: fn(&sqlx::Error) -> ErrorMeaning = errors::meaning;

    run_statements!(
        MySql,
        |query, tag| query.bind(tag.clone()).bind(tag.into_bytes()),
        |query, tags| {
            let mut tags = tags.iter();
            let mut tag = "";
            (0..MOST_RECORDS).fold(query, |query, _| {
                tag = tags.next().map_or(tag, Tag::as_str);
                query.bind(tag.to_owned())
            })
        },
        |query, names| {
            let lines: Vec<&str> = names.iter().map(Tag::as_str).collect();
            query.bind(lines.join("\n")).bind(lines.len() as i64)
        }
    );

    async fn set_max_id(
        connection: &mut MySqlConnection,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<Option<i64>, sqlx::Error> {
        let done = Self::execute(connection, statement, values).await?;
        Ok((done.rows_affected() == 1).then(|| done.last_insert_id().cast_signed()))
    }

    async fn identify_server(
        connection: &mut MySqlConnection,
        guard: &FailoverGuard,
    ) -> Result<(), sqlx::Error> {
        server_name::set(connection, guard).await
    }

    async fn risks(connection: &mut MySqlConnection) -> Result<Vec<String>, sqlx::Error> {
        risks::of(connection).await
    }

    async fn losses(connection: &mut MySqlConnection) -> Result<Vec<String>, sqlx::Error> {
        risks::losses_of(connection).await
    }

    async fn read_fences(
        connection: &mut MySqlConnection,
        worker: Option<i64>,
        failed_over_at: i64,
        mirrored: bool,
    ) -> Result<Vec<StoredWorker<FenceVersion>>, sqlx::Error> {
        match mirrored {
            true => mirror::read(connection, worker, failed_over_at).await,
            false => fences::read::<Self>(connection, worker, failed_over_at).await,
        }
    }

    /// Changes fence and mirror together, if both are still what was read. For a worker id that has
    /// both, this is one statement, since each holder sends it every few seconds.
    async fn replace_fence(
        connection: &mut MySqlConnection,
        worker: i64,
        read: &FenceVersion,
        record: &WorkerRecord,
        mirrored: bool,
    ) -> Result<bool, sqlx::Error> {
        if !mirrored {
            return fences::replace::<Self>(connection, worker, read, record).await;
        }
        if let (Some((nonce, text)), Some((ip_port, Some(ceiling)))) = (&read.record, &read.mirror)
        {
            let (next_nonce, next_text) = (record.fence.nonce.to_string(), record.encode());
            let (ip, port) = mirror::ip_and_port(&record.holder);
            let values = [
                Value::Text(&next_nonce),
                Value::Text(&next_text),
                Value::Text(ip),
                Value::Text(port),
                Value::Text(record.holder.as_str()),
                Value::Int(fences::mirrored_ceiling(record)),
                Value::Int(worker),
                Value::Text(nonce),
                Value::Text(text),
                Value::Int(read.failed_over_at),
                Value::Text(ip_port),
                Value::Int(*ceiling),
            ];
            // A duplicate: another row has the name of the new holder.
            return Self::write(connection, UPDATE_BOTH, &values).await;
        }
        Self::run_text(connection, "BEGIN").await?;
        let written = fences::replace::<Self>(connection, worker, read, record).await?
            && mirror::write(connection, worker, read, record).await?;
        Self::run_text(connection, if written { "COMMIT" } else { "ROLLBACK" }).await?;
        Ok(written)
    }
}
