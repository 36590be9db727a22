//! Clients of every node and every kind of id, bounded in rate. Whatever they get is written down
//! as it is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use leaf_testkit::HttpClient;
use tokio::time::Instant;

use crate::FAILED;
use crate::history::{Answers, Line, MEMBER, Space};
use crate::node::Address;

/// The routes that clients request from each node, with one client per route.
const ROUTES: [(&str, Space); 5] = [
    ("/api/snowflake/get/x", Space::Snowflake),
    ("/api/snowflake/get/x", Space::Snowflake),
    ("/api/segment/get/a", Space::A),
    ("/api/segment/get/b", Space::B),
    ("/api/segment/get/family/", Space::Member),
];
/// How long all clients use one member of the family before they use a new one.
const MEMBER_MICROS: u64 = 1_000_000;
const PIPELINE: usize = 10;

pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    /// Of each node and route.
    issued: Vec<(usize, Space, Arc<AtomicU64>)>,
    /// Whether an answer was neither ids nor 503.
    unexplained: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Answers>>>,
}

struct Client {
    address: Address,
    path: &'static str,
    space: Space,
    start: Instant,
    pause: Duration,
    rests: bool,
    stop: Arc<AtomicBool>,
    issued: Arc<AtomicU64>,
    unexplained: Arc<AtomicBool>,
    connections: Arc<AtomicU64>,
    history: Vec<Answers>,
}

impl Clients {
    /// Starts the clients of these nodes. Times count from `start`. If `idle` is set, clients of
    /// tag B pause now and then, so that the node drops the tag as idle.
    pub(crate) fn start(
        addresses: Vec<Address>,
        start: Instant,
        pause: Duration,
        idle: bool,
    ) -> Self {
        let (stop, connections) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (mut issued, mut threads) = (Vec::new(), Vec::new());
        let unexplained = Arc::<AtomicBool>::default();
        for (node, address) in addresses.into_iter().enumerate() {
            for (path, space) in ROUTES {
                let count = Arc::<AtomicU64>::default();
                issued.push((node, space, Arc::clone(&count)));
                let mut client = Client {
                    address: Arc::clone(&address),
                    path,
                    space,
                    start,
                    pause,
                    rests: idle && matches!(space, Space::B),
                    stop: Arc::clone(&stop),
                    issued: count,
                    unexplained: Arc::clone(&unexplained),
                    connections: Arc::clone(&connections),
                    history: Vec::new(),
                };
                threads.push(std::thread::spawn(move || {
                    while !client.ended() {
                        client.converse();
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    client.history
                }));
            }
        }
        Self { stop, issued, unexplained, threads }
    }

    /// Whether a node gave an answer that no fault explains. The judge reports which.
    pub(crate) fn saw_the_unexplained(&self) -> bool {
        self.unexplained.load(Ordering::SeqCst)
    }

    /// Asserts that each of these nodes hands out every kind of id again, after all faults are
    /// over.
    pub(crate) fn expect_more_from(&self, nodes: usize, limit: Duration) {
        let now = |count: &AtomicU64| count.load(Ordering::SeqCst);
        let before: Vec<_> = self.issued.iter().map(|(_, _, count)| now(count)).collect();
        let start = Instant::now();
        loop {
            let waiting: Vec<_> = self
                .issued
                .iter()
                .zip(&before)
                .filter(|((node, _, count), before)| *node < nodes && now(count) <= **before)
                .map(|((node, space, _), _)| format!("node {node} {space:?}"))
                .collect();
            if waiting.is_empty() || FAILED.load(Ordering::SeqCst) {
                return;
            }
            assert!(start.elapsed() < limit, "no more ids: {}", waiting.join(", "));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops the clients and returns what they got.
    pub(crate) fn end(self) -> Vec<Line> {
        self.stop.store(true, Ordering::SeqCst);
        let histories = self.threads.into_iter().map(|it| it.join().expect("it has said why"));
        let mut lines: Vec<Answers> = histories.flatten().collect();
        lines.sort_by_key(|it| it.invoke);
        lines.into_iter().map(Line::Answers).collect()
    }
}

impl Client {
    fn ended(&self) -> bool {
        self.stop.load(Ordering::SeqCst) || FAILED.load(Ordering::SeqCst)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Asks on one connection until it ends.
    fn converse(&mut self) {
        let Some((address, process)) = *self.address.lock().expect("no holder of this lock panics")
        else {
            return;
        };
        let Ok(mut http) = HttpClient::connect(address) else { return };
        let connection = self.connections.fetch_add(1, Ordering::SeqCst);
        while !self.ended() {
            let invoke = self.now();
            let (mut ids, mut refused, mut unexplained) = (Vec::new(), 0, None);
            let (path, first) = match self.space {
                Space::Member => {
                    let member = invoke / MEMBER_MICROS;
                    (format!("{}{member}", self.path), MEMBER * member.cast_signed())
                }
                _ => (self.path.to_owned(), 0),
            };
            let asked = http.pipeline(&path, PIPELINE, |answer| match answer.status {
                200 => ids.push(first + answer.body.parse::<i64>().expect("a number")),
                503 => refused += 1,
                status => unexplained = Some(format!("{status} {}", answer.body)),
            });
            self.unexplained.fetch_or(unexplained.is_some(), Ordering::SeqCst);
            self.issued.fetch_add(ids.len() as u64, Ordering::SeqCst);
            let (space, complete) = (self.space, self.now());
            let answers =
                Answers { process, connection, space, invoke, complete, ids, refused, unexplained };
            self.history.push(answers);
            if asked.is_err() {
                return;
            }
            // Long enough for the tag to leave, or too short by a moment.
            let rests = self.rests && self.history.len() % 100 == 99;
            let rest = Duration::from_millis(fastrand::u64(1_500..3_000));
            std::thread::sleep(if rests { rest } else { self.pause });
        }
    }
}
