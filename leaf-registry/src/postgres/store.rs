//! The segment store `postgres`.
//!
//! Invariant: a range counts only after the server has said that it is ready for the next statement.
//! The row of `UPDATE … RETURNING` arrives before its commit: whoever stops reading there takes a
//! range that may not be durable. `fetch_all` reads to the end. A server that commits without waiting
//! for its disk (`synchronous_commit = off`) is told to wait on every connection.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag};
use leaf_segment::{NewTag, SegmentStore, StoreError, StoreErrorKind, TagRecord, TagSettings};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor, PgConnection, Postgres, query, query_as, query_scalar};

use super::error::{classify, is_absent};
use super::guard::{self, guarded};
use crate::checkout::or_default;
use crate::failover_guard::{FailoverGuard, Tried};
use crate::sql_pool::{SqlPool, Trouble};
use crate::sql_url::POSTGRES;
use crate::{Administration, StoreOptions, Table, record};

const TABLES: &[Table] = &[
    Table {
        name: "leaf_alloc",
        statements: "\
CREATE TABLE leaf_alloc (
    biz_tag     VARCHAR(128) COLLATE \"C\" NOT NULL PRIMARY KEY,
    max_id      BIGINT       NOT NULL DEFAULT 1,
    step        INTEGER      NOT NULL,
    description VARCHAR(256),
    update_time TIMESTAMPTZ  NOT NULL DEFAULT now()
);
INSERT INTO leaf_alloc (biz_tag, max_id, step, description)
VALUES ('leaf-segment-test', 1, 2000, 'Test leaf Segment Mode Get Id');
",
    },
    Table {
        name: "leaf_tag_settings",
        statements: "\
CREATE TABLE leaf_tag_settings (
    biz_tag  VARCHAR(128) COLLATE \"C\" NOT NULL PRIMARY KEY,
    enabled  SMALLINT NOT NULL DEFAULT 1,
    min_step INTEGER,
    max_step INTEGER,
    max_take INTEGER
);
",
    },
    guard::TABLE,
];

const CONNECTIONS: u32 = 16;
/// How often an allocation is tried while others change the record or the guard.
const TRIES: usize = 3;

/// Segments in a PostgreSQL table.
#[derive(Debug)]
pub struct PostgresStore {
    pool: SqlPool<Postgres>,
    guard: Arc<FailoverGuard>,
}

impl PostgresStore {
    /// A store at `postgres://user:password@host:port/database`. Connects when it is first used.
    ///
    /// # Errors
    /// `Refused` when the URL makes no sense.
    pub fn open(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        let guard = Arc::new(FailoverGuard::new(options.failover_margin));
        Ok(Self { pool: connect(url, &guard, CONNECTIONS)?, guard })
    }

    pub(crate) fn options(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
        PgConnectOptions::from_str(url)
    }

    /// The rows of one tag, or of all.
    async fn rows(
        &self,
        operation: String,
        tag: Option<&Tag>,
    ) -> Result<Vec<TagRecord>, StoreError> {
        self.pool
            .run(operation, async |connection| {
                let rows = read(tag).fetch_all(&mut *connection).await?;
                let settings = query_as(
                    "SELECT biz_tag, enabled::bigint, min_step::bigint, max_step::bigint, \
                 max_take::bigint FROM leaf_tag_settings WHERE $1::text IS NULL OR biz_tag = $1",
                )
                .bind(tag.map(Tag::as_str))
                .fetch_all(connection)
                .await;
                Ok(record::read(rows, or_default(settings, is_absent)?))
            })
            .await
    }
}

