//! The segment store of every SQL database.
//!
//! Invariant: an allocation is one statement, and its range is computed from the value that this statement
//! answered and the amount that this caller added, once the change is durable. Nothing is read back, so nobody
//! else's value can be mistaken for one's own: a Java Leaf may write the same row at the same time.

use std::sync::Arc;

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag};
use leaf_segment::{
    NewTag, RangeSource, StoreError, StoreErrorKind, StoreFuture, TagCatalog, TagRecord,
    TagSettings, TagStore,
};

use super::connections::{Access, Connections, WorkError, of_settings, run, unless_absent};
use super::dialect::{Connection, Dialect};
use super::failover_guard::FailoverGuard;
use super::values::{Cells, Column, Value};
use crate::{Administration, Table, record};

/// How often an allocation is tried while others change the record or the guard.
const TRIES: usize = 3;

const TAG_COLUMNS: &[Column] = &[Column::Text, Column::Int, Column::Int, Column::Text];
pub(super) const SETTINGS_COLUMNS: &[Column] = &[Column::Text, Column::Text];

/// Segments in an SQL database.
#[derive(Debug)]
pub(crate) struct SqlStore<D: Dialect> {
    connections: D::Connections,
    guard: Arc<FailoverGuard>,
}

/// What one try of an allocation came to.
enum Tried {
    /// The new `max_id`.
    Granted(i64),
    /// Nothing in the record forbids it: somebody has changed it meanwhile.
    Again,
    /// Another server has allocated last: jump by this margin first, and not on this connection, which
    /// others may be waiting for.
    OtherServer(i64),
}

impl<D: Dialect> SqlStore<D> {
    pub(crate) const fn new(connections: D::Connections, guard: Arc<FailoverGuard>) -> Self {
        Self { connections, guard }
    }

