//! Which worker id a node takes.
//!
//! A node tries what is its own first: an earlier attempt of the same claim, what its state file
//! remembers, what its instance or (where worker ids belong to identities) its name holds. Then come
//! worker ids that were given back, those never used, and those whose holder has been silent for long.
//! Racing nodes spread: whoever lost a race takes the next try at random.

use std::time::Duration;

use leaf_core::{UnixMillis, WorkerId};
use leaf_snowflake::{
    ClaimRequest, FenceState, Identity, Lease, Origin, RegistryError, RegistryErrorKind,
};

use super::{FenceStore, FencedRegistry, Found, Known, Mirror, Purpose, Record, Recorded, TRIES};

/// A Java Leaf reports every 3 s: two reports, and one second for the write.
const WATCH_JAVA: Duration = Duration::from_secs(7);
/// A Java Leaf issues ids past its last report.
const JAVA_PAST_REPORT: Duration = Duration::from_secs(4);
/// How far the clocks of the database and of the nodes may differ: ceilings are by the nodes', a failover
/// by the database's.
pub(super) const CLOCKS: Duration = Duration::from_secs(30);

/// Which worker ids are tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// An earlier attempt of this claim, whose answer was lost.
    ThisClaim,
    /// What the state file remembers.
    Remembered,
    /// Whatever else this instance has held.
    Instance,
    /// Given back by a clean stop.
    GivenBack,
    Unused,
    /// Somebody's, perhaps dead.
    Used,
}

/// A worker id to try.
struct Candidate<T> {
    worker: WorkerId,
    own: bool,
    found: Option<Found<T>>,
}

/// The refusals met so far: what is said when nothing is left.
#[derive(Default)]
struct Refusals {
    /// Worth waiting for.
    soon: Option<RegistryErrorKind>,
    /// The first of one that nobody has used.
    of_unused: Option<RegistryErrorKind>,
    taken: usize,
    java: usize,
    /// What becomes free first.
    first: Option<(UnixMillis, WorkerId)>,
}

impl<S: FenceStore> FencedRegistry<S> {
    pub(super) async fn claim_for(
        &self,
        who: &Identity,
        request: &ClaimRequest,
    ) -> Result<Lease, RegistryError> {
        for conflicts in 0..TRIES {
            let known = self.store.known(Purpose::Replace(request.now)).await?;
            for (_, found) in &known {
                if let Some(refusal) = other_layout(found.record.written(), request) {
                    return Err(self.error(refusal, "claim a worker id"));
                }
            }
            let assigned = match (self.policy.fixed, self.policy.bound) {
                (Some(worker), _) => Some(worker),
                (None, true) => self.store.assigned(who, request, &known).await?,
                (None, false) => None,
            };
            if let Some(worker) = assigned {
                return self.claim_assigned(who, worker, request).await;
            }
            let unused = self.store.unused(&known, request.layout.max_worker()).await?;
            let candidates = self.order(request, known, unused);
            if let Some(lease) = self.claim_one(who, request, candidates, conflicts).await? {
                return Ok(lease);
            }
        }
        Err(self.busy("claim a worker id"))
    }

    /// Takes a worker id that belongs to `who`.
    async fn claim_assigned(
        &self,
        who: &Identity,
        mut worker: WorkerId,
        request: &ClaimRequest,
    ) -> Result<Lease, RegistryError> {
        for _ in 0..TRIES {
            let what = format!("claim worker id {worker}");
            let greatest = request.layout.max_worker();
            if worker > greatest {
                let why = format!(
                    "worker id {worker} of {who} is above {greatest}, the layout's greatest: as many \
                     nodes have been here; use a registry that gives worker ids out again, like \
                     zk_recycle"
                );
                return Err(self.error(RegistryErrorKind::NoWorkerId(why), &what));
            }
            let found = self.store.read(worker, Purpose::Replace(request.now)).await?;
            let refusal = match self.floor(worker, &found, request, Whose::Assigned) {
                Ok(floor) => match self.take(who, worker, &found, floor, request).await? {
                    Some(lease) => return Ok(lease),
                    None => continue,
                },
                Err(RegistryErrorKind::Damaged) => return Err(self.damaged(worker, &what)),
                Err(refusal) => refusal,
            };
            let foreign = found.record.written().is_some_and(|record| {
                record.fence.instance != request.instance && record.fence.state == FenceState::Held
            });
            if foreign
                && self.policy.new_id
                && !is_worth_waiting(&refusal)
                && let Some(another) = self.store.assign_another(who, greatest).await?
            {
                tracing::warn!("{refusal}: {who} takes worker id {another} instead");
                worker = another;
                continue;
            }
            return Err(self.error(refusal, &what));
        }
        Err(self.busy("claim a worker id"))
    }

