//! The generator with a registry in memory, a real state file, and clocks that the test moves.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leaf_core::{Health, Layout, ManualClock, UnixMillis};
use leaf_snowflake::{
    FenceState, Identity, MemoryFenceStore, SnowflakeConfig, SnowflakeErrorKind,
    SnowflakeGenerator, StoreFault,
};

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn ids_increase_over_many_milliseconds() {
    let clock = Arc::new(ManualClock::at(START));
    let registry = Arc::new(MemoryFenceStore::default());
    let flakes = SnowflakeGenerator::open(registry, config("a:1", &clock, None)).await.unwrap();

    let mut last = flakes.next().await.unwrap();
    for _ in 0..100 {
        for _ in 0..1000 {
            let id = flakes.try_next().unwrap();
            assert!(id > last);
            last = id;
        }
        pass(&clock, Duration::from_millis(1)).await;
    }
    let parts = flakes.layout().decode(last).unwrap();
    assert!(parts.timestamp - START < Duration::from_millis(101));
}

#[tokio::test]
async fn a_full_millisecond_is_slept_over() {
    let registry = Arc::new(MemoryFenceStore::default());
    let config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    let flakes = SnowflakeGenerator::open(registry, config).await.unwrap();

    let mut ids = HashSet::new();
    for _ in 0..50_000 {
        assert!(ids.insert(flakes.next().await.unwrap()));
    }
}

/// Callers that want twice as many ids as the layout has until their deadline: those that came
/// first get all of theirs. Were they served a run at a time, none would be done in time.
#[tokio::test]
async fn lists_beyond_the_limit_are_served_one_after_the_other() {
    let registry = Arc::new(MemoryFenceStore::default());
    let mut config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    config.layout = "t36-w10-s2/10ms".parse().unwrap();
    let flakes = Arc::new(SnowflakeGenerator::open(registry, config).await.unwrap());

    let takers = (0..16).map(|_| {
        let flakes = Arc::clone(&flakes);
        async move { flakes.take(100).await }
    });
    let outcomes = takers.collect::<tokio::task::JoinSet<_>>().join_all().await;

    let lists: Vec<_> = outcomes.into_iter().flatten().collect();
    assert!(lists.len() >= 2, "of 8 that the layout has ids for, {} were done", lists.len());
    let ids: HashSet<_> = lists.iter().flatten().collect();
    assert_eq!(ids.len(), 100 * lists.len());
}

/// More lists are requested than the layout has ids for, again and again. The generator must keep
/// serving as many as it can. If it began lists that cannot be complete in time, it would soon
/// serve few or none.
#[tokio::test(start_paused = true)]
async fn lists_are_served_at_the_full_rate_under_a_steady_overload() {
    // The layout has 400 ids a second: 4 of the long lists, or 57 of the short ones, which end in
    // the middle of a tick. Every `interval` ticks another list is requested.
    for (length, interval, possible) in [(100, 20, 24), (7, 1, 342)] {
        let cluster = Cluster::new();
        let mut config = cluster.config("a:1");
        config.layout = "t36-w10-s2/10ms".parse().unwrap();
        let flakes = Arc::new(open(&cluster.store, config).await.unwrap());
        let (mut lists, mut ids) = (Vec::new(), HashSet::new());

        // For 12 s, and 4 s for those that still wait.
        for tick in 0..1600 {
            if tick < 1200 && tick % interval == 0 {
                let flakes = Arc::clone(&flakes);
                lists.push(tokio::spawn(async move { flakes.take(length).await }));
            }
            cluster.pass(millis(10)).await;
        }

        let (half, mut late) = (lists.len() / 2, 0);
        for (number, list) in lists.into_iter().enumerate() {
            if let Ok(list) = list.await.unwrap() {
                late += usize::from(number >= half);
                assert!(list.into_iter().all(|id| ids.insert(id)));
            }
        }
        assert!(late * 10 >= possible * 9, "{late} of {possible} lists of {length} were done");
    }
}

