//! The trait that every store of fences implements.
//!
//! A store reads and replaces records and decides nothing. Beside each record it may keep a *Java
//! mirror*: the row or znode that a Java Leaf reads and writes for the same worker id.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::ops::RangeInclusive;

use leaf_core::{UnixMillis, WorkerId};
use uuid::Uuid;

use super::{ClaimRequest, Identity, RecordState, SavedLease, WorkerRecord};
use crate::{RegistryError, RegistryErrorKind};

/// Stores one record per worker id with compare-and-set, and lists the live nodes.
///
/// Contract: [`Self::replace`] returns `true` only after the write is durable, and replaces only
/// the record that was read. After an error the write may or may not have happened. A store never
/// reads this machine's clock and never sleeps; where it needs the time, the caller passes it. The
/// rules of a claim never call [`Self::peers`], so a store without it is complete.
///
/// [`Registry`](super::Registry) is what nodes use; it holds the rules.
pub trait FenceStore: fmt::Debug + Send + Sync + 'static {
    /// What compare-and-set compares: a version, a revision, or what was read.
    type Version: Clone + fmt::Debug + Send + Sync + 'static;

    /// Name of the store in error texts, like `etcd`.
    fn name(&self) -> &'static str;

    /// Whether the state file of the node is the only record. Such a store gets it through
    /// [`Self::restore`], and a node without a state file is refused.
    fn lives_in_state_file(&self) -> bool {
        false
    }

    /// Hands the store the lease that the state file remembers, before each claim. Only a store
    /// that [lives in the state file](Self::lives_in_state_file) needs it.
    fn restore(&self, who: &Identity, saved: &SavedLease) {
        let _ = (who, saved);
    }

    /// The worker ids that the store can keep.
    fn storable(&self) -> RangeInclusive<u32> {
        0..=u32::MAX
    }

    /// Refuses an identity that can never have a worker id here. Asks no server.
    ///
    /// # Errors
    /// `BadIdentity`, `NotAssigned`.
    fn check_identity(&self, who: &Identity) -> Result<(), RegistryErrorKind> {
        let _ = who;
        Ok(())
    }

    /// Whether an operator may administer a worker id that has no record yet; `false` where the
    /// store creates a worker id only when a node needs one.
    fn admin_may_create_record(&self) -> bool {
        true
    }

    /// The name to record as the holder of a retired worker id: by default `holder`, the last one.
    /// A store in which a name can have only one worker id returns another name, so that the last
    /// holder can get another worker id.
    fn holder_of_retired(&self, worker: WorkerId, holder: Identity) -> Identity {
        let _ = worker;
        holder
    }

    /// Every worker id that has a record or that a Java Leaf has used, in order. Creates nothing.
    fn list(
        &self,
        purpose: Purpose,
    ) -> impl Future<Output = Result<Vec<StoredWorker<Self::Version>>, RegistryError>> + Send;

    /// The worker ids up to `greatest` that no node has used, in order. May create the store's
    /// container for worker ids (a pool, a table) if it does not exist.
    fn unused(
        &self,
        listed: &[StoredWorker<Self::Version>],
        greatest: WorkerId,
    ) -> impl Future<Output = Result<Vec<WorkerId>, RegistryError>> + Send {
        let used: BTreeSet<_> = listed.iter().map(|(worker, _)| *worker).collect();
        let storable = self.storable();
        let range = *storable.start()..=greatest.get().min(*storable.end());
        let unused = range.map(WorkerId::new).filter(|worker| !used.contains(worker)).collect();
        async { Ok(unused) }
    }

    /// Reads the record and the Java mirror of one worker id.
    fn read(
        &self,
        worker: WorkerId,
        purpose: Purpose,
    ) -> impl Future<Output = Result<Stored<Self::Version>, RegistryError>> + Send;

    /// Replaces `read` by `record`, and updates the Java mirror with it. Returns `false`, and
    /// writes nothing, if another writer was faster.
    fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<Self::Version>,
        record: &WorkerRecord,
    ) -> impl Future<Output = Result<bool, RegistryError>> + Send;

    /// Returns what [`Self::read`] would return after [`Self::replace`] has written `record` in
    /// place of `read`, if nobody else has written since; `None` if the store cannot compute that
    /// without a read.
    ///
    /// With this value the holder's next report need not read the record: `replace` writes only if
    /// the stored record is still the same.
    fn replaced(
        &self,
        read: &Stored<Self::Version>,
        record: &WorkerRecord,
    ) -> Option<Stored<Self::Version>> {
        let _ = (read, record);
        None
    }

    /// Checks, by a request that changes nothing, whether this node has the rights to write. Does
    /// nothing in a store where only a real write shows that.
    ///
    /// # Errors
    /// `Refused`, `Unavailable`.
    fn try_writing(&self) -> impl Future<Output = Result<(), RegistryError>> + Send {
        async { Ok(()) }
    }

    /// The worker id that belongs to this identity; `None` if it has none. Some stores create it in
    /// this call. A retired worker id belongs to no identity. Called only where worker ids belong
    /// to identities.
    fn assigned(
        &self,
        who: &Identity,
        request: &ClaimRequest,
        listed: &[StoredWorker<Self::Version>],
    ) -> impl Future<Output = Result<Option<WorkerId>, RegistryError>> + Send {
        let _ = (who, request, listed);
        async { Ok(None) }
    }

    /// Shows other nodes from now on that this node is alive.
    fn announce(&self, who: &Identity, address: &Identity) {
        let _ = (who, address);
    }

    /// Ends what [`Self::announce`] began: other nodes no longer see this node as alive.
    fn withdraw(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// The names of some other clusters whose worker ids are stored in the same place, such as
    /// one ZooKeeper chroot or one etcd; empty for a store whose place has one cluster.
    fn other_clusters(&self) -> impl Future<Output = Result<Vec<String>, RegistryError>> + Send {
        async { Ok(Vec::new()) }
    }

    /// The nodes that are alive, this one included; empty where the store cannot tell.
    fn peers(&self) -> impl Future<Output = Result<Vec<Peer>, RegistryError>> + Send {
        async { Ok(Vec::new()) }
    }
}

