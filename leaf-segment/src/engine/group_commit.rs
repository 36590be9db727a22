//! Strict order: the callers of one tag share allocations, and each gets its own part of the range.
//!
//! Invariant: a request never joins an allocation that has begun. So, if one request was answered
//! before a second one was sent, to whatever node, the allocation for the second began after that
//! for the first was durable. The store applies the statements on one record one after the other,
//! so that the second request gets greater ids.
//!
//! There is no buffer, no leader and no clock. One task per tag collects the waiting requests,
//! allocates exactly what they ask for, distributes the range in the order of their arrival, and
//! goes on with the requests that came meanwhile.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use leaf_core::{IdRange, Step};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::refill::{self, Amount};
use super::tag_state::TagState;
use crate::{SegmentError, StoreError, StoreErrorKind};

/// The most ids of one allocation for several requests.
const MOST_IDS: u64 = 1_000_000;
/// How long an allocation is retried after a failure that may pass: a connection that the server
/// has closed, or a conflict in a cluster.
const AGAIN_FOR: Duration = Duration::from_millis(300);
/// The most tries of one allocation.
const MOST_TRIES: u32 = 30;
/// The upper bound of the random pause after the tenth try and later ones; after try n < 10 it is n
/// tenths of this.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How long after an outage callers get its error without a new request to the store.
const FAILURE_HOLDS: Duration = Duration::from_millis(50);

/// The callers that wait for ids of a tag in strict order. Allocated at the first use, since most
/// tags are in relaxed order.
#[derive(Debug, Default)]
pub(crate) struct Queue(OnceLock<Box<Mutex<Requests>>>);

#[derive(Debug, Default)]
struct Requests {
    waiting: VecDeque<Request>,
    /// Whether a task is running that serves the waiting requests.
    served: bool,
}

#[derive(Debug)]
struct Request {
    count: Step,
    answer: oneshot::Sender<Result<IdRange, SegmentError>>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        // What it protects is in order after every statement.
        self.0.get_or_init(Box::default).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a task serves requests now.
    pub(crate) fn is_served(&self) -> bool {
        self.0.get().is_some() && self.lock().served
    }

    /// Drops all waiting requests without an answer.
    pub(crate) fn clear(&self) {
        if self.0.get().is_some() {
            let left = std::mem::take(&mut self.lock().waiting);
            drop(left);
        }
    }
}

/// Requests `count` consecutive numbers. If the tag ends meanwhile, no answer is sent.
pub(crate) fn join(
    state: &Arc<TagState>,
    count: Step,
) -> oneshot::Receiver<Result<IdRange, SegmentError>> {
    let (answer, range) = oneshot::channel();
    let first = {
        let mut requests = state.queue.lock();
        // The requests that came first find out whether the store answers again. Later ones do not
        // wait for a store that is known to be unavailable.
        let known_for = state.store_client.config.attempt + AGAIN_FOR + FAILURE_HOLDS;
        if requests.served
            && let Some(outage) = state.recent_outage(known_for)
        {
            let _ = answer.send(Err(outage));
            return range;
        }
        requests.waiting.push_back(Request { count, answer });
        !std::mem::replace(&mut requests.served, true)
    };
    if first {
        // Made here: a generator that closes may drop the task before it began.
        let mut serving = Serving(Some(Arc::clone(state)));
        state.store_client.spawn(async move {
            let Some(state) = serving.0.clone() else { return };
            while let Some(requests) = next_group(&state) {
                serve(&state, requests).await;
            }
            // `next_group` has let the next caller start a task.
            drop(serving.0.take());
        });
    }
    range
}

/// A guard that the tag's task holds. If the task ends early, because the store panics or the
/// generator closes, the guard clears `served`, so that the next caller starts a new task, and
/// drops the waiting requests, so that their callers get an error at once. At an ordinary end it
/// does nothing.
struct Serving(Option<Arc<TagState>>);

impl Drop for Serving {
    fn drop(&mut self) {
        let Some(state) = self.0.take() else { return };
        let left = {
            let mut requests = state.queue.lock();
            requests.served = false;
            std::mem::take(&mut requests.waiting)
        };
        drop(left);
    }
}

