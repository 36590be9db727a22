//! A server as a whole: its parts, and how it starts, runs and stops.
//!
//! Start: lock the state file, serve, and claim the worker id last. Stop: report *not ready*, serve
//! on for a while, stop accepting, finish what is under way, give back the worker id, then the
//! unused ids. Signals, supervisors and the destination of the log are left to the program.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use leaf_core::{Health, HealthCode, HealthReason};
use leaf_node::config::{Config, Redis};
use leaf_snowflake::{RegistryErrorKind, SnowflakeErrorKind};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, MissedTickBehavior};

use crate::http::Http;
use crate::live::Live;
use crate::node::Node;
use crate::refusal::Face;
use crate::resp::Resp;
use crate::serve::{DataPlane, Door, Listener, Protocol};

/// The pause before a claim is tried again while the registry is away, or the clock is not set yet.
const CLAIM_RETRY: Duration = Duration::from_secs(1);
/// The pause before a claim that was refused is tried again: the cause may last.
const REFUSED_RETRY: Duration = Duration::from_secs(10);
/// The most connections that may wait to be accepted; the system may allow fewer.
const BACKLOG: u32 = 4096;
/// How long answers announce the end before silent connections are closed.
const ANNOUNCE: Duration = Duration::from_millis(500);
/// Grace of the ops listener for probes that are already under way.
const PROBES: Duration = Duration::from_millis(100);
/// The least time for giving back worker id and unused ids, however short `stop_grace` is.
const LEAST_GRACE: Duration = Duration::from_secs(1);
/// The least time between two log lines of the health if only its texts have changed.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// How often the health and the data directory are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often stores are asked whether they may lose what they have acknowledged. Out of step with
/// the refresh of tags, so that an idle node needs no second connection for it.
const LOSSES_EVERY: Duration = Duration::from_secs(29);
/// How often the rules of traffic are read: a cut is in force everywhere within 5 s.
const TRAFFIC_EVERY: Duration = Duration::from_secs(4);
/// The pause before the rules of traffic are read again if the store did not answer.
const TRAFFIC_AGAIN: Duration = Duration::from_millis(200);
/// How often the clocks of other nodes are read.
const PEERS_EVERY: Duration = Duration::from_secs(60);
/// How often the files of certificates and of tokens are read again.
const FILES_EVERY: Duration = Duration::from_secs(30);

/// The sockets that a server accepts connections from.
///
/// [`Listeners::bind`] makes them as the configuration says. A program that has its own, such as
/// those that systemd hands over, fills the fields itself. `http.listen` of the configuration then
/// still names this node to a registry of worker ids, unless `advertise` is set.
#[derive(Debug)]
pub struct Listeners {
    /// Ids over HTTP.
    pub http: TcpListener,
    /// Ids over the Redis protocol.
    pub redis: Option<TcpListener>,
    /// Ids over gRPC.
    #[cfg(feature = "grpc")]
    pub grpc: Option<TcpListener>,
    /// Health and administration. Without `ops.token` and `tokens_file` administration is refused
    /// unless this socket is bound to a loopback address.
    pub ops: TcpListener,
}

/// The addresses of the listeners of a server.
pub(crate) struct Addresses {
    pub(crate) http: SocketAddr,
    pub(crate) redis: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
    pub(crate) ops: SocketAddr,
}

impl Listeners {
    /// Binds `http.listen`, `redis.listen`, `grpc.listen` and `ops.listen`. Call it in a tokio
    /// runtime.
    ///
    /// If `redis.listen` has its default and another program listens at that address, ids over the
    /// Redis protocol are left out, with a warning in the log.
    ///
    /// # Errors
    /// An address cannot be bound; the text names the key. Or `grpc.listen` is set, and this build
    /// has no gRPC.
    pub fn bind(config: &Config) -> Result<Self> {
        #[cfg(not(feature = "grpc"))]
        if config.grpc.listen.is_some() {
            anyhow::bail!("grpc.listen: this build has no gRPC: build it with `--features grpc`");
        }
        Ok(Self {
            http: bind(config.http.listen, "http.listen")?,
            redis: bind_redis(config)?,
            #[cfg(feature = "grpc")]
            grpc: config.grpc.listen.map(|address| bind(address, "grpc.listen")).transpose()?,
            ops: bind(config.ops.listen, "ops.listen")?,
        })
    }

    /// The addresses that the listeners are bound to.
    pub(crate) fn addresses(&self) -> Result<Addresses> {
        Ok(Addresses {
            http: self.http.local_addr()?,
            redis: self.redis.as_ref().map(TcpListener::local_addr).transpose()?,
            #[cfg(feature = "grpc")]
            grpc: self.grpc.as_ref().map(TcpListener::local_addr).transpose()?,
            #[cfg(not(feature = "grpc"))]
            grpc: None,
            ops: self.ops.local_addr()?,
        })
    }
}

