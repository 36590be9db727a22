//! Tests of the double buffer, against a model and from several threads (G-12).

use super::*;
use proptest::prelude::*;
use std::sync::Arc;

fn range(start: i64, end: i64) -> IdRange {
    IdRange::new(start, end).unwrap()
}

fn drain(buffer: &DoubleBuffer) -> Vec<i64> {
    std::iter::from_fn(|| match buffer.take() {
        Take::Some(id) | Take::SomeAndPrefetch(id) => Some(id.get()),
        Take::Empty | Take::Closed => None,
    })
    .collect()
}

#[test]
fn serves_two_segments_in_order_then_is_empty() {
    let buffer = DoubleBuffer::new();
    assert_eq!(buffer.take(), Take::Empty);

    assert!(buffer.publish(range(1, 4)));
    assert_eq!(drain(&buffer), [1, 2, 3]);
    assert!(buffer.publish(range(10, 12)));

    assert_eq!(drain(&buffer), [10, 11]);
    assert_eq!(buffer.take(), Take::Empty);
}

#[test]
fn holds_one_segment_ahead_and_no_more() {
    let buffer = DoubleBuffer::new();
    buffer.publish(range(1, 4));
    buffer.take();

    assert!(buffer.publish(range(10, 12)));
    assert!(!buffer.publish(range(20, 22)), "both slots are full");

    assert_eq!(drain(&buffer), [2, 3, 10, 11]);
}

#[test]
fn a_segment_has_at_most_as_many_ids_as_31_bits_count() {
    let buffer = DoubleBuffer::new();
    let most = i64::from(i32::MAX);

    assert!(!buffer.publish(range(1, most + 2)));
    assert!(buffer.publish(range(1, most + 1)));
}

#[test]
fn a_run_ends_with_its_segment() {
    let buffer = DoubleBuffer::new();
    buffer.publish(range(1, 101));
    assert_eq!(buffer.take_run(10), Take::Some(range(1, 11)));
    assert_eq!(buffer.take_run(20), Take::SomeAndPrefetch(range(11, 31)), "the tenth");
    buffer.publish(range(500, 600));

    assert_eq!(buffer.take_run(u32::MAX), Take::Some(range(31, 101)));
    assert_eq!(buffer.take_run(0), Take::Some(range(500, 501)), "at least 1");
    assert_eq!(buffer.take_run(1000), Take::SomeAndPrefetch(range(501, 600)));
    assert_eq!(buffer.take_run(1000), Take::Empty);
    buffer.close();
    assert_eq!(buffer.take_run(1), Take::Closed);
}

#[test]
fn ids_that_follow_each_other_leave_a_tail_that_is_too_short() {
    let buffer = DoubleBuffer::new();
    assert_eq!(buffer.take_contiguous(1), None);
    buffer.publish(range(1, 11));
    assert_eq!(buffer.take_contiguous(8), Some(Take::SomeAndPrefetch(range(1, 9))));
    buffer.publish(range(50, 60));

    assert_eq!(buffer.take_contiguous(3), None, "2 are left");
    assert_eq!(buffer.take(), Take::Some(Id::new(9).unwrap()));
    assert_eq!(buffer.take(), Take::Some(Id::new(10).unwrap()));
    assert_eq!(buffer.take_contiguous(3), Some(Take::SomeAndPrefetch(range(50, 53))));
    buffer.close();
    assert_eq!(buffer.take_contiguous(1), None);
}

