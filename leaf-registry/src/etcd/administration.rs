//! The operator's view of an etcd cluster: its notes and its risks.

use etcd_client::{Client, Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp};
use leaf_segment::store::StoreFuture;

use super::store::EtcdStore;
use crate::administration::Note;
use crate::{Administration, Table};

const MIB: i64 = 1 << 20;
/// Half of etcd's default quota, in bytes.
const LARGE: i64 = 1 << 30;
const NO_HISTORY: &str =
    "let it compact by itself: --auto-compaction-retention=1h on every member; then defragment it";

/// etcd has no tables, so that there is nothing to make.
impl Administration for EtcdStore {
    fn tables(&self) -> &'static [Table] {
        &[]
    }

    fn apply(&self) -> StoreFuture<'_, Vec<&'static str>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn note(&self, note: Note) -> StoreFuture<'_, Option<String>> {
        Box::pin(async move {
            let key = format!("{}{}", self.plain, note.key());
            let answer = self.cluster.get("read a note of etcd", key, GetOptions::new()).await?;
            let text = |kv: &KeyValue| String::from_utf8_lossy(kv.value()).into_owned();
            Ok(answer.kvs().first().map(text))
        })
    }

    fn write_note<'a>(
        &'a self,
        note: Note,
        before: Option<&'a str>,
        after: &'a str,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let key = format!("{}{}", self.plain, note.key());
            let unchanged = match before {
                None => Compare::version(key.clone(), CompareOp::Equal, 0),
                Some(before) => Compare::value(key.clone(), CompareOp::Equal, before),
            };
            let put = TxnOp::put(key, after, None);
            let transaction = Txn::new().when([unchanged]).and_then([put]);
            Ok(self.cluster.txn("write a note of etcd", transaction).await?.succeeded())
        })
    }

    fn risks(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(async {
            let operation = "look at the members of etcd";
            let list = |client: Client| async move { client.cluster_client().member_list().await };
            let count = self.cluster.ask(operation, list).await?.members().len();
            let mut risks = Vec::new();
            if count < 3 {
                let outlives = "no quorum outlives the loss of one; run three";
                risks.push(format!("etcd has {count} members: {outlives}"));
            }
            let status = |client: Client| async move { client.maintenance_client().status().await };
            let status = self.cluster.ask("look at the size of etcd", status).await?;
            let size = status.db_size() / MIB;
            if status.db_size() > LARGE {
                risks.push(format!(
                    "etcd's database has {size} MiB, and by default it takes no writes beyond 2048 ({NO_HISTORY})"
                ));
            }
            let errors = status.errors().iter();
            risks.extend(
                errors.map(|error| format!("etcd reports {error}: see \"etcd\" in docs/stores.md")),
            );
            Ok(risks)
        })
    }
}
