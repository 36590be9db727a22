//! The current tick, for callers that do not read the clock. It is used under a load of so many
//! single ids that reading the clock would cost more than the id.
//!
//! Invariant: [`Ticker::tick`] is a tick that the ids' clock has shown, and is `None` in a forked
//! child. It may be old, just as a reading of the clock is if the caller is suspended before it
//! takes its id. So only the time in an id depends on it: whatever tick the sequencer is given, it
//! gives out no position twice and none at or above the ceiling. Once the sequence of an old tick
//! is used up, the sequencer refuses, and the caller reads the clock. After a freeze of the
//! process, or of the thread that writes the tick, ids get an old time as long as old ticks have
//! free sequences: the tick itself, up to nine ticks before it if the sequencer was catching up,
//! and after a restart the ticks by which the sequencer may be ahead of the clock.
//!
//! The thread that writes the tick runs as long as the load lasts. A generator with less load has
//! no such thread.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use forkguard::atfork::Guard;

/// An interval of 16 us in which at least this many ids were taken is busy. That is 6 M ids a
/// second.
const BUSY: u64 = 100;
/// The thread starts after this many busy intervals in a row: 0.8 ms. The 4,096 ids of one tick of
/// the default layout fill only 41.
const BUSY_INTERVALS: u32 = 48;
/// A millisecond in which fewer ids were taken is quiet. The default layout has only 4,096 ids per
/// millisecond, so it does not keep the thread running.
const QUIET: u64 = 5_000;
/// The thread ends after this many quiet milliseconds in a row.
const QUIET_MILLIS: u32 = 32;
const MILLI: u64 = 1_000_000;

/// The part of a generator that the thread that writes the tick uses.
pub(crate) trait Ticking: Send + Sync + 'static {
    /// The ticker to which the thread writes the tick.
    fn ticker(&self) -> &Ticker;

    /// The position of the first lease's sequencer; `None` before that lease begins, and once it is
    /// closed, even if another lease has replaced it.
    fn position(&self) -> Option<u64>;

    /// The ids' clock in nanoseconds since 1970; `None` while ids are stopped because the wall
    /// clock is behind.
    fn now_nanos(&self) -> Option<u64>;

    /// The tick at this time of the ids' clock.
    fn tick(&self, nanos: u64) -> u64;

    /// How many bits of a position are the sequence.
    fn sequence_bits(&self) -> u32;
}

/// The current tick, and the state of the thread that writes it.
#[derive(Debug, Default)]
pub(crate) struct Ticker {
    /// The tick plus one; 0 while nobody writes it.
    tick: CachePadded<AtomicU64>,
    /// Notices a fork by an atomic that the C library's `fork` changes in the child.
    fork: Guard,
    /// Whether the thread that writes the tick runs.
    runs: AtomicBool,
    /// The interval and the position of the last look, and the number of busy intervals up to it.
    /// Concurrent looks may leave them inconsistent, which is harmless: they only decide when the
    /// thread starts.
    interval: AtomicU64,
    position: AtomicU64,
    busy: AtomicU32,
    /// The first sequence number of a tick is below this.
    start_below: u64,
}

impl Ticker {
    pub(crate) fn new(start_below: u64) -> Self {
        Self { start_below, ..Self::default() }
    }

    /// The current tick, or an earlier one; `None` if the caller must read the clock.
    #[inline]
    pub(crate) fn tick(&self) -> Option<u64> {
        let tick = self.tick.load(Ordering::Relaxed).checked_sub(1)?;
        (!self.fork.clone().detected_fork()).then_some(tick)
    }

