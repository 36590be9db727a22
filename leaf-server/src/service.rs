//! The verb `run`: puts everything together, and takes it apart in the right order.
//!
//! Start: bind the ports, lock the state file, serve, and claim the worker id last. Stop: not
//! ready, go on for a while, stop accepting, finish what is under way, give the worker id back, then the ids.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use leaf_core::{Health, HealthCode, HealthReason};
use leaf_node::config::{Config, Redis};
use leaf_registry::RegistryKind;
use leaf_segment::NewTag;
use leaf_snowflake::{RegistryErrorKind, SnowflakeErrorKind};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, MissedTickBehavior};

use crate::http::Http;
use crate::log;
use crate::node::Node;
use crate::reload::Reload;
use crate::resp::Resp;
use crate::serve::{DataPlane, Listener, Protocol};
use crate::supervisor::{self, Order, Orders};

/// The pause before a claim is tried again while the registry is away, or the clock is not set yet.
const CLAIM_RETRY: Duration = Duration::from_secs(1);
/// The pause before a claim that was refused is tried again: the cause may last.
const REFUSED_RETRY: Duration = Duration::from_secs(10);
/// Connections that wait to be accepted; the system may allow fewer.
const BACKLOG: u32 = 4096;
/// How long answers announce the end before silent connections are closed.
const ANNOUNCE: Duration = Duration::from_millis(500);
/// The ops listener waits so long for what probes have just asked.
const PROBES: Duration = Duration::from_millis(100);
/// Worker id and unused ids have so long, however short the grace is.
const LEAST_GRACE: Duration = Duration::from_secs(1);
/// Signals so close to each other are one.
const SAME_SIGNAL: Duration = Duration::from_millis(500);
/// How soon another text for the same state and codes is told.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// How often the health is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Serves ids until a signal arrives.
///
/// A second signal ends it at once, without giving the worker id back: the registry then keeps it
/// until its ceiling, up to [`offline_for`](leaf_node::config::Snowflake::offline_for) ahead, and
/// [`recycle_after`](leaf_node::config::Snowflake::recycle_after) have passed, unless the same node
/// starts again. The ids in memory are lost.
///
/// # Errors
/// It could not start, or cannot go on.
pub(crate) async fn run(mut reload: Reload, mut orders: Orders) -> Result<()> {
    let config = reload.config().clone();
    make_data_dir(&config)?;
    let ids = bind(config.http.listen, "http.listen")?;
    let redis = bind_redis(&config)?;
    let grpc = bind_grpc(&config)?;
    let ops = bind(config.ops.listen, "ops.listen")?;
    let (ids_at, ops_at) = (ids.local_addr()?, ops.local_addr()?);
    let redis_at = redis.as_ref().map(TcpListener::local_addr).transpose()?;
    let grpc_at = grpc.as_ref().map(TcpListener::local_addr).transpose()?;
    let live = Arc::clone(reload.live());
    let listeners = 1 + u32::from(redis.is_some()) + u32::from(grpc.is_some());
    let node = Arc::new(Node::open(&config, live, ids_at, ops_at, listeners).await?);
    let data_plane = DataPlane::start(config.http.threads)?;

    announce(&config, ids_at, redis_at, grpc_at, ops_at);
    let ids = Listener::start(ids, Http::ids(Arc::clone(&node)), data_plane.clone());
    let redis = redis
        .map(|redis| Listener::start(redis, Resp { node: Arc::clone(&node) }, data_plane.clone()));
    let grpc = start_grpc(grpc, &node, &data_plane);
    let ops = Listener::start(ops, Http::ops(Arc::clone(&node)), DataPlane::here());
    supervisor::ready();
    let outcome = keep(&mut orders, &mut reload, &node, &data_plane).await;

    supervisor::stopping();
    let begun = Instant::now();
    match &outcome {
        Ok(signal) => tracing::info!("stopping: {signal}"),
        Err(_) => tracing::info!("stopping"),
    }
    let outcome = outcome.map(|_| ());
    node.leave();
    let grace = config.stop_grace.duration();
    // Balancers notice meanwhile, unless it ends for a reason of its own.
    let delay = if outcome.is_ok() { config.stop_delay.duration() } else { Duration::ZERO };
    tokio::select! {
        () = async {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = watch(&data_plane) => {}
            }
            node.begin_stop();
            // Requests under way leave the worker id and the unused ids some time.
            let requests = Instant::now() + grace.mul_f64(0.7);
            let deadline = Instant::now() + grace.max(LEAST_GRACE);
            let ids = ids.drain(ANNOUNCE, requests);
            tokio::join!(ids, drain(redis, requests), drain(grpc, requests));
            // What operators have begun needs the stores.
            ops.drain(PROBES, requests.max(Instant::now() + ANNOUNCE).min(deadline)).await;
            if tokio::time::timeout_at(deadline, node.ids.close()).await.is_err() {
                tracing::error!("worker id and unused ids could not be given back within {grace:?}");
            }
            tracing::info!("stopped after {:?}", rounded(begun.elapsed()));
        } => outcome,
        () = second(&mut orders) => bail!("second signal: stopped at once, without giving the worker id back"),
    }
}

