//! What a node serves from: the generators of both modes, and the stores and the registry behind
//! them.
//!
//! Opening it reaches no server: a node starts while its store and its registry are away, and says
//! so.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Health, Tag};
use leaf_registry::{OpenRegistry, OpenStore, StoreUrl};
use leaf_segment::meaning::{KeyRing, Keys};
use leaf_segment::shards::{ShardPlace, Shards};
use leaf_segment::{HighWaterMarks, SegmentConfig, SegmentGenerator, StoreError};
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
    /// Where it is.
    pub url: StoreUrl,
    /// The store.
    pub open: OpenStore,
    /// Which of the configured stores it is.
    pub place: ShardPlace,
    /// The generator of its tags.
    pub generator: SegmentGenerator,
}

impl Store {
    /// Where it is, and the store itself.
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
    /// What this node calls itself there.
    pub identity: Identity,
}

/// What a node knows of the nodes around it.
#[derive(Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// Where this node serves HTTP, which it tells the registry. `None`: nowhere.
    pub http: Option<SocketAddr>,
    /// Makes what asks the other nodes of a registry for their clocks, of the registry and this node's own identity,
    /// which is left out. `None`: nobody is asked.
    pub peers: Option<&'a (dyn Fn(Registry, Identity) -> Arc<dyn Peers> + Sync)>,
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").field("http", &self.http).finish_non_exhaustive()
    }
}

impl Node {
    /// Opens what the configuration names; the data directory must exist. Call it in a tokio
    /// runtime.
    ///
    /// # Errors
    /// What is wrong with the configuration or with a file. Servers that are away are no error.
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

    /// The generators of tags.
    #[must_use]
    pub fn segments(&self) -> Option<&Shards<SegmentGenerator>> {
        self.segment.as_ref().map(|segment| &segment.generators)
    }

    /// The stores of tags.
    #[must_use]
    pub fn stores(&self) -> Option<&Shards<Store>> {
        self.segment.as_ref().map(|segment| &segment.stores)
    }

    /// Snowflake mode.
    #[must_use]
    pub const fn snowflake(&self) -> Option<&Snowflake> {
        self.snowflake.as_ref()
    }

    /// How often the sets of tags are read, from now on; see
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

    /// Takes other keys over, and looks at all tags again: those whose key was missing may have it
    /// now.
    pub fn set_keys(&self, keys: Keys) {
        self.keys().replace(keys);
        for generator in self.segments().iter().flat_map(|generators| generators.iter()) {
            generator.read_soon();
        }
    }

    /// Whether ids can be had now.
    ///
    /// The worse of the two modes. A mode that is switched off is ready.
    #[must_use]
    pub fn health(&self) -> Health {
        let segment = self.segments().map_or(Health::Ready, Shards::health);
        let snowflake = self.snowflake().map_or(Health::Ready, |mode| mode.generator.health());
        segment.and(snowflake)
    }

    /// Gives the worker id back, then the unused ids.
    ///
    /// Both give up after a while where the registry or a store is away. What was not given back
    /// costs ids, never uniqueness.
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
    /// The tables of a SQLite file are made here, since nobody else could have made them; those of
    /// a server are an operator's to make (`leaf-server schema`).
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

/// Whether that is why: SQLite's text for SQLITE_BUSY and SQLITE_LOCKED.
fn is_locked(error: &StoreError) -> bool {
    error.cause().is_some_and(|cause| cause.to_string().contains(" is locked"))
}

/// Where the regression guard's marks are.
fn marks_file(data_dir: &Path) -> PathBuf {
    data_dir.join("segment.marks")
}

/// Refuses a file of the regression guard's marks with which [`Node::open`] refuses to start.
///
/// Changes nothing, and may run while a node uses the data directory.
///
/// # Errors
/// `HighWaterMarks`.
pub fn check_marks(config: &Config) -> Result<(), OpenError> {
    HighWaterMarks::check(&marks_file(&config.data_dir)).map_err(OpenError::HighWaterMarks)
}

/// The regression guard's marks of the node that uses this data directory, also while it runs: the
/// ids of each tag below its mark were granted to it. None where no node has used the directory.
///
/// # Errors
/// `HighWaterMarks` where the file cannot be read.
pub fn read_marks(data_dir: &Path) -> Result<Vec<(Tag, i64)>, OpenError> {
    HighWaterMarks::read(&marks_file(data_dir)).map_err(OpenError::HighWaterMarks)
}

/// Refuses settings, a state file and a Java Leaf's cache with which [`Node::open`] refuses to
/// start.
///
/// Changes nothing, and may run while a node uses the data directory.
///
/// # Errors
/// `Config`, `Snowflake`.
pub fn check_snowflake(config: &Config, identity: &Identity) -> Result<(), OpenError> {
    identity::address(identity, config.http.listen)?;
    generator_config(config, identity).check().map_err(not_prepared)
}

/// Compares this host's clock with those of the other nodes, as the claim of a node does: how many
/// agree, of how many that answered. `None` where nobody is asked, or nobody answers.
///
/// # Errors
/// `Snowflake` where the clock would be refused, or the registry does not tell who they are.
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

/// Prepares a generator that keeps a worker id for a program that makes ids itself. It has no state
/// file: after a crash the worker id is free again once its ceiling has passed. `claim` claims the
/// worker id, [`SnowflakeGenerator::skip_to`] tells what the program used.
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

/// Opens the registry for a node of this name, and makes its file where it is one.
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

/// Settings that make no sense are the configuration's fault.
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