/// What a record is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To show it. A store that finds that its database has failed over changes nothing.
    Show,
    /// To replace it. The value is what the node's clock shows now. If the store finds that its
    /// database has failed over, it records the time of the failover: the value, or the new
    /// server's clock if that is later. The clock of a promoted server may be behind: by that
    /// clock alone, the wait for the lost claims to expire would end too early.
    Replace(UnixMillis),
}

/// A worker id, with its stored record and Java mirror.
pub type StoredWorker<V> = (WorkerId, Stored<V>);

/// The record and the Java mirror of a worker id, as they are stored.
#[derive(Debug, Clone)]
pub struct Stored<V> {
    /// The record.
    pub record: RecordState,
    /// The Java mirror.
    pub mirror: JavaMirror,
    /// What [`FenceStore::replace`] compares.
    pub version: V,
    /// When the store noticed the latest failover of its database, which may have lost writes;
    /// `None` if there was none. A node that cannot prove that it held the worker id at that time
    /// has to wait until every ceiling that was granted before has passed.
    pub failed_over_at: Option<UnixMillis>,
}

/// The state of a worker id's Java mirror: the record that a Java Leaf reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JavaMirror {
    /// The mirror agrees with the fence, or the store keeps no mirror.
    Agrees,
    /// A Java Leaf wrote it last.
    Java(JavaReport),
    /// The mirror does not exist: a Java Leaf died while moving it, or an operator deleted it.
    Missing,
    /// Neither a Java Leaf nor this library wrote it; the text says why.
    Damaged(String),
}

/// The report of a Java Leaf in the mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JavaReport {
    /// The name of the Java Leaf.
    pub holder: String,
    /// The Java Leaf's clock at its last report; `None` if it has never reported.
    pub at: Option<UnixMillis>,
}

impl JavaReport {
    /// A value that changes when this report or the nonce of the fence (`fence`) changes. It is
    /// compared before and after a watch.
    pub(crate) fn fingerprint(&self, fence: Option<Uuid>) -> Uuid {
        let at = u128::from(self.at.map_or(0, UnixMillis::get));
        Uuid::from_u128(fence.unwrap_or_default().as_u128() ^ (at + 1))
    }
}

impl JavaMirror {
    /// What an operator should know about the mirror; `None` if it agrees with the fence.
    pub(crate) fn remark(&self) -> Option<String> {
        match self {
            Self::Agrees => None,
            Self::Java(report) => Some(match report.at {
                Some(at) => format!("a Java Leaf, {}, reported at {}", report.holder, at.utc()),
                None => format!("a Java Leaf, {}, has it", report.holder),
            }),
            Self::Missing => Some(
                "the Java Leafs' record of it is gone: a Java Leaf died while moving it, or an operator deleted it; \
                 repair the worker id once no process uses it"
                    .into(),
            ),
            Self::Damaged(why) => {
                Some(format!("the Java Leafs' record of it is damaged ({why}): repair the worker id"))
            }
        }
    }
}

/// A live node, perhaps this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The name of the node.
    pub identity: Identity,
    /// The address where the node answers HTTP, like `10.0.0.7:8080`.
    pub address: Identity,
}
