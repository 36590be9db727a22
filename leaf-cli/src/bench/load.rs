//! The load of one thread: its connections, and the results of their requests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use tokio::runtime::Runtime;
use tokio::sync::Barrier;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

use super::repeats::Sender;
use super::schedule::Schedule;
use super::target::Connection;
use super::wire::Failure;
use super::{Plan, Progress};

/// How long answers are waited for after the end of a run.
const LATE: Duration = Duration::from_secs(10);
/// The interval at which a run without a rate checks whether it was interrupted.
const NOTICED: Duration = Duration::from_millis(50);
/// The pause after a failed attempt to reopen a connection.
const AGAIN: Duration = Duration::from_millis(100);
/// The longest time that is recorded, in microseconds: one hour. Times have three significant
/// digits.
const LONGEST: u64 = 3_600_000_000;
/// How many different failures are counted separately; the rest counts as `others`.
const MOST_FAILURES: usize = 20;

/// One of the threads of a run.
pub(super) struct Part {
    pub(super) plan: Plan,
    pub(super) index: usize,
    pub(super) threads: usize,
    /// Where all threads wait until every connection is open.
    pub(super) ready: Arc<Barrier>,
}

/// The results of requests.
#[derive(Debug)]
pub(super) struct Tally {
    /// From sending a request to its answer, in microseconds.
    pub(super) service: Histogram<u64>,
    /// From when a request was due to its answer, in microseconds.
    pub(super) response: Histogram<u64>,
    /// The number of requests that were answered with an id.
    pub(super) answered: u64,
    /// The number of requests that were answered with an id before the end of the run.
    pub(super) in_time: u64,
    /// The number of requests that were due but not sent before the end of the run.
    pub(super) unsent: u64,
    /// Whether a server answered at all.
    pub(super) is_reached: bool,
    /// The number of requests without an id, by what the server answered or why it did not answer.
    pub(super) failures: BTreeMap<String, u64>,
    /// How long the run took.
    pub(super) lasted: Duration,
    /// Whether Ctrl-C ended the run early.
    pub(super) is_interrupted: bool,
}

impl Default for Tally {
    fn default() -> Self {
        // The bounds are right, so there is no error.
        let times = || Histogram::new_with_bounds(1, LONGEST, 3).unwrap_or_else(|_| unreachable!());
        Self {
            service: times(),
            response: times(),
            answered: 0,
            in_time: 0,
            unsent: 0,
            is_reached: false,
            failures: BTreeMap::new(),
            lasted: Duration::ZERO,
            is_interrupted: false,
        }
    }
}

impl Tally {
    /// Adds what another thread has measured.
    pub(super) fn add(&mut self, other: Self) -> Result<()> {
        self.service.add(&other.service).context("times")?;
        self.response.add(&other.response).context("times")?;
        self.answered += other.answered;
        self.in_time += other.in_time;
        self.unsent += other.unsent;
        self.is_reached |= other.is_reached;
        for (what, count) in other.failures {
            *self.failures.entry(what).or_default() += count;
        }
        Ok(())
    }

    /// Counts a request that was due and found no free connection before the end. `waited` is a
    /// lower bound of its response time.
    fn not_sent(&mut self, waited: Duration) {
        self.unsent += 1;
        let _ = self.response.record(micros(waited));
    }

    fn failed(&mut self, failure: &Failure) {
        self.is_reached |= matches!(failure, Failure::Refused(_));
        let text = failure.to_string();
        let is_known = self.failures.contains_key(&text);
        let text =
            if is_known || self.failures.len() < MOST_FAILURES { text } else { "others".into() };
        *self.failures.entry(text).or_default() += 1;
    }
}

fn micros(time: Duration) -> u64 {
    (time.as_micros() as u64).clamp(1, LONGEST)
}

/// Runs the load of one thread.
///
/// # Errors
/// A task of the load panicked.
pub(super) fn run(
    runtime: &Runtime,
    part: &Part,
    progress: &Arc<Progress>,
    ids: Sender,
) -> Result<Tally> {
    let tasks = LocalSet::new();
    tasks.block_on(runtime, load(part, progress, ids))
}

/// Opens this thread's share of the connections. Returns them, and the last failure if one could
/// not be opened.
async fn open_connections(part: &Part) -> Result<(Vec<Connection>, Option<Failure>)> {
    let Plan { target, connections, .. } = &part.plan;
    let share = (part.index..*connections).step_by(part.threads).count();
    let mut opening = JoinSet::new();
    for _ in 0..share {
        let target = Arc::clone(target);
        opening.spawn_local(async move { Connection::open(&target).await });
    }
    let (mut made, mut refused) = (Vec::new(), None);
    while let Some(opened) = opening.join_next().await {
        match opened.context("a connection")? {
            Ok(connection) => made.push(connection),
            Err(failure) => refused = Some(failure),
        }
    }
    Ok((made, refused))
}

