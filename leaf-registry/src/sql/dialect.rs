//! What differs between the SQL databases: statements, connections and the meaning of errors.
//!
//! Invariant of every dialect: what a statement changed is durable once [`Connections::finish`] has
//! returned `Ok`, and an allocation computes its range from what its own statement answered.
//!
//! The code in this folder also requires that the database accepts `COMMIT` and `ROLLBACK`, sent
//! unprepared ([`Dialect::run_text`]), and that a duplicate key is [`ErrorMeaning::Duplicate`]. If the
//! database can fail over, it must also accept `BEGIN`; the dialect must have the tables
//! `leaf_guard` and `leaf_worker_guard`; and in a segment store its `identify_server` must report
//! to [`FailoverGuard::found`] whether `leaf_guard` is usable. Each dialect chooses by what
//! its statements identify their server: a variable of the session, say, or a function.

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
/// parameters in their order and, behind an arrow, the columns of the result.
#[derive(Debug)]
pub(crate) struct SettingsStatements {
    /// tag -> tag, settings.
    pub(crate) read: &'static str,
    /// tags -> the columns of `read`, for the tags that have settings.
    pub(crate) read_many: &'static str,
    /// -> the columns of `read`, for all tags that have settings.
    pub(crate) read_all: &'static str,
    /// tag.
    pub(crate) delete: &'static str,
    /// text, names (as [`Value::Names`]). Sets the settings of each name to the text, in place of
    /// any earlier ones.
    pub(crate) set_many: &'static str,
    /// name, text. For a note, whose name is not that of a tag.
    pub(crate) insert: &'static str,
    /// new text, name, expected text. For a note.
    pub(crate) replace: &'static str,
}

/// The statements about one of the two tables of tags. `leaf_alloc` has the plain tags, with the
/// Java Leaf's columns; `leaf_sequence` has all other tags, with more columns, among them the
/// meaning. Comments have the form described at [`SettingsStatements`].
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
    /// tags -> the columns of `read`, for the tags that exist; in MySQL perhaps also for names that
    /// the collation treats as equal.
    pub(crate) read_many: &'static str,
    /// name (as [`Value::Text`]), limit -> the names behind this name, in the table's order.
    pub(crate) names_after: &'static str,
    /// lower name, upper name (both as [`Value::Text`]), limit -> the names between the two.
    pub(crate) names_between: &'static str,
    /// names (as [`Value::Names`]), tag. Inserts a copy of the tag's row for each name.
    pub(crate) copy: &'static str,
    /// Whether this is `leaf_alloc`.
    pub(crate) is_plain: bool,
    /// tag (as [`Value::Text`]), `max_id`, step, description; in `leaf_sequence` also the meaning
    /// and the row's own failover margin.
    pub(crate) create: &'static str,
    /// `max_id`, step (NULL keeps the old step), tag. For a row that is locked.
    pub(crate) update: &'static str,
    /// settings, tag. Changes no row if the tag does not exist.
    pub(crate) set_settings: &'static str,
    /// tag -> the columns of `read`. Locks the row until the transaction ends.
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
/// for `leaf_sequence`. Each table has its own row, so that a user without rights on one table can
/// guard the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuardStatements {
    /// The name of the guarded table.
    pub(crate) table: &'static str,
    /// -> whether this server is the one that allocated last (1).
    pub(crate) allocated_last: &'static str,
    /// Records this server as the one that allocated last, if the guard's row names no server yet.
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
    /// Records this server as the one that allocated last.
    pub(crate) take: &'static str,
    /// Inserts the guard's row, where it is missing, with this server as the one that allocated
    /// last.
    pub(crate) insert_missing: &'static str,
}

/// The statements about the greatest margin of any node, in row 3 of `leaf_guard`, as digits.
#[derive(Debug)]
pub(crate) struct MarginStatements {
    /// -> the margin.
    pub(crate) read: &'static str,
    /// new margin, the margin as it was read.
    pub(crate) replace: &'static str,
    /// Inserts the row with the margin 0 if it is missing, as in a table that an earlier version
    /// made.
    pub(crate) insert_missing: &'static str,
}

