//! The Leaf id service.
//!
//! This binary holds no id logic: it reads the configuration, puts the crates together and speaks
//! HTTP. Exit codes: 0 after a clean stop, 1 when it could not start or go on, 2 when the
//! configuration is wrong.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod cli;
mod config;
mod http;
mod identity;
mod peers;
mod registry;
mod schema;
mod service;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use cli::Verb;
use config::{ConfigError, Loaded};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    start_logging();
    let (config, warnings) = match config::load(&cli.settings) {
        Ok(Loaded { config, warnings }) => (config, warnings),
        Err(error) => return refuse(&error),
    };
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::from(error).context("start the runtime")),
    };
    let result = runtime.block_on(async {
        match cli.verb.unwrap_or(Verb::Run) {
            Verb::Run => service::run(&config).await,
            Verb::Schema { apply } => schema::run(&config, apply).await,
        }
    });
    // What still hangs in a blocking call (a name look-up, a disk) is left behind.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<ConfigError>() {
            Some(error) => refuse(error),
            None => fail(&error),
        },
    }
}

/// Logs go to standard error; `RUST_LOG` chooses what.
fn start_logging() {
    // The ZooKeeper client tells of every connection; what becomes of it we tell ourselves.
    let default = || EnvFilter::new("info,zookeeper_client=error");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| default());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        // A log that cannot be written must not end what it tells of.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
}

fn refuse(error: &ConfigError) -> ExitCode {
    complain(error);
    ExitCode::from(2)
}

fn fail(error: &anyhow::Error) -> ExitCode {
    complain(&format_args!("{error:#}"));
    ExitCode::FAILURE
}

/// One line on standard error, if it can be written.
fn complain(text: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "leaf-server: {text}");
}
