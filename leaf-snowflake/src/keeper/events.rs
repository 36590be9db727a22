//! What the keeper reacts to while it holds a worker id: its timers, callers that wait, the answers
//! of the registry and of the peers, and the stop.

use tokio::time::{Interval, MissedTickBehavior};

use super::*;
use crate::id_clock::Look;
use crate::peers::Agreement;

/// The smallest jump of the ids' clock that is logged: less is ordinary drift.
const LOGGED_JUMP: Duration = Duration::from_secs(1);

/// The operations that the keeper has begun and not finished while it holds a worker id.
struct UnderWay {
    /// A request to the registry.
    request: Option<PendingRequest>,
    /// A comparison of the clock with the peers'.
    comparison: Option<BoxFuture<'static, Result<Agreement, SnowflakeError>>>,
    /// When the peers may be asked again.
    compare_from: Instant,
    /// A freeze after which the registry has not answered yet.
    thawed: Option<Thawed>,
}

impl Default for UnderWay {
    /// No request and no comparison.
    fn default() -> Self {
        Self { request: None, comparison: None, compare_from: Instant::now(), thawed: None }
    }
}

/// The state after a freeze: this task did not run for more than a report interval, and another
/// node, or an operator who believed this node dead, may have changed the record since. The local
/// ceiling is not raised until a request that was sent after the freeze is answered or has failed,
/// or until `until`.
#[derive(Debug, Clone, Copy)]
struct Thawed {
    /// When to stop waiting for a registry that does not answer.
    until: Instant,
    /// Whether the request under way was sent before the freeze was noticed. Its answer then proves
    /// nothing, and another request must follow.
    ask_again: bool,
}

/// An event to which the keeper reacts.
enum Event {
    Stop,
    Look(Urgency),
    Report,
    Answer(Box<Answer>),
    /// How many peers agree, and how many answered.
    Compared(Result<Agreement, SnowflakeError>),
    AcceptClock,
}

impl Keeper {
    /// Holds the worker id, raises its ceilings and watches the clock until the lease is lost or
    /// the generator stops.
    pub(super) async fn keep(&mut self, held: &mut Held, stop: &CancellationToken) -> End {
        let mut looks = every(LOOK_EVERY);
        let mut reports = every(self.config.report_interval);
        // The first report is sent at once, the second after a random part of the interval, so that
        // nodes that start together do not keep reporting together.
        let mut until_second = Some(self.config.report_interval.mul_f64(fastrand::f64()));
        let mut under_way = UnderWay::default();
        let shared = Arc::clone(&self.shared);
        self.looked_at = shared.clock.boot();
        let end = loop {
            let event = tokio::select! {
                () = stop.cancelled() => Event::Stop,
                _ = looks.tick() => Event::Look(Urgency::NobodyWaits),
                () = shared.wake.notified() => Event::Look(Urgency::CallersWait),
                _ = reports.tick() => Event::Report,
                answer = finish(&mut under_way.request) => Event::Answer(Box::new(answer)),
                verdict = finish(&mut under_way.comparison) => Event::Compared(verdict),
                () = shared.accept_clock.notified() => Event::AcceptClock,
            };
            if shared.fork.is_child() {
                // The lease, the file and the registry's connection are the parent's.
                return End::Forked;
            }
            match event {
                Event::Stop => break End::Stopped,
                Event::Look(urgency) => self.look_around(held, &mut under_way, urgency).await,
                Event::Report => {
                    if let Some(part) = until_second.take() {
                        reports.reset_after(part);
                    }
                    if under_way.request.is_none() {
                        under_way.request = Some(self.report(held));
                    }
                }
                Event::Answer(answer) => {
                    if let Some(end) = self.answered(held, &mut under_way, *answer).await {
                        break end;
                    }
                }
                Event::Compared(verdict) => {
                    under_way.comparison = None;
                    // A single peer that agrees is not enough: it may have followed the same wrong
                    // source of time.
                    if let Ok(Some((2.., _))) = verdict {
                        shared.accept_clock.notify_one();
                    }
                }
                Event::AcceptClock => {
                    self.follow_clock();
                    // The registry ceiling was computed from the time before the jump: raise it
                    // now.
                    reports.reset_immediately();
                }
            }
        };
        if let (End::Stopped, Some(unfinished)) = (&end, under_way.request) {
            held.lease = self.last_lease(held, unfinished.await);
        }
        end
    }

    /// The lease to give back at a stop, according to the answer to the last request; `None` if
    /// there is none.
    fn last_lease(&self, held: &Held, answer: Answer) -> Option<Lease> {
        let next_free = held.sequencer.next_free();
        match answer {
            Answer::Claimed(Ok(lease)) => Some(lease).filter(|it| self.continues(it, next_free)),
            Answer::Claimed(Err(_)) => None,
            Answer::Extended(lease, _) => Some(lease),
        }
    }

    /// Moves the ids' clock to a wall clock that jumped ahead and was confirmed.
    fn follow_clock(&self) {
        let jump = self.shared.clock.follow();
        if jump >= LOGGED_JUMP {
            tracing::warn!("the clock's jump ahead by {jump:?} was vouched for: ids follow it");
        }
    }

    /// Looks at the clock and raises the ceilings; notices a freeze, and asks the peers about a
    /// clock that has jumped far ahead.
    async fn look_around(&mut self, held: &mut Held, under_way: &mut UnderWay, urgency: Urgency) {
        let now = Instant::now();
        // Read before the check for a freeze. If a freeze begins after this line, the next look
        // notices it, and the ceiling that this look raises is computed from a time before the
        // freeze. Looks wait for the write of the state file, so a write that takes longer than a
        // report interval is taken for a freeze, too: it costs one request to the registry.
        let ids_clock = self.shared.clock.now().unwrap_or(UnixMillis::EPOCH);
        if self.was_frozen() {
            let ask_again = under_way.request.is_some();
            under_way.thawed = Some(Thawed { until: now + ATTEMPT, ask_again });
            if !ask_again {
                under_way.request = Some(self.report(held));
            }
        }
        let may_raise = under_way.thawed.is_none_or(|thawed| thawed.until <= now);
        let raise_from = may_raise.then_some(ids_clock);
        let look = self.look(&held.sequencer, urgency, raise_from).await;
        let may_ask = under_way.comparison.is_none() && under_way.compare_from <= now;
        if look == Look::FarAhead && may_ask {
            under_way.compare_from = now + self.config.report_interval;
            let config = self.config.clone();
            under_way.comparison = Some(Box::pin(async move { config.compare_clocks().await }));
        }
    }

    /// Handles the registry's answer. Returns why the lease is over, if the answer ends it.
    async fn answered(
        &mut self,
        held: &mut Held,
        under_way: &mut UnderWay,
        answer: Answer,
    ) -> Option<End> {
        under_way.request = None;
        let thawed = under_way.thawed.take();
        // After a freeze the raise of the ceiling waits for this answer. In that case the confirmed
        // lease is not written separately but together with the raised ceiling: the freeze may have
        // been a slow write and nothing else, and one more write could be slow again.
        let persist = if thawed.is_some() { Persist::WithNext } else { Persist::Now };
        if let Some(end) = self.take_answer(held, answer, persist).await {
            return Some(end);
        }
        if let Some(Thawed { until, ask_again: true }) = thawed {
            under_way.request = Some(self.report(held));
            under_way.thawed = Some(Thawed { until, ask_again: false });
        }
        None
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Waits for the operation that is under way; never completes if there is none.
async fn finish<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
