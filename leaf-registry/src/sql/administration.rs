//! The administration of the segment store in an SQL database: its tables, notes and risks.

use leaf_segment::store::StoreFuture;
use leaf_segment::{StoreError, StoreErrorKind};

use super::connections::{Access, empty_if_absent, run};
use super::dialect::{Connection, Dialect, ErrorMeaning};
use super::store::{SETTINGS_COLUMNS, SqlStore};
use super::values::{Column, Value};
use crate::administration::Note;
use crate::{Administration, Table};

impl<D: Dialect> Administration for SqlStore<D> {
    fn tables(&self) -> &'static [Table] {
        D::SEGMENT_TABLES
    }

    fn apply(&self) -> StoreFuture<'_, Vec<&'static str>> {
        let name = format!("make the tables in {}", D::NAME);
        Box::pin(run(&self.connections, Access::Write, name, async |connection| {
            // `leaf_guard` is made before these two tables. So if one of them exists without
            // `leaf_guard`, the cause is not another process that is making the tables now.
            let is_leafs = table_exists::<D>(connection, "leaf_sequence").await?
                || table_exists::<D>(connection, "leaf_tag_settings").await?;
            let made = make::<D>(connection, D::SEGMENT_TABLES).await?;
            D::identify_server(connection, &self.guard).await?;
            if made.contains(&"leaf_guard") && is_leafs {
                tracing::warn!(
                    "leaf_guard was missing beside other tables of Leaf, so that it is not known which server was \
                     allocated from last: the first allocation advances every tag, as after a failover"
                );
            } else if made.contains(&"leaf_guard") && self.guard.active_margin().is_some() {
                for guard in [D::ALLOC.guard, D::SEQUENCE.guard].into_iter().flatten() {
                    D::execute(connection, guard.fill_empty, &[]).await?;
                }
            } else if made.contains(&"leaf_sequence")
                && self.guard.active_margin().is_some()
                && let Some(guard) = D::SEQUENCE.guard
                && D::fetch(connection, guard.allocated_last, &[], &[Column::Int]).await?.is_empty()
            {
                // `leaf_guard` existed before `leaf_sequence`, which is new and empty: no
                // failover can have lost anything of it.
                D::execute(connection, guard.insert_missing, &[]).await?;
            }
            if let (Some(_), Some(margin)) = (self.guard.active_margin(), D::MARGIN) {
                D::execute(connection, margin.insert_missing, &[]).await?;
            }
            self.guard.store_margin::<D>(connection).await?;
            Ok(made)
        }))
    }

    fn note(&self, note: Note) -> StoreFuture<'_, Option<String>> {
        let operation = format!("read a note of {}", D::NAME);
        Box::pin(run(&self.connections, Access::Read, operation, async move |connection| {
            let name = [Value::Tag(note.key())];
            let rows = D::fetch(connection, D::SETTINGS.read, &name, SETTINGS_COLUMNS).await;
            Ok(empty_if_absent::<D, _>(rows)?.pop().and_then(|mut row| row.text(1)))
        }))
    }

    fn write_note<'a>(
        &'a self,
        note: Note,
        before: Option<&'a str>,
        after: &'a str,
    ) -> StoreFuture<'a, bool> {
        let operation = format!("write a note of {}", D::NAME);
        Box::pin(run(&self.connections, Access::Write, operation, async move |connection| {
            let (name, after) = (Value::Text(note.key()), Value::Text(after));
            Ok(match before {
                None => D::write(connection, D::SETTINGS.insert, &[name, after]).await?,
                Some(before) => {
                    let values = [after, name, Value::Text(before)];
                    D::write(connection, D::SETTINGS.replace, &values).await?
                }
            })
        }))
    }

    fn greatest<'a>(&'a self, table: &'a str, column: &'a str) -> StoreFuture<'a, Option<i64>> {
        Box::pin(async move {
            let operation = format!("read the greatest number of a column of {}", D::NAME);
            let refuse = |why: String| {
                StoreError::new(StoreErrorKind::Refused, operation.clone()).because(why)
            };
            let (Some(table), Some(column)) = (quote::<D>(table), quote::<D>(column)) else {
                let why = "a table and a column have names of 1 to 64 letters, digits, _ or $";
                return Err(refuse(why.into()));
            };
            // With the table's name, or SQLite takes a column that it does not know for a text.
            let greatest = format!("MAX(t.{column})");
            let statement = format!(
                "SELECT {}, CAST({greatest} AS {}) FROM {table} AS t",
                D::TYPE_OF.replace("{}", &greatest),
                D::INTEGER
            );
            // Statements live as long as the process, so none is built from outside input. This one
            // is built from names that were checked, and only once in the life of a command.
            let statement: &'static str = Box::leak(statement.into_boxed_str());
            let ask = async |connection: &mut Connection<D>| {
                let columns = &[Column::Text, Column::Int];
                Ok(D::fetch(connection, statement, &[], columns).await?)
            };
            let rows = run(&self.connections, Access::Read, operation.clone(), ask).await?;
            let mut row = rows.into_iter().next();
            let of = row.as_mut().and_then(|row| row.text(0)).unwrap_or_default().to_lowercase();
            let integers = ["integer", "bigint", "smallint", "numeric", "null"];
            match row.and_then(|row| row.int(1)) {
                Some(..0) => Err(refuse("its greatest number is negative, or above 2^63".into())),
                _ if !integers.contains(&of.as_str()) => {
                    Err(refuse(format!("the column has no integers ({of})")))
                }
                greatest => Ok(greatest),
            }
        })
    }

    fn failover_margin(&self) -> Option<i64> {
        self.guard.configured_margin()
    }

    fn risks(&self) -> StoreFuture<'_, Vec<String>> {
        let name = format!("look at the settings of {}", D::NAME);
        Box::pin(run(&self.connections, Access::Read, name, async |connection| {
            let mut risks: Vec<String> = self.guard.risk().into_iter().collect();
            risks.extend(D::losses(connection).await?);
            risks.extend(D::risks(connection).await?);
            Ok(risks)
        }))
    }

    fn losses(&self) -> StoreFuture<'_, Vec<String>> {
        let name = format!("look at the settings of {}", D::NAME);
        Box::pin(run(&self.connections, Access::Read, name, async |connection| {
            Ok(D::losses(connection).await?)
        }))
    }
}

