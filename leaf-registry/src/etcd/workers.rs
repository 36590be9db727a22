//! The worker registry `etcd`.
//!
//! Invariant: a record is replaced by a transaction that compares its revision and its value.
//! Revisions do not come back when a key is deleted and made again. They do come back when a
//! cluster is restored from a snapshot: then the compared value shows that the record has changed.
//!
//! Records are JSON under `/leaf/{name}/workers/{N}`. They are not attached to an etcd lease, since
//! who holds a worker id does not depend on whether a node is alive. The live nodes are listed
//! under `/leaf/{name}/live/`.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp};
use leaf_core::WorkerId;
use leaf_snowflake::{
    FenceStore, Identity, JavaMirror, Peer, Purpose, RecordState, RegistryError, Stored,
    StoredWorker, WorkerRecord,
};

use super::cluster::Cluster;
use super::config::name_or;
use super::liveness::Liveness;
use crate::host_list::HostList;
use crate::worker_ids::{translate, worker_id};

/// How many names of Leaf clusters under `/leaf/` are read at most, to find other Leaf clusters in
/// the same etcd. This node's own name counts, and so do names without worker ids.
const MOST_CLUSTERS: usize = 10;

/// Worker ids in etcd.
#[derive(Debug)]
pub(crate) struct EtcdWorkers {
    cluster: std::sync::Arc<Cluster>,
    /// The prefix of the keys of the records.
    records: String,
    /// The prefix of the keys of the live nodes.
    live: String,
    liveness: Liveness,
}

/// Revision and value of a record as it was read; `None` if the key did not exist.
type Version = Option<(i64, Vec<u8>)>;

impl EtcdWorkers {
    /// Worker ids in this cluster, under `name` where the URL has none. Connects when it is first
    /// used.
    pub(crate) fn open(url: HostList, name: &str, report_interval: Duration) -> Self {
        let name = name_or(&url, name);
        let (records, live) = (format!("/leaf/{name}/workers/"), format!("/leaf/{name}/live/"));
        let cluster = std::sync::Arc::new(Cluster::new(url));
        let liveness = Liveness::new(std::sync::Arc::clone(&cluster), report_interval);
        Self { cluster, records, live, liveness }
    }

    /// The key of a worker id's record.
    fn key(&self, worker: WorkerId) -> String {
        format!("{}{worker}", self.records)
    }
}

/// Converts what was read at a key; `None` if the key does not exist.
fn found(kv: Option<&KeyValue>) -> Stored<Version> {
    Stored {
        record: kv.map_or(RecordState::Absent, |kv| RecordState::decode(kv.value())),
        mirror: JavaMirror::Agrees,
        version: kv.map(|kv| (kv.mod_revision(), kv.value().to_vec())),
        failed_over_at: None,
    }
}

impl FenceStore for EtcdWorkers {
    type Version = Version;

    fn name(&self) -> &'static str {
        "etcd"
    }

    async fn list(&self, _purpose: Purpose) -> Result<Vec<StoredWorker<Version>>, RegistryError> {
        let mut known = Vec::new();
        let read = self.cluster.read_prefix("read the worker ids in etcd", &self.records, |kv| {
            let name = kv.key_str().ok().and_then(|key| key.strip_prefix(&self.records));
            match name.and_then(worker_id) {
                Some(worker) => known.push((worker, found(Some(kv)))),
                None => tracing::warn!(
                    key = %String::from_utf8_lossy(kv.key()),
                    "a key in etcd is left out: no worker id"
                ),
            }
        });
        read.await.map_err(translate)?;
        known.sort_by_key(|(worker, _)| *worker);
        Ok(known)
    }

    async fn read(
        &self,
        worker: WorkerId,
        _purpose: Purpose,
    ) -> Result<Stored<Version>, RegistryError> {
        let operation = format!("read worker id {worker} in etcd");
        let answer = self.cluster.get(&operation, self.key(worker), GetOptions::new()).await;
        let answer = answer.map_err(translate)?;
        Ok(found(answer.kvs().first()))
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<Version>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        let key = self.key(worker);
        let unchanged = match &read.version {
            None => vec![Compare::mod_revision(key.clone(), CompareOp::Equal, 0)],
            Some((revision, value)) => vec![
                Compare::mod_revision(key.clone(), CompareOp::Equal, *revision),
                Compare::value(key.clone(), CompareOp::Equal, value.clone()),
            ],
        };
        let put = TxnOp::put(key, record.encode(), None::<PutOptions>);
        let operation = format!("write worker id {worker} in etcd");
        let txn = Txn::new().when(unchanged).and_then([put]);
        let answer = self.cluster.txn(&operation, txn).await;
        answer.map(|answer| answer.succeeded()).map_err(translate)
    }

    async fn try_writing(&self) -> Result<(), RegistryError> {
        let keys = [&self.records, &self.live].map(|prefix| format!("{prefix}0"));
        self.cluster.try_put("try to write worker ids in etcd", keys).await.map_err(translate)
    }

    fn announce(&self, who: &Identity, address: &Identity) {
        self.liveness.announce(format!("{}{who}", self.live), address.to_string());
    }

    async fn withdraw(&self) {
        self.liveness.withdraw().await;
    }

    /// Reads only one key of each name, and then skips to the next name: a cluster may have many
    /// keys.
    async fn other_clusters(&self) -> Result<Vec<String>, RegistryError> {
        let operation = "look for other clusters in etcd";
        let mut others = Vec::new();
        let mut from = String::from("/leaf/");
        for _ in 0..MOST_CLUSTERS {
            let options = GetOptions::new().with_range("/leaf0").with_limit(1).with_keys_only();
            let answer = self.cluster.get(operation, from, options).await;
            let answer = answer.map_err(translate)?;
            let key = answer.kvs().first().and_then(|kv| kv.key_str().ok());
            let Some(name) = key.and_then(|key| key.split('/').nth(2)) else { break };
            // A name may have tags only.
            let workers = format!("/leaf/{name}/workers/");
            if workers != self.records {
                let options = GetOptions::new().with_prefix().with_limit(1).with_keys_only();
                let answer = self.cluster.get(operation, workers, options).await;
                if !answer.map_err(translate)?.kvs().is_empty() {
                    others.push(name.to_owned());
                }
            }
            // `0` comes behind `/`.
            from = format!("/leaf/{name}0");
        }
        Ok(others)
    }

    async fn peers(&self) -> Result<Vec<Peer>, RegistryError> {
        let mut peers = Vec::new();
        let peer = |kv: &KeyValue| {
            let name = kv.key_str().ok()?.strip_prefix(&self.live)?;
            let address = Identity::parse(kv.value_str().ok()?).ok()?;
            Some(Peer { identity: Identity::parse(name).ok()?, address })
        };
        let read = self.cluster.read_prefix("look for live nodes in etcd", &self.live, |kv| {
            peers.extend(peer(kv));
        });
        read.await.map_err(translate)?;
        Ok(peers)
    }
}
