//! `/v1/status`: the state of this node, and the reasons for it, as texts and as codes.

use std::collections::BTreeMap;

use hyper::StatusCode;
use leaf_core::Health;
use leaf_snowflake::PeerClock;
use serde::Serialize;

use super::super::reply::{self, Reply};
use crate::node::{Node, Snowflake, Store};

/// `GET /v1/status`.
#[derive(Serialize)]
pub(super) struct Status {
    version: &'static str,
    name: String,
    #[serde(flatten)]
    health: HealthShown,
    /// How long the process has run, in seconds.
    running_for_s: u64,
    segment: Option<Segment>,
    snowflake: Option<Flakes>,
    /// How many requests were refused since the start, by protocol and reason.
    refused: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
}

/// The JSON form of a health.
#[derive(Serialize)]
struct HealthShown {
    /// `ready`, `degraded` or `not ready`.
    state: &'static str,
    /// What is wrong; `null` when nothing is.
    reason: Option<String>,
    /// The codes of what is wrong, for programs, see [`leaf_core::HealthCode`]; empty when nothing
    /// is.
    codes: Vec<&'static str>,
}

/// Segment mode.
#[derive(Serialize)]
struct Segment {
    stores: Vec<OneStore>,
}

/// A store, its health and its tags.
#[derive(Serialize)]
struct OneStore {
    store: String,
    #[serde(flatten)]
    health: HealthShown,
    tags: usize,
    /// How many ids can be handed out without the store.
    stock: String,
    /// How many ids were handed out since the start.
    issued: String,
    /// The tags whose `max_id` is below this node's high-water mark.
    went_back: Vec<WentBack>,
}

/// A tag that gets no new ids before its record is advanced.
#[derive(Serialize)]
struct WentBack {
    tag: String,
    /// The least number from which the record must continue: this node's high-water mark.
    at_least: String,
}

/// Snowflake mode.
#[derive(Serialize)]
struct Flakes {
    #[serde(flatten)]
    health: HealthShown,
    registry: String,
    identity: String,
    /// `null` before the first claim.
    worker: Option<u32>,
    /// Whether the registry confirmed the worker id since the start.
    confirmed: bool,
    /// The local ceiling: the state file allows only timestamps below it. Unix milliseconds.
    local_ceiling_ms: String,
    /// The registry ceiling: timestamps stay below it until the registry confirms a higher one.
    /// Unix milliseconds.
    registry_ceiling_ms: String,
    /// How many ids were handed out since the start.
    issued: String,
    /// By how many milliseconds the ids' clock is ahead of the wall clock; `null` while ids stand
    /// still because the wall clock went back.
    clock_ahead_ms: Option<i64>,
    clock_steps_forward: u64,
    clock_steps_back: u64,
    /// The clocks of other nodes, as they were read within the last minute.
    peers: Vec<PeerShown>,
    /// How many leases this process has lost: taken over, in doubt after a failover, or replaced by
    /// a lease that cannot continue their ids.
    leases_lost: u64,
    /// Whole days until the timestamps of the layout are used up.
    days_left: u64,
}

/// The clock of another node.
#[derive(Serialize)]
struct PeerShown {
    address: String,
    /// This node's clock minus the other node's, in milliseconds.
    clock_offset_ms: i64,
    /// How far `clock_offset_ms` may be wrong, in either direction.
    uncertainty_ms: u64,
}

impl HealthShown {
    /// Joins the texts of all reasons. A code that several tags share appears once.
    fn of(health: &Health) -> Self {
        let texts: Vec<&str> = health.reasons().iter().map(|reason| &*reason.text).collect();
        let mut codes = Vec::new();
        for reason in health.reasons() {
            if !codes.contains(&reason.code.as_str()) {
                codes.push(reason.code.as_str());
            }
        }
        Self { state: health.state(), reason: (!texts.is_empty()).then(|| texts.join("; ")), codes }
    }
}

/// The answer to `GET /v1/status`: from memory alone, so that it comes also when store and registry
/// are away.
pub(super) fn show(node: &Node) -> Reply {
    reply::json(StatusCode::OK, &status(node, &node.health()))
}

/// The state of this node, whose health is `health`.
pub(super) fn status(node: &Node, health: &Health) -> Status {
    let stores = node.ids.stores().map(|stores| stores.iter().map(one_store).collect());
    Status {
        version: env!("CARGO_PKG_VERSION"),
        name: node.config.name.clone(),
        health: HealthShown::of(health),
        running_for_s: node.started.elapsed().as_secs(),
        segment: stores.map(|stores| Segment { stores }),
        snowflake: node.ids.snowflake().map(|snowflake| flakes(node, snowflake)),
        refused: refused(node),
    }
}

/// The counts of refusals: by face, then by the reason's word.
fn refused(node: &Node) -> BTreeMap<&'static str, BTreeMap<&'static str, u64>> {
    let mut counts = BTreeMap::<_, BTreeMap<_, _>>::new();
    for ([face, _, reason], count) in node.requests.refusals() {
        *counts.entry(face).or_default().entry(reason).or_default() += count;
    }
    counts
}

/// A store as it is shown.
fn one_store(store: &Store) -> OneStore {
    let totals = store.generator.totals();
    OneStore {
        store: store.url.to_string(),
        health: HealthShown::of(&store.generator.health()),
        tags: totals.tags,
        went_back: totals
            .went_back
            .iter()
            .map(|(tag, least)| WentBack { tag: tag.as_str().into(), at_least: least.to_string() })
            .collect(),
        stock: totals.stock.to_string(),
        issued: totals.issued.to_string(),
    }
}

/// Snowflake mode as it is shown.
fn flakes(node: &Node, snowflake: &Snowflake) -> Flakes {
    let view = snowflake.generator.view();
    Flakes {
        health: HealthShown::of(&view.health),
        registry: node.config.registry().kind().to_string(),
        identity: snowflake.identity.to_string(),
        worker: view.worker.map(leaf_core::WorkerId::get),
        confirmed: view.confirmed,
        local_ceiling_ms: view.local_ceiling.to_string(),
        registry_ceiling_ms: view.registry_ceiling.to_string(),
        issued: node.requests.snowflakes().to_string(),
        clock_ahead_ms: view.ahead_of_wall,
        clock_steps_forward: view.clock_steps.forward,
        clock_steps_back: view.clock_steps.back,
        peers: node.peer_clocks().iter().map(peer).collect(),
        leases_lost: view.leases_lost,
        days_left: view.days_left,
    }
}

/// Another node's clock as it is shown.
fn peer(clock: &PeerClock) -> PeerShown {
    PeerShown {
        address: clock.peer.to_string(),
        clock_offset_ms: clock.offset,
        uncertainty_ms: u64::try_from(clock.uncertainty.as_millis()).unwrap_or(u64::MAX),
    }
}
