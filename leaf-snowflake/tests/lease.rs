//! Leases: takeovers, zombies, lost answers, outages and full pools. The registry is in memory, the
//! clocks are moved by the test.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use futures_core::future::BoxFuture;
use leaf_core::{Clock, Health, Id, ManualClock, UnixMillis, WorkerId};
use leaf_snowflake::{
    ClaimRequest, FenceState, Identity, Lease, MemoryRegistry, RegistryError, RegistryErrorKind,
    RegistryFault, Report, SnowflakeErrorKind, SnowflakeGenerator, WorkerRecord, WorkerRegistry,
};
use leaf_testkit::Slices;
use uuid::Uuid;

mod support;
use support::*;

/// W-01: fifty nodes claim at once; W-17: a full pool is a clear error.
#[tokio::test(start_paused = true)]
async fn each_node_gets_its_own_worker_id_until_there_is_none() {
    let cluster = Cluster::new();
    let claims: Vec<_> = (0..1024)
        .map(|node| {
            let config = config(&format!("node:{node}"), &cluster.clock, None);
            let registry = Arc::clone(&cluster.registry);
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
    let error = open(&cluster.registry, config).await.unwrap_err();
    assert!(error.to_string().contains("all 1024 worker ids are in use"), "{error}");
    nodes[7].close().await;
    let late = open(&cluster.registry, support::config("late:1", &cluster.clock, None)).await;
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

    let records = until_killed(async || cluster.registry.workers().await.unwrap());
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].fence.as_ref().unwrap().epoch, 1800);
}

