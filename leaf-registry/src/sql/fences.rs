//! The worker ids of every SQL database: the fence records, and which server writes them.
//!
//! Invariant: a record is replaced only if its nonce and text are still what was read, on the
//! server that it was read from. Every write has a new nonce (the attempts of one claim share one),
//! so a nonce does not come back when a row is deleted and made again. A node that is connected to
//! another server than the last writer (`leaf_worker_guard`) records the time of this failover.
//! Until every ceiling that the failover may have lost has passed, only a node whose state file
//! proves that it held the worker id may claim it.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leaf_core::{UnixMillis, WorkerId};
use leaf_segment::store::StoreFuture;
use leaf_snowflake::{
    ClaimRequest, FenceState, FenceStore, Identity, JavaMirror, Peer, Purpose, RecordState,
    RegistryError, Stored, StoredWorker, WorkerRecord,
};

use super::administration::make;
use super::connections::{Access, run};
use super::dialect::{Connection, Dialect};
use super::failover_guard::FailoverGuard;
use super::values::{Cells, Column, Value};
use crate::worker_ids::translate;
use crate::{Administration, Table};

/// A node counts as dead if its record was not written for this many report intervals.
const SILENT: u32 = 3;

/// Statements that need the rights of a claim, and change no row.
const CHANGE_NOTHING: [&str; 3] = [
    "INSERT INTO leaf_worker_fence SELECT * FROM leaf_worker_fence WHERE worker_id < 0",
    "UPDATE leaf_worker_fence SET record = record WHERE worker_id < 0",
    "UPDATE leaf_worker_guard SET since = since WHERE id < 0",
];

/// Statements that need the rights of a claim on the Java Leafs' table, and change no row.
const MIRROR_NOTHING: [&str; 2] = [
    "INSERT INTO leaf_workerid_alloc SELECT * FROM leaf_workerid_alloc WHERE id < 0",
    "UPDATE leaf_workerid_alloc SET ip = ip WHERE id < 0",
];

/// The records of worker ids in an SQL database.
///
/// `guard` never jumps here: it is only for [`Dialect::identify_server`], which gives a connection
/// its server's name, to compare with `leaf_worker_guard`.
#[derive(Debug)]
pub(crate) struct SqlFences<D: Dialect> {
    connections: D::Connections,
    guard: Arc<FailoverGuard>,
    tables: &'static [Table],
    /// The worker ids that the tables can hold.
    range: RangeInclusive<u32>,
    /// Whether each record has a mirror, which Java Leafs read and write.
    mirrored: bool,
    report_interval: Duration,
    latest_failover: LatestFailover,
}

impl<D: Dialect> SqlFences<D> {
    /// A store of worker ids from 0, without mirrors.
    pub(crate) fn new(
        connections: D::Connections,
        guard: Arc<FailoverGuard>,
        tables: &'static [Table],
        report_interval: Duration,
    ) -> Self {
        Self {
            connections,
            guard,
            tables,
            range: 0..=u32::MAX,
            mirrored: false,
            report_interval,
            latest_failover: LatestFailover::default(),
        }
    }

    /// Keeps a mirror of each record for Java Leafs, in these tables. `range`: the worker ids that
    /// a Java Leaf can have; this store then keeps no others.
    pub(crate) fn mirrored(self, tables: &'static [Table], range: RangeInclusive<u32>) -> Self {
        Self { tables, range, mirrored: true, ..self }
    }

