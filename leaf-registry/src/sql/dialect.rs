//! What differs between the SQL databases: statements, connections and the meaning of errors.
//!
//! Invariant of every dialect: what a statement changed is durable once [`Connections::finish`] has
//! returned `Ok`, and an allocation computes its range from what its own statement answered.
//!
//! The code of this folder also relies on this: the database accepts `COMMIT` and `ROLLBACK`, sent
//! unprepared ([`Dialect::run_text`]); a duplicate key is
//! [`StoreErrorKind::TagExists`]. If the database can fail over, it accepts `BEGIN`, too,
//! the dialect has the tables `leaf_guard` and `leaf_worker_guard`, and in a segment store its
//! `prepare` and `identify_server` tell [`FailoverGuard::found`] whether `leaf_guard` is usable.
//! How a statement knows its server (a variable of the session, a function) is the dialect's own.

use std::fmt;

use leaf_segment::StoreErrorKind;
use leaf_snowflake::{StoredWorker, WorkerRecord};
use sqlx::Database;

use super::connections::Connections;
use super::failover_guard::FailoverGuard;
use super::fences::FenceVersion;
use super::values::{Cells, Column, Value};
use crate::Table;

/// The type of a dialect's connections.
pub(crate) type Connection<D> = <<D as Dialect>::Db as Database>::Connection;

/// The statements about the settings of tags, on `leaf_tag_settings`. Each comment gives the
/// parameters in their order, and the columns behind an arrow.
#[derive(Debug)]
pub(crate) struct SettingsStatements {
    /// tag -> tag, settings.
    pub(crate) read: &'static str,
    /// tags -> the columns of `read`, for those that have some.
    pub(crate) read_many: &'static str,
    /// -> the columns of `read`, for all tags that have some.
    pub(crate) read_all: &'static str,
    /// tag.
    pub(crate) delete: &'static str,
    /// text, names (as [`Value::Names`]): that of each of them, in the place of what is there.
    pub(crate) set_many: &'static str,
    /// name, text. Of a name that is no tag's.
    pub(crate) insert: &'static str,
    /// text, name, the text before.
    pub(crate) replace: &'static str,
}

/// The statements about one of the two tables of tags. `leaf_alloc` has the plain tags, as a Java
/// Leaf knows them; `leaf_sequence` has all others, with their meaning in a column more. Comments
/// as in [`SettingsStatements`].
#[derive(Debug)]
pub(crate) struct TagStatements {
    /// `leaf_alloc`: amount, tag, expected step, greatest start. Sets `max_id` to `max_id` +
    /// amount.
    ///
    /// `leaf_sequence`: amount, least, amount, least, tag, expected step, greatest start, expected
    /// meaning. (Twice, since placeholders of MySQL have no numbers.) Here *least* is the first
    /// number of the running period. Sets `max_id` to max(`max_id`, least + `skip`) + amount.
    ///
    /// No row is changed if `max_id` is above the greatest start. Run by [`Dialect::set_max_id`].
    ///
    /// Why the column `skip`: a promoted replica may lack the first allocation of the running
    /// period. Its `max_id` is then still in an earlier period, and a margin added to it does not
    /// reach the numbers that were granted in the running one. So a jump also adds the tag's own
    /// margin, if it has one, to `skip`: that many numbers are left out when the tag next enters a
    /// new period. The allocation that enters it sets `skip` to 0.
    pub(crate) allocate: &'static str,
    /// `allocate`, only on the server that allocated last.
    pub(crate) allocate_guarded: &'static str,
    /// tag -> tag, `max_id`, step, description; from `leaf_sequence` also the meaning.
    pub(crate) read: &'static str,
    /// tags -> the columns of `read`, for those that are there; in MySQL perhaps also for names that
    /// the collation takes for the same.
    pub(crate) read_many: &'static str,
    /// name (as [`Value::Text`]), how many -> the names behind it, in the order of the table.
    pub(crate) names_after: &'static str,
    /// name, another name (both as [`Value::Text`]), how many -> the names between them.
    pub(crate) names_between: &'static str,
    /// names (as [`Value::Names`]), tag. Makes a row for each name that is a copy of the tag's row.
    pub(crate) copy: &'static str,
    /// Whether this is `leaf_alloc`.
    pub(crate) is_plain: bool,
    /// tag (as [`Value::Text`]), `max_id`, step, description; in `leaf_sequence` also the meaning
    /// and the row's own failover margin.
    pub(crate) create: &'static str,
    /// `max_id`, step (NULL leaves it as it is), tag. For a row that is locked.
    pub(crate) update: &'static str,
    /// settings, tag. Meets no row when there is no such tag.
    pub(crate) set_settings: &'static str,
    /// tag -> the columns of `read`; nobody else changes the row until the transaction ends.
    pub(crate) lock: &'static str,
    /// new `max_id`, tag, expected `max_id`, tag, pattern, count. Changes the row only if the tag
    /// has `count` (0 or 1) rows of settings that match the pattern of LIKE. The pattern contains
    /// the generation in which the ids were granted.
    pub(crate) give_back: &'static str,
    /// `give_back`, only on the server that allocated last.
    pub(crate) give_back_guarded: &'static str,
    /// new `max_id`, tag, expected `max_id`.
    pub(crate) replace_max_id: &'static str,
    /// `replace_max_id`, only on the server that allocated last.
    pub(crate) replace_max_id_guarded: &'static str,
    /// tag.
    pub(crate) delete: &'static str,
    /// The table's failover guard; `None` where the database cannot fail over.
    pub(crate) guard: Option<GuardStatements>,
}