/// W-02, W-05: its worker id was taken while it was frozen. Whatever it does on waking, nothing is
/// repeated; then it is lost for good.
#[tokio::test(start_paused = true)]
async fn a_frozen_node_whose_id_was_taken_stops_for_good() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(Odd { pins_nodes: true, ..Odd::default() });
    let open = async |name: &str| {
        let mut config = config(name, &clock, None);
        config.layout = two_workers();
        SnowflakeGenerator::open(Arc::clone(&registry) as _, config).await.unwrap()
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
        open(&cluster.registry, config).await.unwrap()
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

/// W-03: ids that were taken before a pause and are answered after it. Its successor starts exactly at the
/// holder's ceiling, with its clock there, and both go on issuing: no timestamp is used by both.
#[test]
fn ids_that_are_answered_late_are_nobody_elses() {
    for tick in 0..40 {
        until_killed(async || {
            let cluster = Cluster::new();
            let open = async |name: &str| {
                let mut config = cluster.config(name);
                config.layout = two_workers();
                config.offline_for = seconds(20);
                open(&cluster.registry, config).await
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
            cluster.registry.set_fault(RegistryFault::Away);
            while cluster.clock.wall_millis() + seconds(1) < ceiling {
                cluster.pass(millis(500)).await;
                record(&slow, 0);
            }
            while cluster.clock.wall_millis() + millis(10 + tick) < ceiling {
                cluster.pass(millis(1)).await;
                record(&slow, 0);
            }
            cluster.registry.set_fault(RegistryFault::None);

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

/// W-04: a zombie writes nothing: neither longer nor given back.
#[tokio::test(start_paused = true)]
async fn a_zombie_cannot_write() {
    let cluster = Cluster::new();
    let claim = async |name: &str, at: u64| {
        let request = request(START + seconds(at));
        let who = leaf_snowflake::Identity::parse(name).unwrap();
        cluster.registry.claim(&who, &request).await.unwrap()
    };
    let mut zombie = claim("a", 0).await;
    for filler in 1..1024 {
        claim(&format!("b:{filler}"), 0).await;
    }
    let successor = claim("c", 3600).await;
    assert_eq!(successor.worker, zombie.worker);
    let record = async || {
        let records = cluster.registry.workers().await.unwrap();
        records[0].fence.clone().unwrap()
    };
    let before = record().await;

    let extended = cluster.registry.extend(&mut zombie, report(START + seconds(9999))).await;
    assert_eq!(*extended.unwrap_err().kind(), RegistryErrorKind::Lost);
    let released = cluster.registry.release(zombie, START).await;
    assert_eq!(*released.unwrap_err().kind(), RegistryErrorKind::Lost);

    assert_eq!(record().await, before);
}

/// W-06: an extension whose answer was lost raises nothing here; the next one finds its own write.
#[tokio::test(start_paused = true)]
async fn an_ambiguous_extension_raises_no_ceiling_and_loses_no_lease() {
    let cluster = Cluster::new();
    let flakes = cluster.open("a").await;
    let ceiling = flakes.view().registry_ceiling;

    cluster.registry.set_fault(RegistryFault::AnswersLost);
    cluster.pass(seconds(30)).await;
    let recorded = {
        cluster.registry.set_fault(RegistryFault::None);
        let records = cluster.registry.workers().await.unwrap();
        cluster.registry.set_fault(RegistryFault::AnswersLost);
        records[0].fence.as_ref().unwrap().ceiling
    };
    assert!(recorded > ceiling + seconds(20), "the writes arrived");
    assert_eq!(flakes.view().registry_ceiling, ceiling, "but nobody said so");
    assert!(matches!(flakes.health(), Health::Degraded(_)));

    cluster.registry.set_fault(RegistryFault::None);
    cluster.pass(seconds(4)).await;
    assert_eq!(flakes.health(), Health::Ready);
    assert!(flakes.view().registry_ceiling >= recorded, "a ceiling is never lowered");
}

/// W-12: of two clones of a lease one dies at the first report.
#[tokio::test(start_paused = true)]
async fn of_two_clones_one_dies() {
    let cluster = Cluster::new();
    let who = leaf_snowflake::Identity::parse("a:1").unwrap();
    let mut lease = cluster.registry.claim(&who, &request(START)).await.unwrap();
    let mut clone = lease.clone();

    cluster.registry.extend(&mut lease, report(START + seconds(700))).await.unwrap();
    let error =
        cluster.registry.extend(&mut clone, report(START + seconds(701))).await.unwrap_err();

    assert_eq!(*error.kind(), RegistryErrorKind::Lost);
}

/// W-08: the registry gives another lease while the clock is back: it has to wait for the clock.
#[tokio::test(start_paused = true)]
async fn a_new_lease_does_not_lift_the_wait_for_the_clock() {
    let cluster = Cluster::new();
    cluster.live_and_die("a");
    cluster.registry.set_fault(RegistryFault::Away);
    let alone = cluster.open("a").await;
    let last = alone.try_next().unwrap();
    cluster.clock.set_wall(START - seconds(3600));
    cluster.pass(millis(500)).await;
    assert!(alone.try_next().is_err());

    cluster.registry.forget();
    cluster.registry.set_fault(RegistryFault::None);
    for _ in 0..100 {
        cluster.pass(millis(100)).await;
        assert!(alone.try_next().is_err(), "the clock is still an hour behind");
    }

    cluster.clock.set_wall(START + seconds(60));
    cluster.pass(seconds(3)).await;
    assert!(alone.try_next().unwrap() > last);
    assert_eq!(alone.view().leases_lost, 1);
}

/// A floor that moves while it is waited for belongs to somebody alive.
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
        open(&cluster.registry, short("a")).await.unwrap(),
        open(&cluster.registry, short("b")).await.unwrap(),
    ];
    let third = tokio::spawn({
        let (registry, config) = (Arc::clone(&cluster.registry), short("c"));
        async move { open(&registry, config).await }
    });

    cluster.pass(seconds(40)).await;

    let error = third.await.unwrap().unwrap_err();
    assert!(matches!(registry_error(&error), RegistryErrorKind::InUse { .. }), "{error}");
    assert!(nodes.iter().all(|node| node.try_next().is_ok()));
}

/// W-16: an outage of the registry is not noticed up to its ceiling, and repeats nothing beyond it.
#[tokio::test(start_paused = true)]
async fn ids_flow_without_the_registry_up_to_the_ceiling_and_no_further() {
    let cluster = Cluster::new();
    let flakes = cluster.open("a").await;

    cluster.registry.set_fault(RegistryFault::Away);
    cluster.pass(seconds(590)).await;
    flakes.next().await.unwrap();
    assert!(matches!(flakes.health(), Health::Degraded(_)), "{}", flakes.health());

    cluster.pass(seconds(15)).await;
    let error = flakes.next().await.unwrap_err();
    assert!(matches!(error.kind(), SnowflakeErrorKind::CeilingReached), "{error}");
    assert!(!flakes.health().can_answer());

    cluster.registry.set_fault(RegistryFault::None);
    cluster.pass(seconds(6)).await;
    flakes.next().await.unwrap();
    assert_eq!(flakes.health(), Health::Ready);
}

/// W-18: a node whose clock is an hour ahead takes the worker id of a live one, which is frozen over its
/// report. Then the clock is set right, and both issue until their slices would have met: every timestamp has
/// one holder, the live one is fenced off and finds another worker id.
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
        let live = open(&cluster.registry, narrow(cluster.config("a"))).await.unwrap();
        let _other = open(&cluster.registry, narrow(cluster.config("b"))).await.unwrap();
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

        let thief = open(&cluster.registry, narrow(config("c", &ahead, None))).await.unwrap();
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

/// A holder that was frozen for longer than a report interval, while an operator took it for dead: it asks the
/// registry before it raises its own ceiling, also where the registry is slow.
#[tokio::test(start_paused = true)]
async fn a_thawed_holder_asks_before_it_goes_on() {
    let clock = Arc::new(ManualClock::at(START));
    let home = tempfile::tempdir().unwrap();
    let registry = Arc::new(Odd { answers_after: millis(700), ..Odd::default() });
    let mut config = config("a:1", &clock, Some(home.path()));
    config.offline_for = seconds(600);
    let flakes = SnowflakeGenerator::open(Arc::clone(&registry) as _, config).await.unwrap();
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
    registry.memory.set_fault(RegistryFault::Away);
    clock.advance(seconds(30));
    pass(&clock, seconds(3)).await;
    flakes.try_next().unwrap();
}

/// W-19: a clean stop frees the worker id at once, one past the last timestamp used.
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
        let record = &cluster.registry.workers().await.unwrap()[0];
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

/// A registry in whose records a Java Leaf writes: what stands for its last report, once there is one.
#[derive(Debug, Default)]
struct WithJava {
    memory: MemoryRegistry,
    java: Mutex<Option<Uuid>>,
}

impl WorkerRegistry for WithJava {
    fn claim<'a>(
        &'a self,
        who: &'a Identity,
        request: &'a ClaimRequest,
    ) -> BoxFuture<'a, Result<Lease, RegistryError>> {
        let java = *self.java.lock().unwrap();
        let (Some(nonce), worker) = (java, WorkerId::new(0)) else {
            return self.memory.claim(who, request);
        };
        let kind = match request.watched {
            Some(watched) if watched == (worker, nonce) => return self.memory.claim(who, request),
            Some(_) => RegistryErrorKind::JavaAlive { holder: "10.0.0.7:8080".into() },
            None => RegistryErrorKind::Watch { worker, nonce, during: seconds(7) },
        };
        Box::pin(async { Err(RegistryError::new(kind, "claim")) })
    }

    fn extend<'a>(
        &'a self,
        lease: &'a mut Lease,
        report: Report,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        self.memory.extend(lease, report)
    }

    fn release<'a>(
        &'a self,
        lease: Lease,
        next_free: UnixMillis,
    ) -> BoxFuture<'a, Result<(), RegistryError>> {
        self.memory.release(lease, next_free)
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerRecord>, RegistryError>> {
        self.memory.workers()
    }
}

