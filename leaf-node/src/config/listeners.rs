//! The sections `http`, `redis`, `grpc`, `ops`, `tls` and `log`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};

use super::{ConfigError, values};

/// The listener for ids.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Http {
    /// The address to listen on. Default 127.0.0.1:8080; with a `leaf.properties` 0.0.0.0:8080, as
    /// in the Java program.
    #[serde(deserialize_with = "values::address")]
    pub listen: SocketAddr,
    /// How many threads answer requests for ids; 0 to 1024. 0, the default, is one per processor.
    pub threads: u32,
    /// The most connections at a time, 1 to 1,000,000; default 10,000. If all are in use, one that
    /// was silent for a while is closed; if there is none, new connections wait to be accepted.
    pub max_connections: u32,
    /// The most ids that one request of `/v1` takes, 1 to 1,000,000; default 1000.
    pub max_count: u32,
    /// The most requests that wait for ids at a time, 1 to 1,000,000; default 10,000. Further ones
    /// are answered 503 at once, which costs a balancer less than a timeout.
    pub max_waiting: u32,
    /// Whether connections are encrypted.
    pub tls: TlsMode,
}

/// The listener for ids over the Redis protocol.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Redis {
    /// The address to listen on; `off` for none. Default [`Self::LISTEN`].
    #[serde(with = "values::address_or_off")]
    pub listen: Option<SocketAddr>,
    /// The most connections at a time.
    pub max_connections: u32,
    /// The password that clients must send with `AUTH`, 16 to 1024 printable ASCII characters. If
    /// it is not set, clients need no password.
    pub password: Option<Secret>,
    /// A file that holds `password`.
    pub password_file: Option<PathBuf>,
    /// Whether connections are encrypted.
    pub tls: TlsMode,
}

/// The listener for ids over gRPC.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Grpc {
    /// The address to listen on; `off`, the default, for none.
    #[serde(with = "values::address_or_off")]
    pub listen: Option<SocketAddr>,
    /// The most connections at a time.
    pub max_connections: u32,
    /// Whether connections are encrypted.
    pub tls: TlsMode,
}

/// The listener for health and administration.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Ops {
    /// The address to listen on. Default 127.0.0.1:8081. The ops listener never shares the address
    /// of the listener for ids, so that clients that fetch ids cannot reach the requests that
    /// change tags.
    #[serde(deserialize_with = "values::address")]
    pub listen: SocketAddr,
    /// The token that a caller must show to administer, as `Authorization: Bearer TOKEN`. Needed
    /// unless the listener is on loopback or `tokens_file` is set.
    ///
    /// 16 to 1024 printable ASCII characters.
    pub token: Option<Secret>,
    /// A file that holds `token`.
    pub token_file: Option<PathBuf>,
    /// Whether connections are encrypted.
    pub tls: TlsMode,
}

/// Whether the connections of a listener are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// No connection is encrypted.
    #[default]
    Off,
    /// The client decides for each connection: for a cluster whose clients change over one by one.
    Optional,
    /// All connections are encrypted.
    Required,
}

/// The server's certificate, and which certificates clients must show, on listeners that encrypt.
/// The files are read again while the server runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tls {
    /// A file with the server's certificate and the intermediate certificates up to its authority:
    /// PEM.
    pub certificate: Option<PathBuf>,
    /// A file with the certificate's private key: PEM.
    pub key: Option<PathBuf>,
    /// A file with authorities: PEM. A client's certificate must be from one of them. Without this
    /// file clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// The settings of the log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Log {
    /// A level, or directives like `info,leaf_segment=debug`.
    pub level: String,
    /// `text` or `json`.
    pub format: LogFormat,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// A text that is never shown.
///
/// Neither `Debug` nor `Serialize` shows it: both write `***`. So a whole configuration can be
/// printed.
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
            tls: TlsMode::Off,
        }
    }
}

impl Redis {
    /// The keys of this section whose changes need no restart.
    pub const LIVE: &[&str] = &["redis.max_connections", "redis.password", "redis.password_file"];

