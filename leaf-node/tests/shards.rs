//! Several stores, one of which is away. Time is paused.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leaf_core::{Health, IdRange, Step, Tag};
use leaf_node::Shards;
use leaf_segment::store::{Expected, StoreFuture, TagGeneration};
use leaf_segment::{
    MemoryStore, NewTag, RangeSource, SegmentConfig, SegmentErrorKind, SegmentGenerator,
    StoreError, StoreErrorKind, TagCatalog, TagRecord,
};

/// A store that can be switched off.
#[derive(Debug)]
struct Switched {
    store: MemoryStore,
    is_down: AtomicBool,
}

impl Switched {
    fn with(tags: &[(&str, i64)]) -> Arc<Self> {
        let new = |(name, step): &(&str, i64)| {
            NewTag::new(Tag::parse(name).unwrap(), Step::new(*step).unwrap())
        };
        let store = MemoryStore::with_tags(tags.iter().map(new));
        Arc::new(Self { store, is_down: AtomicBool::new(false) })
    }

    fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    fn unless_down<'a, T: Send + 'a>(&'a self, asked: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(StoreError::new(StoreErrorKind::Unavailable, "ask")) }),
            false => asked,
        }
    }
}

impl RangeSource for Switched {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        expected: Expected,
    ) -> StoreFuture<'a, IdRange> {
        self.unless_down(self.store.allocate(tag, amount, expected))
    }

    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        unused: IdRange,
    ) -> StoreFuture<'a, bool> {
        self.unless_down(self.store.give_back(tag, generation, unused))
    }
}

impl TagCatalog for Switched {
    fn records<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        self.unless_down(self.store.records(tags))
    }
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_down_takes_no_other_with_it() {
    // A row of the name `orders` in the wrong store is nobody's.
    let main = Switched::with(&[("users", 1000), ("orders", 7)]);
    let orders = Switched::with(&[("orders", 1000)]);
    orders.set_down(true);
    let generator = async |store: &Arc<Switched>| {
        SegmentGenerator::open(Arc::clone(store) as _, SegmentConfig::default()).await
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
    assert_eq!(names[0], (Tag::parse("orders").unwrap(), 1));
    shards.close().await;
    assert_eq!(*users.next().await.unwrap_err().kind(), SegmentErrorKind::Closed);
}