/// Two callers who want all ids of a tick of a second: the second one waits for the next tick.
#[tokio::test(start_paused = true)]
async fn a_list_is_not_refused_that_fits() {
    let cluster = Cluster::new();
    let mut config = cluster.config("a:1");
    config.layout = "t31-w10-s12/1s".parse().unwrap();
    let flakes = Arc::new(open(&cluster.store, config).await.unwrap());
    cluster.pass(millis(2100)).await;

    let lists: Vec<_> = (0..2)
        .map(|_| {
            let flakes = Arc::clone(&flakes);
            tokio::spawn(async move { flakes.take(4096).await })
        })
        .collect();
    cluster.pass(millis(1950)).await;
    for list in lists {
        assert_eq!(list.await.unwrap().unwrap().len(), 4096);
    }
}

#[tokio::test(start_paused = true)]
async fn senseless_settings_are_refused_by_name() {
    let clock = Arc::new(ManualClock::at(UnixMillis::new(1_000_000)));
    let registry = Arc::new(MemoryFenceStore::default());

    let mut short = config("a:1", &clock, None);
    short.offline_for = Duration::from_secs(5);
    let error = SnowflakeGenerator::prepare(Arc::clone(&registry), short).unwrap_err();
    assert!(error.to_string().contains("offline_for is 5s"), "{error}");

    let early = SnowflakeGenerator::open(Arc::clone(&registry), config("a:1", &clock, None));
    let early = early.await.unwrap_err().to_string();
    assert!(
        early.contains("1970-01-01 00:16:40 UTC")
            && early.contains("the earliest that can be right"),
        "{early}"
    );
    let mut future = config("a:1", &Arc::new(ManualClock::at(START)), None);
    future.layout = Layout::LEAF.with_epoch(START + seconds(1));
    let future = SnowflakeGenerator::open(registry, future).await.unwrap_err().to_string();
    assert!(future.contains("before the layout's epoch 2027-01-15 08:00:01 UTC"), "{future}");

    let mut lax = config("a:1", &Arc::new(ManualClock::at(START)), None);
    lax.rollback_tolerance = Duration::from_secs(3600);
    let error =
        SnowflakeGenerator::prepare(Arc::new(MemoryFenceStore::default()), lax).unwrap_err();
    assert!(error.to_string().contains("rollback_tolerance is 3600s"), "{error}");

    type Change = fn(&mut SnowflakeConfig);
    let cases: [(&str, Change); 2] = [
        ("rollback_tolerance is 0ns", |config| config.rollback_tolerance = Duration::ZERO),
        ("report_interval is 0", |config| config.report_interval = Duration::ZERO),
    ];
    for (setting, change) in cases {
        let mut config = config("a:1", &Arc::new(ManualClock::at(START)), None);
        change(&mut config);
        let refused = SnowflakeGenerator::prepare(Arc::new(MemoryFenceStore::default()), config);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(setting), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_layout_in_seconds_never_meets_its_ceiling() {
    let clock = Arc::new(ManualClock::at(START));
    let directory = tempfile::tempdir().unwrap();
    let mut config = config("a:1", &clock, Some(directory.path()));
    config.layout = "t31-w10-s20/1s".parse().unwrap();
    let flakes =
        SnowflakeGenerator::open(Arc::new(MemoryFenceStore::default()), config).await.unwrap();

    for _ in 0..400 {
        pass(&clock, Duration::from_millis(10)).await;
        flakes.try_next().unwrap();
        assert_eq!(flakes.health(), Health::Ready);
    }
}

#[tokio::test]
async fn exactly_as_many_ids_as_asked_for() {
    let config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    let flakes = open(&Arc::default(), config).await.unwrap();
    let mut last = None;
    for count in [1, 2, 100, 4096, 4097, 50_000, 1_000_000] {
        let ids = flakes.take(count).await.unwrap();
        assert_eq!(ids.len(), count);
        assert!(ids.is_sorted_by(|a, b| a < b) && Some(ids[0]) > last, "{count}");
        last = ids.last().copied();
    }

    for count in [0, 1_000_001, usize::MAX] {
        let error = flakes.take(count).await.unwrap_err();
        assert!(matches!(error.kind(), SnowflakeErrorKind::BadCount { .. }), "{error}");
    }
    assert!(flakes.try_take(0).is_err());
    let run = flakes.try_take(usize::MAX).map(|run| run.len());
    assert!(run.is_err() || run.unwrap() <= 11 * 4096, "no more than the clock allows");
}

#[tokio::test(start_paused = true)]
async fn no_more_is_promised_than_the_layout_holds() {
    let clock = Arc::new(ManualClock::at(START));
    let mut config = config("a:1", &clock, None);
    config.layout = Layout::SONYFLAKE;
    let flakes = open(&Arc::default(), config).await.unwrap();

    let error = flakes.take(60_000).await.unwrap_err();

    // Half of 2 s, 256 ids per 10 ms.
    assert_eq!(error.to_string(), "60000 ids at once: give 1 to 25600");
}

/// Whoever waits is served in turn: a busy caller starves nobody.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "contention is a matter of real time")]
async fn callers_that_wait_are_served_in_turn() {
    let config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    let flakes = Arc::new(open(&Arc::default(), config).await.unwrap());
    let end = Instant::now() + Duration::from_millis(200);
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let flakes = Arc::clone(&flakes);
            tokio::spawn(async move {
                let mut ids = 0u64;
                while Instant::now() < end {
                    flakes.take(100).await.unwrap();
                    ids += 100;
                }
                ids
            })
        })
        .collect();
    let mut shares = Vec::new();
    for caller in callers {
        shares.push(caller.await.unwrap());
    }

    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(least * 4 > *most, "{shares:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_several_threads_wait_for_the_next_tick() {
    let mut config = SnowflakeConfig::new(Identity::parse("a:1").unwrap());
    config.layout = Layout::JAVASCRIPT;
    let registry = Arc::new(MemoryFenceStore::default());
    let flakes = Arc::new(SnowflakeGenerator::open(registry, config).await.unwrap());
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let flakes = Arc::clone(&flakes);
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..5000 {
                    ids.push(flakes.next().await.unwrap());
                }
                ids
            })
        })
        .collect();
    let mut ids = HashSet::new();
    for task in tasks {
        ids.extend(task.await.unwrap());
    }

    assert_eq!(ids.len(), 20_000, "128 per millisecond: they waited");
    assert!(ids.iter().all(|id| id.get() < 1 << 53));
    assert_eq!(flakes.view().worker, flakes.worker());
    flakes.close().await;
    assert!(matches!(flakes.next().await.unwrap_err().kind(), SnowflakeErrorKind::Closed));
}

