//! Which worker id a node takes.
//!
//! A node with a fixed worker id, or whose identity has a worker id already, takes that one or is
//! refused. All others try worker ids in this order:
//!
//! 1. the one that an earlier attempt of the same claim wrote;
//! 2. unless worker ids belong to identities: the one in the node's state file, then others that
//!    its instance has held, then those that were given back;
//! 3. those that no node has used;
//! 4. those whose ceiling passed at least
//!    [`recycle_after`](super::ClaimPolicy::recycle_after) ago.
//!
//! A node that lost a race for a worker id begins its next attempt at a random candidate, so that
//! competing nodes try different ones.

use leaf_core::{Layout, UnixMillis, WorkerId};

use super::candidates::{Candidate, Refusals, in_order, worth_waiting};
use super::floor::{Evidence, RegistryEvidence, Selection, first_timestamp};
use super::request::{check_layout, check_range};
use super::rules::{StoreRules, TRIES};
use super::{
    ClaimRequest, Fence, FenceStore, Identity, Lease, Purpose, RecordState, Stored, StoredWorker,
    WorkerRecord,
};
use crate::{RegistryError, RegistryErrorKind};

impl<S: FenceStore> StoreRules<S> {
    pub(super) async fn claim_for(
        &self,
        who: &Identity,
        request: &ClaimRequest,
    ) -> Result<Lease, RegistryError> {
        self.check_claim(who, request.layout)?;
        for conflicts in 0..TRIES {
            let listed = self.store.list(Purpose::Replace(request.now)).await?;
            self.check_records(request.layout, &listed)?;
            let assigned = match (self.policy.fixed, self.policy.bound) {
                (Some(worker), _) => Some(worker),
                (None, true) => self.store.assigned(who, request, &listed).await?,
                (None, false) => None,
            };
            if let Some(worker) = assigned {
                return self.claim_assigned(who, worker, request).await;
            }
            let mut unused = self.store.unused(&listed, request.layout.max_worker()).await?;
            unused.retain(|worker| self.in_range(*worker));
            let storable = self.store.storable();
            let mut candidates = in_order(request, self.policy.bound, storable, listed, unused);
            candidates.retain(|candidate| self.in_range(candidate.worker));
            if let Some(lease) = self.claim_one(who, request, candidates, conflicts).await? {
                return Ok(lease);
            }
        }
        Err(self.busy("claim a worker id"))
    }

    /// Refuses a claim that would fail whatever the records say: its identity is not acceptable, or
    /// its fixed worker id does not fit.
    pub(super) fn check_claim(&self, who: &Identity, layout: Layout) -> Result<(), RegistryError> {
        let identity = self.store.check_identity(who);
        identity.map_err(|kind| self.error(kind, "claim a worker id"))?;
        match self.policy.fixed {
            Some(worker) => self.check_assigned(worker, layout.max_worker()),
            None => Ok(()),
        }
    }

    /// Refuses the claim if any record has another layout or range, not only the record that this
    /// node would take: ids of two layouts may be equal numbers.
    pub(super) fn check_records(
        &self,
        layout: Layout,
        listed: &[StoredWorker<S::Version>],
    ) -> Result<(), RegistryError> {
        for record in listed.iter().filter_map(|(_, stored)| stored.record.written()) {
            let same = check_layout(layout, &record.fence);
            let same = same.and_then(|()| check_range(self.policy.range, &record.fence));
            same.map_err(|kind| self.error(kind, "claim a worker id"))?;
        }
        Ok(())
    }

    /// Refuses a worker id that belongs to a node, but is above `greatest` or outside the range.
    fn check_assigned(&self, worker: WorkerId, greatest: WorkerId) -> Result<(), RegistryError> {
        let kind = match self.policy.range {
            _ if worker > greatest => RegistryErrorKind::BeyondLayout { worker, greatest },
            Some(range) if !range.contains(worker) => {
                RegistryErrorKind::OutsideRange { worker, range }
            }
            _ => return Ok(()),
        };
        Err(self.error(kind, &format!("claim worker id {worker}")))
    }

