//! `/v1/workers`: the worker ids of the registry.

use hyper::StatusCode;
use leaf_core::{Clock, WorkerId};
use leaf_registry::{Circumstances, WorkerAdministration};
use leaf_server::records::WorkerShown;
use leaf_snowflake::SystemClock;
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

fn admin(node: &Node) -> Result<&dyn WorkerAdministration, Problem> {
    mode(node)?.open.admin.as_deref().ok_or_else(|| {
        let registry = node.config.snowflake.registry;
        Problem::not_found(format!("the registry `{registry}` has nothing to administer"))
    })
}

fn worker(text: &str) -> Result<WorkerId, Problem> {
    let number = text.parse().map(WorkerId::new);
    number.map_err(|_| Problem::bad_request("worker id: give its number"))
}

fn circumstances(node: &Node) -> Circumstances {
    Circumstances {
        now: SystemClock.wall_millis(),
        layout: node.layout,
        offline_for: node.config.snowflake.offline_for.duration(),
        report_interval: node.config.snowflake.report_interval.duration(),
    }
}

pub(super) async fn list(node: &Node) -> Result<Reply, Problem> {
    let records = mode(node)?.open.registry.workers().await?;
    let offline_for = node.config.snowflake.offline_for.duration();
    let workers = records.iter().map(|record| WorkerShown::of(record, offline_for)).collect();
    Ok(reply::json(StatusCode::OK, &Workers { workers }))
}

fn unconfirmed(why: &str) -> Problem {
    Problem::new(StatusCode::CONFLICT, "unconfirmed", why)
}

pub(super) async fn release(node: &Node, number: &str, sure: Dead) -> Result<Reply, Problem> {
    let (worker, admin) = (worker(number)?, admin(node)?);
    if !sure.holder_is_dead {
        return Err(unconfirmed(
            "a holder that lives, or is started again on its data directory while the registry is away, \
             would repeat ids",
        ));
    }
    let free = admin.release(worker, circumstances(node)).await?;
    let released = Released { worker: worker.get(), free_from_ms: free.to_string() };
    Ok(reply::json(StatusCode::OK, &released))
}

pub(super) async fn retire(node: &Node, number: &str, sure: ForGood) -> Result<Reply, Problem> {
    let (worker, admin) = (worker(number)?, admin(node)?);
    if !sure.for_good {
        return Err(unconfirmed("a retired worker id is never used again"));
    }
    admin.retire(worker, circumstances(node)).await?;
    Ok(reply::json(StatusCode::OK, &Retired { worker: worker.get() }))
}
