//! Leases: takeovers, zombies, lost answers, outages and full pools. The registry is in memory, the
//! clocks are moved by the test.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Clock, Health, Id, ManualClock, WorkerId};
use leaf_snowflake::{
    ClaimPolicy, ClaimRequest, FenceState, Identity, MemoryFenceStore, Registry, RegistryErrorKind,
    SnowflakeErrorKind, SnowflakeGenerator, StoreFault,
};
use leaf_testkit::Slices;

use crate::support::*;

/// W-01: fifty nodes claim at once; W-17: a full pool is a clear error.
#[tokio::test(start_paused = true)]
async fn each_node_gets_its_own_worker_id_until_there_is_none() {
    let cluster = Cluster::new();
    let claims: Vec<_> = (0..1024)
        .map(|node| {
            let config = config(&format!("node:{node}"), &cluster.clock, None);
            let registry = Arc::clone(&cluster.store);
            tokio::spawn(async move { open(&registry, config).await })
        })
        .collect();
    let mut workers = HashSet::new();
    let mut nodes = Vec::new();
    for claim in claims {
        let flakes = claim.await.unwrap().unwrap();
        assert!(workers.insert(flakes.worker().unwrap()));
        nodes.push(flakes);
    }

    let config = config("late:1", &cluster.clock, None);
    let error = open(&cluster.store, config).await.unwrap_err();
    assert!(error.to_string().contains("all 1024 worker ids are in use"), "{error}");
    nodes[7].close().await;
    let late = open(&cluster.store, crate::support::config("late:1", &cluster.clock, None)).await;
    assert_eq!(late.unwrap().worker().unwrap().get(), 7, "what was given back is free at once");
}

/// W-17: a crash loop does not eat the pool, nor push its own floor.
#[test]
fn an_hour_of_crashes_keeps_its_worker_id() {
    let cluster = Cluster::new();
    let mut ids = HashSet::new();

    for _ in 0..1800 {
        until_killed(async || take_all(&cluster.open("a").await, 3, &mut ids));
        cluster.clock.advance(seconds(2));
    }

    let records = until_killed(async || cluster.workers().await);
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].fence.as_ref().unwrap().term, 1800);
}

/// W-02, W-05: the worker id of a frozen node was taken over. Whatever the node does when it thaws,
/// no id repeats; then its lease is lost for good.
#[tokio::test(start_paused = true)]
async fn a_frozen_node_whose_id_was_taken_stops_for_good() {
    let clock = Arc::new(ManualClock::at(START));
    let policy = ClaimPolicy { bound: true, ..ClaimPolicy::default() };
    let registry = Registry::new(MemoryFenceStore::default(), policy, None);
    let open = async |name: &str| {
        let mut config = config(name, &clock, None);
        config.layout = two_workers();
        SnowflakeGenerator::open(registry.clone(), config).await.unwrap()
    };
    let frozen = open("a:1").await;
    let _other = open("b:1").await;
    let mut ids: HashSet<_> = (0..1000).map(|_| frozen.try_next().unwrap()).collect();

    // No await in between: neither keeper runs, as under SIGSTOP.
    clock.advance(seconds(3600));
    let successor = open("c:1").await;
    assert_eq!(successor.worker(), frozen.worker(), "both ids are used, the first is recycled");

    for _ in 0..1000 {
        if let Ok(id) = frozen.try_next() {
            assert!(ids.insert(id));
        }
        assert!(ids.insert(successor.next().await.unwrap()));
    }
    pass(&clock, seconds(6)).await;
    assert!(matches!(frozen.try_next().unwrap_err().kind(), SnowflakeErrorKind::Lost));
    assert!(!frozen.health().can_answer());
    assert_eq!(frozen.view().leases_lost, 1);
    successor.next().await.unwrap();
}

