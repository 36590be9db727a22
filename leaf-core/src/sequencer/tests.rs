use super::*;
use crate::Unit;
use proptest::prelude::*;

const NOW: u64 = 1_000_000;

fn instant(tick: u64) -> UnixMillis {
    Layout::LEAF.instant(tick)
}

fn sequencer(floor: u64, now: u64) -> Sequencer {
    let floor = instant(floor);
    let sequencer = Sequencer::new(Layout::LEAF, WorkerId::new(5), floor, instant(now), 100);
    sequencer.raise(UnixMillis::new(u64::MAX));
    sequencer
}

fn take(sequencer: &Sequencer, now: u64) -> (u64, u64) {
    let parts = Layout::LEAF.decode(sequencer.take(now).unwrap()).unwrap();
    assert_eq!(parts.worker.get(), 5);
    (Layout::LEAF.tick_at(parts.timestamp), parts.sequence)
}

#[test]
fn a_quiet_millisecond_starts_below_the_bound_and_evenly() {
    let sequencer = sequencer(0, NOW);

    let starts: Vec<u64> =
        (0..10_000).map(|i| take(&sequencer, NOW + 50 * i)).map(|(_, start)| start).collect();

    assert!(starts.iter().all(|start| *start < 100));
    for residue in 0..10 {
        let share = starts.iter().filter(|start| *start % 10 == residue).count();
        assert!((900..1100).contains(&share), "{share} of 10,000 are {residue} mod 10");
    }
}

#[test]
fn a_full_millisecond_has_to_wait_for_the_next() {
    let sequencer = sequencer(NOW, NOW);
    for sequence in 0..4096 {
        assert_eq!(take(&sequencer, NOW), (NOW, sequence));
    }

    assert_eq!(sequencer.take(NOW), Err(Refusal::Wait(NOW + 1)));
    assert_eq!(take(&sequencer, NOW + 1), (NOW + 1, 0));
}

#[test]
fn skipped_milliseconds_are_used_after_exhaustion() {
    let sequencer = sequencer(NOW, NOW);
    for _ in 0..4096 {
        take(&sequencer, NOW);
    }

    assert_eq!(take(&sequencer, NOW + 10), (NOW + 1, 0), "9 ms behind: none is skipped");
    for _ in 1..4096 {
        take(&sequencer, NOW + 10);
    }
    assert_eq!(take(&sequencer, NOW + 12).0, NOW + 12, "10 ms behind: they are");
}

#[test]
fn a_run_ends_where_the_usable_time_does() {
    let run = |sequencer: &Sequencer, now, most| {
        let ids: Vec<_> = sequencer.take_run(now, most).unwrap().collect();
        let at = |id: &Id| Layout::LEAF.decode(*id).unwrap();
        let (first, last) = (at(&ids[0]), at(ids.last().unwrap()));
        (ids.len(), Layout::LEAF.tick_at(first.timestamp), Layout::LEAF.tick_at(last.timestamp))
    };
    let busy = sequencer(NOW, NOW);
    assert_eq!(run(&busy, NOW, 100), (100, NOW, NOW));
    assert_eq!(run(&busy, NOW, 5000), (3996, NOW, NOW), "no further than this millisecond");
    assert_eq!(busy.take_run(NOW, 1).unwrap_err(), Refusal::Wait(NOW + 1));
    assert_eq!(run(&busy, NOW + 3, 10_000), (10_000, NOW + 1, NOW + 3), "over skipped ones");
    assert_eq!(run(&busy, NOW + 5, 1), (1, NOW + 3, NOW + 3), "the rest of a carried one");

    let near = Sequencer::new(Layout::LEAF, WorkerId::new(5), instant(NOW), instant(NOW), 100);
    near.raise(instant(NOW + 2));
    assert_eq!(run(&near, NOW + 1, u64::MAX), (8192, NOW, NOW + 1), "up to the ceiling");
    assert_eq!(near.take_run(NOW + 2, 5).unwrap_err(), Refusal::Ceiling);
    near.raise(instant(NOW + 4));
    assert_eq!(run(&near, NOW + 9, u64::MAX), (8192, NOW + 2, NOW + 3), "over skipped ones too");

    let last = Layout::LEAF.max_tick();
    let ending = sequencer(last, last);
    assert_eq!(run(&ending, u64::MAX, u64::MAX), (4096, last, last), "up to the end of time");
}

#[test]
fn a_clock_behind_the_last_id_changes_nothing() {
    let sequencer = sequencer(0, NOW);
    let first = take(&sequencer, NOW);

    assert_eq!(take(&sequencer, NOW), (NOW, first.1 + 1), "ids rise in one millisecond");
    assert_eq!(sequencer.take(NOW - 1), Err(Refusal::Wait(NOW)));
}

