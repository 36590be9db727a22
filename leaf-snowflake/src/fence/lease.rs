//! A held worker id, and how its holder recognizes its own writes.
//!
//! Invariant: a lease accepts a record as its own only if the record has the nonce of one of the
//! lease's own writes. If the answer to a write is lost, the next attempt uses the same nonce, so
//! that the write is recognized whenever it arrives.

use std::collections::VecDeque;

use leaf_core::WorkerId;
use uuid::Uuid;

use super::Fence;

/// How many of its own writes a lease remembers: those of 15 minutes at the default report
/// interval.
const REMEMBERED_WRITES: usize = 300;

/// A held worker id.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The worker id.
    pub worker: WorkerId,
    /// The fence as this holder last wrote it.
    pub fence: Fence,
    /// The nonce of a write whose answer has not arrived.
    pending: Option<Uuid>,
    /// Nonces of the writes before the last one, newest first. If a failover to a replica that
    /// lagged brings one of these writes back, the record is still this lease's.
    earlier: VecDeque<Uuid>,
}

impl Lease {
    /// The lease of the holder that wrote `fence`.
    pub(crate) const fn new(worker: WorkerId, fence: Fence) -> Self {
        Self { worker, fence, pending: None, earlier: VecDeque::new() }
    }

    /// If this lease wrote `record`, returns the nonce for the next write; `None` if another holder
    /// wrote it.
    pub(crate) fn recognize(&mut self, record: &Fence) -> Option<Uuid> {
        let arrived = Some(record.nonce) == self.pending;
        let newest = arrived || record.nonce == self.fence.nonce;
        if !newest && !self.earlier.contains(&record.nonce) {
            return None;
        }
        if newest {
            self.set_fence(record.clone());
        }
        if arrived {
            self.pending = None;
        }
        Some(*self.pending.get_or_insert_with(Uuid::new_v4))
    }

    /// Records that the registry confirmed the write of `fence`.
    pub(crate) fn confirm(&mut self, fence: Fence) {
        self.pending = None;
        self.set_fence(fence);
    }

    fn set_fence(&mut self, fence: Fence) {
        if fence.nonce != self.fence.nonce {
            self.earlier.truncate(REMEMBERED_WRITES - 1);
            self.earlier.push_front(self.fence.nonce);
        }
        self.fence = fence;
    }
}
