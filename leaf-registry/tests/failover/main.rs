//! Failovers of the databases: PostgreSQL by the guard, Galera and etcd by their quorum.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod crashes;
mod faults;
mod guard;
mod support;

use std::sync::Arc;
use std::time::Duration;

use leaf_testkit::{Etcd, FaultProxy, Galera, MariaDb, Postgres, all_tags};
use tokio::task::spawn_blocking;

use crate::support::{create, has_arrived, load, next, open, orders, overlaps, step};

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

/// A node that was started while its address led to the standby: its connections outlive the
/// promotion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_met_the_standby_first_is_guarded_after_its_promotion() {
    let primary = spawn_blocking(Postgres::start).await.unwrap();
    let database = primary.new_database();
    let on_primary = open(&Postgres::url(primary.port(), &database), Some(1_000_000)).await;
    create(&on_primary).await;
    let before = next(&*on_primary.store).await;
    let (primary, replica) = spawn_blocking(|| {
        let replica = primary.start_replica();
        (primary, replica)
    })
    .await
    .unwrap();
    let on_replica = open(&Postgres::url(replica.port(), &database), Some(1_000_000)).await;
    assert_eq!(all_tags(&*on_replica.store).await.unwrap().len(), 2);
    let error = on_replica.store.allocate(&orders(), step(10), step(10).into()).await.unwrap_err();
    assert!(error.retryable(), "{error}");
    all_tags(&*on_replica.store).await.unwrap();

    let (_primary, _replica) = spawn_blocking(|| {
        primary.crash();
        replica.promote();
        (primary, replica)
    })
    .await
    .unwrap();
    assert_eq!(next(&*on_replica.store).await.start(), before.end() + 1_000_000);
}

/// The name in the guard's row is that of the database server: a crash of the same server is no
/// failover.
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

/// G-03 and G-14 on Galera, without the guard: a node is killed under load, and deadlocks are
/// retried as a whole. With the guard on, all nodes count as one server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn galera_needs_no_guard() {
    let cluster = Arc::new(spawn_blocking(Galera::start).await.unwrap());
    cluster.show_conflicts();
    let database = cluster.new_database();
    let urls: Vec<_> = cluster.ports().iter().map(|port| MariaDb::url(*port, &database)).collect();
    create(&open(&urls[0], None).await).await;
    let mut stores = Vec::new();
    for url in urls.iter().chain(&urls) {
        let store = open(url, None).await.store;
        has_arrived(&*store).await;
        stores.push(store);
    }
    let stop = load(&stores);

    // Six writers on three nodes: some lose their certification (1213) and are tried again as a
    // whole.
    let conflicts = async || {
        let count = Arc::clone(&cluster);
        spawn_blocking(move || (0..3).map(|node| count.conflicts(node)).sum::<u64>()).await.unwrap()
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while conflicts().await == 0 {
        assert!(tokio::time::Instant::now() < deadline, "no deadlock in 20 s");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let killed = Arc::clone(&cluster);
    spawn_blocking(move || killed.crash(0)).await.unwrap();
    // The others notice and go on.
    let after = next(&*stores[1]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut ranges = stop().await;
    ranges.push(after);

    assert!(ranges.len() > 50, "{}", ranges.len());
    assert!(!overlaps(&mut ranges));
    // The guard's row has no name yet, so the first node jumps. The other node must find the same
    // name, and not jump.
    let last = ranges.last().unwrap().end();
    let guarded = [open(&urls[1], Some(1_000_000)).await, open(&urls[2], Some(1_000_000)).await];
    for _ in 0..3 {
        for node in &guarded {
            let range = next(&*node.store).await;
            assert_eq!((range.start() - last) / 1_000_000, 1, "{range} after {last}");
        }
    }
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

/// A member that refuses connections costs no request: commands, and probes of health, send one alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_etcd_that_is_down_costs_no_request() {
    let cluster = Arc::new(spawn_blocking(|| Etcd::start(3)).await.unwrap());
    let url = Etcd::url(&cluster.ports(), "leaf");
    let before = open(&url, None).await;
    create(&before).await;
    let killed = Arc::clone(&cluster);
    spawn_blocking(move || killed.crash_leader()).await.unwrap();
    // Until the others have elected one.
    next(&*before.store).await;

    let mut failed = Vec::new();
    for _ in 0..20 {
        // Each begins with any member.
        let store = open(&url, None).await.store;
        failed.extend(store.allocate(&orders(), step(10), step(10).into()).await.err());
        failed.extend(all_tags(&*store).await.err());
    }

    assert!(failed.is_empty(), "{} of 40: {}", failed.len(), failed[0]);
}

/// Callers that give up before the deadline of a request lose one request to a frozen member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_member_of_etcd_costs_one_request() {
    let cluster = Arc::new(spawn_blocking(|| Etcd::start(3)).await.unwrap());
    let url = Etcd::url(&cluster.ports(), "leaf");
    create(&open(&url, None).await).await;
    let frozen = Arc::clone(&cluster);
    spawn_blocking(move || frozen.freeze_follower()).await.unwrap();

    let orders = orders();
    for _ in 0..20 {
        let store = open(&url, None).await.store;
        let mut failed = 0;
        for _ in 0..3 {
            let read = tokio::time::timeout(Duration::from_secs(1), store.tag(&orders));
            failed += u32::from(!matches!(read.await, Ok(Ok(_))));
        }
        assert!(failed <= 1, "{failed} of 3");
    }
}
