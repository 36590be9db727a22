//! The program `leaf-server`: its verbs, its signals, its log and its exit codes.
//!
//! Exit codes: 0 after a clean stop, 1 if it could not start or go on, 2 if the command line or the
//! configuration is wrong.

use std::convert::Infallible;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leaf_node::OpenError;
use leaf_node::config::{Config, ConfigError, TlsMode};
use leaf_registry::RegistryKind;
use leaf_segment::NewTag;
use tokio::time::{Instant, MissedTickBehavior};

use crate::cli::{self, Cli, Verb};
use crate::reload::Reload;
use crate::serve::DataPlane;
use crate::server::{Addresses, Listeners, Server, make_data_dir};
use crate::supervisor::{self, Order, Orders};
use crate::{check, log, schema, show};

/// Signals to stop that arrive within this time after the first one count as the same signal.
const SAME_SIGNAL: Duration = Duration::from_millis(500);
/// How often the log is checked for repeated and for dropped lines, to report how many there were.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The program: reads its command line, runs the verb, and turns its error into an exit code.
pub fn main() -> ExitCode {
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
/// ([`DataPlane`]), so that neither holds up the other.
fn run(cli: Cli) -> Result<()> {
    // That of the control plane.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("leaf-control")
        .enable_all()
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(work(cli));
    // Connections to the collector live on the runtime.
    #[cfg(feature = "otlp")]
    log::traces::end();
    // What still hangs in a blocking call (a name look-up, a disk) is left behind.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Reads the configuration, starts the log, and runs the verb. A signal ends what is under way.
async fn work(cli: Cli) -> Result<()> {
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
        return serve(Reload::new(sources, loaded, log), orders).await;
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

/// Serves ids until a signal arrives.
///
/// A second signal stops the server at once, without giving the worker id back. Another node can
/// then get that worker id only [`recycle_after`](leaf_node::config::Snowflake::recycle_after)
/// after its ceiling, which is up to [`offline_for`](leaf_node::config::Snowflake::offline_for)
/// ahead; this node gets it back when it starts again. The ids in memory are lost.
///
/// # Errors
/// The server could not start, or cannot go on.
async fn serve(mut reload: Reload, mut orders: Orders) -> Result<()> {
    let config = reload.config().clone();
    // Before a port is bound: a program that looks for the data directory may wait for the port.
    make_data_dir(&config)?;
    let listeners = Listeners::bind(&config)?;
    let at = listeners.addresses()?;
    let delay = config.stop_delay.duration();
    let server = Server::start(config, Arc::clone(reload.live()), listeners).await?;
    announce(reload.config(), &at);
    supervisor::ready();
    let data_plane = server.data_plane.clone();
    let watchdog = watch(&data_plane);
    tokio::pin!(watchdog);
    let outcome = tokio::select! {
        signal = follow(&mut orders, &mut reload, &server) => Ok(signal),
        error = server.keep(|health| supervisor::status(&health.to_string())) => {
            error.map(|never| match never {})
        }
        never = keep_log() => match never {},
        never = &mut watchdog => match never {},
    };

    supervisor::stopping();
    match &outcome {
        Ok(signal) => tracing::info!("stopping: {signal}"),
        Err(_) => tracing::info!("stopping"),
    }
    // Balancers notice meanwhile, unless it ends for a reason of its own.
    let delay = if outcome.is_ok() { delay } else { Duration::ZERO };
    tokio::select! {
        () = server.stop(delay) => outcome.map(|_| ()),
        never = watchdog => match never {},
        () = second(&mut orders) => bail!("second signal: stopped at once, without giving the worker id back"),
    }
}

/// Reloads the configuration at each SIGHUP. When a signal to stop arrives, returns its name.
async fn follow(orders: &mut Orders, reload: &mut Reload, server: &Server) -> &'static str {
    loop {
        match orders.next().await {
            Order::Stop(signal) => return signal,
            Order::Reload => {
                supervisor::reloading();
                tokio::select! {
                    () = reload.run(&server.node) => supervisor::ready(),
                    // A disk that hangs does not hold it up.
                    signal = orders.stop() => return signal,
                }
            }
        }
    }
}

/// Logs how often log lines were repeated and how many lines were dropped. Never returns.
async fn keep_log() -> Infallible {
    let mut reported = 0;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        log::repeats::tell();
        let now = log::dropped();
        if now > reported {
            let lines = now - reported;
            tracing::warn!("{lines} lines of the log were dropped: nobody read them in time");
            // Unless this one was, too.
            if log::dropped() == now {
                reported = now;
            }
        }
    }
}

/// Returns when a second signal to stop arrives. Ignores signals within [`SAME_SIGNAL`] of the
/// first one: a program like timeout(1) signals the process and then its whole process group, so
/// that two arrive at once.
async fn second(orders: &mut Orders) {
    let first = Instant::now();
    loop {
        orders.stop().await;
        if first.elapsed() > SAME_SIGNAL {
            return;
        }
    }
}

/// Sends signs of life to systemd's watchdog as long as every thread of the data plane answers.
/// Never returns.
async fn watch(data_plane: &DataPlane) -> Infallible {
    let Some(limit) = supervisor::watchdog() else { return std::future::pending().await };
    let mut looks = tokio::time::interval(limit / 2);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        match tokio::time::timeout(limit / 4, data_plane.answers()).await {
            Ok(()) => supervisor::alive(),
            Err(_) => tracing::error!("a thread of the data plane does not answer"),
        }
    }
}

