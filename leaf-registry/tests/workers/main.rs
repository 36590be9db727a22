//! One conformance suite for every worker registry, on the real server.
//!
//! A new backend is one more line in `backends!` and one function that makes an empty registry.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod failover;
mod fixture;
mod java;
mod java_pools;
mod new_clusters;
mod races;
mod versions;

use std::collections::BTreeSet;

use leaf_core::WorkerId;
use leaf_snowflake::{
    ClaimRequest, Fence, FenceState, NodeSettings, RegistryErrorKind, UnknownFields,
};
use leaf_testkit::Fault;
use uuid::Uuid;

use fixture::*;
use races::{
    a_full_registry_says_so, a_range_of_worker_ids_is_kept, forty_nodes_race,
    what_was_given_back_has_one_next_holder,
};
use versions::what_a_later_version_adds_is_kept;

async fn a_worker_id_is_claimed_extended_and_given_back(f: Fixture) {
    let node = f.node("10.0.0.1:1").await;
    let mut lease = node.claim().await;
    assert_eq!((lease.fence.term, lease.fence.state), (1, FenceState::Held));
    assert_eq!(lease.fence.ceiling, NOW + seconds(600));

    let registry = node.registry();
    registry.extend(&mut lease, report(NOW + seconds(700))).await.unwrap();
    let before = lease.clone();
    assert_eq!(before.fence.ceiling, NOW + seconds(700));
    registry.extend(&mut lease, report(NOW + seconds(650))).await.unwrap();
    assert_eq!(lease.fence.ceiling, NOW + seconds(700), "a ceiling is never lowered");
    let records = registry.workers().await.unwrap();
    let [record] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!((record.worker, record.remark.as_deref()), (lease.worker, None));
    assert_eq!(record.holder.as_ref(), Some(&node.who));
    assert_eq!(record.fence.as_ref(), Some(&lease.fence));

    let worker = lease.worker;
    registry.release(lease, report(NOW + seconds(5))).await.unwrap();
    let record = registry.workers().await.unwrap().remove(0);
    let fence = record.fence.unwrap();
    assert_eq!((fence.state, fence.ceiling), (FenceState::Released, NOW + seconds(5)));

    // Where worker ids belong to names, another instance of the same name.
    let next = f.node(if f.bound() { "10.0.0.1:1" } else { "10.0.0.2:1" }).await;
    let lease = next.claim_at(NOW + seconds(5)).await.unwrap();
    assert_eq!((lease.worker, lease.fence.floor), (worker, NOW + seconds(5)), "at once, no later");
    assert_eq!(lease.fence.term, 2);
}

/// W-09: a crashed node goes on where its state file says, under its own worker id.
async fn a_restart_keeps_the_worker_id_at_once(f: Fixture) {
    for name in ["10.0.0.1:1", "10.0.0.2:1"] {
        f.node(name).await.claim().await;
    }
    let node = f.node("10.0.0.3:1").await;
    let lease = node.claim().await;

    let again = node.after_a_crash(&lease, NOW + millis(900));
    let next = node.claim_by(&ClaimRequest { now: NOW + seconds(2), ..again }).await.unwrap();

    assert_eq!((next.worker, next.fence.floor), (lease.worker, NOW + millis(900)));
    assert_eq!(next.fence.term, lease.fence.term + 1);
}

/// W-02, W-05: a node that was taken over gets `Lost` from every later write, and these writes
/// change nothing.
async fn the_loser_is_told(f: Fixture) {
    let small = async |name: &str| {
        let mut node = f.node(name).await;
        node.request.layout = "t41-w1-s12/1ms".parse().unwrap();
        node
    };
    let old = small("10.0.0.1:1").await;
    let mut lease = old.claim().await;
    if !f.bound() {
        // The other of the two worker ids lives.
        let other = small("10.0.0.2:1").await;
        let mut held = other.claim().await;
        other.registry().extend(&mut held, report(NOW + seconds(86_400))).await.unwrap();
    }

    let at = NOW + seconds(600);
    let new = small("10.0.0.1:1").await;
    let taken = new.claim_at(at).await.unwrap();
    assert_eq!(
        (taken.worker, taken.fence.floor),
        (lease.worker, at),
        "above all that the first issued"
    );

    for _ in 0..2 {
        let lost = old.registry().extend(&mut lease, report(at + seconds(600))).await;
        assert_eq!(kind(lost), RegistryErrorKind::Lost);
    }
    assert_eq!(kind(old.registry().release(lease, report(at)).await), RegistryErrorKind::Lost);
    let records = old.registry().workers().await.unwrap();
    let record = records.iter().find(|record| record.worker == taken.worker).unwrap();
    assert_eq!(record.fence.as_ref(), Some(&taken.fence), "as the second wrote it");
}

