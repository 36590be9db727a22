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
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
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

const ALLOCATE: &str = "\
UPDATE leaf_alloc SET max_id = LAST_INSERT_ID(max_id + ?) \
WHERE biz_tag = ? AND CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) = ? \
AND step = ? AND max_id BETWEEN 0 AND ?";

const READ: &str = "\
SELECT biz_tag, CAST(max_id AS SIGNED), CAST(step AS SIGNED), description FROM leaf_alloc \
WHERE biz_tag = ? AND CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) = ?";

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

    async fn rows(
        &self,
        operation: String,
        tag: Option<&Tag>,
    ) -> Result<Vec<TagRecord>, StoreError> {
        let rows: Vec<record::Row> = self
            .with(operation, async |connection| match tag {
                Some(tag) => read(tag).fetch_all(connection).await,
                None => {
                    query_as(
                        "SELECT biz_tag, CAST(max_id AS SIGNED), CAST(step AS SIGNED), description \
                         FROM leaf_alloc",
                    )
                    .fetch_all(connection)
                    .await
                }
            })
            .await?;
        Ok(rows.into_iter().filter_map(record::read).collect())
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
                    let done = query(ALLOCATE)
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
            match self.rows(operation("read", tag), Some(tag)).await {
                Ok(mut rows) => Ok(rows.pop()),
                Err(error) if *error.kind() == StoreErrorKind::UnknownTag => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn tags(&self) -> BoxFuture<'_, Result<Vec<TagRecord>, StoreError>> {
        Box::pin(self.rows("read the tags in mysql".into(), None))
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
            let name = operation("set the step of", tag);
            let done = self
                .with(name.clone(), async |connection| {
                    query(
                        "UPDATE leaf_alloc SET step = ? WHERE biz_tag = ? \
                         AND CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) = ?",
                    )
                    .bind(i64::from(step.get()))
                    .bind(tag.as_str())
                    .bind(tag.as_str().as_bytes())
                    .execute(connection)
                    .await
                })
                .await?;
            record::at_least_one(done.rows_affected()).map_err(|kind| StoreError::new(kind, name))
        })
    }

    fn advance<'a>(
        &'a self,
        tag: &'a Tag,
        at_least: i64,
    ) -> BoxFuture<'a, Result<i64, StoreError>> {
        Box::pin(async move {
            let name = operation("advance", tag);
            let done = self
                .with(name.clone(), async |connection| {
                    query(
                        "UPDATE leaf_alloc SET max_id = LAST_INSERT_ID(GREATEST(max_id, ?)) \
                         WHERE biz_tag = ? \
                         AND CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) = ?",
                    )
                    .bind(at_least)
                    .bind(tag.as_str())
                    .bind(tag.as_str().as_bytes())
                    .execute(connection)
                    .await
                })
                .await?;
            record::at_least_one(done.rows_affected())
                .map_err(|kind| StoreError::new(kind, name))?;
            Ok(done.last_insert_id().cast_signed())
        })
    }

    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        unused: IdRange,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.with(operation("give back ids of", tag), async move |connection| {
            query(
                "UPDATE leaf_alloc SET max_id = ? WHERE biz_tag = ? \
                 AND CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) = ? AND max_id = ?",
            )
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
            let name = operation("delete", tag);
            let done = self
                .with(name.clone(), async |connection| {
                    query(
                        "DELETE FROM leaf_alloc WHERE biz_tag = ? \
                         AND CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) = ?",
                    )
                    .bind(tag.as_str())
                    .bind(tag.as_str().as_bytes())
                    .execute(connection)
                    .await
                })
                .await?;
            record::at_least_one(done.rows_affected()).map_err(|kind| StoreError::new(kind, name))
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
    query_as(READ).bind(tag.as_str()).bind(tag.as_str().as_bytes())
}

fn operation(what: &str, tag: &Tag) -> String {
    format!("{what} tag {:?} in mysql", tag.as_str())
}
