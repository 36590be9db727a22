//! Changes of one record, decided on while its row is locked; and `TagStore`, most of whose methods
//! are such changes.
//!
//! Invariant: nobody else changes a record, or its settings, between the moment when it is read
//! here and the end of the transaction, since every change locks the tag's row first. So a change
//! overwrites exactly the record that it was decided on. And when a tag is sealed, the returned
//! `max_id` is above every number that anybody was granted.

use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{Clock as _, SystemClock, Tag, UnixMillis};
use leaf_segment::admin::EndedTag;
use leaf_segment::store::{
    SEALED, SealError, StoreFuture, TagCursor, TagGeneration, TagPage, TagSettings, TagUpdate,
};
use leaf_segment::{NewTag, StoreError, StoreErrorKind, TagRecord, TagStore};
use tokio::time::Instant;

use super::connections::{
    Access, WorkError, empty_if_absent, explain_missing_column, no_row_if_tag_unencodable, run,
};
use super::dialect::{Connection, Dialect, ErrorMeaning, TagStatements};
use super::store::{
    ALLOC_COLUMNS, OtherServer, SEQUENCE_COLUMNS, SETTINGS_COLUMNS, SqlStore, TRIES, ended_tag,
    operation, records, texts,
};
use super::values::{Column, Value};
use crate::import::AFTER_FAILOVER;

/// How long a change is retried after conflicts, for example with changes on other members of a
/// Galera cluster.
const AGAIN_FOR: Duration = Duration::from_secs(10);
/// The longest pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// A record whose row is locked until the transaction ends.
pub(super) struct Locked {
    /// The statements of the record's table.
    pub(super) table: TagStatements,
    pub(super) record: TagRecord,
    /// Whether the table of settings can be read.
    has_settings: bool,
}

/// A change of a locked record.
pub(super) trait Change<D: Dialect>: Send {
    /// The result for the caller.
    type Done: Send;

    /// Decides what to change in the record, and writes it. Called again after a conflict, once
    /// everything that the failed try wrote was undone.
    fn apply(
        &mut self,
        store: &SqlStore<D>,
        connection: &mut Connection<D>,
        locked: &Locked,
    ) -> impl Future<Output = Result<Self::Done, WorkError>> + Send;

    /// Called after everything that `apply` wrote was undone.
    fn undone(&mut self) {}
}

impl<D: Dialect> Change<D> for &TagUpdate {
    type Done = Result<TagRecord, OtherServer>;

    async fn apply(
        &mut self,
        store: &SqlStore<D>,
        connection: &mut Connection<D>,
        locked: &Locked,
    ) -> Result<Self::Done, WorkError> {
        // A reopened tag remembers all that a wrong clock took, also what a failover has lost of it.
        if self.reopens()
            && let Some(other) = store.other_server(connection, &locked.table).await?
        {
            return Ok(Err(other));
        }
        let mut now = TagUpdate::apply(self, &locked.record).map_err(WorkError::Refused)?;
        // The database of a Java Leaf has no place for a generation.
        let keeps_settings = locked.has_settings || !only_generation_differs(&now, &locked.record);
        if !keeps_settings {
            now.settings.clone_from(&locked.record.settings);
        }
        let step = Value::MaybeInt(now.step.ok().map(|step| step.get().into()));
        let name = Value::Tag(now.tag.as_str());
        let values = [Value::Int(now.max_id), step, name];
        D::execute(connection, locked.table.update, &values).await?;
        // That of a plain tag never changes, and has no column.
        if let Some(meaning) = self.meaning {
            let meaning = meaning.encode();
            D::execute(connection, D::SET_MEANING, &[Value::Text(&meaning), name]).await?;
        }
        if let Some(settings) = self.settings.as_ref().filter(|_| keeps_settings) {
            locked.write_settings::<D>(connection, settings).await?;
        }
        Ok(Ok(now))
    }
}

/// Whether two records have the same settings but for the generation.
fn only_generation_differs(a: &TagRecord, b: &TagRecord) -> bool {
    let others = |record: &TagRecord| {
        let settings = record.settings.clone();
        settings.map(|settings| TagSettings { generation: None, ..settings })
    };
    others(a) == others(b)
}

/// Sets `max_id` to `to` if it is `from` and the record has this generation; returns whether it
/// did.
struct ReplaceMaxId {
    generation: Option<TagGeneration>,
    from: i64,
    to: i64,
}

impl<D: Dialect> Change<D> for ReplaceMaxId {
    type Done = bool;

