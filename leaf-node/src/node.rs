//! A node: the generators of both modes, and the stores and the registry behind them.
//!
//! Opening a node contacts no server: it starts even if its store and its registry do not answer,
//! and its health says so.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::{ShardPlace, Shards};
use leaf_core::{Health, Tag};
use leaf_registry::{OpenRegistry, OpenStore, StoreUrl};
use leaf_segment::{HighWaterMarks, SegmentConfig, SegmentGenerator, StoreError};
use leaf_shape::keys::{KeyRing, Keys};
use leaf_snowflake::{
    Identity, Peers, Registry, SnowflakeConfig, SnowflakeError, SnowflakeErrorKind,
    SnowflakeGenerator,
};
use tokio::time::Instant;

use crate::config::{ClockCheck, Config, ConfigError};
use crate::shards::PlacedStore;
use crate::{OpenError, hints, identity, registry};

/// How long a start waits for an SQLite file that another program has locked.
const LOCKED: Duration = Duration::from_secs(60);
const LOCKED_AGAIN: Duration = Duration::from_millis(200);

/// The generators of a node, and what is behind them. A mode that is switched off is `None`.
#[derive(Debug)]
pub struct Node {
    segment: Option<Segment>,
    snowflake: Option<Snowflake>,
}

/// Segment mode: a generator per store, side by side with the stores, and the keys that all of them
/// share.
#[derive(Debug)]
struct Segment {
    generators: Shards<SegmentGenerator>,
    stores: Shards<Store>,
    /// The keys of scrambled ids.
    keys: Arc<KeyRing>,
}

/// A store of segments, and the generator of its tags.
#[derive(Debug, Clone)]
pub struct Store {
    /// The URL of the store.
    pub url: StoreUrl,
    /// The store.
    pub open: OpenStore,
    /// The store's place among the configured stores.
    pub place: ShardPlace,
    /// The generator of its tags.
    pub generator: SegmentGenerator,
}

impl Store {
    /// Returns the URL and the opened store.
    #[must_use]
    pub const fn opened(&self) -> (&StoreUrl, &OpenStore) {
        (&self.url, &self.open)
    }
}

/// Snowflake mode.
#[derive(Debug)]
pub struct Snowflake {
    /// The generator. It has no worker id before [`SnowflakeGenerator::claim`].
    pub generator: SnowflakeGenerator,
    /// The registry of worker ids.
    pub open: OpenRegistry,
    /// The identity of this node in the registry.
    pub identity: Identity,
}

/// The means by which a node and the other nodes of its cluster reach each other.
#[derive(Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// The address where this node serves HTTP; the registry passes it to other nodes. `None`: they
    /// use the identity.
    pub http: Option<SocketAddr>,
    /// Makes the [`Peers`], which read the clocks of the other nodes. The arguments are the
    /// registry that lists the nodes and this node's identity, which is left out. `None`: no clock
    /// is read.
    pub peers: Option<&'a (dyn Fn(Registry, Identity) -> Arc<dyn Peers> + Sync)>,
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").field("http", &self.http).finish_non_exhaustive()
    }
}

impl Node {
    /// Opens the stores, the registry and the files that the configuration names; the data
    /// directory must exist. Call it in a tokio runtime.
    ///
    /// # Errors
    /// The configuration or a file is wrong. Servers that do not answer are no error.
    pub async fn open(config: &Config, around: Surroundings<'_>) -> Result<Self, OpenError> {
        let snowflake = match config.snowflake.enabled {
            true => Some(Snowflake::prepare(config, around).await?),
            false => None,
        };
        let segment = match config.segment.enabled {
            true => Some(Segment::open(config).await?),
            false => None,
        };
        Ok(Self { segment, snowflake })
    }

    /// The generators of tags; `None` if segment mode is off.
    #[must_use]
    pub fn segments(&self) -> Option<&Shards<SegmentGenerator>> {
        self.segment.as_ref().map(|segment| &segment.generators)
    }

    /// The stores of tags; `None` if segment mode is off.
    #[must_use]
    pub fn stores(&self) -> Option<&Shards<Store>> {
        self.segment.as_ref().map(|segment| &segment.stores)
    }

    /// Snowflake mode; `None` if it is off.
    #[must_use]
    pub const fn snowflake(&self) -> Option<&Snowflake> {
        self.snowflake.as_ref()
    }

    /// Sets how often the records of tags are read, from now on; see
    /// [`Segment::refresh`](crate::config::Segment::refresh).
    pub fn set_refresh(&self, refresh: Duration) {
        for generator in self.segments().iter().flat_map(|generators| generators.iter()) {
            generator.set_refresh(refresh);
        }
    }

