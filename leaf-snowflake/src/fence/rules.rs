//! The claim policy, a store with such a policy, and the compare-and-set by which a lease changes
//! its record.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leaf_core::WorkerId;

use super::floor::DATABASE_CLOCK_DIFFERENCE;
use super::{
    Fence, FenceState, FenceStore, Identity, JavaMirror, Lease, Purpose, RecordState, Report,
    Stored, WorkerRange, WorkerRecord,
};
use crate::{RegistryError, RegistryErrorKind};

/// How often a record is read and written again because another writer was faster, before the
/// caller gets an error.
pub(super) const TRIES: usize = 30;

/// The rules by which nodes take worker ids from a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimPolicy {
    /// Whether a worker id belongs to the identity that claimed it last. If so, a node takes its
    /// own worker id, else an unused one, else one whose ceiling passed
    /// [`recycle_after`](Self::recycle_after) ago. A node whose worker id was taken over then
    /// claims no other one: it stops, so that an operator can look into it.
    pub bound: bool,
    /// The only worker id that this node may take; `None` if none is fixed.
    pub fixed: Option<WorkerId>,
    /// The worker ids that this registry gives out, so that another registry, of a second data
    /// centre say, can give out the others. `None`: all. All nodes of the registry must be
    /// configured alike.
    pub range: Option<WorkerRange>,
    /// A worker id that was not released is given out again this long after its ceiling has passed;
    /// where worker ids are [bound](Self::bound), a released one waits as long, too.
    pub recycle_after: Duration,
    /// Gives out the worker ids of Java Leafs like any others. Set it only when no Java Leaf uses
    /// the registry any more.
    pub adopt_java_ids: bool,
}

/// A store with the policy by which its worker ids are given out.
#[derive(Debug)]
pub(super) struct StoreRules<S: FenceStore> {
    pub(super) store: Arc<S>,
    pub(super) policy: ClaimPolicy,
    /// The address where this node answers HTTP; `None` if its identity is that address.
    pub(super) address: Option<Identity>,
    /// For each worker id that is held in this process: the record as its holder last wrote it. The
    /// next report then need not read the record.
    pub(super) reported: Mutex<HashMap<WorkerId, Stored<S::Version>>>,
}

impl<S: FenceStore> StoreRules<S> {
    pub(super) fn address<'a>(&'a self, who: &'a Identity) -> &'a Identity {
        self.address.as_ref().unwrap_or(who)
    }

    /// Changes the record of a lease, if the lease wrote it.
    pub(super) async fn change(
        &self,
        lease: &mut Lease,
        what: &str,
        report: Report,
        edit: impl Fn(&mut Fence) + Send,
    ) -> Result<(), RegistryError> {
        let what = format!("{what} worker id {}", lease.worker);
        // Removed from the map, because after an error it is unknown what is stored. If the store
        // holds something else, `replace` writes nothing, and the next round reads.
        let mut known = self.reported().remove(&lease.worker);
        for _ in 0..TRIES {
            let stored = match known.take() {
                Some(known) => known,
                None => self.store.read(lease.worker, Purpose::Replace(report.now)).await?,
            };
            // If others could claim the worker id before the database failed over, the failover may
            // have lost such a claim: this holder has to claim anew.
            if let Some(at) = stored.failed_over_at
                && lease.fence.ceiling <= at + report.tolerance + DATABASE_CLOCK_DIFFERENCE
            {
                return Err(self.error(RegistryErrorKind::LeaseInDoubt, &what));
            }
            let mut record = self.written(&stored, &what)?.clone();
            let Some(next_nonce) = lease.recognize(&record.fence) else {
                return Err(self.error(RegistryErrorKind::Lost, &what));
            };
            match &stored.mirror {
                JavaMirror::Agrees => {}
                JavaMirror::Java(_) | JavaMirror::Missing => {
                    let why = stored.mirror.remark().unwrap_or_default();
                    return Err(self.error(RegistryErrorKind::Lost, &what).because(why));
                }
                JavaMirror::Damaged(why) => {
                    return Err(self.error(RegistryErrorKind::Damaged, &what).because(why.clone()));
                }
            }
            edit(&mut record.fence);
            record.fence.nonce = next_nonce;
            if self.store.replace(lease.worker, &stored, &record).await? {
                if record.fence.state == FenceState::Held
                    && let Some(stored) = self.store.replaced(&stored, &record)
                {
                    self.reported().insert(lease.worker, stored);
                }
                lease.confirm(record.fence);
                return Ok(());
            }
        }
        Err(self.busy(&what))
    }

    fn reported(&self) -> MutexGuard<'_, HashMap<WorkerId, Stored<S::Version>>> {
        self.reported.lock().expect("no holder of this lock panics")
    }

    /// The record; an error if it does not exist or cannot be read.
    pub(super) fn written<'a>(
        &self,
        stored: &'a Stored<S::Version>,
        what: &str,
    ) -> Result<&'a WorkerRecord, RegistryError> {
        match &stored.record {
            RecordState::Written(record) => Ok(record),
            RecordState::Absent => Err(self.error(RegistryErrorKind::Lost, what)),
            RecordState::Newer(version) => {
                Err(self.error(RegistryErrorKind::NewerFormat { version: *version }, what))
            }
            RecordState::Damaged(why) => {
                Err(self.error(RegistryErrorKind::Damaged, what).because(why.clone()))
            }
        }
    }

    pub(super) fn error(&self, kind: RegistryErrorKind, what: &str) -> RegistryError {
        RegistryError::new(kind, format!("{what} in {}", self.store.name()))
    }

    pub(super) fn busy(&self, what: &str) -> RegistryError {
        let why = format!("others wrote the record {TRIES} times meanwhile");
        self.error(RegistryErrorKind::Unavailable, what).because(why)
    }
}
