//! Many nodes at once, and more nodes than worker ids.

use std::collections::BTreeSet;
use std::sync::Arc;

use leaf_core::Layout;
use leaf_registry::{RegistryKind, RegistryOptions};
use leaf_snowflake::RegistryErrorKind;
use tokio::sync::Barrier;

use crate::again;
use crate::fixture::*;

/// W-01: nodes that start at once on an empty registry get one worker id each.
pub(crate) async fn forty_nodes_race(f: Fixture) {
    let mut open = Vec::new();
    for _ in 0..10 {
        open.push(f.open().await);
    }
    let claims: Vec<_> = (0..40)
        .map(|number| {
            let node = Node::on(open[number % open.len()].clone(), &format!("10.0.1.{number}:1"));
            tokio::spawn(async move { again(|| node.claim_at(NOW)).await.worker })
        })
        .collect();
    let mut workers = BTreeSet::new();
    for claim in claims {
        let worker = claim.await.unwrap();
        assert!(workers.insert(worker), "worker id {worker} was given out twice");
    }
    assert_eq!(open[0].registry.workers().await.unwrap().len(), 40, "and none in vain");
}

/// W-01: of many nodes that claim a worker id that was given back, only one gets it.
pub(crate) async fn what_was_given_back_has_one_next_holder(f: Fixture) {
    let layout: Layout = "t41-w1-s12/1ms".parse().unwrap();
    for round in 1..6 {
        let names = (0..12).map(|n| match f.bound() {
            true => "10.0.0.1:1".to_owned(),
            false => format!("10.0.{round}.{n}:1"),
        });
        let mut open = Vec::new();
        for name in names {
            open.push((f.open().await, name));
        }
        // All are connected before the first one claims: else they come one after the other.
        let ready = Arc::new(Barrier::new(open.len()));
        let claims: Vec<_> = open
            .into_iter()
            .map(|(open, name)| {
                let ready = Arc::clone(&ready);
                tokio::spawn(async move {
                    let mut node = Node::on(open, &name);
                    node.request.layout = layout;
                    node.registry().workers().await.unwrap();
                    ready.wait().await;
                    let lease = node.claim_at(NOW + seconds(round)).await;
                    (node, lease)
                })
            })
            .collect();
        let mut winners = Vec::new();
        for claim in claims {
            let (node, lease) = claim.await.unwrap();
            if let Ok(lease) = lease {
                winners.push((node, lease));
            }
        }
        let workers: BTreeSet<_> = winners.iter().map(|(_, lease)| lease.worker).collect();
        assert_eq!(workers.len(), winners.len(), "round {round}: two hold one worker id");
        // One name has one; else there are two worker ids.
        assert_eq!(winners.len(), if f.bound() { 1 } else { 2 }, "round {round}");
        for (node, lease) in winners {
            node.registry().release(lease, report(NOW + seconds(round))).await.unwrap();
        }
    }
}

/// A registry with a range of worker ids gives out no other worker id. Its nodes must be configured
/// with the same range while one of them may be alive.
pub(crate) async fn a_range_of_worker_ids_is_kept(f: Fixture) {
    let options = |range: Option<&str>| RegistryOptions {
        worker_range: range.map(|range| range.parse().unwrap()),
        ..f.options.clone()
    };
    let node = async |range, name: &str| Node::on(f.open_with(&options(range)).await, name);
    // Programs for Java number them from the beginning, whatever we want.
    let numbered = f.kind == RegistryKind::ZkNormal;
    let (range, first, last) = if numbered { ("0..2", 0, 2) } else { ("2..3", 2, 3) };
    let from = u32::from(numbered && f.bound());
    let mut held = Vec::new();
    for number in first.max(from)..=last {
        let node = node(Some(range), &format!("10.0.4.{number}:1")).await;
        let lease = node.claim().await;
        assert_eq!(lease.fence.workers.as_deref(), Some(range));
        held.push((node, lease));
    }
    let workers: BTreeSet<u32> = held.iter().map(|(_, lease)| lease.worker.get()).collect();
    assert_eq!(workers, (first.max(from)..=last).collect());
    let full = node(Some(range), "10.0.5.1:1").await.claim_at(NOW).await.unwrap_err();
    let expected = match f.kind {
        RegistryKind::ZkNormal => matches!(full.kind(), RegistryErrorKind::OutsideRange { .. }),
        _ => matches!(full.kind(), RegistryErrorKind::NoWorkerId(_)),
    };
    assert!(expected, "{full}");

    for other in [None, Some("0..3")] {
        let refused = node(other, "10.0.4.9:1").await.claim_at(NOW).await.unwrap_err();
        let RegistryErrorKind::OtherRange { recorded, .. } = refused.kind() else {
            panic!("{refused}")
        };
        assert_eq!(recorded, range);
    }
    // Once all have stopped it may change.
    for (node, lease) in held {
        node.registry().release(lease, report(NOW)).await.unwrap();
    }
    let lease = node(Some("0..3"), "10.0.4.2:1").await.claim_at(NOW + seconds(1)).await.unwrap();
    assert_eq!(lease.fence.workers.as_deref(), Some("0..3"));
}

