//! The Leaf id service.
//!
//! This binary holds no id logic: it reads the configuration, puts the crates together and speaks
//! HTTP. Exit codes: 0 after a clean stop, 1 when it could not start or go on, 2 when the
//! configuration is wrong.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod check;
mod cli;
mod decoded;
#[cfg(feature = "grpc")]
mod grpc;
mod http;
mod ids;
mod live;
mod log;
mod node;
mod peers;
mod reload;
mod resp;
mod schema;
mod serve;
mod service;
mod show;
mod supervisor;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use cli::{Cli, Verb};
use leaf_node::OpenError;
use leaf_node::config::ConfigError;
use supervisor::Orders;

/// Runs the command and turns its error into an exit code.
fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let code = match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit_code(&error),
    };
    log::flush();
    code
}

/// Runs a verb on the runtime of the control plane: configuration, signals, stores, registry,
/// health and administration. Ids are served by the threads of the data plane
/// ([`serve::DataPlane`]), so that neither holds up the other.
fn run(cli: Cli) -> anyhow::Result<()> {
    // That of the control plane.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("leaf-control")
        .enable_all()
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(work(cli));
    // What still hangs in a blocking call (a name look-up, a disk) is left behind.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Reads the configuration, starts the log, and runs the verb. A signal ends what is under way.
async fn work(cli: Cli) -> anyhow::Result<()> {
    // Before anything takes its time: by default a SIGHUP would be the end.
    let mut orders = Orders::listen()?;
    let sources = cli.settings.sources().with_default_files();
    let load = {
        let sources = sources.clone();
        tokio::task::spawn_blocking(move || sources.load())
    };
    let loaded = tokio::select! {
        loaded = load => loaded??,
        _ = orders.stop() => bail!("interrupted"),
    };
    let log = log::start(&loaded.config.log)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let verb = cli.verb.unwrap_or(Verb::Run);
    if matches!(verb, Verb::Run) {
        return service::run(reload::Reload::new(sources, loaded, log), orders).await;
    }
    let others = async {
        match verb {
            Verb::Schema { apply } => schema::run(&loaded.config, apply).await,
            Verb::Check => check::run(&loaded.config).await,
            Verb::Run | Verb::Config => show::run(&loaded),
        }
    };
    tokio::select! {
        result = others => result,
        _ = orders.stop() => bail!("interrupted"),
    }
}

/// Tells why it ended. Who reads the output may have seen enough and left.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    let broken_pipe = error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
    if broken_pipe {
        return ExitCode::SUCCESS;
    }
    log::write(format!("leaf-server: {error:#}\n"));
    let not_opened = error.downcast_ref();
    if error.is::<ConfigError>() || matches!(not_opened, Some(OpenError::Config(_))) {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}