    /// Runs a statement about one tag that must meet its row.
    async fn change(
        &self,
        what: &str,
        tag: &Tag,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> Result<(), StoreError> {
        run(&self.connections, Access::Write, operation::<D>(what, tag), async |connection| {
            let done = D::execute(connection, statement, values).await?;
            record::at_least_one(D::affected(&done)).map_err(WorkError::Refused)
        })
        .await
    }

    async fn try_allocate(
        &self,
        connection: &mut Connection<D>,
        tag: &Tag,
        amount: i64,
        seen: Step,
    ) -> Result<Tried, WorkError> {
        let margin = self.guard.active_margin();
        let statement = margin.map_or(D::SEGMENT.allocate, |_| D::SEGMENT.allocate_guarded);
        let values = [
            Value::Int(amount),
            Value::Tag(tag.as_str()),
            Value::Int(seen.get().into()),
            Value::Int(record::most(amount)),
        ];
        if let Some(end) = D::set_max_id(connection, statement, &values).await? {
            return Ok(Tried::Granted(end));
        }
        let tag = [Value::Tag(tag.as_str())];
        let row = D::fetch(connection, D::SEGMENT.read, &tag, TAG_COLUMNS).await?.pop();
        if let Some(why) = record::why_not(row.map(tag_row), seen, amount) {
            return Err(WorkError::Refused(why));
        }
        let Some((margin, guard)) = margin.zip(D::GUARD) else { return Ok(Tried::Again) };
        // The server may have got another name since the connection was made.
        D::identify_server(connection, &self.guard).await?;
        let last = D::fetch(connection, guard.allocated_last, &[], &[Column::Int]).await?;
        let is_ours = last.first().and_then(|row| row.int(0)) == Some(1);
        Ok(if is_ours { Tried::Again } else { Tried::OtherServer(margin) })
    }

    /// The records of one tag, or of all.
    async fn read(&self, name: String, tag: Option<&Tag>) -> Result<Vec<TagRecord>, StoreError> {
        run(&self.connections, Access::Read, name, async |connection| {
            let wanted = tag.map(|tag| Value::Tag(tag.as_str()));
            let (rows, settings) = match tag {
                Some(_) => (D::SEGMENT.read, D::SEGMENT.settings),
                None => (D::SEGMENT.read_all, D::SEGMENT.settings_all),
            };
            let rows = D::fetch(connection, rows, wanted.as_slice(), TAG_COLUMNS).await?;
            let settings = D::fetch(connection, settings, wanted.as_slice(), SETTINGS_COLUMNS);
            let settings = unless_absent::<D, _>(of_settings::<D, _>(settings.await))?;
            let texts = |mut row: Cells| Some((row.text(0)?, row.text(1)?));
            let settings = settings.into_iter().filter_map(texts).collect();
            Ok(record::read(rows.into_iter().map(tag_row).collect(), settings))
        })
        .await
    }
}

fn tag_row(mut row: Cells) -> record::Row {
    (row.text(0).unwrap_or_default(), row.int(1), row.int(2), row.text(3))
}

fn operation<D: Dialect>(what: &str, tag: &Tag) -> String {
    format!("{what} tag {:?} in {}", tag.as_str(), D::NAME)
}

impl<D: Dialect> RangeSource for SqlStore<D> {
    fn allocate<'a>(&'a self, tag: &'a Tag, amount: Step, seen: Step) -> StoreFuture<'a, IdRange> {
        Box::pin(async move {
            let name = || operation::<D>("allocate", tag);
            let amount = i64::from(amount.get());
            for _ in 0..TRIES {
                let tried = run(&self.connections, Access::Write, name(), async |connection| {
                    self.try_allocate(connection, tag, amount, seen).await
                });
                match tried.await? {
                    Tried::Granted(end) => {
                        let range = IdRange::new(end.saturating_sub(amount), end);
                        return range.ok_or_else(|| {
                            let why =
                                format!("the server answered {end} to an addition of {amount}");
                            StoreError::new(StoreErrorKind::BadRecord(why), name())
                        });
                    }
                    Tried::Again => {}
                    Tried::OtherServer(margin) => {
                        let Some(guard) = D::GUARD else { continue };
                        let pool = self.connections.pool().clone();
                        self.guard.jump::<D>(pool, guard, margin).await.map_err(|error| {
                            let what = format!("advance every tag in {} after a failover", D::NAME);
                            StoreError::new(StoreErrorKind::Unavailable, what).because(error)
                        })?;
                    }
                }
            }
            let why = "others changed the record meanwhile";
            Err(StoreError::new(StoreErrorKind::Unavailable, name()).because(why))
        })
    }

    fn give_back<'a>(&'a self, tag: &'a Tag, unused: IdRange) -> StoreFuture<'a, bool> {
        self.replace_max_id(tag, unused.end(), unused.start())
    }

    /// SQLite also moves what is in its write-ahead log into the file.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.connections.pool().close())
    }
}

