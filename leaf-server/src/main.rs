//! The Leaf id service.
//!
//! This binary holds no id logic: it reads the configuration, puts the crates together and speaks
//! HTTP. Exit codes: 0 after a clean stop, 1 when it could not start or go on, 2 when the
//! configuration is wrong, 3 when the registry refuses it a worker id.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod check;
mod cli;
mod http;
mod identity;
mod log;
mod node;
mod peers;
mod registry;
mod reload;
mod schema;
mod service;
mod show;
mod supervisor;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use cli::Verb;
use leaf_server::config::{ConfigError, Loaded};
use service::WorkerIdRefused;

fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let sources = cli.settings.sources().with_default_files();
    let started = sources.load().and_then(|loaded| {
        let log = log::start(&loaded.config.log)?;
        Ok((loaded, log))
    });
    let (loaded, log) = match started {
        Ok(started) => started,
        Err(error) => return exit_code(&error.into()),
    };
    let verb = cli.verb.unwrap_or(Verb::Run);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let result = match verb {
        Verb::Config => show::run(&loaded),
        verb => work(verb, sources, loaded, log),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit_code(&error),
    }
}

/// Runs a verb that needs a runtime: that of the control plane.
fn work(
    verb: Verb,
    sources: leaf_server::config::Sources,
    loaded: Loaded,
    log: log::Log,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("leaf-control")
        .enable_all()
        .build()
        .map_err(|error| anyhow::Error::from(error).context("start the runtime"))?;
    let result = runtime.block_on(async {
        match verb {
            Verb::Check => check::run(&loaded.config).await,
            Verb::Schema { apply } => schema::run(&loaded.config, apply).await,
            _ => service::run(reload::Reload::new(sources, loaded, log)).await,
        }
    });
    // What still hangs in a blocking call (a name look-up, a disk) is left behind.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Tells why it ended. Who reads the output may have seen enough and left.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    let broken_pipe = error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
    if broken_pipe {
        return ExitCode::SUCCESS;
    }
    complain(&format_args!("{error:#}"));
    if error.is::<ConfigError>() {
        ExitCode::from(2)
    } else if error.is::<WorkerIdRefused>() {
        ExitCode::from(3)
    } else {
        ExitCode::FAILURE
    }
}

/// One line on standard error, if it can be written.
fn complain(text: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "leaf-server: {text}");
}
