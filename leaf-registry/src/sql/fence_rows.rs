//! What the SQL databases share as registries: their rows, and what is made of them.
//!
//! Invariant: a record is replaced only where nonce and text are still what was read, on the server that it
//! was read from. A nonce is made new for every write but for the attempts of one claim, so it does not
//! come back when a row is deleted and made again.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leaf_core::{UnixMillis, WorkerId};
use leaf_snowflake::{FenceState, JavaMirror, Peer, RecordState, Stored, StoredWorker};

/// A node whose record was not written for so many report intervals is not alive.
pub(crate) const SILENT: u32 = 3;

/// `worker_id, nonce, record`; without the last two only a Java Leaf has used it.
pub(crate) type Row = (i64, Option<String>, Option<String>);

/// What a database compares.
#[derive(Debug, Clone, Default)]
pub(crate) struct Version {
    /// The record's nonce and text; `None`: there must be no record.
    pub(crate) record: Option<(String, String)>,
    /// Since when the server is the one that writes, as the guard said; 0 where there is no guard.
    pub(crate) since: i64,
    /// The row of a Java Leaf, `ip_port` and `max_timestamp`; `None`: there must be none.
    pub(crate) mirror: Option<(String, Option<i64>)>,
}

/// What a row says. The mirror is judged by who keeps one.
pub(crate) fn stored(row: Option<Row>, since: i64) -> Stored<Version> {
    let record = row.and_then(|(_, nonce, record)| Some((nonce?, record?)));
    let version = Version { record, since, mirror: None };
    let text = version.record.as_ref().map(|(_, text)| text.as_bytes());
    Stored {
        record: text.map_or(RecordState::Absent, RecordState::decode),
        mirror: JavaMirror::Agrees,
        failed_over_at: u64::try_from(since).ok().filter(|since| *since > 0).map(UnixMillis::new),
        version,
    }
}

/// The records of a table.
pub(crate) fn listed(rows: Vec<Row>, since: i64) -> Vec<StoredWorker<Version>> {
    let listed = |row: Row| Some((worker(row.0)?, stored(Some(row), since)));
    rows.into_iter().filter_map(listed).collect()
}

/// What this process knows of the server that writes: time goes one way.
#[derive(Debug, Default)]
pub(crate) struct LastSeen(AtomicI64);

impl LastSeen {
    /// Whether a server that writes since then may be believed: the one before it is out of date.
    pub(crate) fn takes(&self, since: i64) -> bool {
        self.0.fetch_max(since, Ordering::SeqCst) <= since
    }

    /// What a server that begins to write has at least: the time of the node that meets it, and later than
    /// the server before.
    pub(crate) fn next(&self, now: UnixMillis) -> i64 {
        let now = i64::try_from(now.get()).unwrap_or(i64::MAX);
        now.max(self.0.load(Ordering::SeqCst) + 1)
    }
}

/// The worker id of a row, if it is one.
pub(crate) fn worker(id: i64) -> Option<WorkerId> {
    let worker = u32::try_from(id).ok().map(WorkerId::new);
    if worker.is_none() {
        tracing::warn!(id, "a row is left out: no worker id");
    }
    worker
}

/// The nodes of records that were written lately.
pub(crate) fn peers(records: Vec<String>) -> Vec<Peer> {
    let peer = |record: String| match RecordState::decode(record.as_bytes()) {
        RecordState::Written(record) if record.fence.state == FenceState::Held => {
            Some(Peer { identity: record.holder, address: record.address })
        }
        _ => None,
    };
    records.into_iter().filter_map(peer).collect()
}

/// How old the last report of a live node may be, in milliseconds.
pub(crate) fn silent_ms(report_interval: Duration) -> i64 {
    let silent = report_interval.saturating_mul(SILENT).as_millis();
    i64::try_from(silent).unwrap_or(i64::MAX)
}

/// The guard's row changed hands.
pub(crate) fn log_failover(before: Option<&str>) {
    tracing::warn!(
        "the database of the worker ids was answered by server {:?} and now is by another (a failover?): \
         claims wait until what may have been lost has passed",
        before.unwrap_or_default()
    );
}
