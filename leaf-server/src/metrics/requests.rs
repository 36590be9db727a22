//! The requests of a server: how many were answered, how long that took, and how many were refused.
//!
//! Each thread of the data plane counts in cells of its own, so that counting moves no cache line
//! between processors; the page of metrics adds the cells up. For single ids over HTTP and commands
//! over Redis that arrive together and are answered at once, the clock is read twice: when their
//! bytes arrive, and when their answers are ready to be sent. For every other request it is read
//! separately.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use leaf_core::{DurationCounts, Durations};

use crate::refusal::{Face, Reason, words};
use crate::request::RequestId;

words! {
    /// What a request asks for, on any face.
    Operation:
    /// One id.
    Next => "next",
    /// Several ids.
    Take => "take",
    /// A range of ids that the client hands out.
    Lease => "lease",
    /// The unused ids of a leased range, which the client gives back.
    Return => "return",
    /// The description of a tag or of this server.
    Describe => "describe",
    /// A decoded id.
    Decode => "decode",
    /// Health, and the clock.
    Health => "health",
    /// The requests of operators.
    Admin => "admin",
    /// The page of metrics.
    Metrics => "metrics",
    /// Everything else: greetings of client libraries, and requests that the server does not
    /// recognize.
    Other => "other",
}

thread_local! {
    /// The index of the cells in which this thread counts: its own, if it belongs to a data plane;
    /// else 0, the cells that all other threads share.
    static CELLS: Cell<usize> = const { Cell::new(0) };
}

/// Gives this thread cells of its own. `thread` is its number in the data plane. Each such thread
/// serves one node all its life.
pub(crate) fn use_cells_of(thread: usize) {
    CELLS.set(1 + thread);
}

/// The number of this thread, if it is one of a data plane.
pub(crate) fn data_thread() -> Option<usize> {
    CELLS.get().checked_sub(1)
}

/// The counts of a server.
#[derive(Debug)]
pub(crate) struct Requests {
    /// First the cells that the threads outside the data plane share, then those of each thread of
    /// the data plane.
    threads: Box<[Cells]>,
    /// How many requests were refused, by face, operation and reason. All threads share these
    /// counters: refusals are rare, and where there are many of them, they may be slow.
    refused: Box<[[[AtomicU64; Reason::ALL.len()]; Operation::ALL.len()]; Face::ALL.len()]>,
    /// How many connections are open, by face.
    connections: [AtomicUsize; Face::ALL.len()],
}

/// The counters of one thread. They are aligned to two cache lines, since processors fetch cache
/// lines in pairs: threads must not share a pair.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cells {
    /// How long answers took, by face and operation.
    answered: [[Durations; Operation::ALL.len()]; Face::ALL.len()],
    /// How many snowflake ids were taken.
    snowflakes: AtomicU64,
}

/// Counts a connection as open until this is dropped.
pub(crate) struct Connected<'a>(&'a AtomicUsize);

impl Requests {
    /// Zero counts, for a data plane of `threads` threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads: (0..=threads).map(|_| Cells::default()).collect(),
            refused: Box::new(std::array::from_fn(|_| {
                std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)))
            })),
            connections: Default::default(),
        }
    }

    /// The cells of this thread.
    fn cells(&self) -> &Cells {
        // A program may run a server with fewer threads beside another one.
        self.threads.get(CELLS.get()).unwrap_or(&self.threads[0])
    }

    /// Counts `times` requests that were answered without a refusal, each after `took`.
    pub(crate) fn answered(&self, face: Face, operation: Operation, took: Duration, times: u64) {
        self.cells().answered[face as usize][operation as usize].add(took, times);
    }

    /// Counts and logs a refused request. `request` is its id, over HTTP and gRPC. The text for the
    /// client is not passed on: it may repeat what the client sent, such as a password in the wrong
    /// place, which must not reach a log.
    pub(crate) fn refused(
        &self,
        face: Face,
        operation: Operation,
        reason: Reason,
        request: Option<&RequestId>,
    ) {
        let (on, operation_name) = (face.name(), operation.word());
        let request = request.map(tracing::field::display);
        tracing::debug!(request, on, operation = operation_name, %reason, "refused");
        self.refused[face as usize][operation as usize][reason as usize]
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Counts snowflake ids that were taken.
    pub(crate) fn took_snowflakes(&self, count: usize) {
        self.cells().snowflakes.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts a connection, until the result is dropped.
    pub(crate) fn connected(&self, face: Face) -> Connected<'_> {
        let connections = &self.connections[face as usize];
        connections.fetch_add(1, Ordering::Relaxed);
        Connected(connections)
    }

    /// How many connections of a face are open.
    pub(crate) fn connections(&self, face: Face) -> usize {
        self.connections[face as usize].load(Ordering::Relaxed)
    }

    /// How long the answers of an operation took.
    pub(crate) fn durations(&self, face: Face, operation: Operation) -> DurationCounts {
        let mut counts = DurationCounts::default();
        for cells in &self.threads {
            counts.merge(&cells.answered[face as usize][operation as usize].counts());
        }
        counts
    }

    /// How many snowflake ids were taken since the start.
    pub(crate) fn snowflakes(&self) -> u64 {
        self.threads.iter().map(|cells| cells.snowflakes.load(Ordering::Relaxed)).sum()
    }

    /// The counts of refusals that are not zero, by the names of face and operation and the word of
    /// the reason.
    pub(crate) fn refusals(&self) -> BTreeMap<[&'static str; 3], u64> {
        let mut counts = BTreeMap::new();
        for (face, by_operation) in Face::ALL.iter().zip(&*self.refused) {
            for (operation, by_reason) in Operation::ALL.iter().zip(by_operation) {
                for (reason, count) in Reason::ALL.iter().zip(by_reason) {
                    let (names, count) = (
                        [face.name(), operation.word(), reason.word()],
                        count.load(Ordering::Relaxed),
                    );
                    if count > 0 {
                        *counts.entry(names).or_default() += count;
                    }
                }
            }
        }
        counts
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_face_operation_and_reason_is_counted_by_itself() {
        for (number, operation) in Operation::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, number);
        }
        let requests = Requests::new(1);
        requests.refused(Face::Http, Operation::Next, Reason::Busy, None);
        requests.refused(Face::Http, Operation::Next, Reason::Busy, None);
        requests.refused(Face::Ops, Operation::Admin, Reason::Forbidden, None);
        let refusals: Vec<_> = requests.refusals().into_iter().collect();
        let expected = [(["http", "next", "unavailable"], 2), (["ops", "admin", "forbidden"], 1)];
        assert_eq!(refusals, expected);
        let (one, two) = (requests.connected(Face::Redis), requests.connected(Face::Redis));
        assert_eq!(requests.connections(Face::Redis), 2);
        drop((one, two));
        assert_eq!(requests.connections(Face::Redis), 0);
    }

    #[test]
    fn the_cells_of_all_threads_are_added_up() {
        let requests = Requests::new(2);
        let took = Duration::from_micros(1);
        // The last one is of another server.
        for thread in [0, 1, 9] {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    use_cells_of(thread);
                    requests.answered(Face::Http, Operation::Next, took, 10);
                    requests.took_snowflakes(5);
                });
            });
        }
        requests.answered(Face::Http, Operation::Next, took, 1);
        requests.answered(Face::Http, Operation::Take, took, 1);
        assert_eq!(requests.durations(Face::Http, Operation::Next).total(), 31);
        assert_eq!(requests.durations(Face::Http, Operation::Next).sum, 31 * took);
        assert_eq!(requests.snowflakes(), 15);
    }
}
