//! The segment store `mysql`.
//!
//! Invariant: an allocation is one statement, and the range is computed from the value that its own
//! OK packet carries and the amount that this caller added. Nothing is read back, so nobody else's
//! value can be mistaken for one's own: a Java Leaf may write the same row at the same time.
//!
//! Tags are compared as bytes. The column's collation is asked first, for the index; on its own it
//! would take `order ` and `Order` for `order`.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag};
use leaf_segment::{NewTag, SegmentStore, StoreError, StoreErrorKind, TagRecord, TagSettings};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions, MySqlQueryResult};
use sqlx::{Executor, MySql, MySqlConnection, query, query_as, query_scalar};

use super::error::{classify, is_absent};
use super::guard::{self, guarded};
use crate::checkout::or_default;
use crate::failover_guard::{FailoverGuard, Tried};
use crate::sql_pool::{SqlPool, Trouble};
use crate::sql_url::MYSQL;
use crate::{Administration, StoreOptions, Table, record};

/// `leaf_alloc` is the table as the Java Leaf's own script makes it, in a character set that holds
/// every tag.
const TABLES: &[Table] = &[
    Table {
        name: "leaf_alloc",
        statements: "\
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
",
    },
    Table {
        name: "leaf_tag_settings",
        statements: "\
CREATE TABLE leaf_tag_settings (
    biz_tag  VARCHAR(128) NOT NULL,
    enabled  TINYINT      NOT NULL DEFAULT 1,
    min_step INT          NULL,
    max_step INT          NULL,
    max_take INT          NULL,
    PRIMARY KEY (biz_tag)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
",
    },
    guard::TABLE,
];

const CONNECTIONS: u32 = 16;
/// How often an allocation is tried while others change the record or the guard.
const TRIES: usize = 3;

/// A statement about one tag; its last parameters but those of the tail are the tag as text and as
/// bytes.
macro_rules! of_tag {
    ($head:literal $(, $tail:expr)*) => {
        concat!(
            $head,
            " WHERE biz_tag = ? AND CAST(CONVERT(biz_tag USING utf8mb4) AS BINARY) = ?"
            $(, $tail)*
        )
    };
}

/// Segments in a MySQL or MariaDB table.
#[derive(Debug)]
pub struct MysqlStore {
    pool: SqlPool<MySql>,
    guard: Arc<FailoverGuard>,
}

impl MysqlStore {
    /// A store at `mysql://user:password@host:port/database`. Connects when it is first used.
    ///
    /// # Errors
    /// `Refused` when the URL makes no sense.
    pub fn open(url: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        let guard = Arc::new(FailoverGuard::new(options.failover_margin));
        Ok(Self { pool: connect(url, &guard, CONNECTIONS)?, guard })
    }

    pub(crate) fn options(url: &str) -> Result<MySqlConnectOptions, sqlx::Error> {
        MySqlConnectOptions::from_str(url)
    }