/// Checks all that the buffer reports, at each step through two segments.
#[test]
fn it_tells_where_it_stands() {
    let buffer = DoubleBuffer::new();
    let seen = || {
        let slots = buffer.view().slots;
        (buffer.segment_length(), buffer.stock(), buffer.last_taken(), slots)
    };
    assert_eq!(seen(), (0, 0, None, [None, None]));
    assert_eq!((buffer.view().position, buffer.is_closed()), (None, false));
    let (one, two) = (range(101, 121), range(500, 510));
    buffer.publish(one);
    assert_eq!((buffer.stock(), buffer.last_taken()), (20, None), "nothing was taken");
    assert!(!buffer.prefetch_due(), "all is left");
    assert_eq!(buffer.take_run(2), Take::Some(range(101, 103)));
    assert!(!buffer.prefetch_due(), "90 % are left");
    assert_eq!((buffer.segment_length(), buffer.stock(), buffer.last_taken()), (20, 18, Some(102)));
    assert_eq!((buffer.view().position, buffer.view().current), (Some(103), 1));
    assert_eq!(buffer.view().slots, [None, Some(one)]);
    assert_eq!(buffer.take(), Take::SomeAndPrefetch(Id::new(103).unwrap()));
    assert!(buffer.prefetch_due());
    buffer.publish(two);
    assert!(!buffer.prefetch_due(), "the next one is there");
    assert_eq!((buffer.stock(), buffer.last_taken()), (17 + 10, Some(103)));
    assert_eq!(buffer.take_contiguous(17), Some(Take::Some(range(104, 121))), "all that is left");
    assert_eq!((buffer.stock(), buffer.last_taken()), (10, Some(120)));
    assert_eq!(buffer.take(), Take::Some(Id::new(500).unwrap()));
    assert_eq!((buffer.stock(), buffer.last_taken(), buffer.view().current), (9, Some(500), 0));
    drain(&buffer);
    assert_eq!((buffer.segment_length(), buffer.stock(), buffer.last_taken()), (10, 0, Some(509)));
    assert_eq!(buffer.take_run(3), Take::Empty);
    assert_eq!(buffer.last_taken(), Some(509), "whoever asks in vain takes nothing");
    let closed = buffer.close().unwrap();
    assert_eq!(buffer.issued_end(closed), Some(510));
    assert!(buffer.is_closed() && buffer.next_is_ready() && !buffer.prefetch_due());
    assert_eq!((buffer.stock(), buffer.close().is_none()), (0, true));
}

#[test]
fn the_last_id_before_a_switch_is_told_from_the_other_slot() {
    let buffer = DoubleBuffer::new();
    buffer.publish(range(1, 4));
    drain(&buffer);
    buffer.publish(range(50, 60));
    // Somebody has switched to the next segment, and took nothing of it.
    assert_eq!(buffer.take_contiguous(11), None);
    assert_eq!((buffer.last_taken(), buffer.stock()), (Some(3), 10));
    assert_eq!(buffer.take(), Take::Some(Id::new(50).unwrap()));
    assert_eq!(buffer.last_taken(), Some(50));
}

#[test]
fn what_was_issued_before_the_close_is_told() {
    for (taken, end) in [(0, None), (1, Some(2)), (3, Some(4)), (10, Some(11))] {
        let buffer = DoubleBuffer::new();
        buffer.publish(range(1, 11));
        for _ in 0..taken {
            let _ = buffer.take();
        }
        let closed = buffer.close().unwrap();
        assert_eq!(buffer.issued_end(closed), end, "{taken} of 10");
    }
    // Nothing of the second segment: what was issued ends before it.
    let buffer = DoubleBuffer::new();
    buffer.publish(range(1, 4));
    drain(&buffer);
    buffer.publish(range(50, 60));
    assert_eq!(buffer.take_contiguous(11), None, "it has switched");
    let closed = buffer.close().unwrap();
    assert_eq!(buffer.issued_end(closed), Some(50));
}

#[test]
fn whatever_is_taken_is_taken_once() {
    const SEGMENTS: i64 = 2000;
    const LENGTH: i64 = 257;
    let buffer = DoubleBuffer::new();
    let done = AtomicBool::new(false);
    let taker = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut taken = Vec::new();
        loop {
            let last = done.load(Ordering::Acquire);
            let found = match random.u32(..3) {
                0 => match buffer.take() {
                    Take::Some(id) | Take::SomeAndPrefetch(id) => {
                        IdRange::new(id.get(), id.get() + 1)
                    }
                    _ => None,
                },
                1 => match buffer.take_run(random.u32(1..100)) {
                    Take::Some(run) | Take::SomeAndPrefetch(run) => Some(run),
                    _ => None,
                },
                _ => match buffer.take_contiguous(random.u32(1..20)) {
                    Some(Take::Some(run) | Take::SomeAndPrefetch(run)) => Some(run),
                    _ => None,
                },
            };
            match found {
                Some(range) => taken.extend(range.iter().map(Id::get)),
                None if last && buffer.stock() == 0 => return taken,
                None => std::thread::yield_now(),
            }
        }
    };
    let mut ids: Vec<i64> = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..3).map(|seed| scope.spawn(move || taker(seed))).collect();
        for segment in 0..SEGMENTS {
            while !buffer.publish(range(segment * LENGTH, (segment + 1) * LENGTH)) {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
        takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
    });

    ids.sort_unstable();
    let all = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), all, "repeated");
    assert!(ids.iter().all(|id| (0..SEGMENTS * LENGTH).contains(id)));
    // What a suspended caller loses is a gap.
    assert!(all as i64 > SEGMENTS * LENGTH * 9 / 10, "{all} ids");
}