/// W-05: where the registry allows it, a lost worker id is replaced, and ids go on increasing.
#[tokio::test(start_paused = true)]
async fn a_lost_worker_id_is_replaced_where_the_registry_allows_it() {
    let cluster = Cluster::new();
    let open = async |name: &str| {
        let mut config = cluster.config(name);
        config.layout = "t41-w2-s12/1ms".parse().unwrap();
        open(&cluster.store, config).await.unwrap()
    };
    let frozen = open("a").await;
    let _others = [open("b").await, open("c").await, open("d").await];
    let before = frozen.try_next().unwrap();
    let lost = frozen.worker().unwrap();
    // Five nodes, four ids: the fifth takes the one whose time is up.
    cluster.clock.advance(seconds(601));
    let thief = open("e").await;
    assert_eq!(thief.worker(), Some(lost));
    let one_is_free = &_others[1];
    one_is_free.close().await;

    cluster.pass(seconds(6)).await;

    let view = frozen.view();
    assert_eq!((view.leases_lost, view.health.clone()), (1, Health::Ready), "{view:?}");
    assert_eq!(
        view.worker,
        one_is_free.layout().decode(frozen.next().await.unwrap()).map(|p| p.worker)
    );
    assert_ne!(frozen.worker(), Some(lost));
    assert!(frozen.next().await.unwrap() > before);
    let text = std::fs::read_to_string(cluster.directory.path().join("a")).unwrap();
    let written = format!("\"worker\":{}", frozen.worker().unwrap());
    assert!(text.contains(&written), "the file is about the new one");
}

/// W-03: ids were taken before a pause and are answered after it. The successor starts exactly at
/// the old holder's ceiling, when its clock is there, and both go on issuing: no timestamp is used
/// by both.
#[test]
fn ids_that_are_answered_late_are_nobody_elses() {
    for tick in 0..40 {
        until_killed(async || {
            let cluster = Cluster::new();
            let open = async |name: &str| {
                let mut config = cluster.config(name);
                config.layout = two_workers();
                config.offline_for = seconds(20);
                open(&cluster.store, config).await
            };
            let (slow, _other) = (open("a").await.unwrap(), open("b").await.unwrap());
            let mut slices = Slices::default();
            let mut record = |flakes: &SnowflakeGenerator, holder| {
                if let Ok(id) = flakes.try_next() {
                    let parts = flakes.layout().decode(id).unwrap();
                    slices.record(parts.worker.get(), holder, parts.timestamp.get()).unwrap();
                    return true;
                }
                false
            };
            let ceiling = slow.view().registry_ceiling;
            // Up to its ceiling it lives without its registry, and takes ids to the last moment.
            cluster.store.set_fault(StoreFault::Away);
            while cluster.clock.wall_millis() + seconds(1) < ceiling {
                cluster.pass(millis(500)).await;
                record(&slow, 0);
            }
            while cluster.clock.wall_millis() + millis(10 + tick) < ceiling {
                cluster.pass(millis(1)).await;
                record(&slow, 0);
            }
            cluster.store.set_fault(StoreFault::None);

            // Nobody polls its keeper from here on: it is frozen in the middle of an answer.
            cluster.clock.set_wall(ceiling);
            let successor = open("c").await.unwrap();
            assert_eq!(successor.worker(), slow.worker());
            assert!(record(&successor, 1), "it starts at the ceiling");
            for _ in 0..50 {
                record(&slow, 0);
                record(&successor, 1);
                cluster.clock.advance(millis(1));
            }
            assert_eq!(slices.holders(slow.worker().map_or(0, WorkerId::get)), 2);
        });
    }
}

/// W-04: a zombie writes nothing: it can neither extend nor release the lease.
#[tokio::test(start_paused = true)]
async fn a_zombie_cannot_write() {
    let cluster = Cluster::new();
    let claim = async |name: &str, at: u64| {
        let request = request(START + seconds(at));
        let who = leaf_snowflake::Identity::parse(name).unwrap();
        cluster.registry().claim(&who, &request).await.unwrap()
    };
    let mut zombie = claim("a", 0).await;
    for filler in 1..1024 {
        claim(&format!("b:{filler}"), 0).await;
    }
    let successor = claim("c", 3600).await;
    assert_eq!(successor.worker, zombie.worker);
    let record = async || {
        let records = cluster.workers().await;
        records[0].fence.clone().unwrap()
    };
    let before = record().await;

    let extended = cluster.registry().extend(&mut zombie, report(START + seconds(9999))).await;
    assert_eq!(*extended.unwrap_err().kind(), RegistryErrorKind::Lost);
    let released = cluster.registry().release(zombie, report(START)).await;
    assert_eq!(*released.unwrap_err().kind(), RegistryErrorKind::Lost);

    assert_eq!(record().await, before);
}

