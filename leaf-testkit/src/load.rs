//! Load: clients that request ids until they are stopped, and counts of the results.
//!
//! Every answer is recorded as soon as it is read, so that what a server acknowledged before it
//! died counts. A lost connection is counted and opened again. The [`Report`] has what a test
//! asserts of a server ("no request fails", "serves at once"): refusals, lost connections, and the
//! longest time without an id.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;

use crate::{HttpClient, Ledger};

/// The address of a server; `None` while it is down.
pub type Address = Arc<Mutex<Option<SocketAddr>>>;

/// How the clients request ids from a server.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The path of a request for an id.
    pub path: String,
    /// How many clients.
    pub clients: usize,
    /// How many requests a client sends at once.
    pub pipeline: usize,
    /// How long a client pauses after the answers to its `pipeline` requests.
    pub pause: Duration,
    /// Whether the ids of a connection must rise. Scrambled ones do not.
    pub rising: bool,
}

impl Plan {
    /// One client that asks for 50 ids at once, 250 times a second at most.
    #[must_use]
    pub fn of(path: &str) -> Self {
        Self {
            path: path.into(),
            clients: 1,
            pipeline: 50,
            pause: Duration::from_millis(4),
            rising: true,
        }
    }
}

/// The results of the requests so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Ids that arrived.
    pub issued: u64,
    /// Answers 503 or 500.
    pub refused: u64,
    /// Connections that ended or could not be made.
    pub lost_connections: u64,
    /// The longest time that any client was without an id, including the time since its last id.
    pub longest_gap: Duration,
}

/// The running clients of a server.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
    /// The threads of the clients, and the one that measures stalls.
    clients: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Tally {
    issued: AtomicU64,
    refused: AtomicU64,
    lost_connections: AtomicU64,
    longest_gap: Mutex<Duration>,
    /// When each client last had an id.
    last: Mutex<Vec<Instant>>,
    /// The longest time that a byte took from one thread to another and back.
    longest_stall: Mutex<Duration>,
}

impl Load {
    /// Starts the clients of one server, whose ids go into `ledger`.
    ///
    /// # Panics
    /// Never in practice: no holder of the locks panics.
    #[must_use]
    pub fn start(ledger: &Arc<Ledger>, issuer: &str, address: &Address, plan: &Plan) -> Self {
        let (stop, tally) = (Arc::<AtomicBool>::default(), Arc::<Tally>::default());
        let clients = (0..plan.clients).map(|number| {
            tally.last.lock().expect("no holder of this lock panics").push(Instant::now());
            let client = Client {
                number,
                issuer: issuer.into(),
                plan: plan.clone(),
                address: Arc::clone(address),
                ledger: Arc::clone(ledger),
                stop: Arc::clone(&stop),
                tally: Arc::clone(&tally),
            };
            std::thread::spawn(move || client.run())
        });
        let witness = {
            let (stop, tally) = (Arc::clone(&stop), Arc::clone(&tally));
            std::thread::spawn(move || witness_stalls(&stop, &tally))
        };
        let clients = clients.chain([witness]).collect();
        Self { stop, tally, clients }
    }

    /// Starts clients of a server whose address does not change.
    #[must_use]
    pub fn at(ledger: &Arc<Ledger>, issuer: &str, address: SocketAddr, plan: &Plan) -> Self {
        Self::start(ledger, issuer, &Arc::new(Mutex::new(Some(address))), plan)
    }

    /// Counts the results so far. A gap that has not ended yet counts, too.
    ///
    /// # Panics
    /// Never in practice: no holder of the locks panics.
    #[must_use]
    pub fn report(&self) -> Report {
        let tally = &self.tally;
        let last = tally.last.lock().expect("no holder of this lock panics");
        let open = last.iter().map(Instant::elapsed).max().unwrap_or_default();
        let longest = *tally.longest_gap.lock().expect("no holder of this lock panics");
        Report {
            issued: tally.issued.load(Ordering::SeqCst),
            refused: tally.refused.load(Ordering::SeqCst),
            lost_connections: tally.lost_connections.load(Ordering::SeqCst),
            longest_gap: longest.max(open),
        }
    }

    /// How many requests were refused since the last call of this method.
    #[must_use]
    pub fn take_refused(&self) -> u64 {
        self.tally.refused.swap(0, Ordering::SeqCst)
    }

