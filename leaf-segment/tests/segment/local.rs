//! Ids for one thread, in runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::{open, store_with, tag};
use leaf_core::Step;
use leaf_segment::admin::TagSpec;
use leaf_segment::{
    MemoryStore, NewTag, SegmentConfig, SegmentErrorKind, SegmentGenerator, TagStore,
};
use leaf_shape::keys::KeyRing;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_get_rising_ids_and_none_twice() {
    let new = NewTag::new(tag("orders"), Step::new(1000).unwrap());
    let store = Arc::new(MemoryStore::with_tags([new]));
    let segments = SegmentGenerator::open(store, SegmentConfig::default()).await;
    let orders = segments.tag("orders").await.unwrap();
    let threads: Vec<_> = [1, 3, 64, 70_000, 0]
        .map(|size| {
            let orders = orders.clone();
            tokio::spawn(async move {
                let mut local = orders.local(size);
                let (mut ids, mut others): (Vec<i64>, Vec<i64>) = (Vec::new(), Vec::new());
                for at in 0..20_000 {
                    // Both ways of taking.
                    let id = if at % 3 == 0 { local.try_next() } else { local.next().await.ok() };
                    ids.extend(id.map(|id| id.get()));
                    if at % 1000 == 0 {
                        others.push(orders.next().await.unwrap().get());
                    }
                }
                assert!(ids.len() > 10_000);
                assert!(ids.is_sorted_by(|a, b| a < b), "size {size}");
                ids.extend(others);
                ids
            })
        })
        .into();
    let mut seen = BTreeSet::new();
    for thread in threads {
        for id in thread.await.unwrap() {
            assert!(seen.insert(id), "{id} twice");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn scrambled_ids_come_in_runs_too() {
    let keys = "1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    let keys = Arc::new(KeyRing::new(keys.parse().unwrap()));
    let step = Some(Step::new(1000).unwrap());
    let shape = "scramble:d10".parse().unwrap();
    let spec = TagSpec { shape, step, ..TagSpec::default() };
    let new = spec.record(tag("orders"), &keys).unwrap();
    let config = || SegmentConfig { keys: Arc::clone(&keys), ..SegmentConfig::default() };
    let store = || Arc::new(MemoryStore::with_tags([new.clone()]));
    let one_by_one = SegmentGenerator::open(store(), config()).await;
    let in_runs = SegmentGenerator::open(store(), config()).await;
    let one_by_one = one_by_one.tag("orders").await.unwrap();
    let mut in_runs = in_runs.tag("orders").await.unwrap().local(50);
    for _ in 0..500 {
        assert_eq!(in_runs.next().await.unwrap(), one_by_one.next().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn in_strict_order_each_is_asked_for_alone() {
    let store = store_with("orders", 100).await;
    store.create(&NewTag::strict(tag("turns"))).await.unwrap();
    let node = open(&store).await;
    let turns = node.tag("turns").await.unwrap();
    let (mut one, mut two) = (turns.local(64), turns.local(64));
    for id in (1..20).step_by(2) {
        assert_eq!(one.next().await.unwrap().get(), id);
        assert_eq!(two.next().await.unwrap().get(), id + 1);
    }
    assert_eq!(one.try_next(), None);
}

#[tokio::test(start_paused = true)]
async fn a_run_outlives_its_handle() {
    let store = store_with("orders", 100).await;
    let node = open(&store).await;
    let mut local = node.tag("orders").await.unwrap().local(10);
    assert_eq!(local.next().await.unwrap().get(), 1);
    assert_eq!(local.next().await.unwrap().get(), 2);
    node.close().await;
    for id in 3..12 {
        assert_eq!(local.try_next().unwrap().get(), id);
    }
    assert_eq!(local.try_next(), None);
    assert_eq!(*local.next().await.unwrap_err().kind(), SegmentErrorKind::Closed);
}
