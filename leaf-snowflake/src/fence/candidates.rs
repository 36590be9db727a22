//! The order in which a claim tries worker ids, and the error that a node gets if none is free.

use std::ops::RangeInclusive;

use leaf_core::{UnixMillis, WorkerId};

use super::{ClaimRequest, FenceState, JavaMirror, RecordState, Stored, StoredWorker};
use crate::RegistryErrorKind;

/// The rank of a worker id in a claim: lower ranks are tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// An earlier attempt of this claim wrote its record, but the answer was lost.
    ThisClaim,
    /// The worker id that the state file remembers.
    Remembered,
    /// Another worker id that this instance has held.
    Instance,
    /// A worker id that was given back by a clean stop, or freed or repaired by an operator.
    Released,
    /// A worker id that no node has used.
    Unused,
    /// All others: most belong to another node, which may be dead.
    Used,
}

/// A worker id to try.
#[derive(Debug)]
pub(super) struct Candidate<V> {
    pub(super) worker: WorkerId,
    /// Whether its stored record has the nonce of this claim or, where worker ids do not belong to
    /// identities, the id of this instance; `false` where no record is stored.
    pub(super) own: bool,
    /// The stored data of this worker id; `None` if no node has used it.
    pub(super) stored: Option<Stored<V>>,
}

/// The worker ids to try, in order. `bound` says whether worker ids belong to identities.
pub(super) fn in_order<V>(
    request: &ClaimRequest,
    bound: bool,
    range: RangeInclusive<u32>,
    listed: Vec<StoredWorker<V>>,
    unused: Vec<WorkerId>,
) -> Vec<Candidate<V>> {
    let remembered = request.saved.as_ref().map(|saved| saved.worker);
    let rank = |worker: WorkerId, stored: &Stored<V>| {
        let Some(record) = stored.record.written() else {
            let reported = match &stored.mirror {
                JavaMirror::Java(report) => report.at,
                _ => None,
            };
            return (Rank::Used, reported.unwrap_or(UnixMillis::EPOCH));
        };
        let fence = &record.fence;
        let free =
            fence.state == FenceState::Released && fence.ceiling <= request.now + request.tolerance;
        let rank = if fence.nonce == request.nonce {
            Rank::ThisClaim
        } else if fence.instance == request.instance && !bound {
            if remembered == Some(worker.get()) { Rank::Remembered } else { Rank::Instance }
        } else if free && !bound {
            Rank::Released
        } else {
            Rank::Used
        };
        (rank, fence.ceiling)
    };
    let greatest = request.layout.max_worker();
    let possible = |worker: &WorkerId| *worker <= greatest && range.contains(&worker.get());
    let listed = listed.into_iter().filter(|(worker, _)| possible(worker));
    let listed = listed.map(|(worker, stored)| {
        let (rank, used_until) = rank(worker, &stored);
        (
            (rank, used_until),
            Candidate { worker, own: rank <= Rank::Instance, stored: Some(stored) },
        )
    });
    let unused = unused.into_iter().map(|worker| {
        // The restore of a backup may have removed the record of the worker id that the state file
        // remembers. Then no record proves that the worker id is this instance's own.
        let is_remembered = remembered == Some(worker.get()) && !bound;
        let rank = if is_remembered { Rank::Remembered } else { Rank::Unused };
        ((rank, UnixMillis::EPOCH), Candidate { worker, own: false, stored: None })
    });
    let mut ranked: Vec<_> = listed.chain(unused).collect();
    ranked.sort_by_key(|(rank, candidate)| (*rank, candidate.worker));
    ranked.into_iter().map(|(_, candidate)| candidate).collect()
}

/// Whether the same claim may succeed after a wait that the refusal names.
pub(super) const fn worth_waiting(refusal: &RegistryErrorKind) -> bool {
    matches!(refusal, RegistryErrorKind::NotYet { .. } | RegistryErrorKind::Watch { .. })
}