    /// Tries worker ids in their order; `None` after a race that somebody else has won.
    async fn claim_one(
        &self,
        who: &Identity,
        request: &ClaimRequest,
        mut candidates: Vec<Candidate<S::Token>>,
        conflicts: usize,
    ) -> Result<Option<Lease>, RegistryError> {
        let mut refusals = Refusals::default();
        // Who lost a race looks elsewhere among what is free, further each time.
        let own = candidates.iter().rposition(|candidate| candidate.own).map_or(0, |last| last + 1);
        let free = candidates.len() - own;
        if conflicts > 0 && free > 1 {
            let spread = free.min(1 << conflicts.min(10));
            candidates[own..].rotate_left(fastrand::usize(..spread));
        }
        for Candidate { worker, own, found } in candidates {
            let found = match found {
                Some(found) => found,
                // What forbids one that nobody has used forbids them all.
                None if refusals.of_unused.is_some() => {
                    refusals.taken += 1;
                    continue;
                }
                None => self.store.read(worker, Purpose::Replace(request.now)).await?,
            };
            match self.floor(worker, &found, request, Whose::Anybodys) {
                Ok(floor) => return self.take(who, worker, &found, floor, request).await,
                Err(refusal) if own && is_worth_waiting(&refusal) => {
                    return Err(self.error(refusal, &format!("claim worker id {worker}")));
                }
                Err(refusal) => {
                    // What this instance remembers of one says nothing of the others.
                    let memory = request.memory.as_ref();
                    let remembered = memory.is_some_and(|memory| memory.worker == worker.get());
                    refusals.note(worker, &found, refusal, remembered);
                }
            }
        }
        Err(self.error(refusals.conclude(), "claim a worker id"))
    }

