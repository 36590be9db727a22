//! What the registries share that keep one record per worker id in a store: how a record is taken,
//! extended, given back and administered.
//!
//! Invariant: a record is only ever replaced by compare-and-set against what was just read, and what
//! decides whether that may be done ([`Fence::floor_for`]) is in leaf-snowflake. A write that meets
//! another's is read again; a write whose answer was lost is known by its nonce.
//!
//! A store ([`FenceStore`]) knows how to read and replace its records, and beside each the *mirror* that
//! a Java Leaf reads and writes. It decides nothing.

mod admin;
mod claim;
mod record;
pub(crate) mod sql;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{UnixMillis, WorkerId};
use leaf_segment::{StoreError, StoreErrorKind};
use leaf_snowflake::{
    ClaimRequest, Fence, FenceState, Identity, Lease, Peer, RegistryError, RegistryErrorKind,
    Report, WorkerRecord, WorkerRegistry,
};
use uuid::Uuid;

use crate::{Administration, Table};

pub use admin::{Circumstances, WorkerAdministration};
pub(crate) use record::{Record, Recorded};

/// How often a write that met another's is tried again before the caller hears of it.
const TRIES: usize = 30;

/// Reads and replaces the records of a registry.
pub(crate) trait FenceStore: fmt::Debug + Send + Sync + 'static {
    /// What its compare-and-set compares.
    type Token: Clone + fmt::Debug + Send + Sync;

    /// Where that is, for texts.
    fn place(&self) -> &'static str;

    /// The worker ids that it can keep.
    fn range(&self) -> RangeInclusive<u32> {
        0..=u32::MAX
    }

    /// Whether it has worker ids that nobody has used; else each is made when it is needed.
    fn has_unused(&self) -> bool {
        true
    }

    /// What has a record, or a mirror that somebody used, in order. Makes nothing.
    fn known(&self, purpose: Purpose) -> Answer<'_, Vec<Known<Self::Token>>>;

    /// The worker ids up to `greatest` that nobody has used, in order. Makes what they are kept in where
    /// there is none yet.
    fn unused<'a>(
        &'a self,
        known: &'a [Known<Self::Token>],
        greatest: WorkerId,
    ) -> Answer<'a, Vec<WorkerId>> {
        let used: BTreeSet<_> = known.iter().map(|(worker, _)| *worker).collect();
        let range = *self.range().start()..=greatest.get().min(*self.range().end());
        let unused = range.map(WorkerId::new).filter(|worker| !used.contains(worker)).collect();
        Box::pin(async { Ok(unused) })
    }

    /// One worker id's record.
    fn read(&self, worker: WorkerId, purpose: Purpose) -> Answer<'_, Found<Self::Token>>;

    /// Writes `record`, and what the mirror says of it, in place of what was found; `false` when it is
    /// not what was found any more.
    fn write<'a>(
        &'a self,
        worker: WorkerId,
        found: &'a Found<Self::Token>,
        record: &'a Record,
    ) -> Answer<'a, bool>;

    /// The worker id that belongs to this identity; made now where that is how the store works. Asked
    /// where worker ids are bound to identities.
    fn assigned<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
        known: &'a [Known<Self::Token>],
    ) -> Answer<'a, Option<WorkerId>> {
        let _ = (who, request, known);
        Box::pin(async { Ok(None) })
    }

    /// One more worker id for this identity, up to `greatest`; `None` where it has one at most.
    fn assign_another<'a>(
        &'a self,
        who: &'a Identity,
        greatest: WorkerId,
    ) -> Answer<'a, Option<WorkerId>> {
        let _ = (who, greatest);
        Box::pin(async { Ok(None) })
    }

    /// Lets others see from now on that this node is alive. Decides nothing.
    fn announce(&self, who: &Identity, address: &Identity) {
        let _ = (who, address);
    }

    /// The end of that.
    fn withdraw(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// The nodes that are alive.
    fn peers(&self) -> Answer<'_, Vec<Peer>>;
}

pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, RegistryError>>;

/// What records are read for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// To be shown. A store that finds that its database has failed over leaves it at that.
    Show,
    /// To replace one at this time of the node's clock. A store that finds that its database has failed
    /// over notes when: this time, or the new server's where that is later. A promoted server whose clock
    /// is behind must not shorten the wait for what the failover may have lost.
    Replace(UnixMillis),
}

/// A worker id and what was read of it.
pub(crate) type Known<T> = (WorkerId, Found<T>);

/// What was read of a worker id.
#[derive(Debug, Clone)]
pub(crate) struct Found<T> {
    pub(crate) record: Recorded,
    pub(crate) mirror: Mirror,
    pub(crate) token: T,
    /// When the store was first seen to be another server than before, which may have lost writes: who
    /// cannot prove that it held the worker id waits until every ceiling of that time has passed. 0:
    /// never.
    pub(crate) failover: UnixMillis,
}

