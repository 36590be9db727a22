//! The segment store `sqlite`.
//!
//! Invariant: a range counts only after COMMIT has answered, see [`super::file`].

use std::path::Path;

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag};
use leaf_segment::{NewTag, SegmentStore, StoreError, StoreErrorKind, TagRecord, TagSettings};
use sqlx::{query, query_as, query_scalar};

use super::error::is_missing_table;
use super::file::{SqliteFile, make};
use crate::checkout::or_default;
use crate::{Administration, Table, record};

const TABLES: &[Table] = &[
    Table {
        name: "leaf_alloc",
        statements: "\
CREATE TABLE leaf_alloc (
    biz_tag     TEXT    NOT NULL PRIMARY KEY,
    max_id      INTEGER NOT NULL DEFAULT 1,
    step        INTEGER NOT NULL,
    description TEXT,
    update_time TEXT    NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT;
INSERT INTO leaf_alloc (biz_tag, max_id, step, description)
VALUES ('leaf-segment-test', 1, 2000, 'Test leaf Segment Mode Get Id');
",
    },
    Table {
        name: "leaf_tag_settings",
        statements: "\
CREATE TABLE leaf_tag_settings (
    biz_tag  TEXT    NOT NULL PRIMARY KEY,
    enabled  INTEGER NOT NULL DEFAULT 1,
    min_step INTEGER,
    max_step INTEGER,
    max_take INTEGER
) STRICT;
",
    },
];

/// Segments in an SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    file: SqliteFile,
}

impl SqliteStore {
    /// Opens the file, and makes it where it does not exist.
    ///
    /// # Errors
    /// `Unavailable` or `Refused` when the file cannot be opened, made or written.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { file: SqliteFile::open(path).await? })
    }

    async fn rows(
        &self,
        operation: String,
        tag: Option<&Tag>,
    ) -> Result<Vec<TagRecord>, StoreError> {
        self.file
            .read(operation, async |connection| {
                let rows = query_as(
                    "SELECT biz_tag, max_id, step, description FROM leaf_alloc \
                     WHERE ?1 IS NULL OR biz_tag = ?1",
                )
                .bind(tag.map(Tag::as_str))
                .fetch_all(&mut *connection)
                .await?;
                let settings = query_as(
                    "SELECT biz_tag, enabled, min_step, max_step, max_take FROM leaf_tag_settings \
                     WHERE ?1 IS NULL OR biz_tag = ?1",
                )
                .bind(tag.map(Tag::as_str))
                .fetch_all(connection)
                .await;
                Ok(record::read(rows, or_default(settings, is_missing_table)?))
            })
            .await
    }
}