/// Prints the addresses to ask, and the sources of the ids, for the person who started the server.
/// Does not wait until somebody reads that: ids are served anyway.
fn announce(config: &Config, at: &Addresses) {
    let Addresses { http: ids, redis, grpc, ops } = at;
    let encrypts = |mode| mode == TlsMode::Required;
    let http = |mode| if encrypts(mode) { "https" } else { "http" };
    let url = format!("{}://{ids}", http(config.http.tls));
    let mut text = format!("leaf-server {}\n  ids        {url}\n", env!("CARGO_PKG_VERSION"));
    if let Some(redis) = redis {
        let scheme = if encrypts(config.redis.tls) { "rediss" } else { "redis" };
        text += &format!("  redis      {scheme}://{redis}\n");
    }
    if let Some(grpc) = grpc {
        text += &format!("  grpc       {}://{grpc}\n", http(config.grpc.tls));
    }
    text += &format!("  ops        {}://{ops}\n", http(config.ops.tls));
    if config.segment.enabled {
        text += &format!("  segment    {}\n", config.segment.store);
        for shard in &config.segment.shard {
            let tags: Vec<_> = shard.tags.iter().map(ToString::to_string).collect();
            let store = shard.store.as_ref().unwrap_or(&config.segment.store);
            text += &format!("             {store} for {}\n", tags.join(", "));
        }
    }
    if config.snowflake.enabled {
        let registry = config.registry();
        let workers = match (registry.kind(), &config.snowflake.worker_ids) {
            (RegistryKind::Local, None) => format!(", worker id {}", config.snowflake.worker_id()),
            (RegistryKind::Local, Some(_)) => ", worker id by identity".into(),
            (RegistryKind::Ordinal, _) => ", worker id from the host name".into(),
            _ => String::new(),
        };
        text += &format!("  snowflake  registry {registry}{workers}\n");
    }
    // Only a new SQLite file has a tag to begin with.
    let sample = NewTag::sample().tag;
    let has_sample = config.segment.stores().of(sample.as_str()).file(&config.data_dir).is_some();
    text += &format!("  data       {}\n", config.data_dir.display());
    text += &match (config.segment.enabled, config.snowflake.enabled) {
        (true, _) if has_sample => format!("try: curl {url}/api/segment/get/{sample}\n"),
        (_, true) => format!("try: curl {url}/api/snowflake/get/test\n"),
        (_, false) => {
            format!(
                "try: leaf tag create orders --step 1000 && curl {url}/api/segment/get/orders\n"
            )
        }
    };
    // A thread of its own: perhaps nobody reads it.
    std::thread::spawn(move || std::io::stdout().write_all(text.as_bytes()));
}

/// Prints the error and returns its exit code. A closed standard output is no error.
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