/// What the record of a Java Leaf says beside the fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mirror {
    /// The same, or there is none.
    Agrees,
    /// A Java Leaf wrote last.
    Java(JavaReport),
    /// It is not where it should be: a Java Leaf, or somebody by hand, has taken it away.
    Missing,
    /// Nothing that a Java Leaf or ours wrote, and why.
    Damaged(String),
}

impl Mirror {
    /// What an administrator should know of it.
    fn remark(&self, worker: WorkerId) -> Option<String> {
        match self {
            Self::Agrees => None,
            Self::Java(report) => Some(match report.at {
                Some(at) => format!("a Java Leaf, {}, reported at {at} (Unix ms)", report.holder),
                None => format!("a Java Leaf, {}, has it", report.holder),
            }),
            Self::Missing => Some(format!(
                "the Java Leafs' record of it is gone: one of them died while it moved it, or somebody \
                 deleted it; once nobody goes on with it: `leaf worker repair {worker}`"
            )),
            Self::Damaged(why) => Some(format!(
                "the Java Leafs' record of it is damaged ({why}): `leaf worker repair {worker}`"
            )),
        }
    }
}

/// What a Java Leaf wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JavaReport {
    /// Its name.
    pub(crate) holder: String,
    /// Its clock at its last report, if it has reported.
    pub(crate) at: Option<UnixMillis>,
}

impl JavaReport {
    /// What stands for this report while it is watched, together with the fence's own nonce.
    fn seen(&self, fence: Option<Uuid>) -> Uuid {
        let at = u128::from(self.at.map_or(0, UnixMillis::get));
        Uuid::from_u128(fence.unwrap_or_default().as_u128() ^ (at + 1))
    }
}

/// Which worker ids a node may take.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policy {
    /// A worker id belongs to an identity: nobody else takes it while another one is left.
    pub(crate) bound: bool,
    /// The one worker id that this node may take.
    pub(crate) fixed: Option<WorkerId>,
    /// How long after its ceiling has passed an unreleased worker id is taken by others.
    pub(crate) recycle_after: Duration,
    /// No Java Leaf uses the registry any more: what one held is taken like any other.
    pub(crate) adopt_java: bool,
    /// An identity whose worker id is another instance's gets one more instead of a refusal.
    pub(crate) new_id: bool,
}

/// A [`WorkerRegistry`] over a [`FenceStore`].
#[derive(Debug)]
pub(crate) struct FencedRegistry<S> {
    store: S,
    policy: Policy,
    /// Where this node answers HTTP.
    address: Option<Identity>,
}

impl<S: FenceStore> FencedRegistry<S> {
    pub(crate) const fn new(store: S, policy: Policy, address: Option<Identity>) -> Self {
        Self { store, policy, address }
    }

    fn address<'a>(&'a self, who: &'a Identity) -> &'a Identity {
        self.address.as_ref().unwrap_or(who)
    }

    fn operation(&self, what: &str) -> String {
        format!("{what} in {}", self.store.place())
    }

    fn error(&self, kind: RegistryErrorKind, what: &str) -> RegistryError {
        RegistryError::new(kind, self.operation(what))
    }

    /// Changes the record of a lease while it is the lease's.
    async fn change(
        &self,
        lease: &mut Lease,
        what: &str,
        now: UnixMillis,
        change: impl Fn(&mut Fence),
    ) -> Result<(), RegistryError> {
        let what = format!("{what} worker id {}", lease.worker);
        for _ in 0..TRIES {
            let found = self.store.read(lease.worker, Purpose::Replace(now)).await?;
            // Whose time was over when the database failed over may have been replaced by a claim that the
            // failover lost: it has to claim anew.
            let ended = lease.fence.ceiling <= found.failover + claim::CLOCKS;
            if found.failover != UnixMillis::EPOCH && ended {
                let until = found.failover + claim::CLOCKS;
                return Err(self.error(RegistryErrorKind::FailedOver { until }, &what));
            }
            let record = match &found.record {
                Recorded::Written(record) => record,
                Recorded::Absent => return Err(self.error(RegistryErrorKind::Lost, &what)),
                Recorded::Damaged(why) => {
                    return Err(self.damaged(lease.worker, &what).because(why.clone()));
                }
            };
            let Some(nonce) = lease.adopt(&record.fence) else {
                return Err(self.error(RegistryErrorKind::Lost, &what));
            };
            match &found.mirror {
                Mirror::Agrees => {}
                Mirror::Java(_) | Mirror::Missing => {
                    let why = found.mirror.remark(lease.worker).unwrap_or_default();
                    return Err(self.error(RegistryErrorKind::Lost, &what).because(why));
                }
                Mirror::Damaged(why) => {
                    return Err(self.damaged(lease.worker, &what).because(why.clone()));
                }
            }
            let mut record = record.clone();
            change(&mut record.fence);
            record.fence.nonce = nonce;
            if self.store.write(lease.worker, &found, &record).await? {
                lease.confirm(record.fence);
                return Ok(());
            }
        }
        Err(self.busy(&what))
    }