/// Without a state file, a caller that waits at the registry ceiling wakes the keeper. The keeper
/// must not wake the caller in turn: paused time advances only while all tasks wait, so the two
/// would wake each other for ever.
#[test]
fn a_caller_that_waits_at_the_ceiling_rests() {
    let (told, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let errors = until_killed(async || {
            let cluster = Cluster::new();
            let config = config("a:1", &cluster.clock, None);
            let flakes = open(&cluster.store, config).await.unwrap();
            cluster.store.set_fault(StoreFault::Away);
            cluster.pass(seconds(601)).await;
            [flakes.next().await.unwrap_err(), flakes.next().await.unwrap_err()]
        });
        told.send(errors.map(|error| error.to_string())).unwrap();
    });

    let errors = ended.recv_timeout(seconds(60)).expect("both callers give up");

    assert!(errors.iter().all(|error| error.contains("ceiling is reached")), "{errors:?}");
}

/// The view shows the ceiling that was written down last, also between two reports.
#[tokio::test(start_paused = true)]
async fn the_view_shows_the_local_ceiling_as_it_is() {
    let cluster = Cluster::new();
    let config = SnowflakeConfig { report_interval: seconds(60), ..cluster.config("a") };
    let flakes = open(&cluster.store, config).await.unwrap();

    cluster.pass(seconds(5)).await;

    let view = flakes.view();
    assert!(view.local_ceiling > START + seconds(5), "{view:?}");
    assert!(view.local_ceiling <= view.registry_ceiling, "{view:?}");
}

#[tokio::test(start_paused = true)]
async fn a_close_that_was_given_up_can_be_called_again() {
    let cluster = Cluster::new();
    let flakes = cluster.open("a").await;
    tokio::select! {
        biased;
        () = flakes.close() => panic!("the keeper has not run yet"),
        () = std::future::ready(()) => {}
    }

    flakes.close().await;

    let record = &cluster.workers().await[0];
    assert_eq!(record.fence.as_ref().unwrap().state, FenceState::Released);
}