    /// Whether this registry may give this worker id out.
    fn in_range(&self, worker: WorkerId) -> bool {
        self.policy.range.is_none_or(|range| range.contains(worker))
    }

    /// Takes a worker id that belongs to `who`.
    async fn claim_assigned(
        &self,
        who: &Identity,
        worker: WorkerId,
        request: &ClaimRequest,
    ) -> Result<Lease, RegistryError> {
        for _ in 0..TRIES {
            let what = format!("claim worker id {worker}");
            let greatest = request.layout.max_worker();
            self.check_assigned(worker, greatest)?;
            let stored = self.store.read(worker, Purpose::Replace(request.now)).await?;
            let refusal = match self.floor(worker, &stored, Selection::Assigned, request) {
                Ok(floor) => match self.take(who, worker, &stored, floor, request).await? {
                    Some(lease) => return Ok(lease),
                    None => continue,
                },
                Err(refusal) => refusal,
            };
            let error = self.error(refusal, &what);
            return Err(match stored.record {
                RecordState::Damaged(why) => error.because(why),
                _ => error,
            });
        }
        Err(self.busy("claim a worker id"))
    }

    /// Tries worker ids in their order; `None` if another node won the race for a worker id.
    async fn claim_one(
        &self,
        who: &Identity,
        request: &ClaimRequest,
        mut candidates: Vec<Candidate<S::Version>>,
        conflicts: usize,
    ) -> Result<Option<Lease>, RegistryError> {
        let mut refusals = Refusals::default();
        // After a lost race: begin at a random candidate behind this node's own ones. The range
        // that it is drawn from doubles with each race lost.
        let first_other =
            candidates.iter().rposition(|candidate| candidate.own).map_or(0, |last| last + 1);
        let others = candidates.len() - first_other;
        if conflicts > 0 && others > 1 {
            let spread = others.min(1 << conflicts.min(10));
            candidates[first_other..].rotate_left(fastrand::usize(..spread));
        }
        for Candidate { worker, own, stored } in candidates {
            let stored = match stored {
                Some(stored) => stored,
                // What forbids one unused worker id forbids them all.
                None if refusals.unused_is_refused() => {
                    refusals.count_refused();
                    continue;
                }
                None => self.store.read(worker, Purpose::Replace(request.now)).await?,
            };
            match self.floor(worker, &stored, Selection::Candidate, request) {
                Ok(floor) => return self.take(who, worker, &stored, floor, request).await,
                Err(refusal) if own && worth_waiting(&refusal) => {
                    return Err(self.error(refusal, &format!("claim worker id {worker}")));
                }
                Err(refusal) => refusals.add(worker, &stored, refusal, request),
            }
        }
        Err(self.error(refusals.conclude(), "claim a worker id"))
    }

    fn floor(
        &self,
        worker: WorkerId,
        stored: &Stored<S::Version>,
        selection: Selection,
        request: &ClaimRequest,
    ) -> Result<UnixMillis, RegistryErrorKind> {
        let evidence = RegistryEvidence {
            record: &stored.record,
            mirror: &stored.mirror,
            failed_over_at: stored.failed_over_at,
            policy: &self.policy,
            selection,
            only_record: self.store.lives_in_state_file(),
        };
        first_timestamp(worker, Evidence::Registry(evidence), request)
    }

    /// Writes the claim; `None` when another node was faster.
    async fn take(
        &self,
        who: &Identity,
        worker: WorkerId,
        stored: &Stored<S::Version>,
        floor: UnixMillis,
        request: &ClaimRequest,
    ) -> Result<Option<Lease>, RegistryError> {
        let previous = stored.record.written();
        let fence = request.next_fence(previous.map(|record| &record.fence), floor);
        let workers = self.policy.range.map(|range| range.to_string());
        let record = WorkerRecord {
            holder: who.clone(),
            address: self.address(who).clone(),
            fence: Fence { workers, ..fence },
            unknown: previous.map(|record| record.unknown.clone()).unwrap_or_default(),
        };
        let written = self.store.replace(worker, stored, &record).await?;
        Ok(written.then(|| Lease::new(worker, record.fence)))
    }
}
