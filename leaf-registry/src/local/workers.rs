//! The worker registry `local`.
//!
//! The record of the fence *is* the state file's memory: it is handed in with the claim, and the
//! keeper writes every new ceiling before it counts. So there is nothing to ask and nothing to
//! store here, and a claim without a state file would be without protection: it is refused.
//!
//! The memory's ceiling holds for the whole file, whichever worker id it was made with: a node that
//! is given another id and then the first one again repeats nothing.

use std::collections::HashMap;

use futures_core::future::BoxFuture;
use leaf_core::{UnixMillis, WorkerId};
use leaf_snowflake::{
    ClaimRequest, Identity, Lease, RegistryError, RegistryErrorKind, Report, WorkerRecord,
    WorkerRegistry,
};

/// Which worker id a node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalWorkers {
    /// This one, whoever asks.
    Fixed(WorkerId),
    /// By identity.
    ByIdentity(HashMap<String, WorkerId>),
}

/// A [`WorkerRegistry`] that asks nobody.
///
/// ```
/// use leaf_core::WorkerId;
/// use leaf_registry::local::{LocalRegistry, LocalWorkers};
/// use leaf_snowflake::WorkerRegistry;
///
/// let registry = LocalRegistry::new(LocalWorkers::Fixed(WorkerId::new(0)));
/// assert!(registry.needs_state_file());
/// ```
#[derive(Debug)]
pub struct LocalRegistry {
    workers: LocalWorkers,
}

impl LocalRegistry {
    /// A registry with these worker ids.
    #[must_use]
    pub const fn new(workers: LocalWorkers) -> Self {
        Self { workers }
    }

    fn worker_id(&self, who: &Identity) -> Result<WorkerId, RegistryErrorKind> {
        match &self.workers {
            LocalWorkers::Fixed(worker) => Ok(*worker),
            LocalWorkers::ByIdentity(map) => map.get(who.as_str()).copied().ok_or_else(|| {
                RegistryErrorKind::NoWorkerId(format!(
                    "{who} is not in snowflake.worker_ids: add it, or set `advertise` to a name \
                     that is"
                ))
            }),
        }
    }

    fn decide(&self, who: &Identity, request: &ClaimRequest) -> Result<Lease, RegistryErrorKind> {
        let worker = self.worker_id(who)?;
        let greatest = request.layout.max_worker();
        if worker > greatest {
            return Err(RegistryErrorKind::NoWorkerId(format!(
                "worker id {worker} is above {greatest}, the layout's greatest"
            )));
        }
        let previous = request.memory.as_ref().map(|memory| &memory.fence);
        let floor = match &request.memory {
            Some(memory) => {
                // Nobody else writes this record: there is nothing to watch after a reboot.
                let watched = Some((WorkerId::new(memory.worker), memory.fence.nonce));
                let request = ClaimRequest { watched, ..request.clone() };
                memory.fence.floor_for(WorkerId::new(memory.worker), &request)?
            }
            // A file that is gone may have had ids up to the tolerance ahead of the clock.
            None => request.start_at(request.now + request.tolerance)?,
        };
        let fence = request.next_fence(previous, floor);
        Ok(Lease::new(worker, floor, fence))
    }
}

impl WorkerRegistry for LocalRegistry {
    fn needs_state_file(&self) -> bool {
        true
    }

    fn claim<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
    ) -> BoxFuture<'a, Result<Lease, RegistryError>> {
        let lease = self.decide(who, request);
        Box::pin(async {
            lease.map_err(|kind| RegistryError::new(kind, "claim the configured worker id"))
        })
    }

    fn extend<'a>(
        &'a self,
        lease: &'a mut Lease,
        report: Report,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        lease.fence.ceiling = lease.fence.ceiling.max(report.ceiling);
        Box::pin(async { Ok(()) })
    }

    fn release<'a>(
        &'a self,
        _lease: Lease,
        _next_free: UnixMillis,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        Box::pin(async { Ok(()) })
    }

    /// Empty: this registry knows its own node only.
    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerRecord>, RegistryError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
