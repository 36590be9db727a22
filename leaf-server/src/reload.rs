//! SIGHUP: reads the configuration again and takes over what can change while ids flow.
//!
//! Invariant: a configuration that is wrong changes nothing. What needs a restart is named in the
//! log, and named again at the next reload.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use leaf_node::config::{Config, ConfigError, Loaded, Secret, Sources};

use crate::log::Log;
use crate::node::Node;

/// How long the files may take that the configuration is in.
const READ: Duration = Duration::from_secs(5);

/// What requests look at and a reload may change.
///
/// Atomics and locks of their own, so that a request reads one value without waiting for a reload.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// `http.max_count`, of every protocol.
    pub(crate) max_count: AtomicUsize,
    /// `http.max_waiting`, of every protocol.
    pub(crate) max_waiting: AtomicUsize,
    /// `http.max_connections`.
    pub(crate) max_connections: AtomicUsize,
    /// `redis.max_connections`.
    pub(crate) max_redis_connections: AtomicUsize,
    /// `grpc.max_connections`.
    pub(crate) max_grpc_connections: AtomicUsize,
    /// `ops.token`.
    token: RwLock<Option<Secret>>,
    /// `redis.password`.
    redis_password: RwLock<Option<Secret>>,
    /// How often that has changed.
    redis_password_number: AtomicU64,
}

impl Live {
    /// Takes over what can change. A changed password gets another number, so that connections
    /// which have shown the old one must show the new one.
    fn follow(&self, config: &Config) {
        let store = |at: &AtomicUsize, value: u32| at.store(value as usize, Ordering::Relaxed);
        store(&self.max_count, config.http.max_count);
        store(&self.max_waiting, config.http.max_waiting);
        store(&self.max_connections, config.http.max_connections);
        store(&self.max_redis_connections, config.redis.max_connections);
        store(&self.max_grpc_connections, config.grpc.max_connections);
        if self.redis_password() != config.redis.password {
            set(&self.redis_password, &config.redis.password);
            self.redis_password_number.fetch_add(1, Ordering::Release);
        }
        set(&self.token, &config.ops.token);
    }

    /// What administration must show.
    pub(crate) fn token(&self) -> Option<Secret> {
        get(&self.token)
    }

    /// What clients of the Redis protocol must show.
    pub(crate) fn redis_password(&self) -> Option<Secret> {
        get(&self.redis_password)
    }

    /// Another one for every password, and for the time without one.
    pub(crate) fn redis_password_number(&self) -> u64 {
        self.redis_password_number.load(Ordering::Acquire)
    }
}

/// Replaces a secret.
fn set(at: &RwLock<Option<Secret>>, secret: &Option<Secret>) {
    at.write().expect("no holder of this lock panics").clone_from(secret);
}

/// The secret that counts now.
fn get(at: &RwLock<Option<Secret>>) -> Option<Secret> {
    at.read().expect("no holder of this lock panics").clone()
}

/// The configuration that counts, and the way to read it again.
pub(crate) struct Reload {
    sources: Sources,
    /// What counts now, to compare the next reading with.
    loaded: Loaded,
    log: Log,
    live: Arc<Live>,
}

impl Reload {
    /// What a reload reads again, and what it compares with.
    pub(crate) fn new(sources: Sources, loaded: Loaded, log: Log) -> Self {
        let live = Arc::new(Live::default());
        live.follow(&loaded.config);
        Self { sources, loaded, log, live }
    }

    /// The configuration as it was at the start; what is live may differ.
    pub(crate) const fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// What requests look at.
    pub(crate) const fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Reads all sources again. What is wrong, or does not come in time, changes nothing.
    pub(crate) async fn run(&mut self, node: &Node) {
        let sources = self.sources.clone();
        let load = tokio::task::spawn_blocking(move || {
            let loaded = sources.load()?;
            let keys = loaded.config.segment.read_keys()?;
            Ok::<_, ConfigError>((loaded, keys))
        });
        let (newer, keys) = match tokio::time::timeout(READ, load).await {
            Ok(Ok(Ok(newer))) => newer,
            Ok(Ok(Err(error))) => {
                return tracing::error!("reload: {error}; everything stays as it is");
            }
            Ok(Err(_)) | Err(_) => {
                return tracing::error!(
                    "reload: the files cannot be read in time; everything stays as it is"
                );
            }
        };
        let (live, rest) = self.loaded.changes(&newer);
        self.log.follow(&newer.config.log);
        self.live.follow(&newer.config);
        node.ids.set_keys(keys);
        node.ids.set_refresh(newer.config.segment.refresh.duration());
        match live.as_slice() {
            [] => tracing::info!("reload: nothing that can change while running has changed"),
            keys => tracing::info!("reload: took over {}", keys.join(", ")),
        }
        if !rest.is_empty() {
            tracing::warn!("reload: these need a restart: {}", rest.join(", "));
        }
        // What needs a restart is told again at the next reload, so that nobody forgets it.
        self.loaded.take_live(newer);
    }
}