/// Waits until all connections have ended, at most until `end`. Returns how many have not ended by
/// then.
async fn wait_for(running: &mut JoinSet<()>, end: Instant) -> Result<usize> {
    let all = async {
        while let Some(ended) = running.join_next().await {
            ended.context("a connection of the load")?;
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout_at(end, all).await {
        Ok(ended) => ended.map(|()| 0),
        Err(_) => Ok(running.len()),
    }
}

async fn load(part: &Part, progress: &Arc<Progress>, ids: Sender) -> Result<Tally> {
    let Plan { rate, duration, .. } = &part.plan;
    let (made, refused) = open_connections(part).await?;
    part.ready.wait().await;
    let tally = Rc::new(RefCell::new(Tally::default()));
    if let Some(failure) = refused {
        tally.borrow_mut().failed(&failure);
    }
    if made.is_empty() {
        return Ok(std::mem::take(&mut *tally.borrow_mut()));
    }
    let begins = Instant::now();
    let end = begins + *duration;
    // Of all threads together the moments are spread evenly.
    let schedule = rate.map(|rate| {
        let between = Duration::from_secs(1) / rate;
        Arc::new(Schedule::new(begins + between * part.index as u32, between * part.threads as u32))
    });
    let ids = Rc::new(RefCell::new(ids));
    let mut running = JoinSet::new();
    for connection in made {
        let asking = Asking {
            plan: part.plan.clone(),
            progress: Arc::clone(progress),
            schedule: schedule.clone(),
            tally: Rc::clone(&tally),
            ids: Rc::clone(&ids),
            end,
        };
        running.spawn_local(asking.run(connection));
    }
    match &schedule {
        Some(schedule) => {
            let (schedule, progress) = (Arc::clone(schedule), Arc::clone(progress));
            tokio::task::spawn_blocking(move || schedule.keep(end, &progress.over)).await?;
        }
        None => {
            while Instant::now() < end && !progress.over.load(Ordering::Relaxed) {
                tokio::time::sleep_until(end.min(Instant::now() + NOTICED)).await;
            }
        }
    }
    let end = end.min(Instant::now());
    if let Some(schedule) = &schedule {
        for due in schedule.close() {
            tally.borrow_mut().not_sent(end - due);
        }
    }
    let without = Failure::Broken(format!("no answer within {LATE:?} after the end"));
    for _ in 0..wait_for(&mut running, end + LATE).await? {
        tally.borrow_mut().failed(&without);
    }
    ids.borrow_mut().flush();
    if schedule.is_none() {
        let mut tally = tally.borrow_mut();
        tally.response = tally.service.clone();
    }
    let tally = std::mem::take(&mut *tally.borrow_mut());
    Ok(tally)
}

/// The task of one connection.
struct Asking {
    plan: Plan,
    progress: Arc<Progress>,
    schedule: Option<Arc<Schedule>>,
    tally: Rc<RefCell<Tally>>,
    ids: Rc<RefCell<Sender>>,
    end: Instant,
}

impl Asking {
    async fn run(self, mut connection: Connection) {
        let mut now = Instant::now();
        loop {
            let mut due = None;
            if let Some(schedule) = &self.schedule {
                let Some(at) = schedule.next().await else { return };
                due = Some(at);
                now = Instant::now();
            }
            let sent = now;
            if sent >= self.end || self.progress.over.load(Ordering::Relaxed) {
                if let Some(due) = due {
                    self.tally.borrow_mut().not_sent(sent - due);
                }
                return;
            }
            let answer = connection.ask().await;
            let is_broken = matches!(answer, Err(Failure::Broken(_)));
            now = Instant::now();
            self.count(answer, due, sent, now);
            if is_broken || connection.is_over() {
                self.reopen(&mut connection).await;
                now = Instant::now();
            }
        }
    }

    /// Counts an answer. `due` is `None` if no rate is given: a request is then due when it is
    /// sent.
    fn count(
        &self,
        answer: Result<u64, Failure>,
        due: Option<Instant>,
        sent: Instant,
        now: Instant,
    ) {
        let mut tally = self.tally.borrow_mut();
        match answer {
            Ok(id) => {
                tally.answered += 1;
                tally.in_time += u64::from(now <= self.end);
                self.progress.answered.fetch_add(1, Ordering::Relaxed);
                self.ids.borrow_mut().add(id);
            }
            Err(failure) => tally.failed(&failure),
        }
        // Within the bounds.
        let _ = tally.service.record(micros(now - sent));
        if let Some(due) = due {
            let _ = tally.response.record(micros(now - due));
        }
    }

    /// Replaces a connection that is broken or closed, unless the run ends first.
    async fn reopen(&self, connection: &mut Connection) {
        while Instant::now() < self.end {
            let made = Connection::open(&self.plan.target);
            match tokio::time::timeout_at(self.end, made).await {
                Ok(Ok(made)) => {
                    *connection = made;
                    return;
                }
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}
