//! The verb `run`: puts everything together, and takes it apart in the right order.
//!
//! Start: bind the ports, lock the state file, open the store, serve, and claim the worker id last.
//! Stop: not ready, stop accepting, finish what is under way, give the worker id back.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use leaf_registry::{OpenRegistry, RegistryKind, StoreUrl};
use leaf_segment::{Marks, SegmentConfig, SegmentGenerator, Shards};
use leaf_snowflake::{RegistryErrorKind, SnowflakeConfig, SnowflakeErrorKind, SnowflakeGenerator};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{ClockCheck, Config, ConfigError};
use crate::http::{Generators, Listener};
use crate::peers::HttpPeers;
use crate::{identity, registry};

/// How long requests under way may take after a signal to stop.
const GRACE: Duration = Duration::from_secs(10);
const CLAIM_RETRY: Duration = Duration::from_secs(1);
/// The same while claims wait out a failover, for minutes.
const FAILOVER_RETRY: Duration = Duration::from_secs(10);

/// Serves ids until a signal arrives.
pub(crate) async fn run(config: &Config) -> Result<()> {
    let mut stop = stop_signal()?;
    make_data_dir(config)?;
    let ids = bind(config.http.listen, "http.listen").await?;
    let ops = bind(config.ops.listen, "ops.listen").await?;
    let snowflake = match config.snowflake.enabled {
        true => Some(prepare_snowflake(config, ids.local_addr()?).await?),
        false => None,
    };
    let segment = if config.segment.enabled { Some(open_segment(config).await?) } else { None };
    let time_zone = match &config.time_zone {
        Some(name) => jiff::tz::TimeZone::get(name).context("time_zone")?,
        None => jiff::tz::TimeZone::system(),
    };
    let layout = config.snowflake.layout();
    let generators = Arc::new(Generators::new(segment, snowflake, layout, time_zone));

    announce(config, ids.local_addr()?, ops.local_addr()?);
    let ids = Listener::ids(ids, Arc::clone(&generators));
    let ops = Listener::ops(ops, Arc::clone(&generators));
    let outcome = tokio::select! {
        () = stop.recv() => Ok(()),
        claimed = claim(&generators) => match claimed {
            Ok(()) => {
                stop.recv().await;
                Ok(())
            }
            refused => refused,
        },
    };
    generators.begin_stop();
    tokio::select! {
        () = async {
            ids.drain(GRACE).await;
            if tokio::time::timeout(GRACE, generators.close()).await.is_err() {
                tracing::error!("the worker id could not be given back within {GRACE:?}");
            }
            ops.drain(Duration::ZERO).await;
        } => {}
        () = stop.recv() => tracing::warn!("second signal: stopping at once"),
    }
    outcome
}

async fn prepare_snowflake(config: &Config, ids: SocketAddr) -> Result<SnowflakeGenerator> {
    let (identity, warning) = identity::find(config)?;
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    let address = identity::address(&identity, ids)?;
    let OpenRegistry { registry, tables, .. } = registry::open(config, Some(address)).await?;
    let place = config.registry_place()?;
    if let (Some(tables), Some(place)) = (tables, place)
        && place.file(&config.data_dir).is_some()
    {
        tables.apply().await?;
    }
    let snowflake = &config.snowflake;
    let mut settings = SnowflakeConfig {
        layout: snowflake.layout(),
        state_file: Some(config.data_dir.join("snowflake.state")),
        rollback_tolerance: snowflake.rollback_tolerance.duration(),
        max_step_forward: snowflake.max_step_forward.duration(),
        offline_for: snowflake.offline_for.duration(),
        report_interval: snowflake.report_interval.duration(),
        startup_wait: snowflake.startup_wait.duration(),
        max_offset: snowflake.max_offset.duration(),
        sequence_start: snowflake.sequence_start,
        java_cache: snowflake.java_cache.clone(),
        ..SnowflakeConfig::new(identity.clone())
    };
    if let ClockCheck::By(rule) = snowflake.clock_check {
        settings.peer_rule = rule;
        settings.peers = Some(Arc::new(HttpPeers::new(Arc::clone(&registry), identity)));
    }
    SnowflakeGenerator::prepare(registry, settings).map_err(|error| match error.kind() {
        SnowflakeErrorKind::BadConfig(_) | SnowflakeErrorKind::EndOfTime { .. } => {
            ConfigError::new(format!("snowflake: {error}")).into()
        }
        _ => anyhow::Error::from(error).context("snowflake"),
    })
}

