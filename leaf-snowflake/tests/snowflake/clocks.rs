//! Clocks that go back, jump ahead, strobe, run too fast, end, or are plainly wrong.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{Clock, Health, HealthCode, Layout, ManualClock, UnixMillis};
use leaf_snowflake::{
    Identity, MemoryFenceStore, PeerRule, Peers, Registry, RegistryError, RegistryErrorKind,
    SnowflakeErrorKind, SnowflakeGenerator, StoreFault,
};

use crate::support::*;

async fn running(clock: &Arc<ManualClock>, name: &str) -> SnowflakeGenerator {
    open(&Arc::default(), config(name, clock, None)).await.unwrap()
}

/// W-07: nobody notices a rollback up to the tolerance. Beyond it ids stop until the clock has
/// caught up with the last id.
#[tokio::test(start_paused = true)]
async fn a_rollback_within_the_tolerance_goes_unnoticed_and_beyond_it_stops_the_ids() {
    let clock = Arc::new(ManualClock::at(START));
    let flakes = running(&clock, "a:1").await;
    let first = flakes.next().await.unwrap();

    clock.set_wall(START - millis(900));
    pass(&clock, seconds(1)).await;
    let second = flakes.next().await.unwrap();
    assert!(second > first);

    clock.set_wall(START - seconds(60));
    pass(&clock, millis(200)).await;
    let error = flakes.next().await.unwrap_err();
    assert!(matches!(error.kind(), SnowflakeErrorKind::ClockBehind { .. }), "{error}");
    assert!(error.to_string().contains("60."), "the offset is told: {error}");
    assert!(!flakes.health().can_answer());
    assert_eq!(flakes.view().ahead_of_wall, None);
    assert_eq!(flakes.view().clock_steps.back, 2);

    clock.set_wall(START + seconds(10));
    pass(&clock, millis(200)).await;
    assert!(flakes.next().await.unwrap() > second);
}

/// W-07: with a tolerance of 5 ms the generator follows the Java Leaf's published rule.
#[tokio::test(start_paused = true)]
async fn at_a_tolerance_of_5_ms_leafs_rule_holds() {
    for (back, served) in [(1, true), (5, true), (6, false), (1000, false)] {
        let clock = Arc::new(ManualClock::at(START));
        let mut config = config("a:1", &clock, None);
        config.rollback_tolerance = millis(5);
        let flakes = open(&Arc::default(), config).await.unwrap();
        let mut last = None;
        for _ in 0..50 {
            pass(&clock, millis(20)).await;
            last = Some(flakes.next().await.unwrap());
        }

        clock.set_wall(clock.wall_millis() - millis(back));
        // Long enough for a look, too short for the clock to make up for it.
        clock.advance(millis(100));
        tokio::time::sleep(millis(100)).await;

        assert_eq!(flakes.try_next().is_ok_and(|id| Some(id) > last), served, "{back} ms");
    }
}

/// W-07: a clock that jumps back and forth for 32 s. Within the tolerance there is no error; beyond
/// it (with Jepsen's distances, up to 262 s) no id repeats.
#[tokio::test(start_paused = true)]
async fn a_strobing_clock_repeats_nothing() {
    for (doublings, least) in [(9, 320), (19, 20)] {
        let clock = Arc::new(ManualClock::at(START));
        let flakes = running(&clock, "a:1").await;
        let (mut last, mut issued) = (None, 0);
        for round in 0..320u64 {
            let right = START + clock.boot();
            let by = millis(1 << (round % doublings));
            clock.set_wall(if round % 2 == 0 { right - by } else { right + by });
            pass(&clock, millis(100)).await;
            if let Ok(id) = flakes.try_next() {
                assert!(Some(id) > last);
                last = Some(id);
                issued += 1;
            }
        }
        assert!(issued >= least, "only {issued} ids");
    }
}

