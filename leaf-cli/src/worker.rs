//! `leaf worker`: the worker ids of the configured registry.
//!
//! The rules, such as how long a released worker id rests, are those of leaf-snowflake; here is
//! what is asked before and what is printed after. Each command that can lead to repeated ids wants
//! a flag that says what the caller is sure of.

use anyhow::Result;
use comfy_table::CellAlignment::{self, Left, Right};
use leaf_core::{UnixMillis, WorkerId};
use leaf_node::config::{ConfigError, Snowflake};
use leaf_node::records::WorkerShown;
use leaf_snowflake::Registry;
use serde::Serialize;

use crate::Done;
use crate::cli::{OfRegistry, Output};
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
/// [`ConfigError`] without the flag that confirms; errors of the registry, which say what must
/// change.
pub(crate) async fn run(
    registry: &Registry,
    nodes: &Snowflake,
    command: OfRegistry,
    output: Output,
) -> Result<Done> {
    match command {
        OfRegistry::List => {
            let records = registry.workers().await?;
            let shown: Vec<_> = records.iter().map(WorkerShown::of).collect();
            Ok(output::rows(&shown, output).into())
        }
        OfRegistry::Release { worker, holder_is_dead } => {
            if !holder_is_dead {
                return sure(
                    "--holder-is-dead",
                    "a holder that lives, or is started again on its data directory while the registry is \
                     away, would repeat ids",
                );
            }
            let worker = WorkerId::new(worker);
            let free = registry.release_worker(worker, nodes.node_settings()).await?;
            Ok(freed(worker, free, "released", output))
        }
        OfRegistry::Retire { worker, yes } => {
            if !yes {
                return sure("--yes", "a retired worker id is never used again");
            }
            let worker = WorkerId::new(worker);
            registry.retire_worker(worker, nodes.node_settings()).await?;
            let text = format!("worker id {worker} is retired");
            Ok(output::one(&serde_json::json!({ "worker": worker.get() }), text, output).into())
        }
        OfRegistry::Repair { worker, holder_is_dead } => {
            if !holder_is_dead {
                return sure(
                    "--holder-is-dead",
                    "nobody, no Java Leaf either, may go on with what is repaired",
                );
            }
            let worker = WorkerId::new(worker);
            let free = registry.repair_worker(worker, nodes.node_settings()).await?;
            Ok(freed(worker, free, "repaired", output))
        }
    }
}

/// The refusal of a command that was not confirmed: which flag to add, and what must be true then.
fn sure(flag: &str, why: &str) -> Result<Done> {
    Err(ConfigError::new(format!("say {flag} to be sure: {why}")).into())
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
