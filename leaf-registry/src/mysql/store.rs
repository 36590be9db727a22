//! The segment store `mysql`.
//!
//! Invariant: an allocation is one statement, and the range is computed from the value that its own
//! OK packet carries and the amount that this caller added. Nothing is read back, so nobody else's
//! value can be mistaken for one's own: a Java Leaf may write the same row at the same time.
//!
//! Tags are compared as bytes. The column's collation is asked first, for the index; on its own it
//! would take `order ` and `Order` for `order`.

use std::str::FromStr;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag};
use leaf_segment::{NewTag, SegmentStore, StoreError, StoreErrorKind, TagRecord};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions, MySqlQueryResult};
use sqlx::{Executor, MySql, MySqlConnection, MySqlPool, query, query_as, query_scalar};

use super::error::classify;
use crate::checkout::Checkout;
use crate::{Schema, record};

/// The table as the Java Leaf's own script makes it, in a character set that holds every tag.
const SCHEMA: &str = "\
CREATE TABLE leaf_alloc (
    biz_tag     VARCHAR(128) NOT NULL DEFAULT '',
    max_id      BIGINT       NOT NULL DEFAULT 1,
    step        INT          NOT NULL,
    description VARCHAR(256) NULL DEFAULT NULL,
    update_time TIMESTAMP    NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
    PRIMARY KEY (biz_tag)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT INTO leaf_alloc (biz_tag, max_id, step, description)
VALUES ('leaf-segment-test', 1, 2000, 'Test leaf Segment Mode Get Id');
";

/// A statement about one tag; its last parameters but those of the tail are the tag as text and as
/// bytes.
macro_rules! of_tag {
    ($head:literal $(, $tail:literal)?) => {
        concat!(
            $head,
            " WHERE biz_tag = ? AND CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) = ?"
            $(, $tail)?
        )
    };
}

/// Segments in a MySQL or MariaDB table.
#[derive(Debug)]
pub struct MysqlStore {
    pool: MySqlPool,
}

impl MysqlStore {
    /// A store at `mysql://user:password@host:port/database`. Connects when it is first used.
    ///
    /// # Errors
    /// `Refused` when the URL makes no sense.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        let options =
            Self::options(url).map_err(|error| classify("read the MySQL URL".into(), error))?;
        let pool = MySqlPoolOptions::new()
            .max_connections(16)
            .acquire_timeout(Duration::from_secs(2))
            // A ping would be a second round trip; a stale connection costs one retry instead.
            .test_before_acquire(false)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    // A range counts when its statement was answered: it must be committed then.
                    // A narrow column must refuse a value that it cannot hold.
                    connection
                        .execute(
                            "SET autocommit = 1, \
                             sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')",
                        )
                        .await?;
                    Ok(())
                })
            })
            .connect_lazy_with(options);
        Ok(Self { pool })
    }

    pub(crate) fn options(url: &str) -> Result<MySqlConnectOptions, sqlx::Error> {
        MySqlConnectOptions::from_str(url)
    }

    /// Runs `work` on a connection that is reused only if the server has answered.
    async fn with<T>(
        &self,
        operation: String,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let result = async {
            let mut checkout = Checkout::<MySql>::from(&self.pool).await?;
            let result = work(checkout.connection()).await;
            checkout.finish(&result);
            result
        };
        result.await.map_err(|error| classify(operation, error))
    }

    /// Runs a statement about one tag, with at most one parameter before it, that must meet its row.
    async fn change(
        &self,
        what: &str,
        tag: &Tag,
        statement: &'static str,
        value: Option<i64>,
    ) -> Result<MySqlQueryResult, StoreError> {
        let name = operation(what, tag);
        let done = self
            .with(name.clone(), async |connection| {
                let mut change = query(statement);
                if let Some(value) = value {
                    change = change.bind(value);
                }
                change.bind(tag.as_str()).bind(tag.as_str().as_bytes()).execute(connection).await
            })
            .await?;
        record::at_least_one(done.rows_affected()).map_err(|kind| StoreError::new(kind, name))?;
        Ok(done)
    }
}