    /// Measures the load, and starts the thread after many busy intervals. Called once in an
    /// interval of 16 us. `position` is that of the sequencer. It jumps from one tick to the next,
    /// so that one interval in each tick looks busy even without a load.
    pub(crate) fn look(&self, interval: u64, position: u64, ticking: &Weak<impl Ticking>) {
        let before = self.interval.fetch_max(interval, Ordering::Relaxed);
        // Another caller looked in the same interval, or a later one.
        if before >= interval {
            return;
        }
        let taken = position.saturating_sub(self.position.swap(position, Ordering::Relaxed));
        if before + 1 != interval || taken < BUSY {
            self.busy.store(0, Ordering::Relaxed);
            return;
        }
        if self.busy.fetch_add(1, Ordering::Relaxed) + 1 < BUSY_INTERVALS
            || self.runs.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let ticking = Weak::clone(ticking);
        let thread = std::thread::Builder::new().name("leaf-ticker".into());
        // Without a thread callers read the clock for each id, and the next high load tries again.
        if thread.spawn(move || write_ticks(&ticking)).is_err() {
            self.busy.store(0, Ordering::Relaxed);
            self.runs.store(false, Ordering::Relaxed);
        }
    }

    /// Ends the use of the tick: callers read the clock again.
    fn end(&self) {
        self.tick.store(0, Ordering::Relaxed);
        self.busy.store(0, Ordering::Relaxed);
        self.runs.store(false, Ordering::Relaxed);
    }
}

/// Writes the tick once in each millisecond while there is a load.
#[expect(clippy::disallowed_methods, reason = "a thread of its own, which may sleep")]
fn write_ticks(ticking: &Weak<impl Ticking>) {
    let (mut before, mut quiet) = (0, 0);
    loop {
        // A generator that was dropped needs no tick.
        let Some(ticking) = ticking.upgrade() else { return };
        let ticker = ticking.ticker();
        // A clock that went back stops the ids, and a lease that was closed has none.
        let (Some(position), Some(now)) = (ticking.position(), ticking.now_nanos()) else {
            return ticker.end();
        };
        let taken = taken(before, position, ticker.start_below, ticking.sequence_bits());
        before = position;
        quiet = if taken < QUIET { quiet + 1 } else { 0 };
        if quiet == QUIET_MILLIS {
            return ticker.end();
        }
        ticker.tick.store(ticking.tick(now) + 1, Ordering::Relaxed);
        drop(ticking);
        std::thread::sleep(Duration::from_nanos(MILLI - now % MILLI));
    }
}