/// W-06: an extension whose answer was lost does not raise this node's ceiling. The next extension
/// recognizes the earlier write as its own.
#[tokio::test(start_paused = true)]
async fn an_ambiguous_extension_raises_no_ceiling_and_loses_no_lease() {
    let cluster = Cluster::new();
    let flakes = cluster.open("a").await;
    let ceiling = flakes.view().registry_ceiling;

    cluster.store.set_fault(StoreFault::AnswersLost);
    cluster.pass(seconds(30)).await;
    let recorded = {
        cluster.store.set_fault(StoreFault::None);
        let records = cluster.workers().await;
        cluster.store.set_fault(StoreFault::AnswersLost);
        records[0].fence.as_ref().unwrap().ceiling
    };
    assert!(recorded > ceiling + seconds(20), "the writes arrived");
    assert_eq!(flakes.view().registry_ceiling, ceiling, "but nobody said so");
    assert!(matches!(flakes.health(), Health::Degraded(_)));

    cluster.store.set_fault(StoreFault::None);
    cluster.pass(seconds(4)).await;
    assert_eq!(flakes.health(), Health::Ready);
    assert!(flakes.view().registry_ceiling >= recorded, "a ceiling is never lowered");
}

/// W-12: of two clones of a lease one dies at the first report.
#[tokio::test(start_paused = true)]
async fn of_two_clones_one_dies() {
    let cluster = Cluster::new();
    let who = leaf_snowflake::Identity::parse("a:1").unwrap();
    let mut lease = cluster.registry().claim(&who, &request(START)).await.unwrap();
    let mut clone = lease.clone();

    cluster.registry().extend(&mut lease, report(START + seconds(700))).await.unwrap();
    let error =
        cluster.registry().extend(&mut clone, report(START + seconds(701))).await.unwrap_err();

    assert_eq!(*error.kind(), RegistryErrorKind::Lost);
}

/// W-08: the node gets another lease while its clock is set back. It still has to wait for the
/// clock.
#[tokio::test(start_paused = true)]
async fn a_new_lease_does_not_lift_the_wait_for_the_clock() {
    let cluster = Cluster::new();
    cluster.live_and_die("a");
    cluster.store.set_fault(StoreFault::Away);
    let alone = cluster.open("a").await;
    let last = alone.try_next().unwrap();
    cluster.clock.set_wall(START - seconds(3600));
    cluster.pass(millis(500)).await;
    assert!(alone.try_next().is_err());

    cluster.store.forget();
    cluster.store.set_fault(StoreFault::None);
    for _ in 0..100 {
        cluster.pass(millis(100)).await;
        assert!(alone.try_next().is_err(), "the clock is still an hour behind");
    }

    cluster.clock.set_wall(START + seconds(60));
    // A clock that was set ahead is looked at for a while before it is claimed by.
    for _ in 0..5 {
        cluster.pass(seconds(3)).await;
    }
    assert!(alone.try_next().unwrap() > last);
    assert_eq!(alone.view().leases_lost, 1);
}

/// A floor that moves while a node waits for it belongs to a live holder, so the wait ends.
#[tokio::test(start_paused = true)]
async fn a_live_holder_is_not_waited_for() {
    let cluster = Cluster::new();
    let short = |name: &str| {
        let mut config = cluster.config(name);
        config.layout = two_workers();
        config.offline_for = seconds(10);
        config
    };
    let nodes = [
        open(&cluster.store, short("a")).await.unwrap(),
        open(&cluster.store, short("b")).await.unwrap(),
    ];
    let third = tokio::spawn({
        let (registry, config) = (Arc::clone(&cluster.store), short("c"));
        async move { open(&registry, config).await }
    });

    cluster.pass(seconds(40)).await;

    let error = third.await.unwrap().unwrap_err();
    assert!(matches!(registry_error(&error), RegistryErrorKind::InUse { .. }), "{error}");
    assert!(nodes.iter().all(|node| node.try_next().is_ok()));
}

