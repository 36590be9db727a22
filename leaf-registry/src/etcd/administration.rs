//! What an operator prepares and should know of a cluster.

use etcd_client::Client;
use leaf_segment::{NewTag, StoreErrorKind, StoreFuture, TagCatalog, TagStore};

use super::store::EtcdStore;
use crate::{Administration, Table};

/// etcd has no tables; `apply` creates the sample tag if the store has no tag.
impl Administration for EtcdStore {
    fn tables(&self) -> &'static [Table] {
        &[]
    }

    fn apply(&self) -> StoreFuture<'_, Vec<&'static str>> {
        Box::pin(async {
            if self.tags().await?.is_empty() {
                match self.create(&NewTag::sample()).await {
                    // Another process made it at the same time.
                    Err(error) if *error.kind() == StoreErrorKind::TagExists => {}
                    created => created?,
                }
            }
            Ok(Vec::new())
        })
    }

    fn risks(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(async {
            let operation = "look at the members of etcd";
            let list = async |client: Client| client.cluster_client().member_list().await;
            let count = self.cluster.run(operation, list).await?.members().len();
            Ok((count < 3)
                .then(|| {
                    format!(
                        "etcd has {count} members: no quorum outlives the loss of one; run three"
                    )
                })
                .into_iter()
                .collect())
        })
    }
}
