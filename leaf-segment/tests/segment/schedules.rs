//! Random schedules of everything that callers, operators and faults do, against one rule: an id is
//! handed out once. Time is paused.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{TestStore, step, store_with, tag};
use leaf_segment::admin::{Confirm, TagAdmin};
use leaf_segment::store::TagSettings;
use leaf_segment::{
    HighWaterMarks, NewTag, SegmentConfig, SegmentGenerator, SegmentSource, TagCatalog, TagHandle,
    TagStore,
};
use leaf_testkit::Edit as _;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Action {
    /// One node takes some ids, one at a time.
    Next(usize, usize),
    /// One node takes a batch.
    Take(usize, usize),
    /// A caller asks for a batch and leaves at once.
    Abandon(usize, usize),
    SetStep(i64),
    /// A number in the row that is no step.
    BreakStep(i64),
    Advance(i64),
    /// An operator repairs the tag, perhaps with a number that is too low.
    Repair(i64),
    Enabled(bool),
    Down(bool),
    Slow(u64),
    Sleep(u64),
    /// A node stops in order, or is killed, and starts again.
    Restart(usize, bool),
    /// The store goes back by so many ids: a restored backup, a stale replica.
    GoBack(i64),
    /// The tag is deleted and made again at 1.
    MakeAgain,
}

fn action(nodes: usize, store_may_go_back: bool) -> BoxedStrategy<Action> {
    let node = 0..nodes;
    let usual = prop_oneof![
        8 => (node.clone(), 1usize..300).prop_map(|(node, count)| Action::Next(node, count)),
        4 => (node.clone(), 1usize..500).prop_map(|(node, count)| Action::Take(node, count)),
        2 => (node.clone(), 1usize..500).prop_map(|(node, count)| Action::Abandon(node, count)),
        2 => prop_oneof![Just(1), Just(10), 1i64..1000, Just(10_000_000)].prop_map(Action::SetStep),
        1 => prop_oneof![Just(0), Just(-5), Just(i64::MAX)].prop_map(Action::BreakStep),
        1 => (0i64..5000).prop_map(Action::Advance),
        1 => (1i64..5000).prop_map(Action::Repair),
        1 => any::<bool>().prop_map(Action::Enabled),
        1 => any::<bool>().prop_map(Action::Down),
        2 => (0u64..80).prop_map(Action::Slow),
        3 => (0u64..3000).prop_map(Action::Sleep),
        2 => (node, any::<bool>()).prop_map(|(node, clean)| Action::Restart(node, clean)),
    ];
    if !store_may_go_back {
        return usual.boxed();
    }
    prop_oneof![
        12 => usual,
        1 => (1i64..3000).prop_map(Action::GoBack),
        1 => Just(Action::MakeAgain),
    ]
    .boxed()
}

/// A node; its marks are on its disk.
struct Node {
    segments: SegmentGenerator,
    marks: Arc<HighWaterMarks>,
}

impl Node {
    async fn start(store: &Arc<TestStore>, marks: Arc<HighWaterMarks>) -> Self {
        let config = SegmentConfig {
            marks: Arc::clone(&marks),
            refresh: Duration::from_secs(2),
            wait: Duration::from_millis(700),
            ..SegmentConfig::default()
        };
        let store = Arc::clone(store) as Arc<dyn SegmentSource>;
        Self { segments: SegmentGenerator::open(store, config).await, marks }
    }

    async fn handle(&self) -> Option<TagHandle> {
        self.segments.tag("orders").await.ok()
    }
}

async fn run(nodes: usize, actions: Vec<Action>) {
    let store = store_with("orders", 100).await;
    let orders = tag("orders");
    let mut cluster = Vec::new();
    for _ in 0..nodes {
        cluster.push(Node::start(&store, Arc::default()).await);
    }
    let mut issued: HashSet<i64> = HashSet::new();
    let mut issue = |id: i64, action: &Action| {
        assert!(issued.insert(id), "{id} was handed out twice, the second time by {action:?}");
    };
    for action in &actions {
        match *action {
            Action::Next(node, count) => {
                let Some(handle) = cluster[node].handle().await else { continue };
                let mut last = -1;
                for _ in 0..count {
                    let Ok(id) = handle.next().await else { break };
                    assert!(id.get() > last, "in order");
                    last = id.get();
                    issue(last, action);
                }
            }
            Action::Take(node, count) => {
                let Some(handle) = cluster[node].handle().await else { continue };
                let Ok(ids) = handle.take(count).await else { continue };
                assert_eq!(ids.len(), count);
                ids.for_each(|id| issue(id.get(), action));
            }
            Action::Abandon(node, count) => {
                let Some(handle) = cluster[node].handle().await else { continue };
                let call = handle.take(count);
                let _ = tokio::time::timeout(Duration::from_millis(10), call).await.map(|taken| {
                    taken.into_iter().flatten().for_each(|id| issue(id.get(), action));
                });
            }
            Action::SetStep(size) => {
                let _ = store.inner.set_step(&orders, step(size)).await;
            }
            Action::BreakStep(size) => store.inner.break_step(&orders, size),
            Action::Advance(more) => {
                if let Some(record) = store.inner.tag(&orders).await.unwrap() {
                    store.inner.raise(&orders, record.max_id + more).await.unwrap();
                }
            }
            Action::Repair(at_least) => {
                let _ = TagAdmin::new(&*store).advance(&orders, at_least, Confirm::Yes).await;
            }
            Action::Enabled(enabled) => {
                let settings = TagSettings { enabled, ..TagSettings::default() };
                let _ = store.inner.set_settings(&orders, &settings).await;
            }
            Action::Down(down) => store.set_down(down),
            Action::Slow(millis) => store.set_delay(Duration::from_millis(millis)),
            Action::Sleep(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            Action::Restart(node, clean) => {
                let Node { segments, marks } = cluster.remove(node);
                match clean {
                    true => segments.close().await,
                    // What it still had on its way is carried out by the store.
                    false => drop(segments),
                }
                cluster.insert(node, Node::start(&store, marks).await);
            }
            Action::GoBack(by) => {
                if let Some(record) = store.inner.tag(&orders).await.unwrap() {
                    let step = record.step.unwrap_or(step(100));
                    store.inner.remove(&orders).await.unwrap();
                    let max_id = (record.max_id - by).max(0);
                    // A backup has the generation, too.
                    let settings = record.settings.unwrap();
                    let row = NewTag { max_id, settings, ..NewTag::new(orders.clone(), step) };
                    store.create(&row).await.unwrap();
                }
            }
            Action::MakeAgain => {
                let _ = store.inner.remove(&orders).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                store.create(&NewTag::new(orders.clone(), step(100))).await.unwrap();
            }
        }
    }
}

fn in_paused_time(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// G-07, G-08, G-09, G-11: a node with its marks repeats nothing, also when the store goes
    /// back.
    #[test]
    fn one_node_repeats_nothing_whatever_the_store_does(
        actions in prop::collection::vec(action(1, true), 1..60),
    ) {
        in_paused_time(run(1, actions));
    }

    /// G-01, G-09: several nodes share a store that never goes back.
    #[test]
    fn three_nodes_share_nothing(actions in prop::collection::vec(action(3, false), 1..80)) {
        in_paused_time(run(3, actions));
    }
}

fn cases() -> u32 {
    if std::env::var_os("LEAF_TEST_FULL").is_some() { 50_000 } else { 2000 }
}
