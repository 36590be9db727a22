//! Nodes of two versions of Leaf on one registry under load, as during an upgrade that is rolled
//! back and done again.

use std::collections::HashSet;
use std::sync::Arc;

use leaf_core::WorkerId;
use leaf_snowflake::{
    FenceStore, MemoryFenceStore, Purpose, RegistryError, SnowflakeGenerator, Stored, StoredWorker,
    UnknownFields, WorkerRecord,
};

use crate::support::*;

/// The store of a node of a later version: each record that it writes has two more fields.
#[derive(Debug)]
struct Later(Arc<MemoryFenceStore>);

fn fields(json: &str) -> UnknownFields {
    serde_json::from_str(json).unwrap()
}

impl FenceStore for Later {
    type Version = ();

    fn name(&self) -> &'static str {
        "a store of a later version"
    }

    async fn list(&self, purpose: Purpose) -> Result<Vec<StoredWorker<()>>, RegistryError> {
        self.0.list(purpose).await
    }

    async fn read(&self, worker: WorkerId, purpose: Purpose) -> Result<Stored<()>, RegistryError> {
        self.0.read(worker, purpose).await
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<()>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        let mut record = record.clone();
        record.unknown = fields(r#"{"zone":"a"}"#);
        record.fence.unknown = fields(r#"{"region":7}"#);
        self.0.replace(worker, read, &record).await
    }
}

/// Nodes of both versions take over each other's worker ids, after stops and after kills. No id
/// repeats, and this version keeps the fields that the later version wrote.
#[test]
fn nodes_of_two_versions_share_a_registry() {
    let cluster = Cluster::new();
    let mut ids = HashSet::new();
    for round in 0..60 {
        let (of_today, of_later) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
        until_killed(async || {
            let today = cluster.open(of_today).await;
            let store = Later(Arc::clone(&cluster.store));
            let later = SnowflakeGenerator::open(store, cluster.config(of_later)).await.unwrap();
            // Both extend their leases meanwhile.
            for _ in 0..80 {
                take_all(&today, 20, &mut ids);
                take_all(&later, 20, &mut ids);
                cluster.pass(millis(100)).await;
            }
            if round % 3 == 0 {
                today.close().await;
                later.close().await;
            }
        });
        if round > 0 {
            let workers = until_killed(async || cluster.workers().await);
            for worker in &workers {
                let fence = worker.fence.as_ref().unwrap();
                assert_eq!(fence.unknown.get("region"), Some(&7.into()), "{worker:?}");
            }
            assert_eq!(workers.len(), 2, "each took over what the other version had");
        }
        cluster.clock.advance(seconds(1));
    }
}