/// The ceiling of a live node whose report is late comes first. When it moves, the claimant waits
/// for the dead node's.
#[tokio::test(start_paused = true)]
async fn a_late_report_of_a_live_node_does_not_hide_a_dead_one() {
    let cluster = Cluster::new();
    let claim = async |name: &str, ceiling: Duration| {
        let layout = two_workers();
        let request = ClaimRequest { layout, offline_for: ceiling, ..request(START) };
        cluster.registry().claim(&Identity::parse(name).unwrap(), &request).await.unwrap()
    };
    let dead = claim("a", seconds(10)).await;
    let mut live = claim("b", seconds(5)).await;
    let mut config = cluster.config("c");
    config.layout = two_workers();
    config.offline_for = seconds(10);
    config.startup_wait = seconds(15);
    let store = Arc::clone(&cluster.store);
    let third = tokio::spawn(async move { open(&store, config).await });

    cluster.pass(seconds(2)).await;
    cluster.registry().extend(&mut live, report(START + seconds(60))).await.unwrap();
    cluster.pass(seconds(20)).await;

    assert_eq!(third.await.unwrap().unwrap().worker(), Some(dead.worker));
}

/// W-16: callers do not notice an outage of the registry up to the registry ceiling. There the ids
/// stop, so none repeats.
#[tokio::test(start_paused = true)]
async fn ids_flow_without_the_registry_up_to_the_ceiling_and_no_further() {
    let cluster = Cluster::new();
    let flakes = cluster.open("a").await;

    cluster.store.set_fault(StoreFault::Away);
    cluster.pass(seconds(590)).await;
    flakes.next().await.unwrap();
    assert!(matches!(flakes.health(), Health::Degraded(_)), "{}", flakes.health());

    cluster.pass(seconds(15)).await;
    let error = flakes.next().await.unwrap_err();
    assert!(matches!(error.kind(), SnowflakeErrorKind::CeilingReached), "{error}");
    assert!(!flakes.health().can_answer());

    cluster.store.set_fault(StoreFault::None);
    cluster.pass(seconds(6)).await;
    flakes.next().await.unwrap();
    assert_eq!(flakes.health(), Health::Ready);
}

/// W-18: a node whose clock is an hour ahead takes the worker id of a live node, which is frozen
/// when its report is due. Then the clock is set right, and both issue until their slices would
/// have met. Every timestamp has one holder; the live node is fenced off and finds another worker
/// id.
#[test]
fn a_clock_that_is_ahead_takes_no_ids_from_a_live_node() {
    until_killed(async || {
        let cluster = Cluster::new();
        let narrow = |mut config: leaf_snowflake::SnowflakeConfig| {
            config.layout = two_workers();
            config.offline_for = seconds(60);
            config.max_step_forward = seconds(1);
            config
        };
        let live = open(&cluster.store, narrow(cluster.config("a"))).await.unwrap();
        let _other = open(&cluster.store, narrow(cluster.config("b"))).await.unwrap();
        let ahead = Arc::new(ManualClock::at(cluster.clock.wall_millis() + seconds(3600)));
        let mut slices = Slices::default();
        let mut record = |flakes: &SnowflakeGenerator, holder| {
            let Ok(id) = flakes.try_next() else { return false };
            let parts = flakes.layout().decode(id).unwrap();
            slices.record(parts.worker.get(), holder, parts.timestamp.get()).unwrap();
            true
        };
        assert!(record(&live, 0));
        let own = live.worker().unwrap();

        let thief = open(&cluster.store, narrow(config("c", &ahead, None))).await.unwrap();
        assert_eq!(thief.worker(), Some(own));
        assert!(record(&thief, 1));
        // Set right: the thief's ids are an hour ahead, and so it stops until that hour is over.
        ahead.set_wall(cluster.clock.wall_millis());
        let mut issued = [0, 0];
        for step in 0..3700 * 4 {
            let by = millis(250);
            ahead.advance(by);
            cluster.clock.advance(by);
            // The live one does not hear of its loss for a while.
            if step > 8 {
                tokio::time::sleep(by).await;
            }
            for (holder, flakes) in [&live, &thief].into_iter().enumerate() {
                if flakes.worker() == Some(own) && record(flakes, holder as u64) {
                    issued[holder] += 1;
                }
            }
        }
        assert_eq!(live.view().leases_lost, 1);
        assert!(issued[0] > 0, "the live one went on until it heard");
        assert!(issued[1] > 100, "the thief went on after its hour: {issued:?}");
        assert_eq!(slices.holders(own.get()), 2);
    });
}