/// Serves ids until `shutdown` completes, then stops in order, within
/// [`stop_grace`](leaf_node::config::Config::stop_grace): connections finish what is under way,
/// then the worker id and the unused ids are given back. If the future is dropped before its end,
/// all connections close at once and nothing is given back. `shutdown` is first polled when the
/// server already serves.
///
/// The data plane gets threads of its own ([`threads`](leaf_node::config::Http::threads)).
/// Everything else runs on the caller's runtime, which must be a multi-threaded one: otherwise the
/// administration waits for whatever else runs there. `run` makes the data directory and raises the
/// process's soft limit of open files. It handles no signal and starts no log.
///
/// # Errors
/// The server cannot start (the error holds a [`leaf_node::OpenError`] where stores, registry or
/// configuration are the cause), or cannot go on: the state file was lost, or the data directory is
/// gone.
///
/// # Examples
/// ```
/// use leaf_server::{Listeners, run};
///
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// # let directory = tempfile::tempdir()?;
/// # let data_dir = directory.path();
/// # runtime.block_on(async {
/// let mut config = leaf_node::config::Config::default();
/// config.data_dir = data_dir.into();
/// config.http.listen = "127.0.0.1:0".parse()?;
/// config.redis.listen = None;
/// config.ops.listen = "127.0.0.1:0".parse()?;
/// let listeners = Listeners::bind(&config)?;
/// let address = listeners.http.local_addr()?;
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let server = tokio::spawn(run(config, listeners, async {
///     let _ = stopped.await;
/// }));
///
/// use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
/// let mut client = tokio::net::TcpStream::connect(address).await?;
/// let request = "GET /api/segment/get/leaf-segment-test HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
/// client.write_all(request.as_bytes()).await?;
/// let mut answer = String::new();
/// client.read_to_string(&mut answer).await?;
/// assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n1"), "{answer}");
/// drop(stop);
/// server.await?
/// # })
/// # .map_err(|error: anyhow::Error| error)
/// # ; Ok::<_, std::io::Error>(())
/// ```
pub async fn run(
    config: Config,
    listeners: Listeners,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<()> {
    let live = Arc::new(Live::new(config.clone()));
    let server = Server::start(config, live, listeners).await?;
    let outcome = tokio::select! {
        () = shutdown => Ok(()),
        error = server.keep(|_| {}) => error.map(|never| match never {}),
    };
    let delay = server.node.config.stop_delay.duration();
    server.stop(if outcome.is_ok() { delay } else { Duration::ZERO }).await;
    outcome
}

/// A server at work.
pub(crate) struct Server {
    pub(crate) node: Arc<Node>,
    pub(crate) data_plane: DataPlane,
    http: Listener<Http>,
    redis: Option<Listener<Resp>>,
    #[cfg(feature = "grpc")]
    grpc: Option<Listener<crate::grpc::Grpc>>,
    ops: Listener<Http>,
}

impl Server {
    /// Opens the stores and the registry, and starts the listeners.
    ///
    /// # Errors
    /// It cannot start.
    pub(crate) async fn start(
        config: Config,
        live: Arc<Live>,
        listeners: Listeners,
    ) -> Result<Self> {
        make_data_dir(&config)?;
        let at = listeners.addresses()?;
        let for_ids = 1 + u32::from(at.redis.is_some()) + u32::from(at.grpc.is_some());
        let node = Arc::new(Node::open(&config, live, at.http, at.ops, for_ids).await?);
        // Else the first requests would find that nothing is known.
        node.read_traffic().await;
        let data_plane = DataPlane::start(&node.pressures)?;
        let door = |face, mode| Door::new(face, mode, node.tls.clone());
        let Listeners { http, redis, ops, .. } = listeners;
        Ok(Self {
            http: Listener::start(
                http,
                Http::ids(Arc::clone(&node)),
                data_plane.clone(),
                door(Face::Http, config.http.tls),
            ),
            redis: redis.map(|redis| {
                let (protocol, door) =
                    (Resp { node: Arc::clone(&node) }, door(Face::Redis, config.redis.tls));
                Listener::start(redis, protocol, data_plane.clone(), door)
            }),
            #[cfg(feature = "grpc")]
            grpc: listeners.grpc.map(|grpc| {
                let protocol = crate::grpc::Grpc::new(Arc::clone(&node));
                let door = door(Face::Grpc, config.grpc.tls);
                Listener::start(grpc, protocol, data_plane.clone(), door)
            }),
            ops: Listener::start(
                ops,
                Http::ops(Arc::clone(&node)),
                DataPlane::here(),
                door(Face::Ops, config.ops.tls),
            ),
            node,
            data_plane,
        })
    }

    /// Runs the background work of the server until an error ends it: claims the worker id, reads
    /// rules, files and clocks at intervals, logs each change of the health and calls `told` with
    /// it.
    ///
    /// # Errors
    /// Only when the server cannot go on, with the reason.
    pub(crate) async fn keep(&self, told: fn(&Health)) -> Result<Infallible> {
        let health = async {
            let mut last = None;
            let mut looks = tokio::time::interval(LOOK_EVERY);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                looks.tick().await;
                log_health(&mut last, self.node.health(), told);
            }
        };
        let claim = async {
            claim(&self.node).await?;
            std::future::pending().await
        };
        let losses = async {
            loop {
                self.node.look_for_losses().await;
                tokio::time::sleep(LOSSES_EVERY).await;
            }
        };
        let traffic = async {
            loop {
                let again =
                    if self.node.read_traffic().await { TRAFFIC_EVERY } else { TRAFFIC_AGAIN };
                tokio::time::sleep(again).await;
            }
        };
        let peers = async {
            loop {
                let again =
                    if self.node.read_peer_clocks().await { PEERS_EVERY } else { CLAIM_RETRY };
                tokio::time::sleep(again).await;
            }
        };
        let files = async {
            loop {
                tokio::time::sleep(FILES_EVERY).await;
                self.node.read_certificates().await;
                self.node.access.read_again(&self.node.live).await;
            }
        };
        tokio::select! {
            ended = health => ended,
            ended = claim => ended,
            ended = files => ended,
            ended = traffic => ended,
            ended = losses => ended,
            ended = peers => ended,
            gone = data_dir_goes(&self.node.config.data_dir) => Err(gone),
        }
    }

    /// Reports *not ready* and serves on for `delay`; then lets connections end, and gives the
    /// worker id and unused ids back.
    pub(crate) async fn stop(self, delay: Duration) {
        let begun = Instant::now();
        self.node.leave();
        tokio::time::sleep(delay).await;
        self.node.begin_stop();
        // Requests under way leave the worker id and the unused ids some time.
        let grace = self.node.config.stop_grace.duration();
        let requests = Instant::now() + grace.mul_f64(0.7);
        let deadline = Instant::now() + grace.max(LEAST_GRACE);
        #[cfg(feature = "grpc")]
        let grpc = drain(self.grpc, requests);
        #[cfg(not(feature = "grpc"))]
        let grpc = async {};
        tokio::join!(self.http.drain(ANNOUNCE, requests), drain(self.redis, requests), grpc);
        // What operators have begun needs the stores.
        self.ops.drain(PROBES, requests.max(Instant::now() + ANNOUNCE).min(deadline)).await;
        self.node.changes.close();
        if tokio::time::timeout_at(deadline, self.node.changes.wait()).await.is_err() {
            tracing::error!("a change that an operator has begun did not end within {grace:?}");
        }
        if tokio::time::timeout_at(deadline, self.node.ids.close()).await.is_err() {
            tracing::error!("worker id and unused ids could not be given back within {grace:?}");
        }
        tracing::info!("stopped after {:?}", rounded(begun.elapsed()));
    }
}

/// Lets the connections of a listener end, where there is one.
async fn drain<P: Protocol>(listener: Option<Listener<P>>, deadline: Instant) {
    if let Some(listener) = listener {
        listener.drain(ANNOUNCE, deadline).await;
    }
}

/// Returns, with the reason, once the data directory has been removed or replaced: then the files
/// that this node writes there no longer protect its ids. The server ends, so that a supervisor
/// starts it again.
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

/// Rounds a duration down to the millisecond.
fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Logs the health when it changes, and calls `told` with it. If only texts change, such as a count
/// of seconds, it does so every [`TELL_AGAIN`] at most.
fn log_health(last: &mut Option<(Health, Instant)>, health: Health, told: fn(&Health)) {
    if let Some((before, at)) = last {
        let codes = |health: &Health| -> Vec<HealthCode> {
            health.reasons().iter().map(|reason| reason.code).collect()
        };
        let same = before.state() == health.state() && codes(before) == codes(&health);
        if *before == health || same && at.elapsed() < TELL_AGAIN {
            return;
        }
    }
    told(&health);
    match &health {
        Health::Ready => tracing::info!("{health}"),
        // What every start and every stop is like.
        Health::NotReady(reasons) if reasons.iter().all(is_planned) => tracing::info!("{health}"),
        Health::Degraded(_) => tracing::warn!("{health}"),
        Health::NotReady(_) => tracing::error!("{health}"),
    }
    *last = Some((health, Instant::now()));
}

/// Whether this reason is planned (start, stop, drain) rather than a fault.
fn is_planned(reason: &HealthReason) -> bool {
    matches!(reason.code, HealthCode::Starting | HealthCode::Stopping | HealthCode::Drained)
}

/// Claims the worker id. Tries again while the claim is refused: the registry may come back, an
/// operator may free a worker id or set the clock. Segment ids are issued meanwhile.
///
/// Returns after the claim, or with an error that only a restart can cure, such as one of the state
/// file or of a setting.
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

/// Binds a listener. `key` is the configuration key of the address, for the error.
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

/// Binds the listener for the Redis protocol. If its address is the default and another program
/// listens there, returns `None` with a warning: the server starts without it, to serve at least
/// ids over HTTP.
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

/// Whether an error says that another process listens at the address.
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
