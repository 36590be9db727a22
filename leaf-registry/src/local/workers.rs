//! The registry `local`: worker ids from the configuration, and no record but the node's state
//! file.
//!
//! The record *is* the lease that the state file remembers: a node passes this lease to
//! [`FenceStore::restore`] before each claim, and syncs every new ceiling to the file before it
//! uses the ceiling. So no server is needed, and a node without a state file is refused.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use leaf_core::WorkerId;
use leaf_snowflake::{
    ClaimPolicy, ClaimRequest, FenceStore, Identity, JavaMirror, Purpose, RecordState, Registry,
    RegistryError, RegistryErrorKind, SavedLease, Stored, StoredWorker, WorkerRange, WorkerRecord,
};

/// The worker ids that the configuration assigns to nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalWorkers {
    /// This worker id, whatever the node's identity is.
    Fixed(WorkerId),
    /// The worker id that the map has for the node's identity.
    ByIdentity(HashMap<String, WorkerId>),
}

/// The state file of this node as a [`FenceStore`].
#[derive(Debug)]
struct LocalStore {
    /// The configured worker ids; `None` if [`ClaimPolicy::fixed`] holds the only one.
    by_identity: Option<HashMap<String, WorkerId>>,
    /// The record of this node's last lease.
    record: Mutex<Option<(WorkerId, WorkerRecord)>>,
}

/// Makes a registry with these worker ids, which contacts no server. `range` limits the worker ids,
/// so that another registry can give out the others.
///
/// ```
/// use leaf_core::WorkerId;
/// use leaf_registry::local::{self, LocalWorkers};
///
/// let registry = local::registry(LocalWorkers::Fixed(WorkerId::new(0)), None);
/// assert!(registry.lives_in_state_file());
/// ```
#[must_use]
pub fn registry(workers: LocalWorkers, range: Option<WorkerRange>) -> Registry {
    let (fixed, by_identity) = match workers {
        LocalWorkers::Fixed(worker) => (Some(worker), None),
        LocalWorkers::ByIdentity(map) => (None, Some(map)),
    };
    // Worker ids belong to nodes: no node takes another's.
    let policy = ClaimPolicy { bound: true, fixed, range, ..ClaimPolicy::default() };
    Registry::new(LocalStore { by_identity, record: Mutex::default() }, policy, None)
}

impl LocalStore {
    /// The record, locked for a moment.
    fn record(&self) -> MutexGuard<'_, Option<(WorkerId, WorkerRecord)>> {
        self.record.lock().expect("no holder of this lock panics")
    }

    /// The worker id that the map has for `who`, or an error if it has none; `None` without a map.
    fn worker_of(&self, who: &Identity) -> Result<Option<WorkerId>, RegistryErrorKind> {
        let Some(map) = &self.by_identity else { return Ok(None) };
        let not_assigned = || RegistryErrorKind::NotAssigned { identity: who.clone() };
        map.get(who.as_str()).copied().map(Some).ok_or_else(not_assigned)
    }
}

impl FenceStore for LocalStore {
    /// No version is needed: one process has the state file, so there is no other writer.
    type Version = ();

    fn name(&self) -> &'static str {
        "the state file"
    }

    fn lives_in_state_file(&self) -> bool {
        true
    }

    fn restore(&self, who: &Identity, saved: &SavedLease) {
        let (holder, address) = (who.clone(), who.clone());
        let fence = saved.fence.clone();
        let record = WorkerRecord { holder, address, fence, unknown: Default::default() };
        *self.record() = Some((WorkerId::new(saved.worker), record));
    }

    fn check_identity(&self, who: &Identity) -> Result<(), RegistryErrorKind> {
        self.worker_of(who).map(|_| ())
    }

    /// Returns this node's own record, for a claim. Returns nothing for [`Purpose::Show`], which
    /// wants the other nodes' records: the state file has only this node's.
    async fn list(&self, purpose: Purpose) -> Result<Vec<StoredWorker<()>>, RegistryError> {
        let worker = self.record().as_ref().map(|(worker, _)| *worker);
        match (purpose, worker) {
            (Purpose::Replace(_), Some(worker)) => {
                Ok(vec![(worker, self.read(worker, purpose).await?)])
            }
            _ => Ok(Vec::new()),
        }
    }

    async fn read(&self, worker: WorkerId, _purpose: Purpose) -> Result<Stored<()>, RegistryError> {
        let record = self.record().as_ref().filter(|(of, _)| *of == worker).cloned();
        let record = record.map_or(RecordState::Absent, |(_, record)| RecordState::Written(record));
        Ok(Stored { record, mirror: JavaMirror::Agrees, version: (), failed_over_at: None })
    }

    async fn replace(
        &self,
        worker: WorkerId,
        _read: &Stored<()>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        *self.record() = Some((worker, record.clone()));
        Ok(true)
    }

    async fn assigned(
        &self,
        who: &Identity,
        _request: &ClaimRequest,
        _listed: &[StoredWorker<()>],
    ) -> Result<Option<WorkerId>, RegistryError> {
        let error = |kind| RegistryError::new(kind, "claim the configured worker id");
        self.worker_of(who).map_err(error)
    }
}