impl<D: Dialect> TagCatalog for SqlStore<D> {
    fn tag<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<TagRecord>> {
        Box::pin(async move {
            match self.read(operation::<D>("read", tag), Some(tag)).await {
                Ok(mut records) => Ok(records.pop()),
                // A name that the database's character set cannot hold.
                Err(error) if *error.kind() == StoreErrorKind::UnknownTag => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn tags(&self) -> StoreFuture<'_, Vec<TagRecord>> {
        Box::pin(self.read(format!("read the tags in {}", D::NAME), None))
    }
}

impl<D: Dialect> TagStore for SqlStore<D> {
    fn create<'a>(&'a self, new: &'a NewTag) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let values = [
                Value::Text(new.tag.as_str()),
                Value::Int(new.max_id),
                Value::Int(new.step.get().into()),
                Value::MaybeText(new.description.as_deref()),
            ];
            self.change("create", &new.tag, D::SEGMENT.create, &values).await
        })
    }

    fn set_step<'a>(&'a self, tag: &'a Tag, step: Step) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let values = [Value::Int(step.get().into()), Value::Tag(tag.as_str())];
            self.change("set the step of", tag, D::SEGMENT.set_step, &values).await
        })
    }

    fn set_settings<'a>(&'a self, tag: &'a Tag, settings: &'a TagSettings) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let settings = settings.encode();
            let name = operation::<D>("change the settings of", tag);
            run(&self.connections, Access::Write, name, async |connection| {
                let values = [Value::Text(&settings), Value::Tag(tag.as_str())];
                let done = D::execute(connection, D::SEGMENT.set_settings, &values).await;
                let done = of_settings::<D, _>(done)?;
                record::at_least_one(D::affected(&done)).map_err(WorkError::Refused)
            })
            .await
        })
    }

    fn advance<'a>(&'a self, tag: &'a Tag, at_least: i64) -> StoreFuture<'a, i64> {
        Box::pin(run(
            &self.connections,
            Access::Write,
            operation::<D>("advance", tag),
            async move |connection: &mut Connection<D>| {
                let values = [Value::Int(at_least), Value::Tag(tag.as_str())];
                let max_id = D::set_max_id(connection, D::SEGMENT.advance, &values).await?;
                max_id.ok_or(WorkError::Refused(StoreErrorKind::UnknownTag))
            },
        ))
    }

    fn replace_max_id<'a>(&'a self, tag: &'a Tag, from: i64, to: i64) -> StoreFuture<'a, bool> {
        Box::pin(run(
            &self.connections,
            Access::Write,
            operation::<D>("replace max_id of", tag),
            async move |connection: &mut Connection<D>| {
                let statement = match self.guard.active_margin() {
                    Some(_) => D::SEGMENT.replace_max_id_guarded,
                    None => D::SEGMENT.replace_max_id,
                };
                let values = [Value::Int(to), Value::Tag(tag.as_str()), Value::Int(from)];
                let done = D::execute(connection, statement, &values).await?;
                Ok(D::affected(&done) == 1)
            },
        ))
    }

    fn delete<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, ()> {
        Box::pin(run(
            &self.connections,
            Access::Write,
            operation::<D>("delete", tag),
            async move |connection: &mut Connection<D>| {
                let tag = [Value::Tag(tag.as_str())];
                let settings = D::execute(connection, D::SEGMENT.delete_settings, &tag).await;
                unless_absent::<D, _>(settings.map(|_| ()))?;
                let done = D::execute(connection, D::SEGMENT.delete, &tag).await?;
                record::at_least_one(D::affected(&done)).map_err(WorkError::Refused)
            },
        ))
    }
}

impl<D: Dialect> Administration for SqlStore<D> {
    fn tables(&self) -> &'static [Table] {
        D::SEGMENT_TABLES
    }

    fn apply(&self) -> StoreFuture<'_, Vec<&'static str>> {
        let name = format!("make the tables in {}", D::NAME);
        Box::pin(run(
            &self.connections,
            Access::Write,
            name,
            async |connection: &mut Connection<D>| {
                let made = make::<D>(connection, D::SEGMENT_TABLES).await?;
                D::identify_server(connection, &self.guard).await?;
                if let Some(guard) = D::GUARD
                    && made.contains(&"leaf_guard")
                    && self.guard.active_margin().is_some()
                {
                    D::execute(connection, guard.claim_new, &[]).await?;
                }
                Ok(made)
            },
        ))
    }

    fn failover_margin(&self) -> Option<i64> {
        self.guard.configured_margin()
    }

    fn risks(&self) -> StoreFuture<'_, Vec<String>> {
        let name = format!("look at the settings of {}", D::NAME);
        Box::pin(run(
            &self.connections,
            Access::Read,
            name,
            async |connection: &mut Connection<D>| {
                let mut risks: Vec<String> = self.guard.risk().into_iter().collect();
                risks.extend(D::risks(connection).await?);
                Ok(risks)
            },
        ))
    }
}

/// Makes the tables that do not exist; returns their names.
pub(super) async fn make<D: Dialect>(
    connection: &mut Connection<D>,
    tables: &[Table],
) -> Result<Vec<&'static str>, sqlx::Error> {
    let mut made = Vec::new();
    for table in tables {
        let name = [Value::Text(table.name)];
        let exists = D::fetch(connection, D::TABLE_EXISTS, &name, &[Column::Int]).await?;
        if exists.first().and_then(|row| row.int(0)) != Some(1) {
            D::run_text(connection, table.statements).await?;
            made.push(table.name);
        }
    }
    Ok(made)
}
