//! The first timestamp that a node may use with a worker id: the one function that decides it.
//!
//! Invariant: the answer is at or above every timestamp that another holder, a Java Leaf, or this
//! node itself may have issued as that worker id, as far as the evidence can tell. A refusal writes
//! nothing: a node that restarts in a loop must not push its own ceiling ahead.
//!
//! This file reads no clock and asks no registry: the caller hands in what is known.

use std::time::Duration;

use leaf_core::{UnixMillis, WorkerId};

use super::request::check_layout;
use super::{
    ClaimPolicy, ClaimRequest, Fence, FenceState, JavaMirror, JavaReport, Provenance, RecordState,
    SavedLease,
};
use crate::RegistryErrorKind;

/// How long a Java Leaf's record is watched. A Java Leaf reports every 3 s: this is enough for two
/// reports, and one second for the write.
const WATCH_JAVA: Duration = Duration::from_secs(7);
/// How long after its last report a Java Leaf may still issue ids.
const JAVA_ISSUES_AFTER_REPORT: Duration = Duration::from_secs(4);
/// How far the clocks of a database and of the nodes may differ. A ceiling is a time of a node's
/// clock; the time of a failover is the later one of the database's clock and a node's.
pub(super) const DATABASE_CLOCK_DIFFERENCE: Duration = Duration::from_secs(30);

/// The facts about a worker id from which [`first_timestamp`] decides when a node may issue ids
/// with it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Evidence<'a> {
    /// The registry's answer.
    Registry(RegistryEvidence<'a>),
    /// The registry is unavailable: only the lease that the state file remembers is known.
    SavedLease,
    /// The floor was decided a moment ago, by the registry or from the saved lease. The clock may
    /// have been set since.
    Granted(UnixMillis),
}

/// The registry's data of a worker id, and the policy by which the registry gives worker ids out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegistryEvidence<'a> {
    pub(super) record: &'a RecordState,
    pub(super) mirror: &'a JavaMirror,
    pub(super) failed_over_at: Option<UnixMillis>,
    pub(super) policy: &'a ClaimPolicy,
    pub(super) selection: Selection,
    /// Whether the state file is the only record. No other node can then write the record.
    pub(super) only_record: bool,
}

/// How the worker id that is tried was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// It is assigned to the claimant's identity.
    Assigned,
    /// It is one of the worker ids that the claim tries in order.
    Candidate,
}

/// The first instant that the node of `request` may use if it becomes the next holder of `worker`.
///
/// # Errors
/// `Watch` when the record must be seen unchanged for a while first, `InUse` when it changed
/// meanwhile; `NotYet` when a wait of at most [`ClaimRequest::startup_wait`] is enough,
/// `FloorAhead` or `InUse` when it is not; `Unavailable` when the saved lease alone proves nothing;
/// `FailedOver`, `OtherLayout`, `Retired`, `JavaHolds`, `JavaAlive`, `NoWorkerId`, `Damaged`,
/// `NewerFormat`. After an error the caller must write nothing.
pub(crate) fn first_timestamp(
    worker: WorkerId,
    evidence: Evidence<'_>,
    request: &ClaimRequest,
) -> Result<UnixMillis, RegistryErrorKind> {
    match evidence {
        Evidence::Registry(evidence) => by_registry(worker, evidence, request),
        Evidence::SavedLease => by_saved_lease(request),
        Evidence::Granted(floor) => reachable(floor, request),
    }
}

fn by_registry(
    worker: WorkerId,
    evidence: RegistryEvidence<'_>,
    request: &ClaimRequest,
) -> Result<UnixMillis, RegistryErrorKind> {
    let fence = match evidence.record {
        RecordState::Absent => None,
        RecordState::Written(record) => Some(&record.fence),
        RecordState::Newer(version) => {
            return Err(RegistryErrorKind::NewerFormat { version: *version });
        }
        RecordState::Damaged(_) => return Err(RegistryErrorKind::Damaged),
    };
    // Cloned, since the checks below raise `least_floor` and add to `watched`.
    let mut request = request.clone();
    by_mirror(worker, fence, evidence, &mut request)?;
    if let Some(at) = evidence.failed_over_at
        && !survived_failover(at, worker, fence, &request)
    {
        let until = at + request.offline_for + request.tolerance + DATABASE_CLOCK_DIFFERENCE;
        if until > request.now {
            return Err(RegistryErrorKind::FailedOver { until });
        }
        request.least_floor = request.least_floor.max(until);
    }
    let Some(fence) = fence else {
        // The restore of a backup may have removed the record. Even so the floor must be above what
        // this instance has issued.
        let mut floor = request.issued_below(worker);
        if evidence.only_record && request.saved.is_none() {
            // A state file that is gone may have allowed ids up to the tolerance ahead of the
            // clock.
            floor = floor.max(request.now + request.tolerance);
        }
        return reachable(floor, &request);
    };
    let floor = by_fence(worker, fence, evidence.only_record, &request);
    by_rest(floor, fence, evidence, &request)
}

