//! Clients of every node and every kind of id, bounded in rate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use leaf_testkit::{HttpClient, Ledger};
use tokio::time::Instant;

use crate::FAILED;
use crate::cluster::Address;

/// A route, and the space of its ids.
const ROUTES: [(&str, usize); 4] = [
    ("/api/snowflake/get/x", 0),
    ("/api/snowflake/get/x", 0),
    ("/api/segment/get/a", 1),
    ("/api/segment/get/b", 2),
];
const PIPELINE: usize = 10;
const PAUSE: Duration = Duration::from_millis(5);

pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    ledgers: [Arc<Ledger>; 3],
    /// Of each node and route.
    counts: Vec<Arc<Count>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Count {
    node: usize,
    route: usize,
    issued: AtomicUsize,
    refused: AtomicUsize,
}

impl Clients {
    pub(crate) fn start(addresses: Vec<Address>) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let ledgers: [Arc<Ledger>; 3] = Default::default();
        let (mut counts, mut threads) = (Vec::new(), Vec::new());
        for (node, address) in addresses.into_iter().enumerate() {
            for (route, (path, space)) in ROUTES.into_iter().enumerate() {
                let count = Arc::new(Count { node, route, ..Count::default() });
                counts.push(Arc::clone(&count));
                let (address, stop) = (Arc::clone(&address), Arc::clone(&stop));
                let ledger = Arc::clone(&ledgers[space]);
                threads.push(std::thread::spawn(move || {
                    while !stop.load(Ordering::SeqCst) && !FAILED.load(Ordering::SeqCst) {
                        ask(&address, path, &ledger, &count, &stop);
                        std::thread::sleep(10 * PAUSE);
                    }
                }));
            }
        }
        Self { stop, ledgers, counts, threads }
    }

    /// After all is well again every node hands out every kind of id.
    pub(crate) fn expect_more_from_everybody(&self, limit: Duration) {
        let issued = |count: &Arc<Count>| count.issued.load(Ordering::SeqCst);
        let before: Vec<_> = self.counts.iter().map(issued).collect();
        let start = Instant::now();
        loop {
            let waiting: Vec<_> = self
                .counts
                .iter()
                .zip(&before)
                .filter(|(count, before)| issued(count) <= **before)
                .map(|(count, _)| format!("node {} {}", count.node, ROUTES[count.route].0))
                .collect();
            if waiting.is_empty() || FAILED.load(Ordering::SeqCst) {
                return;
            }
            assert!(start.elapsed() < limit, "no more ids: {}", waiting.join(", "));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends them and tells what they got.
    pub(crate) fn end(self, length: Duration) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().expect("it has said why");
        }
        let mut sums = BTreeMap::<_, (usize, usize)>::new();
        for count in &self.counts {
            let sum = sums.entry(ROUTES[count.route].0).or_default();
            sum.0 += count.issued.load(Ordering::SeqCst);
            sum.1 += count.refused.load(Ordering::SeqCst);
        }
        for (path, (issued, refused)) in sums {
            println!("{path}: {issued} ids, {refused} refused");
        }
        for ledger in &self.ledgers {
            ledger.expect_at_least(100 * usize::try_from(length.as_secs()).unwrap_or(0));
        }
    }
}

/// Asks one connection for ids until it ends.
fn ask(address: &Address, path: &str, ledger: &Ledger, count: &Count, stop: &AtomicBool) {
    let Some(address) = *address.lock().expect("no holder of this lock panics") else { return };
    let Ok(mut client) = HttpClient::connect(address) else { return };
    let issuer: Arc<str> = format!("node {} at {address}", count.node).into();
    while !stop.load(Ordering::SeqCst) && !FAILED.load(Ordering::SeqCst) {
        let Ok(answers) = client.pipeline(path, PIPELINE) else { return };
        for answer in answers {
            match answer.status {
                200 => {
                    let id = answer.body.parse().expect("a number");
                    ledger.record(&issuer, id);
                    count.issued.fetch_add(1, Ordering::SeqCst);
                }
                503 => drop(count.refused.fetch_add(1, Ordering::SeqCst)),
                _ => panic!("{path}: {} {}", answer.status, answer.body),
            }
        }
        std::thread::sleep(PAUSE);
    }
}