/// A holder was frozen for longer than a report interval, so an operator may have freed its worker
/// id. It asks the registry before it raises its local ceiling, also if the registry is slow.
#[tokio::test(start_paused = true)]
async fn a_thawed_holder_asks_before_it_goes_on() {
    let clock = Arc::new(ManualClock::at(START));
    let home = tempfile::tempdir().unwrap();
    let registry = Arc::new(Odd { answers_after: millis(700), ..Odd::default() });
    let mut config = config("a:1", &clock, Some(home.path()));
    config.offline_for = seconds(600);
    let flakes = SnowflakeGenerator::open(Arc::clone(&registry), config).await.unwrap();
    pass(&clock, seconds(10)).await;
    flakes.try_next().unwrap();

    // No await in between: the keeper does not run.
    clock.advance(seconds(30));
    let before = flakes.view().local_ceiling;
    pass(&clock, millis(600)).await;
    assert_eq!(flakes.view().local_ceiling, before, "not before the registry has answered");
    assert!(flakes.try_next().is_err());

    pass(&clock, seconds(3)).await;
    flakes.try_next().unwrap();

    // A registry that does not answer is waited for as long as one request may take, and no longer.
    registry.memory.set_fault(StoreFault::Away);
    clock.advance(seconds(30));
    pass(&clock, seconds(3)).await;
    flakes.try_next().unwrap();
}

/// W-05: while a report is on its way, its record is deleted and the same node claims the worker id
/// again. The report arrives at the new record and is refused.
#[tokio::test(start_paused = true)]
async fn a_report_that_arrives_at_a_record_made_anew_is_refused() {
    let store = Arc::new(Odd { answers_after: seconds(5), ..Odd::default() });
    let registry = Registry::from(Arc::clone(&store));
    let (who, first) = (Identity::parse("a:1").unwrap(), request(START));
    let mut lease = registry.claim(&who, &first).await.unwrap();
    let late = tokio::spawn({
        let registry = registry.clone();
        async move { registry.extend(&mut lease, report(START + seconds(700))).await }
    });
    tokio::time::sleep(seconds(1)).await;

    store.memory.forget();
    let second = request(START + seconds(1));
    let second = ClaimRequest { instance: first.instance, ..second };
    let again = registry.claim(&who, &second).await.unwrap();

    assert_eq!(*late.await.unwrap().unwrap_err().kind(), RegistryErrorKind::Lost);
    let views = registry.workers().await.unwrap();
    assert_eq!(views.len(), 1);
    assert_eq!(views[0].fence.as_ref(), Some(&again.fence), "as the second claim wrote it");
}

/// W-19: after a clean stop the worker id is free at once, from one past the last timestamp used.
#[tokio::test(start_paused = true)]
async fn a_clean_stop_costs_no_time() {
    let cluster = Cluster::new();
    let mut last: Option<Id> = None;
    for round in 0..100 {
        let flakes = cluster.open("a").await;
        assert_eq!(flakes.worker().unwrap().get(), 0);
        let id = flakes.try_next().unwrap();
        let at = |id| flakes.layout().decode(id).unwrap().timestamp;
        if let Some(last) = last {
            assert!(id > last);
            assert!(at(id) - at(last) <= millis(5), "round {round}");
        }
        last = Some(id);
        flakes.close().await;
        let record = &cluster.workers().await[0];
        assert_eq!(record.fence.as_ref().unwrap().state, FenceState::Released);
        assert_eq!(record.fence.as_ref().unwrap().ceiling, at(id) + millis(1), "last used + 1");
        assert!(matches!(flakes.try_next().unwrap_err().kind(), SnowflakeErrorKind::Closed));
        assert!(!flakes.health().can_answer());
        cluster.clock.advance(millis(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_ends_badly_ends_the_ids_and_says_so() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(Odd { panics: true, ..Odd::default() });
    let flakes = SnowflakeGenerator::open(registry, config("a:1", &clock, None)).await.unwrap();

    pass(&clock, seconds(4)).await;

    let error = flakes.try_next().unwrap_err();
    assert!(matches!(error.kind(), SnowflakeErrorKind::Closed), "{error}");
    assert!(!flakes.health().can_answer());
    flakes.close().await;
}