    /// Asserts that no request failed so far, and that no client was without an id for longer than
    /// `most`, plus four times the longest stall of the machine: a request needs four thread
    /// wake-ups, and each may be delayed by such a stall.
    ///
    /// # Panics
    /// When a request failed or a gap was longer.
    pub fn expect_unnoticed(&self, what: &str, most: Duration) {
        let report = self.report();
        let Report { refused, lost_connections, longest_gap, .. } = report;
        let stall = *self.tally.longest_stall.lock().expect("no holder of this lock panics");
        let most = most + stall * 4;
        let unnoticed = refused == 0 && lost_connections == 0 && longest_gap <= most;
        assert!(unnoticed, "{what}: {report:?}, at most {most:?} without an id expected");
    }

    /// Resets the gaps and stalls measured so far, because a new phase of the test begins.
    ///
    /// # Panics
    /// Never in practice: no holder of the locks panics.
    pub fn forget_gaps(&self) {
        let mut last = self.tally.last.lock().expect("no holder of this lock panics");
        last.iter_mut().for_each(|last| *last = Instant::now());
        *self.tally.longest_gap.lock().expect("no holder of this lock panics") = Duration::ZERO;
        *self.tally.longest_stall.lock().expect("no holder of this lock panics") = Duration::ZERO;
    }

    /// Stops the clients. Returns the report as of this call, plus the ids that were still under
    /// way.
    ///
    /// # Panics
    /// When a client has panicked: because of a repeated id or an invalid answer.
    #[must_use]
    pub fn end(self) -> Report {
        let report = self.report();
        self.stop.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.join().expect("it has said why");
        }
        // Ids that were under way.
        Report { issued: self.tally.issued.load(Ordering::SeqCst), ..report }
    }
}

struct Client {
    number: usize,
    issuer: Arc<str>,
    plan: Plan,
    address: Address,
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
}

impl Client {
    fn run(&self) {
        while !self.stopped() {
            let address = *self.address.lock().expect("no holder of this lock panics");
            if let Some(address) = address
                && self.converse(address).is_err()
                && !self.stopped()
            {
                self.tally.lost_connections.fetch_add(1, Ordering::SeqCst);
            }
            rest(Duration::from_millis(5));
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Asks on one connection until it ends. On it ids grow, unless the plan says otherwise.
    fn converse(&self, address: SocketAddr) -> std::io::Result<()> {
        let mut connection = HttpClient::connect(address)?;
        let (issuer, mut last) = (Arc::clone(&self.issuer), -1);
        while !self.stopped() {
            connection.pipeline(&self.plan.path, self.plan.pipeline, |answer| {
                match answer.status {
                    200 => {
                        let id: i64 = answer.body.parse().expect("a number");
                        self.ledger.record(&issuer, id);
                        assert!(
                            !self.plan.rising || id > last,
                            "{issuer}: {id} after {last} on one connection"
                        );
                        last = id;
                        self.note_id();
                    }
                    // 500: a record that needs an operator.
                    500 | 503 => drop(self.tally.refused.fetch_add(1, Ordering::SeqCst)),
                    _ => panic!("{}: {} {}", self.plan.path, answer.status, answer.body),
                }
            })?;
            rest(self.plan.pause);
        }
        Ok(())
    }

    fn note_id(&self) {
        self.tally.issued.fetch_add(1, Ordering::SeqCst);
        let now = Instant::now();
        let mut last = self.tally.last.lock().expect("no holder of this lock panics");
        let gap = now - std::mem::replace(&mut last[self.number], now);
        drop(last);
        let mut longest = self.tally.longest_gap.lock().expect("no holder of this lock panics");
        *longest = gap.max(*longest);
    }
}

/// Sends a byte to another thread and back, again and again until `stop` is set. How long this
/// takes shows how long the machine delayed threads that were ready to run.
fn witness_stalls(stop: &AtomicBool, tally: &Tally) {
    let (mut near, mut far) = UnixStream::pair().expect("two sockets");
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
    });
    while !stop.load(Ordering::SeqCst) {
        let asked = Instant::now();
        near.write_all(&[0]).expect("the other end is open");
        near.read_exact(&mut [0]).expect("the other end answers");
        let mut longest = tally.longest_stall.lock().expect("no holder of this lock panics");
        *longest = asked.elapsed().max(*longest);
        drop(longest);
        rest(Duration::from_millis(5));
    }
    drop(near);
    echo.join().expect("it ends with the connection");
}

#[expect(clippy::disallowed_methods, reason = "a client rests in a plain thread")]
fn rest(pause: Duration) {
    std::thread::sleep(pause);
}
