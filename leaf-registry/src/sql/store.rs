//! The segment store of every SQL database.
//!
//! Invariant: an allocation is one statement. Its range is computed from the value that this
//! statement returned and the amount that this caller added, once the change is durable. No second
//! statement reads the value back: a Java Leaf may write the same row at the same time, and its
//! value must not be mistaken for that of this allocation.
//!
//! A plain tag is in `leaf_alloc`, every other tag in `leaf_sequence`, and no name is in both. The
//! transaction that makes a tag inserts the name into `leaf_sequence` first, which locks the name,
//! and then checks the other table. For a plain tag, it deletes the row in `leaf_sequence` again
//! before it ends. A user who writes `leaf_alloc` by hand can break that rule; a name that is found
//! in both tables yields no ids.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag, UnixMillis};
use leaf_segment::admin::EndedTag;
use leaf_segment::store::{
    Expected, MOST_RECORDS, Member, StoreFuture, TagCursor, TagGeneration, TagPage, TagSettings,
    TagSettingsError,
};
use leaf_segment::{RangeSource, StoreError, StoreErrorKind, TagCatalog, TagRecord};
use leaf_shape::MeaningError;

use super::connections::{
    Access, Connections, WorkError, advised, empty_if_absent, explain_missing_column,
    no_row_if_tag_unencodable, run,
};
use super::dialect::{Connection, Dialect, ErrorMeaning, GuardStatements, TagStatements};
use super::failover_guard::FailoverGuard;
use super::together::Together;
use super::values::{Cells, Column, Value};
use crate::record;

/// How often an allocation is tried if others change the record or the guard at the same time.
pub(super) const TRIES: usize = 3;

/// Tag, `max_id`, step, description.
pub(super) const ALLOC_COLUMNS: &[Column] = &[Column::Text, Column::Int, Column::Int, Column::Text];
/// Tag, `max_id`, step, description, meaning.
pub(super) const SEQUENCE_COLUMNS: &[Column] =
    &[Column::Text, Column::Int, Column::Int, Column::Text, Column::Text];
/// Tag, settings.
pub(super) const SETTINGS_COLUMNS: &[Column] = &[Column::Text, Column::Text];

/// Segments in an SQL database.
///
/// Cheap to share: connections are taken from a pool for the length of one operation.
#[derive(Debug)]
pub(crate) struct SqlStore<D: Dialect> {
    pub(super) connections: D::Connections,
    pub(super) guard: Arc<FailoverGuard>,
    /// `leaf_sequence`.
    sequences: OptionalTable,
    /// `leaf_tag_settings`.
    settings: OptionalTable,
    /// Allocations that wait for a transaction.
    pub(super) together: Together,
}

/// A table that is missing in older databases, or that a user with few rights may not read. It then
/// counts as empty, unless this process has read rows from it before: an empty table would look as
/// if its tags were deleted or, for `leaf_tag_settings`, as if a tag had no slice and could use the
/// ids of others.
#[derive(Debug, Default)]
struct OptionalTable {
    had_rows: AtomicBool,
}

impl OptionalTable {
    /// The rows of a read; no rows if the table is absent and never had any.
    fn rows<D: Dialect>(
        &self,
        read: Result<Vec<Cells>, sqlx::Error>,
    ) -> Result<Vec<Cells>, sqlx::Error> {
        let rows = match self.had_rows.load(Ordering::Relaxed) {
            true => read?,
            false => empty_if_absent::<D, _>(read)?,
        };
        self.had_rows.fetch_or(!rows.is_empty(), Ordering::Relaxed);
        Ok(rows)
    }
}

