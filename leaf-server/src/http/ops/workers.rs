//! `/v1/workers`: the worker ids of the registry.

use hyper::StatusCode;
use leaf_core::{Clock, WorkerId};
use leaf_node::records::WorkerShown;
use leaf_snowflake::{NodeSettings, Registry, SystemClock};
use serde::{Deserialize, Serialize};

use super::super::problem::Problem;
use super::super::reply::{self, Reply};
use crate::node::{Node, Snowflake};

#[derive(Serialize)]
struct Workers {
    workers: Vec<WorkerShown>,
}

#[derive(Serialize)]
struct Released {
    worker: u32,
    free_from_ms: String,
}

#[derive(Serialize)]
struct Retired {
    worker: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dead {
    /// Yes, no process goes on with it, nor will one be started again on its data directory.
    holder_is_dead: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForGood {
    /// Yes, for good.
    for_good: bool,
}

fn mode(node: &Node) -> Result<&Snowflake, Problem> {
    node.snowflake().ok_or_else(|| Problem::disabled("snowflake"))
}

fn registry(node: &Node) -> Result<&Registry, Problem> {
    let registry = &mode(node)?.open.registry;
    if registry.lives_in_state_file() {
        let name = node.config.snowflake.registry;
        let text = format!("the registry `{name}` has nothing to administer");
        return Err(Problem::not_found(text));
    }
    Ok(registry)
}

fn worker(text: &str) -> Result<WorkerId, Problem> {
    let number = text.parse().map(WorkerId::new);
    number.map_err(|_| Problem::bad_request("worker id: give its number"))
}

fn node_settings(node: &Node) -> NodeSettings {
    NodeSettings {
        now: SystemClock.wall_millis(),
        layout: node.layout,
        offline_for: node.config.snowflake.offline_for.duration(),
        report_interval: node.config.snowflake.report_interval.duration(),
    }
}

pub(super) async fn list(node: &Node) -> Result<Reply, Problem> {
    let records = mode(node)?.open.registry.workers().await?;
    let workers = records.iter().map(WorkerShown::of).collect();
    Ok(reply::json(StatusCode::OK, &Workers { workers }))
}

fn unconfirmed(why: &str) -> Problem {
    Problem::new(StatusCode::CONFLICT, "unconfirmed", why)
}

pub(super) async fn release(node: &Node, number: &str, sure: Dead) -> Result<Reply, Problem> {
    let (worker, registry) = (worker(number)?, registry(node)?);
    if !sure.holder_is_dead {
        return Err(unconfirmed(
            "a holder that lives, or is started again on its data directory while the registry is away, \
             would repeat ids",
        ));
    }
    let free = registry.release_worker(worker, node_settings(node)).await?;
    let released = Released { worker: worker.get(), free_from_ms: free.to_string() };
    Ok(reply::json(StatusCode::OK, &released))
}

pub(super) async fn retire(node: &Node, number: &str, sure: ForGood) -> Result<Reply, Problem> {
    let (worker, registry) = (worker(number)?, registry(node)?);
    if !sure.for_good {
        return Err(unconfirmed("a retired worker id is never used again"));
    }
    registry.retire_worker(worker, node_settings(node)).await?;
    Ok(reply::json(StatusCode::OK, &Retired { worker: worker.get() }))
}
