//! `GET /v1/live`: the state that the dashboard shows, as lines of JSON. The first line has the
//! whole state; after it comes one line a second, with the changes.
//!
//! Invariant: a viewer that merges all its lines in order has the node's state as of the last line.
//! Each second one line is made for all viewers; without viewers none is made. The server ends the
//! stream of a viewer that reads too slowly; that viewer opens another one. The lines need no query
//! to the registry. While there are viewers, the node asks the other nodes for their states, and
//! checks each store to which it has sent nothing for a second, so that an outage shows at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::body::Bytes;
use leaf_core::{Clock as _, IdRange, SystemClock};
use leaf_node::Shards;
use leaf_segment::view::TagView;
use leaf_shape::Order;
use serde_json::{Map, Value, json};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;

use super::status;
use crate::caller::Caller;
use crate::http::problem::Problem;
use crate::log::events;
use crate::node::{Node, Store};
use crate::refusal::Reason;
use crate::serve::Pressure;

/// How often a line is made.
const EVERY: Duration = Duration::from_secs(1);
/// The other nodes are asked for their states once in this many lines.
const LOOK_EVERY: usize = 3;
/// How many lines may wait until a viewer reads them.
const BEHIND: usize = 4;
/// The most viewers at a time. Each occupies a connection of the ops listener, which also serves
/// health.
const VIEWERS: usize = 16;
/// The most tags that are shown, the first ones by name. The dashboard finds the others by a
/// search.
const TAGS: usize = 1000;

/// The stream of lines of a node, which all its viewers share.
pub(crate) struct Feed {
    state: Mutex<State>,
    lines: broadcast::Sender<Bytes>,
}

/// The state that the viewers have received.
#[derive(Default)]
struct State {
    seen: Map<String, Value>,
    /// Whether a task makes lines.
    runs: bool,
}

impl Default for Feed {
    fn default() -> Self {
        Self { state: Mutex::default(), lines: broadcast::Sender::new(BEHIND) }
    }
}

impl Feed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// Opens a stream of lines for a viewer. The stream ends when the viewer may no longer read or
/// reads too slowly, or when the node stops.
pub(super) fn watch(caller: &Caller) -> Result<mpsc::Receiver<Bytes>, Problem> {
    let feed = &caller.feed;
    let (sender, receiver) = mpsc::channel(BEHIND);
    let is_room = || {
        let text = format!("{VIEWERS} viewers watch already: close one of them");
        let is_room = feed.lines.receiver_count() < VIEWERS;
        is_room.then_some(()).ok_or_else(|| Problem::new(Reason::Busy, text))
    };
    // A refusal must cost little.
    is_room()?;
    let runs = feed.state().runs;
    let fresh = (!runs).then(|| now(caller));
    let (first, mut lines) = {
        // Between the first line and the next nothing is lost: both are made under this lock.
        let mut state = feed.state();
        is_room()?;
        let lines = feed.lines.subscribe();
        if !state.runs {
            state.seen = fresh.unwrap_or_else(|| now(caller));
            state.runs = true;
            tokio::spawn(make_lines(Arc::clone(caller)));
        }
        (line(&state.seen, true), lines)
    };
    let caller = caller.clone();
    tokio::spawn(async move {
        let mut next = Some(first);
        while let Some(line) = next {
            if sender.try_send(line).is_err() || caller.stopping() {
                return;
            }
            next = lines.recv().await.ok().filter(|_| caller.may_read());
        }
    });
    Ok(receiver)
}

/// Makes lines while somebody watches.
async fn make_lines(node: Arc<Node>) {
    let mut looks: HashMap<usize, JoinHandle<()>> = HashMap::new();
    for number in 0_usize.. {
        if let (0, Some(peers)) = (number % LOOK_EVERY, node.peers.clone()) {
            tokio::spawn(async move { peers.look().await });
        }
        let stores = node.ids.segments().into_iter().flat_map(Shards::iter);
        for (at, store) in stores.enumerate() {
            // One that hangs is not asked by more and more tasks.
            if looks.get(&at).is_none_or(JoinHandle::is_finished) {
                let store = store.clone();
                looks.insert(at, tokio::spawn(async move { store.look_at_store(EVERY).await }));
            }
        }
        tokio::time::sleep(EVERY).await;
        let now = now(&node);
        let mut state = node.feed.state();
        let changed = difference(&state.seen, &now);
        state.seen = now;
        // When the node stops, its last line wakes the tasks of all viewers, which then end their
        // streams: a stop must not wait for them. The flag is read before the line is sent, and
        // each viewer's task reads it after it has received the line: so none misses the stop.
        let stops = node.stopping();
        if node.feed.lines.send(line(&changed, false)).is_err() || stops {
            state.runs = false;
            node.peers.iter().for_each(|peers| peers.forget_states());
            return;
        }
    }
}

/// Encodes a line. `all` marks a viewer's first line, which replaces everything that the viewer had
/// before.
fn line(state: &Map<String, Value>, all: bool) -> Bytes {
    let mut text = json!({ "all": all, "state": state }).to_string();
    text.push('\n');
    text.into()
}