    /// The default of `listen`. Another server on this machine may already use this address.
    pub const LISTEN: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 6380);

    /// Refuses numbers out of bounds and a password that is too short to protect anything.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_bounds("redis.max_connections", self.max_connections, 1, 1_000_000)?;
        check_secret("redis.password", self.password.as_ref())
    }
}

impl Default for Redis {
    fn default() -> Self {
        Self {
            listen: Some(Self::LISTEN),
            max_connections: 10_000,
            password: None,
            password_file: None,
            tls: TlsMode::Off,
        }
    }
}

impl Grpc {
    /// The keys of this section whose changes need no restart.
    pub const LIVE: &[&str] = &["grpc.max_connections"];

    /// Refuses numbers out of bounds.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_bounds("grpc.max_connections", self.max_connections, 1, 1_000_000)
    }
}

impl Default for Grpc {
    fn default() -> Self {
        Self { listen: None, max_connections: 10_000, tls: TlsMode::Off }
    }
}

impl Default for Ops {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8081)),
            token: None,
            token_file: None,
            tls: TlsMode::Off,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Text }
    }
}

impl Http {
    /// The keys of this section whose changes need no restart.
    pub const LIVE: &[&str] = &["http.max_connections", "http.max_count", "http.max_waiting"];

    /// Refuses numbers out of bounds.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let bounds = [
            ("http.threads", self.threads, 0, 1024),
            ("http.max_connections", self.max_connections, 1, 1_000_000),
            ("http.max_count", self.max_count, 1, 1_000_000),
            ("http.max_waiting", self.max_waiting, 1, 1_000_000),
        ];
        for (key, value, least, most) in bounds {
            check_bounds(key, value, least, most)?;
        }
        Ok(())
    }
}

/// Refuses a number outside of `least` to `most`, both included.
fn check_bounds(key: &str, value: u32, least: u32, most: u32) -> Result<(), ConfigError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(ConfigError::new(format!("{key}: give {least} to {most}"))),
    }
}

impl Ops {
    /// The keys of this section whose changes need no restart.
    pub const LIVE: &[&str] = &["ops.token", "ops.token_file"];

    /// Refuses a token that could be guessed. Whether a token is needed depends on the listener's
    /// address, which the server knows only after binding it.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check_secret("ops.token", self.token.as_ref())
    }
}

/// Refuses a secret that is short enough to be guessed, or whose characters a header or a command
/// could not carry.
fn check_secret(key: &str, secret: Option<&Secret>) -> Result<(), ConfigError> {
    let fits = |secret: &Secret| {
        (16..=1024).contains(&secret.0.len()) && secret.0.bytes().all(|c| c.is_ascii_graphic())
    };
    match secret.is_none_or(fits) {
        true => Ok(()),
        false => Err(ConfigError::new(format!(
            "{key}: give 16 to 1024 printable ASCII characters, no space"
        ))),
    }
}

impl Log {
    /// The keys of this section whose changes need no restart.
    pub const LIVE: &[&str] = &["log.level"];

    /// The filter of `level`.
    ///
    /// # Errors
    /// `level` is neither a level nor a list of directives.
    #[cfg(feature = "server-config")]
    pub fn filter(&self) -> Result<tracing_subscriber::EnvFilter, ConfigError> {
        // The ZooKeeper client logs every connection, and h2 every client that misbehaves. Only
        // their errors are logged: Leaf itself logs the consequences.
        let quiet = ["zookeeper_client", "h2"]
            .iter()
            .filter(|module| !self.level.contains(*module))
            .fold(self.level.clone(), |all, module| format!("{all},{module}=error"));
        // A word that is no level would be taken for the name of a module, and switch everything
        // off.
        let plain = self.level.split(',').filter(|part| !part.contains('='));
        let levels = ["off", "error", "warn", "info", "debug", "trace"];
        let known = plain.into_iter().all(|part| levels.contains(&part.trim()));
        tracing_subscriber::EnvFilter::builder().parse(quiet).ok().filter(|_| known).ok_or_else(|| {
            ConfigError::new(
                "log.level: give error, warn, info, debug, trace or off, also by module: info,leaf_segment=debug",
            )
        })
    }
}
