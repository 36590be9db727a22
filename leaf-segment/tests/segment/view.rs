//! What operators see of a tag. Time is paused.

use std::time::Duration;

use crate::support::{open, step, store_with, tag};
use leaf_core::{Id, IdRange};
use leaf_segment::SegmentErrorKind;
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