/// A claim of a held worker id is told to wait if the ceiling is near, and refused if it is far
/// ahead. Neither writes anything.
async fn a_strangers_ceiling_is_a_floor(f: Fixture) {
    let first = f.node("10.0.0.1:1").await;
    let lease = first.claim().await;
    let record = first.registry().workers().await.unwrap();

    let second = f.node("10.0.0.1:1").await;
    if f.bound() {
        let near = NOW + seconds(590);
        let at = NOW + seconds(599);
        assert_eq!(kind(second.claim_at(near).await), RegistryErrorKind::NotYet { at });
        // W-17: a loop of crashes must not push the ceiling.
        for _ in 0..20 {
            let crashing = f.node("10.0.0.1:1").await;
            let refused = kind(crashing.claim_at(NOW + seconds(1)).await);
            let (last_report, until) = (seconds(1), lease.fence.ceiling);
            assert_eq!(refused, RegistryErrorKind::InUse { last_report: Some(last_report), until });
        }
    } else {
        let lease = second.claim_at(NOW + seconds(590)).await.unwrap();
        assert_ne!(lease.worker, record[0].worker, "there is no need to wait");
        second.registry().release(lease, report(NOW)).await.unwrap();
    }
    let now = first.registry().workers().await.unwrap();
    assert_eq!(now[0], record[0]);
}

/// W-06: when an answer is lost at any point of a claim or a report, the next one finds out what
/// was written.
async fn ambiguous_answers_are_sorted_out(f: Fixture) {
    for swallowed in 0..7 {
        let (proxy, open) = f.behind_proxy().await;
        let node = Node::on(open, &format!("10.0.3.{swallowed}:1"));
        // The connection is made before.
        node.registry().workers().await.unwrap();
        let claimed = async {
            proxy.set(Fault::SwallowAfter(swallowed));
            let answer = tokio::time::timeout(millis(300), node.claim_at(NOW)).await;
            proxy.cut().await;
            answer
        };
        let mut lease = match claimed.await {
            Ok(Ok(lease)) => lease,
            _ => again(|| node.claim_at(NOW)).await,
        };
        assert_eq!(lease.fence.term, 1, "{swallowed}: found again, not made twice");
        assert_eq!(lease.fence.nonce, node.request.nonce);
        assert!(lease.fence.floor <= NOW + seconds(1));

        proxy.set(Fault::SwallowAfter(swallowed));
        let extended = node.registry().extend(&mut lease, report(NOW + seconds(601)));
        let extended = tokio::time::timeout(millis(300), extended).await;
        proxy.cut().await;
        if !matches!(extended, Ok(Ok(()))) {
            assert_eq!(lease.fence.ceiling, NOW + seconds(600), "{swallowed}: not confirmed");
        }
        for _ in 0..100 {
            match node.registry().extend(&mut lease, report(NOW + seconds(602))).await {
                Ok(()) => break,
                Err(error) => assert!(error.retryable(), "{swallowed}: {error}"),
            }
            tokio::time::sleep(millis(20)).await;
        }
        assert_eq!(lease.fence.ceiling, NOW + seconds(602));
    }
    let workers = f.open().await.registry.workers().await.unwrap();
    let names: BTreeSet<_> = workers.iter().map(|worker| worker.holder.clone()).collect();
    assert_eq!(names.len(), 7);
    if f.bound() {
        assert_eq!(workers.len(), 7, "no node was doubled");
    }
}

/// Until it succeeds; what fails must be worth another try.
pub(crate) async fn again<T, F>(attempt: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, leaf_snowflake::RegistryError>>,
{
    for _ in 0..200 {
        match tokio::time::timeout(seconds(10), attempt()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(error)) => assert!(error.retryable(), "{error}"),
            Err(_) => {}
        }
        tokio::time::sleep(millis(20)).await;
    }
    panic!("never");
}