/// Lets the connections of a listener end, where there is one.
async fn drain<P: Protocol>(listener: Option<Listener<P>>, deadline: Instant) {
    if let Some(listener) = listener {
        listener.drain(ANNOUNCE, deadline).await;
    }
}

/// The second signal. Who signals a whole group of processes, as timeout(1) does, sends two at
/// once.
async fn second(orders: &mut Orders) {
    let first = Instant::now();
    loop {
        orders.stop().await;
        if first.elapsed() > SAME_SIGNAL {
            return;
        }
    }
}

/// Ends once the data directory was removed or replaced, with the reason: what this node writes
/// there protects nobody any more. A supervisor starts it again.
async fn data_dir_goes(directory: &Path) -> anyhow::Error {
    let mut before = None;
    loop {
        // On a thread of its own: a disk that hangs is told elsewhere.
        match tokio::fs::metadata(directory).await {
            Ok(now) => {
                let now = (now.dev(), now.ino());
                if *before.get_or_insert(now) != now {
                    return anyhow!("the data directory {} was replaced", directory.display());
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return anyhow!("the data directory {} is gone", directory.display());
            }
            Err(_) => {}
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// To the millisecond.
fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Until an order to stop, whose signal it names, or until it cannot go on.
async fn keep(
    orders: &mut Orders,
    reload: &mut Reload,
    node: &Node,
    data_plane: &DataPlane,
) -> Result<&'static str> {
    let claim = claim(node);
    tokio::pin!(claim);
    let mut claimed = false;
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watchdog = watch(data_plane);
    tokio::pin!(watchdog);
    let data_dir = data_dir_goes(&node.config.data_dir);
    tokio::pin!(data_dir);
    let (mut told, mut dropped) = (None, 0);
    loop {
        tokio::select! {
            order = orders.next() => match order {
                Order::Stop(signal) => return Ok(signal),
                Order::Reload => {
                    supervisor::reloading();
                    tokio::select! {
                        () = reload.run(node) => supervisor::ready(),
                        // A disk that hangs does not hold it up.
                        signal = orders.stop() => return Ok(signal),
                    }
                }
            },
            result = &mut claim, if !claimed => {
                result?;
                claimed = true;
            }
            _ = looks.tick() => {
                tell(&mut told, node.health());
                let now = log::dropped();
                if now > dropped {
                    let lines = now - dropped;
                    tracing::warn!("{lines} lines of the log were dropped: nobody read them in time");
                    // Unless this one was, too.
                    if log::dropped() == now {
                        dropped = now;
                    }
                }
            }
            () = &mut watchdog => {}
            gone = &mut data_dir => return Err(gone),
        }
    }
}

/// Tells log and supervisor about the health when it changes. A reason that counts seconds changes
/// all the time: it is told now and then.
fn tell(told: &mut Option<(Health, Instant)>, health: Health) {
    if let Some((before, at)) = told {
        let codes = |health: &Health| -> Vec<HealthCode> {
            health.reasons().iter().map(|reason| reason.code).collect()
        };
        let same = before.state() == health.state() && codes(before) == codes(&health);
        if *before == health || same && at.elapsed() < TELL_AGAIN {
            return;
        }
    }
    supervisor::status(&health.to_string());
    match &health {
        Health::Ready => tracing::info!("{health}"),
        // What every start and every stop is like.
        Health::NotReady(reasons) if reasons.iter().all(is_planned) => tracing::info!("{health}"),
        Health::Degraded(_) => tracing::warn!("{health}"),
        Health::NotReady(_) => tracing::error!("{health}"),
    }
    *told = Some((health, Instant::now()));
}

/// Whether nothing is wrong: it is meant to be so for a while.
fn is_planned(reason: &HealthReason) -> bool {
    matches!(reason.code, HealthCode::Starting | HealthCode::Stopping | HealthCode::Drained)
}

/// Signs of life for systemd, as long as every thread of the data plane gives one. Never ends.
async fn watch(data_plane: &DataPlane) {
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

/// Claims the worker id; asks again while it is refused, since a registry comes back, an operator
/// frees a worker id and a clock is set. Ids of segments flow meanwhile.
///
/// Ends with the claim, or with what only another start can cure: the state file, or a setting.
async fn claim(node: &Node) -> Result<()> {
    let Some(snowflake) = node.ids.snowflake() else { return Ok(()) };
    loop {
        let error = match snowflake.generator.claim().await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let pause = match error.kind() {
            SnowflakeErrorKind::Registry(refusal)
                if *refusal.kind() == RegistryErrorKind::Unavailable =>
            {
                CLAIM_RETRY
            }
            SnowflakeErrorKind::ClockUnset { .. } | SnowflakeErrorKind::ClockInDoubt { .. } => {
                CLAIM_RETRY
            }
            SnowflakeErrorKind::Registry(_)
            | SnowflakeErrorKind::ClockRefused { .. }
            | SnowflakeErrorKind::EndOfTime { .. } => REFUSED_RETRY,
            _ if error.retryable() => CLAIM_RETRY,
            _ => return Err(anyhow::Error::from(error).context("snowflake")),
        };
        tracing::debug!("{error}; asking again in {pause:?}");
        tokio::time::sleep(pause).await;
    }
}

/// Binds a listener; `key` is the configuration's, for the error.
fn bind(address: SocketAddr, key: &str) -> Result<TcpListener> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restart must not wait for the connections of before.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bound().with_context(|| {
        format!("listen on {address}: choose another address with `{key}`, or stop who uses it")
    })
}

/// Where it listens by default another server of this machine may: ids over HTTP are worth a start
/// without.
fn bind_redis(config: &Config) -> Result<Option<TcpListener>> {
    let Some(address) = config.redis.listen else { return Ok(None) };
    match bind(address, "redis.listen") {
        Err(error) if address == Redis::LISTEN && is_taken(&error) => {
            tracing::warn!(
                "{error:#}; no ids over the Redis protocol (`redis.listen = \"off\"` is silent)"
            );
            Ok(None)
        }
        bound => bound.map(Some),
    }
}

/// Binds the listener of gRPC, where one is configured.
#[cfg(feature = "grpc")]
fn bind_grpc(config: &Config) -> Result<Option<TcpListener>> {
    config.grpc.listen.map(|address| bind(address, "grpc.listen")).transpose()
}

/// Serves gRPC on the data plane.
#[cfg(feature = "grpc")]
fn start_grpc(
    listener: Option<TcpListener>,
    node: &Arc<Node>,
    data_plane: &DataPlane,
) -> Option<Listener<crate::grpc::Grpc>> {
    let start = |listener| {
        Listener::start(listener, crate::grpc::Grpc::new(Arc::clone(node)), data_plane.clone())
    };
    listener.map(start)
}

/// Refuses a listener that this build cannot serve, instead of leaving it out in silence.
#[cfg(not(feature = "grpc"))]
fn bind_grpc(config: &Config) -> Result<Option<TcpListener>> {
    match config.grpc.listen {
        None => Ok(None),
        Some(_) => bail!("grpc.listen: this build has no gRPC: build it with `--features grpc`"),
    }
}

/// Nothing: this build has no gRPC. Any listener's type will do for one that is never there.
#[cfg(not(feature = "grpc"))]
fn start_grpc(_: Option<TcpListener>, _: &Arc<Node>, _: &DataPlane) -> Option<Listener<Http>> {
    None
}

/// Whether another process listens there.
fn is_taken(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
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
fn announce(
    config: &Config,
    ids: SocketAddr,
    redis: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    ops: SocketAddr,
) {
    let mut text =
        format!("leaf-server {}\n  ids        http://{ids}\n", env!("CARGO_PKG_VERSION"));
    if let Some(redis) = redis {
        text += &format!("  redis      redis://{redis}\n");
    }
    if let Some(grpc) = grpc {
        text += &format!("  grpc       http://{grpc}\n");
    }
    text += &format!("  ops        http://{ops}\n");
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
        (true, _) if has_sample => format!("try: curl http://{ids}/api/segment/get/{sample}\n"),
        (_, true) => format!("try: curl http://{ids}/api/snowflake/get/test\n"),
        (_, false) => {
            format!(
                "try: leaf tag create orders --step 1000 && curl http://{ids}/api/segment/get/orders\n"
            )
        }
    };
    // A thread of its own: perhaps nobody reads it.
    std::thread::spawn(move || std::io::stdout().write_all(text.as_bytes()));
}
