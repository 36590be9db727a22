//! The fork's pools in ZooKeeper, with the fork beside us, as its source has it.

use std::time::Duration;

use leaf_core::{Clock, UnixMillis, WorkerId};
use leaf_registry::RegistryOptions;
use leaf_snowflake::{ClaimRequest, RegistryErrorKind, SystemClock};
use leaf_testkit::Ledger;
use serde::Deserialize;
use zookeeper_client as zk;

use crate::fixture::*;
use crate::java::{OPEN, after_watching, generator};

/// What the fork reads and writes in its pools.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct Pooled {
    workId: i32,
    lastUsedIp: Option<String>,
    lastUsedPort: Option<String>,
    lastUsedTimestamp: Option<i64>,
}

/// The fork's scan of its pools.
struct Pools {
    client: zk::Client,
    root: String,
}

impl Pools {
    async fn of(f: &Fixture) -> Self {
        Self { client: f.zookeeper().await, root: f.path("/recycle") }
    }

    /// Creates the pools as the fork does: the records one after the other, from 0 to 1024, one too
    /// many.
    async fn make(&self) {
        for pool in ["notuse", "inuse"] {
            self.client.mkdir(&format!("{}/{pool}", self.root), &OPEN).await.unwrap();
        }
        for number in 0..=1024 {
            let unused = format!(
                r#"{{"workId":{number},"lastUsedIp":null,"lastUsedPort":null,"lastUsedTimestamp":null}}"#
            );
            let path = format!("{}/notuse/workId:{number}", self.root);
            self.client.create(&path, unused.as_bytes(), &OPEN).await.map(|_| ()).unwrap();
        }
    }

    fn path(&self, pool: &str, number: u32) -> String {
        format!("{}/{pool}/workId:{number}", self.root)
    }

    async fn read(&self, pool: &str, number: u32) -> Option<Pooled> {
        let (data, _) = self.client.get_data(&self.path(pool, number)).await.ok()?;
        let pooled: Pooled = serde_json::from_slice(&data).unwrap();
        assert_eq!(pooled.workId, number.cast_signed());
        Some(pooled)
    }

    /// Takes a worker id out of `notuse` as the fork does: it deletes and then creates.
    async fn take(&self, number: u32, now: UnixMillis) {
        self.client.delete(&self.path("notuse", number), None).await.unwrap();
        self.put("inuse", number, now).await;
    }

    async fn put(&self, pool: &str, number: u32, now: UnixMillis) {
        let data = format!(
            r#"{{"workId":{number},"lastUsedIp":"10.1.46.33","lastUsedPort":"8080","lastUsedTimestamp":{now}}}"#
        );
        self.client
            .create(&self.path(pool, number), data.as_bytes(), &OPEN)
            .await
            .map(|_| ())
            .unwrap();
    }

    /// What the fork's check does every two minutes: a worker id without a report for an hour goes
    /// back to `notuse`.
    async fn recycle(&self, number: u32) {
        self.shift(number, "inuse", "notuse").await;
    }

    /// Moves a worker id as it is; the fork writes its own name a moment later.
    async fn shift(&self, number: u32, from: &str, to: &str) {
        let from = self.path(from, number);
        let (data, _) = self.client.get_data(&from).await.unwrap();
        self.client.delete(&from, None).await.unwrap();
        let path = self.path(to, number);
        self.client.create(&path, &data, &OPEN).await.map(|_| ()).unwrap();
    }
}