/// W-04: the old holder of a record that was deleted and made again cannot write to it, whatever
/// its version.
async fn a_zombie_cannot_write(f: Fixture) {
    let zombie = f.node("10.0.0.1:1").await;
    let mut lease = zombie.claim().await;
    f.tamper(lease.worker, None).await;
    let mut lost = async || {
        let extended = zombie.registry().extend(&mut lease, report(NOW + seconds(700))).await;
        assert_eq!(kind(extended), RegistryErrorKind::Lost);
    };
    lost().await;
    let fence = Fence { nonce: Uuid::new_v4(), instance: Uuid::new_v4(), ..request_fence() };
    f.make(zombie_worker(&f), &fence).await;
    lost().await;
    let records = zombie.registry().workers().await.unwrap();
    assert_eq!(records[0].fence.as_ref(), Some(&fence), "untouched");
}

/// The worker id that the first node of an empty registry gets.
fn zombie_worker(f: &Fixture) -> WorkerId {
    WorkerId::new(if matches!(f.server, Server::Mysql(..)) { 1 } else { 0 })
}

fn request_fence() -> Fence {
    let request = request();
    Fence {
        term: 1,
        floor: NOW,
        ceiling: NOW + request.offline_for,
        reported_at: NOW,
        instance: request.instance,
        nonce: request.nonce,
        layout: request.layout.shape(),
        epoch_ms: request.layout.epoch(),
        workers: None,
        state: FenceState::Held,
        unknown: UnknownFields::default(),
    }
}

/// W-12, in the registry: of two processes with a copy of one lease, the first to report keeps it.
async fn of_two_clones_one_is_told(f: Fixture) {
    let node = f.node("10.0.0.1:1").await;
    let mut lease = node.claim().await;
    let mut clone = lease.clone();
    node.registry().extend(&mut lease, report(NOW + seconds(601))).await.unwrap();
    let lost = node.registry().extend(&mut clone, report(NOW + seconds(602))).await;
    assert_eq!(kind(lost), RegistryErrorKind::Lost);
    node.registry().extend(&mut lease, report(NOW + seconds(603))).await.unwrap();
}