#[test]
fn a_floor_ahead_of_the_clock_is_served_at_full_rate() {
    let sequencer = sequencer(NOW + 900, NOW);

    for millisecond in 0..5 {
        for sequence in 0..4096 {
            let expected = (NOW + 900 + millisecond, sequence);
            assert_eq!(take(&sequencer, NOW + millisecond), expected);
        }
        assert_eq!(sequencer.take(NOW + millisecond), Err(Refusal::Wait(NOW + millisecond + 1)));
    }
    assert_eq!(take(&sequencer, NOW + 2000).0, NOW + 2000, "the clock has caught up");
    for _ in 0..4095 {
        let _ = sequencer.take(NOW + 2000);
    }
    assert_eq!(sequencer.take(NOW + 2000), Err(Refusal::Wait(NOW + 2001)), "no lead is left");
}

#[test]
fn nothing_at_or_above_the_ceiling_is_given_out() {
    let sequencer = Sequencer::new(Layout::LEAF, WorkerId::new(5), instant(NOW), instant(NOW), 100);
    assert_eq!(sequencer.take(NOW), Err(Refusal::Ceiling), "nothing is confirmed yet");

    sequencer.raise(instant(NOW + 20));
    assert!(sequencer.take(NOW + 19).is_ok());
    assert_eq!(sequencer.take(NOW + 20), Err(Refusal::Ceiling));

    sequencer.raise(instant(NOW + 1));
    assert!(sequencer.take(NOW + 19).is_ok(), "a ceiling is never lowered");
}

#[test]
fn past_the_last_representable_instant_it_is_an_error() {
    let end = Layout::LEAF.max_tick();
    let sequencer = sequencer(end, end);

    for _ in 0..4096 {
        assert!(sequencer.take(end).unwrap().get() > 0);
    }
    assert_eq!(sequencer.take(end), Err(Refusal::Wait(end + 1)));
    assert_eq!(sequencer.take(end + 1), Err(Refusal::EndOfTime));
    assert_eq!(sequencer.take(u64::MAX), Err(Refusal::EndOfTime));
}

#[test]
fn close_tells_the_first_unused_instant() {
    let unused = sequencer(NOW, NOW);
    assert_eq!(unused.close(), Some(instant(NOW)));

    let used = sequencer(NOW, NOW);
    take(&used, NOW + 50);
    assert_eq!(used.next_free(), instant(NOW + 51));
    assert_eq!(used.close(), Some(instant(NOW + 51)));
    assert_eq!(used.close(), None);
    assert_eq!(used.take(NOW + 60), Err(Refusal::Closed));
}

#[test]
fn coarse_ticks_round_the_floor_up_and_the_ceiling_down() {
    let layout = Layout::new(
        [(Field::Timestamp, 31), (Field::Worker, 10), (Field::Sequence, 12)],
        Unit::Second,
        UnixMillis::EPOCH,
    )
    .unwrap();
    let sequencer = Sequencer::new(
        layout,
        WorkerId::new(0),
        UnixMillis::new(1_000_001),
        UnixMillis::new(1_000_000),
        0,
    );
    sequencer.raise(UnixMillis::new(1_002_999));

    let first = layout.decode(sequencer.take(1001).unwrap()).unwrap();
    assert_eq!(first.timestamp, UnixMillis::new(1_001_000));
    assert_eq!(sequencer.take(1002), Err(Refusal::Ceiling));
}

proptest! {
    /// The clock may do anything; ids strictly increase and stay within their slice.
    #[test]
    fn ids_increase_within_floor_and_ceiling(
        floor in NOW - 2000..NOW + 2000,
        ceiling in NOW..NOW + 3000,
        moves in prop::collection::vec((-1500i64..1500, 0usize..6000, 1u64..9000), 1..20),
    ) {
        let sequencer =
            Sequencer::new(Layout::LEAF, WorkerId::new(5), instant(floor), instant(NOW), 100);
        sequencer.raise(instant(ceiling));
        let mut last = None;
        for (offset, ids, most) in moves {
            let now = NOW.saturating_add_signed(offset);
            let singles = (0..ids).map_while(|_| sequencer.take(now).ok());
            let run = || sequencer.take_run(now, most).into_iter().flatten();
            for id in singles.chain(std::iter::once_with(run).flatten()) {
                prop_assert!(Some(id) > last);
                last = Some(id);
                let at = Layout::LEAF.decode(id).unwrap().timestamp;
                prop_assert!(instant(floor) <= at && at < instant(ceiling));
                let lead = Duration::from_millis(floor.saturating_sub(NOW));
                prop_assert!(at <= instant(now) + lead);
            }
        }
    }
}

