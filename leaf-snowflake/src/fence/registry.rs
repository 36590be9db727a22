//! A registry of worker ids: a store, and the rules that apply to it.
//!
//! Invariant: a record is replaced only by compare-and-set against what was just read. If another
//! writer was faster, the record is read and written again; a write whose answer was lost is
//! recognized by its nonce.

use std::fmt;
use std::sync::{Arc, Mutex};

use futures_core::future::BoxFuture;
use leaf_core::{Layout, UnixMillis, WorkerId};
use tracing::{Instrument as _, Span};

use super::admin::AdminCommand;
use super::rules::{ClaimPolicy, StoreRules};
use super::{
    ClaimRequest, Fence, FenceState, FenceStore, Identity, JavaMirror, Lease, NodeSettings, Peer,
    Purpose, RecordState, Report, Stored,
};
use crate::{RegistryError, RegistryErrorKind};

/// A registry of worker ids: a [`FenceStore`] under a [`ClaimPolicy`]. Cheap to clone.
///
/// ```
/// use leaf_snowflake::{ClaimPolicy, MemoryFenceStore, Registry};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let registry = Registry::new(MemoryFenceStore::default(), ClaimPolicy::default(), None);
/// assert!(registry.workers().await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Registry(Arc<dyn Rules>);

/// A worker id in the registry, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerView {
    /// The worker id.
    pub worker: WorkerId,
    /// The node that holds it, or held it last.
    pub holder: Option<Identity>,
    /// Its fence; `None` if the worker id has no record, or one that cannot be read. In the second
    /// case `remark` says why.
    pub fence: Option<Fence>,
    /// What is wrong with its record or noteworthy about it, in words.
    pub remark: Option<String>,
    /// Whether its record needs [`Registry::repair_worker`].
    pub needs_repair: bool,
}

/// The trace span of one request to the registry.
fn span(what: &'static str) -> Span {
    tracing::info_span!("registry", what)
}

impl Registry {
    /// Creates a registry over `store`. `address` is where other nodes reach this node by HTTP;
    /// `None` means that its identity is that address.
    pub fn new(store: impl FenceStore, policy: ClaimPolicy, address: Option<Identity>) -> Self {
        Self::shared(Arc::new(store), policy, address)
    }

    /// Creates a registry as [`Self::new`] does, over a store that other code shares.
    pub fn shared(
        store: Arc<impl FenceStore>,
        policy: ClaimPolicy,
        address: Option<Identity>,
    ) -> Self {
        Self(Arc::new(StoreRules { store, policy, address, reported: Mutex::default() }))
    }

    /// Whether the node's state file is the only record. Then a generator without a state file is
    /// refused, and there is nothing to administer.
    #[must_use]
    pub fn lives_in_state_file(&self) -> bool {
        self.0.lives_in_state_file()
    }

    /// The policy by which nodes take worker ids.
    pub(crate) fn policy(&self) -> &ClaimPolicy {
        self.0.policy()
    }

    /// Returns an error if [`Self::claim`] would refuse `who`, whatever records the store has. Asks
    /// no server, so that a program can check its configuration before it starts.
    ///
    /// # Errors
    /// `BadIdentity`, `NotAssigned`, and for a fixed worker id `BeyondLayout`, `OutsideRange`.
    ///
    /// ```
    /// use leaf_core::{Layout, WorkerId};
    /// use leaf_snowflake::{ClaimPolicy, Identity, MemoryFenceStore, Registry};
    ///
    /// let policy = ClaimPolicy { fixed: Some(WorkerId::new(1024)), ..ClaimPolicy::default() };
    /// let registry = Registry::new(MemoryFenceStore::default(), policy, None);
    /// let who = Identity::parse("10.0.0.7:8080")?;
    /// assert!(registry.check(&who, Layout::LEAF).is_err(), "the layout ends at 1023");
    /// # Ok::<(), leaf_snowflake::IdentityError>(())
    /// ```
    pub fn check(&self, who: &Identity, layout: Layout) -> Result<(), RegistryError> {
        self.0.check(who, layout)
    }

    /// Returns an error if every claim would be refused: because records have another layout or
    /// range, or because a right or a table is missing. Otherwise returns how many worker ids are
    /// in use or were used before. Changes nothing.
    ///
    /// # Errors
    /// `OtherLayout`, `OtherRange`, `Unavailable`, `Refused`.
    pub async fn try_claiming(&self, layout: Layout) -> Result<usize, RegistryError> {
        self.0.try_claiming(layout).await
    }

    /// Takes a worker id for `who`.
    ///
    /// # Errors
    /// `NotYet` and `Watch` name what to wait for before the next attempt; `NoWorkerId`, `InUse`,
    /// `FloorAhead`, `JavaAlive`, `OtherLayout`, `Retired` and others refuse this claim: see each
    /// for what must change; `Unavailable`.
    pub async fn claim(
        &self,
        who: &Identity,
        request: &ClaimRequest,
    ) -> Result<Lease, RegistryError> {
        self.0.claim(who, request).instrument(span("claim")).await
    }

