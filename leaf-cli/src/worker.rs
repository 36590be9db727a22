//! `leaf worker`: the worker ids of the configured registry.
//!
//! The rules, such as how long a released worker id rests, are in leaf-snowflake. This file asks
//! for confirmations and formats the results. Each command that can lead to repeated ids wants a
//! flag that says what the caller is sure of.

use anyhow::Result;
use comfy_table::CellAlignment::{self, Left, Right};
use leaf_core::WorkerId;
use leaf_node::config::{ConfigError, Snowflake};
use leaf_node::records::{FreedShown, WorkerShown};
use leaf_snowflake::{NodeSettings, Registry};

use crate::cli::{DryRun, OfRegistry, Output};
use crate::output::{self, Row};
use crate::{Done, ask};

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

/// The action of a command on a worker id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Frees the worker id of a dead node.
    Release,
    /// Takes a worker id out of service for good.
    Retire,
    /// Writes a record anew.
    Repair,
}

/// The action of a command and its worker id; `None` for the list. Unless it is a dry run, the
/// action must be confirmed by its flag or at the terminal.
///
/// # Errors
/// [`ConfigError`]: the action is not confirmed.
pub(crate) fn asked(command: OfRegistry) -> Result<Option<(Act, WorkerId, DryRun)>> {
    let (act, worker, dry, is_sure) = match command {
        OfRegistry::List => return Ok(None),
        OfRegistry::Release { worker, holder_is_dead, dry } => {
            (Act::Release, worker, dry, holder_is_dead)
        }
        OfRegistry::Retire { worker, yes, dry } => (Act::Retire, worker, dry, yes),
        OfRegistry::Repair { worker, holder_is_dead, dry } => {
            (Act::Repair, worker, dry, holder_is_dead)
        }
    };
    let (flag, why) = match act {
        Act::Release => (
            "--holder-is-dead",
            "a holder that lives, or is started again on its data directory while the registry is away, would repeat ids",
        ),
        Act::Retire => ("--yes", "a retired worker id is never used again"),
        Act::Repair => {
            ("--holder-is-dead", "nobody, no Java Leaf either, may go on with what is repaired")
        }
    };
    let question = || format!("{why}. Is that seen to, for worker id {worker}?");
    if !is_sure && !dry.dry_run && !ask::sure(&question()) {
        return Err(ConfigError::new(format!("say {flag} to be sure: {why}")).into());
    }
    Ok(Some((act, WorkerId::new(worker), dry)))
}

/// Runs a command and returns what is to be printed.
///
/// # Errors
/// Errors of the registry, which say what must change.
pub(crate) async fn run(
    registry: &Registry,
    nodes: &Snowflake,
    asked: Option<(Act, WorkerId, DryRun)>,
    output: Output,
) -> Result<Done> {
    let Some((act, worker, dry)) = asked else {
        let records = registry.workers().await?;
        let shown: Vec<_> = records.iter().map(WorkerShown::of).collect();
        return Ok(output::rows(&shown, output).into());
    };
    let settings = NodeSettings { dry_run: dry.dry_run, ..nodes.node_settings() };
    let free = match act {
        Act::Release => Some(registry.release_worker(worker, settings).await?),
        Act::Repair => Some(registry.repair_worker(worker, settings).await?),
        Act::Retire => {
            registry.retire_worker(worker, settings).await?;
            None
        }
    };
    let free = free.map(|free| FreedShown { worker: worker.get(), free_from_ms: free.get() });
    Ok(done(act, worker, free.as_ref(), dry, output))
}

/// Formats the result of a command. `free` says from when on the worker id is free, if it is; that
/// time may be in the future.
pub(crate) fn done(
    act: Act,
    worker: WorkerId,
    free: Option<&FreedShown>,
    dry: DryRun,
    output: Output,
) -> Done {
    let what = match act {
        Act::Release => "released",
        Act::Retire => "retired",
        Act::Repair => "repaired",
    };
    dry.tell();
    let is = if dry.dry_run { "would be" } else { "is" };
    let text = format!("worker id {worker} {is} {what}");
    match free {
        Some(free) => {
            let from = readable(free.free_from_ms);
            output::one(free, format!("{text}: free from {from}"), output)
        }
        None => output::one(&serde_json::json!({ "worker": worker.get() }), text, output),
    }
    .into()
}

/// Formats a time, in Unix milliseconds, for people.
fn readable(at: u64) -> String {
    let at = i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    at.map_or_else(|| "?".into(), |at| format!("{at:.3}"))
}