/// The tags whose records are read.
#[derive(Debug, Clone, Copy)]
enum Wanted<'a> {
    One(&'a Tag),
    Several(&'a [Tag]),
}

/// The outcome of one try of an allocation.
#[derive(Debug)]
pub(super) enum Tried {
    /// The new `max_id`.
    Granted(i64),
    /// No row was changed, but nothing in the record forbids the allocation: another writer was
    /// faster. Try again.
    Again,
    /// The guard must first jump, but not on this connection, for which others may be waiting.
    OtherServer(OtherServer),
}

/// Another server allocated last in a table: its guard must jump by this margin.
#[derive(Debug)]
pub(super) struct OtherServer {
    guard: GuardStatements,
    margin: i64,
}

impl<D: Dialect> SqlStore<D> {
    /// A store over these connections.
    pub(crate) fn new(connections: D::Connections, guard: Arc<FailoverGuard>) -> Self {
        let (sequences, settings) = (OptionalTable::default(), OptionalTable::default());
        Self { connections, guard, sequences, settings, together: Together::default() }
    }

    /// Gives ids back: sets `max_id` from the end of `unused` to its start if nobody has allocated
    /// since, in a record of this generation; returns whether it did. This is one statement, since
    /// a stop gives back the ids of many tags. No other change can come between its comparison and
    /// its write: a repair moves `max_id`
    /// ([`TagUpdate::apply`](leaf_segment::store::TagUpdate::apply)), and a tag that is made again
    /// has another row, whose settings are written in the same transaction.
    async fn try_give_back(
        &self,
        connection: &mut Connection<D>,
        tag: &Tag,
        generation: Option<TagGeneration>,
        unused: IdRange,
    ) -> Result<bool, WorkError> {
        let guarded = self.guard.active_margin().is_some();
        let (pattern, count) = match generation {
            Some(generation) => (format!("%\"generation\":\"{generation}\"%"), 1),
            None => ("%\"generation\":%".into(), 0),
        };
        let name = Value::Tag(tag.as_str());
        let values = [
            Value::Int(unused.start()),
            name,
            Value::Int(unused.end()),
            name,
            Value::Text(&pattern),
            Value::Int(count),
        ];
        for table in [D::ALLOC, D::SEQUENCE] {
            let statement = if guarded { table.give_back_guarded } else { table.give_back };
            let mut done = D::execute(connection, statement, &values).await;
            if let (Err(error), None) = (&done, generation)
                && (D::ERROR_MEANING)(error) == ErrorMeaning::MissingTable
            {
                // The database of a Java Leaf, without the table of settings: no record has a
                // generation.
                let statement =
                    if guarded { table.replace_max_id_guarded } else { table.replace_max_id };
                done = D::execute(connection, statement, &values[..3]).await;
            }
            let met = no_row_if_tag_unencodable::<D, _>(done.map(|done| D::affected(&done) > 0));
            if empty_if_absent::<D, _>(met)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends the transaction of [`Dialect::BEGIN`], where there is one.
    pub(super) async fn end(
        connection: &mut Connection<D>,
        how: &'static str,
    ) -> Result<(), sqlx::Error> {
        match D::BEGIN {
            Some(_) => D::run_text(connection, how).await,
            None => Ok(()),
        }
    }

    /// Translates the error of reading `leaf_tag_settings`. If that table is missing or forbidden,
    /// but `leaf_sequence` can be read (`is_leafs`) or the failover guard is on, there may be
    /// settings that this user cannot read: the returned error then tells the operator to grant
    /// SELECT or to restore the table.
    pub(super) fn explain_settings(&self, error: sqlx::Error, is_leafs: bool) -> sqlx::Error {
        let absent = (D::ERROR_MEANING)(&error).is_absent();
        if !absent || !(is_leafs || self.guard.active_margin().is_some()) {
            return explain_missing_column::<D>(error);
        }
        advised(
            error,
            "the settings of the tags (slices, templates, whether they are enabled) are not known: grant this user \
             SELECT on leaf_tag_settings, or put the table back from a backup",
        )
    }

    /// One try of an allocation: the statement that allocates; only if it changed no row, a second
    /// one that reads why. So the usual case costs one round trip.
    pub(super) async fn try_allocate(
        &self,
        connection: &mut Connection<D>,
        tag: &Tag,
        amount: i64,
        expected: Expected,
    ) -> Result<Tried, WorkError> {
        let margin = self.guard.active_margin();
        let plain = expected.meaning.is_plain();
        let table = if plain { D::ALLOC } else { D::SEQUENCE };
        let statement = margin.map_or(table.allocate, |_| table.allocate_guarded);
        let meaning = expected.meaning.encode();
        let (amount_value, least) = (Value::Int(amount), Value::Int(expected.least));
        let (name, step) = (Value::Tag(tag.as_str()), Value::Int(expected.step.get().into()));
        let greatest = record::greatest_start(amount, expected);
        if expected.least > greatest {
            // The amount is more than all the numbers from the least one to the end.
            return Err(WorkError::Refused(StoreErrorKind::Exhausted));
        }
        let greatest = Value::Int(greatest);
        let values: &[Value<'_>] = match plain {
            true => &[amount_value, name, step, greatest],
            false => &[
                amount_value,
                least,
                amount_value,
                least,
                name,
                step,
                greatest,
                Value::Text(&meaning),
            ],
        };
        if let Some(end) = D::set_max_id(connection, statement, values).await? {
            return Ok(Tried::Granted(end));
        }
        let tag = [Value::Tag(tag.as_str())];
        let columns = if plain { ALLOC_COLUMNS } else { SEQUENCE_COLUMNS };
        let row = D::fetch(connection, table.read, &tag, columns).await?.pop().map(tag_row);
        if let Some(why) = record::why_not(row.as_ref(), expected, amount) {
            return Err(WorkError::Refused(why));
        }
        let other = self.other_server(connection, &table).await?;
        Ok(other.map_or(Tried::Again, Tried::OtherServer))
    }

    /// Returns the jump that is needed if another server than this one allocated last in a table;
    /// `None` if this server did, or if there is no guard.
    pub(super) async fn other_server(
        &self,
        connection: &mut Connection<D>,
        table: &TagStatements,
    ) -> Result<Option<OtherServer>, WorkError> {
        let Some((margin, guard)) = self.guard.active_margin().zip(table.guard) else {
            return Ok(None);
        };
        // The server may have got another name since the connection was made.
        D::identify_server(connection, &self.guard).await?;
        let last = D::fetch(connection, guard.allocated_last, &[], &[Column::Int]).await?;
        let is_this = last.first().and_then(|row| row.int(0)) == Some(1);
        Ok((!is_this).then_some(OtherServer { guard, margin }))
    }

    /// Reads the records of one tag or of several. If a name is in both tables, reads once more:
    /// the tag may have been deleted and made again between the reads of the two tables.
    async fn read(&self, wanted: Wanted<'_>) -> Result<Vec<TagRecord>, StoreError> {
        let records = self.read_once(wanted).await?;
        match records.iter().any(|record| record.meaning == Err(MeaningError::Twice)) {
            true => self.read_once(wanted).await,
            false => Ok(records),
        }
    }

    /// Reads both tables and the settings, one after the other.
    async fn read_once(&self, wanted: Wanted<'_>) -> Result<Vec<TagRecord>, StoreError> {
        let (operation, values, [alloc, sequence, settings]) = match wanted {
            Wanted::One(tag) => {
                let statements = [D::ALLOC.read, D::SEQUENCE.read, D::SETTINGS.read];
                (operation::<D>("read", tag), [Value::Tag(tag.as_str())], statements)
            }
            Wanted::Several(tags) => {
                let statements = [D::ALLOC.read_many, D::SEQUENCE.read_many, D::SETTINGS.read_many];
                let operation = format!("read {} tags in {}", tags.len(), D::NAME);
                (operation, [Value::Tags(tags)], statements)
            }
        };
        run(&self.connections, Access::Read, operation, async |connection| {
            let rows = D::fetch(connection, alloc, &values, ALLOC_COLUMNS).await;
            let mut rows = no_row_if_tag_unencodable::<D, _>(rows)?;
            let sequences = D::fetch(connection, sequence, &values, SEQUENCE_COLUMNS).await;
            let is_leafs = sequences.is_ok();
            rows.extend(self.sequences.rows::<D>(sequences)?);
            let settings = D::fetch(connection, settings, &values, SETTINGS_COLUMNS).await;
            let settings = match settings {
                Err(error) => Err(self.explain_settings(error, is_leafs)),
                settings => settings,
            };
            let settings = self.settings.rows::<D>(settings)?;
            Ok(records(rows, texts(settings)))
        })
        .await
    }

    /// Advances every tag of a table after a failover; returns `false` if another task's jump was
    /// under way.
    pub(super) async fn jump(
        &self,
        OtherServer { guard, margin }: OtherServer,
    ) -> Result<bool, StoreError> {
        let pool = self.connections.pool().clone();
        self.guard.jump::<D>(pool, guard, margin).await.map_err(|error| {
            let (table, name) = (guard.table, D::NAME);
            let what = format!("advance every tag of {table} in {name} after a failover");
            StoreError::new(StoreErrorKind::Unavailable, what).because(error)
        })
    }

    /// Reads from one of the two tables the next `most` names behind `after` that begin with
    /// `prefix`. Where a collation sorts other names among these, it returns them, too.
    async fn names_after(
        &self,
        plain: bool,
        after: &str,
        prefix: &str,
        most: usize,
    ) -> Result<Vec<String>, StoreError> {
        let operation = format!("read the names of tags in {}", D::NAME);
        run(&self.connections, Access::Read, operation, async |connection| {
            let table = if plain { D::ALLOC } else { D::SEQUENCE };
            let (after, most) = (if after.is_empty() { prefix } else { after }, most as i64);
            let (after, most) = (Value::Text(after), Value::Int(most));
            let rows = match behind(prefix) {
                Some(end) => {
                    let values = [after, Value::Text(&end), most];
                    D::fetch(connection, table.names_between, &values, &[Column::Text]).await
                }
                None => {
                    D::fetch(connection, table.names_after, &[after, most], &[Column::Text]).await
                }
            };
            let rows = match plain {
                true => rows?,
                false => self.sequences.rows::<D>(rows)?,
            };
            Ok(rows.into_iter().filter_map(|mut row| row.text(0)).collect())
        })
        .await
    }
}

/// The least text behind all texts that begin with `prefix`; `None` if `prefix` is empty, or its
/// last character has no successor.
fn behind(prefix: &str) -> Option<String> {
    let last = prefix.chars().next_back()?;
    let next = char::from_u32(u32::from(last) + 1)?;
    Some(format!("{}{next}", &prefix[..prefix.len() - last.len_utf8()]))
}

/// The texts of settings by the names of their tags.
pub(super) fn texts(settings: Vec<Cells>) -> HashMap<String, String> {
    let texts = |mut row: Cells| Some((row.text(0)?, row.text(1)?));
    settings.into_iter().filter_map(texts).collect()
}

/// The records of rows of either table, with the texts of their settings.
pub(super) fn records(rows: Vec<Cells>, settings: HashMap<String, String>) -> Vec<TagRecord> {
    record::read(rows.into_iter().map(tag_row).collect(), settings)
}

/// The [`EndedTag`] that the last seal wrote into a tag's settings; `None` if there is none.
pub(super) fn ended_tag(mut settings: Vec<Cells>) -> Result<Option<EndedTag>, TagSettingsError> {
    let text = settings.pop().and_then(|mut row| row.text(1));
    text.map_or(Ok(None), |text| TagSettings::decode(&text).map(|settings| settings.ended))
}

/// Converts a row of either table; a row of `leaf_alloc` has no meaning.
fn tag_row(mut row: Cells) -> record::Row {
    record::Row {
        name: row.text(0).unwrap_or_default(),
        max_id: row.int(1),
        step: row.int(2),
        description: row.text(3),
        meaning: row.text(4),
    }
}

/// The beginning of an error: what was done to which tag.
pub(super) fn operation<D: Dialect>(what: &str, tag: &Tag) -> String {
    format!("{what} tag {:?} in {}", tag.as_str(), D::NAME)
}

impl<D: Dialect> RangeSource for SqlStore<D> {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        expected: Expected,
    ) -> StoreFuture<'a, IdRange> {
        Box::pin(async move {
            let operation = || operation::<D>("allocate", tag);
            let amount = i64::from(amount.get());
            let mut tries = 0;
            while tries < TRIES {
                let tried = match D::SHARES_COMMITS {
                    true => self.try_together(tag, amount, expected).await,
                    false => {
                        run(&self.connections, Access::Statement, operation(), async |connection| {
                            self.try_allocate(connection, tag, amount, expected).await
                        })
                        .await
                    }
                };
                match tried? {
                    Tried::Granted(end) => {
                        let range = IdRange::new(end.saturating_sub(amount), end);
                        return range.ok_or_else(|| {
                            let why = format!(
                                "the server answered {end} to an addition of {amount}: if a trigger on the table uses \
                                 LAST_INSERT_ID, drop it"
                            );
                            StoreError::new(StoreErrorKind::BadRecord(why), operation())
                        });
                    }
                    Tried::Again => tries += 1,
                    Tried::OtherServer(other) => {
                        // Waiting for a jump of another task does not count as a try: that jump may
                        // have failed.
                        tries += usize::from(self.jump(other).await?);
                    }
                }
            }
            Err(StoreError::new(StoreErrorKind::Conflict, operation()))
        })
    }

    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        unused: IdRange,
    ) -> StoreFuture<'a, bool> {
        let operation = operation::<D>("give ids back of", tag);
        Box::pin(run(&self.connections, Access::Write, operation, async move |connection| {
            self.try_give_back(connection, tag, generation, unused).await
        }))
    }

    fn try_allocating(&self) -> Option<StoreFuture<'_, ()>> {
        let operation = format!("try to allocate in {}", D::NAME);
        Some(Box::pin(run(&self.connections, Access::Write, operation, async |connection| {
            // These updates change no row: no tag has an empty name. `leaf_sequence` is tried only
            // if it had rows, so that its rights are optional otherwise. The right on the guard's
            // table is tried when a connection is made.
            let none = [Value::Int(0), Value::Tag(""), Value::Int(-1)];
            let sequence = self.sequences.had_rows.load(Ordering::Relaxed).then_some(D::SEQUENCE);
            for table in [Some(D::ALLOC), sequence].into_iter().flatten() {
                D::execute(connection, table.replace_max_id, &none).await?;
            }
            Ok(())
        })))
    }

    fn clock(&self) -> Option<StoreFuture<'_, UnixMillis>> {
        let statement = D::SERVER_CLOCK?;
        let operation = format!("read the clock of {}", D::NAME);
        Some(Box::pin(run(&self.connections, Access::Read, operation, async |connection| {
            let rows = D::fetch(connection, statement, &[], &[Column::Int]).await?;
            let shown = rows.first().and_then(|row| row.int(0));
            let shown = shown.and_then(|shown| u64::try_from(shown).ok());
            Ok(UnixMillis::new(shown.ok_or(sqlx::Error::RowNotFound)?))
        })))
    }

    /// Closes the connections. SQLite then also moves what is in its write-ahead log into the file.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.connections.pool().close())
    }
}