/// The statements of a store of worker ids. Comments as in [`SettingsStatements`].
#[derive(Debug)]
pub(crate) struct FenceStatements {
    /// -> worker id, nonce and record, for all worker ids, in their order.
    pub(crate) list: &'static str,
    /// worker id -> the columns of `list`.
    pub(crate) read: &'static str,
    /// new nonce, new record, worker id, nonce, record; if the database can fail over (`writer` is
    /// `Some`), also `leaf_worker_guard.since` (when the last failover was noticed) as it was read.
    pub(crate) update: &'static str,
    /// nonce, record, worker id; if the database can fail over, also `leaf_worker_guard.since` as
    /// it was read.
    pub(crate) insert: &'static str,
    /// milliseconds -> the records that were written within this time before now.
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
    /// least value of `since` in Unix ms. Records this server as the writer, and sets `since`: in a
    /// new table to 0, else to the server's clock or that least value, whichever is later.
    pub(crate) take: &'static str,
    /// Records this server as the writer if the row names no server yet: for a table that this
    /// connection has just made.
    pub(crate) fill_empty: &'static str,
}

/// What an error of a database means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorMeaning {
    /// The statement lost a conflict with another transaction and was rolled back completely, so
    /// that the connection can be used again.
    Conflict,
    /// A table is missing.
    MissingTable,
    /// A table could not be made because it exists already.
    ExistingTable,
    /// A column is missing.
    MissingColumn,
    /// This user has no right on a table.
    Forbidden,
    /// The limit of connections of the server, or of this user, is reached.
    NoConnectionLeft,
    /// A duplicate key.
    Duplicate,
    /// A number that its column cannot hold.
    OutOfRange,
    /// A tag that the character set cannot hold: it is in no row.
    Unencodable,
    /// Another attempt may succeed.
    Unavailable,
    /// Anything else.
    Refused,
}

impl ErrorMeaning {
    /// The meaning of an error that no server sent.
    pub(crate) const fn of_driver(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Configuration(_) | sqlx::Error::ColumnDecode { .. } => Self::Refused,
            _ => Self::Unavailable,
        }
    }

    /// Returns the kind of store error.
    pub(crate) const fn kind(self) -> StoreErrorKind {
        match self {
            Self::Conflict => StoreErrorKind::Conflict,
            Self::Duplicate => StoreErrorKind::TagExists,
            Self::OutOfRange => StoreErrorKind::Exhausted,
            Self::Unencodable => StoreErrorKind::UnknownTag,
            Self::NoConnectionLeft | Self::Unavailable => StoreErrorKind::Unavailable,
            _ => StoreErrorKind::Refused,
        }
    }

    /// Whether an optional table is missing, or this user has no right on it.
    pub(crate) const fn is_absent(self) -> bool {
        matches!(self, Self::MissingTable | Self::Forbidden)
    }
}

