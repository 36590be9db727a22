//! The configuration: one struct per section, each with a written-out default.
//!
//! Defaults < file < environment < flags. A key that is unknown in a file, or in an environment
//! variable that can only be meant for Leaf, is refused with the nearest known one. Other `LEAF_…`
//! variables (Kubernetes makes some for a Service named `leaf`) get one warning.

mod keys;
mod segment;
mod snowflake;
mod span;
mod values;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use leaf_registry::{RegistryOptions, RegistryPlace, RegistryPlaces};
use leaf_snowflake::Identity;
use serde::{Deserialize, Serialize};

use crate::cli::Settings;
pub(crate) use segment::Segment;
pub(crate) use snowflake::{ClockCheck, Snowflake};

/// Everything that can be configured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Config {
    /// The name of the cluster of Leaf nodes, part of paths in ZooKeeper and etcd (Java: leaf.name).
    pub(crate) name: String,
    /// Where state is kept: the SQLite file, the snowflake state file.
    pub(crate) data_dir: PathBuf,
    /// This node's identity to the worker registry, `ip:port`. Default: found from the interfaces.
    pub(crate) advertise: Option<String>,
    /// The interface whose address is the identity: its name, or a network like 10.0.0.0/8.
    pub(crate) advertise_interface: Option<String>,
    /// Time zone of decoded timestamps, an IANA name. Default: the system's.
    pub(crate) time_zone: Option<String>,
    pub(crate) http: Http,
    pub(crate) ops: Ops,
    pub(crate) segment: Segment,
    pub(crate) snowflake: Snowflake,
}

/// The listener for ids.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Http {
    #[serde(deserialize_with = "values::address")]
    pub(crate) listen: SocketAddr,
}

/// The listener for health.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ops {
    #[serde(deserialize_with = "values::address")]
    pub(crate) listen: SocketAddr,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "leaf".into(),
            data_dir: "leaf-data".into(),
            advertise: None,
            advertise_interface: None,
            time_zone: None,
            http: Http::default(),
            ops: Ops::default(),
            segment: Segment::default(),
            snowflake: Snowflake::default(),
        }
    }
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 8080)) }
    }
}

impl Default for Ops {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 8081)) }
    }
}

/// The configuration is wrong: exit code 2.
#[derive(Debug)]
pub(crate) struct ConfigError(String);

impl ConfigError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// A configuration that was read, and what its user should know.
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) warnings: Vec<String>,
}

/// Reads all sources.
pub(crate) fn load(flags: &Settings) -> Result<Loaded, ConfigError> {
    let default_file = Path::new("leaf.toml");
    let file = match &flags.config {
        Some(file) => Some(file.as_path()),
        None => default_file.exists().then_some(default_file),
    };
    let file = file.map(read_file).transpose()?;
    merge(file, environment()?, flags)
}

/// The variables that may be meant for Leaf.
fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let ours = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.to_owned();
        name.starts_with("LEAF_").then_some((name, value))
    });
    ours.map(|(name, value)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(ConfigError(format!("{name} is not UTF-8"))),
    })
    .collect()
}

/// A file whose syntax is right.
struct FileText {
    text: String,
    table: toml::Table,
}

impl FileText {
    fn parse(text: String, path: &Path) -> Result<Self, ConfigError> {
        match text.parse() {
            Ok(table) => Ok(Self { text, table }),
            Err(error) => {
                let error: toml::de::Error = error;
                // The error's own text quotes the line, which may hold a password.
                let before = error.span().and_then(|span| text.get(..span.start));
                let line = before.unwrap_or_default().matches('\n').count() + 1;
                let text = format!("{}, line {line}: {}", path.display(), error.message());
                Err(ConfigError(text))
            }
        }
    }
}

fn read_file(path: &Path) -> Result<FileText, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError(format!("read {}: {error}", path.display())))?;
    FileText::parse(text, path)
}

