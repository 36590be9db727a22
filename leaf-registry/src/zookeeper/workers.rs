//! The store of the registry `ordinal` in ZooKeeper: fences without a Java mirror.

use std::sync::Arc;
use std::time::Duration;

use leaf_core::WorkerId;
use leaf_snowflake::{
    FenceStore, Identity, JavaMirror, Peer, Purpose, RegistryError, Stored, StoredWorker,
    WorkerRecord,
};

use super::{Fences, Session, Znode, recorded, version};

/// Worker ids in ZooKeeper without a mirror.
#[derive(Debug)]
pub(crate) struct ZkWorkers {
    fences: Fences,
}

impl ZkWorkers {
    /// Worker ids of the cluster `name`. The session begins when it is first used.
    pub(crate) fn new(session: Arc<Session>, name: &str, report_interval: Duration) -> Self {
        Self { fences: Fences::new(session, name, report_interval) }
    }
}

/// What is stored of a worker id. There is no mirror, since no Java Leaf reads these fences.
fn found(fence: &Znode) -> Stored<Option<i32>> {
    Stored {
        record: recorded(fence),
        mirror: JavaMirror::Agrees,
        version: version(fence),
        failed_over_at: None,
    }
}

impl FenceStore for ZkWorkers {
    type Version = Option<i32>;

    fn name(&self) -> &'static str {
        "ZooKeeper"
    }

    async fn list(
        &self,
        _purpose: Purpose,
    ) -> Result<Vec<StoredWorker<Self::Version>>, RegistryError> {
        self.fences
            .session
            .run("read the worker ids in ZooKeeper", async |connected| {
                let mut workers = self.fences.workers(connected).await?;
                workers.sort_unstable();
                let read = self.fences.read(connected, &workers, |_| []).await?;
                Ok(read.into_iter().map(|(worker, fence, [])| (worker, found(&fence))).collect())
            })
            .await
    }

    async fn read(
        &self,
        worker: WorkerId,
        _purpose: Purpose,
    ) -> Result<Stored<Self::Version>, RegistryError> {
        let operation = format!("read worker id {worker} in ZooKeeper");
        self.fences
            .session
            .run(&operation, async |connected| {
                let (fence, []) = self.fences.read_one(connected, worker, []).await?;
                Ok(found(&fence))
            })
            .await
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<Self::Version>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        self.fences.write(worker, read.version, record, |_, _| Ok(())).await
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