async fn open_segment(config: &Config) -> Result<Shards<SegmentGenerator>> {
    let marks = Marks::open(&config.data_dir.join("segment.marks"))
        .context("the file of the regression guard's marks")?;
    let marks = Arc::new(marks);
    let stores = config.segment.stores();
    let open = async |url: &StoreUrl| -> Result<SegmentGenerator> {
        let open = url.open(&config.data_dir, &config.segment.store_options()).await?;
        if url.file(&config.data_dir).is_some() {
            open.admin.apply().await?;
        }
        let settings = SegmentConfig { marks: Arc::clone(&marks), ..config.segment.generator() };
        Ok(SegmentGenerator::open(open.store, settings).await)
    };
    stores.try_map(open).await
}

/// Claims the worker id; asks again while the registry is away.
async fn claim(generators: &Generators) -> Result<()> {
    let Some(snowflake) = generators.snowflake() else { return Ok(()) };
    loop {
        match snowflake.claim().await {
            Ok(_) => return Ok(()),
            Err(error) if error.retryable() => {
                let pause = match error.kind() {
                    SnowflakeErrorKind::Registry(error)
                        if matches!(error.kind(), RegistryErrorKind::FailedOver { .. }) =>
                    {
                        FAILOVER_RETRY
                    }
                    _ => CLAIM_RETRY,
                };
                tracing::warn!("{error}; asking again in {pause:?}");
                tokio::time::sleep(pause).await;
            }
            Err(error) => return Err(anyhow::Error::from(error).context("snowflake")),
        }
    }
}

async fn bind(address: SocketAddr, key: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("listen on {address}: choose another address with `{key}`, or stop who uses it")
    })
}

/// Makes the data directory where it does not exist.
pub(crate) fn make_data_dir(config: &Config) -> Result<()> {
    std::fs::create_dir_all(&config.data_dir).with_context(|| {
        format!(
            "make the data directory {}: choose another with `data_dir`",
            config.data_dir.display()
        )
    })
}

/// Tells the person who started it where to ask. Ids flow also where nobody can read it.
fn announce(config: &Config, ids: SocketAddr, ops: SocketAddr) {
    let mut text = format!(
        "leaf-server {}\n  ids        http://{ids}\n  ops        http://{ops}\n",
        env!("CARGO_PKG_VERSION")
    );
    if config.segment.enabled {
        text += &format!("  segment    {}\n", config.segment.store);
        for shard in &config.segment.shard {
            let tags: Vec<_> = shard.tags.iter().map(ToString::to_string).collect();
            text += &format!("             {} for {}\n", shard.store, tags.join(", "));
        }
    }
    if config.snowflake.enabled {
        let registry = config.snowflake.registry;
        let workers = match (registry, &config.snowflake.worker_ids, config.registry_place()) {
            (RegistryKind::Local, None, _) => format!("worker id {}", config.snowflake.worker_id()),
            (RegistryKind::Local, Some(_), _) => "worker id by identity".into(),
            (_, _, Ok(Some(place))) => place.to_string(),
            _ => "worker id from the host name".into(),
        };
        text += &format!("  snowflake  {registry} registry, {workers}\n");
    }
    let route = match config.segment.enabled {
        true => "/api/segment/get/leaf-segment-test",
        false => "/api/snowflake/get/test",
    };
    text += &format!("  data       {}\n", config.data_dir.display());
    text += &format!("try: curl http://{ids}{route}\n");
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// SIGTERM and Ctrl-C.
struct StopSignal {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

fn stop_signal() -> Result<StopSignal> {
    Ok(StopSignal {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    })
}

impl StopSignal {
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
