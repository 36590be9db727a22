//! The failover guard: it advances every tag when another database server answers than before.
//!
//! A replica that is promoted may lack the last allocations of its primary. For each table of tags,
//! one row of `leaf_guard(id, server_uid)` names the database server that allocated from the table
//! last; an allocation succeeds only on this server. A node whose connection leads to another
//! server advances every tag of that table by the margin and writes the new name, in one
//! transaction. So ids repeat only if a failover loses more than the margin; only a quorum store
//! excludes that.
//!
//! A missing row also counts as a failover: the replica may lack it. Only the process that makes
//! the table writes its server's name without a jump, and only if the database had no other table
//! of Leaf. If it had one, the guard's table was lost, and with it the name of the last server.
//! (The process that makes `leaf_sequence` later inserts the missing row of that table without a
//! jump, too, since the table is empty.)
//!
//! Nodes may be configured with different margins. Row 3 of the table holds the greatest margin,
//! and a jump uses that. Once in each refresh, and after a jump, each node compares its own margin
//! with row 3, and writes it there if it is greater.
//!
//! Each [`Dialect`] has its own statements. This file decides whether the guard is on, and carries
//! out the jump. In a process, one task for each store jumps at a time; it goes on after its
//! caller's deadline, for at most a minute.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use leaf_segment::store::{TagSettings, TagSettingsError};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::connections::{empty_if_absent, explain_missing_column};
use super::dialect::{Connection, Dialect, GuardStatements};
use super::pool::Pool;
use super::store::SETTINGS_COLUMNS;
use super::values::{Cells, Column, Value};

/// How long a jump may take: it writes every tag.
const JUMP: Duration = Duration::from_secs(60);
/// How often a write of the margin is tried if other nodes write theirs at the same time.
const MARGIN_TRIES: u32 = 5;
/// Least size of a jump, in steps of the tag, for a tag without its own margin.
const STEPS: i64 = 10;

/// No connection has checked the guard's table yet.
const UNKNOWN: u8 = 0;
/// `leaf_guard` exists and is usable. This state stays until the process ends.
const ON: u8 = 1;
/// `leaf_guard` is missing, or this user may not change it.
const NO_TABLE: u8 = 2;
/// The server does not reveal its identity.
const NO_SERVER_NAME: u8 = 3;
/// Added to `NO_TABLE` or `NO_SERVER_NAME` once the reason was logged.
const LOGGED: u8 = 4;

const NO_TABLE_TEXT: &str = "the failover guard is off, so that a failover may repeat ids: table \
     leaf_guard is not there, or this user may not SELECT and UPDATE it; make it with `leaf-server \
     schema --apply`, or set segment.failover_guard = false";
const NO_SERVER_NAME_TEXT: &str = "the failover guard is off, so that a failover may repeat ids: this server does not tell \
     this user its identity, by which a failover would be noticed; set segment.failover_guard = false if it cannot fail over";

/// The failover guard of one store: its margin, its state, and the lock of the jump. The state is
/// on, and stays so, once a connection found the guard usable; before that, it is the reason why
/// the guard is off.
#[derive(Debug)]
pub(crate) struct FailoverGuard {
    /// The configured margin; `None` where the guard is switched off.
    margin: Option<i64>,
    /// `ON` once any connection found the guard usable. Until then `UNKNOWN`, or the reason why the
    /// guard is off, to which `LOGGED` is added once it was logged.
    state: AtomicU8,
    /// Held by the task that jumps.
    jumping: Arc<Mutex<()>>,
}

/// What a connection found out about the guard's table and its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardTable {
    /// The table is there, and the server has a name.
    Usable,
    /// The table is missing, or this user does not have the rights on it.
    Missing,
    /// The server's name cannot be read.
    NoServerName,
}

/// The text that tells an operator why the guard is off; `None` if `state` names no reason.
const fn why_off(state: u8) -> Option<&'static str> {
    match state % LOGGED {
        NO_TABLE => Some(NO_TABLE_TEXT),
        NO_SERVER_NAME => Some(NO_SERVER_NAME_TEXT),
        _ => None,
    }
}

