//! Whether the tags of one store can be served now, and what an operator should look at.

use leaf_core::{Health, HealthCode};

use crate::handle::TagHandle;
use crate::known_tags::TagMap;
use crate::store_client::StoreClient;
use crate::{Order, SegmentErrorKind, StoreErrorKind};

/// The health of these tags. `loaded`: whether the set of tags was ever read.
pub(crate) fn of(store_client: &StoreClient, loaded: bool, tags: &TagMap) -> Health {
    if store_client.stop.is_cancelled() {
        return Health::not_ready(HealthCode::Stopping, "segment mode is closed");
    }
    let trouble = store_client.trouble();
    if !loaded {
        let (code, why) = match trouble {
            Some(trouble) => (HealthCode::StoreUnavailable, trouble),
            None => (HealthCode::Starting, "no answer yet".into()),
        };
        return Health::not_ready(code, format!("segment store: {why}"));
    }
    let marks = store_client.config.marks.trouble().map_or(Health::Ready, |why| {
        let text = format!("marks of the regression guard are not kept: {why}");
        Health::degraded(HealthCode::MarksNotWritten, text)
    });
    match trouble {
        None => marks.and(keyless(tags).and(refused(tags))),
        Some(trouble) => from_stock(tags, &trouble, marks),
    }
}

/// Whether tags other than those without a key wait for an operator.
fn refused(tags: &TagMap) -> Health {
    let has_key = |handle: &&TagHandle| {
        !matches!(handle.state.control().ended, Some(SegmentErrorKind::Key(_)))
    };
    match tags.values().filter(|handle| needs_operator(handle)).filter(has_key).count() {
        0 => Health::Ready,
        count => {
            let text = format!(
                "{count} tags need an operator: their records went back, or hold what this node cannot use; the log says what to do"
            );
            Health::degraded(HealthCode::TagRefused, text)
        }
    }
}

/// The health while the store does not answer: ready only as long as each tag in use has ids in
/// memory.
fn from_stock(tags: &TagMap, trouble: &str, marks: Health) -> Health {
    // A tag in strict order never has a stock: its own callers are told.
    let in_use = |handle: &&TagHandle| {
        !handle.state.has_ended()
            && handle.meaning().order == Order::Relaxed
            && handle.state.control().granted > 0
    };
    let has_stock = |handle: &TagHandle| handle.state.numbers().stock() > 0;
    let out_of_ids = |text| Health::not_ready(HealthCode::OutOfIds, text);
    match tags.values().filter(in_use).find(|handle| !has_stock(handle)) {
        Some(handle) => out_of_ids(format!(
            "segment store: {trouble}; tag {:?} is out of ids",
            handle.tag().as_str()
        )),
        None if !tags.values().any(has_stock) => {
            out_of_ids(format!("segment store: {trouble}; no tag has ids left"))
        }
        None => marks.and(Health::degraded(
            HealthCode::StoreUnavailable,
            format!("segment store: {trouble}; serving from stock"),
        )),
    }
}

/// Whether a tag's ids cannot be made for want of its key.
fn keyless(tags: &TagMap) -> Health {
    let problem = tags.values().find_map(|handle| match handle.state.control().ended {
        Some(SegmentErrorKind::Key(problem)) => Some((handle.tag().clone(), problem)),
        _ => None,
    });
    problem.map_or(Health::Ready, |(tag, problem)| {
        let text = format!("tag {:?}: {problem}", tag.as_str());
        Health::degraded(HealthCode::TagRefused, text)
    })
}

/// Whether a tag waits for an operator.
pub(crate) fn needs_operator(handle: &TagHandle) -> bool {
    let control = handle.state.control();
    let bad_record = control
        .failure
        .as_ref()
        .is_some_and(|failure| matches!(failure.error.kind(), StoreErrorKind::BadRecord(_)));
    match &control.ended {
        None => control.suspect() || bad_record,
        Some(why) => matches!(why, SegmentErrorKind::Record | SegmentErrorKind::Key(_)),
    }
}