impl<D: Dialect> TagCatalog for SqlStore<D> {
    fn tag<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<TagRecord>> {
        Box::pin(async move {
            match self.read(Wanted::One(tag)).await {
                Ok(mut records) => Ok(records.pop()),
                // A name that the database's character set cannot hold.
                Err(error) if *error.kind() == StoreErrorKind::UnknownTag => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn records<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        Box::pin(async move {
            let (listed, alone): (Vec<Tag>, Vec<Tag>) =
                tags.iter().cloned().partition(|tag| D::LISTS_ANY_NAME || tag.as_str().is_ascii());
            let mut records = self.read(Wanted::Several(&listed)).await?;
            for tag in &alone {
                records.extend(self.tag(tag).await?);
            }
            // A collation may take other names for these.
            let wanted: HashSet<&Tag> = tags.iter().collect();
            records.retain(|record| wanted.contains(&record.tag));
            Ok(records)
        })
    }

    fn make_members<'a>(
        &'a self,
        family: &'a Tag,
        members: &'a [Tag],
    ) -> StoreFuture<'a, Vec<Member>> {
        Box::pin(async move {
            match self.make_together(family, members).await {
                // The table's collation treats one of the names as equal to another, or somebody
                // has just made a tag of one of these names.
                Err(error) if *error.kind() == StoreErrorKind::TagExists => {}
                made => return made,
            }
            let mut made = Vec::with_capacity(members.len());
            for tag in members {
                match self.make_together(family, std::slice::from_ref(tag)).await {
                    Err(error) if *error.kind() == StoreErrorKind::TagExists => {
                        made.push((tag.clone(), Err(StoreErrorKind::TagExists)));
                    }
                    one => made.extend(one?),
                }
            }
            Ok(made)
        })
    }

    /// Tries to read. Also writes this node's failover margin into the store if it is greater than
    /// the stored one.
    fn try_reading(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            self.records(&[]).await?;
            let operation = format!("keep the failover margin in {}", D::NAME);
            run(&self.connections, Access::Read, operation, async |connection| {
                self.guard.store_margin::<D>(connection).await.map_err(WorkError::from)
            })
            .await
        })
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Reads one page of records, see [`TagStore::page`](leaf_segment::TagStore::page).
    pub(super) async fn read_page(
        &self,
        after: Option<&TagCursor>,
        prefix: &str,
        most: usize,
    ) -> Result<TagPage, StoreError> {
        let (plain, after) = after.map_or((true, ""), |after| (after.plain, &*after.name));
        let most = most.min(MOST_RECORDS);
        let names = self.names_after(plain, after, prefix, most).await?;
        let next = match names.last().filter(|_| names.len() == most) {
            Some(last) => Some(TagCursor { plain, name: last.clone() }),
            // The other table comes next.
            None => plain.then(|| TagCursor { plain: false, name: String::new() }),
        };
        let mut tags = Vec::with_capacity(names.len());
        for name in names.into_iter().filter(|name| name.starts_with(prefix)) {
            match Tag::parse(&name) {
                Ok(tag) => tags.push(tag),
                Err(_) => tracing::warn!(?name, "a row is left out: no valid tag"),
            }
        }
        if tags.is_empty() {
            return Ok(TagPage { records: Vec::new(), next });
        }
        let mut records = self.records(&tags).await?;
        // One in both tables was among the plain tags.
        records.retain(|record| plain || record.meaning != Err(MeaningError::Twice));
        Ok(TagPage { records, next })
    }
}