    async fn apply(
        &mut self,
        store: &SqlStore<D>,
        connection: &mut Connection<D>,
        locked: &Locked,
    ) -> Result<bool, WorkError> {
        let record = &locked.record;
        let unchanged = record.generation() == self.generation && record.max_id == self.from;
        Ok(unchanged && store.write_max_id(connection, &locked.table, record, self.to).await?)
    }
}

/// Seals a record of this generation. Returns the `max_id` at which the tag goes on elsewhere, or
/// `None` if another server allocated last.
struct Seal {
    generation: Option<TagGeneration>,
    /// The result. Set before the commit, so that it is known even if the
    /// commit's answer is lost.
    max_id: Option<i64>,
}

impl<D: Dialect> Change<D> for Seal {
    type Done = Option<i64>;

    async fn apply(
        &mut self,
        store: &SqlStore<D>,
        connection: &mut Connection<D>,
        locked: &Locked,
    ) -> Result<Option<i64>, WorkError> {
        if locked.record.generation() != self.generation {
            return Err(WorkError::Refused(StoreErrorKind::RecordChanged));
        }
        if locked.record.is_sealed() {
            return Ok(Some(SEALED));
        }
        if store.other_server(connection, &locked.table).await?.is_some() {
            return Ok(None);
        }
        // The numbers to skip are in no record: a tag that moves to another store would lose them.
        let entered = locked.enter_period::<D>(connection).await?;
        let max_id = entered.unwrap_or(locked.record.max_id);
        let record = TagRecord { max_id, ..locked.record.clone() };
        if !store.write_max_id(connection, &locked.table, &record, SEALED).await? {
            return Ok(None);
        }
        let sealed = record.sealed();
        if let Some(settings) = sealed.settings.ok().filter(|_| locked.has_settings) {
            locked.write_settings::<D>(connection, &settings).await?;
        }
        self.max_id = Some(max_id);
        Ok(self.max_id)
    }

    fn undone(&mut self) {
        self.max_id = None;
    }
}

/// Removes a sealed record of this generation. Of its settings only the entry `ended`, which the
/// seal added, is kept.
struct Delete {
    generation: Option<TagGeneration>,
}

impl<D: Dialect> Change<D> for Delete {
    type Done = ();

    async fn apply(
        &mut self,
        _: &SqlStore<D>,
        connection: &mut Connection<D>,
        locked: &Locked,
    ) -> Result<(), WorkError> {
        if !locked.record.is_sealed() || locked.record.generation() != self.generation {
            return Err(WorkError::Refused(StoreErrorKind::RecordChanged));
        }
        let name = [Value::Tag(locked.record.tag.as_str())];
        match locked.record.ended() {
            Some(ended) => {
                locked.write_settings::<D>(connection, &TagSettings::of_deleted_tag(ended)).await?;
            }
            None if locked.has_settings => {
                D::execute(connection, D::SETTINGS.delete, &name).await?;
            }
            None => {}
        }
        D::execute(connection, locked.table.delete, &name).await?;
        Ok(())
    }
}

impl Locked {
    /// Writes the settings of the record.
    pub(super) async fn write_settings<D: Dialect>(
        &self,
        connection: &mut Connection<D>,
        settings: &TagSettings,
    ) -> Result<(), WorkError> {
        let settings = settings.encode();
        let values = [Value::Text(&settings), Value::Tag(self.record.tag.as_str())];
        let written = D::execute(connection, self.table.set_settings, &values).await;
        written.map(|_| ()).map_err(|error| explain_missing_column::<D>(error).into())
    }

