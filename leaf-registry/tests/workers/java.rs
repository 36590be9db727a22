//! Java Leafs beside our nodes, imitated according to their source: what they read, write and rely
//! on.

use std::sync::Arc;

use leaf_core::{Clock, Id, UnixMillis, WorkerId};
use leaf_snowflake::{
    ClaimRequest, Identity, Lease, RegistryError, RegistryErrorKind, SnowflakeConfig,
    SnowflakeGenerator, SystemClock,
};
use leaf_testkit::{Ledger, patiently};
use serde::Deserialize;
use zookeeper_client as zk;

use crate::fixture::*;

pub(crate) const OPEN: zk::CreateOptions<'static> =
    zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());

/// What the original reads and writes: exactly these fields, the port as a text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoint {
    ip: String,
    port: String,
    timestamp: i64,
}

/// A simulated Java Leaf: its worker id is that of its record, and it reports without a check of
/// the record.
enum Java {
    Normal { client: zk::Client, path: String, address: String },
    Mysql { fixture: Arc<Fixture>, id: String },
}

impl Java {
    /// Starts under this address, as the original does, and returns its worker id.
    async fn start(f: &Arc<Fixture>, address: &str, now: u64) -> (Self, u32) {
        if let Server::Mysql(..) = f.server {
            let (ip, port) = address.split_once(':').unwrap();
            f.sql(&format!(
                "INSERT IGNORE INTO leaf_workerid_alloc \
                 (ip, port, ip_port, max_timestamp, create_time, update_time) \
                 VALUES ('{ip}', '{port}', '{address}', {now}, NOW(), NOW())"
            ))
            .await;
            let id = f
                .sql(&format!("SELECT id FROM leaf_workerid_alloc WHERE ip_port = '{address}'"))
                .await;
            let worker = id.parse().unwrap();
            return (Self::Mysql { fixture: Arc::clone(f), id }, worker);
        }
        let client = f.zookeeper().await;
        let forever = f.path("/forever");
        client.mkdir(&forever, &OPEN).await.unwrap();
        let mut found = None;
        for name in client.list_children(&forever).await.unwrap() {
            // It parses every child, or dies.
            let parts: Vec<_> = name.split('-').collect();
            let number: u32 = parts[1].parse().unwrap();
            if parts[0] == address {
                found = Some((name.clone(), number));
            }
        }
        let (name, number) = match found {
            Some((name, number)) => {
                let (data, _) = client.get_data(&format!("{forever}/{name}")).await.unwrap();
                let endpoint: Endpoint = serde_json::from_slice(&data).unwrap();
                assert_eq!(format!("{}:{}", endpoint.ip, endpoint.port), address);
                assert!(endpoint.timestamp <= now.cast_signed(), "the clock went backwards");
                (name, number)
            }
            None => {
                let options =
                    zk::CreateMode::PersistentSequential.with_acls(zk::Acls::anyone_all());
                let path = format!("{forever}/{address}-");
                let data = endpoint(address, now);
                let (_, number) = client.create(&path, data.as_bytes(), &options).await.unwrap();
                (format!("{address}-{number}"), u32::try_from(number.into_i64()).unwrap())
            }
        };
        let path = format!("{forever}/{name}");
        (Self::Normal { client, path, address: address.into() }, number)
    }

    /// Writes a report, as the Java Leaf does every three seconds.
    async fn report(&self, now: u64) {
        match self {
            Self::Normal { client, path, address } => {
                client
                    .set_data(path, endpoint(address, now).as_bytes(), None)
                    .await
                    .map(|_| ())
                    .unwrap();
            }
            Self::Mysql { fixture, id } => {
                fixture
                    .sql(&format!(
                        "UPDATE leaf_workerid_alloc SET max_timestamp = {now} WHERE id = {id}"
                    ))
                    .await;
            }
        }
    }
}