    /// The keys of scrambled ids; none where segment mode is off.
    #[must_use]
    pub fn keys(&self) -> Arc<KeyRing> {
        self.segment.as_ref().map_or_else(Arc::default, |segment| Arc::clone(&segment.keys))
    }

    /// Replaces the keys of scrambled ids, and reads all tags again: a key that was missing may be
    /// there now.
    pub fn set_keys(&self, keys: Keys) {
        self.keys().replace(keys);
        for generator in self.segments().iter().flat_map(|generators| generators.iter()) {
            generator.read_soon();
        }
    }

    /// Whether the node can issue ids now: the worse state of its two modes.
    ///
    /// A mode that is switched off is ready.
    #[must_use]
    pub fn health(&self) -> Health {
        let segment = self.segments().map_or(Health::Ready, Shards::health);
        let snowflake = self.snowflake().map_or(Health::Ready, |mode| mode.generator.health());
        segment.and(snowflake)
    }

    /// Gives the worker id back, then the unused ids.
    ///
    /// Each of the two gives up after a while if the registry or a store does not answer. Then ids
    /// are lost, but none is issued twice.
    pub async fn close(&self) {
        if let Some(snowflake) = &self.snowflake {
            snowflake.generator.close().await;
        }
        if let Some(segment) = &self.segment {
            segment.generators.close().await;
        }
    }
}

impl Segment {
    /// Opens the stores and starts their generators. One file of marks is shared by all stores: a
    /// tag is in one store only.
    ///
    /// The tables of a SQLite file are made here, since nobody else could have made them. An
    /// operator makes those of a server (`leaf-server schema`).
    async fn open(config: &Config) -> Result<Self, OpenError> {
        let marks = HighWaterMarks::open(&marks_file(&config.data_dir));
        let marks = Arc::new(marks.map_err(OpenError::HighWaterMarks)?);
        let keys = Arc::new(KeyRing::new(config.segment.read_keys()?));
        let open = |(place, url)| open_store(config, place, url);
        let placed = PlacedStore::of(config.segment.stores().placed().try_map(open).await?);
        let stores = placed.map(|placed| {
            let settings = SegmentConfig {
                marks: Arc::clone(&marks),
                keys: Arc::clone(&keys),
                ..config.segment.generator()
            };
            let generator = SegmentGenerator::start(Arc::clone(placed) as _, settings);
            placed.with_generator(generator)
        });
        Ok(Self { generators: stores.map(|store| store.generator.clone()), stores, keys })
    }
}

/// Opens a store, and makes the tables of a SQLite file.
async fn open_store(
    config: &Config,
    place: ShardPlace,
    url: &StoreUrl,
) -> Result<(ShardPlace, (StoreUrl, OpenStore)), OpenError> {
    let options = config.segment.store_options();
    let open = unless_locked(|| url.open(&config.data_dir, &options)).await?;
    if url.file(&config.data_dir).is_some() {
        unless_locked(|| open.admin.apply()).await?;
    }
    Ok((place, (url.clone(), open)))
}

/// Tries again while another program has an SQLite file locked: a backup, or a shell that forgot to
/// end its transaction.
async fn unless_locked<T, F>(attempt: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let until = Instant::now() + LOCKED;
    let mut told = false;
    loop {
        match attempt().await {
            Err(error) if error.retryable() && is_locked(&error) && Instant::now() < until => {
                if !told {
                    tracing::warn!("{error}: waiting for up to {LOCKED:?}");
                    told = true;
                }
                tokio::time::sleep(LOCKED_AGAIN).await;
            }
            done => return done,
        }
    }
}

/// Whether the cause is a locked file: SQLite's text for SQLITE_BUSY and SQLITE_LOCKED.
fn is_locked(error: &StoreError) -> bool {
    error.cause().is_some_and(|cause| cause.to_string().contains(" is locked"))
}

/// The path of the file with the regression guard's marks.
fn marks_file(data_dir: &Path) -> PathBuf {
    data_dir.join("segment.marks")
}

/// Checks the file of the regression guard's marks as [`Node::open`] does.
///
/// Changes nothing, and may run while a node uses the data directory.
///
/// # Errors
/// `HighWaterMarks`.
pub fn check_marks(config: &Config) -> Result<(), OpenError> {
    HighWaterMarks::check(&marks_file(&config.data_dir)).map_err(OpenError::HighWaterMarks)
}

/// Reads the regression guard's marks from a data directory, even while a node uses it. A mark is
/// the end of the highest range of a tag that the node was granted. Empty if no node has used the
/// directory.
///
/// # Errors
/// `HighWaterMarks` where the file cannot be read.
pub fn read_marks(data_dir: &Path) -> Result<Vec<(Tag, i64)>, OpenError> {
    HighWaterMarks::read(&marks_file(data_dir)).map_err(OpenError::HighWaterMarks)
}