/// W-17: when all worker ids are taken, a claim is refused with that reason; a released one can be
/// claimed again.
pub(crate) async fn a_full_registry_says_so(f: Fixture) {
    let layout: Layout = "t41-w2-s12/1ms".parse().unwrap();
    let mut held = Vec::new();
    let refusal = loop {
        assert!(held.len() <= 4, "never full");
        let mut node = f.node(&format!("10.0.2.{}:1", held.len())).await;
        node.request.layout = layout;
        match node.claim_at(NOW).await {
            Ok(lease) => held.push((node, lease)),
            Err(error) => break error,
        }
    };
    // The Java program's table begins at 1, and its tree does for us.
    let from_1 = matches!(f.kind, RegistryKind::Mysql | RegistryKind::ZkNormal);
    assert_eq!(held.len(), if from_1 { 3 } else { 4 });
    let text = refusal.to_string();
    match (f.kind, refusal.kind()) {
        (RegistryKind::ZkNormal, RegistryErrorKind::BeyondLayout { .. }) => {}
        (_, RegistryErrorKind::NoWorkerId(_)) => {
            assert!(text.contains("worker ids are in use"), "{text}");
        }
        _ => panic!("{text}"),
    }

    let (node, lease) = held.remove(1);
    let worker = lease.worker;
    node.registry().release(lease, report(NOW)).await.unwrap();
    let mut next = f.node(if f.bound() { node.who.as_str() } else { "10.0.2.9:1" }).await;
    next.request.layout = layout;
    assert_eq!(next.claim().await.worker, worker);
}

/// W-17: as many nodes as ten bits tell apart, and one more.
pub(crate) async fn the_1025th_node_is_refused(f: Fixture) {
    let from_1 = matches!(f.kind, RegistryKind::Mysql | RegistryKind::ZkNormal);
    let first = u32::from(from_1);
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(f.open().await);
    }
    let claims = (first..1024).map(|number| {
        let node = Node::on(nodes[number as usize % 4].clone(), &format!("10.1.0.{number}:1"));
        async move { again(|| node.claim_at(NOW)).await.worker }
    });
    let mut workers = BTreeSet::new();
    let mut running = tokio::task::JoinSet::new();
    for claim in claims {
        if running.len() == 4 {
            workers.insert(running.join_next().await.unwrap().unwrap());
        }
        running.spawn(claim);
    }
    workers.extend(running.join_all().await);
    assert_eq!(workers.len(), 1024 - first as usize);
    let last = f.node("10.2.0.1:1").await.claim_at(NOW).await.unwrap_err();
    // In ZooKeeper's tree it is given a number that does not fit.
    let refused = match f.kind {
        RegistryKind::ZkNormal => matches!(last.kind(), RegistryErrorKind::BeyondLayout { .. }),
        _ => matches!(last.kind(), RegistryErrorKind::NoWorkerId(_)),
    };
    assert!(refused, "{last}");
}
