//! `leaf`: the command line for the administration of Leaf.
//!
//! `status`, `next`, `clock accept` and `bench` send requests to servers, `worker run` runs another
//! program. Most other commands work directly on the configured store or registry, or through a
//! server if `through.rs` supports it. The program holds no id logic. Exit code 0 means done;
//! `exit.rs` has the others.
//!
//! How a command runs: `cli/` parses the command line, `config.rs` reads the server's
//! configuration, `stores.rs` opens the stores of tags, and one file per command does the work. A
//! command returns a [`Done`]; only this file writes to standard output or picks the exit code,
//! except `cli/` for help and for a wrong command line, and `status.rs`, which writes the tables of
//! `--watch`.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod ask;
mod bench;
mod cli;
mod clock;
mod config;
mod context;
mod decode;
mod doctor;
mod exit;
mod import;
mod next;
mod nodes;
mod output;
mod overlap;
mod remote;
mod shards;
mod status;
mod stderr;
mod stores;
mod tag;
mod through;
mod token;
mod traffic;
mod worker;
mod worker_run;

use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use cli::{Command, Output, Place, Worker};
use leaf_node::config::ConfigError;
use leaf_node::hints;
use leaf_registry::RegistryOptions;
use leaf_shape::TextForm;
use stores::Stores;
use through::Server;
use tracing_subscriber::EnvFilter;

/// Runs one command and turns its result into text and an exit code.
///
/// The runtime has one thread: a command sends its requests one after the other, and most are over
/// within milliseconds. Logs go to standard error, so that `leaf ... --output json | jq` sees
/// results only. `RUST_LOG` chooses what is logged.
fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let output = cli.output;
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("warn,zookeeper_client=error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal() && !no_color())
        .log_internal_errors(false)
        .with_writer(|| stderr::Stderr)
        .init();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return fail(&anyhow::Error::from(error).context("start the runtime"), output);
        }
    };
    let result = runtime.block_on(work(cli));
    // What still hangs in a name look-up is left behind.
    runtime.shutdown_background();
    let code = match result {
        Ok(Done { text, trouble, code }) => {
            let written = std::io::stdout().write_all(text.as_bytes());
            match (written, trouble) {
                // A reader that has seen enough is nobody's problem.
                (Err(error), _) if error.kind() != ErrorKind::BrokenPipe => {
                    fail(&anyhow!(error).context("standard output"), output)
                }
                (_, Some(trouble)) => fail(&trouble, output),
                (_, None) => ExitCode::from(code),
            }
        }
        Err(error) => fail(&error, output),
    };
    stderr::finish();
    code
}

/// Does what the command line asks for.
async fn work(mut cli: cli::Cli) -> anyhow::Result<Done> {
    if cli.command.follows_context() {
        context::fill_in(&mut cli)?;
    }
    let (place, output) = (&cli.place, cli.output);
    match cli.command {
        Command::Tag { through, command } => match through.servers() {
            Some(servers) => Server::new(&servers)?.tag(command, output).await,
            None => {
                with_stores(place, async |stores| tag::run(stores, command, output).await).await
            }
        },
        Command::Worker { namespace, through, command } => match through.servers() {
            Some(servers) => through::workers(&servers, namespace, command, output).await,
            None => worker_ids(place, namespace, command, output).await,
        },
        Command::Decode { id, form, tag, through } => match through.servers() {
            Some(servers) => through::decode(&servers, &id, tag, output).await,
            None => decode_id(place, &id, form, tag, output).await,
        },
        Command::Traffic { clear, dry } => {
            let act = if clear { traffic::Act::Clear } else { traffic::Act::List };
            traffic_rules(place, act, dry, output).await
        }
        Command::Limit { of, dry } => {
            traffic_rules(place, traffic::Act::Limit(of), dry, output).await
        }
        Command::Cut { through, dry, of } => match through.servers() {
            Some(servers) => Server::new(&servers)?.cut(of, true, dry, output).await,
            None => traffic_rules(place, traffic::Act::Cut(of), dry, output).await,
        },
        Command::Allow { through, dry, of } => match through.servers() {
            Some(servers) => Server::new(&servers)?.cut(of, false, dry, output).await,
            None => traffic_rules(place, traffic::Act::Allow(of), dry, output).await,
        },
        Command::Token { command } => token::run(command, output),
        Command::Status { servers, watch } => status::run(&servers, watch, output).await,
        Command::Next { servers, next } => next::run(&servers, &next, output).await,
        Command::Clock { command: cli::Clock::Accept { servers, clock_is_right } } => {
            clock::accept(&servers, clock_is_right, output).await
        }
        Command::Bench(bench) => bench::run(&bench, output).await,
        Command::Context { command } => context::run(command, place, output),
        Command::Completions { shell } => Ok(cli::completions(shell).into()),
        Command::Man { directory } => cli::man(&directory),
        Command::Import { from } => {
            with_stores(place, async |stores| import::run(stores, from, output).await).await
        }
        Command::Shards { apply } => {
            with_stores(place, async |stores| shards::run(stores, apply, output).await).await
        }
        Command::Doctor => examine(place, output).await,
    }
}

/// Takes an id apart, by the configuration or by the record of its tag.
async fn decode_id(
    place: &Place,
    id: &str,
    form: Option<TextForm>,
    tag: Option<String>,
    output: Output,
) -> anyhow::Result<Done> {
    match tag {
        None => decode::run(&config::read(place)?, id, form, output),
        Some(tag) => {
            with_stores(place, async |stores| tag::decode(stores, &tag, id, output).await).await
        }
    }
}

