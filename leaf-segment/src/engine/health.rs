//! Whether the tags of one store can be served now, and what an operator should look at.

use std::time::Duration;

use leaf_core::{Health, HealthCode, HealthReason};
use leaf_shape::Order;

use super::handle::TagHandle;
use super::known_tags::TagMap;
use super::store_client::StoreClient;
use crate::{SegmentErrorKind, StoreErrorKind};

/// How long the health reports a tag after a clock made it fail: perhaps nobody asks for its ids
/// again.
const LATELY: Duration = Duration::from_secs(300);

/// How many of the tags with one kind of problem are named.
const NAMED: usize = 3;

/// The health of a generator with these tags. `loaded`: whether the store was ever read. All
/// reasons are reported, not only the first.
pub(crate) fn of(store_client: &StoreClient, loaded: bool, tags: &TagMap) -> Health {
    if store_client.stop.is_cancelled() {
        return Health::not_ready(HealthCode::Stopping, "segment mode is closed");
    }
    let store = match (store_client.trouble(), loaded) {
        (None, true) => Health::Ready,
        (None, false) => Health::not_ready(HealthCode::Starting, "segment store: no answer yet"),
        (Some(trouble), false) => {
            Health::not_ready(HealthCode::StoreUnavailable, format!("segment store: {trouble}"))
        }
        (Some(trouble), true) => from_stock(tags, &trouble),
    };
    let marks = store_client.config.marks.trouble().map_or(Health::Ready, |why| {
        let text = format!("marks of the regression guard are not kept: {why}");
        Health::degraded(HealthCode::MarksNotWritten, text)
    });
    let refused = named(HealthCode::TagRefused, "needs an operator", tags, problem);
    let closed = named(HealthCode::Clock, "waits for a clock", tags, closed_period);
    store.and(marks).and(refused).and(closed).and(clock(store_client, tags))
}

/// The health while the store does not answer: ready only as long as each tag in use has ids in
/// memory.
fn from_stock(tags: &TagMap, trouble: &str) -> Health {
    // A tag in strict order never has a stock: its own callers are told.
    let in_use = |handle: &&TagHandle| {
        !handle.state.has_ended()
            && handle.meaning().order == Order::Relaxed
            && handle.state.control().granted > 0
    };
    let has_stock = |handle: &TagHandle| handle.state.numbers().stock() > 0;
    let out_of_ids = match tags.values().filter(in_use).find(|handle| !has_stock(handle)) {
        Some(handle) => format!("tag {:?} is out of ids", handle.tag().as_str()),
        None if !tags.values().any(has_stock) => "no tag has ids left".into(),
        None => {
            let text = format!("segment store: {trouble}; serving from stock");
            return Health::degraded(HealthCode::StoreUnavailable, text);
        }
    };
    Health::NotReady(vec![
        HealthReason::new(HealthCode::StoreUnavailable, format!("segment store: {trouble}")),
        HealthReason::new(HealthCode::OutOfIds, out_of_ids),
    ])
}

/// Reports the tags that have this `problem`: the first few by name and with the problem, the
/// others by their number and with the text `waits`.
fn named(
    code: HealthCode,
    waits: &str,
    tags: &TagMap,
    problem: impl Fn(&TagHandle) -> Option<String>,
) -> Health {
    let mut waiting: Vec<(&str, String)> = tags
        .values()
        .filter_map(|handle| Some((handle.tag().as_str(), problem(handle)?)))
        .collect();
    if waiting.is_empty() {
        return Health::Ready;
    }
    waiting.sort_unstable();
    let named = waiting.iter().take(NAMED).map(|(tag, why)| format!("tag {tag:?}: {why}"));
    let mut texts: Vec<String> = named.collect();
    match waiting.len().saturating_sub(NAMED) {
        0 => {}
        1 => texts.push(format!("one more tag {waits}")),
        more => texts.push(format!("each of {more} more tags {waits}")),
    }
    Health::degraded(code, texts.join("; "))
}

/// Reports a clock that was set and is not believed yet, if a tag has periods.
fn clock(store_client: &StoreClient, tags: &TagMap) -> Health {
    let has_periods = || tags.values().any(|handle| handle.meaning().reset.is_some());
    match store_client.period_clock.in_doubt() {
        Some(by) if has_periods() => {
            let text = format!(
                "the clock was set {by}: periods go on as if it had not been, until it has stayed so for a minute"
            );
            Health::degraded(HealthCode::Clock, text)
        }
        _ => Health::Ready,
    }
}

/// Why the last attempt for a tag with periods failed recently, if the reason was a clock.
fn closed_period(handle: &TagHandle) -> Option<String> {
    let control = handle.state.control();
    let failure = control.failure.as_ref().filter(|failure| failure.at.elapsed() < LATELY)?;
    let refusal = failure.error.kind();
    let clock = matches!(
        refusal,
        StoreErrorKind::ClockBehind { .. }
            | StoreErrorKind::ClockAhead { .. }
            | StoreErrorKind::ClockUnset { .. }
    );
    (clock && control.ended.is_none()).then(|| refusal.to_string())
}

/// Why a tag waits for an operator, if it does.
fn problem(handle: &TagHandle) -> Option<String> {
    let control = handle.state.control();
    match &control.ended {
        Some(SegmentErrorKind::Key(problem)) => return Some(problem.to_string()),
        Some(SegmentErrorKind::Record) => {
            return Some("this node cannot use its record; the log says why".into());
        }
        Some(_) => return None,
        None => {}
    }
    if let Some(least) = handle.state.advance_to(&control) {
        return Some(format!(
            "its record went back, and offers ids again that were granted: it must go on from {least} or above"
        ));
    }
    if let Err(error) = &control.policy {
        return Some(error.to_string());
    }
    if let Some(error) = &control.unreadable {
        return Some(error.to_string());
    }
    let refusal = control.failure.as_ref().map(|failure| failure.error.kind());
    let refusal =
        refusal.filter(|kind| matches!(kind, StoreErrorKind::BadRecord(_) | StoreErrorKind::Moved));
    refusal.map(ToString::to_string)
}