#[test]
fn asks_for_the_next_segment_once_a_tenth_is_used() {
    for (length, first_over_a_tenth) in [(1, 1), (9, 1), (10, 2), (100, 11), (1005, 101)] {
        let buffer = DoubleBuffer::new();
        buffer.publish(range(0, length));

        let asked: Vec<usize> = (1..=length as usize)
            .filter(|_| matches!(buffer.take(), Take::SomeAndPrefetch(_)))
            .collect();

        assert_eq!(asked.len(), 1);
        let buffer = DoubleBuffer::new();
        buffer.publish(range(0, length));
        let when = (1..).find(|_| matches!(buffer.take(), Take::SomeAndPrefetch(_)));
        assert_eq!(when, Some(first_over_a_tenth), "segment of {length}");
        assert!(buffer.prefetch_due());
    }
}

/// Loom does not reach this schedule in reasonable time, so it is written out.
#[test]
fn a_caller_suspended_before_its_read_loses_the_offset() {
    let buffer = DoubleBuffer::new();
    buffer.publish(range(10, 12));
    buffer.take();

    let suspended = Cursor(buffer.cursor.0.fetch_add(1, Ordering::AcqRel));
    buffer.publish(range(20, 21));
    assert_eq!(drain(&buffer), [20]);
    buffer.publish(range(30, 32));
    assert_eq!(drain(&buffer), [30, 31]);

    assert_eq!(Slot::read(&buffer.segments.0.slots, suspended), None, "31 was handed out already");
    assert_eq!(buffer.slot(suspended).read_run(suspended, 5), None, "nor is it part of a run");
}

/// Otherwise many calls on an empty buffer would carry the offset into the generation.
#[test]
fn nobody_adds_to_a_segment_that_is_used_up() {
    let buffer = DoubleBuffer::new();
    buffer.publish(range(10, 12));
    drain(&buffer);
    for _ in 0..1000 {
        assert_eq!(buffer.take(), Take::Empty);
    }
    assert!(buffer.now().offset() <= 3, "{} for 2 ids", buffer.now().offset());

    buffer.publish(range(20, 22));
    assert_eq!(drain(&buffer), [20, 21]);
    buffer.close();
    let closed = buffer.now().0;
    for _ in 0..1000 {
        assert_eq!(buffer.take(), Take::Closed);
    }
    assert_eq!(buffer.now().0, closed);
}

#[test]
fn what_is_left_at_the_close_is_told_if_it_reaches_the_end() {
    let left = |segments: &[IdRange], taken: u32| {
        let buffer = DoubleBuffer::new();
        assert!(segments.iter().all(|segment| buffer.publish(*segment)));
        if taken > 0 {
            buffer.take_run(taken);
        }
        let unused = buffer.close().and_then(|at| buffer.unused(at));
        assert!(buffer.close().is_none(), "once");
        unused
    };
    assert_eq!(left(&[], 0), None);
    assert_eq!(left(&[range(1, 11)], 0), Some(range(1, 11)), "fetched and not begun");
    assert_eq!(left(&[range(1, 11)], 4), Some(range(5, 11)));
    assert_eq!(left(&[range(1, 11)], 10), None);
}

#[test]
fn what_is_left_spans_both_segments_only_where_they_touch() {
    for (second, unused) in [(range(11, 21), range(5, 21)), (range(50, 60), range(50, 60))] {
        let buffer = DoubleBuffer::new();
        buffer.publish(range(1, 11));
        buffer.take_run(4);
        buffer.publish(second);
        assert_eq!(buffer.close().and_then(|at| buffer.unused(at)), Some(unused));
    }
}