/// Checks the settings, the state file and a Java Leaf's cache as [`Node::open`] does.
///
/// Changes nothing, and may run while a node uses the data directory.
///
/// # Errors
/// `Config`, `Snowflake`.
pub fn check_snowflake(config: &Config, identity: &Identity) -> Result<(), OpenError> {
    identity::address(identity, config.http.listen)?;
    generator_config(config, identity).check().map_err(not_prepared)
}

/// Compares this host's clock with those of the other nodes, as a claim does. Returns how many
/// clocks agree and how many nodes answered; `None` if the check is off or no node answered.
///
/// # Errors
/// `Snowflake` if a claim would be refused because of the clock, or the registry does not list the
/// nodes.
pub async fn compare_clocks(
    config: &Config,
    identity: &Identity,
    peers: impl FnOnce() -> Arc<dyn Peers>,
) -> Result<Option<(usize, usize)>, OpenError> {
    let mut settings = generator_config(config, identity);
    if let ClockCheck::By(rule) = config.snowflake.clock_check {
        settings.peer_rule = rule;
        settings.peers = Some(peers());
    }
    settings.compare_clocks().await.map_err(OpenError::Snowflake)
}

/// Prepares a generator that only holds a worker id, for a program that makes the ids itself. It
/// has no state file: after a crash the worker id is free again once its ceiling has passed.
/// `claim` claims the worker id; the program reports the timestamps that it used with
/// [`SnowflakeGenerator::skip_to`].
///
/// # Errors
/// `Config`, `Registry`; `Snowflake` where the generator is refused.
pub async fn prepare_lease(
    config: &Config,
    identity: &Identity,
) -> Result<SnowflakeGenerator, OpenError> {
    // Without a port: other nodes do not ask it for its clock or its keys.
    let nowhere =
        Identity::parse("program").map_err(|error| ConfigError::new(error.to_string()))?;
    let open = open_registry(config, identity, Some(nowhere)).await?;
    let settings = SnowflakeConfig {
        state_file: None,
        java_cache: None,
        ..generator_config(config, identity)
    };
    SnowflakeGenerator::prepare(open.registry, settings).map_err(not_prepared)
}

/// Opens the registry for a node with this identity. If it is an SQLite file, makes its tables.
async fn open_registry(
    config: &Config,
    identity: &Identity,
    address: Option<Identity>,
) -> Result<OpenRegistry, OpenError> {
    let open = registry::open(config, address).await?;
    // What no answer of the registry can change is the configuration's fault.
    open.registry.check(identity, config.snowflake.layout()).map_err(|error| {
        let hint = hints::of_registry(error.kind());
        ConfigError::new(hints::with(format_args!("snowflake: {error}"), hint))
    })?;
    if let Some(admin) = &open.admin
        && config.registry().file(&config.data_dir).is_some()
    {
        unless_locked(|| admin.apply()).await?;
    }
    Ok(open)
}

/// The settings of the generator of snowflake ids.
fn generator_config(config: &Config, identity: &Identity) -> SnowflakeConfig {
    let snowflake = &config.snowflake;
    SnowflakeConfig {
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
    }
}

/// Turns the error into a `Config` error if settings are the cause, else into a `Snowflake` error.
fn not_prepared(error: SnowflakeError) -> OpenError {
    match error.kind() {
        SnowflakeErrorKind::BadConfig(_) | SnowflakeErrorKind::EndOfTime { .. } => {
            ConfigError::new(format!("snowflake: {error}")).into()
        }
        _ => OpenError::Snowflake(error),
    }
}

impl Snowflake {
    /// Opens the registry and prepares the generator. Nothing is claimed yet: that needs the
    /// registry, which may be away, while a node must be able to start.
    async fn prepare(config: &Config, around: Surroundings<'_>) -> Result<Self, OpenError> {
        let (identity, warning) = identity::find_identity(config)?;
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        let address = around.http.map(|http| identity::address(&identity, http)).transpose()?;
        let open = open_registry(config, &identity, address).await?;
        let mut settings = generator_config(config, &identity);
        if let (ClockCheck::By(rule), Some(peers)) = (config.snowflake.clock_check, around.peers) {
            settings.peer_rule = rule;
            settings.peers = Some(peers(open.registry.clone(), identity.clone()));
        }
        let generator = SnowflakeGenerator::prepare(open.registry.clone(), settings);
        Ok(Self { generator: generator.map_err(not_prepared)?, open, identity })
    }
}
