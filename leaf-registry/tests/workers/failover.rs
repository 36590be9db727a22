//! Failovers of the databases that hold worker ids, to replicas that lack the last claims.

use std::time::Duration;

use leaf_core::{Clock, UnixMillis};
use leaf_registry::{OpenRegistry, RegistryOptions, RegistryUrl};
use leaf_snowflake::{ClaimRequest, RegistryErrorKind, Report, SystemClock};
use leaf_testkit::{FaultProxy, MariaDb, Postgres};
use tokio::task::spawn_blocking;

use crate::fixture::*;

async fn open(url: &str) -> OpenRegistry {
    let url: RegistryUrl = url.parse().unwrap();
    url.open(std::path::Path::new("."), &RegistryOptions::default()).await.unwrap()
}

/// Asserts that claims which a failover loses repeat nothing. `cut` stops the replication,
/// `fail_over` switches servers. The nodes' clocks are `ahead` of the databases'.
async fn lost_claims_repeat_nothing(
    open: OpenRegistry,
    ahead: Duration,
    cut: impl AsyncFnOnce(),
    fail_over: impl AsyncFnOnce(),
) {
    let now = SystemClock.wall_millis() + ahead;
    open.admin.clone().unwrap().apply().await.unwrap();
    let report = |ahead: Duration| Report { now, tolerance: seconds(60), ceiling: now + ahead };
    let node = |name: &str| {
        let mut node = Node::on(open.clone(), name);
        node.request.now = now;
        node
    };
    let kept = node("10.0.0.1:1");
    let mut kept_lease = kept.claim_at(now).await.unwrap();
    let crashed = node("10.0.0.2:1");
    let crashed_lease = crashed.claim_at(now).await.unwrap();
    let replaced = node("10.0.0.5:1");
    let mut replaced_lease = replaced.claim_at(now - seconds(600)).await.unwrap();
    // Another node whose clock is ahead by the tolerance may have claimed this one already.
    let nearly = node("10.0.0.6:1");
    let mut nearly_lease = nearly.claim_at(now - seconds(540)).await.unwrap();
    cut().await;
    kept.registry().extend(&mut kept_lease, report(seconds(601))).await.unwrap();
    let lost = node("10.0.0.3:1");
    let mut lost_lease = lost.claim_at(now).await.unwrap();
    fail_over().await;

    let again = |request: ClaimRequest, at: UnixMillis| ClaimRequest { now: at, ..request };
    let later = now + seconds(5);
    // The one whose claim was lost still issues ids: nobody may have its worker id.
    let stranger = node("10.0.0.4:1");
    let refused = retry(async || stranger.claim_at(later).await).await;
    let RegistryErrorKind::FailedOver { until } = kind(refused) else { panic!("not refused") };
    assert!(until >= now + seconds(600), "{until}");
    // It had the claim written down, but the record is gone: it waits like the others.
    let gone = lost.registry().extend(&mut lost_lease, report(seconds(601))).await;
    assert_eq!(kind(gone), RegistryErrorKind::Lost);
    let waits = lost.claim_by(&again(lost.after_a_crash(&lost_lease, now), later)).await;
    assert!(matches!(kind(waits), RegistryErrorKind::FailedOver { .. }));
    // Whose time was over before may have been replaced by a claim that is lost.
    let late = replaced.registry().extend(&mut replaced_lease, report(seconds(601))).await;
    assert_eq!(kind(late), RegistryErrorKind::LeaseInDoubt);
    let early = nearly.registry().extend(&mut nearly_lease, report(seconds(601))).await;
    assert_eq!(kind(early), RegistryErrorKind::LeaseInDoubt);
    // Whose record fell back by a report goes on.
    kept.registry().extend(&mut kept_lease, report(seconds(602))).await.unwrap();
    // And who can prove that it held its worker id over the failover starts at once.
    let request = again(crashed.after_a_crash(&crashed_lease, now + millis(900)), later);
    let restarted = crashed.claim_by(&request).await.unwrap();
    assert_eq!(
        (restarted.worker, restarted.fence.floor),
        (crashed_lease.worker, now + millis(900))
    );

    let claimed = stranger.claim_at(until).await.unwrap();
    assert!(claimed.fence.floor >= until, "above all that was lost: {}", claimed.fence.floor);
}

