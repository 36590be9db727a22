//! The worker registry `zk_recycle`.
//!
//! Invariant: a worker id moves from pool to pool in one multi with its fence. One that is in no pool is
//! left alone until an operator says so, and so is what a Java Leaf held, unless the configuration says
//! that there is none any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leaf_core::{UnixMillis, WorkerId};
use leaf_snowflake::{FenceState, Identity, Peer};
use zookeeper_client::{Error, MultiWriteError};

use super::mirror;
use crate::fenced::{Answer, FenceStore, Found, Listing, Mirror, Record, Recorded};
use crate::zookeeper::{Fences, Node, Session, Work};

/// Worker ids in the pools of the community fork.
#[derive(Debug)]
pub(crate) struct ZkRecycle {
    fences: Fences,
    /// `/snowflake/{name}/recycle`.
    pools: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pool {
    NotUse,
    InUse,
}

/// The fence's version; where the mirror is, and its version.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    fence: Option<i32>,
    mirror: Option<(Pool, i32)>,
}

impl ZkRecycle {
    pub(crate) fn new(session: Arc<Session>, name: &str, report_interval: Duration) -> Self {
        let fences = Fences::new(session, name, report_interval);
        let pools = format!("{}/recycle", fences.root);
        Self { fences, pools }
    }

    fn pool(&self, pool: Pool) -> String {
        match pool {
            Pool::NotUse => format!("{}/notuse", self.pools),
            Pool::InUse => format!("{}/inuse", self.pools),
        }
    }

    fn path(&self, pool: Pool, worker: WorkerId) -> String {
        format!("{}/workId:{worker}", self.pool(pool))
    }

    fn both(&self, worker: WorkerId) -> [String; 2] {
        [self.path(Pool::NotUse, worker), self.path(Pool::InUse, worker)]
    }

    /// The worker ids of a pool; the pools are made where there is none.
    async fn names(&self, work: &Work, pool: Pool) -> Result<BTreeSet<WorkerId>, Error> {
        let names = match work.client.list_children(&self.pool(pool)).await {
            Err(Error::NoNode) => {
                self.make(work).await?;
                work.client.list_children(&self.pool(pool)).await?
            }
            names => names?,
        };
        Ok(names.iter().filter_map(|name| mirror::parse(name)).collect())
    }

    /// Makes a new tree, all or nothing.
    async fn make(&self, work: &Work) -> Result<(), Error> {
        work.client.mkdir(&self.pools, &work.persistent()).await?;
        let mut multi = work.client.new_multi_writer();
        multi.add_create(&self.pool(Pool::NotUse), b"", &work.persistent())?;
        for worker in (0..mirror::COUNT).map(WorkerId::new) {
            let path = self.path(Pool::NotUse, worker);
            multi.add_create(&path, &mirror::unused(worker), &work.persistent())?;
        }
        match multi.commit().await {
            // Another node, or a Java Leaf, has made them. What it left half-filled stays so.
            Ok(_)
            | Err(MultiWriteError::OperationFailed { index: 0, source: Error::NodeExists }) => {}
            Err(MultiWriteError::OperationFailed { source, .. })
            | Err(MultiWriteError::RequestFailed { source }) => return Err(source),
        }
        work.client.mkdir(&self.pool(Pool::InUse), &work.persistent()).await
    }
}

fn found(fence: &Node, not_use: &Node, in_use: &Node) -> Found<Token> {
    let mut record = crate::zookeeper::recorded(fence);
    let place = match (not_use, in_use) {
        (_, Some((content, version))) => Some((Pool::InUse, content, *version)),
        (Some((content, version)), None) => Some((Pool::NotUse, content, *version)),
        (None, None) => None,
    };
    let retired = record.written().is_some_and(|record| record.fence.state == FenceState::Retired);
    let mirror = match &place {
        Some((_, content, _)) => mirror::judge(content, record.written()).unwrap_or_else(|why| {
            record = Recorded::Damaged(format!("the entry in its pool: {why}"));
            Mirror::Agrees
        }),
        // Where Java Leafs do not find it.
        None if retired => Mirror::Agrees,
        None => Mirror::Missing,
    };
    let token = Token {
        fence: crate::zookeeper::version(fence),
        mirror: place.map(|(pool, _, version)| (pool, version)),
    };
    Found { record, mirror, token, failover: UnixMillis::EPOCH }
}

impl FenceStore for ZkRecycle {
    type Token = Token;

    fn place(&self) -> &'static str {
        "ZooKeeper"
    }

    fn list(&self, greatest: WorkerId) -> Answer<'_, Listing<Token>> {
        Box::pin(async move {
            self.fences
                .session
                .run("read the worker ids in ZooKeeper", async |work| {
                    let mut unused = self.names(work, Pool::NotUse).await?;
                    let mut known = self.names(work, Pool::InUse).await?;
                    known.extend(self.fences.workers(work).await?);
                    unused.retain(|worker| !known.contains(worker) && *worker <= greatest);
                    let known: Vec<_> = known.into_iter().collect();
                    let read = self.fences.read(work, &known, |worker| self.both(worker)).await?;
                    let known = read.into_iter().map(|(worker, fence, [not_use, in_use])| {
                        (worker, found(&fence, &not_use, &in_use))
                    });
                    let known: Vec<_> = known.collect();
                    Ok(Listing { known, unused: unused.into_iter().collect() })
                })
                .await
        })
    }

    fn read(&self, worker: WorkerId) -> Answer<'_, Found<Token>> {
        Box::pin(async move {
            let operation = format!("read worker id {worker} in ZooKeeper");
            self.fences
                .session
                .run(&operation, async |work| {
                    let read =
                        self.fences.read(work, &[worker], |worker| self.both(worker)).await?;
                    match read.as_slice() {
                        [(_, fence, [not_use, in_use])] => Ok(found(fence, not_use, in_use)),
                        _ => Err(Error::UnexpectedError("one was asked for".into())),
                    }
                })
                .await
        })
    }

    fn write<'a>(
        &'a self,
        worker: WorkerId,
        found: &'a Found<Token>,
        record: &'a Record,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            let content = mirror::of(worker, record);
            let goes_to = match record.fence.state {
                FenceState::Held => Some(Pool::InUse),
                FenceState::Released => Some(Pool::NotUse),
                FenceState::Retired => None,
            };
            self.fences
                .write(worker, found.token.fence, record, |work, multi| {
                    match (found.token.mirror, goes_to) {
                        (Some((from, version)), Some(to)) if from == to => {
                            multi.add_set_data(&self.path(to, worker), &content, Some(version))?;
                        }
                        (from, to) => {
                            if let Some((from, version)) = from {
                                multi.add_delete(&self.path(from, worker), Some(version))?;
                            }
                            if let Some(to) = to {
                                let path = self.path(to, worker);
                                multi.add_create(&path, &content, &work.persistent())?;
                            }
                        }
                    }
                    Ok(())
                })
                .await
        })
    }

    fn announce(&self, who: &Identity, address: &Identity) {
        self.fences.announce(who, address);
    }

    fn withdraw(&self) -> futures_core::future::BoxFuture<'_, ()> {
        Box::pin(self.fences.withdraw())
    }

    fn peers(&self) -> Answer<'_, Vec<Peer>> {
        Box::pin(self.fences.peers())
    }
}
