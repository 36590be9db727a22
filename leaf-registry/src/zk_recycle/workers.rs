//! The worker registry `zk_recycle`.
//!
//! Invariant: a worker id moves from pool to pool in the multi that also writes its fence. A worker
//! id that is in neither pool is left alone until an operator repairs it. A worker id that a Java
//! Leaf held is not given out unless `adopt_java_ids` is set.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use leaf_core::WorkerId;
use leaf_snowflake::{
    FenceState, FenceStore, Identity, JavaMirror, Peer, Purpose, RegistryError, Stored,
    StoredWorker, WorkerRecord,
};
use zookeeper_client::{Error, MultiWriteError};

use super::mirror;
use crate::zookeeper::{Connected, Fences, Session, Znode, version};

/// Worker ids in the pools of the community fork.
#[derive(Debug)]
pub(crate) struct ZkRecycle {
    fences: Fences,
    /// `/snowflake/{name}/recycle`.
    pools: String,
}

/// One of the two folders of the fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pool {
    /// `notuse`: free worker ids, some of which were used before.
    NotUse,
    /// `inuse`: worker ids of live nodes, and of nodes that died without giving them back.
    InUse,
}

/// The versions of the fence and of the mirror in each pool.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    fence: Option<i32>,
    not_use: Option<i32>,
    in_use: Option<i32>,
}

impl ZkRecycle {
    /// Worker ids of the cluster `name`. The session begins when it is first used.
    pub(crate) fn new(session: Arc<Session>, name: &str, report_interval: Duration) -> Self {
        let fences = Fences::new(session, name, report_interval);
        let pools = format!("{}/recycle", fences.root);
        Self { fences, pools }
    }

    /// The path of a pool.
    fn pool(&self, pool: Pool) -> String {
        match pool {
            Pool::NotUse => format!("{}/notuse", self.pools),
            Pool::InUse => format!("{}/inuse", self.pools),
        }
    }

    /// The path of a worker id in a pool.
    fn path(&self, pool: Pool, worker: WorkerId) -> String {
        format!("{}/workId:{worker}", self.pool(pool))
    }

    /// The paths of a worker id in both pools, in the order of [`Version`].
    fn both(&self, worker: WorkerId) -> [String; 2] {
        [self.path(Pool::NotUse, worker), self.path(Pool::InUse, worker)]
    }

    /// The worker ids in the pool `notuse`; creates the pools if there are none.
    async fn not_in_use(&self, connected: &Connected) -> Result<BTreeSet<WorkerId>, Error> {
        let names = match connected.client.list_children(&self.pool(Pool::NotUse)).await {
            Err(Error::NoNode) => {
                self.make(connected).await?;
                connected.client.list_children(&self.pool(Pool::NotUse)).await?
            }
            names => names?,
        };
        Ok(names.iter().filter_map(|name| mirror::parse(name)).collect())
    }

    /// Makes a new tree. The pool of unused ids is made last and as a whole: a tree that has it is
    /// complete.
    async fn make(&self, connected: &Connected) -> Result<(), Error> {
        connected.client.mkdir(&self.pool(Pool::InUse), &connected.persistent()).await?;
        let mut multi = connected.client.new_multi_writer();
        multi.add_create(&self.pool(Pool::NotUse), b"", &connected.persistent())?;
        for worker in (0..mirror::COUNT).map(WorkerId::new) {
            let path = self.path(Pool::NotUse, worker);
            multi.add_create(&path, &mirror::unused(worker), &connected.persistent())?;
        }
        match multi.commit().await {
            // Another node, or a Java Leaf, has made them. What it left half-filled stays so.
            Ok(_)
            | Err(MultiWriteError::OperationFailed { index: 0, source: Error::NodeExists }) => {
                Ok(())
            }
            Err(MultiWriteError::OperationFailed { source, .. })
            | Err(MultiWriteError::RequestFailed { source }) => Err(source),
        }
    }
}

/// What is stored of a worker id. If it is in both pools, the entry in
/// `inuse` counts.
fn found(fence: &Znode, not_use: &Znode, in_use: &Znode) -> Stored<Version> {
    let record = crate::zookeeper::recorded(fence);
    let retired = record.written().is_some_and(|record| record.fence.state == FenceState::Retired);
    let mirror = match in_use.as_ref().or(not_use.as_ref()) {
        Some((content, _)) => mirror::judge(content, record.written(), in_use.is_some())
            .unwrap_or_else(JavaMirror::Damaged),
        // A retired worker id is in neither pool, so that Java Leafs do not find it.
        None if retired => JavaMirror::Agrees,
        None => JavaMirror::Missing,
    };
    let version =
        Version { fence: version(fence), not_use: version(not_use), in_use: version(in_use) };
    Stored { record, mirror, version, failed_over_at: None }
}

