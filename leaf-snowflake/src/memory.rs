//! A registry in memory: for tests, simulations and examples. It forgets everything at exit.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use futures_core::future::BoxFuture;
use leaf_core::{UnixMillis, WorkerId};
use uuid::Uuid;

use crate::{
    ClaimRequest, Fence, FenceState, Identity, Lease, RegistryError, RegistryErrorKind,
    WorkerRecord, WorkerRegistry,
};

/// A [`WorkerRegistry`] without a server. Recycles: any id whose floor allows it may be claimed.
#[derive(Debug, Default)]
pub struct MemoryRegistry {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    fences: BTreeMap<WorkerId, (Identity, Fence)>,
    away: bool,
}

impl MemoryRegistry {
    /// Lets every call fail with `Unavailable`, or answer again.
    pub fn set_away(&self, away: bool) {
        self.inner().away = away;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }

    fn reach(&self, operation: &str) -> Result<MutexGuard<'_, Inner>, RegistryError> {
        let inner = self.inner();
        if inner.away {
            return Err(RegistryError::new(RegistryErrorKind::Unavailable, operation));
        }
        Ok(inner)
    }

    /// Compare-and-set: writes `next` if the record is still the lease's.
    fn replace(&self, lease: &mut Lease, next: Fence, what: &str) -> Result<(), RegistryError> {
        let operation = format!("{what} worker id {} in memory", lease.worker);
        let mut inner = self.reach(&operation)?;
        match inner.fences.get_mut(&lease.worker) {
            Some((_, fence)) if fence.nonce == lease.fence.nonce => {
                *fence = next.clone();
                lease.fence = next;
                Ok(())
            }
            _ => Err(RegistryError::new(RegistryErrorKind::Lost, operation)),
        }
    }
}

impl Inner {
    /// The worker id to try first: one's own, else one never used, else the one that is free
    /// soonest.
    fn candidate(&self, request: &ClaimRequest) -> Option<WorkerId> {
        let own = self.fences.iter().find(|(_, (_, fence))| fence.instance == request.instance);
        let unused = || {
            (0..=request.layout.max_worker().get())
                .map(WorkerId::new)
                .find(|worker| !self.fences.contains_key(worker))
        };
        let soonest = || {
            self.fences
                .iter()
                .filter(|(_, (_, fence))| fence.state != FenceState::Retired)
                .min_by_key(|(_, (_, fence))| fence.ceiling)
                .map(|(worker, _)| *worker)
        };
        own.map(|(worker, _)| *worker).or_else(unused).or_else(soonest)
    }
}

impl WorkerRegistry for MemoryRegistry {
    fn claim<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
    ) -> BoxFuture<'a, Result<Lease, RegistryError>> {
        Box::pin(async move {
            let operation = "claim a worker id in memory";
            let mut inner = self.reach(operation)?;
            let worker = inner.candidate(request).ok_or_else(|| {
                let why = "every worker id is retired".to_owned();
                RegistryError::new(RegistryErrorKind::NoWorkerId(why), operation)
            })?;
            let (epoch, floor) = match inner.fences.get(&worker) {
                Some((_, fence)) => {
                    let floor = fence
                        .floor_for(worker, request)
                        .map_err(|kind| RegistryError::new(kind, operation))?;
                    (fence.epoch + 1, floor)
                }
                None => (1, UnixMillis::EPOCH),
            };
            let fence = request.next_fence(epoch, floor);
            inner.fences.insert(worker, (who.clone(), fence.clone()));
            Ok(Lease { worker, floor, fence, token: epoch })
        })
    }

    fn extend<'a>(
        &'a self,
        lease: &'a mut Lease,
        ceiling: UnixMillis,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        Box::pin(async move {
            let ceiling = ceiling.max(lease.fence.ceiling);
            let next = Fence { ceiling, nonce: Uuid::new_v4(), ..lease.fence.clone() };
            self.replace(lease, next, "extend")
        })
    }

    fn release<'a>(
        &'a self,
        mut lease: Lease,
        next_free: UnixMillis,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        Box::pin(async move {
            let next = Fence {
                ceiling: next_free,
                nonce: Uuid::new_v4(),
                state: FenceState::Released,
                ..lease.fence.clone()
            };
            self.replace(&mut lease, next, "release")
        })
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerRecord>, RegistryError>> {
        Box::pin(async {
            let inner = self.reach("list the worker ids in memory")?;
            let record = |(worker, (holder, fence)): (&WorkerId, &(Identity, Fence))| {
                WorkerRecord { worker: *worker, holder: Some(holder.clone()), fence: fence.clone() }
            };
            Ok(inner.fences.iter().map(record).collect())
        })
    }
}