/// W-08: the clock jumps ahead by an hour and back. The ids do not follow, so the way back costs
/// nothing.
#[tokio::test(start_paused = true)]
async fn a_jump_ahead_does_not_take_the_ids_along() {
    let clock = Arc::new(ManualClock::at(START));
    let flakes = running(&clock, "a:1").await;
    for hours in [1, 24] {
        clock.set_wall(START + clock.boot() + seconds(hours * 3600));
        pass(&clock, seconds(60)).await;
        let at = flakes.layout().decode(flakes.next().await.unwrap()).unwrap().timestamp;
        assert!(at - (START + clock.boot()) <= millis(60), "at most 500 ppm of a minute ahead");

        let health = flakes.health();
        // Either way an operator is told, in words that say whether it is followed at all.
        let told =
            if hours == 24 { "not followed" } else { "catches up by a second in 33 minutes" };
        assert!(matches!(health, Health::Degraded(_)), "{health}");
        assert!(health.to_string().contains(told), "{health}");
        assert_eq!(health.reasons()[0].code, HealthCode::Clock);
        clock.set_wall(START + clock.boot());
        pass(&clock, seconds(1)).await;
        flakes.next().await.unwrap();
        assert_eq!(flakes.health(), Health::Ready);
    }
}

/// W-08: an operator says that the clock is right.
#[tokio::test(start_paused = true)]
async fn an_accepted_jump_ahead_is_followed_at_once() {
    let clock = Arc::new(ManualClock::at(START));
    let directory = tempfile::tempdir().unwrap();
    let config = config("a:1", &clock, Some(directory.path()));
    let flakes = open(&Arc::default(), config).await.unwrap();
    clock.set_wall(START + seconds(86_400));
    pass(&clock, seconds(1)).await;

    flakes.accept_clock();
    pass(&clock, millis(300)).await;

    let id = flakes.next().await.unwrap();
    let at = flakes.layout().decode(id).unwrap().timestamp;
    assert!(at >= START + seconds(86_400));
    assert_eq!(flakes.health(), Health::Ready);
}

/// Peers whose clocks differ from the right time by these many milliseconds.
#[derive(Debug)]
struct Neighbours {
    right: Arc<ManualClock>,
    offsets: Mutex<Vec<i64>>,
    /// How many more times the list of peers fails, as if the connection to the registry broke.
    broken: AtomicI64,
}

impl Peers for Neighbours {
    fn list(&self) -> BoxFuture<'_, Result<Vec<Identity>, RegistryError>> {
        let broken = self.broken.fetch_sub(1, Ordering::Relaxed);
        if broken > 0 {
            let error = RegistryError::new(RegistryErrorKind::Unavailable, "look for live nodes");
            return Box::pin(async { Err(error) });
        }
        self.broken.store(0, Ordering::Relaxed);
        let count = self.offsets.lock().unwrap().len();
        let peers = (0..count).map(|n| Identity::parse(&format!("peer:{n}")).unwrap()).collect();
        Box::pin(async { Ok(peers) })
    }

    fn ask<'a>(&'a self, peer: &'a Identity) -> BoxFuture<'a, Option<UnixMillis>> {
        let number: usize = peer.as_str()[5..].parse().unwrap();
        let offset = self.offsets.lock().unwrap()[number];
        let now = self.right.wall_millis().get().saturating_add_signed(offset);
        Box::pin(async move { Some(UnixMillis::new(now)) })
    }
}

