//! The port behind which worker ids are given out.
//!
//! Contract of every adapter: per worker id there is one [`Fence`], written only by
//! compare-and-set and never deleted. `claim` and `extend` return success only after the write was
//! confirmed; a write whose answer was lost is resolved by reading the record again and comparing
//! the nonce. Adapters read no clock and do not sleep: the time is handed in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{Layout, UnixMillis, WorkerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Fence, RegistryError};

/// Gives out worker ids, each with the slice of time that goes with it.
pub trait WorkerRegistry: fmt::Debug + Send + Sync + 'static {
    /// Whether the state file is the only record: a generator without one is then refused.
    fn needs_state_file(&self) -> bool {
        false
    }

    /// Takes a worker id for `who`: reads its fence, refuses without writing when
    /// [`Fence::floor_for`] says so, else writes the next epoch with the request's ceiling.
    ///
    /// # Errors
    /// What [`Fence::floor_for`] refuses; `NoWorkerId` when none is left or configured;
    /// `Unavailable`.
    fn claim<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
    ) -> BoxFuture<'a, Result<Lease, RegistryError>>;

    /// Raises the fence's ceiling; updates the lease when that was confirmed.
    ///
    /// # Errors
    /// `Lost` when the fence is no longer this lease's: terminal. `Unavailable`: the old ceiling
    /// stands.
    fn extend<'a>(
        &'a self,
        lease: &'a mut Lease,
        ceiling: UnixMillis,
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

    /// All worker ids with a fence, for administration.
    ///
    /// # Errors
    /// `Unavailable`.
    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerRecord>, RegistryError>>;
}

/// What a claimant brings along.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The wall clock at the moment of the claim.
    pub now: UnixMillis,
    /// This instance, kept in its state file over restarts.
    pub instance: Uuid,
    /// The same for all attempts of one claim: how an attempt whose answer was lost is found.
    pub nonce: Uuid,
    /// How it composes ids.
    pub layout: Layout,
    /// What its state file remembers.
    pub memory: Option<Memory>,
    /// How far ahead the registry ceiling shall be.
    pub offline_for: Duration,
    /// A floor at most this far ahead of `now` can be started at.
    pub tolerance: Duration,
    /// A floor further ahead than this is not waited for.
    pub startup_wait: Duration,
}

impl ClaimRequest {
    /// The fence that makes this claimant the next holder, from `floor` on.
    #[must_use]
    pub fn next_fence(&self, epoch: u64, floor: UnixMillis) -> Fence {
        Fence {
            epoch,
            ceiling: floor.max(self.now) + self.offline_for,
            instance: self.instance,
            nonce: self.nonce,
            layout: self.layout.shape(),
            epoch_ms: self.layout.epoch(),
            state: crate::FenceState::Held,
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
    /// Whether inode and machine id are those that wrote it: a copied file is another one.
    #[serde(skip)]
    pub genuine: bool,
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
    /// The backend's compare-and-set token: a version, a revision.
    pub token: u64,
}

/// A worker id in the registry.
#[derive(Debug, Clone)]
pub struct WorkerRecord {
    /// The worker id.
    pub worker: WorkerId,
    /// Who holds or held it.
    pub holder: Option<Identity>,
    /// Its fence.
    pub fence: Fence,
}

/// A node's name to the registry, usually `ip:port`: 1 to 127 visible ASCII characters (the Java
/// programs' columns are `varchar(127)`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

impl Identity {
    /// Checks `text` and makes it an identity.
    ///
    /// # Errors
    /// [`IdentityError`] when it is empty, too long or holds anything but visible ASCII.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
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
#[error("not an identity: give 1 to 127 visible ASCII characters, like 10.0.0.7:8080")]
pub struct IdentityError;
