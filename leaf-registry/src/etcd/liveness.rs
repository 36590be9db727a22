//! Shows that this node is alive, by a key that etcd deletes when the key's etcd lease ends.
//!
//! Only the comparison of clocks reads this key. The etcd lease is therefore kept alive the
//! simplest way: one keep-alive request per report interval; after any trouble a new etcd lease is
//! granted, and the key is put again.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use etcd_client::{Client, PutOptions};
use tokio_util::task::AbortOnDropHandle;

use super::cluster::Cluster;

/// How many report intervals the key remains after its node has died.
const SILENT: u32 = 3;
/// How long one keep-alive may take before a new etcd lease is asked for.
const PATIENCE: Duration = Duration::from_secs(2);

/// The key that shows that this node is alive, and the task that keeps the key.
#[derive(Debug)]
pub(super) struct Liveness {
    cluster: Arc<Cluster>,
    interval: Duration,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
    /// The etcd lease that the key is attached to.
    lease: Arc<Mutex<Option<i64>>>,
}

impl Liveness {
    /// Makes no key yet: [`Self::announce`] does.
    pub(super) fn new(cluster: Arc<Cluster>, interval: Duration) -> Self {
        Self { cluster, interval, task: Mutex::default(), lease: Arc::default() }
    }

    /// The task, locked for a moment.
    fn task(&self) -> MutexGuard<'_, Option<AbortOnDropHandle<()>>> {
        self.task.lock().expect("no holder of this lock panics")
    }

    /// Makes the key, and keeps it alive from now on.
    pub(super) fn announce(&self, key: String, address: String) {
        let (cluster, lease) = (Arc::clone(&self.cluster), Arc::clone(&self.lease));
        let interval = self.interval;
        let task = tokio::spawn(async move {
            loop {
                let keep = |client| keep(client, &lease, &key, &address, interval);
                let kept = cluster.ask("show that this node is alive", keep);
                let why = match tokio::time::timeout(PATIENCE, kept).await {
                    Ok(kept) => kept.err().map(|error| error.to_string()),
                    Err(_) => Some(format!("no answer within {PATIENCE:?}")),
                };
                if let Some(why) = why {
                    *lease.lock().expect("no holder of this lock panics") = None;
                    tracing::debug!("etcd does not show this node as alive: {why}");
                }
                tokio::time::sleep(interval).await;
            }
        });
        *self.task() = Some(AbortOnDropHandle::new(task));
    }

    /// Ends the task, and revokes the etcd lease, so that etcd deletes the key.
    pub(super) async fn withdraw(&self) {
        *self.task() = None;
        let lease = self.lease.lock().expect("no holder of this lock panics").take();
        if let Some(lease) = lease {
            let revoke = |mut client: Client| async move { client.lease_revoke(lease).await };
            // Else it ends by itself.
            let _ = self.cluster.ask("revoke the lease of this node", revoke).await;
        }
    }
}

/// Grants an etcd lease and puts the key, or keeps the existing lease alive.
async fn keep(
    mut client: Client,
    lease: &Mutex<Option<i64>>,
    key: &str,
    address: &str,
    interval: Duration,
) -> Result<(), etcd_client::Error> {
    let held = *lease.lock().expect("no holder of this lock panics");
    if let Some(id) = held {
        let (mut keeper, mut answers) = client.lease_keep_alive(id).await?;
        keeper.keep_alive().await?;
        if answers.message().await?.is_some_and(|answer| answer.ttl() > 0) {
            return Ok(());
        }
    }
    let seconds = (interval * SILENT).as_secs().max(1).cast_signed();
    let id = client.lease_grant(seconds, None).await?.id();
    client.put(key, address, Some(PutOptions::new().with_lease(id))).await?;
    // Remembered only now that the key is put: an etcd lease without its key must not be kept
    // alive.
    *lease.lock().expect("no holder of this lock panics") = Some(id);
    Ok(())
}