/// The statements of a table's failover guard, on its row of `leaf_guard`: 1 for `leaf_alloc`, 2
/// for `leaf_sequence`. A row each, so that a user without rights on one table can guard the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuardStatements {
    /// The table.
    pub(crate) table: &'static str,
    /// -> whether this server is the one that allocated last (1).
    pub(crate) allocated_last: &'static str,
    /// Makes this server the one that allocated last, where the guard's row names no server yet.
    pub(crate) fill_empty: &'static str,
    /// Run by [`Dialect::run_text`]. Bounds how long a jump that was broken off can hold its locks.
    pub(crate) limit_jump: &'static str,
    /// Locks the guard's row -> the server that allocated last, this server.
    pub(crate) lock: &'static str,
    /// Margin in ids, margin in steps. To `max_id` of every tag of the table that is not sealed it
    /// adds the tag's own margin (`failover_margin`). Where the tag has none, it adds the margin in
    /// ids, or the margin in steps multiplied by the tag's step, whichever is greater. The sum
    /// stays below `SEALED`. In `leaf_sequence` it adds the tag's own margin to `skip`, too.
    pub(crate) advance_all: &'static str,
    /// Makes this server the one that allocated last.
    pub(crate) take: &'static str,
    /// `take`, where the guard's row is missing.
    pub(crate) insert_missing: &'static str,
}

/// The statements about the greatest margin of any node, in row 3 of `leaf_guard`, as digits.
#[derive(Debug)]
pub(crate) struct MarginStatements {
    /// -> the margin.
    pub(crate) read: &'static str,
    /// new margin, the margin as it was read.
    pub(crate) replace: &'static str,
    /// Makes the row with the margin 0 where it is not there: a table of an earlier version.
    pub(crate) insert_missing: &'static str,
}

/// The statements of a store of worker ids. Comments as in [`SettingsStatements`].
#[derive(Debug)]
pub(crate) struct FenceStatements {
    /// -> worker id, nonce, record of all, in the order of worker ids.
    pub(crate) list: &'static str,
    /// worker id -> the columns of `list`.
    pub(crate) read: &'static str,
    /// new nonce, new record, worker id, nonce, record; if the database can fail over (`writer` is
    /// `Some`), also `leaf_worker_guard.since` (when the last failover was noticed) as it was read.
    pub(crate) update: &'static str,
    /// nonce, record, worker id; if the database can fail over, also `leaf_worker_guard.since` as
    /// it was read.
    pub(crate) insert: &'static str,
    /// milliseconds -> the records that were written within that time.
    pub(crate) peers: &'static str,
    /// `Some` if the database can fail over.
    pub(crate) writer: Option<WriterStatements>,
}