fn merge(
    file: Option<FileText>,
    environment: Vec<(String, String)>,
    flags: &Settings,
) -> Result<Loaded, ConfigError> {
    let known = keys::Known::of(&Config::default());
    let mut builder = config::Config::builder().add_source(defaults()?);
    if let Some(FileText { text, table }) = file {
        known.check_table(&table)?;
        builder = builder.add_source(config::File::from_str(&text, config::FileFormat::Toml));
    }
    let keys::Environment { mut settings, warnings } = known.sort_environment(environment)?;
    let flags = [
        ("data_dir", flags.data_dir.as_ref().map(|dir| dir.display().to_string())),
        ("advertise", flags.advertise.clone()),
        ("http.listen", flags.http_listen.map(|address| address.to_string())),
        ("ops.listen", flags.ops_listen.map(|address| address.to_string())),
        ("segment.store", flags.segment_store.clone()),
        ("snowflake.worker_id", flags.worker_id.map(|id| id.to_string())),
    ];
    settings.extend(flags.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    let mut config =
        deserialize(builder, settings).map_err(|error| ConfigError(describe(&error)))?;
    config.segment.read_files()?;
    config.snowflake.read_files()?;
    config.check()?;
    Ok(Loaded { config, warnings })
}

fn deserialize(
    mut builder: config::ConfigBuilder<config::builder::DefaultState>,
    settings: Vec<(String, String)>,
) -> Result<Config, config::ConfigError> {
    for (key, value) in settings {
        builder = builder.set_override(key, value)?;
    }
    builder.build()?.try_deserialize()
}

fn defaults() -> Result<config::Config, ConfigError> {
    let values = config::Config::try_from(&Config::default());
    values.map_err(|error| ConfigError(error.to_string()))
}

/// The error with the key first, and without the value, which may be a secret at a wrong place.
fn describe(error: &config::ConfigError) -> String {
    match error {
        config::ConfigError::At { error, key: Some(key), .. } => match &**error {
            config::ConfigError::Type { expected, .. } => format!("{key}: expected {expected}"),
            error => format!("{key}: {}", without_value(&error.to_string())),
        },
        config::ConfigError::Type { expected, key: Some(key), .. } => {
            format!("{key}: expected {expected}")
        }
        error => without_value(&error.to_string()),
    }
}

/// What serde says of a value inside a list: `invalid type: string "…", expected a sequence`.
fn without_value(error: &str) -> String {
    let quotes = ["invalid type: ", "invalid value: ", "unknown field "];
    match error.split_once(", expected ") {
        Some((before, expected)) if quotes.iter().any(|quote| before.starts_with(quote)) => {
            format!("expected {expected}")
        }
        _ => error.into(),
    }
}

impl Config {
    fn check(&self) -> Result<(), ConfigError> {
        let refuse = |text: String| Err(ConfigError(text));
        let snowflake = &self.snowflake;
        if self.data_dir.as_os_str().is_empty() {
            return refuse(
                "data_dir is empty: give a directory, `.` for the working directory".into(),
            );
        }
        if !self.segment.enabled && !snowflake.enabled {
            return refuse(
                "segment.enabled and snowflake.enabled are both false: nothing to serve".into(),
            );
        }
        if let Some(name) = &self.time_zone
            && jiff::tz::TimeZone::get(name).is_err()
        {
            return refuse("time_zone is unknown: give an IANA name like Asia/Shanghai".into());
        }
        if let Some(Err(error)) = self.advertise.as_deref().map(Identity::parse) {
            return refuse(format!("advertise: {error}"));
        }
        if let Err(error) = RegistryOptions::check_name(&self.name) {
            return refuse(format!("name: {error}"));
        }
        self.segment.check()?;
        snowflake.check(self.advertise.as_deref())?;
        if snowflake.enabled {
            self.registry_place()?;
        }
        Ok(())
    }

    /// Where the worker ids are kept; `None` for those that need no place.
    pub(crate) fn registry_place(&self) -> Result<Option<RegistryPlace>, ConfigError> {
        let places = RegistryPlaces {
            zookeeper: self.snowflake.zookeeper.clone(),
            database: self.snowflake.database.clone(),
            etcd: self.snowflake.etcd.clone(),
            segment_store: Some(self.segment.store.clone()),
        };
        places.of(self.snowflake.registry).map_err(|error| ConfigError(error.to_string()))
    }
}

#[cfg(test)]
mod tests;
