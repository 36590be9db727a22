//! The fences of a cluster of Leaf nodes in ZooKeeper.
//!
//! Invariant: a fence and its mirror change only together, in one multi that compares both
//! versions, and both versions were read at one moment; no fence is ever deleted.

use std::sync::Arc;
use std::time::Duration;

use leaf_core::WorkerId;
use leaf_snowflake::{RecordState, RegistryError, WorkerRecord};
use zookeeper_client::{Error, MultiWriteError, MultiWriter};

use super::liveness::Liveness;
use super::{Connected, Session};
use crate::worker_ids::worker_id;

/// How many names of other clusters are returned at most.
const MOST_CLUSTERS: usize = 10;
/// How many worker ids one request reads.
const PAGE: usize = 100;

/// Content and version of a znode; `None` if the znode does not exist.
pub(crate) type Znode = Option<(Vec<u8>, i32)>;

/// The fences of a cluster.
#[derive(Debug)]
pub(crate) struct Fences {
    pub(crate) session: Arc<Session>,
    /// `/snowflake/{name}`.
    pub(crate) root: String,
    /// Shows this node as alive, and lists the live nodes.
    pub(crate) liveness: Liveness,
}

impl Fences {
    /// The fences of the cluster `name`.
    pub(crate) fn new(session: Arc<Session>, name: &str, report_interval: Duration) -> Self {
        let root = format!("/snowflake/{name}");
        let liveness =
            Liveness::new(Arc::clone(&session), format!("{root}/temporary"), report_interval);
        Self { session, root, liveness }
    }

    /// The names of other clusters.
    pub(crate) async fn other_clusters(&self) -> Result<Vec<String>, RegistryError> {
        self.session
            .run("look for other clusters in ZooKeeper", async |connected| {
                let mut names = connected.children("/snowflake").await?;
                names.retain(|name| self.root != format!("/snowflake/{name}"));
                names.sort_unstable();
                names.truncate(MOST_CLUSTERS);
                Ok(names)
            })
            .await
    }

    /// The path of a worker id's fence.
    pub(crate) fn path(&self, worker: WorkerId) -> String {
        format!("{}/fence/{worker}", self.root)
    }

    /// The worker ids that have a fence.
    pub(crate) async fn workers(&self, connected: &Connected) -> Result<Vec<WorkerId>, Error> {
        let names = connected.children(&format!("{}/fence", self.root)).await?;
        Ok(names.iter().filter_map(|name| worker_id(name)).collect())
    }

    /// For each worker id, its fence and the znodes at `beside`; those of one worker id are read at
    /// one moment.
    pub(crate) async fn read<const N: usize>(
        &self,
        connected: &Connected,
        workers: &[WorkerId],
        beside: impl Fn(WorkerId) -> [String; N],
    ) -> Result<Vec<(WorkerId, Znode, [Znode; N])>, Error> {
        let mut found = Vec::with_capacity(workers.len());
        for page in workers.chunks(PAGE) {
            let paths: Vec<_> = page
                .iter()
                .flat_map(|worker| [self.path(*worker)].into_iter().chain(beside(*worker)))
                .collect();
            let mut nodes = connected.read(&paths).await?.into_iter();
            for worker in page {
                let fence = nodes.next().flatten();
                found.push((*worker, fence, [(); N].map(|()| nodes.next().flatten())));
            }
        }
        Ok(found)
    }

    /// The fence of one worker id and the znodes at `beside`, read at one moment.
    pub(crate) async fn read_one<const N: usize>(
        &self,
        connected: &Connected,
        worker: WorkerId,
        beside: [String; N],
    ) -> Result<(Znode, [Znode; N]), Error> {
        let paths: Vec<_> = [self.path(worker)].into_iter().chain(beside).collect();
        let mut nodes = connected.read(&paths).await?.into_iter();
        let fence = nodes.next().flatten();
        Ok((fence, [(); N].map(|()| nodes.next().flatten())))
    }

    /// Writes a fence, together with what `mirror` adds to the multi; `false` if a version is no
    /// longer the one that was read.
    pub(crate) async fn write(
        &self,
        worker: WorkerId,
        version: Option<i32>,
        record: &WorkerRecord,
        mirror: impl Fn(&Connected, &mut MultiWriter<'_>) -> Result<(), Error>,
    ) -> Result<bool, RegistryError> {
        let operation = format!("write worker id {worker} in ZooKeeper");
        let path = self.path(worker);
        self.session
            .run(&operation, async |connected| {
                let mut made = false;
                loop {
                    let mut multi = connected.client.new_multi_writer();
                    let content = record.encode();
                    match version {
                        Some(version) => {
                            multi.add_set_data(&path, content.as_bytes(), Some(version))?;
                        }
                        None => {
                            multi.add_create(&path, content.as_bytes(), &connected.persistent())?
                        }
                    }
                    mirror(connected, &mut multi)?;
                    match multi.commit().await {
                        Ok(_) => return Ok(true),
                        Err(MultiWriteError::OperationFailed {
                            index: 0,
                            source: Error::NoNode,
                        }) if version.is_none() && !made => {
                            made = true;
                            let fences = format!("{}/fence", self.root);
                            connected.client.mkdir(&fences, &connected.persistent()).await?;
                        }
                        Err(MultiWriteError::OperationFailed {
                            source: Error::NoNode | Error::NodeExists | Error::BadVersion,
                            ..
                        }) => return Ok(false),
                        Err(MultiWriteError::OperationFailed { source, .. }) => return Err(source),
                        Err(MultiWriteError::RequestFailed { source }) => return Err(source),
                    }
                }
            })
            .await
    }
}

/// Decodes the record in a fence's znode.
pub(crate) fn recorded(znode: &Znode) -> RecordState {
    znode.as_ref().map_or(RecordState::Absent, |(content, _)| RecordState::decode(content))
}

/// The version of a znode, for a write to compare; `None` if the znode does not exist.
pub(crate) fn version(znode: &Znode) -> Option<i32> {
    znode.as_ref().map(|(_, version)| *version)
}