/// Takes the waiting requests, as many as one allocation can serve. If there are none, returns
/// `None` and lets the next caller start a new task.
fn next_group(state: &TagState) -> Option<Vec<Request>> {
    let mut requests = state.queue.lock();
    let mut group = Vec::with_capacity(requests.waiting.len());
    let mut amount = 0;
    while let Some(request) = requests.waiting.front() {
        // Who has left gets no ids: they would be a gap.
        if !request.answer.is_closed() {
            amount += u64::from(request.count.get());
            if amount > MOST_IDS && !group.is_empty() {
                break;
            }
            group.extend(requests.waiting.pop_front());
        } else {
            requests.waiting.pop_front();
        }
    }
    requests.served = !group.is_empty();
    requests.served.then_some(group)
}

/// Allocates what the group asks for, and distributes it. If too few numbers are left for all,
/// those that came first get theirs.
async fn serve(state: &Arc<TagState>, group: Vec<Request>) {
    let mut groups = VecDeque::from([group]);
    while let Some(mut group) = groups.pop_front() {
        match allocate(state, amount(&group)).await {
            Ok(range) => hand_out(range, group),
            Err(Failed::TooFewLeft(_)) if group.len() > 1 => {
                let later = group.split_off(group.len() / 2);
                groups.push_front(later);
                groups.push_front(group);
            }
            Err(Failed::TooFewLeft(error)) => {
                for request in group {
                    let _ = request.answer.send(Err(error.clone()));
                }
            }
            // What holds for one number holds for all who wait.
            Err(Failed::Other(error)) => {
                for request in group.into_iter().chain(groups.drain(..).flatten()) {
                    let _ = request.answer.send(Err(error.clone()));
                }
            }
        }
    }
}

fn amount(group: &[Request]) -> Step {
    let amount: u64 = group.iter().map(|request| u64::from(request.count.get())).sum();
    let amount = i64::try_from(amount).ok().and_then(|amount| Step::new(amount).ok());
    amount.expect("a group has at most MOST_IDS ids, or one request, which fits")
}

fn hand_out(range: IdRange, group: Vec<Request>) {
    let mut start = range.start();
    for Request { count, answer } in group {
        let end = start + i64::from(count.get());
        if let Some(part) = IdRange::new(start, end) {
            // Who has left meanwhile leaves a gap.
            let _ = answer.send(Ok(part));
        }
        start = end;
    }
}

/// Why a group got nothing.
enum Failed {
    /// Fewer numbers are left than the group asked for.
    TooFewLeft(SegmentError),
    Other(SegmentError),
}

async fn allocate(state: &Arc<TagState>, amount: Step) -> Result<IdRange, Failed> {
    let begun = Instant::now();
    for tried in 1.. {
        if let Some(error) = state.immediate_error().or_else(|| state.recent_outage(FAILURE_HOLDS))
        {
            return Err(Failed::Other(error));
        }
        // The one task of the tag: nobody else has its turn to fetch.
        let error = match refill::fetch(state, Amount::Exactly(amount)).await {
            Ok(range) => {
                state.control().granted += range.len();
                state.store_client.note(None);
                return Ok(range);
            }
            Err(error) => error,
        };
        if *error.kind() == StoreErrorKind::Exhausted && amount > Step::MIN {
            // One number may be left: the tag has not failed.
            return Err(Failed::TooFewLeft(SegmentError::of_store(&state.tag, Arc::new(error))));
        }
        if !error.retryable() || tried >= MOST_TRIES || begun.elapsed() >= AGAIN_FOR {
            return Err(Failed::Other(failed(state, error)));
        }
        // The record's step is nothing to a strict tag but a part of what is compared.
        if let StoreErrorKind::StepChanged(step) = error.kind() {
            state.step_seen(Ok(*step));
        }
        let pause = LONGEST_PAUSE.mul_f64(f64::from(tried.min(10)) / 10.0);
        tokio::time::sleep(pause.mul_f64(fastrand::f64())).await;
    }
    unreachable!("the last try returns")
}

/// Records why there are no ids, and returns the error for the callers.
fn failed(state: &TagState, error: StoreError) -> SegmentError {
    let error = Arc::new(error);
    if error.is_outage() {
        state.store_client.tell_failure(&error);
        // The task that reads records then notices the end of the outage, even if nobody asks for
        // ids any more.
        state.store_client.soon.try_store();
    }
    state.store_client.note(Some(&error));
    refill::record_failure(state, &error);
    state.immediate_error().unwrap_or_else(|| SegmentError::of_store(&state.tag, error))
}
