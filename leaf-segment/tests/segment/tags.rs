//! A generator's set of tags: look-ups, refreshes, unknown and deleted tags. Time is paused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{TestStore, open, step, store_with, tag};
use leaf_core::Health;
use leaf_segment::store::TagSettings;
use leaf_segment::{NewTag, SegmentErrorKind, TagStore};
use leaf_testkit::Edit as _;

#[tokio::test(start_paused = true)]
async fn a_new_tag_is_found_at_once() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;

    store.create(&NewTag::new(tag("chat"), step(10))).await.unwrap();

    assert_eq!(segments.tag("chat").await.unwrap().next().await.unwrap().get(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_tag_is_asked_for_once_a_second() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;

    for _ in 0..100 {
        let error = segments.tag("nope").await.unwrap_err();
        assert_eq!(*error.kind(), SegmentErrorKind::UnknownTag);
    }
    assert_eq!(store.look_ups.load(Ordering::SeqCst), 1);

    tokio::time::advance(Duration::from_secs(1)).await;
    store.create(&NewTag::new(tag("nope"), step(10))).await.unwrap();
    segments.tag("nope").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_unknown_tags_keeps_the_memory_bounded() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;

    for i in 0..3000 {
        segments.tag(&format!("nope-{i}")).await.unwrap_err();
    }

    assert!(format!("{segments:?}").matches("nope-").count() <= 1000);
}

/// S-06: however many names that do not exist are requested, the store gets a limited number of
/// queries a second, and a tag that was just made is found within a second.
#[tokio::test(start_paused = true)]
async fn a_flood_of_unknown_tags_costs_the_store_little_and_hides_no_new_one() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;
    let asked = || store.look_ups.load(Ordering::SeqCst);
    let flood = |second: usize| {
        let segments = segments.clone();
        let ask = move |i| {
            let segments = segments.clone();
            tokio::spawn(async move { segments.tag(&format!("nope-{second}-{i}")).await })
        };
        (0..5000).map(ask).collect::<Vec<_>>()
    };

    let start = tokio::time::Instant::now();
    for second in 0..10 {
        let strangers = flood(second);
        store.create(&NewTag::new(tag(&format!("new-{second}")), step(10))).await.unwrap();
        // The strangers come first.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let asked_at = tokio::time::Instant::now();
        segments.tag(&format!("new-{second}")).await.unwrap().next().await.unwrap();
        assert!(asked_at.elapsed() < Duration::from_secs(1), "{:?}", asked_at.elapsed());
        for stranger in strangers {
            let error = stranger.await.unwrap().unwrap_err();
            assert_eq!(*error.kind(), SegmentErrorKind::UnknownTag);
        }
    }

    let seconds = start.elapsed().as_secs() + 1;
    assert!(asked() <= 40 * (seconds + 1), "{} queries in {seconds} s", asked());
}

/// A limited number of unknown names may wait; more are refused at once, in bounded memory. Known
/// tags are served meanwhile.
#[tokio::test(start_paused = true)]
async fn a_greater_flood_is_refused() {
    let store = store_with("orders", 10_000).await;
    let segments = open(&store).await;
    segments.tag("orders").await.unwrap().next().await.unwrap();
    let ask = |i| {
        let segments = segments.clone();
        tokio::spawn(async move { segments.tag(&format!("nope-{i}")).await.unwrap_err() })
    };
    let strangers: Vec<_> = (0..20_000).map(ask).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(segments.known("orders").unwrap().try_next().is_some());
    let mut refused = 0;
    for stranger in strangers {
        match stranger.await.unwrap().kind() {
            SegmentErrorKind::UnknownTag => {}
            SegmentErrorKind::TooManyNames => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((5000..=10_000).contains(&refused), "{refused} of 20,000");
    store.create(&NewTag::new(tag("new"), step(10))).await.unwrap();
    segments.tag("new").await.unwrap();
}

/// First uses that come together are looked up together.
#[tokio::test(start_paused = true)]
async fn first_uses_share_look_ups() {
    let store = Arc::new(TestStore::default());
    for i in 0..1000 {
        store.create(&NewTag::new(tag(&format!("tag-{i}")), step(10))).await.unwrap();
    }
    store.set_delay(Duration::from_millis(5));
    let segments = open(&store).await;
    let ask = |i| {
        let segments = segments.clone();
        tokio::spawn(async move { segments.tag(&format!("tag-{i}")).await.map(|it| it.stock()) })
    };
    for asked in (0..1000).map(ask).collect::<Vec<_>>() {
        asked.await.unwrap().unwrap();
    }
    let look_ups = store.look_ups.load(Ordering::SeqCst);
    assert!((4..=6).contains(&look_ups), "{look_ups} look-ups of 1,000 names");
}

/// A store may have any number of tags: those that nobody asked for are never read.
#[tokio::test(start_paused = true)]
async fn only_tags_in_use_are_read_again_each_once_in_a_refresh() {
    let store = Arc::new(TestStore::default());
    for i in 0..2000 {
        store.create(&NewTag::new(tag(&format!("tag-{i}")), step(10))).await.unwrap();
    }
    let segments = open(&store).await;
    let read = || store.read.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(read(), 0, "no tag is in use");

    for i in 0..1000 {
        segments.tag(&format!("tag-{i}")).await.unwrap();
    }
    // One that came at any moment is changed by plain SQL: it counts within a refresh.
    for i in [0, 300, 999] {
        tokio::time::sleep(Duration::from_secs(7 * (1 + i % 5))).await;
        let off = TagSettings { enabled: false, ..TagSettings::default() };
        store.inner.set_settings(&tag(&format!("tag-{i}")), &off).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(segments.known(&format!("tag-{i}")).is_none(), "{i}");
    }
    let before = read();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let rounds = (read() - before) as f64 / 1000.0;
    assert!((19.0..=22.0).contains(&rounds), "{rounds} rounds in 10 refreshes of two each");
}

#[tokio::test(start_paused = true)]
async fn a_bad_tag_never_reaches_the_store() {
    let store = store_with("orders", 10).await;
    let segments = open(&store).await;

    for bad in ["", " orders", "a\nb", &"x".repeat(129)] {
        let error = segments.tag(bad).await.unwrap_err();
        assert!(matches!(error.kind(), SegmentErrorKind::BadTag(_)), "{error}");
    }
    assert_eq!(store.look_ups.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_tag_ends_with_the_refresh_even_the_last_one() {
    let store = store_with("orders", 1000).await;
    let segments = open(&store).await;
    let orders = segments.tag("orders").await.unwrap();
    orders.next().await.unwrap();

    store.inner.remove(&tag("orders")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;

    assert_eq!(*orders.next().await.unwrap_err().kind(), SegmentErrorKind::UnknownTag);
    assert_eq!(*segments.tag("orders").await.unwrap_err().kind(), SegmentErrorKind::UnknownTag);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_at_the_start_is_waited_for() {
    let store = store_with("orders", 10).await;
    store.set_down(true);
    let segments = open(&store).await;

    assert!(!segments.health().can_answer());
    let error = segments.tag("orders").await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::StoreDown, "never \"no such tag\"");

    store.set_down(false);
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(segments.health(), Health::Ready);
    segments.tag("orders").await.unwrap().next().await.unwrap();
}