impl SegmentStore for PostgresStore {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        seen: Step,
    ) -> BoxFuture<'a, Result<IdRange, StoreError>> {
        Box::pin(async move {
            let name = || operation("allocate", tag);
            let amount = i64::from(amount.get());
            for _ in 0..TRIES {
                let tried = self
                    .pool
                    .run(name(), async |connection| {
                        let margin = self.guard.margin();
                        macro_rules! allocate {
                            ($($guarded:expr)?) => {
                                concat!(
                                    "UPDATE leaf_alloc SET max_id = max_id + $1, update_time = now() \
                                     WHERE biz_tag = $2 AND step = $3 AND max_id BETWEEN 0 AND $4",
                                    $($guarded,)?
                                    " RETURNING max_id"
                                )
                            };
                        }
                        let statement = match margin {
                            Some(_) => allocate!(guarded!()),
                            None => allocate!(),
                        };
                        let mut ends: Vec<i64> = query_scalar(statement)
                            .bind(amount)
                            .bind(tag.as_str())
                            .bind(i64::from(seen.get()))
                            .bind(record::most(amount))
                            .fetch_all(&mut *connection)
                            .await?;
                        if let Some(end) = ends.pop() {
                            return Ok(Tried::Granted(end));
                        }
                        let row = read(Some(tag)).fetch_optional(&mut *connection).await?;
                        if let Some(why) = record::why_not(row, seen, amount) {
                            return Ok(Tried::Refused(why));
                        }
                        match margin {
                            Some(margin) if !guard::is_ours(connection).await? => Ok(Tried::OtherServer(margin)),
                            _ => Ok(Tried::Again),
                        }
                    })
                    .await?;
                let pool = self.pool.connections().clone();
                let jump = |margin| guard::jump(pool, margin);
                if let Some(range) = self.guard.settle(tried, amount, &name, jump).await? {
                    return Ok(range);
                }
            }
            let why = "others changed the record meanwhile";
            Err(StoreError::new(StoreErrorKind::Unavailable, name()).because(why))
        })
    }

    fn tag<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<Option<TagRecord>, StoreError>> {
        Box::pin(async move {
            match self.rows(operation("read", tag), Some(tag)).await {
                Ok(mut records) => Ok(records.pop()),
                Err(error) if *error.kind() == StoreErrorKind::UnknownTag => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn tags(&self) -> BoxFuture<'_, Result<Vec<TagRecord>, StoreError>> {
        Box::pin(self.rows("read the tags in postgres".into(), None))
    }

    fn create<'a>(&'a self, new: &'a NewTag) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.pool.run(operation("create", &new.tag), async move |connection| {
            query(
                "INSERT INTO leaf_alloc (biz_tag, max_id, step, description) \
                 VALUES ($1, $2, $3, $4)",
            )
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
            let done = self.pool.run(name.clone(), async |connection| {
                query("UPDATE leaf_alloc SET step = $1, update_time = now() WHERE biz_tag = $2")
                    .bind(i64::from(step.get()))
                    .bind(tag.as_str())
                    .execute(connection)
                    .await
            });
            let met = record::at_least_one(done.await?.rows_affected());
            met.map_err(|kind| StoreError::new(kind, name))
        })
    }

    fn set_settings<'a>(
        &'a self,
        tag: &'a Tag,
        settings: &'a TagSettings,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let name = operation("change the settings of", tag);
            let done = self.pool.run(name.clone(), async |connection| {
                query(
                    "INSERT INTO leaf_tag_settings (biz_tag, enabled, min_step, max_step, max_take) \
                     SELECT biz_tag, $2, $3, $4, $5 FROM leaf_alloc WHERE biz_tag = $1 \
                     ON CONFLICT (biz_tag) DO UPDATE SET enabled = excluded.enabled, \
                     min_step = excluded.min_step, max_step = excluded.max_step, \
                     max_take = excluded.max_take",
                )
                .bind(tag.as_str())
                .bind(i16::from(settings.enabled))
                .bind(record::number(settings.min_step))
                .bind(record::number(settings.max_step))
                .bind(record::number(settings.max_take))
                .execute(connection)
                .await
            });
            let met = record::at_least_one(done.await?.rows_affected());
            met.map_err(|kind| StoreError::new(kind, name))
        })
    }

    fn advance<'a>(
        &'a self,
        tag: &'a Tag,
        at_least: i64,
    ) -> BoxFuture<'a, Result<i64, StoreError>> {
        Box::pin(async move {
            let name = operation("advance", tag);
            let max_id: Vec<i64> = self
                .pool
                .run(name.clone(), async |connection| {
                    query_scalar(
                        "UPDATE leaf_alloc SET max_id = greatest(max_id, $1), update_time = now() \
                         WHERE biz_tag = $2 RETURNING max_id",
                    )
                    .bind(at_least)
                    .bind(tag.as_str())
                    .fetch_all(connection)
                    .await
                })
                .await?;
            let max_id = max_id.first().copied();
            max_id.ok_or_else(|| StoreError::new(StoreErrorKind::UnknownTag, name))
        })
    }

    fn replace_max_id<'a>(
        &'a self,
        tag: &'a Tag,
        from: i64,
        to: i64,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.pool.run(operation("replace max_id of", tag), async move |connection| {
            macro_rules! replace {
                ($($guarded:expr)?) => {
                    concat!(
                        "UPDATE leaf_alloc SET max_id = $1, update_time = now() \
                         WHERE biz_tag = $2 AND max_id = $3"
                        $(, $guarded)?
                    )
                };
            }
            let statement = match self.guard.margin() {
                Some(_) => replace!(guarded!()),
                None => replace!(),
            };
            query(statement)
                .bind(to)
                .bind(tag.as_str())
                .bind(from)
                .execute(connection)
                .await
                .map(|done| done.rows_affected() == 1)
        }))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.pool.connections().close())
    }

    fn delete<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let name = operation("delete", tag);
            let deleted = self
                .pool
                .run(name.clone(), async |connection| {
                    let settings = query("DELETE FROM leaf_tag_settings WHERE biz_tag = $1")
                        .bind(tag.as_str())
                        .execute(&mut *connection)
                        .await;
                    or_default(settings.map(|_| ()), is_absent)?;
                    query("DELETE FROM leaf_alloc WHERE biz_tag = $1")
                        .bind(tag.as_str())
                        .execute(connection)
                        .await
                })
                .await?;
            let met = record::at_least_one(deleted.rows_affected());
            met.map_err(|kind| StoreError::new(kind, name))
        })
    }
}