/// Checks the Java mirror. If a Java Leaf wrote it, raises `least_floor` above the ids of that Java
/// Leaf.
fn by_mirror(
    worker: WorkerId,
    fence: Option<&Fence>,
    evidence: RegistryEvidence<'_>,
    request: &mut ClaimRequest,
) -> Result<(), RegistryErrorKind> {
    match evidence.mirror {
        JavaMirror::Agrees => {}
        JavaMirror::Missing => {
            let why = evidence.mirror.remark().unwrap_or_default();
            return Err(RegistryErrorKind::NoWorkerId(format!("worker id {worker}: {why}")));
        }
        JavaMirror::Damaged(_) => return Err(RegistryErrorKind::Damaged),
        JavaMirror::Java(report) => {
            let above_java = above_java(worker, report, fence, evidence, request)?;
            request.least_floor = request.least_floor.max(above_java);
            // The Java fingerprint includes the fence's nonce, so the fence counts as watched, too.
            if let Some(fence) = fence {
                request.watched.insert(worker, fence.nonce);
            }
        }
    }
    Ok(())
}

/// Refuses a worker id of another instance until `recycle_after` has passed since its ceiling. A
/// released one need not wait, unless worker ids belong to identities; an assigned one never waits.
fn by_rest(
    floor: Result<UnixMillis, RegistryErrorKind>,
    fence: &Fence,
    evidence: RegistryEvidence<'_>,
    request: &ClaimRequest,
) -> Result<UnixMillis, RegistryErrorKind> {
    let other_instance = fence.instance != request.instance && fence.nonce != request.nonce;
    let kept_back = fence.state == FenceState::Held || evidence.policy.bound;
    if !other_instance || !kept_back || evidence.selection == Selection::Assigned {
        return floor;
    }
    let free = fence.ceiling + evidence.policy.recycle_after;
    match floor {
        Ok(_) | Err(RegistryErrorKind::NotYet { .. }) if free > request.now => {
            let at = match floor {
                Err(RegistryErrorKind::NotYet { at }) => at.max(free),
                _ => free,
            };
            match at <= request.now + request.startup_wait {
                true => Err(RegistryErrorKind::NotYet { at }),
                false => Err(RegistryErrorKind::FloorAhead { floor: free, now: request.now }),
            }
        }
        floor => floor,
    }
}

/// Returns the first instant above all ids of a Java Leaf. Refuses the worker id until a watch has
/// shown that the Java Leaf no longer reports.
fn above_java(
    worker: WorkerId,
    report: &JavaReport,
    fence: Option<&Fence>,
    evidence: RegistryEvidence<'_>,
    request: &ClaimRequest,
) -> Result<UnixMillis, RegistryErrorKind> {
    let above_java = report.at.map_or(UnixMillis::EPOCH, |at| at + JAVA_ISSUES_AFTER_REPORT);
    if evidence.selection == Selection::Candidate {
        if !evidence.policy.adopt_java_ids {
            return Err(RegistryErrorKind::JavaHolds);
        }
        let free = above_java + evidence.policy.recycle_after;
        if free > request.now {
            return Err(RegistryErrorKind::FloorAhead { floor: free, now: request.now });
        }
    }
    let fingerprint = report.fingerprint(fence.map(|fence| fence.nonce));
    match request.watched.get(&worker) {
        Some(before) if *before == fingerprint => Ok(above_java),
        Some(_) => Err(RegistryErrorKind::JavaAlive { holder: report.holder.clone() }),
        None => {
            let during = WATCH_JAVA.max(2 * request.report_interval);
            Err(RegistryErrorKind::Watch { worker, fingerprint, during })
        }
    }
}

/// Whether the saved lease proves that this node held the worker id when the database failed over
/// (`at`): then no claim of another holder was lost there.
fn survived_failover(
    at: UnixMillis,
    worker: WorkerId,
    fence: Option<&Fence>,
    request: &ClaimRequest,
) -> bool {
    let (Some(fence), Some(saved)) = (fence, &request.saved) else { return false };
    saved.worker == worker.get()
        && !saved.lost
        && saved.provenance == Provenance::Proven
        && saved.fence.term == fence.term
        && saved.fence.instance == fence.instance
        && saved.fence.ceiling > at + request.tolerance + DATABASE_CLOCK_DIFFERENCE
}