fn endpoint(address: &str, timestamp: u64) -> String {
    let (ip, port) = address.split_once(':').unwrap();
    format!(r#"{{"ip":"{ip}","port":"{port}","timestamp":{timestamp}}}"#)
}

/// Claims until the registry demands to watch the record, and claims again as if after that wait.
pub(crate) async fn after_watching(
    node: &Node,
    now: UnixMillis,
) -> Result<Lease, leaf_snowflake::RegistryError> {
    let RegistryErrorKind::Watch { worker, fingerprint: nonce, during } =
        kind(node.claim_at(now).await)
    else {
        panic!("not told to watch");
    };
    assert!(during >= seconds(7), "two reports of a Java Leaf, and time for the write: {during:?}");
    let request = ClaimRequest { now, watched: [(worker, nonce)].into(), ..node.request.clone() };
    node.claim_by(&request).await
}

/// A node of ours reads a Java Leaf's record and continues above everything that the Java Leaf may
/// have issued. Other nodes get other worker ids beside it. The Java program can read our record
/// and continue with it after a clean stop.
pub(crate) async fn records_are_continued_and_handed_back(f: Fixture) {
    let f = Arc::new(f);
    let (java, worker) = Java::start(&f, "10.1.46.33:8080", NOW.get()).await;
    java.report(NOW.get() + 3000).await;
    let (_other, other_worker) = Java::start(&f, "10.1.46.33:8081", NOW.get()).await;

    let beside = f.node("10.0.0.9:8080").await;
    let own = beside.claim().await;
    assert!(![worker, other_worker].contains(&own.worker.get()));

    let now = NOW + seconds(60);
    let successor = f.node("10.1.46.33:8080").await;
    let lease = after_watching(&successor, now).await.unwrap();
    assert_eq!(lease.worker.get(), worker);
    assert_eq!(lease.fence.floor, NOW + seconds(7), "4 s past its last report");
    let records = successor.registry().workers().await.unwrap();
    let other = records.iter().find(|record| record.worker.get() == other_worker).unwrap();
    let remark = other.remark.clone().unwrap();
    assert!(
        remark.contains("a Java Leaf, 10.1.46.33:8081, reported at 2027-01-15 08:00:00 UTC"),
        "{remark}"
    );

    // Another start of the Java program on this address would find a clock that went backwards.
    // After a clean stop and a second it goes on.
    successor.registry().release(lease, report(now + seconds(5))).await.unwrap();
    let (_, again) = Java::start(&f, "10.1.46.33:8080", (now + seconds(6)).get()).await;
    assert_eq!(again, worker);
}

/// A Java Leaf that reports while it is watched lives: its name is refused.
pub(crate) async fn a_live_one_is_refused(f: Fixture) {
    let f = Arc::new(f);
    let (java, _) = Java::start(&f, "10.1.46.33:8080", NOW.get()).await;
    let node = f.node("10.1.46.33:8080").await;
    let RegistryErrorKind::Watch { worker, fingerprint: nonce, .. } =
        kind(node.claim_at(NOW + seconds(60)).await)
    else {
        panic!("not told to watch");
    };
    java.report(NOW.get() + 1).await;
    let request = ClaimRequest {
        now: NOW + seconds(67),
        watched: [(worker, nonce)].into(),
        ..node.request.clone()
    };
    let error = node.claim_by(&request).await.unwrap_err();
    assert!(matches!(error.kind(), RegistryErrorKind::JavaAlive { .. }), "{error}");
    assert!(error.to_string().contains("10.1.46.33:8080"), "{error}");
}

/// A Java Leaf that starts on the address of a live node of ours ends the node's lease.
pub(crate) async fn one_on_our_own_address_is_noticed(f: Fixture) {
    let f = Arc::new(f);
    let node = f.node("10.1.46.33:8080").await;
    let mut lease = node.claim().await;
    // Its own check refuses, and goes on with its cache file.
    let (java, _) = Java::start(&f, "10.1.46.33:8080", (NOW + seconds(601)).get()).await;
    java.report((NOW + seconds(4)).get()).await;
    let error = node.registry().extend(&mut lease, report(NOW + seconds(700))).await.unwrap_err();
    assert_eq!(*error.kind(), RegistryErrorKind::Lost);
    assert!(error.to_string().contains("a Java Leaf, 10.1.46.33:8080, reported"), "{error}");
}

/// Ids of a Java Leaf and of ours beside it and after it, in real time: no repeat.
pub(crate) async fn ids_repeat_neither_beside_nor_after_it(f: Fixture) {
    let f = Arc::new(f);
    let ledger = Ledger::default();
    let now = || SystemClock.wall_millis().get();
    let (java, worker) = Java::start(&f, "10.1.46.33:8080", now()).await;
    let beside = generator(&f, "10.0.0.9:8080").await;
    let mut sequence = 0;
    // It issues up to three seconds past its last report.
    java.report(now()).await;
    let end = tokio::time::Instant::now() + seconds(2);
    while tokio::time::Instant::now() < end {
        for _ in 0..20 {
            sequence = (sequence + 1) % 4096;
            let id = ((now() - 1_288_834_974_657) << 22) | u64::from(worker) << 12 | sequence;
            ledger.record(&"the Java Leaf".into(), id.cast_signed());
            let id: Id = beside.next().await.unwrap();
            ledger.record(&"beside".into(), id.get());
        }
        tokio::time::sleep(millis(1)).await;
    }
    drop(java);
    let after = generator(&f, "10.1.46.33:8080").await;
    assert_eq!(after.view().worker.map(WorkerId::get), Some(worker));
    for _ in 0..1000 {
        ledger.record(&"after".into(), after.next().await.unwrap().get());
    }
    ledger.expect_at_least(3000);
    beside.close().await;
    after.close().await;
}

pub(crate) async fn generator(f: &Fixture, name: &str) -> SnowflakeGenerator {
    let config = SnowflakeConfig::new(Identity::parse(name).unwrap());
    let registry = f.open().await.registry;
    SnowflakeGenerator::open(registry, config).await.unwrap()
}

/// W-01: names that a Java Leaf could not read are refused, and worker ids begin at 1 without a
/// gap.
pub(crate) async fn a_name_that_java_cannot_read_is_refused(f: Fixture) {
    let node = f.node("my-host:8080").await;
    let error = node.claim_at(NOW).await.unwrap_err();
    assert!(error.to_string().contains("an IP address and a port"), "{error}");
    let node = f.node("[2001:db8::7]:8080").await;
    // A Java Leaf that saw an empty tree a moment ago takes 0.
    assert_eq!(node.claim().await.worker.get(), 1);
    let f = Arc::new(f);
    let (_, number) = Java::start(&f, "10.1.46.33:8080", NOW.get()).await;
    assert_eq!(number, 2);
}

/// Starting again and again uses up no number of the fork's table.
pub(crate) async fn restarts_burn_no_number(f: Fixture) {
    for _ in 0..5 {
        let node = f.node("10.0.0.1:8080").await;
        let lease = node.claim().await;
        assert_eq!(lease.worker.get(), 1, "the fork's begin at 1");
        node.registry().release(lease, report(NOW)).await.unwrap();
    }
    let f = Arc::new(f);
    let (_, number) = Java::start(&f, "10.1.46.33:8080", NOW.get()).await;
    assert_eq!(number, 2);
    f.sql("UPDATE leaf_workerid_alloc SET max_timestamp = NULL WHERE id = 2").await;
    let node = f.node("10.1.46.33:8080").await;
    let lease = after_watching(&node, NOW).await.unwrap();
    assert_eq!(lease.worker.get(), 2, "one that has never reported");
}

/// A worker id that was never made cannot be retired: the record would be in the way when it is
/// made.
pub(crate) async fn what_was_never_made_is_left_alone(f: Fixture) {
    let node = f.node("10.0.0.1:1").await;
    node.claim().await;
    let registry = node.registry();
    for error in [
        registry.retire_worker(WorkerId::new(7), node_settings(NOW)).await.unwrap_err(),
        registry.repair_worker(WorkerId::new(7), node_settings(NOW)).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("no node has used it"), "{error}");
    }
    assert_eq!(f.zookeeper().await.list_children(&f.path("/forever")).await.unwrap().len(), 1);
}