/// About how many ids were taken between two positions. If the tick has changed, counts only the
/// ids of the last tick, or one full tick if the position is at the start of a tick. The first id
/// of a tick has a sequence number below `start_below`, which is subtracted.
fn taken(before: u64, position: u64, start_below: u64, sequence_bits: u32) -> u64 {
    let (of_tick, full) = (position & ((1 << sequence_bits) - 1), 1 << sequence_bits);
    match (position >> sequence_bits).saturating_sub(before >> sequence_bits) {
        0 => position.saturating_sub(before),
        // The position is the first one of a tick where the one before is used up.
        _ if of_tick == 0 => full,
        _ => of_tick.saturating_sub(start_below),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leaf_core::sequencer::Sequencer;
    use leaf_core::{Clock as _, Id, Layout, ManualClock, SystemClock, UnixMillis, WorkerId};

    use super::*;
    use crate::lease_chain::LeaseSequencer;
    use crate::shared::Shared;
    use crate::{Identity, SnowflakeConfig, SnowflakeErrorKind};

    const START: UnixMillis = UnixMillis::new(1_800_000_000_000);
    const LAYOUT: Layout = Layout::LEAF;

    /// A generator without a keeper, whose ceiling is a minute ahead.
    fn shared(config: &SnowflakeConfig) -> Arc<Shared> {
        let shared = Shared::new(config);
        let now = config.clock.wall_millis();
        let sequencer = Sequencer::new(config.layout, WorkerId::new(1), now, now, 100);
        sequencer.raise(now + Duration::from_secs(60));
        shared.start(Arc::new(LeaseSequencer::new(sequencer)));
        shared
    }

    fn config() -> SnowflakeConfig {
        SnowflakeConfig::new(Identity::parse("a:1").unwrap())
    }

    /// The thread that writes the tick is frozen, and the callers are not.
    #[test]
    fn an_old_tick_costs_one_ticks_ids_their_time_and_nothing_else() {
        let clock = Arc::new(ManualClock::at(START));
        let shared = shared(&SnowflakeConfig { clock: Arc::clone(&clock) as _, ..config() });
        let take = || shared.attempt(Sequencer::take);
        shared.ticker.tick.store(LAYOUT.tick_at(START) + 1, Ordering::Relaxed);
        clock.advance(Duration::from_secs(5));

        let ids: Vec<Id> = (0..8000).map(|_| take().unwrap()).collect();

        assert!(ids.is_sorted_by(|a, b| a < b), "no id twice");
        let time = |id: &Id| LAYOUT.decode(*id).unwrap().timestamp;
        let old = ids.iter().filter(|id| time(id) == START).count();
        assert!((3900..=4096).contains(&old), "{old} ids with the old time");
        let now = START + Duration::from_secs(5);
        assert!(ids[old..].iter().all(|id| time(id) == now), "the others have the clock's");

        // Neither a tick from before these ids nor one from the ceiling on does harm.
        for tick in [0, LAYOUT.tick_at(START), LAYOUT.tick_at(START + Duration::from_secs(60))] {
            shared.ticker.tick.store(tick + 1, Ordering::Relaxed);
            assert!(take().unwrap() > ids[7999], "tick {tick}");
        }
        clock.advance(Duration::from_secs(60));
        let refused = take().unwrap_err();
        assert!(matches!(refused.kind(), SnowflakeErrorKind::CeilingReached), "{refused}");
    }

    /// Each interval is looked at by several callers, some of them late.
    #[test]
    fn callers_that_look_at_the_same_time_count_an_interval_once() {
        let ticker = Ticker::new(100);
        let mut position = 1 << 30;
        for interval in 1..=u64::from(BUSY_INTERVALS) {
            assert!(!ticker.runs.load(Ordering::Relaxed), "interval {interval}");
            position += BUSY;
            ticker.look(interval, position, &Weak::<Shared>::new());
            ticker.look(interval, position + 1, &Weak::<Shared>::new());
            ticker.look(interval - 1, position + 2, &Weak::<Shared>::new());
        }
        assert!(ticker.runs.load(Ordering::Relaxed));
    }

    #[test]
    fn ids_of_an_interval_are_counted_about() {
        let at = |tick: u64, sequence: u64| tick << 12 | sequence;
        for (before, position, expected) in [
            (at(7, 50), at(7, 50), 0),
            (at(7, 50), at(7, 90), 40),
            // Another tick, whose first number was 60, perhaps.
            (at(7, 50), at(8, 60), 0),
            (at(7, 50), at(9, 3100), 3000),
            // The tick was used up, also where the next one is not there yet.
            (at(7, 50), at(8, 0), 4096),
            (at(0, 0), at(8, 0), 4096),
        ] {
            assert_eq!(taken(before, position, 100, 12), expected, "{before} to {position}");
        }
    }

    /// The thread starts when the load begins, and ends with it.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the thread under test goes by the real clock")]
    fn the_thread_lives_as_long_as_the_load() {
        let layout = "t40-w1-s22/1ms".parse().unwrap();
        let shared = shared(&SnowflakeConfig { layout, ..config() });
        let is_there = || shared.ticker.tick().is_some();
        let until = SystemClock.boot() + Duration::from_secs(20);
        let in_time = || SystemClock.boot() < until;
        // Few ids begin none.
        for _ in 0..100 {
            shared.attempt(Sequencer::take).unwrap();
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(!is_there());

        let mut before = shared.attempt(Sequencer::take).unwrap();
        while !is_there() && in_time() {
            for _ in 0..1000 {
                let id = shared.attempt(Sequencer::take).unwrap();
                assert!(id > before);
                before = id;
            }
        }
        assert!(is_there(), "a load begins one");
        // A few ids in each tick keep none.
        while is_there() && in_time() {
            for _ in 0..10 {
                shared.attempt(Sequencer::take).unwrap();
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        assert!(!is_there(), "it ends with the load");
        shared.attempt(Sequencer::take).unwrap();
    }
}