    /// Runs a statement about one tag, with one parameter before it, that must meet its row.
    async fn change(
        &self,
        what: &str,
        tag: &Tag,
        statement: &'static str,
        value: i64,
    ) -> Result<MySqlQueryResult, StoreError> {
        let name = operation(what, tag);
        let done = self
            .pool
            .run(name.clone(), async |connection| {
                query(statement)
                    .bind(value)
                    .bind(tag.as_str())
                    .bind(tag.as_str().as_bytes())
                    .execute(connection)
                    .await
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
            for _ in 0..TRIES {
                let tried = self
                    .pool
                    .run(name(), async |connection| {
                        let margin = self.guard.margin();
                        let statement = match margin {
                            Some(_) => of_tag!(
                                "UPDATE leaf_alloc SET max_id = LAST_INSERT_ID(max_id + ?)",
                                " AND step = ? AND max_id BETWEEN 0 AND ?",
                                guarded!()
                            ),
                            None => of_tag!(
                                "UPDATE leaf_alloc SET max_id = LAST_INSERT_ID(max_id + ?)",
                                " AND step = ? AND max_id BETWEEN 0 AND ?"
                            ),
                        };
                        let done = query(statement)
                            .bind(amount)
                            .bind(tag.as_str())
                            .bind(tag.as_str().as_bytes())
                            .bind(i64::from(seen.get()))
                            .bind(record::most(amount))
                            .execute(&mut *connection)
                            .await?;
                        if done.rows_affected() == 1 {
                            return Ok(Tried::Granted(done.last_insert_id().cast_signed()));
                        }
                        let row: Option<record::Row> =
                            read(tag).fetch_optional(&mut *connection).await?;
                        if let Some(why) = record::why_not(row, seen, amount) {
                            return Ok(Tried::Refused(why));
                        }
                        match margin {
                            Some(margin) if !guard::is_ours(connection, &self.guard).await? => {
                                Ok(Tried::OtherServer(margin))
                            }
                            _ => Ok(Tried::Again),
                        }
                    })
                    .await?;
                let pool = self.pool.connections().clone();
                let jump = |margin| guard::jump(pool, Arc::clone(&self.guard), margin);
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
            let rows = self.pool.run(operation("read", tag), async |connection| {
                let row: Vec<record::Row> = read(tag).fetch_all(&mut *connection).await?;
                let settings = query_as(of_tag!(
                    "SELECT biz_tag, CAST(enabled AS SIGNED), CAST(min_step AS SIGNED), \
                     CAST(max_step AS SIGNED), CAST(max_take AS SIGNED) FROM leaf_tag_settings"
                ));
                let settings = settings.bind(tag.as_str()).bind(tag.as_str().as_bytes());
                let settings = or_default(settings.fetch_all(connection).await, is_absent)?;
                Ok(record::read(row, settings).pop())
            });
            match rows.await {
                Err(error) if *error.kind() == StoreErrorKind::UnknownTag => Ok(None),
                record => record,
            }
        })
    }

    fn tags(&self) -> BoxFuture<'_, Result<Vec<TagRecord>, StoreError>> {
        Box::pin(self.pool.run("read the tags in mysql".into(), async |connection| {
            let rows = query_as(
                "SELECT biz_tag, CAST(max_id AS SIGNED), CAST(step AS SIGNED), description \
                 FROM leaf_alloc",
            )
            .fetch_all(&mut *connection)
            .await?;
            let settings = query_as(
                "SELECT biz_tag, CAST(enabled AS SIGNED), CAST(min_step AS SIGNED), \
                 CAST(max_step AS SIGNED), CAST(max_take AS SIGNED) FROM leaf_tag_settings",
            )
            .fetch_all(connection)
            .await;
            Ok(record::read(rows, or_default(settings, is_absent)?))
        }))
    }

    fn create<'a>(&'a self, new: &'a NewTag) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.pool.run(operation("create", &new.tag), async move |connection| {
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
            self.change("set the step of", tag, statement, step).await.map(|_| ())
        })
    }

    fn set_settings<'a>(
        &'a self,
        tag: &'a Tag,
        settings: &'a TagSettings,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let name = operation("change the settings of", tag);
            let known = self
                .pool
                .run(name.clone(), async |connection| {
                    if read(tag).fetch_optional(&mut *connection).await?.is_none() {
                        return Ok(0);
                    }
                    query(
                        "REPLACE INTO leaf_tag_settings \
                         (biz_tag, enabled, min_step, max_step, max_take) VALUES (?, ?, ?, ?, ?)",
                    )
                    .bind(tag.as_str())
                    .bind(settings.enabled)
                    .bind(record::number(settings.min_step))
                    .bind(record::number(settings.max_step))
                    .bind(record::number(settings.max_take))
                    .execute(connection)
                    .await
                    .map(|done| done.rows_affected())
                })
                .await?;
            record::at_least_one(known).map_err(|kind| StoreError::new(kind, name))
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
            let done = self.change("advance", tag, statement, at_least).await?;
            Ok(done.last_insert_id().cast_signed())
        })
    }

    fn replace_max_id<'a>(
        &'a self,
        tag: &'a Tag,
        from: i64,
        to: i64,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.pool.run(operation("replace max_id of", tag), async move |connection| {
            let statement = match self.guard.margin() {
                Some(_) => {
                    of_tag!("UPDATE leaf_alloc SET max_id = ?", " AND max_id = ?", guarded!())
                }
                None => of_tag!("UPDATE leaf_alloc SET max_id = ?", " AND max_id = ?"),
            };
            query(statement)
                .bind(to)
                .bind(tag.as_str())
                .bind(tag.as_str().as_bytes())
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
                    let settings = query(of_tag!("DELETE FROM leaf_tag_settings"))
                        .bind(tag.as_str())
                        .bind(tag.as_str().as_bytes())
                        .execute(&mut *connection)
                        .await;
                    or_default(settings.map(|_| ()), is_absent)?;
                    query(of_tag!("DELETE FROM leaf_alloc"))
                        .bind(tag.as_str())
                        .bind(tag.as_str().as_bytes())
                        .execute(connection)
                        .await
                })
                .await?;
            record::at_least_one(deleted.rows_affected())
                .map_err(|kind| StoreError::new(kind, name))
        })
    }
}