    /// The worker ids to try, in order.
    fn order(
        &self,
        request: &ClaimRequest,
        known: Vec<Known<S::Token>>,
        unused: Vec<WorkerId>,
    ) -> Vec<Candidate<S::Token>> {
        let remembered = request.memory.as_ref().map(|memory| memory.worker);
        let now = request.now;
        let rank = |worker: WorkerId, found: &Found<S::Token>| {
            let Some(record) = found.record.written() else {
                let java = match &found.mirror {
                    Mirror::Java(report) => report.at,
                    _ => None,
                };
                return (Rank::Used, java.unwrap_or(UnixMillis::EPOCH));
            };
            let fence = &record.fence;
            let given_back =
                fence.state == FenceState::Released && fence.ceiling <= now + request.tolerance;
            let rank = if fence.nonce == request.nonce {
                Rank::ThisClaim
            } else if fence.instance == request.instance && !self.policy.bound {
                if remembered == Some(worker.get()) { Rank::Remembered } else { Rank::Instance }
            } else if given_back && !self.policy.bound {
                Rank::GivenBack
            } else {
                Rank::Used
            };
            (rank, fence.ceiling)
        };
        let greatest = request.layout.max_worker();
        let range = self.store.range();
        let possible = |worker: &WorkerId| *worker <= greatest && range.contains(&worker.get());
        let known = known.into_iter().filter(|(worker, _)| possible(worker));
        let known = known.map(|(worker, found)| {
            let (rank, since) = rank(worker, &found);
            ((rank, since), Candidate { worker, own: rank <= Rank::Instance, found: Some(found) })
        });
        let unused = unused.into_iter().map(|worker| {
            // What this instance remembers of it may be gone with a restored backup.
            let remembered = remembered == Some(worker.get()) && !self.policy.bound;
            let rank = if remembered { Rank::Remembered } else { Rank::Unused };
            ((rank, UnixMillis::EPOCH), Candidate { worker, own: false, found: None })
        });
        let mut ranked: Vec<_> = known.chain(unused).collect();
        ranked.sort_by_key(|(rank, candidate)| (*rank, candidate.worker));
        ranked.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Where `request` may start as `worker`.
    fn floor(
        &self,
        worker: WorkerId,
        found: &Found<S::Token>,
        request: &ClaimRequest,
        whose: Whose,
    ) -> Result<UnixMillis, RegistryErrorKind> {
        let mut request = request.clone();
        let fence = match &found.record {
            Recorded::Absent => None,
            Recorded::Written(record) => Some(&record.fence),
            Recorded::Damaged(_) => return Err(RegistryErrorKind::Damaged),
        };
        match &found.mirror {
            Mirror::Agrees => {}
            Mirror::Missing => {
                let why = found.mirror.remark(worker).unwrap_or_default();
                return Err(RegistryErrorKind::NoWorkerId(format!("worker id {worker}: {why}")));
            }
            Mirror::Damaged(_) => return Err(RegistryErrorKind::Damaged),
            Mirror::Java(report) => {
                let past = report.at.map_or(UnixMillis::EPOCH, |at| at + JAVA_PAST_REPORT);
                if whose == Whose::Anybodys {
                    self.may_adopt(past, &request)?;
                }
                let nonce = report.seen(fence.map(|fence| fence.nonce));
                match request.watched {
                    Some((watched, seen)) if watched == worker => {
                        if seen != nonce {
                            let holder = report.holder.clone();
                            return Err(RegistryErrorKind::JavaAlive { holder });
                        }
                        request.watched = fence.map(|fence| (worker, fence.nonce));
                    }
                    _ => {
                        let during = WATCH_JAVA.max(2 * request.report_interval);
                        return Err(RegistryErrorKind::Watch { worker, nonce, during });
                    }
                }
                request.least_floor = request.least_floor.max(past);
            }
        }
        if found.failover != UnixMillis::EPOCH && !proves_its_hold(found, worker, &request) {
            let until = found.failover + request.offline_for + request.tolerance + CLOCKS;
            if until > request.now {
                return Err(RegistryErrorKind::FailedOver { until });
            }
            request.least_floor = request.least_floor.max(until);
        }
        let Some(fence) = fence else { return request.floor_without_record(worker) };
        let floor = fence.floor_for(worker, &request)?;
        let stranger = fence.instance != request.instance && fence.nonce != request.nonce;
        let rests = fence.state == FenceState::Held || self.policy.bound;
        if stranger && rests && whose == Whose::Anybodys {
            self.may_recycle(fence.ceiling, &request)?;
        }
        Ok(floor)
    }

    /// Whether an unreleased worker id whose ceiling has passed may be taken.
    fn may_recycle(
        &self,
        ceiling: UnixMillis,
        request: &ClaimRequest,
    ) -> Result<(), RegistryErrorKind> {
        match ceiling + self.policy.recycle_after {
            free if free <= request.now => Ok(()),
            floor => Err(RegistryErrorKind::FloorAhead { floor, now: request.now }),
        }
    }

    /// Whether what a Java Leaf held may be taken.
    fn may_adopt(&self, past: UnixMillis, request: &ClaimRequest) -> Result<(), RegistryErrorKind> {
        if self.policy.adopt_java {
            return self.may_recycle(past, request);
        }
        Err(RegistryErrorKind::NoWorkerId(
            "a Java Leaf has it: set snowflake.adopt_java_ids = true once the last one is gone"
                .into(),
        ))
    }

    /// Writes the claim; `None` when somebody else was faster.
    async fn take(
        &self,
        who: &Identity,
        worker: WorkerId,
        found: &Found<S::Token>,
        floor: UnixMillis,
        request: &ClaimRequest,
    ) -> Result<Option<Lease>, RegistryError> {
        let previous = found.record.written().map(|record| &record.fence);
        let fence = request.next_fence(previous, floor);
        let address = self.address(who).clone();
        let record = Record { holder: who.clone(), address, fence };
        let written = self.store.write(worker, found, &record).await?;
        Ok(written.then(|| Lease::new(worker, floor, record.fence)))
    }
}

/// Whose worker id is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The claimant's by its identity.
    Assigned,
    Anybodys,
}