fn by_fence(
    worker: WorkerId,
    fence: &Fence,
    only_record: bool,
    request: &ClaimRequest,
) -> Result<UnixMillis, RegistryErrorKind> {
    check_layout(request.layout, fence)?;
    if fence.state == FenceState::Retired {
        return Err(RegistryErrorKind::Retired);
    }
    // Everything below this may have been issued, whatever the record says: it may come from a
    // restored backup.
    let issued = request.issued_below(worker);
    let provenance = request.saved.as_ref().map(|saved| saved.provenance);
    if fence.instance == request.instance
        && provenance == Some(Provenance::Uncertain)
        // Nobody else writes the only record: there is nothing to watch.
        && !only_record
    {
        match request.watched.get(&worker) {
            Some(nonce) if *nonce == fence.nonce => {}
            Some(_) => return Err(in_use(fence, None)),
            None => {
                let (fingerprint, during) = (fence.nonce, 2 * request.report_interval);
                return Err(RegistryErrorKind::Watch { worker, fingerprint, during });
            }
        }
    }
    let own = request.saved.as_ref().filter(|saved| {
        saved.provenance != Provenance::Copied
            && !saved.lost
            && saved.worker == worker.get()
            && saved.fence.instance == fence.instance
            && fence.instance == request.instance
    });
    // An earlier attempt of this very claim, whose answer was lost: nothing was issued under it. If
    // this node held the term directly before, it may have issued ids under that one, and goes on
    // above those; else it starts at the floor that the attempt wrote.
    if fence.nonce == request.nonce {
        let directly_before = |saved: &SavedLease| {
            saved.provenance == Provenance::Proven && saved.fence.term + 1 == fence.term
        };
        let floor = if own.is_some_and(directly_before) { issued } else { fence.floor };
        return reachable(floor.max(issued), request);
    }
    let is_current = |saved: &SavedLease| match saved.provenance {
        // The original of a cloned volume may have extended its lease since.
        Provenance::Uncertain => saved.fence.nonce == fence.nonce,
        _ => saved.fence.term == fence.term,
    };
    if own.is_some_and(is_current) {
        return reachable(issued, request);
    }
    reachable(fence.ceiling.max(issued), request).map_err(|error| explain(fence, error, request))
}

/// The first instant from which this node may continue without the registry: the local ceiling of
/// the saved lease, if nobody else can have claimed the worker id since.
fn by_saved_lease(request: &ClaimRequest) -> Result<UnixMillis, RegistryErrorKind> {
    let proven = request.saved.as_ref().filter(|saved| {
        saved.provenance == Provenance::Proven
            && !saved.lost
            && saved.fence.state == FenceState::Held
            && check_layout(request.layout, &saved.fence).is_ok()
            && saved.fence.ceiling > request.now
    });
    let saved = proven.ok_or(RegistryErrorKind::Unavailable)?;
    reachable(saved.local_ceiling, request)
}

/// Returns the greater of `floor` and [`ClaimRequest::least_floor`]. Refuses a result that is
/// further ahead of the clock than the tolerance.
fn reachable(floor: UnixMillis, request: &ClaimRequest) -> Result<UnixMillis, RegistryErrorKind> {
    let (floor, now) = (floor.max(request.least_floor), request.now);
    if floor <= now + request.tolerance {
        Ok(floor)
    } else if floor <= now + request.startup_wait {
        Err(RegistryErrorKind::NotYet { at: floor - request.tolerance })
    } else {
        Err(RegistryErrorKind::FloorAhead { floor, now })
    }
}

const fn in_use(fence: &Fence, last_report: Option<Duration>) -> RegistryErrorKind {
    RegistryErrorKind::InUse { last_report, until: fence.ceiling }
}

/// Reports `InUse` instead of `FloorAhead` when the holder reported lately.
fn explain(fence: &Fence, refusal: RegistryErrorKind, request: &ClaimRequest) -> RegistryErrorKind {
    let last_report = request.now - fence.reported_at;
    // A report that is dated far in the future comes from a wrong clock, and may be old.
    let nearly = fence.reported_at <= request.now + 2 * request.report_interval;
    let recent = last_report < 2 * request.report_interval && nearly;
    match refusal {
        RegistryErrorKind::FloorAhead { .. } if fence.state == FenceState::Held && recent => {
            in_use(fence, Some(last_report))
        }
        refusal => refusal,
    }
}
