//! SIGHUP: reads the configuration again and takes over what can change while ids flow.
//!
//! Invariant: a configuration that is wrong changes nothing. Changed keys that need a restart are
//! named in the log, and again at each later reload.

use std::sync::Arc;
use std::time::Duration;

use leaf_node::config::{Config, ConfigError, Loaded, Sources};
use leaf_node::tokens;

use crate::live::Live;
use crate::log::Log;
use crate::node::Node;

/// The longest time for reading the files of the configuration.
const READ: Duration = Duration::from_secs(5);

/// The configuration in force, and the sources to read it from again.
pub(crate) struct Reload {
    sources: Sources,
    /// The configuration in force, to compare the next one with.
    loaded: Loaded,
    log: Log,
    live: Arc<Live>,
}

impl Reload {
    /// Prepares reloads, which read `sources` again and compare the result with `loaded`.
    pub(crate) fn new(sources: Sources, loaded: Loaded, log: Log) -> Self {
        let live = Arc::new(Live::new(loaded.config.clone()));
        Self { sources, loaded, log, live }
    }

    /// The configuration in force.
    pub(crate) const fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// The configuration that requests read.
    pub(crate) const fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Reads all sources again. A configuration that is wrong, or not read in time, changes
    /// nothing.
    pub(crate) async fn run(&mut self, node: &Node) {
        node.read_certificates().await;
        let sources = self.sources.clone();
        let load = tokio::task::spawn_blocking(move || {
            let loaded = sources.load()?;
            let keys = loaded.config.segment.read_keys()?;
            tokens::read(&loaded.config)?;
            Ok::<_, ConfigError>((loaded, keys))
        });
        let (newer, keys) = match tokio::time::timeout(READ, load).await {
            Ok(Ok(Ok(newer))) => newer,
            Ok(Ok(Err(error))) => {
                self.live.reload_failed();
                // It may be the file of tokens, which has a metric of its own.
                node.access.read_again(&self.live).await;
                return tracing::error!("reload: {error}; everything stays as it is");
            }
            Ok(Err(_)) | Err(_) => {
                self.live.reload_failed();
                return tracing::error!(
                    "reload: the files cannot be read in time; everything stays as it is"
                );
            }
        };
        let (live, rest) = self.loaded.changes(&newer);
        // Keys that need a restart keep their values. They are logged again at the next reload, so
        // that nobody forgets them.
        self.loaded.take_live(&newer);
        let config = &self.loaded.config;
        self.log.follow(&config.log);
        self.live.follow(config);
        node.access.read_again(&self.live).await;
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