/// Beside the fork, a node takes from the pools only worker ids that no Java Leaf has used.
pub(crate) async fn of_its_pools_only_what_is_safe_is_taken(f: Fixture) {
    let pools = Pools::of(&f).await;
    pools.make().await;
    // 0 is a Java Leaf's, 1 was, 2 was lost while it was moved.
    pools.take(0, NOW).await;
    pools.take(1, NOW - seconds(7200)).await;
    pools.recycle(1).await;
    pools.client.delete(&pools.path("notuse", 2), None).await.unwrap();

    let node = f.node("10.0.0.1:8080").await;
    let mut lease = node.claim().await;
    assert_eq!(lease.worker.get(), 3, "the first that nobody has used");
    let pooled = pools.read("inuse", 3).await.unwrap();
    assert_eq!(pooled.lastUsedIp.as_deref(), Some("10.0.0.1"));
    assert_eq!(pooled.lastUsedPort.as_deref(), Some("8080"));
    assert_eq!(pooled.lastUsedTimestamp, Some(lease.fence.ceiling.get().cast_signed()));
    assert!(pools.read("notuse", 3).await.is_none());

    // The last of them fits no ten bits.
    let records = node.registry().workers().await.unwrap();
    let remarks: Vec<_> = records
        .iter()
        .map(|record| (record.worker.get(), record.remark.as_deref().unwrap_or("-")))
        .collect();
    assert_eq!(remarks[0].0, 0);
    assert!(remarks[0].1.contains("a Java Leaf, 10.1.46.33:8080"), "{remarks:?}");
    assert_eq!(remarks[1], (3, "-"));

    node.registry().extend(&mut lease, report(NOW + seconds(700))).await.unwrap();
    assert_eq!(pools.read("inuse", 3).await.unwrap().lastUsedTimestamp, Some(1_800_000_700_000));
    node.registry().release(lease, report(NOW + seconds(9))).await.unwrap();
    assert!(pools.read("inuse", 3).await.is_none());
    assert_eq!(pools.read("notuse", 3).await.unwrap().lastUsedTimestamp, Some(1_800_000_009_000));

    // A Java Leaf has just taken it.
    pools.shift(3, "notuse", "inuse").await;
    let (now, nonce) = (NOW + seconds(9), uuid::Uuid::new_v4());
    let again = ClaimRequest { now, nonce, ..node.request.clone() };
    let lease = node.claim_by(&again).await.unwrap();
    assert_eq!(lease.worker.get(), 4, "3 is the Java Leaf's");
}

/// What happens to a worker id of ours whose node has died, among Java Leafs.
pub(crate) async fn a_dead_nodes_worker_id_among_java_leafs(f: Fixture) {
    let pools = Pools::of(&f).await;
    let node = f.node("10.0.0.1:8080").await;
    let lease = node.claim().await;
    assert_eq!(lease.worker.get(), 0);
    // An hour past its ceiling the fork moves it.
    let later = NOW + seconds(600 + 3700);
    pools.recycle(0).await;
    let again = node.after_a_crash(&lease, NOW + millis(800));
    let mut lease = node.claim_by(&ClaimRequest { now: later, ..again }).await.unwrap();
    assert_eq!((lease.worker.get(), lease.fence.floor), (0, NOW + millis(800)), "its own");

    // The same, and a Java Leaf takes it before its node is back.
    pools.recycle(0).await;
    pools.client.delete(&pools.path("notuse", 0), None).await.unwrap();
    let lost = node.registry().extend(&mut lease, report(later + seconds(800))).await.unwrap_err();
    assert!(lost.to_string().contains("record of it is gone"), "{lost}");
    pools.put("inuse", 0, later).await;
    let lost = node.registry().extend(&mut lease, report(later + seconds(800))).await.unwrap_err();
    assert_eq!(*lost.kind(), RegistryErrorKind::Lost);
    let other = node.claim_by(&node.after_a_crash(&lease, later)).await.unwrap();
    assert_ne!(other.worker.get(), 0, "that one's for as long as there are Java Leafs");
}

/// A node of the version of commit 3d005ec died after it had created the pool `notuse` and before
/// it created `inuse`.
pub(crate) async fn a_tree_without_its_second_pool_is_completed(f: Fixture) {
    let pools = Pools::of(&f).await;
    let first = f.node("10.0.0.1:8080").await;
    let lease = first.claim().await;
    first.registry().release(lease, report(NOW)).await.unwrap();
    pools.client.delete(&format!("{}/inuse", pools.root), None).await.unwrap();

    let next = f.node("10.0.0.2:8080").await;

    let worker = next.claim().await.worker.get();
    assert!(pools.read("inuse", worker).await.is_some(), "{worker}");
}

/// A worker id in no pool is left alone until an operator knows better.
pub(crate) async fn a_lost_worker_id_is_put_back_by_an_operator(f: Fixture) {
    let pools = Pools::of(&f).await;
    let node = f.node("10.0.0.1:8080").await;
    let lease = node.claim().await;
    node.registry().release(lease, report(NOW)).await.unwrap();
    pools.client.delete(&pools.path("notuse", 0), None).await.unwrap();
    let again = ClaimRequest { nonce: uuid::Uuid::new_v4(), ..node.request.clone() };
    let lease = node.claim_by(&again);
    assert_eq!(lease.await.unwrap().worker.get(), 1, "0 may be a Java Leaf's");
    let records = node.registry().workers().await.unwrap();
    let remark = records[0].remark.clone().unwrap();
    assert!(remark.contains("is gone") && records[0].needs_repair, "{remark}");

    let registry = node.registry();
    let free = registry.repair_worker(WorkerId::new(0), node_settings(NOW)).await.unwrap();
    let pooled = pools.read("notuse", 0).await.unwrap();
    assert_eq!(pooled.lastUsedTimestamp, Some(free.get().cast_signed()));
    let next = f.node("10.0.0.2:8080").await;
    assert_eq!(next.claim_at(free).await.unwrap().worker.get(), 0);
}

