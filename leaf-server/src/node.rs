//! What this node serves from: the generators of both modes, and the stores and the registry behind them.
//!
//! Opening it reaches no server: a node starts while its store and its registry are away, and says so.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::tz::TimeZone;
use leaf_core::{Health, Layout};
use leaf_registry::{OpenRegistry, OpenStore, StoreUrl};
use leaf_segment::{Marks, SegmentConfig, SegmentGenerator, Shards};
use leaf_server::config::{ClockCheck, Config, ConfigError};
use leaf_snowflake::{Identity, SnowflakeConfig, SnowflakeErrorKind, SnowflakeGenerator};

use crate::peers::HttpPeers;
use crate::reload::Live;
use crate::{identity, registry};

/// A mode that is switched off is `None`.
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) live: Arc<Live>,
    /// Where the ops listener is.
    pub(crate) ops: SocketAddr,
    pub(crate) layout: Layout,
    pub(crate) time_zone: TimeZone,
    segment: Option<Segment>,
    snowflake: Option<Snowflake>,
    pub(crate) started: tokio::time::Instant,
    stopping: AtomicBool,
    /// How many requests are waiting for ids.
    pub(crate) waiting: AtomicUsize,
    /// How many requests are waiting until it is known whether their tag exists.
    pub(crate) looking_up: AtomicUsize,
}

/// Segment mode.
struct Segment {
    generators: Shards<SegmentGenerator>,
    stores: Shards<Store>,
}

/// A store of segments, and the generator of its tags.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) url: StoreUrl,
    pub(crate) open: OpenStore,
    pub(crate) generator: SegmentGenerator,
}

/// Snowflake mode.
pub(crate) struct Snowflake {
    pub(crate) generator: SnowflakeGenerator,
    pub(crate) open: OpenRegistry,
    pub(crate) identity: Identity,
}

impl Node {
    /// Opens what the configuration names. `ids` and `ops` are the listeners' addresses.
    pub(crate) async fn open(
        config: &Config,
        live: Arc<Live>,
        ids: SocketAddr,
        ops: SocketAddr,
    ) -> Result<Self> {
        let snowflake = match config.snowflake.enabled {
            true => Some(Snowflake::prepare(config, ids).await?),
            false => None,
        };
        let segment = match config.segment.enabled {
            true => Some(Segment::open(config).await?),
            false => None,
        };
        let time_zone = match &config.time_zone {
            Some(name) => TimeZone::get(name).context("time_zone")?,
            None => TimeZone::system(),
        };
        Ok(Self {
            config: config.clone(),
            live,
            ops,
            layout: config.snowflake.layout(),
            time_zone,
            segment,
            snowflake,
            started: tokio::time::Instant::now(),
            stopping: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            looking_up: AtomicUsize::new(0),
        })
    }

    /// The tags' generators.
    pub(crate) fn segments(&self) -> Option<&Shards<SegmentGenerator>> {
        self.segment.as_ref().map(|segment| &segment.generators)
    }

    /// The stores of the tags.
    pub(crate) fn stores(&self) -> Option<&Shards<Store>> {
        self.segment.as_ref().map(|segment| &segment.stores)
    }

    pub(crate) const fn snowflake(&self) -> Option<&Snowflake> {
        self.snowflake.as_ref()
    }

    /// How often the sets of tags are read, from now on.
    pub(crate) fn set_refresh(&self, refresh: Duration) {
        for generator in self.segments().iter().flat_map(|generators| generators.iter()) {
            generator.set_refresh(refresh);
        }
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
        if let Some(snowflake) = &self.snowflake {
            snowflake.generator.close().await;
        }
        if let Some(segment) = &self.segment {
            segment.generators.close().await;
        }
    }

    /// Whether this node can answer now.
    pub(crate) fn health(&self) -> Health {
        if self.stopping() {
            return Health::NotReady("stopping".into());
        }
        let segment = self.segments().map_or(Health::Ready, Shards::health);
        let snowflake = self.snowflake().map_or(Health::Ready, |mode| mode.generator.health());
        segment.and(snowflake)
    }
}

impl Segment {
    async fn open(config: &Config) -> Result<Self> {
        let marks = Marks::open(&config.data_dir.join("segment.marks"))
            .context("the file of the regression guard's marks")?;
        let marks = Arc::new(marks);
        let open = async |url: &StoreUrl| -> Result<Store> {
            let open = url.open(&config.data_dir, &config.segment.store_options()).await?;
            if url.file(&config.data_dir).is_some() {
                open.admin.apply().await?;
            }
            let settings =
                SegmentConfig { marks: Arc::clone(&marks), ..config.segment.generator() };
            let generator = SegmentGenerator::start(Arc::clone(&open.store), settings);
            Ok(Store { url: url.clone(), open, generator })
        };
        let stores = config.segment.stores().try_map(open).await?;
        Ok(Self { generators: stores.map(|store| store.generator.clone()), stores })
    }
}

impl Snowflake {
    async fn prepare(config: &Config, ids: SocketAddr) -> Result<Self> {
        let (identity, warning) = identity::find(config)?;
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        let address = identity::address(&identity, ids)?;
        let open = registry::open(config, Some(address)).await?;
        let place = config.registry_place()?;
        if let (Some(tables), Some(place)) = (&open.tables, place)
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
            let peers = HttpPeers::new(open.registry.clone(), identity.clone());
            settings.peers = Some(Arc::new(peers));
        }
        let registry = open.registry.clone();
        let generator =
            SnowflakeGenerator::prepare(registry, settings).map_err(|error| {
                match error.kind() {
                    SnowflakeErrorKind::BadConfig(_) | SnowflakeErrorKind::EndOfTime { .. } => {
                        ConfigError::new(format!("snowflake: {error}")).into()
                    }
                    _ => anyhow::Error::from(error).context("snowflake"),
                }
            })?;
        Ok(Self { generator, open, identity })
    }
}
