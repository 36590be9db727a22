//! The ids' clock: the source of the timestamps in ids.
//!
//! Invariant: between two readings of the wall clock the ids' clock advances exactly with the boot
//! clock, so that no step of the wall clock reaches the hot path. The ids' clock is the boot clock
//! plus an offset; a watcher moves the offset towards the wall clock by at most 500 ppm. Three
//! events set the offset at once: the start of a lease ([`IdClock::anchor_settled`]), the end of a
//! stop ([`Look::CaughtUp`]), and a jump ahead that an operator or the peers confirmed
//! ([`IdClock::follow`]).
//!
//! A wall clock that falls behind by more than the tolerance stops the ids (the offset is then
//! [`BLOCKED`]) until it is within the tolerance of the last id issued: the Java Leaf's rule, where
//! the tolerance is 5 ms. A wall clock that jumps ahead by more than `max_step_forward` is not
//! followed.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leaf_core::{Clock, UnixMillis};

const BLOCKED: i64 = i64::MIN;
const SLEW_PER_MILLION: i64 = 500;
/// A reading of the wall clock that takes longer is unusable, because the moment at which it was
/// taken is too uncertain.
const WIDEST_READING: Duration = Duration::from_micros(500);
const HALF_MILLI: i64 = 500_000;
/// If wall minus boot changes by this much (ns) between two looks, the wall clock was set.
const STEP: i64 = 10_000_000;
/// If the wall clock was set ahead by more than this (ns), it is in doubt: a claim does not trust
/// it yet.
const DOUBTED: i64 = 5_000_000_000;
/// How long a clock that was set ahead is in doubt: most wrong settings are corrected within this
/// time. If the peers confirm the clock, the claim need not wait.
const SETTLED: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct IdClock {
    clock: Arc<dyn Clock>,
    tolerance: i64,
    max_step_forward: i64,
    /// Nanoseconds to add to the boot clock; [`BLOCKED`] while ids are stopped.
    offset: AtomicI64,
    /// Locked by the watcher, by a claim and by readers of statistics, never where an id is taken.
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    /// The boot clock at the last look.
    boot: Duration,
    /// Wall minus boot clock at the last look, in nanoseconds.
    target: i64,
    /// The offset before the ids were stopped.
    offset_before_stop: i64,
    /// The last time (boot clock) when the wall clock was set by more than `DOUBTED` (ns) in either
    /// direction, and by how many nanoseconds such steps have set it ahead in all since it was last
    /// trusted. `None` if the sum is at most `DOUBTED`.
    set_ahead: Option<(Duration, i64)>,
    steps: ClockSteps,
}

/// A setting of the wall clock that a claim does not trust yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// When the wall clock was set ahead, by the boot clock.
    pub(crate) at: Duration,
    /// By how much the wall clock was set ahead.
    pub(crate) by: Duration,
}

/// How often the wall clock was set since the start, by 10 ms or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockSteps {
    /// How often the wall clock was set back.
    pub back: u64,
    /// How often the wall clock was set ahead.
    pub forward: u64,
    /// The last step in milliseconds, negative when it was set back; 0 when there was none.
    pub last_millis: i64,
}

/// The result of a look at the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Fine,
    /// The reading took too long, so it is not used.
    Unclear,
    /// The wall clock fell behind the ids' clock by this much; ids stop.
    WentBack(Duration),
    /// The wall clock is still behind the last id by this much.
    StillBehind(Duration),
    /// The wall clock has caught up; ids flow again.
    CaughtUp,
    /// The wall clock jumped ahead and is not followed.
    FarAhead,
}

