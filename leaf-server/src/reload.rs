//! SIGHUP: reads the configuration again and takes over what can change while ids flow.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use leaf_node::config::{Config, Loaded, Secret, Sources};

use crate::log::Log;
use crate::node::Node;

/// How long the files may take that the configuration is in.
const READ: Duration = Duration::from_secs(5);

/// What requests look at and a reload may change.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) max_count: AtomicUsize,
    pub(crate) max_waiting: AtomicUsize,
    pub(crate) max_connections: AtomicUsize,
    token: RwLock<Option<Secret>>,
}

impl Live {
    fn follow(&self, config: &Config) {
        let store = |at: &AtomicUsize, value: u32| at.store(value as usize, Ordering::Relaxed);
        store(&self.max_count, config.http.max_count);
        store(&self.max_waiting, config.http.max_waiting);
        store(&self.max_connections, config.http.max_connections);
        *self.token.write().expect("no holder of this lock panics") = config.ops.token.clone();
    }

    /// What administration must show.
    pub(crate) fn token(&self) -> Option<Secret> {
        self.token.read().expect("no holder of this lock panics").clone()
    }
}

/// The configuration that counts, and the way to read it again.
pub(crate) struct Reload {
    sources: Sources,
    loaded: Loaded,
    log: Log,
    live: Arc<Live>,
}

impl Reload {
    pub(crate) fn new(sources: Sources, loaded: Loaded, log: Log) -> Self {
        let live = Arc::new(Live::default());
        live.follow(&loaded.config);
        Self { sources, loaded, log, live }
    }

    pub(crate) const fn config(&self) -> &Config {
        &self.loaded.config
    }

    pub(crate) const fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Reads all sources again. What is wrong, or does not come in time, changes nothing.
    pub(crate) async fn run(&mut self, node: &Node) {
        let sources = self.sources.clone();
        let load = tokio::task::spawn_blocking(move || sources.load());
        let newer = match tokio::time::timeout(READ, load).await {
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
        node.set_refresh(newer.config.segment.refresh.duration());
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
