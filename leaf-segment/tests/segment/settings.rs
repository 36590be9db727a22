//! What an operator sets for one tag holds on every node with the next refresh. Time is paused.

use std::time::Duration;

use crate::support::{open, step, store_with, tag};
use leaf_segment::store::TagSettings;
use leaf_segment::{NewTag, SegmentErrorKind, TagStore};
use leaf_testkit::Edit as _;

const REFRESH: Duration = Duration::from_secs(61);

#[tokio::test(start_paused = true)]
async fn a_disabled_tag_serves_nothing_until_it_is_enabled() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    let last = orders.next().await.unwrap();

    let off = TagSettings { enabled: false, ..TagSettings::default() };
    store.inner.set_settings(&tag("orders"), &off).await.unwrap();
    tokio::time::sleep(REFRESH).await;
    assert_eq!(*orders.next().await.unwrap_err().kind(), SegmentErrorKind::Disabled);
    assert!(orders.try_next().is_none() && orders.try_take(1).is_none());
    for _ in 0..100 {
        let error = segments.tag("orders").await.unwrap_err();
        assert_eq!(*error.kind(), SegmentErrorKind::Disabled, "not \"no such tag\"");
    }
    let look_ups = store.look_ups.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(
        look_ups, 2,
        "its first use, and then it is remembered for a second, so that a disabled tag costs the store little"
    );

    store.inner.set_settings(&tag("orders"), &TagSettings::default()).await.unwrap();
    tokio::time::sleep(REFRESH).await;
    let orders = segments.tag("orders").await.unwrap();
    assert!(orders.next().await.unwrap() > last);
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_is_disabled_at_the_start_is_no_unknown_tag() {
    let store = store_with("orders", 1000).await;
    let off = TagSettings { enabled: false, ..TagSettings::default() };
    store.inner.set_settings(&tag("orders"), &off).await.unwrap();

    let error = open(&store).await.tag("orders").await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::Disabled);
}

#[tokio::test(start_paused = true)]
async fn the_tags_own_bounds_outrank_the_generators() {
    let store = store_with("orders", 1000).await;
    store.create(&NewTag::new(tag("other"), step(1000))).await.unwrap();
    let own = TagSettings {
        min_step: Some(step(3000)),
        max_step: Some(step(6000)),
        max_take: Some(step(50)),
        ..TagSettings::default()
    };
    store.inner.set_settings(&tag("orders"), &own).await.unwrap();
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    for _ in 0..100_000 {
        orders.next().await.unwrap();
    }

    let view = segments.views(None, 100).remove(0);
    let amounts: Vec<u64> = view.fetches.iter().map(|fetch| fetch.amount).collect();
    assert!(amounts.iter().all(|amount| *amount == 6000), "the last ones: {amounts:?}");
    assert_eq!(TagSettings { generation: None, ..view.settings }, own);
    let refused = SegmentErrorKind::BadCount { count: 51, most: 50 };
    assert_eq!(*orders.take(51).await.unwrap_err().kind(), refused);
    assert_eq!(orders.take_contiguous(50).await.unwrap().len(), 50);
    let other = segments.tag("other").await.unwrap();
    other.take(51).await.unwrap();
    assert_eq!(segments.views(None, 100)[1].fetches[0].amount, 1000);
}
