//! Leased ranges: straight from the store, and back again by compare-and-set.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{TestStore, open, step, store_with, tag};
use leaf_core::IdRange;
use leaf_segment::{
    HighWaterMarks, LeasedRange, NewTag, RangeSource, SegmentConfig, SegmentErrorKind,
    SegmentGenerator, TagHandle, TagStore,
};

fn range(start: i64, end: i64) -> IdRange {
    IdRange::new(start, end).unwrap()
}

async fn others_allocate(store: &TestStore, count: i64) -> IdRange {
    let size = step(100).into();
    store.inner.allocate(&tag("orders"), step(count), size).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn leases_of_several_nodes_rise_whatever_their_buffers_hold() {
    let store = store_with("orders", 100).await;
    let nodes = [open(&store).await, open(&store).await, open(&store).await];
    for node in &nodes {
        node.tag("orders").await.unwrap().next().await.unwrap();
    }

    let mut end = 0;
    for turn in 0..60 {
        let orders = nodes[turn % 3].tag("orders").await.unwrap();
        let leased = orders.lease(1 + turn).await.unwrap().range;
        assert!(leased.start() >= end, "leases fall: {leased} after {end}");
        assert_eq!(leased.len(), 1 + turn as u64);
        end = leased.end();
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_used_goes_back_once_and_only_from_its_holder() {
    let store = store_with("orders", 100).await;
    let node = open(&store).await;
    let orders = node.tag("orders").await.unwrap();
    let LeasedRange { range: leased, ticket } = orders.lease(50).await.unwrap();
    assert_eq!(leased, range(1, 51));

    let forged = [
        (ticket ^ 1, range(11, 51)),
        (ticket, range(11, 50)),
        (ticket, range(11, 52)),
        (ticket, range(0, 51)),
    ];
    for (ticket, unused) in forged {
        assert!(!orders.return_unused(ticket, unused).await.unwrap(), "not theirs: {unused}");
    }
    assert_eq!(store.inner_max_id("orders").await, 51);

    assert!(orders.return_unused(ticket, range(11, 51)).await.unwrap());
    assert_eq!(store.inner_max_id("orders").await, 11);
    // The same ids once more: somebody else's by now.
    assert_eq!(orders.lease(40).await.unwrap().range, range(11, 51));
    assert!(!orders.return_unused(ticket, range(11, 51)).await.unwrap());
    assert_eq!(store.inner_max_id("orders").await, 51);
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_back_below_what_others_were_granted() {
    let store = store_with("orders", 100).await;
    let (node, other) = (open(&store).await, open(&store).await);
    let orders = node.tag("orders").await.unwrap();
    let leased = orders.lease(50).await.unwrap();
    other.tag("orders").await.unwrap().lease(10).await.unwrap();
    assert!(!orders.return_unused(leased.ticket, range(2, 51)).await.unwrap());
    // Nor below this node's own segment.
    let leased = orders.lease(50).await.unwrap();
    orders.next().await.unwrap();
    assert!(!orders.return_unused(leased.ticket, leased.range).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn only_plain_tags_are_leased() {
    let store = store_with("orders", 100).await;
    store.create(&NewTag::strict(tag("turns"))).await.unwrap();
    let node = open(&store).await;
    let error = node.tag("turns").await.unwrap().lease(10).await.unwrap_err();
    assert_eq!(*error.kind(), SegmentErrorKind::StrictOrder);
    for count in [0, 1_000_001, usize::MAX] {
        let error = node.tag("orders").await.unwrap().lease(count).await.unwrap_err();
        assert_eq!(*error.kind(), SegmentErrorKind::BadCount { count, most: 1_000_000 });
    }
}

/// A node, restarted now and then, and what it leased.
struct Node {
    marks: Arc<HighWaterMarks>,
    open: Option<(SegmentGenerator, TagHandle)>,
    leased: Vec<(LeasedRange, i64)>,
}

impl Node {
    async fn orders(&mut self, store: &Arc<TestStore>) -> TagHandle {
        if self.open.is_none() {
            let marks = Arc::clone(&self.marks);
            let config = SegmentConfig { marks, ..SegmentConfig::default() };
            let generator = SegmentGenerator::open(Arc::clone(store) as _, config).await;
            let handle = generator.tag("orders").await.unwrap();
            self.open = Some((generator, handle));
        }
        self.open.as_ref().unwrap().1.clone()
    }
}

/// Two nodes whose marks survive a restart issue, lease, give back, stop and start in any order. No
/// id repeats, and no node reports that the store went back, because it did not.
#[tokio::test(start_paused = true)]
async fn any_order_of_leases_and_returns_repeats_nothing() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let store = store_with("orders", 8).await;
        let mut used = BTreeSet::new();
        let mut use_id = |id: i64| assert!(used.insert(id), "seed {seed}: {id} twice");
        let mut nodes =
            [0, 1].map(|_| Node { marks: Arc::default(), open: None, leased: Vec::new() });
        for _ in 0..60 {
            let node = &mut nodes[random.usize(0..2)];
            match random.u8(0..12) {
                0..3 => use_id(node.orders(&store).await.next().await.unwrap().get()),
                3 => {
                    let taken = node.orders(&store).await.take_contiguous(5).await.unwrap();
                    taken.iter().for_each(|id| use_id(id.get()));
                }
                4..8 => {
                    let leased =
                        node.orders(&store).await.lease(random.usize(1..20)).await.unwrap();
                    // The holder uses some from the start on.
                    let used_end = random.i64(leased.range.start()..=leased.range.end());
                    (leased.range.start()..used_end).for_each(&mut use_id);
                    node.leased.push((leased, used_end));
                }
                8..11 => {
                    let Some((leased, used_end)) = node.leased.pop() else { continue };
                    let Some(unused) = IdRange::new(used_end, leased.range.end()) else { continue };
                    let orders = node.orders(&store).await;
                    let _returned = orders.return_unused(leased.ticket, unused).await.unwrap();
                }
                _ => {
                    if let Some((generator, _)) = node.open.take() {
                        generator.close().await;
                    }
                }
            }
        }
    }
}

/// A closed node may end at any moment, so it accepts no ids back: they stay granted.
#[tokio::test(start_paused = true)]
async fn a_closed_node_takes_nothing_back() {
    let store = store_with("orders", 100).await;
    let node = open(&store).await;
    let orders = node.tag("orders").await.unwrap();
    let leased = orders.lease(50).await.unwrap();
    node.close().await;
    assert!(!orders.return_unused(leased.ticket, leased.range).await.unwrap());
    assert_eq!(others_allocate(&store, 1).await.start(), 51);
}

/// G-25: the answer to a return is lost, and another node leases the same ids the next moment. The
/// return must not be retried: it would find the same `max_id` and give the other node's ids back.
#[tokio::test(start_paused = true)]
async fn a_return_whose_answer_is_lost_is_not_repeated() {
    let store = store_with("orders", 100).await;
    let node = open(&store).await;
    let orders = node.tag("orders").await.unwrap();
    let LeasedRange { range: leased, ticket } = orders.lease(50).await.unwrap();
    assert_eq!(leased, range(1, 51));

    store.set_delay(Duration::from_millis(500));
    store.set_down(true);
    let returned = tokio::spawn({
        let orders = orders.clone();
        async move { orders.return_unused(ticket, range(11, 51)).await }
    });
    // Done, and not answered yet.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(store.inner_max_id("orders").await, 11);
    assert_eq!(others_allocate(&store, 40).await, range(11, 51), "somebody else's now");
    let told = returned.await.unwrap();
    store.set_down(false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(
        !orders.return_unused(ticket, range(11, 51)).await.unwrap(),
        "a ticket is worth one call"
    );
    assert_eq!(store.inner_max_id("orders").await, 51, "ids of another node went back");
    assert!(told.is_err(), "nobody knows whether it went back");
}
