//! The port behind which worker ids are given out.
//!
//! Contract of every adapter: per worker id there is one [`Fence`], written only by
//! compare-and-set and never deleted. `claim` and `extend` return success only after the write was
//! confirmed; a write whose answer was lost is resolved by reading the record again and comparing
//! the nonce. Adapters read no clock and do not sleep: the time is handed in.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{Layout, UnixMillis, WorkerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Fence, RegistryError, RegistryErrorKind};

/// Gives out worker ids, each with the slice of time that goes with it.
pub trait WorkerRegistry: fmt::Debug + Send + Sync + 'static {
    /// Whether the state file is the only record: a generator without one is then refused.
    fn needs_state_file(&self) -> bool {
        false
    }

    /// Whether a node whose worker id was taken over may claim another one by itself. Where the id
    /// belongs to the node (the default) it stops instead, for somebody to look.
    fn replaces_lost(&self) -> bool {
        false
    }

    /// Takes a worker id for `who`: reads its fence, refuses without writing when
    /// [`Fence::floor_for`] says so (without a record: [`ClaimRequest::floor_without_record`]), else
    /// writes [`ClaimRequest::next_fence`].
    ///
    /// # Errors
    /// What [`Fence::floor_for`] refuses; `NoWorkerId` when none is left or configured;
    /// `Unavailable`.
    fn claim<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
    ) -> BoxFuture<'a, Result<Lease, RegistryError>>;

    /// Raises the fence's ceiling to [`Report::ceiling`]; updates the lease when that was confirmed.
    ///
    /// Whose the record is tells [`Lease::adopt`], which the adapter calls before it writes: an
    /// extension whose answer was lost must not be taken for another holder's.
    ///
    /// # Errors
    /// `Lost` when the fence is no longer this lease's: terminal. `Unavailable`: the old ceiling
    /// stands.
    fn extend<'a>(
        &'a self,
        lease: &'a mut Lease,
        report: Report,
    ) -> BoxFuture<'a, Result<(), RegistryError>>;

    /// Gives the worker id back: its next holder may start at `next_free`.
    ///
    /// # Errors
    /// `Lost` or `Unavailable`; the id then rests until its ceiling has passed.
    fn release<'a>(
        &'a self,
        lease: Lease,
        next_free: UnixMillis,
    ) -> BoxFuture<'a, Result<(), RegistryError>>;

    /// All worker ids that the registry knows of, in order, for administration.
    ///
    /// # Errors
    /// `Unavailable`.
    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerRecord>, RegistryError>>;

    /// The nodes that are alive as far as the registry knows, this one too once it has claimed.
    /// Whether they are decides nothing: their clocks are compared with one's own. Empty (the
    /// default) where the registry cannot tell.
    ///
    /// # Errors
    /// `Unavailable`.
    fn peers(&self) -> BoxFuture<'_, Result<Vec<Peer>, RegistryError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// A holder's report: it is alive at `now`, and wants to issue up to `ceiling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The clock of the holder's ids. A registry that meets a failover of its database notes this time
    /// where the new server's clock is behind it.
    pub now: UnixMillis,
    /// The holder issues no timestamp at or above this.
    pub ceiling: UnixMillis,
}

/// How many of its own writes a lease remembers: a quarter of an hour's at the default interval.
const WRITES: usize = 300;

/// What a claimant brings along.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The wall clock at the moment of the claim.
    pub now: UnixMillis,
    /// This instance, kept in its state file over restarts.
    pub instance: Uuid,
    /// The same for all attempts of one claim, over restarts too: how an attempt whose answer was
    /// lost is found.
    pub nonce: Uuid,
    /// How it composes ids.
    pub layout: Layout,
    /// What its state file remembers.
    pub memory: Option<Memory>,
    /// Nothing below this may be used, whatever the record says: what this process, or a Java Leaf
    /// before it, may have issued.
    pub least_floor: UnixMillis,
    /// A worker id whose record was watched as long as [`RegistryErrorKind::Watch`] said, and what it
    /// said of the record.
    pub watched: Option<(WorkerId, Uuid)>,
    /// How far ahead the registry ceiling shall be.
    pub offline_for: Duration,
    /// How often a holder raises its ceiling.
    pub report_interval: Duration,
    /// A floor at most this far ahead of `now` can be started at.
    pub tolerance: Duration,
    /// A floor further ahead than this is not waited for.
    pub startup_wait: Duration,
}

impl ClaimRequest {
    /// The fence that makes this claimant the next holder, from `floor` on, after `previous`. Its
    /// ceiling is never lower than the one before: that may be what somebody lives by.
    #[must_use]
    pub fn next_fence(&self, previous: Option<&Fence>, floor: UnixMillis) -> Fence {
        let (epoch, before) = match previous {
            None => (1, UnixMillis::EPOCH),
            // The same claim once more.
            Some(fence) if fence.nonce == self.nonce => (fence.epoch, fence.ceiling),
            Some(fence) => (fence.epoch + 1, fence.ceiling),
        };
        Fence {
            epoch,
            ceiling: (floor.max(self.now) + self.offline_for).max(before),
            instance: self.instance,
            nonce: self.nonce,
            layout: self.layout.shape(),
            epoch_ms: self.layout.epoch(),
            state: crate::FenceState::Held,
        }
    }

    /// The first instant that may be used of a worker id that has no record. A record that was there
    /// may be gone with a restored backup: what this instance issued stands all the same.
    ///
    /// # Errors
    /// As [`Self::start_at`].
    pub fn floor_without_record(&self, worker: WorkerId) -> Result<UnixMillis, RegistryErrorKind> {
        self.start_at(self.issued(worker))
    }

    /// The first instant above all that this instance may have issued as `worker`.
    pub(crate) fn issued(&self, worker: WorkerId) -> UnixMillis {
        let memory = self.memory.as_ref().filter(|memory| memory.worker == worker.get());
        memory.map_or(UnixMillis::EPOCH, |memory| memory.local_ceiling)
    }

    /// Whether the clock allows to start at `floor`; the first instant that may be used.
    ///
    /// # Errors
    /// `NotYet` when it is worth waiting for, else `FloorAhead`.
    pub fn start_at(&self, floor: UnixMillis) -> Result<UnixMillis, RegistryErrorKind> {
        let (floor, now) = (floor.max(self.least_floor), self.now);
        if floor <= now + self.tolerance {
            Ok(floor)
        } else if floor <= now + self.startup_wait {
            Err(RegistryErrorKind::NotYet { at: floor - self.tolerance })
        } else {
            Err(RegistryErrorKind::FloorAhead { floor, now })
        }
    }
}

/// What the state file remembers of this instance's last lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Its worker id.
    pub worker: u32,
    /// The fence as it was last confirmed by the registry.
    pub fence: Fence,
    /// No id was issued at or above this.
    #[serde(with = "crate::fence::unix_millis")]
    pub local_ceiling: UnixMillis,
    /// The lease was lost to another holder.
    pub lost: bool,
    /// How sure it is that nobody else lives from it.
    #[serde(skip)]
    pub origin: Origin,
}

/// Whether a memory is this machine's, in the file that it was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// File, machine and boot are those that wrote it.
    #[default]
    Own,
    /// The machine was booted since, or the file is on another device: a copy of the volume, or
    /// another machine that uses the same one without seeing the lock, may be in use. File and
    /// record must be seen unchanged for a while.
    Uncertain,
    /// Another inode or machine id: the original may be alive.
    Copied,
}

/// A held worker id.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The worker id.
    pub worker: WorkerId,
    /// The first instant that may be used.
    pub floor: UnixMillis,
    /// The fence as this holder last wrote it.
    pub fence: Fence,
    /// The nonce of a write whose answer has not arrived.
    pending: Option<Uuid>,
    /// Nonces of writes before the last: a registry that fell back to one of them (a failover to a
    /// replica that lagged) still has this lease's record.
    earlier: VecDeque<Uuid>,
}

impl Lease {
    /// The lease of the holder that just wrote `fence`.
    #[must_use]
    pub const fn new(worker: WorkerId, floor: UnixMillis, fence: Fence) -> Self {
        Self { worker, floor, fence, pending: None, earlier: VecDeque::new() }
    }

    /// Takes `record` as its own if its holder wrote it, be it by a write whose answer was lost;
    /// returns the nonce for the write that is about to follow. A write that may still arrive
    /// keeps its nonce, so that it is known whenever it does. `None`: it is another holder's.
    #[must_use]
    pub fn adopt(&mut self, record: &Fence) -> Option<Uuid> {
        let arrived = Some(record.nonce) == self.pending;
        let own = arrived || record.nonce == self.fence.nonce;
        if !own && !self.earlier.contains(&record.nonce) {
            return None;
        }
        if own {
            self.remember(record.clone());
        }
        if arrived {
            self.pending = None;
        }
        Some(*self.pending.get_or_insert_with(Uuid::new_v4))
    }

    /// Takes note that its holder's write of `fence` was confirmed.
    pub fn confirm(&mut self, fence: Fence) {
        self.pending = None;
        self.remember(fence);
    }

    fn remember(&mut self, fence: Fence) {
        if fence.nonce != self.fence.nonce {
            self.earlier.truncate(WRITES - 1);
            self.earlier.push_front(self.fence.nonce);
        }
        self.fence = fence;
    }
}

/// A worker id in the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRecord {
    /// The worker id.
    pub worker: WorkerId,
    /// Who holds or held it.
    pub holder: Option<Identity>,
    /// Its fence; `None` where only a Java Leaf has used it.
    pub fence: Option<Fence>,
    /// What is wrong with its record, or peculiar, in words.
    pub remark: Option<String>,
}

/// A live node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub identity: Identity,
    /// Where it answers HTTP, like `10.0.0.7:8080`.
    pub address: Identity,
}

/// A node's name to the registry, usually `ip:port`: 1 to 127 visible ASCII characters (the Java
/// programs' columns are `varchar(127)`) without `/` (it is a path's part in ZooKeeper).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

impl Identity {
    /// Checks `text` and makes it an identity.
    ///
    /// # Errors
    /// [`IdentityError`] when it is empty, too long or holds anything but visible ASCII, or a slash.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        if text.is_empty() || text.len() > 127 || !visible {
            return Err(IdentityError);
        }
        Ok(Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?})", &*self.0)
    }
}

/// The text is no identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an identity: give 1 to 127 visible ASCII characters without '/', like 10.0.0.7:8080")]
pub struct IdentityError;