impl Administration for PostgresStore {
    fn tables(&self) -> &'static [Table] {
        TABLES
    }

    fn apply(&self) -> BoxFuture<'_, Result<Vec<&'static str>, StoreError>> {
        Box::pin(self.pool.run("make the tables in postgres".into(), async |connection| {
            let made = make(&mut *connection, TABLES).await?;
            guard::introduce(&mut *connection, &self.guard).await?;
            if made.contains(&guard::TABLE.name) && self.guard.margin().is_some() {
                guard::claim(connection).await?;
            }
            Ok(made)
        }))
    }

    fn failover_margin(&self) -> Option<i64> {
        self.guard.wanted()
    }

    fn risks(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        Box::pin(self.pool.run("look at the settings of postgres".into(), async |connection| {
            let mut risks: Vec<String> = self.guard.risk().into_iter().collect();
            let (fsync, pages, waits): (bool, bool, bool) = query_as(
                "SELECT current_setting('fsync')::boolean, \
                 current_setting('full_page_writes')::boolean, \
                 (SELECT reset_val <> 'off' FROM pg_settings WHERE name = 'synchronous_commit')",
            )
            .fetch_one(connection)
            .await?;
            if !waits {
                risks.push(
                    "synchronous_commit is off: behind a pooler that shares connections a crash may \
                     lose allocations; set it to on for this user"
                        .into(),
                );
            }
            for (on, setting) in [(fsync, "fsync"), (pages, "full_page_writes")] {
                if !on {
                    risks.push(format!(
                        "{setting} is off: a crash may lose allocations; set it to on"
                    ));
                }
            }
            Ok(risks)
        }))
    }
}

/// Connections that are made when they are needed.
pub(super) fn connect(
    url: &str,
    guard: &Arc<FailoverGuard>,
    most: u32,
) -> Result<SqlPool<Postgres>, StoreError> {
    let (found_by, trouble) = (Arc::clone(guard), Trouble::default());
    let told_by = trouble.clone();
    let what = "read the PostgreSQL URL";
    let options = PostgresStore::options(url).map_err(|error| classify(what.into(), error))?;
    POSTGRES
        .check_files(url)
        .map_err(|why| StoreError::new(StoreErrorKind::Refused, what).because(why))?;
    let pool = PgPoolOptions::new()
        .max_connections(most)
        .acquire_timeout(Duration::from_secs(2))
        // A ping would be a second round trip; a stale connection costs one retry instead.
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            let (guard, trouble) = (Arc::clone(&found_by), told_by.clone());
            Box::pin(async move { trouble.of(prepare(connection, &guard).await) })
        })
        .connect_lazy_with(options);
    Ok(SqlPool::new(pool, trouble, classify))
}

/// Makes the tables that do not exist; returns their names.
pub(super) async fn make(
    connection: &mut PgConnection,
    tables: &[Table],
) -> Result<Vec<&'static str>, sqlx::Error> {
    let mut made = Vec::new();
    for table in tables {
        let exists: bool = query_scalar("SELECT to_regclass($1) IS NOT NULL")
            .bind(table.name)
            .fetch_one(&mut *connection)
            .await?;
        if !exists {
            sqlx::raw_sql(table.statements).execute(&mut *connection).await?;
            made.push(table.name);
        }
    }
    Ok(made)
}

/// Sets what must hold on every connection.
async fn prepare(connection: &mut PgConnection, guard: &FailoverGuard) -> Result<(), sqlx::Error> {
    connection
        .execute(
            // A range counts when its statement was answered: it must be durable then. A statement
            // whose caller has left must not wait for its lock much longer.
            "SET lock_timeout = '1500ms'; SELECT set_config('synchronous_commit', 'on', false) \
             WHERE current_setting('synchronous_commit') = 'off'",
        )
        .await?;
    guard::introduce(connection, guard).await
}

type ReadQuery<'q> = sqlx::query::QueryAs<'q, Postgres, record::Row, sqlx::postgres::PgArguments>;

fn read(tag: Option<&Tag>) -> ReadQuery<'_> {
    query_as(
        "SELECT biz_tag, max_id, step::bigint, description FROM leaf_alloc \
         WHERE $1::text IS NULL OR biz_tag = $1",
    )
    .bind(tag.map(Tag::as_str))
}

fn operation(what: &str, tag: &Tag) -> String {
    format!("{what} tag {:?} in postgres", tag.as_str())
}
