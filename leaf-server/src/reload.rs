//! SIGHUP: reads the configuration again and takes over what can change while ids flow.
//!
//! Invariant: a configuration that is wrong changes nothing. What needs a restart is named in the
//! log, and named again at the next reload.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use leaf_node::config::{Config, ConfigError, Loaded, Sources};

use crate::log::Log;
use crate::node::Node;

/// How long the files may take that the configuration is in.
const READ: Duration = Duration::from_secs(5);

/// The configuration that counts now, of which a reload changes the live keys.
#[derive(Debug)]
pub(crate) struct Live {
    config: ArcSwap<Config>,
    /// How often `redis.password` has changed.
    redis_password_number: AtomicU64,
}

impl Live {
    /// The configuration that counts now.
    pub(crate) fn config(&self) -> Guard<Arc<Config>> {
        self.config.load()
    }

    /// Another number for every password of the Redis protocol, and for the time without one: a
    /// connection that has shown the old one must show the new one.
    pub(crate) fn redis_password_number(&self) -> u64 {
        self.redis_password_number.load(Ordering::Acquire)
    }

    /// Takes over a configuration.
    fn follow(&self, config: &Config) {
        let before = self.config.swap(Arc::new(config.clone()));
        if before.redis.password != config.redis.password {
            self.redis_password_number.fetch_add(1, Ordering::Release);
        }
    }
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
        let config = ArcSwap::from_pointee(loaded.config.clone());
        let live = Arc::new(Live { config, redis_password_number: AtomicU64::default() });
        Self { sources, loaded, log, live }
    }

    /// The configuration that counts now.
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
        // What needs a restart stays, and is told again at the next reload, so that nobody forgets
        // it.
        self.loaded.take_live(&newer);
        let config = &self.loaded.config;
        self.log.follow(&config.log);
        self.live.follow(config);
        node.ids.set_keys(keys);
        node.ids.set_refresh(config.segment.refresh.duration());
        match live.as_slice() {
            [] => tracing::info!("reload: nothing that can change while running has changed"),
            keys => tracing::info!("reload: took over {}", keys.join(", ")),
        }
        if !rest.is_empty() {
            tracing::warn!("reload: these need a restart: {}", rest.join(", "));
        }
    }
}