/// The changes from `before` to `after`. Objects are compared field by field, other values as a
/// whole. A removed field is `null`.
fn difference(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let mut changed = Map::new();
    for (key, value) in after {
        match (before.get(key), value) {
            (Some(old), value) if old == value => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                changed.insert(key.clone(), difference(old, new).into());
            }
            _ => _ = changed.insert(key.clone(), value.clone()),
        }
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        changed.insert(key.clone(), Value::Null);
    }
    changed
}

/// The state of a node. No field of an object in it is `null`: in a line, `null` means that the
/// field was removed.
fn now(node: &Node) -> Map<String, Value> {
    let views = node.ids.segments().map(|segments| segments.views(None, TAGS));
    let tags: Map<String, Value> = views
        .unwrap_or_default()
        .iter()
        .map(|view| (view.tag.as_str().to_owned(), without_nulls(tag(node, view))))
        .collect();
    let stores = node.ids.stores().map(|stores| stores.iter().map(store).collect());
    let health = node.health();
    let reasons: Vec<&str> = health.reasons().iter().map(|reason| &*reason.text).collect();
    let certificate_ends = node.tls.as_deref().map(|tls| tls.end().as_secs());
    let delay = node.pressures.iter().map(Pressure::delay).max().unwrap_or_default();
    let state = json!({
        "now": SystemClock.wall_millis().get(),
        "status": without_nulls(json!(status::status(node, &health))),
        "reasons": reasons,
        "tags": tags,
        "stores": stores.unwrap_or(Value::Array(Vec::new())),
        "others": node.peers.as_ref().map(|peers| json!(peers.states())),
        "flakes": node.ids.snowflake().map(|_| node.requests.snowflakes().to_string()),
        "delay_ms": delay.as_millis() as u64,
        "drained": node.is_drained(),
        "certificate_ends": certificate_ends,
        "events": events::last(),
    });
    match without_nulls(state) {
        Value::Object(state) => state,
        _ => Map::new(),
    }
}

/// An object without the fields that are `null`.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        value => value,
    }
}

/// A store in JSON: the number and total time of its answers, and its failures. The health of each
/// store is under `status`.
fn store(store: &Store) -> Value {
    let totals = store.generator.totals();
    let answers = &totals.store_answers;
    json!({
        "store": store.url.to_string(),
        "answers": answers.total(),
        "answered_in_s": answers.sum.as_secs_f64(),
        "failures": totals.store_failures,
    })
}

/// A tag in JSON. Ids and counts of ids are texts, since JavaScript loses digits above 2^53.
fn tag(node: &Node, view: &TagView) -> Value {
    let slot = |range: Option<IdRange>| {
        range.map(|range| json!([range.start().to_string(), range.end().to_string()]))
    };
    let wall = SystemClock.wall_millis().get();
    let ago =
        |ago: Duration| wall.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(0)) / 1000;
    let fetches: Vec<Value> = view
        .fetches
        .iter()
        .map(|fetch| {
            json!([fetch.amount.to_string(), ago(fetch.ago), fetch.took.as_micros() as u64])
        })
        .collect();
    let error = view.error.as_ref().map(|(error, _)| error.to_string());
    json!({
        "order": if view.meaning.order == Order::Strict { "strict" } else { "relaxed" },
        "shape": view.meaning.shape.to_string(),
        "text": view.settings.text.as_ref().map(ToString::to_string),
        "enabled": view.settings.enabled,
        "limit": node.traffic.limit_of(view.tag.as_str()),
        "slots": view.slots.map(slot),
        "current": view.current,
        "position": view.position.map(|position| position.to_string()),
        "stock": view.stock.to_string(),
        "step": view.step.map(leaf_core::Step::get),
        "rate": (view.rate * 10.0).round() / 10.0,
        "issued": view.issued.to_string(),
        "remaining": view.remaining.map(|remaining| remaining.to_string()),
        "fetches": fetches,
        "fetching": view.fetching,
        "error": error,
        "advance_to": view.advance_to.map(|least| least.to_string()),
        "ended": view.ended.as_ref().map(ToString::to_string),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Merges a line into the state, as the dashboard does.
    fn merge(state: &mut Map<String, Value>, changed: Map<String, Value>) {
        for (key, value) in changed {
            match (state.get_mut(&key), value) {
                (_, Value::Null) => drop(state.remove(&key)),
                (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
                (_, value) => drop(state.insert(key, value)),
            }
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![(0..3u8).prop_map(Value::from), "[a-b]".prop_map(Value::from)];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    fn objects() -> impl Strategy<Value = Map<String, Value>> {
        proptest::collection::btree_map("[a-d]", values(), 0..4)
            .prop_map(|fields| fields.into_iter().collect())
    }

    proptest! {
        #[test]
        fn what_has_changed_put_over_what_was_is_what_is(before in objects(), after in objects()) {
            let changed = difference(&before, &after);
            let mut state = before;
            merge(&mut state, changed);
            prop_assert_eq!(state, after);
        }
    }
}