/// W-13: a node whose clock most peers call wrong claims nothing; a peer that is wrong is outvoted.
#[tokio::test(start_paused = true)]
async fn peers_refuse_a_bad_clock_before_it_claims() {
    let start_after = async |broken: i64, ahead: u64, offsets: &[i64], rule| {
        let right = Arc::new(ManualClock::at(START));
        let clock = Arc::new(ManualClock::at(START + millis(ahead)));
        let registry = Arc::new(MemoryFenceStore::default());
        let mut config = config("a:1", &clock, None);
        config.peers = Some(Arc::new(Neighbours {
            right,
            offsets: Mutex::new(offsets.into()),
            broken: AtomicI64::new(broken),
        }));
        config.peer_rule = rule;
        let opened = open(&registry, config).await;
        (opened, Registry::from(Arc::clone(&registry)).workers().await.unwrap().len())
    };
    let start = async |ahead, offsets: &[i64], rule| start_after(0, ahead, offsets, rule).await;
    const DAY: i64 = 86_400_000;

    let (refused, claimed) = start(600_000, &[0, 3, -2, 1], PeerRule::Majority).await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("600.0") && text.contains("ahead of its peers'"), "{text}");
    assert!(text.contains("0 of 4"), "{text}");
    assert_eq!(claimed, 0, "nothing was written");

    assert!(start(0, &[0, 3, DAY], PeerRule::Majority).await.0.is_ok());
    assert!(start(0, &[0, 3, DAY], PeerRule::Mean).await.0.is_err());
    assert!(start(600_000, &[], PeerRule::Majority).await.0.is_ok(), "nobody to ask");
    assert!(start(0, &[4000], PeerRule::Majority).await.0.is_ok());
    assert!(start(0, &[-6000], PeerRule::Majority).await.0.is_err(), "one of two is wrong");

    // A connection that breaks is no reason not to compare.
    for broken in [1, 5, 1000] {
        let (refused, claimed) = start_after(broken, 600_000, &[0, 3], PeerRule::Majority).await;
        let error = refused.unwrap_err();
        let refused = matches!(error.kind(), SnowflakeErrorKind::ClockRefused { .. });
        assert_eq!(refused, broken < 1000, "{broken}: {error}");
        assert_eq!(claimed, 0, "{broken}: nothing was written");
    }
    assert!(start_after(5, 0, &[0, 3], PeerRule::Majority).await.0.is_ok());
}

/// W-06: a node that cannot list its peers continues from its state file. The answers to the claims
/// that confirm its lease are lost; all of them have one nonce, by which the registry recognizes
/// the claim that it has granted.
#[tokio::test(start_paused = true)]
async fn a_confirmation_whose_answer_was_lost_is_recognized() {
    let cluster = Cluster::new();
    cluster.live_and_die("a");
    let peers = Arc::new(Neighbours {
        right: Arc::clone(&cluster.clock),
        offsets: Mutex::default(),
        broken: AtomicI64::new(1000),
    });
    let mut config = cluster.config("a");
    config.peers = Some(Arc::clone(&peers) as _);
    let flakes = open(&cluster.store, config).await.unwrap();
    peers.broken.store(0, Ordering::Relaxed);

    cluster.store.set_fault(StoreFault::AnswersLost);
    cluster.pass(seconds(10)).await;
    flakes.try_next().unwrap();
    cluster.store.set_fault(StoreFault::None);
    cluster.pass(seconds(6)).await;

    flakes.try_next().unwrap();
    assert_eq!(flakes.health(), Health::Ready);
    let records = cluster.workers().await;
    let term = records[0].fence.as_ref().unwrap().term;
    assert_eq!((records.len(), term), (1, 2), "one more claim was granted");
}