impl SegmentStore for MysqlStore {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        seen: Step,
    ) -> BoxFuture<'a, Result<IdRange, StoreError>> {
        Box::pin(async move {
            let name = || operation("allocate", tag);
            let amount = i64::from(amount.get());
            let result = self
                .with(name(), async |connection| {
                    let done = query(of_tag!(
                        "UPDATE leaf_alloc SET max_id = LAST_INSERT_ID(max_id + ?)",
                        " AND step = ? AND max_id BETWEEN 0 AND ?"
                    ))
                    .bind(amount)
                    .bind(tag.as_str())
                    .bind(tag.as_str().as_bytes())
                    .bind(i64::from(seen.get()))
                    .bind(i64::MAX - amount)
                    .execute(&mut *connection)
                    .await?;
                    if done.rows_affected() == 1 {
                        return Ok(Ok(done.last_insert_id()));
                    }
                    let row: Option<record::Row> = read(tag).fetch_optional(connection).await?;
                    Ok(Err(record::why_not(row, seen)))
                })
                .await?;
            let end = result.map_err(|kind| StoreError::new(kind, name()))?;
            i64::try_from(end).ok().and_then(|end| IdRange::new(end - amount, end)).ok_or_else(
                || {
                    let why = format!("the server answered {end} to an addition of {amount}");
                    StoreError::new(StoreErrorKind::BadRecord(why), name())
                },
            )
        })
    }

    fn tag<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<Option<TagRecord>, StoreError>> {
        Box::pin(async move {
            let row = self.with(operation("read", tag), async |connection| {
                read(tag).fetch_optional(connection).await
            });
            match row.await {
                Ok(row) => Ok(row.and_then(record::read)),
                Err(error) if *error.kind() == StoreErrorKind::UnknownTag => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn tags(&self) -> BoxFuture<'_, Result<Vec<TagRecord>, StoreError>> {
        Box::pin(async {
            let rows: Vec<record::Row> = self
                .with("read the tags in mysql".into(), async |connection| {
                    query_as(
                        "SELECT biz_tag, CAST(max_id AS SIGNED), CAST(step AS SIGNED), description \
                         FROM leaf_alloc",
                    )
                    .fetch_all(connection)
                    .await
                })
                .await?;
            Ok(rows.into_iter().filter_map(record::read).collect())
        })
    }

    fn create<'a>(&'a self, new: &'a NewTag) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.with(operation("create", &new.tag), async move |connection| {
            query("INSERT INTO leaf_alloc (biz_tag, max_id, step, description) VALUES (?, ?, ?, ?)")
                .bind(new.tag.as_str())
                .bind(new.max_id)
                .bind(i64::from(new.step.get()))
                .bind(&new.description)
                .execute(connection)
                .await
                .map(|_| ())
        }))
    }

    fn set_step<'a>(&'a self, tag: &'a Tag, step: Step) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let statement = of_tag!("UPDATE leaf_alloc SET step = ?");
            let step = i64::from(step.get());
            self.change("set the step of", tag, statement, Some(step)).await.map(|_| ())
        })
    }

    fn advance<'a>(
        &'a self,
        tag: &'a Tag,
        at_least: i64,
    ) -> BoxFuture<'a, Result<i64, StoreError>> {
        Box::pin(async move {
            let statement =
                of_tag!("UPDATE leaf_alloc SET max_id = LAST_INSERT_ID(GREATEST(max_id, ?))");
            let done = self.change("advance", tag, statement, Some(at_least)).await?;
            Ok(done.last_insert_id().cast_signed())
        })
    }

    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        unused: IdRange,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.with(operation("give back ids of", tag), async move |connection| {
            query(of_tag!("UPDATE leaf_alloc SET max_id = ?", " AND max_id = ?"))
                .bind(unused.start())
                .bind(tag.as_str())
                .bind(tag.as_str().as_bytes())
                .bind(unused.end())
                .execute(connection)
                .await
                .map(|done| done.rows_affected() == 1)
        }))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.pool.close())
    }

    fn delete<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let statement = of_tag!("DELETE FROM leaf_alloc");
            self.change("delete", tag, statement, None).await.map(|_| ())
        })
    }
}

impl Schema for MysqlStore {
    fn statements(&self) -> &'static str {
        SCHEMA
    }

    fn apply(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.with("make the tables in mysql".into(), async |connection| {
            let exists: bool = query_scalar(
                "SELECT COUNT(*) > 0 FROM information_schema.tables \
                 WHERE table_schema = DATABASE() AND table_name = 'leaf_alloc'",
            )
            .fetch_one(&mut *connection)
            .await?;
            if !exists {
                sqlx::raw_sql(SCHEMA).execute(connection).await?;
            }
            Ok(!exists)
        }))
    }
}

type ReadQuery<'q> = sqlx::query::QueryAs<'q, MySql, record::Row, sqlx::mysql::MySqlArguments>;

fn read(tag: &Tag) -> ReadQuery<'_> {
    query_as(of_tag!(
        "SELECT biz_tag, CAST(max_id AS SIGNED), CAST(step AS SIGNED), description FROM leaf_alloc"
    ))
    .bind(tag.as_str())
    .bind(tag.as_str().as_bytes())
}

fn operation(what: &str, tag: &Tag) -> String {
    format!("{what} tag {:?} in mysql", tag.as_str())
}