/// Once the last Java Leaf is gone, nodes may claim the worker ids that Java Leafs held, above
/// everything that they issued.
pub(crate) async fn their_worker_ids_are_adopted_when_they_are_gone(f: Fixture) {
    let pools = Pools::of(&f).await;
    pools.make().await;
    pools.take(0, NOW).await;
    for number in 1..=1024 {
        pools.client.delete(&pools.path("notuse", number), None).await.unwrap();
    }
    let node = f.node("10.0.0.1:8080").await;
    let full = node.claim_at(NOW + seconds(100)).await.unwrap_err().to_string();
    assert!(full.contains("1 of them held by Java Leafs"), "{full}");

    let options = RegistryOptions {
        adopt_java_ids: true,
        recycle_after: Duration::from_secs(3600),
        ..f.options.clone()
    };
    let node = Node::on(f.open_with(&options).await, "10.0.0.1:8080");
    let early = node.claim_at(NOW + seconds(100)).await.unwrap_err();
    assert!(matches!(early.kind(), RegistryErrorKind::NoWorkerId(_)), "{early}");
    let lease = after_watching(&node, NOW + seconds(3700)).await.unwrap();
    assert_eq!((lease.worker.get(), lease.fence.floor), (0, NOW + seconds(4)));
}

/// A worker id is in both pools, because somebody undid half of a move by hand. Our next report or
/// release removes it from the wrong pool.
pub(crate) async fn one_in_both_pools_is_sorted_out(f: Fixture) {
    let pools = Pools::of(&f).await;
    let node = f.node("10.0.0.1:8080").await;
    let mut lease = node.claim().await;
    pools.put("notuse", 0, NOW).await;
    node.registry().extend(&mut lease, report(NOW + seconds(700))).await.unwrap();
    assert!(pools.read("notuse", 0).await.is_none());
    pools.put("notuse", 0, NOW).await;
    node.registry().release(lease, report(NOW + seconds(9))).await.unwrap();
    assert!(pools.read("inuse", 0).await.is_none());
    assert_eq!(pools.read("notuse", 0).await.unwrap().lastUsedTimestamp, Some(1_800_000_009_000));
}

/// Ids of a Java Leaf and of our node beside it do not repeat, in real time. Afterwards the Java
/// Leaf can take the worker id that our node gave back.
pub(crate) async fn ids_of_its_pools_repeat_neither_beside_nor_after_us(f: Fixture) {
    let pools = Pools::of(&f).await;
    pools.make().await;
    let ledger = Ledger::default();
    let now = || SystemClock.wall_millis();
    pools.take(0, now()).await;
    let mut sequence = 0;
    let mut java = |worker: u64, now: UnixMillis| {
        sequence = (sequence + 1) % 4096;
        let id = ((now.get() - 1_288_834_974_657) << 22) | worker << 12 | sequence;
        ledger.record(&"the Java Leaf".into(), id.cast_signed());
    };
    let ours = generator(&f, "10.0.0.9:8080").await;
    let own = ours.view().worker.unwrap().get();
    assert_ne!(own, 0);
    for _ in 0..300 {
        java(0, now());
        ledger.record(&"ours".into(), ours.next().await.unwrap().get());
        tokio::time::sleep(millis(1)).await;
    }
    ours.close().await;
    let last = pools.read("notuse", own).await.unwrap().lastUsedTimestamp.unwrap();
    tokio::time::sleep(seconds(1)).await;
    assert!(last <= now().get().cast_signed(), "its clock has not gone backwards");
    pools.client.delete(&pools.path("notuse", own), None).await.unwrap();
    pools.put("inuse", own, now()).await;
    for _ in 0..300 {
        java(own.into(), now());
    }
    ledger.expect_at_least(900);
    let next = generator(&f, "10.0.0.9:8080").await;
    assert!(![0, own].contains(&next.view().worker.unwrap().get()), "it is the Java Leaf's now");
    next.close().await;
}
