//! What operators see of a tag. Time is paused.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{open, step, store_with, tag};
use leaf_core::{Health, Id, IdRange};
use leaf_segment::shards::Shards;
use leaf_segment::{
    NewTag, SegmentConfig, SegmentErrorKind, SegmentGenerator, SegmentSource, TagStore,
};
use leaf_testkit::Edit as _;

fn range(start: i64, end: i64) -> Option<IdRange> {
    IdRange::new(start, end)
}

#[tokio::test(start_paused = true)]
async fn a_handle_tells_the_last_id_and_the_stock() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    let told = || (orders.last_issued().map(Id::get), orders.stock());
    assert_eq!(told(), (None, 0));
    for id in 1..=35 {
        assert_eq!(orders.next().await.unwrap().get(), id);
        assert_eq!(told().0, Some(id), "over the ends of segments, too");
    }
    assert!(told().1 > 0);
    let direct = orders.take_contiguous(5000).await.unwrap();
    assert_eq!(told().0, Some(direct.end() - 1), "past the segments");
    orders.next().await.unwrap();
    assert_eq!(told().0, Some(direct.end() - 1), "the highest");
}

#[tokio::test(start_paused = true)]
async fn shows_the_slots_the_position_and_the_history() {
    let store = store_with("orders", 1000).await;
    store.set_delay(Duration::from_millis(20));
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    let unused = segments.views(None, 100).remove(0);
    assert_eq!((unused.slots, unused.position, unused.stock), ([None, None], None, 0));
    assert!(unused.fetches.is_empty() && unused.rate == 0.0 && unused.mark.is_none());

    orders.next().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    // The prefetch starts with the 101st id.
    for _ in 0..100 {
        orders.next().await.unwrap();
    }
    assert!(segments.views(None, 100)[0].fetching);
    tokio::time::sleep(Duration::from_millis(30)).await;

    let view = segments.views(None, 100).remove(0);
    assert_eq!(view.slots[view.current], range(1, 1001));
    assert_eq!(view.slots[1 - view.current], range(1001, 3001));
    assert_eq!((view.position, view.stock, view.issued), (Some(102), 2899, 101));
    assert_eq!((view.mark, view.step), (Some(3001), Some(step(1000))));
    let fetches: Vec<_> = view.fetches.iter().map(|fetch| (fetch.amount, fetch.took)).collect();
    let took = Duration::from_millis(20);
    assert_eq!(fetches, [(1000, took), (2000, took)]);
    assert!(!view.fetching && view.error.is_none());

    orders.take(5000).await.unwrap();
    let view = segments.views(None, 100).remove(0);
    assert_eq!((view.issued, view.stock), (5101, 2899), "a direct fetch passes the slots by");
}

#[tokio::test(start_paused = true)]
async fn shows_the_rate_the_errors_and_the_end() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    for _ in 0..1200 {
        orders.next().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let rate = segments.views(None, 100)[0].rate;
    assert!((9.5..=10.5).contains(&rate), "{rate}");

    store.set_down(true);
    while orders.try_next().is_some() {}
    tokio::time::sleep(Duration::from_secs(1)).await;
    let view = segments.views(None, 100).remove(0);
    let (error, ago) = view.error.unwrap();
    assert!(error.to_string().contains("store unavailable") && ago <= Duration::from_secs(1));
    assert_eq!(view.position, None);

    store.set_down(false);
    store.inner.remove(&tag("orders")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(segments.views(None, 100).is_empty(), "a tag that is gone leaves the memory");
    assert_eq!(*orders.next().await.unwrap_err().kind(), SegmentErrorKind::UnknownTag);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_down_takes_no_other_with_it() {
    let (main, orders) = (store_with("users", 1000).await, store_with("orders", 1000).await);
    // A row of that name in the wrong store is nobody's.
    main.create(&NewTag::new(tag("orders"), step(7))).await.unwrap();
    orders.set_down(true);
    let generator = async |store: &Arc<crate::support::TestStore>| {
        let store = Arc::clone(store) as Arc<dyn SegmentSource>;
        SegmentGenerator::open(store, SegmentConfig::default()).await
    };
    let shards = Shards::new(generator(&main).await)
        .with(vec!["order*".parse().unwrap()], generator(&orders).await);

    shards.tag("users").await.unwrap().next().await.unwrap();
    let error = shards.tag("orders").await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::StoreDown);
    assert!(matches!(shards.health(), Health::Degraded(_)), "{}", shards.health());
    main.set_down(true);
    let users = shards.tag("users").await.unwrap();
    while users.try_next().is_some() {}
    let _ = users.next().await;
    assert!(!shards.health().can_answer());

    main.set_down(false);
    orders.set_down(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    users.next().await.unwrap();
    assert_eq!(shards.tag("orders").await.unwrap().next().await.unwrap().get(), 1);
    assert_eq!(shards.health(), Health::Ready);
    let names: Vec<_> =
        shards.views(None, 100).iter().map(|view| (view.tag.clone(), view.issued)).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[0], (tag("orders"), 1));
    shards.close().await;
    assert_eq!(*users.next().await.unwrap_err().kind(), SegmentErrorKind::Closed);
}
