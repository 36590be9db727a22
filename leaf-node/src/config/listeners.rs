//! The sections `http`, `ops` and `log`.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tracing_subscriber::EnvFilter;

use super::{ConfigError, values};

/// The listener for ids.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Http {
    /// Its address.
    #[serde(deserialize_with = "values::address")]
    pub listen: SocketAddr,
    /// How many threads answer requests for ids; 0 is one per processor.
    #[serde(deserialize_with = "values::whole_number")]
    pub threads: u32,
    /// The most connections at a time.
    #[serde(deserialize_with = "values::whole_number")]
    pub max_connections: u32,
    /// The most ids that one request of `/v1` takes.
    #[serde(deserialize_with = "values::whole_number")]
    pub max_count: u32,
    /// The most requests that wait for ids at a time; more are answered 503 at once.
    #[serde(deserialize_with = "values::whole_number")]
    pub max_waiting: u32,
}

/// The listener for health and administration.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Ops {
    /// Its address.
    #[serde(deserialize_with = "values::address")]
    pub listen: SocketAddr,
    /// What administration must show, as `Authorization: Bearer TOKEN`. Needed unless the listener is on
    /// loopback.
    pub token: Option<Secret>,
    /// A file that holds it.
    pub token_file: Option<PathBuf>,
}

/// What is logged, and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Log {
    /// A level, or directives like `info,leaf_segment=debug`.
    pub level: String,
    /// `text` or `json`.
    pub format: LogFormat,
}

/// How a line of the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl<'de> Deserialize<'de> for LogFormat {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match String::deserialize(from)?.as_str() {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(serde::de::Error::custom("give text or json")),
        }
    }
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str("***")
    }
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            threads: 0,
            max_connections: 10_000,
            max_count: 1000,
            max_waiting: 10_000,
        }
    }
}

impl Default for Ops {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 8081)), token: None, token_file: None }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Text }
    }
}

impl Http {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let bounds = [
            ("threads", self.threads, 0, 1024),
            ("max_connections", self.max_connections, 1, 1_000_000),
            ("max_count", self.max_count, 1, 1_000_000),
            ("max_waiting", self.max_waiting, 1, 1_000_000),
        ];
        for (key, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return Err(ConfigError::new(format!("http.{key}: give {least} to {most}")));
            }
        }
        Ok(())
    }
}

impl Ops {
    /// Reads what is kept in files.
    pub(super) fn read_files(&mut self) -> Result<(), ConfigError> {
        if let Some(file) = self.token_file.as_ref().filter(|file| !file.as_os_str().is_empty()) {
            self.token = Some(read_token(file)?);
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let fits = |token: &Secret| {
            (16..=1024).contains(&token.0.len()) && token.0.bytes().all(|c| c.is_ascii_graphic())
        };
        if self.token.as_ref().is_none_or(fits) {
            return Ok(());
        }
        Err(ConfigError::new("ops.token: give 16 to 1024 printable ASCII characters, no space"))
    }
}

fn read_token(file: &Path) -> Result<Secret, ConfigError> {
    let text = leaf_registry::read_secret(file);
    text.map(Secret).map_err(|error| ConfigError::new(format!("ops.token_file: {error}")))
}

impl Log {
    /// The filter of `level`.
    ///
    /// # Errors
    /// Where it is neither a level nor directives.
    pub fn filter(&self) -> Result<EnvFilter, ConfigError> {
        // The ZooKeeper client tells of every connection, h2 of every client that misbehaves: what becomes of
        // these we tell ourselves.
        let quiet = ["zookeeper_client", "h2"]
            .iter()
            .filter(|module| !self.level.contains(*module))
            .fold(self.level.clone(), |all, module| format!("{all},{module}=error"));
        // A word that is no level would be taken for the name of a module, and switch everything off.
        let plain = self.level.split(',').filter(|part| !part.contains('='));
        let levels = ["off", "error", "warn", "info", "debug", "trace"];
        let known = plain.into_iter().all(|part| levels.contains(&part.trim()));
        EnvFilter::builder().parse(quiet).ok().filter(|_| known).ok_or_else(|| {
            ConfigError::new(
                "log.level: give error, warn, info, debug, trace or off, also by module: info,leaf_segment=debug",
            )
        })
    }
}
