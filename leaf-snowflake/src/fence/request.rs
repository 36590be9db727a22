//! The data that a node passes to the registry when it claims or extends a worker id.

use std::collections::BTreeMap;
use std::time::Duration;

use leaf_core::{Layout, UnixMillis, WorkerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Fence, FenceState, UnknownFields, WorkerRange};
use crate::RegistryErrorKind;

/// A claim of a worker id: what the node asks for, and what its state file proves.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The node's time: its wall clock, or the ids' clock of a node that issues ids already.
    pub now: UnixMillis,
    /// The id of the node's state file, the same for all starts with that file. Without a state
    /// file, the id of this process.
    pub instance: Uuid,
    /// A random value that is drawn once for a claim. Every attempt of this claim sends it, also
    /// after a restart, so that an attempt whose answer was lost is recognized.
    pub nonce: Uuid,
    /// How the node composes ids.
    pub layout: Layout,
    /// The last lease, if the state file has one.
    pub saved: Option<SavedLease>,
    /// Lowest floor, whatever the record says: this process, or a Java Leaf before it, may have
    /// issued every timestamp below.
    pub least_floor: UnixMillis,
    /// The worker ids whose records were watched as long as [`RegistryErrorKind::Watch`] asked for,
    /// each with the fingerprint in that error, a value that changes when the record does. Several,
    /// because an instance may have held several worker ids.
    pub watched: BTreeMap<WorkerId, Uuid>,
    /// How far ahead of the clock the claim sets the registry ceiling.
    pub offline_for: Duration,
    /// How often a holder extends its lease.
    pub report_interval: Duration,
    /// A floor at most this far ahead of `now` is used at once.
    pub tolerance: Duration,
    /// A floor further ahead than this is refused instead of waited for.
    pub startup_wait: Duration,
}

impl ClaimRequest {
    /// The fence of the next term, with this node as its holder, from `floor` on. Its ceiling is
    /// never below that of the previous fence, whose holder may still issue ids up to there.
    pub(crate) fn next_fence(&self, previous: Option<&Fence>, floor: UnixMillis) -> Fence {
        let (term, ceiling) = match previous {
            None => (1, UnixMillis::EPOCH),
            // Another attempt of the same claim.
            Some(fence) if fence.nonce == self.nonce => (fence.term, fence.ceiling),
            Some(fence) => (fence.term + 1, fence.ceiling),
        };
        Fence {
            term,
            floor,
            ceiling: (floor.max(self.now) + self.offline_for).max(ceiling),
            reported_at: self.now,
            instance: self.instance,
            nonce: self.nonce,
            layout: self.layout.shape(),
            epoch_ms: self.layout.epoch(),
            workers: None,
            state: FenceState::Held,
            unknown: previous.map_or_else(UnknownFields::default, |fence| fence.unknown.clone()),
        }
    }

    /// The first instant above every timestamp that this instance may have issued as `worker`.
    pub(crate) fn issued_below(&self, worker: WorkerId) -> UnixMillis {
        let saved = self.saved.as_ref().filter(|saved| saved.worker == worker.get());
        saved.map_or(UnixMillis::EPOCH, |saved| saved.local_ceiling)
    }
}

/// Refuses a fence of another layout or epoch: ids of two layouts may be equal numbers.
pub(crate) fn check_layout(layout: Layout, fence: &Fence) -> Result<(), RegistryErrorKind> {
    let (shape, epoch) = (layout.shape(), layout.epoch());
    if fence.layout == shape && fence.epoch_ms == epoch {
        return Ok(());
    }
    Err(RegistryErrorKind::OtherLayout {
        recorded: format!("{} from {}", fence.layout, fence.epoch_ms),
        configured: format!("{shape} from {epoch}"),
    })
}

/// Refuses a record that is held by a node with another worker range: else the nodes of one data
/// centre could take worker ids of another data centre.
pub(crate) fn check_range(
    range: Option<WorkerRange>,
    fence: &Fence,
) -> Result<(), RegistryErrorKind> {
    let configured = range.map(|range| range.to_string());
    if fence.state != FenceState::Held || fence.workers == configured {
        return Ok(());
    }
    let told = |range: Option<String>| range.unwrap_or_else(|| "all".into());
    Err(RegistryErrorKind::OtherRange {
        recorded: told(fence.workers.clone()),
        configured: told(configured),
    })
}

/// A holder's report: its clock, the rollback tolerance of the nodes, and the ceiling that it
/// wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The node's time, as in [`ClaimRequest::now`]. A failover of the registry's database that
    /// is noticed in this call is recorded with this time, or a later one.
    pub now: UnixMillis,
    /// The `rollback_tolerance` of the nodes, as in [`ClaimRequest::tolerance`]: another node may
    /// claim the worker id this much before the holder's ceiling passes. If a failover lost that
    /// claim, the holder finds its own record unchanged. So after a failover a lease is in doubt
    /// unless its ceiling is later than the failover by more than the sum of this tolerance and the
    /// possible difference of clocks.
    pub tolerance: Duration,
    /// The holder issues no timestamp at or above this.
    pub ceiling: UnixMillis,
}

/// The last lease of an instance, as its state file remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLease {
    /// The worker id.
    pub worker: u32,
    /// The fence as the registry last confirmed it. At a clean stop it is marked `Released` before
    /// the release is sent to the registry.
    pub fence: Fence,
    /// The node issued no timestamp at or above this.
    pub local_ceiling: UnixMillis,
    /// Whether the holder has found that the lease is over (taken over, retired, in doubt after a
    /// failover, or replaced). If so, it must not be continued after a restart.
    pub lost: bool,
    /// Whether the file is provably the one that this machine wrote. Determined when the file is
    /// opened, not stored in the file.
    #[serde(skip)]
    pub provenance: Provenance,
}

/// Whether a state file is provably the one that this machine wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Provenance {
    /// Inode and machine, boot and device are the same as when the file was written.
    #[default]
    Proven,
    /// The machine was booted since, or the file is on another device. A copy of the volume, or
    /// another machine that mounts the same volume without sharing locks, may be in use: the file
    /// and the registry's record must be seen unchanged for a while.
    Uncertain,
    /// The inode or the machine id is another one: the file is a copy, and the original may be in
    /// use.
    Copied,
}