    /// Raises the fence's ceiling to [`Report::ceiling`]; `lease` has the new ceiling once that is
    /// confirmed.
    ///
    /// # Errors
    /// `Lost` if another holder wrote the fence, `LeaseInDoubt` after a failover of the database:
    /// both end this lease. `Unavailable`, `Damaged`, `NewerFormat`: the old ceiling remains valid.
    pub async fn extend(&self, lease: &mut Lease, report: Report) -> Result<(), RegistryError> {
        self.0.extend(lease, report).instrument(span("extend")).await
    }

    /// Gives the worker id back: its next holder may start at `last.ceiling`, one past the last
    /// timestamp used.
    ///
    /// # Errors
    /// The errors of [`Self::extend`]. After any error but `Lost`, the worker id may stay held
    /// until its ceiling has passed.
    pub async fn release(&self, lease: Lease, last: Report) -> Result<(), RegistryError> {
        self.0.release(lease, last).instrument(span("release")).await
    }

    /// Every worker id that the registry has a record of, in order.
    ///
    /// # Errors
    /// `Unavailable`, `Refused`.
    pub async fn workers(&self) -> Result<Vec<WorkerView>, RegistryError> {
        self.0.workers().await
    }

    /// Returns a warning for the operator if no node of this cluster has a worker id yet, but the
    /// registry has other clusters: the key `name` may be misspelt. Returns `None` otherwise.
    ///
    /// # Errors
    /// `Unavailable`, `Refused`.
    pub async fn warning_of_a_new_cluster(&self) -> Result<Option<String>, RegistryError> {
        let others = self.0.others_beside_a_new_cluster().await?;
        let names: Vec<_> = others.iter().map(|name| format!("{name:?}")).collect();
        Ok((!names.is_empty()).then(|| {
            format!(
                "no node of this cluster has used the registry before, and it has other clusters: {}. If this node belongs \
                 to one of them, its key `name` is misspelt, and its ids will repeat theirs",
                names.join(", ")
            )
        }))
    }

    /// The nodes that are alive as far as the registry knows, this one included once it has
    /// claimed. Empty where the registry cannot tell.
    ///
    /// # Errors
    /// `Unavailable`, `Refused`.
    pub async fn peers(&self) -> Result<Vec<Peer>, RegistryError> {
        self.0.peers().await
    }

    /// Frees the worker id of a holder that is dead and will never be started again on its data
    /// directory. Returns the instant from which it can be claimed; where worker ids belong to
    /// identities, other nodes wait [`ClaimPolicy::recycle_after`] longer. If the holder is alive
    /// after all, it loses the worker id at its next report.
    ///
    /// # Errors
    /// `Refused`, whose text says what to do, also if the holder reported a moment ago;
    /// `Unavailable`.
    pub async fn release_worker(
        &self,
        worker: WorkerId,
        settings: NodeSettings,
    ) -> Result<UnixMillis, RegistryError> {
        Ok(self.0.administer(AdminCommand::Release, worker, settings).await?.ceiling)
    }

    /// Takes a worker id out of service for good. If a node holds it, that node loses it at its
    /// next report.
    ///
    /// # Errors
    /// `Refused`, `Unavailable`.
    pub async fn retire_worker(
        &self,
        worker: WorkerId,
        settings: NodeSettings,
    ) -> Result<(), RegistryError> {
        self.0.administer(AdminCommand::Retire, worker, settings).await.map(|_| ())
    }

    /// Writes a damaged record anew, or restores the missing Java mirror of a worker id. Returns
    /// the instant from which it can be claimed: every ceiling that a holder may rely on has passed
    /// by then. Where worker ids belong to identities, other nodes wait
    /// [`ClaimPolicy::recycle_after`] longer.
    ///
    /// # Errors
    /// `Refused` where nothing is to be repaired; `Unavailable`.
    pub async fn repair_worker(
        &self,
        worker: WorkerId,
        settings: NodeSettings,
    ) -> Result<UnixMillis, RegistryError> {
        Ok(self.0.administer(AdminCommand::Repair, worker, settings).await?.ceiling)
    }
}

impl<S: FenceStore> From<S> for Registry {
    /// A registry over `store` with the default policy: worker ids belong to no node in particular.
    fn from(store: S) -> Self {
        Self::from(Arc::new(store))
    }
}

impl<S: FenceStore> From<Arc<S>> for Registry {
    /// Creates a registry with the default policy over a store that other code shares.
    fn from(store: Arc<S>) -> Self {
        Self::shared(store, ClaimPolicy::default(), None)
    }
}