async fn a_damaged_record_is_named_and_mended(f: Fixture) {
    let node = f.node("10.0.0.1:1").await;
    let lease = node.claim().await;
    let worker = lease.worker;
    f.tamper(worker, Some(r#"{"holder":"somebody"}"#)).await;

    let records = node.registry().workers().await.unwrap();
    let remark = records[0].remark.clone().unwrap();
    assert!(remark.contains("damaged: ") && records[0].needs_repair, "{remark}");
    let next = f.node("10.0.0.1:1").await;
    match next.claim_at(NOW).await {
        Ok(other) => assert_ne!(other.worker, worker, "the others are in order"),
        Err(error) => {
            assert_eq!(*error.kind(), RegistryErrorKind::Damaged, "{error}");
            assert!(error.to_string().contains("repair the worker id"), "{error}");
        }
    }

    let registry = node.registry();
    let free = registry.repair_worker(worker, node_settings(NOW)).await.unwrap();
    assert!(free >= NOW + seconds(600), "whoever held it may live by a ceiling that is not known");
    let records = node.registry().workers().await.unwrap();
    let record = records.iter().find(|record| record.worker == worker).unwrap();
    assert_eq!(record.fence.as_ref().unwrap().state, FenceState::Released);
    assert_eq!(record.remark, None, "in order again");
    let again = kind(registry.repair_worker(worker, node_settings(NOW)).await);
    assert_eq!(again, RegistryErrorKind::Refused, "nothing is wrong any more");
    // A second one, too: some registries allow each name only once.
    let other = f.node("10.0.0.5:1").await.claim().await.worker;
    f.tamper(other, Some("{}")).await;
    registry.repair_worker(other, node_settings(NOW)).await.unwrap();
    if f.bound() {
        let owner = f.node("10.0.0.1:1").await.claim_at(free).await.unwrap();
        assert_eq!((owner.worker, owner.fence.floor), (worker, free));
    }
    let mut zombie = lease;
    let lost = node.registry().extend(&mut zombie, report(NOW + seconds(700))).await;
    assert_eq!(kind(lost), RegistryErrorKind::Lost);
}

async fn operators_release_and_retire(f: Fixture) {
    let dead = f.node("10.0.0.1:1").await;
    let mut lease = dead.claim().await;
    let worker = lease.worker;
    let registry = dead.registry();

    let lives = registry.release_worker(worker, node_settings(NOW + seconds(5))).await.unwrap_err();
    assert!(lives.to_string().contains("a moment ago: stop that process first"), "{lives}");
    for none in [1024, 5000] {
        let refused =
            registry.retire_worker(WorkerId::new(none), node_settings(NOW)).await.unwrap_err();
        assert!(refused.to_string().contains("to 1023"), "{refused}");
    }
    // Its ids may have run ahead of its clock by the tolerance.
    let settings = NodeSettings { tolerance: seconds(20), ..node_settings(NOW + seconds(60)) };
    let free = registry.release_worker(worker, settings).await.unwrap();
    assert!(free > NOW + seconds(90) && free < NOW + seconds(110), "{free}");
    assert_eq!(
        kind(dead.registry().extend(&mut lease, report(NOW + seconds(700))).await),
        RegistryErrorKind::Lost,
        "it was not dead after all"
    );
    let again = registry.release_worker(worker, node_settings(NOW)).await.unwrap_err();
    assert!(again.to_string().contains("released already"), "{again}");
    let next = f.node("10.0.0.1:1").await;
    let lease = next.claim_at(free).await.unwrap();
    assert_eq!((lease.worker, lease.fence.floor), (worker, free));

    registry.retire_worker(worker, node_settings(NOW)).await.unwrap();
    let mut lost = lease;
    let extended = next.registry().extend(&mut lost, report(NOW + seconds(900))).await;
    assert_eq!(kind(extended), RegistryErrorKind::Lost);
    let third = f.node("10.0.0.1:1").await;
    let much_later = NOW + seconds(86_400);
    // Also where worker ids belong to names: then the name gets another one, and keeps that.
    let another = third.claim_at(much_later).await.unwrap();
    assert_ne!(another.worker, worker);
    third.registry().release(another.clone(), report(much_later)).await.unwrap();
    let fourth = f.node("10.0.0.1:1").await;
    if f.bound() {
        assert_eq!(fourth.claim_at(much_later).await.unwrap().worker, another.worker);
    }
}

/// A node ran once with its clock a year ahead. It must get another worker id; a bound registry
/// gives one only after the first was retired.
async fn a_worker_id_of_the_future_is_retired(f: Fixture) {
    let ahead = NOW + seconds(365 * 86_400);
    let node = f.node("10.0.0.1:1").await;
    let lease = node.claim_at(ahead).await.unwrap();
    let worker = lease.worker;
    drop((node, lease));

    let again = f.node("10.0.0.1:1").await;
    let now = NOW + seconds(60);
    if f.bound() {
        let refused = kind(again.claim_at(now).await);
        assert!(matches!(refused, RegistryErrorKind::FloorAhead { .. }), "{refused:?}");
        again.registry().retire_worker(worker, node_settings(now)).await.unwrap();
    }
    let another = again.claim_at(now).await.unwrap();
    assert_ne!(another.worker, worker);
    assert!(another.fence.floor < now + seconds(60), "{}", another.fence.floor);
}

/// Ids of two layouts can be equal, so a registry accepts one layout only.
async fn another_layout_is_refused(f: Fixture) {
    f.node("10.0.0.1:1").await.claim().await;
    for name in ["10.0.0.1:1", "10.0.0.2:1"] {
        let mut other = f.node(name).await;
        other.request.layout = "t41-w8-s14/1ms".parse().unwrap();
        let refused = kind(other.claim_at(NOW + seconds(900)).await);
        assert!(matches!(refused, RegistryErrorKind::OtherLayout { .. }), "{name}: {refused:?}");
    }
}

/// A registry that lost a few reports, as in a failover to a lagging replica, still accepts the
/// holders of its records.
async fn a_record_that_fell_back_is_still_its_holders(f: Fixture) {
    let node = f.node("10.0.0.1:1").await;
    let mut lease = node.claim().await;
    node.registry().extend(&mut lease, report(NOW + seconds(601))).await.unwrap();
    f.keep_a_copy(lease.worker).await;
    for ceiling in 602..605 {
        node.registry().extend(&mut lease, report(NOW + seconds(ceiling))).await.unwrap();
    }
    f.put_the_copy_back(lease.worker).await;
    node.registry().extend(&mut lease, report(NOW + seconds(603))).await.unwrap();
    assert_eq!(lease.fence.ceiling, NOW + seconds(604), "what was confirmed once stands");
    let records = node.registry().workers().await.unwrap();
    assert_eq!(records[0].fence.as_ref(), Some(&lease.fence));
}

/// Live nodes are seen with their address, and not when they have gone.
async fn live_nodes_are_seen(f: Fixture) {
    let mut options = f.options.clone();
    options.address = Some(leaf_snowflake::Identity::parse("10.9.9.9:8080").unwrap());
    let one = Node::on(f.open_with(&options).await, "10.0.0.1:1");
    let two = f.node("10.0.0.2:1").await;
    let (first, second) = (one.claim().await, two.claim().await);
    let seen = async || {
        let peers = two.registry().peers().await.unwrap();
        let mut seen: Vec<_> =
            peers.iter().map(|peer| format!("{} {}", peer.identity, peer.address)).collect();
        seen.sort();
        seen
    };
    let wait = async |expected: &[&str]| {
        for _ in 0..1000 {
            if seen().await == expected {
                return;
            }
            tokio::time::sleep(millis(20)).await;
        }
        assert_eq!(seen().await, expected);
    };
    wait(&["10.0.0.1:1 10.9.9.9:8080", "10.0.0.2:1 10.0.0.2:1"]).await;
    one.registry().release(first, report(NOW)).await.unwrap();
    wait(&["10.0.0.2:1 10.0.0.2:1"]).await;
    two.registry().release(second, report(NOW)).await.unwrap();
    wait(&[]).await;
}

/// One test per check and backend.
macro_rules! backends {
    ($($backend:ident),*; $checks:tt) => { $( backends!(@module $backend $checks); )* };
    (@module $backend:ident { $($check:ident),* $(,)? }) => {
        mod $backend {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $check() {
                    crate::$check(crate::$backend().await).await;
                }
            )*
        }
    };
}

backends!(sqlite, mysql, postgres, etcd, zk_normal, zk_recycle; {
    a_worker_id_is_claimed_extended_and_given_back,
    a_restart_keeps_the_worker_id_at_once,
    forty_nodes_race,
    what_was_given_back_has_one_next_holder,
    a_full_registry_says_so,
    a_range_of_worker_ids_is_kept,
    the_loser_is_told,
    a_strangers_ceiling_is_a_floor,
    a_zombie_cannot_write,
    of_two_clones_one_is_told,
    a_damaged_record_is_named_and_mended,
    what_a_later_version_adds_is_kept,
    operators_release_and_retire,
    a_worker_id_of_the_future_is_retired,
    another_layout_is_refused,
    live_nodes_are_seen,
});

/// What takes its time: with `scripts/test --full`.
mod full {
    macro_rules! tests {
        ($($backend:ident),*) => {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $backend() {
                if std::env::var_os("LEAF_TEST_FULL").is_some() {
                    crate::races::the_1025th_node_is_refused(crate::$backend().await).await;
                }
            })*
        };
    }

    tests!(sqlite, mysql, postgres, etcd, zk_normal, zk_recycle);
}