impl FailoverGuard {
    /// Makes a guard that jumps by `margin`; with `None` it is never on.
    pub(crate) fn new(margin: Option<i64>) -> Self {
        Self { margin, state: AtomicU8::new(UNKNOWN), jumping: Arc::default() }
    }

    /// The configured margin, whether or not the guard is on yet; `None` if the guard is switched
    /// off.
    pub(crate) const fn configured_margin(&self) -> Option<i64> {
        self.margin
    }

    /// The configured margin, by which tags jump; `None` while the guard is off. Logs, once, why it
    /// is off.
    pub(crate) fn active_margin(&self) -> Option<i64> {
        let order = Ordering::Relaxed;
        let state = self.state.load(order);
        if let (Some(why), true) = (why_off(state), state < LOGGED)
            && self.state.compare_exchange(state, state + LOGGED, order, order).is_ok()
        {
            tracing::warn!("{why}");
        }
        self.margin.filter(|_| self.state.load(order) == ON)
    }

    /// Why the guard is off although a margin is configured, for an operator; else `None`.
    pub(crate) fn risk(&self) -> Option<String> {
        let why = why_off(self.state.load(Ordering::Relaxed));
        why.filter(|_| self.margin.is_some()).map(String::from)
    }

    /// Notes what a connection found.
    pub(crate) fn found(&self, found: GuardTable) {
        let order = Ordering::Relaxed;
        match found {
            GuardTable::Usable => self.state.store(ON, order),
            // Once on, the guard stays on: a promoted replica may lack the table, and then nothing
            // may be allocated from this replica.
            GuardTable::Missing => self.set_why_off(NO_TABLE),
            GuardTable::NoServerName => self.set_why_off(NO_SERVER_NAME),
        }
    }

    /// Notes why the guard is off; does nothing once it is on. A reason is logged once, and
    /// again only if another reason was found in between.
    fn set_why_off(&self, why: u8) {
        let off = |state| (state != ON && state % LOGGED != why).then_some(why);
        // Nothing to change is no failure.
        let _ = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, off);
    }

    /// Writes this node's margin into row 3 of `leaf_guard` if it is greater than the stored one.
    /// If the server refuses writes, nothing is written: nothing can be allocated there either.
    pub(crate) async fn store_margin<D: Dialect>(
        &self,
        connection: &mut Connection<D>,
    ) -> Result<(), sqlx::Error> {
        let is_on = self.state.load(Ordering::Relaxed) == ON;
        let (Some(margin), Some(statements), true) = (self.margin, D::MARGIN, is_on) else {
            return Ok(());
        };
        // Another node may write its own in between.
        for _ in 0..MARGIN_TRIES {
            let Some(stored) = stored_margin::<D>(connection).await? else { return Ok(()) };
            if margin_of(&stored) >= margin {
                return Ok(());
            }
            let own = margin.to_string();
            let values = [Value::Text(&own), Value::Text(&stored)];
            if let Err(error) = D::execute(connection, statements.replace, &values).await {
                tracing::debug!("the failover margin was not written down: {error}");
                return Ok(());
            }
        }
        Ok(())
    }

    /// Advances every tag by `margin` or more (those in strict order with few numbers by their own
    /// margin). A task of its own does it, so that a caller that leaves after its deadline does not
    /// undo it. If another jump is already under way, waits for its end and returns `false`: that
    /// jump may have been for the other table, or may have failed; the caller finds out when it
    /// allocates again. Returns `true` if this call jumped.
    pub(crate) async fn jump<D: Dialect>(
        self: &Arc<Self>,
        pool: Pool<D::Db>,
        statements: GuardStatements,
        margin: i64,
    ) -> Result<bool, sqlx::Error> {
        let Ok(alone) = Arc::clone(&self.jumping).try_lock_owned() else {
            drop(self.jumping.lock().await);
            return Ok(false);
        };
        let jump = timeout(JUMP, jump::<D>(pool, Arc::clone(self), statements, margin));
        let task = tokio::spawn(async move {
            let result = jump.await;
            drop(alone);
            result
        });
        let late = || {
            io::Error::new(io::ErrorKind::TimedOut, "the failover guard's jump did not end in time")
        };
        match task.await {
            Ok(Ok(result)) => result.map(|()| true),
            Ok(Err(_)) => Err(late().into()),
            Err(panicked) => Err(io::Error::other(panicked).into()),
        }
    }
}