impl Administration for MysqlStore {
    fn tables(&self) -> &'static [Table] {
        TABLES
    }

    fn apply(&self) -> BoxFuture<'_, Result<Vec<&'static str>, StoreError>> {
        Box::pin(self.pool.run("make the tables in mysql".into(), async |connection| {
            let made = make(&mut *connection, TABLES).await?;
            guard::introduce(&mut *connection, &self.guard).await?;
            if made.contains(&guard::TABLE.name) && self.guard.wanted().is_some() {
                guard::claim(connection).await?;
            }
            Ok(made)
        }))
    }

    fn failover_margin(&self) -> Option<i64> {
        self.guard.wanted()
    }

    fn risks(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        Box::pin(self.pool.run("look at the settings of mysql".into(), async |connection| {
            let mut values: Vec<(String, String)> = query_as(
                "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
                 ('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', \
                  'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')",
            )
            .fetch_all(&mut *connection)
            .await?;
            values.extend(
                query_as(
                    "SHOW GLOBAL STATUS WHERE Variable_name IN \
                     ('Rpl_semi_sync_master_status', 'Rpl_semi_sync_source_status')",
                )
                .fetch_all(connection)
                .await?,
            );
            Ok(risks(&values, &self.guard))
        }))
    }
}

/// What the server's variables and counters say.
fn risks(values: &[(String, String)], guard: &FailoverGuard) -> Vec<String> {
    let is = |name: &str, wanted: &str| {
        values.iter().any(|(key, value)| key.eq_ignore_ascii_case(name) && value == wanted)
    };
    let mut risks: Vec<String> = guard.risk().into_iter().collect();
    let semi_sync = ["master", "source"].into_iter().any(|role| {
        is(&format!("rpl_semi_sync_{role}_enabled"), "ON")
            && is(&format!("rpl_semi_sync_{role}_status"), "OFF")
    });
    if semi_sync {
        risks.push(
            "semi-synchronous replication has fallen back to asynchronous: a failover now would \
             lose allocations; bring a replica back"
                .into(),
        );
    }
    if !is("innodb_flush_log_at_trx_commit", "1") {
        risks.push(
            "innodb_flush_log_at_trx_commit is not 1: a crash may lose allocations; set it to 1"
                .into(),
        );
    }
    if is("log_bin", "ON") && !is("sync_binlog", "1") {
        risks.push(
            "sync_binlog is not 1: a crash may lose what replicas have seen, or the reverse; set \
             it to 1"
                .into(),
        );
    }
    risks
}

/// Connections that know their server's name, made when they are needed.
pub(super) fn connect(
    url: &str,
    guard: &Arc<FailoverGuard>,
    most: u32,
) -> Result<SqlPool<MySql>, StoreError> {
    let (found_by, trouble) = (Arc::clone(guard), Trouble::default());
    let told_by = trouble.clone();
    let what = "read the MySQL URL";
    let options = MysqlStore::options(url).map_err(|error| classify(what.into(), error))?;
    MYSQL
        .check_files(url)
        .map_err(|why| StoreError::new(StoreErrorKind::Refused, what).because(why))?;
    let pool = MySqlPoolOptions::new()
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
    connection: &mut MySqlConnection,
    tables: &[Table],
) -> Result<Vec<&'static str>, sqlx::Error> {
    let mut made = Vec::new();
    for table in tables {
        let exists: bool = query_scalar(
            "SELECT COUNT(*) > 0 FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name = ?",
        )
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
async fn prepare(
    connection: &mut MySqlConnection,
    guard: &FailoverGuard,
) -> Result<(), sqlx::Error> {
    connection
        .execute(
            // A range counts when its statement was answered: it must be committed then, and a commit
            // must not begin another transaction. A narrow column must refuse a value that it cannot
            // hold. A statement whose caller has left must not wait for its lock much longer.
            "SET autocommit = 1, completion_type = 0, \
             sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES'), \
             innodb_lock_wait_timeout = 1, lock_wait_timeout = 2",
        )
        .await?;
    guard::introduce(connection, guard).await
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