impl IdClock {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        tolerance: Duration,
        max_step_forward: Duration,
    ) -> Self {
        let this = Self {
            clock,
            tolerance: nanos(tolerance),
            max_step_forward: nanos(max_step_forward),
            offset: AtomicI64::new(0),
            watched: Mutex::default(),
        };
        // There is nothing to compare the first reading with.
        let boot = this.clock.boot();
        let target = nanos(this.clock.wall()) - nanos(boot);
        *this.watched() = Watched { boot, target, ..Watched::default() };
        this.offset.store(target, Ordering::Release);
        this
    }

    /// Sets the ids' clock to the wall clock at once if the wall clock is ahead, however far. An
    /// operator or the peers must have confirmed the wall clock. Returns by how much the ids' clock
    /// was moved.
    pub(crate) fn follow(&self) -> Duration {
        let target = nanos(self.clock.wall()) - nanos(self.clock.boot());
        // BLOCKED would pass the comparison, but only a look may end a stop.
        let ahead = |offset| (offset != BLOCKED && offset < target).then_some(target);
        let before = self.offset.fetch_update(Ordering::AcqRel, Ordering::Acquire, ahead);
        before.map_or(Duration::ZERO, |before| {
            Duration::from_nanos((target - before).cast_unsigned())
        })
    }

    /// The time for the next id in nanoseconds since 1970; `None` while ids are stopped because the
    /// wall clock went back.
    #[inline]
    pub(crate) fn now_nanos(&self) -> Option<u64> {
        let offset = self.offset.load(Ordering::Acquire);
        if offset == BLOCKED {
            return None;
        }
        Some(nanos(self.clock.boot()).wrapping_add(offset).max(0).cast_unsigned())
    }

    /// The time for the next id; `None` while ids are stopped because the wall clock went back.
    pub(crate) fn now(&self) -> Option<UnixMillis> {
        self.now_nanos().map(|nanos| UnixMillis::new(nanos / 1_000_000))
    }

    /// By how many milliseconds the ids' clock is ahead of the wall clock; `None` while ids are
    /// stopped because the wall clock went back.
    pub(crate) fn ahead_of_wall(&self) -> Option<i64> {
        let offset = self.offset.load(Ordering::Acquire);
        let target = nanos(self.clock.wall()) - nanos(self.clock.boot());
        (offset != BLOCKED).then(|| (offset - target) / 1_000_000)
    }

    /// Returns the doubt if the wall clock was set far ahead a moment ago, else `None`. From the
    /// wall clock a claim computes a ceiling, which could not be lowered again. A clock that showed
    /// a time before `unset_before` had not been set at all: its first setting is trusted at once.
    pub(crate) fn in_doubt(&self, unset_before: UnixMillis) -> Option<Doubt> {
        self.read(unset_before).1
    }

    /// Returns the wall clock's time, or the doubt while the clock is in doubt. The doubt
    /// `believed` does not count, because the peers have resolved it.
    pub(crate) fn settled(
        &self,
        unset_before: UnixMillis,
        believed: Option<Doubt>,
    ) -> Result<UnixMillis, Doubt> {
        let (boot, target) = self.read_settled(unset_before, believed)?;
        let wall = nanos(boot).saturating_add(target).max(0).cast_unsigned();
        Ok(UnixMillis::new(wall / 1_000_000))
    }

    /// Sets the ids' clock to the wall clock. Fails in the same cases as [`Self::settled`].
    pub(crate) fn anchor_settled(
        &self,
        unset_before: UnixMillis,
        believed: Option<Doubt>,
    ) -> Result<(), Doubt> {
        let (_, target) = self.read_settled(unset_before, believed)?;
        self.offset.store(target, Ordering::Release);
        Ok(())
    }

    /// Reads the boot clock, and wall minus boot clock. Fails in the same cases as
    /// [`Self::settled`].
    fn read_settled(
        &self,
        unset_before: UnixMillis,
        believed: Option<Doubt>,
    ) -> Result<(Duration, i64), Doubt> {
        let (reading, doubt) = self.read(unset_before);
        doubt.filter(|doubt| Some(*doubt) != believed).map_or(Ok(reading), Err)
    }

    /// Reads the boot clock, wall minus boot clock, and the doubt if the wall clock is in doubt.
    fn read(&self, unset_before: UnixMillis) -> ((Duration, i64), Option<Doubt>) {
        let mut before = self.clock.boot();
        let (mut wall, mut boot) = (nanos(self.clock.wall()), self.clock.boot());
        // Repeat a reading that took too long, at most ten times; then use the last one all the same.
        for _ in 0..10 {
            if boot.saturating_sub(before) <= WIDEST_READING {
                break;
            }
            before = boot;
            (wall, boot) = (nanos(self.clock.wall()), self.clock.boot());
        }
        let target = wall - nanos(boot);
        let mut watched = self.watched();
        let shown = nanos(boot) + watched.target;
        watched.notice(boot, target);
        if shown < nanos(unset_before.since_epoch()) {
            watched.set_ahead = None;
        }
        let doubt = watched.set_ahead.filter(|(at, _)| boot.saturating_sub(*at) < SETTLED);
        let doubt = doubt.map(|(at, by)| Doubt { at, by: Duration::from_nanos(by.unsigned_abs()) });
        ((boot, target), doubt)
    }

    pub(crate) fn steps(&self) -> ClockSteps {
        self.watched().steps
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn wall(&self) -> UnixMillis {
        self.clock.wall_millis()
    }

    /// The time since the machine booted, including the time in which it slept.
    pub(crate) fn boot(&self) -> Duration {
        self.clock.boot()
    }

    /// Looks at the wall clock. `next_free` is the first instant above all ids issued so far.
    /// Called by one watcher, several times a second.
    pub(crate) fn look(&self, next_free: UnixMillis) -> Look {
        let before = self.clock.boot();
        let wall = nanos(self.clock.wall());
        let boot = self.clock.boot();
        let mut watched = self.watched();
        if boot.saturating_sub(before) > WIDEST_READING {
            return Look::Unclear;
        }
        let elapsed = boot.saturating_sub(watched.boot);
        let target = wall - nanos(boot);
        watched.notice(boot, target);
        let behind_ids = nanos(next_free.since_epoch()) - wall;
        let offset = self.offset.load(Ordering::Acquire);
        if offset == BLOCKED {
            if behind_ids > self.tolerance {
                return Look::StillBehind(Duration::from_nanos(behind_ids.unsigned_abs()));
            }
            // The wall, or the last id where that is ahead.
            let resumed = target + behind_ids.max(0);
            // If the wall has meanwhile jumped ahead by more than `max_step_forward`, resume at the
            // old offset; the next look reports `FarAhead`.
            let followed = resumed - watched.offset_before_stop <= self.max_step_forward;
            self.offset.store(
                if followed { resumed } else { watched.offset_before_stop },
                Ordering::Release,
            );
            return Look::CaughtUp;
        }
        let difference = target - offset;
        // Rounded to whole milliseconds, as the Java Leaf compares: with a tolerance of 5 ms
        // ids flow on after a step back of 5 ms, and stop after one of 6.
        if difference < -(self.tolerance + HALF_MILLI) {
            // Stop even if the wall clock is still later than every id issued so far: a caller may
            // have read the ids' clock before the step and not have taken its id yet. The next look
            // counts that id in `next_free`.
            watched.offset_before_stop = offset;
            self.offset.store(BLOCKED, Ordering::Release);
            return Look::WentBack(Duration::from_nanos(difference.unsigned_abs()));
        }
        if difference > self.max_step_forward {
            return Look::FarAhead;
        }
        let slew = nanos(elapsed).saturating_mul(SLEW_PER_MILLION) / 1_000_000;
        self.offset.store(offset + difference.clamp(-slew, slew), Ordering::Release);
        Look::Fine
    }
}

