//! The worker ids of the registry, the ids' clock, and the JSON forms of `/v1/workers` and
//! `/v1/clock`.

use std::time::Duration;

use leaf_core::WorkerId;
use leaf_node::records::{FreedShown, WorkerShown, WorkersShown};
use leaf_node::requests::{ReleaseWorker, RetireWorker};
use leaf_snowflake::{NodeSettings, Registry};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::problem::Problem;
use crate::node::{Node, Snowflake};
use crate::refusal::Reason;

/// The distance of the ids' clock behind the wall clock, in milliseconds, before and after an
/// operator accepted the wall clock. `null` while ids stand still because the wall clock went back.
#[derive(Serialize)]
pub(super) struct Followed {
    behind_ms_before: Option<i64>,
    behind_ms: Option<i64>,
}

/// Snowflake mode, if it is on.
fn mode(node: &Node) -> Result<&Snowflake, Problem> {
    node.ids.snowflake().ok_or_else(|| Problem::disabled("snowflake"))
}

/// The registry, if it keeps records outside the state file.
fn registry(node: &Node) -> Result<&Registry, Problem> {
    let registry = &mode(node)?.open.registry;
    if registry.lives_in_state_file() {
        let name = node.config.registry();
        let text = format!("the registry `{name}` has nothing to administer");
        return Err(Problem::not_found(text));
    }
    Ok(registry)
}

/// Parses the worker id in a path.
fn worker(text: &str) -> Result<WorkerId, Problem> {
    let number = text.parse().map(WorkerId::new);
    number.map_err(|_| Problem::bad_request("worker id: give its number"))
}

/// All worker ids of the registry.
pub(super) async fn list(node: &Node) -> Result<WorkersShown, Problem> {
    let records = mode(node)?.open.registry.workers().await?;
    Ok(WorkersShown { workers: records.iter().map(WorkerShown::of).collect() })
}

/// The settings of the nodes, from the configuration of this one.
fn settings(node: &Node, dry_run: bool) -> NodeSettings {
    NodeSettings { dry_run, ..node.config.snowflake.node_settings() }
}

/// The refusal of a command that the request's body does not confirm.
fn unconfirmed(why: &str) -> Problem {
    Problem::new(Reason::Unconfirmed, why)
}

/// Frees a dead node's worker id.
pub(super) async fn release(
    node: &Node,
    worker: &str,
    asked: &ReleaseWorker,
    dry_run: bool,
) -> Result<FreedShown, Problem> {
    let (worker, registry) = (self::worker(worker)?, registry(node)?);
    if !asked.holder_is_dead {
        return Err(unconfirmed(
            "a holder that lives, or is started again on its data directory while the registry is away, \
             would repeat ids: set `holder_is_dead` where it is dead for good",
        ));
    }
    let free = registry.release_worker(worker, settings(node, dry_run)).await?;
    Ok(FreedShown { worker: worker.get(), free_from_ms: free.get() })
}

/// Takes a worker id out of service for good.
pub(super) async fn retire(
    node: &Node,
    worker: &str,
    asked: &RetireWorker,
    dry_run: bool,
) -> Result<Value, Problem> {
    let (worker, registry) = (self::worker(worker)?, registry(node)?);
    if !asked.for_good {
        return Err(unconfirmed(
            "a retired worker id is never used again: set `for_good` where that is meant",
        ));
    }
    registry.retire_worker(worker, settings(node, dry_run)).await?;
    Ok(json!({ "worker": worker.get() }))
}

/// If the ids' clock is at most this many milliseconds behind the wall clock, it counts as
/// following it.
const FOLLOWS: i64 = 20;
/// How long to wait until the keeper lets the ids' clock follow.
const FOLLOWED: Duration = Duration::from_secs(1);

/// Lets the ids' clock follow the wall clock of this host, which has jumped ahead.
pub(super) async fn accept_clock(node: &Node, clock_is_right: bool) -> Result<Followed, Problem> {
    let generator = &mode(node)?.generator;
    let behind = || generator.view().ahead_of_wall.map(|ahead| -ahead);
    let behind_ms_before = behind();
    if !clock_is_right {
        return Err(unconfirmed(
            "ids never go back: if the clock is wrong, no worker id can be used before the time that it shows. Set \
             `clock_is_right` once it was compared with other clocks",
        ));
    }
    generator.accept_clock();
    let until = Instant::now() + FOLLOWED;
    while behind().is_some_and(|behind| behind > FOLLOWS) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let behind_ms = behind();
    if behind_ms.is_some_and(|behind| behind > FOLLOWS) {
        return Err(Problem::unavailable("no worker id is held, or the keeper is busy: ask again"));
    }
    Ok(Followed { behind_ms_before, behind_ms })
}