    fn busy(&self, what: &str) -> RegistryError {
        let why = format!("others wrote the record {TRIES} times meanwhile");
        self.error(RegistryErrorKind::Unavailable, what).because(why)
    }

    fn damaged(&self, worker: WorkerId, what: &str) -> RegistryError {
        let what =
            format!("{what}; correct it, or write it anew with `leaf worker repair {worker}`");
        self.error(RegistryErrorKind::Damaged, &what)
    }
}

impl<S: FenceStore> WorkerRegistry for FencedRegistry<S> {
    /// Where worker ids are nobody's own, a lost one is replaced.
    fn replaces_lost(&self) -> bool {
        !self.policy.bound
    }

    fn claim<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
    ) -> BoxFuture<'a, Result<Lease, RegistryError>> {
        Box::pin(async move {
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
            // After a record that fell back, the lease knows better.
            let ceiling = report.ceiling.max(lease.fence.ceiling);
            let raise = |fence: &mut Fence| fence.ceiling = fence.ceiling.max(ceiling);
            self.change(lease, "extend", report.now, raise).await
        })
    }

    fn release<'a>(
        &'a self,
        mut lease: Lease,
        next_free: UnixMillis,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        Box::pin(async move {
            self.change(&mut lease, "release", next_free, |fence| {
                fence.ceiling = next_free;
                fence.state = FenceState::Released;
            })
            .await?;
            self.store.withdraw().await;
            Ok(())
        })
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerRecord>, RegistryError>> {
        Box::pin(async {
            let known = self.store.known(Purpose::Show).await?;
            Ok(known.into_iter().map(|(worker, found)| row(worker, found)).collect())
        })
    }

    fn peers(&self) -> BoxFuture<'_, Result<Vec<Peer>, RegistryError>> {
        self.store.peers()
    }
}

/// A worker id that is a name in a path, written as it is written here: `7`, not `007`.
pub(crate) fn worker_id(name: &str) -> Option<WorkerId> {
    name.parse().ok().map(WorkerId::new).filter(|worker| worker.to_string() == name)
}

/// A store's error as the registry's.
pub(crate) fn translate(error: &StoreError) -> RegistryError {
    let kind = match error.kind() {
        // The record of a lease is not in the new file: it is this holder's no more.
        StoreErrorKind::Replaced => RegistryErrorKind::Lost,
        _ if error.retryable() => RegistryErrorKind::Unavailable,
        _ => RegistryErrorKind::Refused,
    };
    let translated = RegistryError::new(kind, error.operation());
    match error.cause() {
        Some(cause) => translated.because(cause.to_string()),
        None => translated,
    }
}

/// What an administrator sees of a worker id.
fn row<T>(worker: WorkerId, found: Found<T>) -> WorkerRecord {
    let java = found.mirror.remark(worker);
    let (holder, fence, damage) = match found.record {
        Recorded::Written(record) => (Some(record.holder), Some(record.fence), None),
        Recorded::Absent => (None, None, None),
        Recorded::Damaged(why) => (
            None,
            None,
            Some(format!("damaged: {why}; write it anew: `leaf worker repair {worker}`")),
        ),
    };
    WorkerRecord { worker, holder, fence, remark: damage.or(java) }
}

/// A registry that was opened, with its administration.
#[derive(Debug, Clone)]
pub struct OpenRegistry {
    /// The registry.
    pub registry: Arc<dyn WorkerRegistry>,
    /// What operators do with it; `None` where there is nothing to administer.
    pub admin: Option<Arc<dyn WorkerAdministration>>,
    /// Its tables; `None` where there are none.
    pub tables: Option<Arc<dyn Administration>>,
}

impl OpenRegistry {
    /// A registry without tables.
    pub(crate) fn of<S: FenceStore>(store: S, policy: Policy, address: Option<Identity>) -> Self {
        let registry = Arc::new(FencedRegistry::new(store, policy, address));
        Self { admin: Some(Arc::clone(&registry) as _), tables: None, registry }
    }

    /// A registry in a database.
    pub(crate) fn with_tables<S: FenceStore + Administration>(
        store: S,
        policy: Policy,
        address: Option<Identity>,
    ) -> Self {
        let registry = Arc::new(FencedRegistry::new(store, policy, address));
        Self {
            admin: Some(Arc::clone(&registry) as _),
            tables: Some(Arc::clone(&registry) as _),
            registry,
        }
    }
}

impl<S: FenceStore + Administration> Administration for FencedRegistry<S> {
    fn tables(&self) -> &'static [Table] {
        self.store.tables()
    }

    fn apply(&self) -> BoxFuture<'_, Result<Vec<&'static str>, StoreError>> {
        self.store.apply()
    }

    fn risks(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        self.store.risks()
    }
}
