//! A database that is away, under a thousand tags.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;
use std::time::Duration;

use leaf_core::Step;
use leaf_registry::{StoreOptions, StoreUrl};
use leaf_segment::{SegmentConfig, SegmentGenerator, TagHandle};
use leaf_testkit::{Fault, FaultProxy, MariaDb};
use tokio::time::Instant;

const TAGS: usize = 1000;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// G-13: tags are served from the stock until it is used up; then errors come fast. Neither threads
/// nor connections grow, and ids flow again soon after the database's return. The printed times are
/// only information: they differ on a shared machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tags_outlive_an_outage() {
    let away = if std::env::var_os("LEAF_TEST_FULL").is_some() { 60 } else { 4 };
    let server = tokio::task::spawn_blocking(MariaDb::start).await.unwrap();
    let database = server.new_database();
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let url: StoreUrl = MariaDb::url(proxy.address().port(), &database).parse().unwrap();
    let open = url.open(Path::new("."), &StoreOptions::default()).await.unwrap();
    open.admin.apply().await.unwrap();
    server.sql(&format!(
        "INSERT INTO {database}.leaf_alloc (biz_tag, max_id, step) \
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {TAGS}) \
         SELECT CONCAT('tag-', n), 1, 20 FROM n"
    ));
    let config = SegmentConfig {
        wait: Duration::from_millis(300),
        max_step: Step::new(20).unwrap(),
        ..SegmentConfig::default()
    };
    let segments = SegmentGenerator::open(open.store, config).await;
    let mut handles: Vec<TagHandle> = Vec::with_capacity(TAGS);
    for tag in 1..=TAGS {
        let handle = segments.tag(&format!("tag-{tag}")).await.unwrap();
        for _ in 0..3 {
            handle.next().await.unwrap();
        }
        handles.push(handle);
    }
    let connections = || {
        let count = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'leaf'";
        server.sql(count).parse::<usize>().unwrap()
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    let threads_before = threads();

    proxy.set(Fault::BlackHole);
    let outage = Instant::now();
    let mut served = 0;
    while outage.elapsed() < Duration::from_secs(away) || served < TAGS * 17 {
        assert!(outage.elapsed() < Duration::from_secs(away + 60), "{served} ids only");
        let calls: Vec<_> = handles
            .iter()
            .cloned()
            .map(|handle| {
                tokio::spawn(async move {
                    let asked = Instant::now();
                    (handle.next().await.is_ok(), asked.elapsed())
                })
            })
            .collect();
        for call in calls {
            let (ok, took) = call.await.unwrap();
            served += usize::from(ok);
            assert!(took < Duration::from_secs(10), "{took:?}");
        }
        assert!(threads() <= threads_before + 2, "{} threads", threads());
    }
    assert!(!segments.health().can_answer(), "{}", segments.health());

    // Those whose answers never came are closed by now; the new ones are at most the pool's.
    proxy.set(Fault::Cut);
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.set(Fault::None);
    let back = Instant::now();
    let probe = handles[0].clone();
    while probe.next().await.is_err() {
        assert!(back.elapsed() < Duration::from_secs(5), "still no ids");
    }
    println!("{served} ids from the stock; the first id {:?} after", back.elapsed());
    for handle in &handles {
        while handle.next().await.is_err() {
            assert!(back.elapsed() < Duration::from_secs(20), "still no ids");
        }
    }
    println!("all tags {:?} after", back.elapsed());
    assert!(connections() <= 16, "{} connections", connections());
    segments.close().await;
}
