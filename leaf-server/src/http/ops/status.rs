//! `/v1/status`: how this node is, and why, in words.

use hyper::StatusCode;
use leaf_core::Health;
use serde::Serialize;

use super::super::reply::{self, Reply};
use crate::node::{Node, Snowflake, Store};

#[derive(Serialize)]
struct Status {
    version: &'static str,
    name: String,
    state: &'static str,
    /// What is wrong; `null` when nothing is.
    reason: Option<String>,
    running_for_s: u64,
    segment: Option<Segment>,
    snowflake: Option<Flakes>,
}

#[derive(Serialize)]
struct Segment {
    stores: Vec<OneStore>,
}

#[derive(Serialize)]
struct OneStore {
    store: String,
    state: &'static str,
    reason: Option<String>,
    tags: usize,
    /// Ids that can be handed out without the store.
    stock: String,
}

#[derive(Serialize)]
struct Flakes {
    state: &'static str,
    reason: Option<String>,
    registry: String,
    identity: String,
    worker: Option<u32>,
    /// Whether the registry confirmed the worker id since the start.
    confirmed: bool,
    /// No id is issued at or above these.
    local_ceiling_ms: String,
    registry_ceiling_ms: String,
    clock_ahead_ms: Option<i64>,
    clock_steps_forward: u64,
    clock_steps_back: u64,
    leases_lost: u64,
    days_left: u64,
}

fn told(health: Health) -> (&'static str, Option<String>) {
    match health {
        Health::Ready => ("ready", None),
        Health::Degraded(why) => ("degraded", Some(why)),
        Health::NotReady(why) => ("not ready", Some(why)),
    }
}

pub(super) fn show(node: &Node) -> Reply {
    let (state, reason) = told(node.health());
    let stores = node.stores().map(|stores| stores.iter().map(one_store).collect());
    let status = Status {
        version: env!("CARGO_PKG_VERSION"),
        name: node.config.name.clone(),
        state,
        reason,
        running_for_s: node.started.elapsed().as_secs(),
        segment: stores.map(|stores| Segment { stores }),
        snowflake: node.snowflake().map(|snowflake| flakes(node, snowflake)),
    };
    reply::json(StatusCode::OK, &status)
}

fn one_store(store: &Store) -> OneStore {
    let (state, reason) = told(store.generator.health());
    let views = store.generator.views();
    OneStore {
        store: store.url.to_string(),
        state,
        reason,
        tags: views.len(),
        stock: views.iter().map(|view| u128::from(view.stock)).sum::<u128>().to_string(),
    }
}

fn flakes(node: &Node, snowflake: &Snowflake) -> Flakes {
    let view = snowflake.generator.view();
    let (state, reason) = told(view.health);
    Flakes {
        state,
        reason,
        registry: node.config.snowflake.registry.to_string(),
        identity: snowflake.identity.to_string(),
        worker: view.worker.map(leaf_core::WorkerId::get),
        confirmed: view.confirmed,
        local_ceiling_ms: view.local_ceiling.to_string(),
        registry_ceiling_ms: view.registry_ceiling.to_string(),
        clock_ahead_ms: view.ahead_of_wall,
        clock_steps_forward: view.clock_steps.forward,
        clock_steps_back: view.clock_steps.back,
        leases_lost: view.leases_lost,
        days_left: view.days_left,
    }
}
