//! An etcd cluster that lost its last changes (it was restored from a snapshot), or is full.

use std::sync::Arc;
use std::time::Duration;

use leaf_segment::{StoreError, StoreErrorKind, TagStore};
use leaf_testkit::{Etcd, all_tags};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::fixture::open;
use crate::{create, refusal, step, tag};

/// G-32: every process that has used the cluster notices the restore at its next answer, whatever
/// it requests and whatever others requested before. A process that is started afterwards cannot
/// notice it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_used_a_cluster_notices_that_it_went_back() {
    for same_token in [true, false] {
        let etcd = Arc::new(spawn_blocking(|| Etcd::start(1)).await.unwrap());
        let url = Etcd::url(&etcd.ports(), "back");
        let store = async || open(&url).await.store;
        let orders = tag("orders");
        let take = |store: &Arc<dyn TagStore>| {
            let (store, orders) = (Arc::clone(store), orders.clone());
            async move { store.allocate(&orders, step(10), step(10).into()).await }
        };
        let writes = store().await;
        create(&*writes, "orders", 10).await;
        assert_eq!(take(&writes).await.unwrap().start(), 1);
        let snapshot = {
            let etcd = Arc::clone(&etcd);
            spawn_blocking(move || etcd.snapshot()).await.unwrap()
        };
        let (reads, gives_back) = (store().await, store().await);
        for _ in 0..20 {
            take(&writes).await.unwrap();
        }
        let last = take(&gives_back).await.unwrap();
        assert_eq!(all_tags(&*reads).await.unwrap().len(), 1);

        let restored = Arc::clone(&etcd);
        let token = if same_token { etcd.token().to_owned() } else { "another".into() };
        spawn_blocking(move || restored.restore(&snapshot, &token)).await.unwrap();

        // A process that is started now knows nothing: it repeats what was granted.
        let fresh = store().await;
        assert_eq!(take(&fresh).await.unwrap().start(), 11);
        let went_back = StoreErrorKind::WentBack;
        for _ in 0..2 {
            assert_eq!(refusal(take(&writes)).await, went_back, "{same_token}");
            assert_eq!(refusal(all_tags(&*reads)).await, went_back, "{same_token}");
            assert_eq!(refusal(reads.tag(&orders)).await, went_back, "{same_token}");
            let returned = refusal(gives_back.give_back(&orders, None, last)).await;
            assert_eq!(returned, went_back, "{same_token}");
        }
        assert_eq!(take(&fresh).await.unwrap().start(), 21);
    }
}

/// A restart of all members, and many requests at once, must not look like a restore.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_only_restarts_has_not_gone_back() {
    let etcd = Arc::new(spawn_blocking(|| Etcd::start(3)).await.unwrap());
    let store = open(&Etcd::url(&etcd.ports(), "forth")).await.store;
    for n in 0..8 {
        create(&*store, &format!("tag{n}"), 10).await;
    }
    for _ in 0..2 {
        let tasks: Vec<_> = (0..32)
            .map(|n| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    let name = tag(&format!("tag{}", n % 8));
                    for _ in 0..20 {
                        answered(|| store.allocate(&name, step(10), step(10).into())).await;
                        answered(|| store.tag(&name)).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let again = Arc::clone(&etcd);
        spawn_blocking(move || again.crash_and_restart()).await.unwrap();
    }
}

/// What `request` answers. It is sent again, for half a minute, after an error that another try may
/// not meet: a connection that the restart broke, or, on a slow machine, many others that change
/// the same tag.
async fn answered<T, F>(request: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match request().await {
            Ok(answer) => return answer,
            Err(error) if error.retryable() && Instant::now() < end => {
                sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// S-21: beyond its quota etcd answers reads and refuses writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_cluster_says_what_to_do() {
    let etcd = Arc::new(spawn_blocking(|| Etcd::start(1)).await.unwrap());
    let opened = open(&Etcd::url(&etcd.ports(), "full")).await;
    create(&*opened.store, "orders", 10).await;
    let orders = tag("orders");
    let filled = Arc::clone(&etcd);
    spawn_blocking(move || {
        let value = "x".repeat(100_000);
        // The quota of these clusters is 16 MiB.
        let full =
            (0..300).any(|n| filled.try_ctl(&["put", &format!("/filler/{n}"), &value]).is_err());
        assert!(full);
    })
    .await
    .unwrap();

    for _ in 0..2 {
        let error = opened.store.allocate(&orders, step(10), step(10).into()).await.unwrap_err();
        assert_eq!(*error.kind(), StoreErrorKind::Full, "{error}");
        assert!(error.to_string().contains("disarm the alarm"), "{error}");
        assert!(opened.store.tag(&orders).await.unwrap().is_some(), "it answers reads");
    }
    let risks = opened.admin.risks().await.unwrap();
    assert!(risks.iter().any(|risk| risk.contains("NOSPACE")), "{risks:?}");
}