/// The statements, the connections and the meaning of the errors of one database. Comments of
/// statements have the form described at [`SettingsStatements`].
pub(crate) trait Dialect: fmt::Debug + Send + Sync + Sized + 'static {
    /// The database's driver.
    type Db: Database;
    /// The connections to the database.
    type Connections: Connections<Db = Self::Db>;

    /// The name of the database in error texts.
    const NAME: &'static str;
    /// The quote character around the name of a table or column.
    const QUOTE: char = '"';
    /// The type of integers of 64 bits in a CAST.
    const INTEGER: &'static str = "BIGINT";
    /// An SQL expression that yields the type (`integer`, say) of the expression that replaces
    /// `{}`.
    const TYPE_OF: &'static str;
    /// Whether allocations that come at the same time share a transaction: for a database that has
    /// one writer at a time and does not group commits itself (SQLite).
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
    /// first number of the running period, tag, the same number. If `skip` is above 0 and `max_id`
    /// is below the first number plus `skip`, sets `max_id` to that sum and `skip` to 0; otherwise
    /// changes nothing. `None` where tags do not jump.
    const ENTER_PERIOD: Option<&'static str> = None;
    /// names (as [`Value::Names`]). Inserts a row into `leaf_sequence` for each name, which locks
    /// the name.
    const RESERVE: &'static str;
    /// tags. Deletes the rows that [`Self::RESERVE`] inserted.
    const RELEASE: &'static str;
    /// The statements about settings.
    const SETTINGS: SettingsStatements;
    /// The statements about the greatest failover margin; `None` where the database cannot fail
    /// over.
    const MARGIN: Option<MarginStatements> = None;
    /// The statements of a store of worker ids.
    const FENCES: FenceStatements;
    /// Begins a transaction; `None` where [`Connections::begin`] has begun one. In a transaction,
    /// first lock or insert the row that makes transactions wait for one another, and only then
    /// read without a lock: MySQL takes the snapshot for all plain SELECTs at the first of them.
    const BEGIN: Option<&'static str>;
    /// Run by [`Dialect::run_text`]. Sets the session variables that Leaf needs on a new connection
    /// of a [`ServerPool`](super::connections::ServerPool).
    const PREPARE: Option<&'static str>;
    /// Run by [`Dialect::run_text`]. Bounds how long a connection waits for locks of others, and
    /// how long it can hold its own if this process or its host dies half-way. `None` where locks
    /// end with the process.
    const LIMIT_LOCKS: Option<&'static str>;
    /// -> the server's clock, Unix milliseconds; `None` where the database has no server.
    const SERVER_CLOCK: Option<&'static str>;
    /// name -> whether the table exists (1).
    const TABLE_EXISTS: &'static str;
    /// Classifies the errors of the database and of its driver.
    const ERROR_MEANING: fn(&sqlx::Error) -> ErrorMeaning;

    /// Runs a statement.
    fn execute(
        connection: &mut Connection<Self>,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<<Self::Db as Database>::QueryResult, sqlx::Error>> + Send;

    /// Runs a statement that writes under a condition. Returns `false` if it wrote nothing: the
    /// condition did not hold, or the key exists already. (A joined UPDATE affects two rows, so any
    /// number of rows counts.)
    fn write(
        connection: &mut Connection<Self>,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async move {
            match Self::execute(connection, statement, values).await {
                Ok(done) => Ok(Self::affected(&done) > 0),
                Err(error) if (Self::ERROR_MEANING)(&error) == ErrorMeaning::Duplicate => Ok(false),
                Err(error) => Err(error),
            }
        }
    }

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

    /// How many rows a statement affected.
    fn affected(done: &<Self::Db as Database>::QueryResult) -> u64;

    /// Runs a statement that sets `max_id`, and returns its new value; `None` if no row was
    /// changed. By default the statement itself returns the value as a row.
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

    /// Identifies the connection's server, and reports to `guard` whether the guard's table is
    /// usable. Both may have changed since the connection was made.
    fn identify_server(
        connection: &mut Connection<Self>,
        guard: &FailoverGuard,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = (connection, guard);
        async { Ok(()) }
    }

    /// Lists what could cost ids in the server's setup, each with a remedy, except
    /// [`Self::losses`].
    fn risks(
        connection: &mut Connection<Self>,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send {
        let _ = connection;
        async { Ok(Vec::new()) }
    }

    /// Lists why the server may lose what it has acknowledged, each with a remedy. Empty by
    /// default, as for SQLite: its connections set the settings that matter themselves.
    fn losses(
        connection: &mut Connection<Self>,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send {
        let _ = connection;
        async { Ok(Vec::new()) }
    }

    /// Reads all fences or one; if `mirrored`, also what a Java Leaf keeps beside them. The caller
    /// has read `failed_over_at` from the same server; it is copied into each result.
    fn read_fences(
        connection: &mut Connection<Self>,
        worker: Option<i64>,
        failed_over_at: i64,
        mirrored: bool,
    ) -> impl Future<Output = Result<Vec<StoredWorker<FenceVersion>>, sqlx::Error>> + Send {
        let _ = mirrored;
        super::fences::read::<Self>(connection, worker, failed_over_at)
    }

    /// Writes a record, and if `mirrored` its mirror for a Java Leaf. Does so only if the stored
    /// record is still what was read; returns whether it did.
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