/// The refusals of a claim so far, from which its error is made if no candidate is left.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The first refusal after which the claim may succeed if it waits. A `NotYet` is replaced by a
    /// later `NotYet` with an earlier time.
    retry_after: Option<RegistryErrorKind>,
    /// The refusal of a worker id that no node has used.
    of_unused: Option<RegistryErrorKind>,
    /// A refusal because the database has failed over. The claim returns it instead of "all are in
    /// use": the worker ids are refused because of the failover, and some of them may be free.
    failed_over: Option<RegistryErrorKind>,
    /// How many worker ids were refused.
    refused: usize,
    /// How many of the refused worker ids belong to Java Leafs.
    java: usize,
    /// The earliest time at which a refused worker id may become free, and that worker id.
    first_free: Option<(UnixMillis, WorkerId)>,
}

impl Refusals {
    pub(super) const fn unused_is_refused(&self) -> bool {
        self.of_unused.is_some()
    }

    /// Counts an unused worker id that is refused for the same reason as an earlier one.
    pub(super) const fn count_refused(&mut self) {
        self.refused += 1;
    }

    pub(super) fn add<V>(
        &mut self,
        worker: WorkerId,
        stored: &Stored<V>,
        refusal: RegistryErrorKind,
        request: &ClaimRequest,
    ) {
        self.refused += 1;
        // The remembered worker id may be refused because of what this instance issued with it,
        // which says nothing about other unused ones.
        let remembered = request.saved.as_ref().is_some_and(|saved| saved.worker == worker.get());
        let unused = stored.mirror == JavaMirror::Agrees && stored.record == RecordState::Absent;
        if unused && !remembered {
            self.of_unused = Some(refusal.clone());
        }
        if let RegistryErrorKind::FailedOver { .. } = refusal {
            self.failed_over = Some(refusal.clone());
        }
        if let (JavaMirror::Java(_), None) = (&stored.mirror, stored.record.written()) {
            self.java += 1;
        }
        // A worker id whose mirror a Java Leaf wrote last does not become free when the fence's
        // ceiling passes.
        let ours = stored.record.written().filter(|_| stored.mirror == JavaMirror::Agrees);
        if let Some(record) = ours.filter(|it| it.fence.state != FenceState::Retired) {
            // The time that the refusal names, if it names one: it may be later than the ceiling
            // (`recycle_after`). `NotYet` needs no case: the error then does not name the first
            // free worker id.
            let at = match &refusal {
                RegistryErrorKind::FloorAhead { floor, .. } => *floor,
                _ => record.fence.ceiling,
            };
            let free = (at, worker);
            self.first_free = Some(self.first_free.map_or(free, |first| first.min(free)));
        }
        let sooner = match (&refusal, &self.retry_after) {
            (
                RegistryErrorKind::NotYet { at, .. },
                Some(RegistryErrorKind::NotYet { at: before, .. }),
            ) => at < before,
            (refusal, None) => worth_waiting(refusal),
            _ => false,
        };
        if sooner {
            self.retry_after = Some(refusal);
        }
    }

    pub(super) fn conclude(self) -> RegistryErrorKind {
        // If an unused worker id was refused, its refusal is the real reason: without it the claim
        // would have succeeded.
        if let Some(refusal) = self.retry_after.or(self.of_unused).or(self.failed_over) {
            return refusal;
        }
        let java = match self.java {
            0 => String::new(),
            count => format!(", {count} of them held by Java Leafs"),
        };
        let first = self.first_free.map_or_else(String::new, |(at, worker)| {
            format!("; the first that may become free is {worker}, once {} has passed", at.utc())
        });
        RegistryErrorKind::NoWorkerId(format!(
            "all {} worker ids are in use{java}{first}: stop a node, or, if the \
             new ids may equal old ones without harm and this kind of registry has more worker ids, use a \
             layout with more worker bits and an empty registry",
            self.refused
        ))
    }
}
