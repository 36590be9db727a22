//! `leaf worker` on registries that nodes use.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use leaf_core::{ManualClock, UnixMillis};
use leaf_registry::{OpenRegistry, RegistryOptions, RegistryUrl};
use leaf_snowflake::{Identity, SnowflakeConfig, SnowflakeGenerator};
use leaf_testkit::{Etcd, Fault, FaultProxy};
use support::{leaf, leaf_with};

fn now() -> u64 {
    u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap()
}

/// An SQLite registry in the default data directory.
async fn open(home: &std::path::Path) -> OpenRegistry {
    let url: RegistryUrl = "sqlite:leaf.db".parse().unwrap();
    let options = RegistryOptions::default();
    let data = home.join("leaf-data");
    let open = url.open(&data, &options).await.unwrap();
    open.admin.as_ref().unwrap().apply().await.unwrap();
    open
}

async fn node(open: &OpenRegistry, name: &str) -> SnowflakeGenerator {
    let mut config = SnowflakeConfig::new(Identity::parse(name).unwrap());
    config.report_interval = Duration::from_millis(50);
    SnowflakeGenerator::open(open.registry.clone(), config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_id_from_its_list_to_its_end() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("leaf-data")).unwrap();
    let file = home.path().join("leaf-data/leaf.db");
    let text =
        format!("[snowflake]\nregistry = 'sqlite:{}'\nreport_interval = '1s'\n", file.display());
    std::fs::write(home.path().join("leaf.toml"), text).unwrap();
    let run = |args: &[&str]| leaf(home.path(), args);
    let absent = run(&["worker", "list"]).failed(2);
    assert!(absent.contains("leaf.db does not exist"), "{absent}");
    let registry = open(home.path()).await;
    let life = {
        // A runtime of its own, that ends without a word.
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let registry = open(home.path()).await;
        let held = runtime.spawn(async move { node(&registry, "10.0.0.1:8080").await });
        let held = held.await.unwrap();
        (runtime, held)
    };
    let released = node(&registry, "10.0.0.2:8080").await;
    released.close().await;

    let list = run(&["worker", "list"]).ok();
    let mut lines = list.lines();
    assert!(lines.next().unwrap().starts_with("worker  state     holder"), "{list}");
    let first = lines.next().unwrap();
    assert!(first.trim_start().starts_with("0  held      10.0.0.1:8080  20"), "{first}");
    assert!(lines.next().unwrap().contains("1  released  10.0.0.2:8080"), "{list}");
    let json = run(&["worker", "list", "-o", "json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["worker"], 0);
    let ceiling: u64 = json[0]["ceiling_ms"].as_str().unwrap().parse().unwrap();
    let report: u64 = json[0]["last_report_ms"].as_str().unwrap().parse().unwrap();
    assert_eq!(ceiling - report, 600_000);
    assert!(now().abs_diff(report) < 10_000);

    let careful = run(&["worker", "release", "0"]).failed(2);
    assert!(careful.contains("--holder-is-dead"), "{careful}");
    let lives = run(&["worker", "release", "0", "--holder-is-dead"]).failed(1);
    assert!(lives.contains("stop that process first"), "{lives}");
    life.0.shutdown_background();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let freed = run(&["worker", "release", "0", "--holder-is-dead"]).ok();
    assert!(freed.starts_with("worker id 0 is released: free from 20"), "{freed}");
    let again = run(&["worker", "release", "0", "--holder-is-dead"]).failed(1);
    assert!(again.contains("released already"), "{again}");
    let none = run(&["worker", "release", "7", "--holder-is-dead"]).failed(1);
    assert!(none.contains("no node holds it"), "{none}");
    let fine = run(&["worker", "repair", "1", "--holder-is-dead"]).failed(1);
    assert!(fine.contains("nothing is wrong"), "{fine}");

    assert!(run(&["worker", "retire", "1"]).failed(2).contains("--yes"));
    let retired = run(&["worker", "retire", "1", "--yes"]).ok();
    assert_eq!(retired, "worker id 1 is retired\n");
    let next = node(&registry, "10.0.0.3:8080").await;
    assert_eq!(next.view().worker.unwrap().get(), 2, "0 rests for some seconds, 1 for ever");
}

#[test]
fn what_cannot_be_administered_says_why() {
    let home = tempfile::tempdir().unwrap();
    let local = leaf(home.path(), &["worker", "list"]).failed(2);
    assert!(local.contains("`local` keeps its fence in each node's data directory"), "{local}");
    let config = home.path().join("leaf.toml");
    std::fs::write(&config, "[snowflake]\nregistry = 'zk_normal'\n").unwrap();
    let missing = leaf(home.path(), &["worker", "list"]).failed(2);
    assert!(missing.contains("write local, ordinal, store"), "{missing}");
    let file = home.path().join("secret");
    std::fs::write(&file, "zk-normal://canary@").unwrap();
    let text = format!("[snowflake]\nregistry_file = '{}'\n", file.display());
    std::fs::write(&config, text).unwrap();
    let wrong = leaf(home.path(), &["worker", "list"]).failed(2);
    assert!(
        wrong.contains("not a list of ZooKeeper servers") && !wrong.contains("canary"),
        "{wrong}"
    );
    std::fs::write(&config, "[snowflake]\nregistry = 'zk-normal://127.0.0.1:1'\n").unwrap();
    let away = leaf(home.path(), &["worker", "list"]).failed(4);
    assert!(away.contains("registry unavailable"), "{away}");
}

/// The doctor reports a store whose answers take long, a worker id that a clock in the year 2065
/// has claimed, and that no worker id is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_looks_at_latency_and_worker_ids() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("leaf-data")).unwrap();
    let etcd = Etcd::shared();
    let proxy = FaultProxy::start(([127, 0, 0, 1], etcd.ports()[0]).into()).await;
    let name = etcd.new_name();
    let direct = Etcd::url(&etcd.ports(), &name);
    let slow = Etcd::url(&[proxy.address().port()], &name);
    let registry = home.path().join("workers.db");
    let doctor = |store: &str, range: &str| {
        let registry = format!("sqlite:{}", registry.display());
        let env = [
            ("LEAF_SEGMENT__STORE", store),
            ("LEAF_SNOWFLAKE__REGISTRY", &*registry),
            ("LEAF_SNOWFLAKE__WORKER_RANGE", range),
        ];
        leaf_with(home.path(), &["doctor"], &env)
    };
    // etcd with one member, and no registry yet.
    let found = doctor(&direct, "0..1");
    assert!(found.out.contains("run three") && !found.out.contains("a read takes"), "{found:?}");
    proxy.set(Fault::Delay(Duration::from_millis(80)));
    let found = doctor(&slow, "0..1");
    assert!(
        found.out.contains("a read takes") && found.out.contains("docs/stores.md"),
        "{found:?}"
    );

    let url: RegistryUrl = format!("sqlite:{}", registry.display()).parse().unwrap();
    let options = RegistryOptions {
        worker_range: Some("0..1".parse().unwrap()),
        ..RegistryOptions::default()
    };
    let open = url.open(home.path(), &options).await.unwrap();
    open.admin.as_ref().unwrap().apply().await.unwrap();
    let held = node(&open, "10.0.0.1:8080").await;
    let found = doctor(&direct, "0..1");
    assert!(!found.out.contains("worker id"), "{found:?}");
    let clock = Arc::new(ManualClock::at(UnixMillis::new(3_000_000_000_000)));
    let mut config = SnowflakeConfig::new(Identity::parse("10.0.0.2:8080").unwrap());
    config.clock = clock;
    let ahead = SnowflakeGenerator::open(open.registry.clone(), config).await.unwrap();
    let found = doctor(&direct, "0..1");
    assert!(found.out.contains("worker id 1: it is used up to 2065-"), "{found:?}");
    assert!(found.out.contains("2 of 2 worker ids are in use"), "{found:?}");
    drop((held, ahead));
}
