//! A registry in memory: for tests, simulations and examples. It forgets everything at exit.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use futures_core::future::BoxFuture;
use leaf_core::{UnixMillis, WorkerId};

use crate::{
    ClaimRequest, Fence, FenceState, Identity, Lease, RegistryError, RegistryErrorKind, Report,
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
    fault: RegistryFault,
}

/// How a [`MemoryRegistry`] misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RegistryFault {
    /// Not at all.
    #[default]
    None,
    /// Every call fails with `Unavailable` and does nothing.
    Away,
    /// Every call does its work and then fails with `Unavailable`, as if the answer was lost.
    AnswersLost,
}

impl MemoryRegistry {
    /// Misbehaves like this from now on.
    pub fn set_fault(&self, fault: RegistryFault) {
        self.inner().fault = fault;
    }

    /// Forgets every record, as a registry does that was restored from an early backup.
    pub fn forget(&self) {
        self.inner().fences.clear();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }

    /// Does `work` as far as the fault lets it through.
    fn ask<T>(
        &self,
        operation: &str,
        work: impl FnOnce(&mut Inner) -> Result<T, RegistryErrorKind>,
    ) -> Result<T, RegistryError> {
        let mut inner = self.inner();
        let lost = || RegistryError::new(RegistryErrorKind::Unavailable, operation);
        match inner.fault {
            RegistryFault::None => {
                work(&mut inner).map_err(|kind| RegistryError::new(kind, operation))
            }
            RegistryFault::Away => Err(lost()),
            RegistryFault::AnswersLost => {
                let _ = work(&mut inner);
                Err(lost())
            }
        }
    }

    /// Compare-and-set: changes the record if it is still the lease's.
    fn replace(
        &self,
        lease: &mut Lease,
        what: &str,
        change: impl FnOnce(&mut Fence),
    ) -> Result<(), RegistryError> {
        let operation = format!("{what} worker id {} in memory", lease.worker);
        let written = self.ask(&operation, |inner| {
            let (_, fence) = inner.fences.get_mut(&lease.worker).ok_or(RegistryErrorKind::Lost)?;
            let nonce = lease.adopt(fence).ok_or(RegistryErrorKind::Lost)?;
            change(fence);
            fence.nonce = nonce;
            Ok(fence.clone())
        })?;
        lease.confirm(written);
        Ok(())
    }
}

impl Inner {
    fn claim(
        &mut self,
        who: &Identity,
        request: &ClaimRequest,
    ) -> Result<Lease, RegistryErrorKind> {
        let worker = self.candidate(request).ok_or_else(|| {
            RegistryErrorKind::NoWorkerId(
                "every worker id is retired: make the layout's worker field wider".into(),
            )
        })?;
        let previous = self.fences.get(&worker).map(|(_, fence)| fence);
        let floor = match previous {
            Some(fence) => fence.floor_for(worker, request),
            None => request.floor_without_record(worker),
        };
        let floor = floor.map_err(|refusal| self.explain(worker, refusal, request))?;
        let fence = request.next_fence(previous, floor);
        self.fences.insert(worker, (who.clone(), fence.clone()));
        Ok(Lease::new(worker, floor, fence))
    }

    /// Another node's refusal concerns whoever finds nothing else.
    fn explain(
        &self,
        worker: WorkerId,
        refusal: RegistryErrorKind,
        request: &ClaimRequest,
    ) -> RegistryErrorKind {
        let Some((_, fence)) = self.fences.get(&worker) else { return refusal };
        match refusal {
            RegistryErrorKind::FloorAhead { .. } | RegistryErrorKind::InUse { .. }
                if fence.instance != request.instance =>
            {
                RegistryErrorKind::NoWorkerId(format!(
                    "all {} worker ids are in use; the first that may become free is {worker}, \
                     at {} (Unix ms): stop a node, or use a layout with more worker bits",
                    self.fences.len(),
                    fence.ceiling
                ))
            }
            refusal => refusal,
        }
    }

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
    fn replaces_lost(&self) -> bool {
        true
    }

    fn claim<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
    ) -> BoxFuture<'a, Result<Lease, RegistryError>> {
        let claimed = self.ask("claim a worker id in memory", |inner| inner.claim(who, request));
        Box::pin(async { claimed })
    }

    fn extend<'a>(
        &'a self,
        lease: &'a mut Lease,
        report: Report,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        Box::pin(async move {
            let raise = |fence: &mut Fence| fence.ceiling = fence.ceiling.max(report.ceiling);
            self.replace(lease, "extend", raise)
        })
    }

    fn release<'a>(
        &'a self,
        mut lease: Lease,
        next_free: UnixMillis,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        Box::pin(async move {
            self.replace(&mut lease, "release", |fence| {
                fence.ceiling = next_free;
                fence.state = FenceState::Released;
            })
        })
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerRecord>, RegistryError>> {
        let workers = self.ask("list the worker ids in memory", |inner| {
            let record =
                |(worker, (holder, fence)): (&WorkerId, &(Identity, Fence))| WorkerRecord {
                    worker: *worker,
                    holder: Some(holder.clone()),
                    fence: Some(fence.clone()),
                    remark: None,
                };
            Ok(inner.fences.iter().map(record).collect())
        });
        Box::pin(async { workers })
    }
}
