//! What this server serves from, and what its listeners share.
//!
//! `leaf_node::Node` issues ids; this one adds what a server needs around it: limits that a reload
//! may change, counts of waiting requests, the time zone of answers, and whether it is stopping.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::tz::TimeZone;
use leaf_core::{Health, HealthCode, Layout};
use leaf_node::config::Config;
use leaf_node::{OpenError, Surroundings};
pub(crate) use leaf_node::{Snowflake, Store};
use leaf_segment::{KeyRing, Keys, SegmentGenerator, Shards};
use leaf_snowflake::{Identity, Peers, Registry};
use tokio::time::Instant;

use crate::peers::HttpPeers;
use crate::reload::Live;
use crate::serve::Share;

static NODES: AtomicU64 = AtomicU64::new(0);

/// A node with listeners.
///
/// One per process, shared by all listeners. Tests may have several.
pub(crate) struct Node {
    pub(crate) config: Config,
    /// What a reload may change.
    pub(crate) live: Arc<Live>,
    /// Which node of this process it is.
    pub(crate) number: u64,
    /// How many listeners for ids there are.
    listeners: u32,
    /// Where the ops listener is.
    pub(crate) ops: SocketAddr,
    pub(crate) layout: Layout,
    /// Of the times in answers.
    pub(crate) time_zone: TimeZone,
    /// Where ids come from.
    ids: leaf_node::Node,
    pub(crate) started: Instant,
    /// Whether the stop has begun.
    stopping: AtomicBool,
    /// How many requests are waiting for ids.
    pub(crate) waiting: AtomicUsize,
    /// How many requests are waiting until it is known whether their tag exists.
    pub(crate) looking_up: AtomicUsize,
    /// The health, and when it was looked at.
    seen_health: Mutex<Option<(Instant, Health)>>,
}

impl Node {
    /// Opens what the configuration names. `ids` and `ops` are the listeners' addresses,
    /// `listeners` tells how many there are for ids.
    pub(crate) async fn open(
        config: &Config,
        live: Arc<Live>,
        ids: SocketAddr,
        ops: SocketAddr,
        listeners: u32,
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
            listeners,
            ops,
            layout: config.snowflake.layout(),
            time_zone,
            ids,
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            looking_up: AtomicUsize::new(0),
            seen_health: Mutex::default(),
        })
    }

    /// What each listener for ids may use of the open files.
    pub(crate) const fn share_of_files(&self) -> Share {
        Share::Large(self.listeners)
    }

    /// The tags' generators.
    pub(crate) fn segments(&self) -> Option<&Shards<SegmentGenerator>> {
        self.ids.segments()
    }

    /// The stores of the tags.
    pub(crate) fn stores(&self) -> Option<&Shards<Store>> {
        self.ids.stores()
    }

    /// Snowflake mode, where it is on.
    pub(crate) const fn snowflake(&self) -> Option<&Snowflake> {
        self.ids.snowflake()
    }

    /// How often the sets of tags are read, from now on.
    pub(crate) fn set_refresh(&self, refresh: Duration) {
        self.ids.set_refresh(refresh);
    }

    /// The keys of scrambled ids.
    pub(crate) fn keys(&self) -> Arc<KeyRing> {
        self.ids.keys()
    }

    /// Takes other keys of scrambled ids over.
    pub(crate) fn set_keys(&self, keys: Keys) {
        self.ids.set_keys(keys);
    }

    /// From now on this node says that it is not ready, so that balancers send nothing new.
    pub(crate) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether the stop has begun.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Gives the worker id back, then the unused ids.
    ///
    /// After the last request was answered.
    pub(crate) async fn close(&self) {
        self.ids.close().await;
    }

    /// Whether this node could answer within the last second. Looking at all tags is not for the
    /// data plane.
    pub(crate) fn health_lately(&self) -> Health {
        let mut seen = self.seen_health.lock().expect("no holder of this lock panics");
        match &*seen {
            Some((at, health)) if at.elapsed() < Duration::from_secs(1) => health.clone(),
            _ => seen.insert((Instant::now(), self.health())).1.clone(),
        }
    }

    /// Whether this node can answer now.
    pub(crate) fn health(&self) -> Health {
        if self.stopping() {
            return Health::not_ready(HealthCode::Stopping, "stopping");
        }
        self.ids.health()
    }
}

/// How the clocks of the other nodes are asked for.
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
