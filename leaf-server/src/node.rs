//! What this server serves from, and what its listeners share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::tz::TimeZone;
use leaf_core::{Health, HealthCode, Layout};
use leaf_node::config::Config;
use leaf_node::{OpenError, Surroundings};
pub(crate) use leaf_node::{Snowflake, Store};
use leaf_segment::{SegmentGenerator, Shards};
use leaf_snowflake::{Identity, Peers, Registry};

use crate::peers::HttpPeers;
use crate::reload::Live;

static NODES: AtomicU64 = AtomicU64::new(0);

/// A node with listeners.
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) live: Arc<Live>,
    /// Which node of this process it is.
    pub(crate) number: u64,
    /// Where the ops listener is.
    pub(crate) ops: SocketAddr,
    pub(crate) layout: Layout,
    pub(crate) time_zone: TimeZone,
    ids: leaf_node::Node,
    pub(crate) started: tokio::time::Instant,
    stopping: AtomicBool,
    /// How many requests are waiting for ids.
    pub(crate) waiting: AtomicUsize,
    /// How many requests are waiting until it is known whether their tag exists.
    pub(crate) looking_up: AtomicUsize,
}

impl Node {
    /// Opens what the configuration names. `ids` and `ops` are the listeners' addresses.
    pub(crate) async fn open(
        config: &Config,
        live: Arc<Live>,
        ids: SocketAddr,
        ops: SocketAddr,
    ) -> Result<Self> {
        let around = Surroundings { http: Some(ids), peers: Some(&peers) };
        let ids = leaf_node::Node::open(config, around).await.map_err(explain)?;
        let time_zone = match &config.time_zone {
            Some(name) => TimeZone::get(name).context("time_zone")?,
            None => TimeZone::system(),
        };
        Ok(Self {
            config: config.clone(),
            live,
            number: NODES.fetch_add(1, Ordering::Relaxed),
            ops,
            layout: config.snowflake.layout(),
            time_zone,
            ids,
            started: tokio::time::Instant::now(),
            stopping: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            looking_up: AtomicUsize::new(0),
        })
    }

    /// The tags' generators.
    pub(crate) fn segments(&self) -> Option<&Shards<SegmentGenerator>> {
        self.ids.segments()
    }

    /// The stores of the tags.
    pub(crate) fn stores(&self) -> Option<&Shards<Store>> {
        self.ids.stores()
    }

    pub(crate) const fn snowflake(&self) -> Option<&Snowflake> {
        self.ids.snowflake()
    }

    /// How often the sets of tags are read, from now on.
    pub(crate) fn set_refresh(&self, refresh: Duration) {
        self.ids.set_refresh(refresh);
    }

    /// From now on this node says that it is not ready, so that balancers send nothing new.
    pub(crate) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Gives the worker id back, then the unused ids.
    pub(crate) async fn close(&self) {
        self.ids.close().await;
    }

    /// Whether this node can answer now.
    pub(crate) fn health(&self) -> Health {
        if self.stopping() {
            return Health::not_ready(HealthCode::Stopping, "stopping");
        }
        self.ids.health()
    }
}

fn peers(registry: Registry, own: Identity) -> Arc<dyn Peers> {
    Arc::new(HttpPeers::new(registry, own))
}

/// A configuration that is wrong has an exit code of its own, by its type.
pub(crate) fn explain(error: OpenError) -> anyhow::Error {
    match error {
        OpenError::Config(error) => error.into(),
        error => error.into(),
    }
}