impl SegmentStore for SqliteStore {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        seen: Step,
    ) -> BoxFuture<'a, Result<IdRange, StoreError>> {
        Box::pin(self.file.write(operation("allocate", tag), async move |connection| {
            let amount = i64::from(amount.get());
            let end: Option<i64> = query_scalar(
                "UPDATE leaf_alloc SET max_id = max_id + ?1, update_time = CURRENT_TIMESTAMP \
                 WHERE biz_tag = ?2 AND step = ?3 AND max_id BETWEEN 0 AND ?4 RETURNING max_id",
            )
            .bind(amount)
            .bind(tag.as_str())
            .bind(i64::from(seen.get()))
            .bind(record::most(amount))
            .fetch_optional(&mut *connection)
            .await?;
            if let Some(range) = end.and_then(|end| IdRange::new(end - amount, end)) {
                return Ok(Ok(range));
            }
            let row: Option<record::Row> = query_as(
                "SELECT biz_tag, max_id, step, description FROM leaf_alloc WHERE biz_tag = ?1",
            )
            .bind(tag.as_str())
            .fetch_optional(&mut *connection)
            .await?;
            // The transaction holds the lock: nobody has changed it meanwhile.
            let why = record::why_not(row, seen, amount);
            Ok(Err(why.unwrap_or(StoreErrorKind::Unavailable)))
        }))
    }

    fn tag<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<Option<TagRecord>, StoreError>> {
        Box::pin(async move { Ok(self.rows(operation("read", tag), Some(tag)).await?.pop()) })
    }

    fn tags(&self) -> BoxFuture<'_, Result<Vec<TagRecord>, StoreError>> {
        Box::pin(self.rows("read the tags in sqlite".into(), None))
    }

    fn create<'a>(&'a self, new: &'a NewTag) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.file.write(operation("create", &new.tag), async move |connection| {
            query(
                "INSERT INTO leaf_alloc (biz_tag, max_id, step, description) VALUES (?, ?, ?, ?)",
            )
            .bind(new.tag.as_str())
            .bind(new.max_id)
            .bind(i64::from(new.step.get()))
            .bind(&new.description)
            .execute(&mut *connection)
            .await?;
            Ok(Ok(()))
        }))
    }

    fn set_step<'a>(&'a self, tag: &'a Tag, step: Step) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.file.write(operation("set the step of", tag), async move |connection| {
            let done = query(
                "UPDATE leaf_alloc SET step = ?1, update_time = CURRENT_TIMESTAMP \
                 WHERE biz_tag = ?2",
            )
            .bind(i64::from(step.get()))
            .bind(tag.as_str())
            .execute(&mut *connection)
            .await?;
            Ok(record::at_least_one(done.rows_affected()))
        }))
    }

    fn set_settings<'a>(
        &'a self,
        tag: &'a Tag,
        settings: &'a TagSettings,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.file.write(
            operation("change the settings of", tag),
            async move |connection| {
                let done = query(
                "REPLACE INTO leaf_tag_settings (biz_tag, enabled, min_step, max_step, max_take) \
                 SELECT biz_tag, ?2, ?3, ?4, ?5 FROM leaf_alloc WHERE biz_tag = ?1",
            )
            .bind(tag.as_str())
            .bind(settings.enabled)
            .bind(record::number(settings.min_step))
            .bind(record::number(settings.max_step))
            .bind(record::number(settings.max_take))
            .execute(&mut *connection)
            .await?;
                Ok(record::at_least_one(done.rows_affected()))
            },
        ))
    }

    fn advance<'a>(
        &'a self,
        tag: &'a Tag,
        at_least: i64,
    ) -> BoxFuture<'a, Result<i64, StoreError>> {
        Box::pin(self.file.write(operation("advance", tag), async move |connection| {
            let max_id = query_scalar(
                "UPDATE leaf_alloc SET max_id = MAX(max_id, ?1), update_time = CURRENT_TIMESTAMP \
                 WHERE biz_tag = ?2 RETURNING max_id",
            )
            .bind(at_least)
            .bind(tag.as_str())
            .fetch_optional(&mut *connection)
            .await?;
            Ok(max_id.ok_or(StoreErrorKind::UnknownTag))
        }))
    }

    fn replace_max_id<'a>(
        &'a self,
        tag: &'a Tag,
        from: i64,
        to: i64,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.file.write(operation("replace max_id of", tag), async move |connection| {
            let done = query(
                "UPDATE leaf_alloc SET max_id = ?1, update_time = CURRENT_TIMESTAMP \
                 WHERE biz_tag = ?2 AND max_id = ?3",
            )
            .bind(to)
            .bind(tag.as_str())
            .bind(from)
            .execute(&mut *connection)
            .await?;
            Ok(Ok(done.rows_affected() == 1))
        }))
    }

    /// Also moves what is in the write-ahead log into the file.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.file.pool().close())
    }

    fn delete<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.file.write(operation("delete", tag), async move |connection| {
            query("DELETE FROM leaf_tag_settings WHERE biz_tag = ?1")
                .bind(tag.as_str())
                .execute(&mut *connection)
                .await?;
            let done = query("DELETE FROM leaf_alloc WHERE biz_tag = ?1")
                .bind(tag.as_str())
                .execute(&mut *connection)
                .await?;
            Ok(record::at_least_one(done.rows_affected()))
        }))
    }
}

impl Administration for SqliteStore {
    fn tables(&self) -> &'static [Table] {
        TABLES
    }

    fn apply(&self) -> BoxFuture<'_, Result<Vec<&'static str>, StoreError>> {
        Box::pin(self.file.write("make the tables in sqlite".into(), async |connection| {
            make(connection, TABLES).await.map(Ok)
        }))
    }

    /// None that could be seen: the settings that matter are made on every connection.
    fn risks(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

fn operation(what: &str, tag: &Tag) -> String {
    format!("{what} tag {:?} in sqlite", tag.as_str())
}
