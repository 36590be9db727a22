//! What this program reads of the server's configuration: where stores and registry are, and what decides
//! how far ids may reach. The sources and their order are the server's: file, environment, flags.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use leaf_core::{Layout, UnixMillis};
use leaf_registry::{
    OpenRegistry, RegistryKind, RegistryOptions, RegistryPlaces, StoreUrl, StoreUrlError,
    read_setting,
};
use serde::Deserialize;

use crate::cli::Place;

/// The configuration is wrong: exit code 2.
#[derive(Debug)]
pub(crate) struct BadConfig(String);

impl BadConfig {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadConfig {}

/// What is read of the server's configuration, and its defaults.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Config {
    name: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) segment: Segment,
    snowflake: Snowflake,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Segment {
    store: String,
    store_file: Option<PathBuf>,
    pub(crate) shard: Vec<Shard>,
    pub(crate) failover_guard: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Shard {
    pub(crate) store: String,
    pub(crate) tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Snowflake {
    registry: String,
    zookeeper: Option<String>,
    zookeeper_file: Option<PathBuf>,
    database: Option<String>,
    database_file: Option<PathBuf>,
    etcd: Option<String>,
    etcd_file: Option<PathBuf>,
    layout: String,
    epoch: Option<u64>,
    offline_for: String,
    report_interval: String,
}

impl Default for Snowflake {
    fn default() -> Self {
        Self {
            registry: "local".into(),
            zookeeper: None,
            zookeeper_file: None,
            database: None,
            database_file: None,
            etcd: None,
            etcd_file: None,
            layout: "leaf".into(),
            epoch: None,
            offline_for: "10min".into(),
            report_interval: "3s".into(),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "leaf".into(),
            data_dir: "leaf-data".into(),
            segment: Segment::default(),
            snowflake: Snowflake::default(),
        }
    }
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            store: "sqlite:leaf.db".into(),
            store_file: None,
            shard: Vec::new(),
            failover_guard: true,
        }
    }
}

impl Segment {
    pub(crate) fn store(&self) -> Result<StoreUrl> {
        let store = setting("segment.store", Some(&self.store), self.store_file.as_deref())?;
        store.ok_or_else(|| BadConfig::new("segment.store is missing").into())
    }
}

/// The configured registry, and what its nodes are configured with.
pub(crate) struct Registry {
    pub(crate) open: OpenRegistry,
    pub(crate) layout: Layout,
    pub(crate) offline_for: Duration,
    pub(crate) report_interval: Duration,
}

impl Config {
    /// Opens the registry. A server is not contacted yet.
    pub(crate) async fn registry(&self) -> Result<Registry> {
        let snowflake = &self.snowflake;
        let kind: RegistryKind = parse("snowflake.registry", &snowflake.registry)?;
        let places = RegistryPlaces {
            zookeeper: setting(
                "snowflake.zookeeper",
                snowflake.zookeeper.as_deref(),
                snowflake.zookeeper_file.as_deref(),
            )?,
            database: setting(
                "snowflake.database",
                snowflake.database.as_deref(),
                snowflake.database_file.as_deref(),
            )?,
            etcd: setting(
                "snowflake.etcd",
                snowflake.etcd.as_deref(),
                snowflake.etcd_file.as_deref(),
            )?,
            segment_store: Some(self.segment.store()?),
        };
        let place = places.of(kind).map_err(|error| BadConfig::new(error.to_string()))?;
        let Some(place) = place else {
            let text = format!(
                "the registry `{kind}` keeps its fence in each node's data directory: there is nothing to \
                 administer here; set snowflake.registry where the nodes use another"
            );
            return Err(BadConfig::new(text).into());
        };
        let layout: Layout = snowflake
            .layout
            .parse()
            .map_err(|error| BadConfig::new(format!("snowflake.layout: {error}")))?;
        let layout =
            snowflake.epoch.map_or(layout, |epoch| layout.with_epoch(UnixMillis::new(epoch)));
        let offline_for = span("snowflake.offline_for", &snowflake.offline_for)?;
        let report_interval = span("snowflake.report_interval", &snowflake.report_interval)?;
        if let Some(file) = place.file(&self.data_dir)
            && !file.exists()
        {
            let text = format!(
                "{place} does not exist in {}: start leaf-server once, or say --data-dir",
                self.data_dir.display()
            );
            return Err(BadConfig::new(text).into());
        }
        let options = RegistryOptions { name: self.name.clone(), ..RegistryOptions::default() };
        let open = place.open(kind, None, &self.data_dir, &options).await?;
        Ok(Registry { open, layout, offline_for, report_interval })
    }
}

/// A value that is written out, or in a file.
fn setting<T>(key: &str, text: Option<&str>, file: Option<&Path>) -> Result<Option<T>>
where
    T: FromStr<Err = StoreUrlError>,
{
    match file {
        Some(file) => read_setting(file)
            .map(Some)
            .map_err(|error| BadConfig::new(format!("{key}_file: {error}")).into()),
        None => text.map(|text| parse(key, text)).transpose(),
    }
}

/// Reads file, environment and flags.
pub(crate) fn read(place: &Place) -> Result<Config> {
    let default_file = Path::new("leaf.toml");
    let file = match &place.config {
        Some(file) => Some(file.as_path()),
        None => default_file.exists().then_some(default_file),
    };
    let mut builder = config::Config::builder();
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("read {}", path.display()))
            .map_err(|error| BadConfig::new(format!("{error:#}")))?;
        builder = builder.add_source(config::File::from_str(&text, config::FileFormat::Toml));
    }
    let environment =
        config::Environment::with_prefix("LEAF").prefix_separator("_").separator("__");
    let config = builder.add_source(environment).build().and_then(config::Config::try_deserialize);
    // The error's own text may quote a line that holds a password.
    let mut config: Config = config.map_err(|_| {
        let place = file.map_or("the environment".into(), |file| file.display().to_string());
        let text = format!(
            "{place}: what it says of stores and registries cannot be read; `leaf-server` says why"
        );
        BadConfig::new(text)
    })?;
    if let Some(directory) = &place.data_dir {
        config.data_dir.clone_from(directory);
    }
    if let Some(store) = &place.store {
        config.segment.store.clone_from(store);
        config.segment.store_file = None;
        config.segment.shard.clear();
    }
    Ok(config)
}

/// Reads a duration.
fn span(key: &str, text: &str) -> Result<Duration> {
    let span = text.parse::<jiff::SignedDuration>().ok();
    let span = span.and_then(|span| Duration::try_from(span).ok());
    span.ok_or_else(|| BadConfig::new(format!("{key}: write it like 10min")).into())
}

/// Reads a value, or says which key is wrong.
pub(crate) fn parse<T: FromStr<Err = StoreUrlError>>(key: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error| BadConfig::new(format!("{key}: {error}")).into())
}
