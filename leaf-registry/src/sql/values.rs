//! Parameters and results of statements, in the types that the databases share.
//!
//! `sqlx` binds and decodes by the type of the database, while the code above the dialects is
//! generic over it: this file is the bridge. A statement costs a round trip, so the few heap
//! allocations here do not count.

use leaf_core::Tag;

/// A parameter of a statement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Int(i64),
    MaybeInt(Option<i64>),
    Text(&'a str),
    MaybeText(Option<&'a str>),
    /// A tag, which is compared byte by byte. In MySQL it stands for two parameters: the text, for
    /// the index, and its bytes, since a collation would take `Order` for `order`.
    Tag(&'a str),
    /// Several tags, at most [`MOST_RECORDS`](leaf_segment::store::MOST_RECORDS). MySQL has no list
    /// parameters: there it stands for that many parameters, and the last tag is repeated.
    Tags(&'a [Tag]),
    /// The names of tags to be made, at most as many as `Tags`. In MySQL it stands for two
    /// parameters: a text with one name in each line, and the number of lines.
    Names(&'a [Tag]),
}

/// The type of a column that is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Column {
    Int,
    Text,
}

/// A value that was read. Every column may hold NULL.
#[derive(Debug)]
pub(crate) enum Cell {
    Int(Option<i64>),
    Text(Option<String>),
}

/// One row that was read.
#[derive(Debug)]
pub(crate) struct Cells(pub(crate) Vec<Cell>);

impl Cells {
    /// The number in a column; `None` for NULL.
    pub(crate) fn int(&self, column: usize) -> Option<i64> {
        match self.0.get(column) {
            Some(Cell::Int(value)) => *value,
            _ => None,
        }
    }

    /// Takes the text out of a column; `None` for NULL.
    pub(crate) fn text(&mut self, column: usize) -> Option<String> {
        match self.0.get_mut(column) {
            Some(Cell::Text(value)) => value.take(),
            _ => None,
        }
    }
}

/// Writes the methods of a dialect that run statements on one type of database. The three
/// expressions bind to a query one tag, several tags, and names.
macro_rules! run_statements {
    ($database:ty, |$query:ident, $text:ident| $bind_tag:expr, |$many:ident, $tags:ident| $bind_tags:expr, |$rows:ident, $names:ident| $bind_names:expr) => {
        async fn execute(
            connection: &mut <$database as sqlx::Database>::Connection,
            statement: &'static str,
            values: &[$crate::sql::values::Value<'_>],
        ) -> Result<<$database as sqlx::Database>::QueryResult, sqlx::Error> {
            bound!(
                $database,
                statement,
                values,
                |$query, $text| $bind_tag,
                |$many, $tags| { $bind_tags },
                |$rows, $names| $bind_names
            )
            .execute(connection)
            .await
        }

        async fn fetch(
            connection: &mut <$database as sqlx::Database>::Connection,
            statement: &'static str,
            values: &[$crate::sql::values::Value<'_>],
            columns: &'static [$crate::sql::values::Column],
        ) -> Result<Vec<$crate::sql::values::Cells>, sqlx::Error> {
            use sqlx::Row;
            use $crate::sql::values::{Cell, Cells, Column};
            let query = bound!(
                $database,
                statement,
                values,
                |$query, $text| $bind_tag,
                |$many, $tags| { $bind_tags },
                |$rows, $names| $bind_names
            );
            // Read to the end: PostgreSQL sends the row before the commit; a change is durable only
            // once the statement has ended.
            let rows = query.fetch_all(connection).await?;
            let mut read = Vec::with_capacity(rows.len());
            for row in rows {
                let mut cells = Vec::with_capacity(columns.len());
                for (at, column) in columns.iter().enumerate() {
                    cells.push(match column {
                        Column::Int => Cell::Int(row.try_get(at)?),
                        Column::Text => Cell::Text(row.try_get(at)?),
                    });
                }
                read.push(Cells(cells));
            }
            Ok(read)
        }

        async fn run_text(
            connection: &mut <$database as sqlx::Database>::Connection,
            statements: &'static str,
        ) -> Result<(), sqlx::Error> {
            sqlx::raw_sql(statements).execute(connection).await.map(|_| ())
        }

        fn affected(done: &<$database as sqlx::Database>::QueryResult) -> u64 {
            done.rows_affected()
        }
    };
}

/// A statement with its parameters, bound in their order. Texts are cloned: the query outlives
/// `$values`.
macro_rules! bound {
    ($database:ty, $statement:expr, $values:expr, |$query:ident, $text:ident| $bind_tag:expr, |$many:ident, $tags:ident| $bind_tags:expr, |$rows:ident, $names:ident| $bind_names:expr) => {{
        let mut query = sqlx::query::<$database>($statement);
        for value in $values {
            query = match *value {
                $crate::sql::values::Value::Int(value) => query.bind(value),
                $crate::sql::values::Value::MaybeInt(value) => query.bind(value),
                $crate::sql::values::Value::Text(value) => query.bind(value.to_owned()),
                $crate::sql::values::Value::MaybeText(value) => {
                    query.bind(value.map(str::to_owned))
                }
                $crate::sql::values::Value::Tag(value) => {
                    let ($query, $text) = (query, value.to_owned());
                    $bind_tag
                }
                $crate::sql::values::Value::Tags(value) => {
                    let ($many, $tags) = (query, value);
                    $bind_tags
                }
                $crate::sql::values::Value::Names(value) => {
                    let ($rows, $names) = (query, value);
                    $bind_names
                }
            };
        }
        query
    }};
}

pub(crate) use {bound, run_statements};