/// A node name reuses its free numbers before a new one is made, and a deleted number is skipped
/// only once.
pub(crate) async fn numbers_are_made_only_when_they_are_needed(f: Fixture) {
    let first = f.node("10.0.0.1:1").await;
    let lease = first.claim().await;
    assert_eq!(lease.worker.get(), 1);
    first.registry().release(lease, report(NOW)).await.unwrap();
    first.registry().retire_worker(WorkerId::new(1), node_settings(NOW)).await.unwrap();
    for _ in 0..4 {
        let again = f.node("10.0.0.1:1").await;
        let busy = |error: &RegistryError| *error.kind() == RegistryErrorKind::Unavailable;
        let other = patiently(busy, async || again.claim_at(NOW + seconds(1)).await).await.unwrap();
        assert_eq!(other.worker.get(), 2, "the second number, each time");
        again.registry().release(other, report(NOW + seconds(1))).await.unwrap();
    }

    let client = f.zookeeper().await;
    let options = zk::CreateMode::PersistentSequential.with_acls(zk::Acls::anyone_all());
    let path = f.path("/forever/10.9.9.9:1-");
    let (_, number) = client.create(&path, b"{}", &options).await.unwrap();
    client.delete(&format!("{path}{number}"), None).await.unwrap();
    let mut last = f.node("10.0.0.3:1").await;
    last.request.layout = "t41-w2-s12/1ms".parse().unwrap();
    let refused = last.claim_at(NOW).await.unwrap_err();
    assert!(matches!(refused.kind(), RegistryErrorKind::OtherLayout { .. }), "{refused}");
    last.request.layout = leaf_core::Layout::LEAF;
    assert_eq!(last.claim().await.worker.get(), 4, "the next, not one for each deletion");
}

/// Tables that an administrator made with the output of `schema` are new: the missing rows are no
/// sign of a loss.
pub(crate) async fn tables_made_by_hand_are_new(f: Fixture) {
    let tables = f.open().await.admin.unwrap();
    for table in tables.tables() {
        f.sql(&format!("DROP TABLE {}", table.name)).await;
        f.sql(table.statements).await;
    }
    let lease = f.node("10.0.0.1:1").await.claim().await;
    assert_eq!(lease.fence.term, 1);
    // And a guard that is gone later is a failover.
    f.sql("DELETE FROM leaf_worker_guard").await;
    let refused = kind(f.node("10.0.0.2:1").await.claim_at(SystemClock.wall_millis()).await);
    assert!(matches!(refused, RegistryErrorKind::FailedOver { .. }), "{refused:?}");
}