impl Watched {
    /// Records the reading, and whether the wall clock was set since the last one.
    fn notice(&mut self, boot: Duration, target: i64) {
        let moved = target - self.target;
        self.steps.notice(moved);
        let lately = self.set_ahead.filter(|(at, _)| boot.saturating_sub(*at) < SETTLED);
        let set_by = lately.map_or(moved, |(_, by)| by + moved);
        match moved.abs() > DOUBTED {
            // The clock was set back to about where it was before.
            true if set_by <= DOUBTED => self.set_ahead = None,
            true => self.set_ahead = Some((boot, set_by)),
            false => {}
        }
        (self.boot, self.target) = (boot, target);
    }
}

impl ClockSteps {
    fn notice(&mut self, moved: i64) {
        if moved.abs() < STEP {
            return;
        }
        *(if moved < 0 { &mut self.back } else { &mut self.forward }) += 1;
        self.last_millis = moved / 1_000_000;
        match self.last_millis.abs() < 1000 {
            true => tracing::debug!("the clock was set by {} ms", self.last_millis),
            false => tracing::warn!("the clock was set by {} ms", self.last_millis),
        }
    }
}

/// Converts a duration to nanoseconds; one of more than 146 years becomes 146 years.
#[inline]
const fn nanos(duration: Duration) -> i64 {
    const MOST: u64 = i64::MAX.cast_unsigned() / 2;
    if duration.as_secs() >= MOST / 1_000_000_000 {
        return MOST.cast_signed();
    }
    (duration.as_secs() * 1_000_000_000 + duration.subsec_nanos() as u64).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaf_core::ManualClock;

    const START: UnixMillis = UnixMillis::new(1_800_000_000_000);
    const TICK: Duration = Duration::from_millis(100);

    #[test]
    fn a_clock_that_was_set_ahead_is_in_doubt_for_a_while() {
        let (wall, ids) = clock(Duration::from_secs(1));
        let hour = Duration::from_secs(3600);
        let set = |ahead: Duration| wall.set_wall(wall.wall_millis() + ahead);
        let doubt = || ids.in_doubt(START).map(|doubt| doubt.by);
        assert_eq!(doubt(), None);
        set(Duration::from_secs(4));
        assert_eq!(doubt(), None, "as NTP does");
        set(hour);
        assert_eq!(doubt(), Some(hour));
        wall.advance(Duration::from_secs(2));
        wall.set_wall(UnixMillis::new(wall.wall_millis().get() - 3_600_000));
        assert_eq!(doubt(), None, "it was put right");
        set(hour);
        wall.advance(Duration::from_secs(9));
        // As a look of the watcher sees it.
        let _ = ids.look(START);
        assert_eq!(doubt(), Some(hour));
        wall.advance(Duration::from_secs(10));
        assert_eq!(doubt(), None, "it stays so");
        wall.set_wall(UnixMillis::new(wall.wall_millis().get() - 60_000));
        assert_eq!(doubt(), None, "back is no harm");
        // A clock that was not set at all is set.
        let unset = Arc::new(ManualClock::at(UnixMillis::new(1_000_000)));
        let ids = IdClock::new(Arc::clone(&unset) as _, Duration::from_secs(1), hour);
        unset.set_wall(START + hour);
        assert_eq!(ids.in_doubt(START), None);
    }

    /// The ids' clock, created one `TICK` after `START`, and the wall clock that it reads.
    fn clock(tolerance: Duration) -> (Arc<ManualClock>, IdClock) {
        let manual = Arc::new(ManualClock::at(START));
        manual.advance(TICK);
        let hour = Duration::from_secs(3600);
        (Arc::clone(&manual), IdClock::new(manual, tolerance, hour))
    }

    fn step_back(manual: &ManualClock, by: Duration) {
        manual.set_wall(manual.wall_millis() - by);
    }

    #[test]
    fn leafs_rule_at_5_ms() {
        let five = Duration::from_millis(5);
        for (back, served) in [(5, true), (6, false)] {
            let (manual, ids) = clock(five);
            let last_issued = ids.now().unwrap();

            step_back(&manual, Duration::from_millis(back));
            let look = ids.look(last_issued);

            assert_eq!(ids.now().is_some(), served, "{back} ms back: {look:?}");
        }
    }

    #[test]
    fn a_step_within_the_tolerance_is_not_seen() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let before = ids.now().unwrap();

        step_back(&manual, Duration::from_secs(1));
        assert_eq!(ids.look(before), Look::Fine);
        manual.advance(TICK);

        let difference = ids.now().unwrap() - before;
        assert!(difference >= TICK - Duration::from_millis(1), "{difference:?}");
    }

    #[test]
    fn an_hour_back_stops_the_ids_until_the_wall_is_at_the_last_one() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let last_issued = ids.now().unwrap();
        let hour = Duration::from_secs(3600);

        step_back(&manual, hour);
        assert_eq!(ids.look(last_issued), Look::WentBack(hour));
        assert_eq!(ids.now(), None);
        manual.advance(hour - Duration::from_secs(2));
        assert!(matches!(ids.look(last_issued), Look::StillBehind(_)));
        manual.advance(Duration::from_secs(1));
        assert_eq!(ids.look(last_issued), Look::CaughtUp);

        assert_eq!(ids.now(), Some(last_issued), "never before the last id");
    }

    #[test]
    fn a_corrected_clock_heals_at_once() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let last_issued = ids.now().unwrap();
        step_back(&manual, Duration::from_secs(60));
        ids.look(last_issued);

        manual.set_wall(START + TICK + TICK);

        assert_eq!(ids.look(last_issued), Look::CaughtUp);
        assert_eq!(ids.now(), Some(START + TICK + TICK));
    }

    #[test]
    fn a_node_that_issued_nothing_lately_follows_back_at_the_next_look() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let last_issued = START - Duration::from_secs(7200);

        step_back(&manual, Duration::from_secs(3600));

        assert!(matches!(ids.look(last_issued), Look::WentBack(_)));
        assert_eq!(ids.look(last_issued), Look::CaughtUp);
        assert_eq!(ids.now(), Some(manual.wall_millis()));
    }

    #[test]
    fn a_jump_ahead_is_slewed_and_a_great_one_not_followed() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let before = ids.now().unwrap();
        manual.set_wall(START + Duration::from_secs(60));
        manual.advance(Duration::from_secs(1));

        assert_eq!(ids.look(before), Look::Fine);
        let ahead = ids.now().unwrap() - before;
        assert!(ahead <= Duration::from_micros(1_000_600), "at most 500 ppm faster: {ahead:?}");

        manual.set_wall(START + Duration::from_secs(86_400));
        assert_eq!(ids.look(before), Look::FarAhead);
    }

    #[test]
    fn a_jump_ahead_after_a_step_back_is_not_followed_either() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let last_issued = ids.now().unwrap();
        step_back(&manual, Duration::from_secs(5));
        ids.look(last_issued);
        assert_eq!(ids.now(), None);

        manual.set_wall(START + Duration::from_secs(86_400));

        assert_eq!(ids.look(last_issued), Look::CaughtUp, "it is not behind any more");
        assert_eq!(ids.now(), Some(last_issued), "but not a day ahead");
        assert_eq!(ids.look(last_issued), Look::FarAhead);
    }

    #[test]
    fn a_jump_that_somebody_vouches_for_is_followed_at_once() {
        let (manual, ids) = clock(Duration::from_secs(1));
        manual.set_wall(START + Duration::from_secs(86_400));

        ids.follow();

        assert_eq!(ids.now(), Some(manual.wall_millis()));
        manual.set_wall(START);
        ids.follow();
        assert_eq!(ids.now(), Some(START + Duration::from_secs(86_400)), "never back");
    }

    #[test]
    fn steps_are_counted() {
        let (manual, ids) = clock(Duration::from_secs(1));
        let last = ids.now().unwrap();
        for offset in [500, 500, 0, 0, 5] {
            manual.advance(TICK);
            manual.set_wall(START + manual.boot() + Duration::from_millis(offset));
            ids.look(last);
        }

        let steps = ClockSteps { back: 1, forward: 1, last_millis: -500 };
        assert_eq!(ids.steps(), steps);
        assert_eq!(ids.ahead_of_wall(), Some(-4), "5 ms, less what was slewed since");
    }

    /// Failure W-20 (docs/failures.md): the ids' clock follows a wall clock that runs too fast or
    /// too slow at 500 ppm at most.
    #[test]
    fn the_rate_of_the_ids_clock_is_bounded() {
        for (per_tick, most) in [(110, 1), (100, 0), (99, 1)] {
            let (manual, ids) = clock(Duration::from_secs(60));
            let mut wall = START + TICK;
            let mut before = ids.now_nanos().unwrap();
            for _ in 0..100 {
                manual.advance(TICK);
                wall = wall + Duration::from_millis(per_tick);
                manual.set_wall(wall);
                ids.look(START);
                let now = ids.now_nanos().unwrap();
                let error = (now - before).abs_diff(100_000_000);
                assert!(error <= most * 50_000, "{per_tick}: {error} ns in 100 ms");
                before = now;
            }
        }
    }
}