    /// Moves the row of a tag or a family with periods into the running period, if a failover has
    /// advanced it. Returns the new `max_id`, or `None` if the row stays as it is. (An allocation
    /// does the same.) The numbers in the column `skip` then count for this period and for no later
    /// one. Otherwise `skip` would grow with each failover in a family, from which nothing is
    /// allocated, until new members begin behind the end of the period. The running period is the
    /// one that the clocks of the server and of this host agree on.
    pub(super) async fn enter_period<D: Dialect>(
        &self,
        connection: &mut Connection<D>,
    ) -> Result<Option<i64>, WorkError> {
        let reset = self.record.meaning.as_ref().ok().and_then(|meaning| meaning.reset);
        let (Some(statement), Some(clock), Some(reset)) = (D::ENTER_PERIOD, D::SERVER_CLOCK, reset)
        else {
            return Ok(None);
        };
        let ours = SystemClock.wall_millis();
        let max_id = self.record.max_id;
        // As it was made.
        if max_id <= 1 {
            return Ok(None);
        }
        let shown = D::fetch(connection, clock, &[], &[Column::Int]).await?;
        let shown = shown.first().and_then(|row| row.int(0)).unwrap_or_default();
        let theirs = UnixMillis::new(shown.max(0).cast_unsigned());
        let Some(first) = reset.first_number(ours, theirs) else { return Ok(None) };
        let name = Value::Tag(self.record.tag.as_str());
        let values = [Value::Int(first), name, Value::Int(first)];
        let done = D::execute(connection, statement, &values).await?;
        if D::affected(&done) == 0 {
            return Ok(None);
        }
        let row = D::fetch(connection, D::SEQUENCE.lock, &[name], SEQUENCE_COLUMNS).await?;
        Ok(row.first().and_then(|row| row.int(1)))
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Writes the `max_id` of a locked record; `false` where another server has allocated last.
    async fn write_max_id(
        &self,
        connection: &mut Connection<D>,
        table: &TagStatements,
        record: &TagRecord,
        to: i64,
    ) -> Result<bool, WorkError> {
        let statement = match self.guard.active_margin() {
            Some(_) => table.replace_max_id_guarded,
            None => table.replace_max_id,
        };
        let (tag, from) = (record.tag.as_str(), record.max_id);
        let values = [Value::Int(to), Value::Tag(tag), Value::Int(from)];
        let done = D::execute(connection, statement, &values).await?;
        Ok(D::affected(&done) > 0)
    }

    /// Locks a record, applies a change to it, and commits if that succeeded. Tries again after a
    /// conflict.
    pub(super) async fn change_locked<C: Change<D>>(
        &self,
        what: &str,
        tag: &Tag,
        change: &mut C,
    ) -> Result<C::Done, StoreError> {
        let operation = operation::<D>(what, tag);
        run(&self.connections, Access::TransactionThenClose, operation, async |connection| {
            if let Some(limit) = D::LIMIT_LOCKS {
                D::run_text(connection, limit).await?;
            }
            let begun = Instant::now();
            loop {
                let error = match self.try_change_locked(connection, tag, change).await {
                    Err(WorkError::Database(error))
                        if (D::ERROR_MEANING)(&error) == ErrorMeaning::Conflict =>
                    {
                        error
                    }
                    done => return done,
                };
                change.undone();
                if begun.elapsed() > AGAIN_FOR {
                    return Err(error.into());
                }
                Self::end(connection, "ROLLBACK").await?;
                tokio::time::sleep(PAUSE.mul_f64(fastrand::f64())).await;
            }
        })
        .await
    }

    /// Does what [`Self::change_locked`] does. If the change finds that another server allocated
    /// last, the guard first jumps, and the change is tried again.
    pub(super) async fn change_guarded<T: Send>(
        &self,
        what: &str,
        tag: &Tag,
        change: &mut impl Change<D, Done = Result<T, OtherServer>>,
    ) -> Result<T, StoreError> {
        for _ in 0..TRIES {
            match self.change_locked(what, tag, change).await? {
                Ok(done) => return Ok(done),
                Err(other) => _ = self.jump(other).await?,
            }
        }
        Err(StoreError::new(StoreErrorKind::Conflict, operation::<D>(what, tag)))
    }

    async fn try_change_locked<C: Change<D>>(
        &self,
        connection: &mut Connection<D>,
        tag: &Tag,
        change: &mut C,
    ) -> Result<C::Done, WorkError> {
        let changed = match self.lock(connection, tag).await {
            Ok(locked) => change.apply(self, connection, &locked).await,
            Err(error) => Err(error),
        };
        match &changed {
            Ok(_) => Self::end(connection, "COMMIT").await?,
            Err(WorkError::Refused(_)) => Self::end(connection, "ROLLBACK").await?,
            Err(WorkError::Database(_)) => {}
        }
        changed
    }

    /// Begins a transaction and locks a tag's row, in the table that has it; then reads the
    /// settings.
    async fn lock(&self, connection: &mut Connection<D>, tag: &Tag) -> Result<Locked, WorkError> {
        let name = [Value::Tag(tag.as_str())];
        // Whether the table can be read is found out before the transaction: an error would end it
        // in PostgreSQL.
        let settings = D::fetch(connection, D::SETTINGS.read, &name, SETTINGS_COLUMNS).await;
        let has_settings = settings.is_ok();
        if let Err(error) = settings {
            let sequences = D::fetch(connection, D::SEQUENCE.read, &name, SEQUENCE_COLUMNS).await;
            let error = self.explain_settings(error, sequences.is_ok());
            if !(D::ERROR_MEANING)(&error).is_absent() {
                return Err(error.into());
            }
        }
        if let Some(begin) = D::BEGIN {
            D::run_text(connection, begin).await?;
        }
        let row = D::fetch(connection, D::ALLOC.lock, &name, ALLOC_COLUMNS).await;
        let (mut rows, mut table) = (no_row_if_tag_unencodable::<D, _>(row)?, D::ALLOC);
        if rows.is_empty() {
            let sequence = D::fetch(connection, D::SEQUENCE.lock, &name, SEQUENCE_COLUMNS).await;
            (rows, table) = (empty_if_absent::<D, _>(sequence)?, D::SEQUENCE);
        }
        // Also before an error of `leaf_sequence` ends the transaction.
        if rows.is_empty() {
            return Err(WorkError::Refused(StoreErrorKind::UnknownTag));
        }
        let settings = match has_settings {
            true => D::fetch(connection, D::SETTINGS.read, &name, SETTINGS_COLUMNS).await?,
            false => Vec::new(),
        };
        let record = records(rows, texts(settings)).pop().ok_or(StoreErrorKind::UnknownTag);
        Ok(Locked { table, record: record.map_err(WorkError::Refused)?, has_settings })
    }
}

impl<D: Dialect> TagStore for SqlStore<D> {
    fn page<'a>(
        &'a self,
        after: Option<&'a TagCursor>,
        prefix: &'a str,
        most: usize,
    ) -> StoreFuture<'a, TagPage> {
        Box::pin(self.read_page(after, prefix, most))
    }

    fn create<'a>(&'a self, new: &'a NewTag) -> StoreFuture<'a, ()> {
        let operation = operation::<D>("create", &new.tag);
        Box::pin(run(&self.connections, Access::Transaction, operation, async |connection| {
            Self::make_tag(connection, new).await
        }))
    }

    fn update<'a>(&'a self, update: &'a TagUpdate) -> StoreFuture<'a, TagRecord> {
        Box::pin(
            async move { self.change_guarded("change", &update.seen.tag, &mut &*update).await },
        )
    }

    fn replace_max_id<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        from: i64,
        to: i64,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut replace = ReplaceMaxId { generation, from, to };
            match self.change_locked("replace max_id of", tag, &mut replace).await {
                Err(error) if *error.kind() == StoreErrorKind::UnknownTag => Ok(false),
                replaced => replaced,
            }
        })
    }

    fn seal<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
    ) -> BoxFuture<'a, Result<i64, SealError>> {
        Box::pin(async move {
            let mut seal = Seal { generation, max_id: None };
            match self.change_locked("seal", tag, &mut seal).await {
                Ok(Some(max_id)) => Ok(max_id),
                Ok(None) => {
                    let error =
                        StoreError::new(StoreErrorKind::Unavailable, operation::<D>("seal", tag));
                    Err(error.because(AFTER_FAILOVER).into())
                }
                Err(error) => Err(SealError { error, max_id: seal.max_id }),
            }
        })
    }

    /// Deletes a tag that cannot exist: a database checks the rights of a statement, and whether it
    /// may write, before it looks for rows.
    fn try_deleting<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, ()> {
        let operation = operation::<D>("delete", tag);
        Box::pin(run(&self.connections, Access::Write, operation, async move |connection| {
            let name = [Value::Tag(tag.as_str())];
            // Only this table keeps what a deleted tag granted.
            D::fetch(connection, D::SETTINGS.read, &name, SETTINGS_COLUMNS).await?;
            let row = D::fetch(connection, D::ALLOC.read, &name, ALLOC_COLUMNS).await;
            let row = no_row_if_tag_unencodable::<D, _>(row)?;
            let table = if row.is_empty() { D::SEQUENCE } else { D::ALLOC };
            D::execute(connection, table.delete, &[Value::Tag(" of no tag")]).await?;
            Ok(())
        }))
    }

    fn delete<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.change_locked("delete", tag, &mut Delete { generation }).await })
    }

    fn ended<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<EndedTag>> {
        let operation = operation::<D>("read the end of", tag);
        Box::pin(run(&self.connections, Access::Read, operation, async move |connection| {
            let name = [Value::Tag(tag.as_str())];
            let rows = D::fetch(connection, D::SETTINGS.read, &name, SETTINGS_COLUMNS).await;
            let rows = no_row_if_tag_unencodable::<D, _>(rows);
            Ok(match rows {
                Err(error) if (D::ERROR_MEANING)(&error).is_absent() => None,
                rows => ended_tag(rows?).map_err(|unreadable| {
                    WorkError::Refused(StoreErrorKind::BadRecord(unreadable.to_string()))
                })?,
            })
        }))
    }
}