/// The rules over one type of store, as an object-safe trait: [`FenceStore`] has an associated
/// type, so it cannot serve as one object type for all stores.
pub(super) trait Rules: fmt::Debug + Send + Sync {
    fn lives_in_state_file(&self) -> bool;
    fn policy(&self) -> &ClaimPolicy;
    fn check(&self, who: &Identity, layout: Layout) -> Result<(), RegistryError>;
    fn try_claiming(&self, layout: Layout) -> BoxFuture<'_, Result<usize, RegistryError>>;
    fn claim<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
    ) -> BoxFuture<'a, Result<Lease, RegistryError>>;
    fn extend<'a>(
        &'a self,
        lease: &'a mut Lease,
        report: Report,
    ) -> BoxFuture<'a, Result<(), RegistryError>>;
    fn release(&self, lease: Lease, last: Report) -> BoxFuture<'_, Result<(), RegistryError>>;
    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerView>, RegistryError>>;
    /// The names of other clusters; empty if this cluster has worker ids already.
    fn others_beside_a_new_cluster(&self) -> BoxFuture<'_, Result<Vec<String>, RegistryError>>;
    fn peers(&self) -> BoxFuture<'_, Result<Vec<Peer>, RegistryError>>;
    fn administer(
        &self,
        command: AdminCommand,
        worker: WorkerId,
        settings: NodeSettings,
    ) -> BoxFuture<'_, Result<Fence, RegistryError>>;
}

impl<S: FenceStore> Rules for StoreRules<S> {
    fn lives_in_state_file(&self) -> bool {
        self.store.lives_in_state_file()
    }

    fn policy(&self) -> &ClaimPolicy {
        &self.policy
    }

    fn check(&self, who: &Identity, layout: Layout) -> Result<(), RegistryError> {
        self.check_claim(who, layout)
    }

    fn try_claiming(&self, layout: Layout) -> BoxFuture<'_, Result<usize, RegistryError>> {
        Box::pin(async move {
            let listed = self.store.list(Purpose::Show).await?;
            self.check_records(layout, &listed)?;
            self.store.try_writing().await?;
            Ok(listed.len())
        })
    }

    fn claim<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
    ) -> BoxFuture<'a, Result<Lease, RegistryError>> {
        Box::pin(async move {
            if let Some(saved) = &request.saved {
                self.store.restore(who, saved);
            }
            let lease = self.claim_for(who, request).await?;
            self.store.announce(who, self.address(who));
            Ok(lease)
        })
    }

    fn extend<'a>(
        &'a self,
        lease: &'a mut Lease,
        report: Report,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        Box::pin(async move {
            // If a failover lost this lease's latest writes, the lease knows a later ceiling than
            // the record.
            let ceiling = report.ceiling.max(lease.fence.ceiling);
            let raise = |fence: &mut Fence| {
                fence.ceiling = fence.ceiling.max(ceiling);
                fence.reported_at = fence.reported_at.max(report.now);
            };
            self.change(lease, "extend", report, raise).await
        })
    }

    fn release(&self, mut lease: Lease, last: Report) -> BoxFuture<'_, Result<(), RegistryError>> {
        Box::pin(async move {
            self.change(&mut lease, "release", last, |fence| {
                fence.ceiling = last.ceiling;
                fence.state = FenceState::Released;
            })
            .await?;
            self.store.withdraw().await;
            Ok(())
        })
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerView>, RegistryError>> {
        Box::pin(async {
            let listed = self.store.list(Purpose::Show).await?;
            Ok(listed.into_iter().map(|(worker, stored)| view(worker, stored)).collect())
        })
    }

    fn others_beside_a_new_cluster(&self) -> BoxFuture<'_, Result<Vec<String>, RegistryError>> {
        Box::pin(async {
            match self.store.list(Purpose::Show).await?.is_empty() {
                true => self.store.other_clusters().await,
                false => Ok(Vec::new()),
            }
        })
    }

    fn peers(&self) -> BoxFuture<'_, Result<Vec<Peer>, RegistryError>> {
        Box::pin(async {
            let mut peers = self.store.peers().await?;
            // An address without a port is that of a program that answers no requests.
            peers.retain(|peer| peer.address.as_str().contains(':'));
            Ok(peers)
        })
    }

    fn administer(
        &self,
        command: AdminCommand,
        worker: WorkerId,
        settings: NodeSettings,
    ) -> BoxFuture<'_, Result<Fence, RegistryError>> {
        Box::pin(self.run_command(command, worker, settings))
    }
}

/// Converts the stored data of a worker id to the view for an operator.
fn view<V>(worker: WorkerId, stored: Stored<V>) -> WorkerView {
    let needs_repair = match stored.record {
        // A repair would lose what a later version wrote.
        RecordState::Newer(_) => false,
        RecordState::Damaged(_) => true,
        RecordState::Absent | RecordState::Written(_) => {
            matches!(stored.mirror, JavaMirror::Missing | JavaMirror::Damaged(_))
        }
    };
    let java = stored.mirror.remark();
    let (holder, fence, remark) = match stored.record {
        RecordState::Written(record) => (Some(record.holder), Some(record.fence), None),
        RecordState::Absent => (None, None, None),
        RecordState::Newer(version) => {
            (None, None, Some(RegistryErrorKind::NewerFormat { version }.to_string()))
        }
        RecordState::Damaged(why) => (None, None, Some(format!("damaged: {why}"))),
    };
    WorkerView { worker, holder, fence, remark: remark.or(java), needs_repair }
}
