//! `leaf`: the command line for the administration of Leaf.
//!
//! It works straight on the configured store, not through a server, and holds no id logic. Exit
//! codes: 0 done, 1 it could not be done, 2 the command line or the configuration is wrong.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod cli;
mod config;
mod decode;
mod doctor;
mod output;
mod overlap;
mod stores;
mod tag;
mod worker;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use cli::{Command, Place};
use config::{BadConfig, Registry};
use leaf_node::hints;
use stores::Stores;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("warn,zookeeper_client=error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::from(error).context("start the runtime")),
    };
    let result = runtime.block_on(async {
        let (place, output) = (&cli.place, cli.output);
        match cli.command {
            Command::Tag { command } => {
                with_stores(place, async |stores| tag::run(stores, command, output).await).await
            }
            Command::Worker { command } => {
                let registry = Registry::open(&config::read(place)?).await?;
                let done = worker::run(&registry, command, output);
                let late = || anyhow!("no answer from the registry within {REGISTRY:?}");
                tokio::time::timeout(REGISTRY, done).await.unwrap_or_else(|_| Err(late()))
            }
            Command::Decode { id, form, tag: None } => {
                decode::run(&config::read(place)?, &id, form, output)
            }
            Command::Decode { id, tag: Some(tag), .. } => {
                with_stores(place, async |stores| tag::decode(stores, &tag, &id, output).await)
                    .await
            }
            Command::Doctor => {
                let mut centres = Vec::new();
                for place in place.each() {
                    centres.push(Stores::open(&place).await?);
                }
                let done = doctor::run(&centres, output).await;
                for centre in &centres {
                    centre.close().await;
                }
                done
            }
        }
    });
    // What still hangs in a name look-up is left behind.
    runtime.shutdown_background();
    match result {
        // A reader that has seen enough is nobody's problem.
        Ok(Done { text, trouble }) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            trouble.map_or(ExitCode::SUCCESS, |trouble| fail(&trouble))
        }
        Err(error) if error.is::<BadConfig>() => {
            complain(&error);
            ExitCode::from(2)
        }
        Err(error) => fail(&error),
    }
}

/// How long a command on the registry may take.
const REGISTRY: Duration = Duration::from_secs(20);

async fn with_stores(
    place: &Place,
    command: impl AsyncFnOnce(&Stores) -> anyhow::Result<Done>,
) -> anyhow::Result<Done> {
    let stores = Stores::open(place).await?;
    let done = command(&stores).await;
    stores.close().await;
    done
}

/// What a command has to say.
struct Done {
    /// On standard output.
    text: String,
    /// What it could not do of its work, or found.
    trouble: Option<anyhow::Error>,
}

impl From<String> for Done {
    fn from(text: String) -> Self {
        Self { text, trouble: None }
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    complain(&hints::with(format_args!("{error:#}"), hints::of(error.as_ref())));
    ExitCode::FAILURE
}

/// One line on standard error, if it can be written.
fn complain(text: &dyn std::fmt::Display) {
    let text = output::printable(&text.to_string());
    let _ = writeln!(std::io::stderr(), "leaf: {text}");
}