#[test]
fn a_closed_buffer_gives_nothing_and_takes_nothing() {
    let buffer = DoubleBuffer::new();
    buffer.publish(range(1, 4));
    buffer.take();

    buffer.close();

    assert_eq!(buffer.take(), Take::Closed);
    assert!(!buffer.publish(range(10, 12)));
    assert!(buffer.stock() == 0 && !buffer.prefetch_due());
}

#[test]
fn after_the_last_generation_nothing_is_published() {
    let buffer = DoubleBuffer::new();
    buffer.skip_generations();
    assert!(buffer.publish(range(1, 4)));
    assert_eq!(drain(&buffer), [1, 2, 3]);

    assert!(buffer.is_last());
    assert!(!buffer.publish(range(10, 14)));
    assert_eq!(buffer.take(), Take::Empty);
    buffer.close();
    assert_eq!(buffer.take(), Take::Closed);
}

/// After four billion segments a tag goes on with a new handle.
#[tokio::test(start_paused = true)]
async fn a_handle_whose_generations_are_used_up_ends_as_changed() {
    let orders = leaf_core::Tag::parse("orders").unwrap();
    let new = crate::NewTag::new(orders, leaf_core::Step::new(10).unwrap());
    let store = std::sync::Arc::new(crate::MemoryStore::with_tags([new]));
    let segments = crate::SegmentGenerator::open(store, crate::SegmentConfig::default()).await;
    let before = segments.tag("orders").await.unwrap();
    before.state.numbers().skip_generations();
    for id in 1..=10 {
        assert_eq!(before.next().await.unwrap().get(), id);
    }
    let ended = before.next().await.unwrap_err();
    assert_eq!(*ended.kind(), crate::SegmentErrorKind::Changed);
    let after = segments.tag("orders").await.unwrap();
    assert_eq!(after.next().await.unwrap().get(), 11);
}

#[test]
fn threads_on_one_buffer_never_share_an_id() {
    const SEGMENTS: i64 = 500;
    const LENGTH: i64 = 50;
    let buffer = Arc::new(DoubleBuffer::new());
    let done = Arc::new(AtomicBool::new(false));
    let takers: Vec<_> = (0..4)
        .map(|_| {
            let (buffer, done) = (Arc::clone(&buffer), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut ids = Vec::new();
                loop {
                    let last_round = done.load(std::sync::atomic::Ordering::SeqCst);
                    ids.extend(drain(&buffer));
                    if last_round {
                        return ids;
                    }
                }
            })
        })
        .collect();

    for segment in 0..SEGMENTS {
        while !buffer.publish(range(segment * LENGTH, (segment + 1) * LENGTH)) {
            std::thread::yield_now();
        }
    }
    done.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut ids: Vec<i64> = takers.into_iter().flat_map(|t| t.join().unwrap()).collect();

    ids.sort_unstable();
    let all = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), all, "an id was handed out twice");
    assert!(all as i64 > SEGMENTS * LENGTH * 9 / 10, "most ids arrive: {all}");
}

proptest! {
    /// The model is a queue of two ranges; that of a new buffer holds one empty range.
    #[test]
    fn behaves_like_a_queue_of_two_segments(
        steps in prop::collection::vec(prop_oneof![
            3 => Just(None),
            1 => (1i64..20).prop_map(Some),
        ], 1..200),
    ) {
        let buffer = DoubleBuffer::new();
        let mut queue: Vec<Vec<i64>> = vec![Vec::new()];
        let mut next_start = 0;
        for step in steps {
            match step {
                Some(length) => {
                    let fits = queue.len() < 2;
                    prop_assert_eq!(buffer.publish(range(next_start, next_start + length)), fits);
                    if fits {
                        queue.push((next_start..next_start + length).rev().collect());
                    }
                    next_start += length;
                }
                None => {
                    // The switch happens when somebody finds the current segment used up.
                    if queue.len() == 2 && queue[0].is_empty() {
                        queue.remove(0);
                    }
                    let expected = queue.first_mut().and_then(Vec::pop);
                    let taken = match buffer.take() {
                        Take::Some(id) | Take::SomeAndPrefetch(id) => Some(id.get()),
                        _ => None,
                    };
                    prop_assert_eq!(taken, expected);
                }
            }
        }
    }
}