/// W-08, W-13: a large jump ahead is followed only when two or more peers, and most of them, agree
/// with it.
#[tokio::test(start_paused = true)]
async fn peers_vouch_for_a_jump_ahead() {
    let (clock, right) = (Arc::new(ManualClock::at(START)), Arc::new(ManualClock::at(START)));
    let peers = Arc::new(Neighbours {
        right: Arc::clone(&right),
        offsets: Mutex::default(),
        broken: AtomicI64::new(0),
    });
    let mut config = config("a:1", &clock, None);
    config.peers = Some(Arc::clone(&peers) as _);
    let flakes = open(&Arc::default(), config).await.unwrap();
    let day = seconds(86_400);
    let at = |flakes: &SnowflakeGenerator| {
        flakes.layout().decode(flakes.try_next().unwrap()).unwrap().timestamp
    };
    let pass_both = async |duration| {
        right.advance(duration);
        pass(&clock, duration).await;
    };

    clock.set_wall(START + day);
    for offsets in [vec![], vec![86_400_000], vec![0, 0, 86_400_000]] {
        *peers.offsets.lock().unwrap() = offsets.clone();
        pass_both(seconds(10)).await;
        assert!(at(&flakes) < START + day, "{offsets:?} do not vouch for it");
    }
    *peers.offsets.lock().unwrap() = vec![86_400_000, 86_400_000, 0];
    pass_both(seconds(10)).await;
    assert!(at(&flakes) >= START + day);
    assert_eq!(flakes.health(), Health::Ready);
}

/// W-14: the end of the timestamp's bits is an error, never a negative id, and the health warns of
/// it before.
#[tokio::test(start_paused = true)]
async fn the_end_of_the_time_bits_is_an_error() {
    let layout = Layout::LEAF;
    assert_eq!(layout.end().get(), 3_487_858_230_209, "2080-07-10T17:30:30.209Z");
    let clock = Arc::new(ManualClock::at(layout.end() - seconds(3 * 86_400)));
    let registry = Arc::new(MemoryFenceStore::default());
    let flakes = open(&registry, config("a:1", &clock, None)).await.unwrap();
    assert_eq!(flakes.view().days_left, 3);
    let Health::Degraded(reasons) = flakes.health() else { panic!("{}", flakes.health()) };
    assert_eq!(reasons[0].code, HealthCode::EndOfTimeNear);
    assert!(reasons[0].text.contains("2080-07-10 17:30:30 UTC, in 3 days"), "{reasons:?}");
    let early = Arc::new(ManualClock::at(layout.end() - seconds(181 * 86_400)));
    let flakes = open(&registry, config("early:1", &early, None)).await.unwrap();
    assert_eq!(flakes.health(), Health::Ready);

    let nearly = Arc::new(ManualClock::at(layout.end() - millis(100)));
    let flakes = open(&registry, config("b:1", &nearly, None)).await.unwrap();
    flakes.next().await.unwrap();
    nearly.advance(millis(99));
    tokio::time::sleep(millis(99)).await;
    assert!(flakes.next().await.unwrap().get() > 0, "the last millisecond");
    nearly.advance(millis(1));
    let error = flakes.next().await.unwrap_err();
    assert!(matches!(error.kind(), SnowflakeErrorKind::EndOfTime { .. }), "{error}");
    assert_eq!(flakes.view().days_left, 0);
    assert!(!flakes.health().can_answer());

    let late = open(&registry, config("c:1", &nearly, None)).await;
    assert!(matches!(late.unwrap_err().kind(), SnowflakeErrorKind::EndOfTime { .. }));
}

/// W-15: Twitter's issue 6: the clock goes back within a used-up millisecond, then ahead again.
#[tokio::test(start_paused = true)]
async fn a_burst_beyond_the_sequence_repeats_nothing_whatever_the_clock_does() {
    let clock = Arc::new(ManualClock::at(START));
    let flakes = running(&clock, "a:1").await;
    let mut last = None;
    let mut issued = 0;
    let mut burst = |flakes: &SnowflakeGenerator| {
        for _ in 0..50_000 {
            let Ok(id) = flakes.try_next() else { break };
            assert!(Some(id) > last);
            last = Some(id);
            issued += 1;
        }
    };
    for step in [0, -1, 1, -5, 5, 1, -2, 3, 1] {
        let wall = clock.wall_millis().get().saturating_add_signed(step);
        clock.set_wall(UnixMillis::new(wall));
        burst(&flakes);
        clock.advance(millis(1));
        tokio::time::sleep(millis(1)).await;
        burst(&flakes);
    }
    assert!(issued >= 9 * 4096, "{issued}");
}