    /// Returns `since`, the time of the last failover in Unix milliseconds; 0 if there was none. If
    /// another server than this connection's wrote last and `purpose` is `Replace`, records this
    /// connection's server as the writer.
    ///
    /// Recording waits for a lock on the row of `leaf_worker_guard`: if several nodes meet the new
    /// server, one records the time and the others read it. In tables that were made by hand and
    /// never used, the first writer is recorded without a failover.
    async fn find_or_record_failover(
        &self,
        connection: &mut Connection<D>,
        purpose: Purpose,
    ) -> Result<i64, sqlx::Error> {
        let Some(writer) = D::FENCES.writer else { return Ok(0) };
        let last = read_writer::<D>(connection, writer.read).await?;
        if let Some(failed_over_at) = self.failed_over_at_if_writer(last.as_ref()) {
            return Ok(failed_over_at);
        }
        let Purpose::Replace(now) = purpose else {
            return Ok(last.map_or(0, |last| last.failed_over_at));
        };
        // The server may have got another name since the connection was made.
        D::identify_server(connection, &self.guard).await?;
        D::run_text(connection, "BEGIN").await?;
        // For the lock alone: a locking read may show other data than the plain read below.
        D::fetch(connection, writer.lock, &[], &[]).await?;
        let last = read_writer::<D>(connection, writer.read).await?;
        if let Some(failed_over_at) = self.failed_over_at_if_writer(last.as_ref()) {
            D::run_text(connection, "ROLLBACK").await?;
            return Ok(failed_over_at);
        }
        let used = D::fetch(connection, writer.used, &[], &[Column::Int]).await?;
        let used = used.first().and_then(|row| row.int(0)) == Some(1);
        // Tables that were made by hand, and nobody has used.
        let new = !used && last.as_ref().is_some_and(|last| last.name.is_empty());
        let values = [Value::Int(new.into()), Value::Int(self.latest_failover.next_since(now))];
        D::execute(connection, writer.take, &values).await?;
        let taken = read_writer::<D>(connection, writer.read).await?;
        let failed_over_at = taken.ok_or(sqlx::Error::RowNotFound)?.failed_over_at;
        D::run_text(connection, "COMMIT").await?;
        if !new {
            log_failover(last.as_ref().map(|last| last.name.as_str()));
        }
        self.latest_failover.note_and_check(failed_over_at);
        Ok(failed_over_at)
    }

    /// The time of the last failover in Unix milliseconds (0: none), if this server is the recorded
    /// writer and no outdated replica; else `None`.
    fn failed_over_at_if_writer(&self, last: Option<&Writer>) -> Option<i64> {
        let ours = last.filter(|last| last.is_this_server).map(|last| last.failed_over_at);
        ours.filter(|at| self.latest_failover.note_and_check(*at))
    }

    /// Reads the time of the last failover and then the records, all or one, on one connection:
    /// both are of one server.
    async fn rows(
        &self,
        operation: String,
        worker: Option<WorkerId>,
        purpose: Purpose,
    ) -> Result<(i64, Vec<StoredWorker<FenceVersion>>), RegistryError> {
        let worker = worker.map(|worker| i64::from(worker.get()));
        let access = match (purpose, D::FENCES.writer) {
            // A transaction begins where another server writes now, to record that.
            (Purpose::Replace(_), Some(_)) => Access::Transaction,
            _ => Access::Read,
        };
        let rows = run(&self.connections, access, operation, async |connection| {
            let failed_over_at = self.find_or_record_failover(connection, purpose).await?;
            Ok((
                failed_over_at,
                D::read_fences(connection, worker, failed_over_at, self.mirrored).await?,
            ))
        });
        rows.await.map_err(translate)
    }
}

/// The server that wrote last, as `leaf_worker_guard` names it.
struct Writer {
    failed_over_at: i64,
    /// The server's name; empty if nobody has written.
    name: String,
    /// Whether the recorded writer is the server that this connection is connected to.
    is_this_server: bool,
}

/// Reads which server wrote last.
async fn read_writer<D: Dialect>(
    connection: &mut Connection<D>,
    statement: &'static str,
) -> Result<Option<Writer>, sqlx::Error> {
    let columns = &[Column::Int, Column::Text, Column::Int];
    let row = D::fetch(connection, statement, &[], columns).await?.pop();
    Ok(row.map(|mut row| Writer {
        failed_over_at: row.int(0).unwrap_or(0),
        name: row.text(1).unwrap_or_default(),
        is_this_server: row.int(2) == Some(1),
    }))
}

/// Reads all fences or one, without mirrors.
pub(crate) async fn read<D: Dialect>(
    connection: &mut Connection<D>,
    worker: Option<i64>,
    failed_over_at: i64,
) -> Result<Vec<StoredWorker<FenceVersion>>, sqlx::Error> {
    let worker = worker.map(Value::Int);
    let statement = if worker.is_some() { D::FENCES.read } else { D::FENCES.list };
    let columns = &[Column::Int, Column::Text, Column::Text];
    let rows = D::fetch(connection, statement, worker.as_slice(), columns).await?;
    let row = |mut row: Cells| stored(row.int(0)?, row.text(1).zip(row.text(2)), failed_over_at);
    Ok(rows.into_iter().filter_map(row).collect())
}

