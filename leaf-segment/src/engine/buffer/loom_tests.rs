//! G-12: refill, take and switch in every order that the memory model allows.

use super::*;
use loom::sync::Arc;
use loom::thread;

fn take(buffer: &DoubleBuffer) -> Option<i64> {
    match buffer.take() {
        Take::Some(id) | Take::SomeAndPrefetch(id) => Some(id.get()),
        Take::Empty | Take::Closed => None,
    }
}

/// A taker beside a thread that uses up the taker's slot and refills it.
#[test]
fn a_refilled_slot_never_repeats_an_id() {
    loom::model(|| {
        let buffer = Arc::new(DoubleBuffer::new());
        buffer.publish(IdRange::new(10, 12).unwrap());
        let mut ids = vec![take(&buffer)];
        buffer.publish(IdRange::new(20, 21).unwrap());
        let taker = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || take(&buffer))
        };

        ids.push(take(&buffer));
        buffer.publish(IdRange::new(30, 32).unwrap());
        ids.extend([take(&buffer), take(&buffer)]);
        ids.push(taker.join().unwrap());

        let mut ids: Vec<i64> = ids.into_iter().flatten().collect();
        ids.sort_unstable();
        assert!(ids.iter().all(|id| [10, 11, 20, 30, 31].contains(id)), "foreign: {ids:?}");
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "repeated: {ids:?}");
    });
}

/// A taker that switches to a segment while it is published.
#[test]
fn a_segment_is_whole_once_it_is_seen() {
    loom::model(|| {
        let buffer = Arc::new(DoubleBuffer::new());
        buffer.publish(IdRange::new(10, 12).unwrap());
        assert_eq!(take(&buffer), Some(10));
        let taker = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || [take(&buffer), take(&buffer)])
        };

        assert!(buffer.publish(IdRange::new(20, 22).unwrap()));

        let [first, second] = taker.join().unwrap();
        assert_eq!(first, Some(11));
        assert!(second.is_none() || second == Some(20), "foreign: {second:?}");
    });
}

/// One thread takes runs while another takes a contiguous range, across the end of a segment.
#[test]
fn runs_never_overlap() {
    loom::model(|| {
        let buffer = Arc::new(DoubleBuffer::new());
        buffer.publish(IdRange::new(10, 14).unwrap());
        buffer.publish(IdRange::new(20, 21).unwrap());
        let taker = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || match buffer.take_contiguous(2) {
                Some(Take::Some(run) | Take::SomeAndPrefetch(run)) => Some(run),
                _ => None,
            })
        };

        let mut runs = Vec::new();
        for _ in 0..2 {
            if let Take::Some(run) | Take::SomeAndPrefetch(run) = buffer.take_run(3) {
                runs.push(run);
            }
        }
        runs.extend(taker.join().unwrap());

        for (nth, run) in runs.iter().enumerate() {
            assert!(runs[..nth].iter().all(|other| !run.overlaps(*other)), "{runs:?}");
            assert!(run.start() >= 10 && (run.end() <= 14 || run.start() == 20), "{runs:?}");
        }
    });
}

/// Two takers that both find the segment used up and switch.
#[test]
fn a_late_switch_resets_nothing() {
    loom::model(|| {
        let buffer = Arc::new(DoubleBuffer::new());
        buffer.publish(IdRange::new(10, 12).unwrap());
        let taker = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || [take(&buffer), take(&buffer)])
        };

        let mut ids = vec![take(&buffer), take(&buffer)];
        ids.extend(taker.join().unwrap());

        let mut ids: Vec<i64> = ids.into_iter().flatten().collect();
        ids.sort_unstable();
        assert_eq!(ids, [10, 11]);
    });
}

#[test]
fn nothing_is_taken_after_close() {
    loom::model(|| {
        let buffer = Arc::new(DoubleBuffer::new());
        buffer.publish(IdRange::new(10, 12).unwrap());
        let taker = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || [take(&buffer), take(&buffer)])
        };

        buffer.close();
        assert_eq!(buffer.take(), Take::Closed);

        let [first, second] = taker.join().unwrap();
        assert!(first.is_none() || first == Some(10));
        assert!(second.is_none() || second == Some(11));
    });
}