/// The statements about the server that writes worker ids, on `leaf_worker_guard`.
#[derive(Debug)]
pub(crate) struct WriterStatements {
    /// -> when the last failover was noticed (Unix ms; 0: never), the writer's name, whether it is
    /// this server (1).
    pub(crate) read: &'static str,
    /// Locks the row.
    pub(crate) lock: &'static str,
    /// -> 1 when a worker id was ever claimed.
    pub(crate) used: &'static str,
    /// whether the table is new (1: no worker id was ever claimed and no server is named; else 0),
    /// least value of `since` in Unix ms. Makes this server the writer, and sets `since`: in a new
    /// table to 0, else to the server's clock or that least value, whichever is later.
    pub(crate) take: &'static str,
    /// Makes this server the writer in a table that this connection has made, where the row names
    /// no server yet.
    pub(crate) fill_empty: &'static str,
}

/// What the errors of a database mean.
#[derive(Debug)]
pub(crate) struct ErrorMeanings {
    /// What kind of failure it is.
    pub(crate) kind: fn(&sqlx::Error) -> StoreErrorKind,
    /// Whether the statement lost against another transaction and was undone whole; the connection
    /// is in order.
    pub(crate) is_conflict: fn(&sqlx::Error) -> bool,
    /// Whether a table is missing.
    pub(crate) is_missing_table: fn(&sqlx::Error) -> bool,
    /// Whether a table that was to be made exists already.
    pub(crate) is_existing_table: fn(&sqlx::Error) -> bool,
    /// Whether a column is missing.
    pub(crate) is_missing_column: fn(&sqlx::Error) -> bool,
    /// Whether a table that need not be there is missing, or this user has no right on it.
    pub(crate) is_absent: fn(&sqlx::Error) -> bool,
    /// Whether the server, or this user there, has no connection left.
    pub(crate) has_no_connection_left: fn(&sqlx::Error) -> bool,
}