/// Not for ZooKeeper: what a quorum has acknowledged does not fall back.
mod fallback {
    backends!(sqlite, mysql, postgres, etcd; {
        a_record_that_fell_back_is_still_its_holders,
    });
}

/// Checks of faults that only a server can cause.
mod server {
    backends!(mysql, postgres, etcd, zk_normal, zk_recycle; {
        ambiguous_answers_are_sorted_out,
    });
}

/// Java Leafs in the same registry.
mod beside_java {
    macro_rules! tests {
        ($tests:ident; $($backend:ident: $($check:ident),*;)*) => {
            $(mod $backend {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $check() {
                    crate::$tests::$check(crate::fixture::$backend().await).await;
                })*
            })*
        };
    }

    tests! {
        java;
        zk_normal: records_are_continued_and_handed_back, a_live_one_is_refused,
            one_on_our_own_address_is_noticed, ids_repeat_neither_beside_nor_after_it,
            a_name_that_java_cannot_read_is_refused, numbers_are_made_only_when_they_are_needed,
            what_was_never_made_is_left_alone;
        mysql: records_are_continued_and_handed_back, a_live_one_is_refused,
            one_on_our_own_address_is_noticed, ids_repeat_neither_beside_nor_after_it,
            restarts_burn_no_number, tables_made_by_hand_are_new;
        postgres: tables_made_by_hand_are_new;
    }

    tests! {
        java_pools;
        zk_recycle: of_its_pools_only_what_is_safe_is_taken,
            a_dead_nodes_worker_id_among_java_leafs, a_tree_without_its_second_pool_is_completed,
            a_lost_worker_id_is_put_back_by_an_operator,
            their_worker_ids_are_adopted_when_they_are_gone, one_in_both_pools_is_sorted_out,
            ids_of_its_pools_repeat_neither_beside_nor_after_us;
    }
}
