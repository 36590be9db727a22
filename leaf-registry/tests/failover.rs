//! Failovers of the other stores: PostgreSQL by the guard, Galera and etcd by their quorum.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leaf_core::{IdRange, Step, Tag};
use leaf_registry::{OpenStore, StoreOptions, StoreUrl};
use leaf_segment::{NewTag, SegmentStore};
use leaf_testkit::{Etcd, FaultProxy, Galera, MariaDb, Postgres};
use tokio::task::spawn_blocking;

fn orders() -> Tag {
    Tag::parse("orders").unwrap()
}

fn step(size: i64) -> Step {
    Step::new(size).unwrap()
}

async fn open(url: &str, failover_margin: Option<i64>) -> OpenStore {
    let url: StoreUrl = url.parse().unwrap();
    url.open(Path::new("."), &StoreOptions { failover_margin }).await.unwrap()
}

async fn create(store: &OpenStore) {
    store.admin.apply().await.unwrap();
    store.store.create(&NewTag::new(orders(), step(10))).await.unwrap();
}

/// The next range, however long it takes.
async fn next(store: &dyn SegmentStore) -> IdRange {
    loop {
        let tag = orders();
        let attempt = store.allocate(&tag, step(10), step(10));
        match tokio::time::timeout(Duration::from_secs(3), attempt).await {
            Ok(Ok(range)) => return range,
            Ok(Err(error)) => assert!(error.retryable(), "{error}"),
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn overlaps(ranges: &mut [IdRange]) -> bool {
    ranges.sort_by_key(|range| range.start());
    ranges.windows(2).any(|pair| pair[0].overlaps(pair[1]))
}

/// G-03 on PostgreSQL: an asynchronous replica that lacks the last allocations is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_postgres_replica_jumps_ahead_once() {
    for guard in [true, false] {
        let primary = spawn_blocking(Postgres::start).await.unwrap();
        let database = primary.new_database();
        let proxy = FaultProxy::start(([127, 0, 0, 1], primary.port()).into()).await;
        let url = Postgres::url(proxy.address().port(), &database);
        let store = open(&url, guard.then_some(1_000_000)).await;
        create(&store).await;
        let mut ranges = vec![next(&*store.store).await];
        let (primary, replica) = spawn_blocking(|| {
            let replica = primary.start_replica();
            replica.stop_following();
            (primary, replica)
        })
        .await
        .unwrap();
        for _ in 0..50 {
            ranges.push(next(&*store.store).await);
        }
        let (_primary, replica) = spawn_blocking(|| {
            primary.crash();
            replica.promote();
            (primary, replica)
        })
        .await
        .unwrap();
        proxy.point_to(([127, 0, 0, 1], replica.port()).into());

        let first = next(&*store.store).await;
        ranges.push(first);
        for _ in 0..5 {
            let range = next(&*store.store).await;
            assert_eq!(range.start(), ranges[ranges.len() - 1].end(), "it jumps once");
            ranges.push(range);
        }
        assert_eq!(overlaps(&mut ranges), !guard, "without the guard ids repeat");
        assert_eq!(first.start() > 1_000_000, guard, "{first}");
    }
}

/// The guard's row is the database's: a crash of the same server is no failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_same_server_jumps_nowhere() {
    let server = spawn_blocking(Postgres::start).await.unwrap();
    let postgres = open(&Postgres::url(server.port(), &server.new_database()), Some(1000)).await;
    create(&postgres).await;
    assert_eq!(next(&*postgres.store).await.start(), 1);
    let _server = spawn_blocking(move || {
        server.crash_and_restart();
        server
    })
    .await
    .unwrap();
    assert_eq!(next(&*postgres.store).await.start(), 11);

    let server = spawn_blocking(MariaDb::start).await.unwrap();
    let mysql = open(&MariaDb::url(server.port(), &server.new_database()), Some(1000)).await;
    create(&mysql).await;
    assert_eq!(next(&*mysql.store).await.start(), 1);
    let _server = spawn_blocking(move || {
        server.crash_and_restart();
        server
    })
    .await
    .unwrap();
    assert_eq!(next(&*mysql.store).await.start(), 11);
}

/// A tag near the end of the ids is used up by a jump: it never wraps, never stays behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_beyond_the_last_id_uses_the_tag_up() {
    let mysql = spawn_blocking(MariaDb::shared).await.unwrap();
    let postgres = spawn_blocking(Postgres::shared).await.unwrap();
    let (in_mysql, in_postgres) = (mysql.new_database(), postgres.new_database());
    let urls =
        [MariaDb::url(mysql.port(), &in_mysql), Postgres::url(postgres.port(), &in_postgres)];
    for url in urls {
        let store = open(&url, Some(1000)).await;
        create(&store).await;
        let last = Tag::parse("last").unwrap();
        let new = NewTag { max_id: i64::MAX - 500, ..NewTag::new(last.clone(), step(10)) };
        store.store.create(&new).await.unwrap();
        assert_eq!(next(&*store.store).await.start(), 1);
        // As if another server had allocated last.
        let statement = "UPDATE leaf_guard SET server_uid = 'another'";
        let (mysql, postgres) = (Arc::clone(&mysql), Arc::clone(&postgres));
        let (in_mysql, in_postgres) = (in_mysql.clone(), in_postgres.clone());
        let is_mysql = url.starts_with("mysql");
        spawn_blocking(move || match is_mysql {
            true => mysql.sql(&format!("USE {in_mysql}; {statement}")),
            false => postgres.sql(&in_postgres, statement),
        })
        .await
        .unwrap();

        assert_eq!(next(&*store.store).await.start(), 1011, "{url}");
        let error = store.store.allocate(&last, step(10), step(10)).await.unwrap_err();
        assert_eq!(*error.kind(), leaf_segment::StoreErrorKind::Exhausted);
        let record = store.store.tag(&last).await.unwrap().unwrap();
        assert_eq!(record.max_id, i64::MAX);
    }
}