/// One database.
pub(crate) trait Dialect: fmt::Debug + Send + Sync + Sized + 'static {
    /// Its driver.
    type Db: Database;
    /// Its connections.
    type Connections: Connections<Db = Self::Db>;

    /// Its name in texts.
    const NAME: &'static str;
    /// What stands around the name of a table or column.
    const QUOTE: char = '"';
    /// The type of integers of 64 bits in a CAST.
    const INTEGER: &'static str = "BIGINT";
    /// What tells the type of `{}`: `integer`, say.
    const TYPE_OF: &'static str;
    /// Whether allocations that come at the same time share a transaction: for a database that has one writer at a
    /// time and does not group commits itself (SQLite).
    const SHARES_COMMITS: bool = false;
    /// Whether a name that is not ASCII may stand in a list of tags ([`Value::Tags`]).
    const LISTS_ANY_NAME: bool = true;
    /// The tables of a segment store.
    const SEGMENT_TABLES: &'static [Table];
    /// The statements about `leaf_alloc`.
    const ALLOC: TagStatements;
    /// The statements about `leaf_sequence`.
    const SEQUENCE: TagStatements;
    /// new meaning, tag. For a row of `leaf_sequence` that is locked.
    const SET_MEANING: &'static str;
    /// Lets a counter that skips some numbers enter a period by its first number, behind those: first
    /// number, name, first number. Nothing happens where it has entered that. Only where tags jump.
    const ENTER_PERIOD: Option<&'static str> = None;
    /// names (as [`Value::Names`]). Makes a row in `leaf_sequence` for each, that locks the name.
    const RESERVE: &'static str;
    /// tags. Deletes these rows.
    const RELEASE: &'static str;
    /// The statements about settings.
    const SETTINGS: SettingsStatements;
    /// `None` where the database cannot fail over.
    const MARGIN: Option<MarginStatements> = None;
    /// The statements of a store of worker ids.
    const FENCES: FenceStatements;
    /// Begins a transaction; `None` where [`Connections::begin`] has begun one. In a transaction,
    /// first lock or insert the row that makes transactions wait for one another, and only then
    /// read without a lock: MySQL takes the snapshot for all plain SELECTs at the first of them.
    const BEGIN: Option<&'static str>;
    /// Run by [`Dialect::run_text`]. Bounds how long a connection waits for locks of others, and
    /// how long it can hold its own if this process or its host dies half-way. `None` where locks
    /// end with the process.
    const LIMIT_LOCKS: Option<&'static str>;
    /// -> the server's clock, Unix milliseconds; `None` where the database has no server.
    const SERVER_CLOCK: Option<&'static str>;
    /// name -> whether the table exists (1).
    const TABLE_EXISTS: &'static str;
    /// What its errors mean.
    const ERRORS: ErrorMeanings;

    /// Runs a statement.
    fn execute(
        connection: &mut Connection<Self>,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<<Self::Db as Database>::QueryResult, sqlx::Error>> + Send;

    /// Runs a statement and reads its rows to the end.
    fn fetch(
        connection: &mut Connection<Self>,
        statement: &'static str,
        values: &[Value<'_>],
        columns: &'static [Column],
    ) -> impl Future<Output = Result<Vec<Cells>, sqlx::Error>> + Send;

    /// Runs statements without parameters as text.
    fn run_text(
        connection: &mut Connection<Self>,
        statements: &'static str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// How many rows a statement met.
    fn affected(done: &<Self::Db as Database>::QueryResult) -> u64;

    /// Runs a statement that sets `max_id`, and returns its new value; `None` when it met no row.
    /// By default the statement returns it.
    fn set_max_id(
        connection: &mut Connection<Self>,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send {
        async move {
            let rows = Self::fetch(connection, statement, values, &[Column::Int]).await?;
            Ok(rows.first().and_then(|row| row.int(0)))
        }
    }

    /// Sets what must hold on a new connection of a [`ServerPool`](super::connections::ServerPool),
    /// and finds out who its server is.
    fn prepare(
        connection: &mut Connection<Self>,
        guard: &FailoverGuard,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        Self::identify_server(connection, guard)
    }

    /// Finds out who the connection's server is, and whether the guard is on. Both may have changed
    /// since the connection was made.
    fn identify_server(
        connection: &mut Connection<Self>,
        guard: &FailoverGuard,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = (connection, guard);
        async { Ok(()) }
    }

    /// What could cost ids as the server is set up, each with the way out, beside [`Self::losses`].
    fn risks(
        connection: &mut Connection<Self>,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send {
        let _ = connection;
        async { Ok(Vec::new()) }
    }

    /// Why the server may lose what it has acknowledged, each with the way out. There is nothing to ask a
    /// file: each connection sets the settings that matter itself.
    fn losses(
        connection: &mut Connection<Self>,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send {
        let _ = connection;
        async { Ok(Vec::new()) }
    }

    /// Reads all fences or one, with what a Java Leaf keeps beside them. The argument
    /// `failed_over_at`, which the caller has read from this server, is copied into each result.
    fn read_fences(
        connection: &mut Connection<Self>,
        worker: Option<i64>,
        failed_over_at: i64,
        mirrored: bool,
    ) -> impl Future<Output = Result<Vec<StoredWorker<FenceVersion>>, sqlx::Error>> + Send {
        let _ = mirrored;
        super::fences::read::<Self>(connection, worker, failed_over_at)
    }

    /// Writes a record, with its mirror for a Java Leaf, if the stored one is still what was read;
    /// tells whether it did.
    fn replace_fence(
        connection: &mut Connection<Self>,
        worker: i64,
        read: &FenceVersion,
        record: &WorkerRecord,
        mirrored: bool,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        let _ = mirrored;
        super::fences::replace::<Self>(connection, worker, read, record)
    }
}
