//! The server's configuration, read as the server reads it, and the registry that it names.
//!
//! Invariant: what a command acts on is what the servers act on. So the configuration is read by
//! the same code, from the same files and variables; `--store` replaces all stores, and nothing
//! else.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use leaf_core::Layout;
use leaf_node::OpenError;
use leaf_node::config::{Config, ConfigError, Sources};
use leaf_registry::OpenRegistry;

use crate::cli::Place;

/// The command line or the configuration is wrong: exit code 2.
///
/// Such an error is the caller's to correct and never a failure of a store: scripts can tell the
/// two apart.
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

impl From<ConfigError> for BadConfig {
    fn from(error: ConfigError) -> Self {
        Self(error.to_string())
    }
}

/// Reads files, environment and flags. All sections are checked; only the server's secret files,
/// which others may not read, are left alone.
///
/// `--store` also drops `segment.shard`, since the patterns would send tags to stores that the
/// caller did not name.
///
/// # Errors
/// [`BadConfig`] for a file, variable or flag that is wrong, and for more than one `--store`.
pub(crate) fn read(place: &Place) -> Result<Config> {
    let directory = place.data_dir.as_ref().map(|dir| dir.display().to_string());
    let store = match place.store.as_slice() {
        [] => None,
        [store] => Some(store.clone()),
        _ => {
            return Err(
                BadConfig::new("several --store: `leaf doctor` alone compares stores").into()
            );
        }
    };
    let flags = [("data_dir", directory), ("segment.store", store)];
    let flags = flags.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    let sources = Sources { files: place.config.clone(), flags, stores_only: true };
    let loaded = sources.with_default_files().load().map_err(BadConfig::from)?;
    for warning in &loaded.warnings {
        tracing::info!("{warning}");
    }
    let mut config = loaded.config;
    if !place.store.is_empty() {
        config.segment.shard.clear();
    }
    Ok(config)
}

/// The configured registry, and what its nodes are configured with.
///
/// The settings are needed for administration: how long a released worker id must rest depends on
/// how far ahead its holder may have issued ids.
pub(crate) struct Registry {
    pub(crate) open: OpenRegistry,
    /// How ids are composed: a record of another layout is not touched.
    pub(crate) layout: Layout,
    /// How far ahead of its clock a holder's ceiling may be.
    pub(crate) offline_for: Duration,
    /// How often a holder reports: one that did lately is alive.
    pub(crate) report_interval: Duration,
    /// How far ahead of its clock a holder may issue ids.
    pub(crate) tolerance: Duration,
}

impl Registry {
    /// Opens it. A server is not contacted yet.
    ///
    /// # Errors
    /// [`BadConfig`] where there is nothing to administer: the registry keeps its record in
    /// each node's data directory, or the records are in a file that does not exist yet. A file is
    /// never made here; an empty one would look like a registry in which every worker id is free.
    pub(crate) async fn open(config: &Config) -> Result<Self> {
        let snowflake = &config.snowflake;
        let kind = snowflake.registry;
        let place = config.registry_place().map_err(BadConfig::from)?;
        let Some(place) = place else {
            let text = format!(
                "the registry `{kind}` keeps its fence in each node's data directory: there is nothing to \
                 administer here; set snowflake.registry where the nodes use another"
            );
            return Err(BadConfig::new(text).into());
        };
        if let Some(file) = place.file(&config.data_dir)
            && !file.exists()
        {
            let text = format!(
                "{place} does not exist in {}: start leaf-server once, or say --data-dir",
                config.data_dir.display()
            );
            return Err(BadConfig::new(text).into());
        }
        let open =
            leaf_node::registry::open_to_administer(config).await.map_err(|error| match error {
                OpenError::Config(error) => BadConfig::from(error).into(),
                error => anyhow::Error::from(error),
            })?;
        let Some(open) = open else { bail!("the registry `{kind}` has no records to administer") };
        Ok(Self {
            open,
            layout: snowflake.layout(),
            offline_for: snowflake.offline_for.duration(),
            report_interval: snowflake.report_interval.duration(),
            tolerance: snowflake.rollback_tolerance.duration(),
        })
    }
}