/// Runs `leaf doctor` on the stores of one data centre, or compares those of several.
async fn examine(place: &Place, output: Output) -> anyhow::Result<Done> {
    let of_nodes = place.store.is_empty().then(|| config::read(place)).transpose()?;
    let mut centres = Vec::new();
    // Nodes without segment mode have no store.
    if of_nodes.as_ref().is_none_or(|config| config.segment.enabled) {
        for place in place.each() {
            centres.push(Stores::open(&place).await?);
        }
    }
    let done = doctor::run(&centres, of_nodes.as_ref(), output).await;
    for centre in &centres {
        centre.close().await;
    }
    done
}

/// Runs a command on worker ids: those of the servers or, with `namespace`, those of the program of
/// that name.
async fn worker_ids(
    place: &Place,
    namespace: Option<String>,
    command: Worker,
    output: Output,
) -> anyhow::Result<Done> {
    let config = |is_run: bool| {
        let mut config = config::read(place)?;
        let registry = config.registry();
        match &namespace {
            Some(namespace) if registry.keeps_names_apart() => {
                RegistryOptions::check_name(namespace)
                    .map_err(|error| ConfigError::new(format!("--namespace: {error}")))?;
                config.name.clone_from(namespace);
            }
            Some(_) if !registry.is_in_state_file() => {
                return Err(ConfigError::new(format!(
                    "--namespace: all programs that use {registry} share its worker ids: leave --namespace out, or \
                     give each program another database, or etcd or ZooKeeper, in snowflake.registry"
                ))
                .into());
            }
            None if is_run && registry.keeps_names_apart() => {
                return Err(ConfigError::new(WITHOUT_NAMESPACE).into());
            }
            _ => {}
        }
        anyhow::Ok(config)
    };
    match command {
        Worker::Exec { parent, command } => worker_run::exec(parent, &command),
        Worker::Guard => worker_run::guard(),
        Worker::Run(run) => worker_run::run(&config(true)?, run).await,
        Worker::Of(command) => {
            let config = config(false)?;
            let asked = worker::asked(command)?;
            let registry = config::registry(&config).await?;
            let done = worker::run(&registry, &config.snowflake, asked, output);
            let late = || anyhow!("no answer from the registry within {REGISTRY:?}");
            tokio::time::timeout(REGISTRY, done).await.unwrap_or_else(|_| Err(late()))
        }
    }
}

/// Whether the user wants no colours (<https://no-color.org>).
fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Runs a command on the rules of traffic.
async fn traffic_rules(
    place: &Place,
    act: traffic::Act,
    dry: cli::DryRun,
    output: cli::Output,
) -> anyhow::Result<Done> {
    with_stores(place, async |stores| traffic::run(stores, act, dry, output).await).await
}

/// The error for `leaf worker run` without a namespace.
const WITHOUT_NAMESPACE: &str = "--namespace: name the program whose instances share worker ids, the same on all hosts, like `leaf worker run \
     --namespace orders -- java -jar orders.jar`";

/// How long a command on the registry may take.
///
/// A client of ZooKeeper or etcd reconnects for ever on its own, so a command on a registry that is
/// away needs this bound. Commands on stores have the time limits of the stores.
const REGISTRY: Duration = Duration::from_secs(20);

/// Opens the configured stores, runs a command on them, and closes them, also after an error:
/// SQLite moves its write-ahead log into the file when it is closed.
async fn with_stores(
    place: &Place,
    command: impl AsyncFnOnce(&Stores) -> anyhow::Result<Done>,
) -> anyhow::Result<Done> {
    let stores = Stores::open(place).await?;
    let done = command(&stores).await;
    stores.close().await;
    done
}

/// The result of a command.
///
/// It can have both text and trouble: if one store cannot be read, a list of tags prints those of
/// the other stores, names that store as the trouble, and ends with exit code 1.
struct Done {
    /// The text for standard output.
    text: String,
    /// What the command could not do, or the problem that it found.
    trouble: Option<anyhow::Error>,
    /// The exit code where there is no trouble.
    code: u8,
}

impl Done {
    /// A result with this trouble, if there is any.
    fn but(text: String, trouble: Option<anyhow::Error>) -> Self {
        Self { text, trouble, code: 0 }
    }
}

impl From<String> for Done {
    fn from(text: String) -> Self {
        Self::but(text, None)
    }
}

/// Prints an error with its hint for operators, as `leaf-server` does. Returns the exit code for
/// the error.
fn fail(error: &anyhow::Error, output: Output) -> ExitCode {
    let hint = hints::of(error.as_ref());
    tell(&format!("{error:#}"), hint, exit::code(error), output == Output::Json)
}

/// Prints an error and its hint, as JSON if `json` is set. Returns the exit code.
fn tell(text: &str, hint: Option<&str>, code: u8, json: bool) -> ExitCode {
    if json {
        let error = serde_json::json!({ "code": exit::word(code), "message": text, "hint": hint });
        let _ = writeln!(std::io::stderr(), "{}", serde_json::json!({ "error": error }));
    } else {
        complain(&hints::with(text, hint));
    }
    ExitCode::from(code)
}

/// Prints one line on standard error, if that can be written.
fn complain(text: &dyn std::fmt::Display) {
    let text = output::printable(&text.to_string());
    let _ = stderr::Stderr.write_all(format!("leaf: {text}\n").as_bytes());
}