/// Whether a store that lost writes cannot have lost another holder's claim of this worker id: the
/// claimant's own ceiling reaches beyond the failover.
fn proves_its_hold<T>(found: &Found<T>, worker: WorkerId, request: &ClaimRequest) -> bool {
    let (Some(record), Some(memory)) = (found.record.written(), &request.memory) else {
        return false;
    };
    memory.worker == worker.get()
        && !memory.lost
        && memory.origin == Origin::Own
        && memory.fence.epoch == record.fence.epoch
        && memory.fence.instance == record.fence.instance
        && memory.fence.ceiling > found.failover + CLOCKS
}

/// The refusal where a record was made with another layout or epoch: the ids of two layouts may be the
/// same number whatever the worker ids.
fn other_layout(record: Option<&Record>, request: &ClaimRequest) -> Option<RegistryErrorKind> {
    let (fence, layout) = (&record?.fence, &request.layout);
    let other = (&fence.layout, fence.epoch_ms) != (&layout.shape(), layout.epoch());
    other.then(|| RegistryErrorKind::OtherLayout {
        recorded: format!("{} from {}", fence.layout, fence.epoch_ms),
        configured: format!("{} from {}", layout.shape(), layout.epoch()),
    })
}

const fn is_worth_waiting(refusal: &RegistryErrorKind) -> bool {
    matches!(refusal, RegistryErrorKind::NotYet { .. } | RegistryErrorKind::Watch { .. })
}

impl Refusals {
    fn note<T>(
        &mut self,
        worker: WorkerId,
        found: &Found<T>,
        refusal: RegistryErrorKind,
        remembered: bool,
    ) {
        self.taken += 1;
        let unused = found.mirror == Mirror::Agrees && found.record == Recorded::Absent;
        if unused && !remembered {
            self.of_unused = Some(refusal.clone());
        }
        if let (Mirror::Java(_), None) = (&found.mirror, found.record.written()) {
            self.java += 1;
        }
        // What a Java Leaf has written since does not become free when our own ceiling has passed.
        let ours = found.record.written().filter(|_| found.mirror == Mirror::Agrees);
        if let Some(record) = ours.filter(|it| it.fence.state != FenceState::Retired) {
            let free = (record.fence.ceiling, worker);
            self.first = Some(self.first.map_or(free, |first| first.min(free)));
        }
        let sooner = match (&refusal, &self.soon) {
            (RegistryErrorKind::NotYet { at }, Some(RegistryErrorKind::NotYet { at: before })) => {
                at < before
            }
            (refusal, None) => is_worth_waiting(refusal),
            _ => false,
        };
        if sooner {
            self.soon = Some(refusal);
        }
    }

    fn conclude(self) -> RegistryErrorKind {
        // That of an unused one is why the claim fails: else it would have been taken.
        if let Some(refusal) = self.soon.or(self.of_unused) {
            return refusal;
        }
        let java = match self.java {
            0 => String::new(),
            count => format!(", {count} of them held by Java Leafs"),
        };
        let first = self.first.map_or_else(String::new, |(at, worker)| {
            format!("; the first that may become free is {worker}, once {at} (Unix ms) has passed")
        });
        RegistryErrorKind::NoWorkerId(format!(
            "all {} worker ids are in use{java}{first}: stop a node, or use a layout with more worker \
             bits in an id space of its own; `leaf worker list` shows who has them",
            self.taken
        ))
    }
}