/// Until the database answers.
async fn retry<T: std::fmt::Debug>(
    attempt: impl AsyncFn() -> Result<T, leaf_snowflake::RegistryError>,
) -> Result<T, leaf_snowflake::RegistryError> {
    for _ in 0..200 {
        match attempt().await {
            Err(error) if *error.kind() == RegistryErrorKind::Unavailable => {
                tokio::time::sleep(millis(50)).await;
            }
            answer => return answer,
        }
    }
    panic!("the database does not answer");
}

/// How far a promoted server's clock may be behind. It is more than `offline_for`, so that a wait
/// of that length, measured by this clock alone, would already be over.
const LATE_SERVER: Duration = Duration::from_secs(1200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    postgres_fails_over(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_a_postgres_whose_clock_is_behind() {
    postgres_fails_over(LATE_SERVER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb() {
    mariadb_fails_over(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_a_mariadb_whose_clock_is_behind() {
    mariadb_fails_over(LATE_SERVER).await;
}

async fn postgres_fails_over(ahead: Duration) {
    let primary = spawn_blocking(Postgres::start).await.unwrap();
    let database = primary.new_database();
    let proxy = FaultProxy::start(([127, 0, 0, 1], primary.port()).into()).await;
    let open = open(&Postgres::url(proxy.address().port(), &database)).await;
    let (primary, replica) = spawn_blocking(move || {
        let replica = primary.start_replica();
        (primary, replica)
    })
    .await
    .unwrap();
    let (primary, replica) = (std::sync::Arc::new(primary), std::sync::Arc::new(replica));
    let cut = async || {
        let (primary, replica) = (primary.clone(), replica.clone());
        spawn_blocking(move || {
            wait_for_replica(&primary, &replica);
            replica.stop_following();
        })
        .await
        .unwrap();
    };
    let fail_over = async || {
        let (primary, promoted) = (primary.clone(), replica.clone());
        spawn_blocking(move || {
            primary.crash();
            promoted.promote();
        })
        .await
        .unwrap();
        proxy.point_to(([127, 0, 0, 1], replica.port()).into());
    };
    lost_claims_repeat_nothing(open, ahead, cut, fail_over).await;
}

fn wait_for_replica(primary: &Postgres, replica: &Postgres) {
    let wanted = primary.sql("postgres", "SELECT pg_current_wal_lsn()");
    leaf_testkit::wait_until("the replica has it all", seconds(20), || {
        let statement = format!("SELECT pg_last_wal_replay_lsn() >= '{wanted}'");
        (replica.sql("postgres", &statement) == "t").then_some(())
    });
}

async fn mariadb_fails_over(ahead: Duration) {
    let (primary, replica) = spawn_blocking(MariaDb::start_replicated).await.unwrap();
    let (primary, replica) = (std::sync::Arc::new(primary), std::sync::Arc::new(replica));
    let database = primary.new_database();
    let proxy = FaultProxy::start(([127, 0, 0, 1], primary.port()).into()).await;
    let open = open(&MariaDb::url(proxy.address().port(), &database)).await;
    let cut = async || {
        let (primary, replica) = (primary.clone(), replica.clone());
        spawn_blocking(move || {
            let wanted = primary.sql("SELECT @@gtid_binlog_pos");
            let waited = replica.sql(&format!("SELECT MASTER_GTID_WAIT('{wanted}', 20)"));
            assert_eq!(waited, "0", "the replica has it all");
            replica.sql("STOP SLAVE");
        })
        .await
        .unwrap();
    };
    let fail_over = async || {
        let (primary, promoted) = (primary.clone(), replica.clone());
        spawn_blocking(move || {
            primary.crash();
            promoted.sql("SET GLOBAL read_only = 0");
        })
        .await
        .unwrap();
        proxy.point_to(([127, 0, 0, 1], replica.port()).into());
    };
    lost_claims_repeat_nothing(open, ahead, cut, fail_over).await;
}