/// Allocates on several stores at once until told to stop.
fn load(stores: &[Arc<dyn SegmentStore>]) -> impl AsyncFnOnce() -> Vec<IdRange> + use<> {
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = stores
        .iter()
        .map(|store| {
            let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut ranges = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let tag = orders();
                    let attempt = store.allocate(&tag, step(10), step(10));
                    match tokio::time::timeout(Duration::from_secs(2), attempt).await {
                        Ok(Ok(range)) => ranges.push(range),
                        Ok(Err(error)) => {
                            assert!(error.retryable(), "{error}");
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        Err(_) => {}
                    }
                }
                ranges
            })
        })
        .collect();
    async move || {
        stop.store(true, Ordering::SeqCst);
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        all
    }
}

/// G-03 and G-14 on Galera: no guard, a node killed under load, deadlocks retried as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn galera_needs_no_guard() {
    let cluster = Arc::new(spawn_blocking(Galera::start).await.unwrap());
    let database = cluster.new_database();
    // The guard is wanted, sees that nodes certify each other's writes, and stays off.
    let urls: Vec<_> = cluster.ports().iter().map(|port| MariaDb::url(*port, &database)).collect();
    create(&open(&urls[0], Some(1_000_000)).await).await;
    let mut stores = Vec::new();
    for url in urls.iter().chain(&urls) {
        stores.push(open(url, Some(1_000_000)).await.store);
    }
    let stop = load(&stores);

    tokio::time::sleep(Duration::from_secs(1)).await;
    let killed = Arc::clone(&cluster);
    spawn_blocking(move || killed.crash(0)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The others notice and go on.
    let after = next(&*stores[1]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut ranges = stop().await;
    ranges.push(after);

    assert!(ranges.len() > 50, "{}", ranges.len());
    assert!(!overlaps(&mut ranges));
    let last = ranges.last().unwrap().end();
    assert!(last < 1_000_000, "nothing jumped: {last}");
}

/// G-03 on etcd: the leader of three members is killed under load, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_needs_no_guard() {
    let cluster = Arc::new(spawn_blocking(|| Etcd::start(3)).await.unwrap());
    let url = Etcd::url(&cluster.ports(), "leaf");
    create(&open(&url, None).await).await;
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(open(&url, None).await.store);
    }
    let stop = load(&stores);

    let mut after = Vec::new();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let killed = Arc::clone(&cluster);
        let member = spawn_blocking(move || killed.crash_leader()).await.unwrap();
        let outage = tokio::time::Instant::now();
        after.push(next(&*stores[0]).await);
        println!("a range {:?} after the leader was killed", outage.elapsed());
        cluster.start_again(member);
        tokio::time::sleep(Duration::from_millis(1000)).await;
    }
    let mut ranges = stop().await;
    ranges.extend(after);

    assert!(ranges.len() > 50, "{}", ranges.len());
    assert!(!overlaps(&mut ranges));
}
