//! `leaf worker`: the worker ids of the configured registry.
//!
//! The rules, such as how long a released worker id rests, are those of leaf-snowflake; here is
//! what is asked before and what is printed after. Each command that can lead to repeated ids wants
//! a flag that says what the caller is sure of.

use anyhow::{Result, ensure};
use comfy_table::CellAlignment::{self, Left, Right};
use leaf_core::{Clock, UnixMillis, WorkerId};
use leaf_node::records::WorkerShown;
use leaf_snowflake::{NodeSettings, Registry, SystemClock};
use serde::Serialize;

use crate::Done;
use crate::cli::{Output, Worker};
use crate::config::{self, BadConfig};
use crate::output::{self, Row};

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
            self.state.into(),
            self.holder.clone().unwrap_or_else(|| "-".into()),
            time(self.last_report_ms),
            time(self.ceiling_ms),
            self.remark.clone().unwrap_or_default(),
        ]
    }
}

/// What became of a worker id.
///
/// Numbers of 64 bits are strings, see [`Output::Json`].
#[derive(Debug, Serialize)]
struct Freed {
    worker: u32,
    free_from_ms: String,
}

/// Runs a command and returns what is to be printed.
///
/// # Errors
/// [`BadConfig`] without the flag that confirms; errors of the registry, which say what must
/// change.
pub(crate) async fn run(
    registry: &config::Registry,
    command: Worker,
    output: Output,
) -> Result<Done> {
    match command {
        Worker::List => {
            let records = registry.open.registry.workers().await?;
            let shown: Vec<_> = records.iter().map(WorkerShown::of).collect();
            Ok(output::rows(&shown, output).into())
        }
        Worker::Release { worker, holder_is_dead } => {
            if !holder_is_dead {
                return sure(
                    "--holder-is-dead",
                    "a holder that lives, or is started again on its data directory while the registry is \
                     away, would repeat ids",
                );
            }
            let (worker, open) = (WorkerId::new(worker), administrable(registry)?);
            let free = open.release_worker(worker, node_settings(registry)).await?;
            Ok(freed(worker, free, "released", output))
        }
        Worker::Retire { worker, yes } => {
            if !yes {
                return sure("--yes", "a retired worker id is never used again");
            }
            let worker = WorkerId::new(worker);
            administrable(registry)?.retire_worker(worker, node_settings(registry)).await?;
            let text = format!("worker id {worker} is retired");
            Ok(output::one(&serde_json::json!({ "worker": worker.get() }), text, output).into())
        }
        Worker::Repair { worker, holder_is_dead } => {
            if !holder_is_dead {
                return sure(
                    "--holder-is-dead",
                    "nobody, no Java Leaf either, may go on with what is repaired",
                );
            }
            let (worker, open) = (WorkerId::new(worker), administrable(registry)?);
            let free = open.repair_worker(worker, node_settings(registry)).await?;
            Ok(freed(worker, free, "repaired", output))
        }
    }
}

/// The registry, if its records are outside of the nodes.
fn administrable(registry: &config::Registry) -> Result<&Registry> {
    let registry = &registry.open.registry;
    ensure!(!registry.lives_in_state_file(), "this registry has nothing to administer");
    Ok(registry)
}

/// The refusal of a command that was not confirmed: which flag to add, and what must be true then.
fn sure(flag: &str, why: &str) -> Result<Done> {
    Err(BadConfig::new(format!("say {flag} to be sure: {why}")).into())
}

/// What the rules need to know of the nodes. They are configured alike, so this configuration
/// stands for all of them.
fn node_settings(registry: &config::Registry) -> NodeSettings {
    NodeSettings {
        now: SystemClock.wall_millis(),
        layout: registry.layout,
        offline_for: registry.offline_for,
        report_interval: registry.report_interval,
        tolerance: registry.tolerance,
    }
}

/// The answer of a command that made a worker id free, from a moment on that may lie ahead.
fn freed(worker: WorkerId, free: UnixMillis, what: &str, output: Output) -> Done {
    let text = format!("worker id {worker} is {what}: free from {}", readable(free.get()));
    let freed = Freed { worker: worker.get(), free_from_ms: free.to_string() };
    output::one(&freed, text, output).into()
}

/// A moment for people.
fn readable(at: u64) -> String {
    let at = i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    at.map_or_else(|| "?".into(), |at| format!("{at:.3}"))
}