/// The quoted form of a name for a statement, like `"shop"."orders"`. `None` unless each part of
/// the name is 1 to 64 letters, digits, `_` and `$`.
fn quote<D: Dialect>(name: &str) -> Option<String> {
    let is_plain = |part: &str| {
        let mut letters = part.bytes();
        (1..=64).contains(&part.len())
            && letters.all(|it| it.is_ascii_alphanumeric() || matches!(it, b'_' | b'$'))
    };
    let parts = name.split('.').map(|part| format!("{}{part}{}", D::QUOTE, D::QUOTE));
    name.split('.').all(is_plain).then(|| parts.collect::<Vec<_>>().join("."))
}

/// Whether the database has a table of this name.
async fn table_exists<D: Dialect>(
    connection: &mut Connection<D>,
    table: &str,
) -> Result<bool, sqlx::Error> {
    let name = [Value::Text(table)];
    let exists = D::fetch(connection, D::TABLE_EXISTS, &name, &[Column::Int]).await?;
    Ok(exists.first().and_then(|row| row.int(0)) == Some(1))
}

/// Makes the tables that do not exist; returns their names.
pub(super) async fn make<D: Dialect>(
    connection: &mut Connection<D>,
    tables: &[Table],
) -> Result<Vec<&'static str>, sqlx::Error> {
    let mut made = Vec::new();
    for table in tables {
        if !table_exists::<D>(connection, table.name).await? {
            match D::run_text(connection, table.statements).await {
                Ok(()) => made.push(table.name),
                // Another process has made the table meanwhile, and its rows, or one of them: a row
                // of the guard that is missing counts as a failover. If the table does not exist,
                // something else has its name.
                Err(error)
                    if matches!(
                        (D::ERROR_MEANING)(&error),
                        ErrorMeaning::ExistingTable | ErrorMeaning::Duplicate
                    ) && table_exists::<D>(connection, table.name).await? => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(made)
}
