//! What the SQL databases share as registries: their rows, and what is made of them.
//!
//! Invariant: a record is replaced only where its nonce is still the one that was read. A nonce is made
//! new for every write, so it does not come back when a row is deleted and made again.

use std::collections::BTreeSet;
use std::time::Duration;

use leaf_core::{UnixMillis, WorkerId};
use leaf_segment::StoreError;
use leaf_snowflake::{FenceState, Peer, RegistryError, RegistryErrorKind};

use super::{Found, Listing, Mirror, Recorded};

/// A node whose record was not written for so many report intervals is not alive.
pub(crate) const SILENT: u32 = 3;

/// `worker_id, nonce, record`; without the last two only a Java Leaf has used it.
pub(crate) type Row = (i64, Option<String>, Option<String>);

/// What a database compares.
#[derive(Debug, Clone, Default)]
pub(crate) struct Token {
    /// The record's nonce; `None`: there must be no record.
    pub(crate) nonce: Option<String>,
    /// The row of a Java Leaf, `ip_port` and `max_timestamp`; `None`: there must be none.
    pub(crate) mirror: Option<(String, Option<i64>)>,
}

/// What a row says. The mirror is judged by who keeps one.
pub(crate) fn found(row: Option<Row>, failover: UnixMillis) -> Found<Token> {
    let (nonce, record) = row.map_or((None, None), |(_, nonce, record)| (nonce, record));
    let record = record.map_or(Recorded::Absent, |text| Recorded::decode(text.as_bytes()));
    let token = Token { nonce, mirror: None };
    Found { record, mirror: Mirror::Agrees, token, failover }
}

/// All of a table whose unused worker ids are those up to `greatest` that are not in it.
pub(crate) fn listing(
    known: Vec<(WorkerId, Found<Token>)>,
    from: u32,
    greatest: WorkerId,
) -> Listing<Token> {
    let used: BTreeSet<_> = known.iter().map(|(worker, _)| *worker).collect();
    let unused = (from..=greatest.get()).map(WorkerId::new);
    Listing { unused: unused.filter(|worker| !used.contains(worker)).collect(), known }
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
    let peer = |record: String| match Recorded::decode(record.as_bytes()) {
        Recorded::Written(record) if record.fence.state == FenceState::Held => {
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

/// A database's error as the registry's.
pub(crate) fn refused(error: &StoreError) -> RegistryError {
    let kind = match error.retryable() {
        true => RegistryErrorKind::Unavailable,
        false => RegistryErrorKind::Refused,
    };
    let translated = RegistryError::new(kind, error.operation());
    match error.cause() {
        Some(cause) => translated.because(cause.to_string()),
        None => translated,
    }
}