impl FenceStore for ZkRecycle {
    type Version = Version;

    fn name(&self) -> &'static str {
        "ZooKeeper"
    }

    fn storable(&self) -> RangeInclusive<u32> {
        0..=mirror::COUNT - 1
    }

    async fn list(&self, _purpose: Purpose) -> Result<Vec<StoredWorker<Version>>, RegistryError> {
        self.fences
            .session
            .run("read the worker ids in ZooKeeper", async |connected| {
                let in_use = connected.children(&self.pool(Pool::InUse)).await?;
                let mut known: BTreeSet<_> =
                    in_use.iter().filter_map(|name| mirror::parse(name)).collect();
                known.extend(self.fences.workers(connected).await?);
                let known: Vec<_> = known.into_iter().collect();
                let read = self.fences.read(connected, &known, |worker| self.both(worker)).await?;
                let known = read.into_iter().map(|(worker, fence, [not_use, in_use])| {
                    (worker, found(&fence, &not_use, &in_use))
                });
                Ok(known.collect())
            })
            .await
    }

    async fn unused(
        &self,
        listed: &[StoredWorker<Version>],
        greatest: WorkerId,
    ) -> Result<Vec<WorkerId>, RegistryError> {
        self.fences
            .session
            .run("read the unused worker ids in ZooKeeper", async |connected| {
                let used: BTreeSet<_> = listed.iter().map(|(worker, _)| *worker).collect();
                let mut unused = self.not_in_use(connected).await?;
                unused.retain(|worker| !used.contains(worker) && *worker <= greatest);
                Ok(unused.into_iter().collect())
            })
            .await
    }

    async fn read(
        &self,
        worker: WorkerId,
        _purpose: Purpose,
    ) -> Result<Stored<Version>, RegistryError> {
        let operation = format!("read worker id {worker} in ZooKeeper");
        self.fences
            .session
            .run(&operation, async |connected| {
                let (fence, [not_use, in_use]) =
                    self.fences.read_one(connected, worker, self.both(worker)).await?;
                Ok(found(&fence, &not_use, &in_use))
            })
            .await
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<Version>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        let content = mirror::of(worker, record);
        let goes_to = match record.fence.state {
            FenceState::Held => Some(Pool::InUse),
            FenceState::Released => Some(Pool::NotUse),
            FenceState::Retired => None,
        };
        let written = self
            .fences
            .write(worker, read.version.fence, record, |connected, multi| {
                let pools =
                    [(Pool::NotUse, read.version.not_use), (Pool::InUse, read.version.in_use)];
                // Deletes first, then creates; deletes the znode from every pool but the target.
                for (pool, version) in pools {
                    if let (Some(version), true) = (version, goes_to != Some(pool)) {
                        multi.add_delete(&self.path(pool, worker), Some(version))?;
                    }
                }
                for (pool, version) in pools {
                    let path = self.path(pool, worker);
                    match version {
                        _ if goes_to != Some(pool) => {}
                        Some(version) => multi.add_set_data(&path, &content, Some(version))?,
                        None => multi.add_create(&path, &content, &connected.persistent())?,
                    }
                }
                Ok(())
            })
            .await?;
        if !written {
            // A pool may be missing: a Java Leaf that died while it made the tree may have left out
            // `inuse`. (Leaf makes `inuse` first.)
            let operation = "make the pools in ZooKeeper";
            let make = async |connected: &Connected| {
                connected.client.mkdir(&self.pool(Pool::InUse), &connected.persistent()).await
            };
            self.fences.session.run(operation, make).await?;
        }
        Ok(written)
    }

    fn announce(&self, who: &Identity, address: &Identity) {
        self.fences.liveness.announce(who, address);
    }

    async fn withdraw(&self) {
        self.fences.liveness.withdraw().await;
    }

    async fn other_clusters(&self) -> Result<Vec<String>, RegistryError> {
        self.fences.other_clusters().await
    }

    async fn peers(&self) -> Result<Vec<Peer>, RegistryError> {
        self.fences.liveness.peers().await
    }
}
