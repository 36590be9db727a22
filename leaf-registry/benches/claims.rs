//! Claims of many nodes that start at once: 200 keepers, with the connections of 40 processes.
//! Measures how long it takes until all have a worker id, how often a claim had to be repeated, and
//! what that cost the server. `cargo bench -p leaf-registry --features full --bench claims`,
//! followed by names of registries to measure only these.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leaf_registry::{RegistryKind, RegistryOptions, RegistryUrl};
use leaf_snowflake::{Identity, SnowflakeConfig, SnowflakeGenerator};
use leaf_testkit::{Etcd, MariaDb, Postgres, ZooKeeper};
use tokio::time::Instant;

const CLAIMERS: usize = 200;
/// So many of them share the connections of a process: databases allow 100 to 151 connections.
const OF_ONE_PROCESS: usize = 5;
/// The longest time that a claim may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The server of a registry, and how many statements or transactions it was asked to run. Etcd and
/// ZooKeeper are not counted.
struct Place {
    url: String,
    /// Returns how many of what `counted` names there were until now.
    count: Box<dyn Fn() -> u64>,
    counted: &'static str,
}

/// Returns a counter that is always 0 and keeps the server alive.
fn lives<T: 'static>(server: T) -> Box<dyn Fn() -> u64> {
    Box::new(move || {
        let _ = &server;
        0
    })
}

fn place(kind: RegistryKind) -> Place {
    match kind {
        RegistryKind::Mysql => {
            let server = MariaDb::shared();
            let url = MariaDb::url(server.port(), &server.new_database());
            let status = "SHOW GLOBAL STATUS LIKE 'Questions'";
            let count =
                move || server.sql(status).split_whitespace().last().unwrap().parse().unwrap();
            Place { url, count: Box::new(count), counted: "statements" }
        }
        RegistryKind::Store("postgres") => {
            let server = Postgres::shared();
            let name = server.new_database();
            let url = Postgres::url(server.port(), &name);
            let commits = "SELECT sum(xact_commit)::bigint FROM pg_stat_database";
            let count = move || server.sql("postgres", commits).trim().parse().unwrap();
            Place { url, count: Box::new(count), counted: "transactions" }
        }
        RegistryKind::Store("etcd") => {
            let server = Etcd::shared();
            let url = Etcd::url(&server.ports(), &server.new_name());
            Place { url, count: lives(server), counted: "not counted" }
        }
        RegistryKind::ZkNormal | RegistryKind::ZkRecycle => {
            let server = ZooKeeper::shared();
            let scheme = kind.to_string().replace('_', "-");
            let url = format!("{scheme}://{}", ZooKeeper::address(&server.ports()));
            Place { url, count: lives(server), counted: "not counted" }
        }
        other => panic!("{other} is not of many nodes"),
    }
}

async fn bench(kind: RegistryKind) {
    let place = tokio::task::block_in_place(|| place(kind));
    let url: RegistryUrl = place.url.parse().unwrap();
    let options = RegistryOptions { name: format!("claims-{kind}"), ..RegistryOptions::default() };
    let mut open = url.open(Path::new("."), &options).await.unwrap();
    if let Some(admin) = &open.admin {
        admin.apply().await.unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let before = (place.count)();
    let (begun, again) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut claimers = tokio::task::JoinSet::new();
    for number in 0..CLAIMERS {
        if number % OF_ONE_PROCESS == 0 {
            open = url.open(Path::new("."), &options).await.unwrap();
        }
        let (open, again) = (open.clone(), Arc::clone(&again));
        let state = directory.path().join(format!("{number}.json"));
        claimers.spawn(async move {
            let name = format!("10.1.{}.{}:8080", number / 100, number % 100);
            loop {
                let mut config = SnowflakeConfig::new(Identity::parse(&name).unwrap());
                // A claim whose answer was lost is known by it.
                config.state_file = Some(state.clone());
                match SnowflakeGenerator::open(open.registry.clone(), config).await {
                    Ok(generator) => return generator,
                    // As a node's supervisor does.
                    Err(error) => {
                        again.fetch_add(1, Ordering::Relaxed);
                        assert!(begun.elapsed() < LIMIT, "{name}: {error}");
                        let pause = Duration::from_millis(fastrand::u64(250..1_000));
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        });
    }
    let generators = claimers.join_all().await;
    let took = begun.elapsed();
    let used = (place.count)() - before;
    let workers: BTreeSet<u32> =
        generators.iter().map(|it| it.view().worker.unwrap().get()).collect();
    assert_eq!(workers.len(), CLAIMERS, "a worker id has two holders");
    let again = again.load(Ordering::Relaxed);
    let used = match place.counted {
        "not counted" => String::new(),
        what => format!(", {:.1} {what} each", used as f64 / CLAIMERS as f64),
    };
    println!(
        "{kind}: {CLAIMERS} nodes have worker ids after {took:.1?}; {again} claims were repeated{used}"
    );
    for generator in generators {
        generator.close().await;
    }
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let all = [
        RegistryKind::Mysql,
        RegistryKind::Store("postgres"),
        RegistryKind::Store("etcd"),
        RegistryKind::ZkNormal,
        RegistryKind::ZkRecycle,
    ];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for kind in all.into_iter().filter(|it| names.is_empty() || names.contains(&it.to_string())) {
        runtime.block_on(bench(kind));
    }
}
