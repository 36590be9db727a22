//! Fences alone in ZooKeeper, beside no Java Leaf: for worker ids that the node knows by itself.

use std::sync::Arc;
use std::time::Duration;

use leaf_core::{UnixMillis, WorkerId};
use leaf_snowflake::{Identity, Peer};
use zookeeper_client::Error;

use super::{Fences, Node, Session, recorded, version};
use crate::fenced::{Answer, FenceStore, Found, Known, Mirror, Purpose, Record};

/// Worker ids in ZooKeeper without a mirror.
#[derive(Debug)]
pub(crate) struct ZkWorkers {
    fences: Fences,
}

impl ZkWorkers {
    pub(crate) fn new(session: Arc<Session>, name: &str, report_interval: Duration) -> Self {
        Self { fences: Fences::new(session, name, report_interval) }
    }
}

fn found(fence: &Node) -> Found<Option<i32>> {
    Found {
        record: recorded(fence),
        mirror: Mirror::Agrees,
        token: version(fence),
        failover: UnixMillis::EPOCH,
    }
}

impl FenceStore for ZkWorkers {
    type Token = Option<i32>;

    fn place(&self) -> &'static str {
        "ZooKeeper"
    }

    fn known(&self, _purpose: Purpose) -> Answer<'_, Vec<Known<Self::Token>>> {
        Box::pin(async {
            self.fences
                .session
                .run("read the worker ids in ZooKeeper", async |work| {
                    let mut workers = self.fences.workers(work).await?;
                    workers.sort_unstable();
                    let read = self.fences.read(work, &workers, |_| []).await?;
                    Ok(read
                        .into_iter()
                        .map(|(worker, fence, [])| (worker, found(&fence)))
                        .collect())
                })
                .await
        })
    }

    fn read(&self, worker: WorkerId, _purpose: Purpose) -> Answer<'_, Found<Self::Token>> {
        Box::pin(async move {
            let operation = format!("read worker id {worker} in ZooKeeper");
            self.fences
                .session
                .run(&operation, async |work| {
                    match self.fences.read(work, &[worker], |_| []).await?.as_slice() {
                        [(_, fence, [])] => Ok(found(fence)),
                        _ => Err(Error::UnexpectedError("one was asked for".into())),
                    }
                })
                .await
        })
    }

    fn write<'a>(
        &'a self,
        worker: WorkerId,
        found: &'a Found<Self::Token>,
        record: &'a Record,
    ) -> Answer<'a, bool> {
        Box::pin(self.fences.write(worker, found.token, record, |_, _| Ok(())))
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