/// The greatest margin of any node, as the store has it; `None` if it has none.
async fn stored_margin<D: Dialect>(
    connection: &mut Connection<D>,
) -> Result<Option<String>, sqlx::Error> {
    let Some(statements) = D::MARGIN else { return Ok(None) };
    let rows = D::fetch(connection, statements.read, &[], &[Column::Text]).await;
    let row = empty_if_absent::<D, _>(rows)?.pop();
    Ok(row.and_then(|mut row| row.text(0)))
}

/// Parses a stored margin; 0 if the text is not a number.
fn margin_of(stored: &str) -> i64 {
    stored.parse().unwrap_or(0)
}

/// Advances every tag, unless another node has done so since. Uses a connection of its own, which
/// is closed afterwards.
async fn jump<D: Dialect>(
    pool: Pool<D::Db>,
    guard: Arc<FailoverGuard>,
    statements: GuardStatements,
    margin: i64,
) -> Result<(), sqlx::Error> {
    // Closed at the end, whatever came of it.
    let mut checkout = pool.acquire().await?;
    let connection = checkout.connection();
    D::identify_server(connection, &guard).await?;
    D::run_text(connection, statements.limit_jump).await?;
    let settings = D::fetch(connection, D::SETTINGS.read_all, &[], SETTINGS_COLUMNS).await;
    let settings = empty_if_absent::<D, _>(settings).map_err(explain_missing_column::<D>)?;
    let largest = largest_amount(settings)?;
    let stored = stored_margin::<D>(connection).await?.unwrap_or_default();
    let margin = margin.max(margin_of(&stored)).max(largest.saturating_mul(STEPS));

    D::run_text(connection, "BEGIN").await?;
    let servers = D::fetch(connection, statements.lock, &[], &[Column::Text, Column::Text]);
    let servers = servers.await?.pop();
    let named = servers.map(|mut row| (row.text(0).unwrap_or_default(), row.text(1)));
    if let Some((last, own)) = &named
        && own.as_ref() == Some(last)
    {
        return Ok(());
    }
    let margins = [Value::Int(margin), Value::Int(STEPS)];
    D::execute(connection, statements.advance_all, &margins).await?;
    let take = if named.is_some() { statements.take } else { statements.insert_missing };
    D::execute(connection, take, &[]).await?;
    D::run_text(connection, "COMMIT").await?;
    guard.store_margin::<D>(connection).await?;
    let (last, own) = named.unwrap_or_default();
    tracing::warn!(
        "the database's server changed from {last:?} to {:?} (a failover?): every tag of {} was advanced by \
         {margin} or more, those in strict order with few numbers by their own margin",
        own.unwrap_or_default(),
        statements.table
    );
    Ok(())
}

/// The most ids that one allocation of any tag may take by its settings. The configured margin may
/// not cover so many.
fn largest_amount(settings: Vec<Cells>) -> Result<i64, sqlx::Error> {
    let mut largest = 0;
    for mut row in settings {
        let (tag, text) = (row.text(0), row.text(1).unwrap_or_default());
        let settings = match TagSettings::decode(&text) {
            Ok(settings) => settings,
            // Another version serves this tag, by rules that are not known here.
            Err(error @ TagSettingsError::Newer(_)) => {
                return Err(sqlx::Error::Decode(format!("tag {tag:?}: {error}").into()));
            }
            // A node that read them before they were damaged still follows them.
            Err(TagSettingsError::Damaged(_) | TagSettingsError::Lost(_)) => {
                let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
                let numbers = [&json["max_step"], &json["max_take"]];
                largest = numbers.into_iter().filter_map(|n| n.as_i64()).fold(largest, i64::max);
                continue;
            }
        };
        let amounts = [settings.max_step, settings.max_take].into_iter().flatten();
        largest = largest.max(amounts.map(|step| i64::from(step.get())).max().unwrap_or(0));
    }
    Ok(largest)
}