/// W-20: a wall clock at half or one and a tenth of the speed: ids keep their order, and stop only
/// when they are out of the tolerance.
#[tokio::test(start_paused = true)]
async fn a_clock_of_the_wrong_speed_keeps_the_order() {
    for percent in [50, 110] {
        let clock = Arc::new(ManualClock::at(START));
        let flakes = running(&clock, "a:1").await;
        let (mut last, mut refused) = (None, 0);
        for _ in 0..600 {
            pass(&clock, millis(50)).await;
            let wall = START + clock.boot() * percent / 100;
            clock.set_wall(wall);
            match flakes.try_next() {
                Ok(id) => {
                    assert!(Some(id) > last);
                    last = Some(id);
                    let at = flakes.layout().decode(id).unwrap().timestamp;
                    assert!(at - wall <= Duration::from_millis(1101), "within the tolerance");
                }
                Err(error) => {
                    assert!(matches!(error.kind(), SnowflakeErrorKind::ClockBehind { .. }));
                    refused += 1;
                }
            }
        }
        assert_eq!(refused > 0, percent < 100, "{refused} refusals at {percent} %");
    }
}

/// Takes all that there is; the error is why there is no more.
fn take_until_refused(flakes: &SnowflakeGenerator) -> SnowflakeErrorKind {
    loop {
        if let Err(error) = flakes.try_take(100_000) {
            return error.kind().clone();
        }
    }
}

/// After a crash ids run ahead of the clock, under load up to the ceiling. That passes in a moment
/// and the generator stays ready. It is not ready once the clock itself has reached the ceiling.
#[tokio::test(start_paused = true)]
async fn a_ceiling_is_trouble_once_the_clock_has_reached_it() {
    let cluster = Cluster::new();
    cluster.live_and_die("a");
    let flakes = cluster.open("a").await;
    // Nothing is awaited: the keeper raises nothing meanwhile.
    while !matches!(take_until_refused(&flakes), SnowflakeErrorKind::CeilingReached) {
        cluster.clock.advance(millis(1));
    }
    assert_eq!(flakes.health(), Health::Ready);

    cluster.clock.advance(seconds(2));
    let health = flakes.health();
    assert!(!health.can_answer() && health.to_string().contains("ceiling"), "{health}");
    cluster.pass(seconds(1)).await;
    assert_eq!(flakes.health(), Health::Ready);
}

/// The clock was set back by less than the tolerance, so ids are ahead of it by more than a caller
/// waits. Then the generator is not ready as soon as ids reach the ceiling.
#[tokio::test(start_paused = true)]
async fn a_ceiling_far_ahead_of_the_clock_is_trouble_at_once() {
    let cluster = Cluster::new();
    cluster.live_and_die("a");
    cluster.clock.set_wall(START - seconds(50));
    let mut config = cluster.config("a");
    config.rollback_tolerance = seconds(60);
    let flakes = open(&cluster.store, config).await.unwrap();
    while !matches!(take_until_refused(&flakes), SnowflakeErrorKind::CeilingReached) {
        cluster.clock.advance(millis(1));
    }
    let health = flakes.health();
    assert!(!health.can_answer() && health.to_string().contains("ceiling"), "{health}");
}

/// The ceiling is raised before ids that run ahead of the clock reach it.
#[tokio::test(start_paused = true)]
async fn ids_that_run_ahead_never_wait_for_the_ceiling() {
    let cluster = Cluster::new();
    cluster.live_and_die("a");
    let flakes = cluster.open("a").await;
    for milli in 0..1500 {
        let refused = take_until_refused(&flakes);
        assert!(matches!(refused, SnowflakeErrorKind::Exhausted { .. }), "{milli} ms: {refused}");
        cluster.pass(millis(1)).await;
    }
}