/// A node that started from its state file while the registry was away, and finds a Java Leaf's report
/// there: it watches it, and ends where it lives.
#[tokio::test(start_paused = true)]
async fn a_node_without_its_registry_hears_of_a_java_leaf() {
    for lives in [true, false] {
        let clock = Arc::new(ManualClock::at(START));
        let home = tempfile::tempdir().unwrap();
        let registry = Arc::new(WithJava::default());
        let own = || config("a:1", &clock, Some(home.path()));
        let start = async || SnowflakeGenerator::open(Arc::clone(&registry) as _, own()).await;
        std::thread::scope(|scope| {
            let life = || until_killed(async || start().await.unwrap().next().await.unwrap());
            scope.spawn(life).join().unwrap();
        });
        registry.memory.set_fault(RegistryFault::Away);
        let flakes = start().await.unwrap();
        assert!(!flakes.view().confirmed);

        *registry.java.lock().unwrap() = Some(Uuid::new_v4());
        registry.memory.set_fault(RegistryFault::None);
        pass(&clock, seconds(6)).await;
        flakes.next().await.unwrap();
        if lives {
            *registry.java.lock().unwrap() = Some(Uuid::new_v4());
        }
        pass(&clock, seconds(10)).await;
        assert_eq!(flakes.view().confirmed, !lives);
        let next = flakes.next().await;
        assert_eq!(next.is_ok(), !lives, "{next:?}");
    }
}
