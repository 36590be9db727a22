//! `leaf worker`: the worker ids of the configured registry.
//!
//! The rules, such as how long a released worker id rests, are those of leaf-snowflake; here is
//! what is asked before and what is printed after. Each command that can lead to repeated ids wants
//! a flag that says what the caller is sure of.

use anyhow::{Result, anyhow};
use comfy_table::CellAlignment::{self, Left, Right};
use leaf_core::WorkerId;
use leaf_node::config::{ConfigError, Snowflake};
use leaf_node::records::{FreedShown, WorkerShown};
use leaf_snowflake::Registry;

use crate::cli::{DryRun, OfRegistry, Output};
use crate::output::{self, Row};
use crate::{Done, ask, exit};

impl Row for WorkerShown {
    const COLUMNS: &'static [(&'static str, CellAlignment)] = &[
        ("worker", Right),
        ("state", Left),
        ("holder", Left),
        ("last_report", Left),
        ("ceiling", Left),
        ("remark", Left),
    ];

    fn cells(&self) -> Vec<String> {
        let time = |at: Option<u64>| at.map_or("-".into(), readable);
        vec![
            self.worker.to_string(),
            self.state.to_string(),
            self.holder.clone().unwrap_or_else(|| "-".into()),
            time(self.last_report_ms),
            time(self.ceiling_ms),
            self.remark.clone().unwrap_or_default(),
        ]
    }
}

/// What a command comes to, once it is confirmed.
pub(crate) enum Plan {
    /// Shows all worker ids.
    List,
    /// Shows what it is about, and changes nothing.
    DryRun(WorkerId),
    /// Frees what a dead node holds.
    Release(WorkerId),
    /// Takes one out of service for good.
    Retire(WorkerId),
    /// Writes a record anew.
    Repair(WorkerId),
}

/// What a command comes to; where it is not confirmed by its flag, the terminal is asked.
///
/// # Errors
/// [`ConfigError`]: nobody confirms it.
pub(crate) fn plan(command: OfRegistry) -> Result<Plan> {
    let (worker, dry, is_sure, flag, why, plan): (_, _, _, _, _, fn(WorkerId) -> Plan) =
        match command {
            OfRegistry::List => return Ok(Plan::List),
            OfRegistry::Release { worker, holder_is_dead, dry } => {
                let why = "a holder that lives, or is started again on its data directory while the registry is away, would \
                           repeat ids";
                (worker, dry, holder_is_dead, "--holder-is-dead", why, Plan::Release)
            }
            OfRegistry::Retire { worker, yes, dry } => {
                (worker, dry, yes, "--yes", "a retired worker id is never used again", Plan::Retire)
            }
            OfRegistry::Repair { worker, holder_is_dead, dry } => {
                let why = "nobody, no Java Leaf either, may go on with what is repaired";
                (worker, dry, holder_is_dead, "--holder-is-dead", why, Plan::Repair)
            }
        };
    let worker = WorkerId::new(worker);
    if dry.dry_run {
        return Ok(Plan::DryRun(worker));
    }
    if is_sure || ask::sure(&format!("{why}. Worker id {worker}: is that so, and go on?")) {
        return Ok(plan(worker));
    }
    Err(ConfigError::new(format!("say {flag} to be sure: {why}")).into())
}

/// Runs a command and returns what is to be printed.
///
/// # Errors
/// [`ConfigError`] without the flag that confirms; errors of the registry, which say what must
/// change.
pub(crate) async fn run(
    registry: &Registry,
    nodes: &Snowflake,
    plan: Plan,
    output: Output,
) -> Result<Done> {
    let all = async || {
        let records = registry.workers().await?;
        anyhow::Ok(records.iter().map(WorkerShown::of).collect::<Vec<_>>())
    };
    match plan {
        Plan::List => Ok(output::rows(&all().await?, output).into()),
        Plan::DryRun(worker) => would(&all().await?, worker, output),
        Plan::Release(worker) => {
            let free = registry.release_worker(worker, nodes.node_settings()).await?.get();
            let freed_now = FreedShown { worker: worker.get(), free_from_ms: free };
            Ok(freed(&freed_now, "released", output))
        }
        Plan::Retire(worker) => {
            registry.retire_worker(worker, nodes.node_settings()).await?;
            Ok(retired(worker, output))
        }
        Plan::Repair(worker) => {
            let free = registry.repair_worker(worker, nodes.node_settings()).await?.get();
            let freed_now = FreedShown { worker: worker.get(), free_from_ms: free };
            Ok(freed(&freed_now, "repaired", output))
        }
    }
}

/// The worker id that a command would change, as it is now.
///
/// # Errors
/// The registry has no record of it.
pub(crate) fn would(all: &[WorkerShown], worker: WorkerId, output: Output) -> Result<Done> {
    let Some(shown) = all.iter().find(|shown| shown.worker == worker.get()) else {
        let text = format!("the registry has no worker id {worker}; `leaf worker list` shows all");
        return Err(exit::with(exit::NOT_FOUND, anyhow!(text)));
    };
    DryRun { dry_run: true }.tell();
    Ok(output::rows(std::slice::from_ref(shown), output).into())
}

/// The answer of a command that made a worker id free, from a moment on that may lie ahead.
pub(crate) fn freed(freed: &FreedShown, what: &str, output: Output) -> Done {
    let (worker, free) = (freed.worker, readable(freed.free_from_ms));
    output::one(freed, format!("worker id {worker} is {what}: free from {free}"), output).into()
}

/// The answer of a command that took a worker id out of service.
pub(crate) fn retired(worker: WorkerId, output: Output) -> Done {
    let text = format!("worker id {worker} is retired");
    output::one(&serde_json::json!({ "worker": worker.get() }), text, output).into()
}

/// A moment for people.
fn readable(at: u64) -> String {
    let at = i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    at.map_or_else(|| "?".into(), |at| format!("{at:.3}"))
}