/// Writes a record, without a mirror, if the stored one is still what was read.
///
/// One statement compares and writes. On a database server it also compares the recorded writer and
/// the time of the last failover. So a claim that was decided on data of an old primary cannot be
/// written on the new one.
pub(crate) async fn replace<D: Dialect>(
    connection: &mut Connection<D>,
    worker: i64,
    read: &FenceVersion,
    record: &WorkerRecord,
) -> Result<bool, sqlx::Error> {
    let (nonce, text) = (record.fence.nonce.to_string(), record.encode());
    let mut values = vec![Value::Text(&nonce), Value::Text(&text), Value::Int(worker)];
    let statement = match &read.record {
        Some((nonce, text)) => {
            values.extend([Value::Text(nonce), Value::Text(text)]);
            D::FENCES.update
        }
        None => D::FENCES.insert,
    };
    if D::FENCES.writer.is_some() {
        values.push(Value::Int(read.failed_over_at));
    }
    D::write(connection, statement, &values).await
}

impl<D: Dialect> FenceStore for SqlFences<D> {
    type Version = FenceVersion;

    fn name(&self) -> &'static str {
        D::NAME
    }

    fn storable(&self) -> RangeInclusive<u32> {
        self.range.clone()
    }

    fn holder_of_retired(&self, worker: WorkerId, holder: Identity) -> Identity {
        // The mirror has each name once: the node can have another row then.
        if self.mirrored { Identity::of_operator(worker) } else { holder }
    }

    async fn list(
        &self,
        purpose: Purpose,
    ) -> Result<Vec<StoredWorker<FenceVersion>>, RegistryError> {
        let operation = format!("read the worker ids in {}", D::NAME);
        Ok(self.rows(operation, None, purpose).await?.1)
    }

    async fn read(
        &self,
        worker: WorkerId,
        purpose: Purpose,
    ) -> Result<Stored<FenceVersion>, RegistryError> {
        let operation = format!("read worker id {worker} in {}", D::NAME);
        let (failed_over_at, mut rows) = self.rows(operation, Some(worker), purpose).await?;
        let row = rows.pop().or_else(|| stored(worker.get().into(), None, failed_over_at));
        Ok(row.expect("any u32 is a valid worker id").1)
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<FenceVersion>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        // A server of before the last failover may still have it.
        if !self.latest_failover.note_and_check(read.version.failed_over_at) {
            return Ok(false);
        }
        let operation = format!("write worker id {worker} in {}", D::NAME);
        let worker = worker.get().into();
        let written = run(&self.connections, Access::Transaction, operation, async |connection| {
            let read = &read.version;
            let written = D::replace_fence(connection, worker, read, record, self.mirrored).await?;
            if !written {
                // The server may have got another name since the connection was made.
                D::identify_server(connection, &self.guard).await?;
            }
            Ok(written)
        });
        written.await.map_err(translate)
    }

    fn replaced(
        &self,
        read: &Stored<FenceVersion>,
        record: &WorkerRecord,
    ) -> Option<Stored<FenceVersion>> {
        let mirror = || (record.holder.as_str().to_owned(), Some(mirrored_ceiling(record)));
        Some(Stored {
            record: RecordState::Written(record.clone()),
            version: FenceVersion {
                record: Some((record.fence.nonce.to_string(), record.encode())),
                mirror: self.mirrored.then(mirror),
                ..read.version
            },
            ..read.clone()
        })
    }

    async fn try_writing(&self) -> Result<(), RegistryError> {
        if D::FENCES.writer.is_none() {
            // An SQLite file has no rights but those of the file.
            return Ok(());
        }
        let operation = format!("try to write worker ids in {}", D::NAME);
        let tried = run(&self.connections, Access::Write, operation, async |connection| {
            let mirror: &[&str] = if self.mirrored { &MIRROR_NOTHING } else { &[] };
            for statement in CHANGE_NOTHING.iter().chain(mirror) {
                D::run_text(connection, statement).await?;
            }
            Ok(())
        });
        tried.await.map_err(translate)
    }

    async fn assigned(
        &self,
        who: &Identity,
        _request: &ClaimRequest,
        listed: &[StoredWorker<FenceVersion>],
    ) -> Result<Option<WorkerId>, RegistryError> {
        let own = listed.iter().find(|(_, stored)| {
            stored.version.mirror.as_ref().is_some_and(|(ip_port, _)| ip_port == who.as_str())
        });
        Ok(own.map(|(worker, _)| *worker))
    }

    async fn peers(&self) -> Result<Vec<Peer>, RegistryError> {
        let operation = format!("look for live nodes in {}", D::NAME);
        let records = run(&self.connections, Access::Read, operation, async |connection| {
            let silent = [Value::Int(silent_ms(self.report_interval))];
            Ok(D::fetch(connection, D::FENCES.peers, &silent, &[Column::Text]).await?)
        });
        let records = records.await.map_err(translate)?;
        Ok(peers(records.into_iter().filter_map(|mut row| row.text(0)).collect()))
    }
}