#[test]
fn it_tells_what_can_be_taken_and_takes_nothing() {
    let sequencer = sequencer(NOW, NOW);
    assert_eq!(sequencer.position(), Some(NOW << 12));
    assert_eq!(sequencer.available(NOW), Ok(4096));
    take(&sequencer, NOW);
    assert_eq!((sequencer.available(NOW), sequencer.position()), (Ok(4095), Some((NOW << 12) + 1)));
    assert_eq!(sequencer.refuses(NOW, Duration::ZERO), None);
    sequencer.take_run(NOW, 5000).unwrap();
    let wait = Refusal::Wait(NOW + 1);
    assert_eq!(sequencer.available(NOW), Err(wait));
    assert_eq!(sequencer.refuses(NOW, Duration::ZERO), Some(wait));
    assert_eq!(sequencer.refuses(NOW, Duration::from_micros(999)), Some(wait));
    assert_eq!(sequencer.refuses(NOW, Duration::from_millis(1)), None, "it is there by then");
    assert_eq!(sequencer.refuses(NOW - 1, Duration::from_millis(1)), Some(wait), "2 ms away");
    assert_eq!(sequencer.position(), Some((NOW + 1) << 12));
    sequencer.close();
    assert_eq!((sequencer.position(), sequencer.available(NOW)), (None, Err(Refusal::Closed)));
    assert_eq!(sequencer.refuses(NOW, Duration::MAX), Some(Refusal::Closed));
}

#[test]
fn patience_is_counted_in_ticks() {
    let second = Layout::SONYFLAKE.unit().millis();
    assert!(second > 1, "a tick of more than a millisecond");
    let (now, ceiling) = (Layout::SONYFLAKE.instant(NOW), UnixMillis::new(u64::MAX));
    let sequencer = Sequencer::new(Layout::SONYFLAKE, WorkerId::new(5), now, now, 0);
    sequencer.raise(ceiling);
    let most = 1 << Layout::SONYFLAKE.bits(crate::Field::Sequence);
    sequencer.take_run(NOW, most).unwrap();
    let wait = Some(Refusal::Wait(NOW + 1));
    assert_eq!(sequencer.refuses(NOW, Duration::from_millis(second - 1)), wait);
    assert_eq!(sequencer.refuses(NOW, Duration::from_millis(second)), None);
}

#[test]
fn a_ceiling_only_rises_and_says_so() {
    let now = instant(NOW);
    let sequencer = Sequencer::new(Layout::LEAF, WorkerId::new(5), now, now, 100);
    assert_eq!(sequencer.take(NOW), Err(Refusal::Ceiling));
    assert!(sequencer.raise(instant(NOW + 1)));
    assert!(!sequencer.raise(instant(NOW + 1)), "as high as before");
    assert!(!sequencer.raise(instant(NOW)), "lower");
    assert_eq!(take(&sequencer, NOW).0, NOW);
    assert!(sequencer.raise(instant(NOW + 2)));
}

#[test]
fn what_is_skipped_is_not_given_out() {
    let sequencer = sequencer(NOW, NOW);
    sequencer.skip_to(NOW + 3);
    sequencer.skip_to(NOW + 1);
    assert_eq!(sequencer.position(), Some((NOW + 3) << 12));
    assert_eq!(sequencer.take(NOW), Err(Refusal::Wait(NOW + 3)));
    assert_eq!(take(&sequencer, NOW + 3), (NOW + 3, 0));
    sequencer.skip_to(u64::MAX);
    assert_eq!(sequencer.take(NOW + 5), Err(Refusal::Wait(1 << 41)), "behind the last tick");
    sequencer.close();
    sequencer.skip_to(NOW);
    assert_eq!(sequencer.position(), None, "closed stays closed");
}

#[test]
fn a_quiet_tick_starts_elsewhere_for_another_worker() {
    let start = |worker: u32| {
        let (floor, now) = (instant(0), instant(NOW));
        let sequencer = Sequencer::new(Layout::LEAF, WorkerId::new(worker), floor, now, 4096);
        sequencer.raise(UnixMillis::new(u64::MAX));
        Layout::LEAF.decode(sequencer.take(NOW).unwrap()).unwrap().sequence
    };
    let starts: std::collections::HashSet<u64> = (0..64).map(start).collect();
    assert!(starts.len() > 32, "{} of 64 workers differ", starts.len());
}

#[test]
fn a_run_tells_how_many_are_left() {
    let sequencer = sequencer(NOW, NOW);
    let mut run = sequencer.take_run(NOW, 5).unwrap();
    for left in (0..5).rev() {
        run.next();
        assert_eq!((run.len(), run.size_hint()), (left, (left, Some(left))));
    }
    assert_eq!(format!("{run:?}"), "IdRun(0 ids)");
}