impl<D: Dialect> Administration for SqlFences<D> {
    fn tables(&self) -> &'static [Table] {
        self.tables
    }

    fn apply(&self) -> StoreFuture<'_, Vec<&'static str>> {
        let name = format!("make the tables in {}", D::NAME);
        Box::pin(run(&self.connections, Access::Write, name, async |connection| {
            let made = make::<D>(connection, self.tables).await?;
            if let Some(writer) = D::FENCES.writer
                && made.contains(&"leaf_worker_guard")
            {
                // Made by this connection, whose server is the one that writes.
                D::identify_server(connection, &self.guard).await?;
                D::execute(connection, writer.fill_empty, &[]).await?;
            }
            Ok(made)
        }))
    }

    fn risks(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// What was read of a worker id: [`replace`] writes only if the database still has exactly this.
#[derive(Debug, Clone, Default)]
pub(crate) struct FenceVersion {
    /// The record's nonce and text; `None`: there must be no record.
    pub(crate) record: Option<(String, String)>,
    /// When the database failed over last, Unix milliseconds (`leaf_worker_guard.since` as it was
    /// read); 0 where it never did, or has no such table.
    pub(crate) failed_over_at: i64,
    /// The row of a Java Leaf, `ip_port` and `max_timestamp`; `None`: there must be none.
    pub(crate) mirror: Option<(String, Option<i64>)>,
}

/// Converts what is stored of one worker id. `record`: nonce and text, `None` if there is no fence.
/// `mirror` is set to `Agrees`: a store with mirrors replaces that. Returns `None`, with a warning,
/// if `id` is no worker id.
pub(crate) fn stored(
    id: i64,
    record: Option<(String, String)>,
    failed_over_at: i64,
) -> Option<StoredWorker<FenceVersion>> {
    let Some(worker) = u32::try_from(id).ok().map(WorkerId::new) else {
        tracing::warn!(id, "a row is left out: no worker id");
        return None;
    };
    let text = record.as_ref().map(|(_, text)| text.as_bytes());
    let stored = Stored {
        record: text.map_or(RecordState::Absent, RecordState::decode),
        mirror: JavaMirror::Agrees,
        failed_over_at: u64::try_from(failed_over_at)
            .ok()
            .filter(|at| *at > 0)
            .map(UnixMillis::new),
        version: FenceVersion { record, failed_over_at, mirror: None },
    };
    Some((worker, stored))
}

/// The ceiling as a row of the Java Leafs' table holds it.
pub(crate) fn mirrored_ceiling(record: &WorkerRecord) -> i64 {
    i64::try_from(record.fence.ceiling.get()).unwrap_or(i64::MAX)
}

/// The greatest `since` that this process has seen: a server that shows a smaller one is an
/// outdated replica.
#[derive(Debug, Default)]
struct LatestFailover(AtomicI64);

impl LatestFailover {
    /// Records the `since` of a server; returns `false` if the server is outdated.
    fn note_and_check(&self, failed_over_at: i64) -> bool {
        self.0.fetch_max(failed_over_at, Ordering::SeqCst) <= failed_over_at
    }

    /// The least `since` for a server that becomes the writer: this node's time, or the greatest
    /// `since` seen plus 1, whichever is later.
    fn next_since(&self, now: UnixMillis) -> i64 {
        let now = i64::try_from(now.get()).unwrap_or(i64::MAX);
        now.max(self.0.load(Ordering::SeqCst) + 1)
    }
}

/// The nodes that hold worker ids, from records that were written lately.
fn peers(records: Vec<String>) -> Vec<Peer> {
    let peer = |record: String| match RecordState::decode(record.as_bytes()) {
        RecordState::Written(record) if record.fence.state == FenceState::Held => {
            Some(Peer { identity: record.holder, address: record.address })
        }
        _ => None,
    };
    records.into_iter().filter_map(peer).collect()
}

/// How old the last report of a live node may be, in milliseconds, by the database's clock.
fn silent_ms(report_interval: Duration) -> i64 {
    let silent = report_interval.saturating_mul(SILENT).as_millis();
    i64::try_from(silent).unwrap_or(i64::MAX)
}

/// Logs that another server became the writer.
fn log_failover(before: Option<&str>) {
    tracing::warn!(
        "the server of the worker ids' database changed from {:?} to another (a failover?): until every ceiling that \
         may have been lost has passed, only nodes whose state file proves that they held a worker id may claim it",
        before.unwrap_or_default()
    );
}
