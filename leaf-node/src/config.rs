//! The configuration: one struct per section, each with a written-out default.
//!
//! An error is one line that names the key, the value and where it was set; a value that may hold a
//! secret is never repeated.
//!
//! `Sources::load` (with the feature `server-config`) merges all sources, and the files of secrets
//! that keys name, into a [`Config`] and checks it. [`Leaf::open`](crate::Leaf::open) checks a
//! `Config` that a program makes itself. Some bounds of snowflake mode are checked only when the
//! node is opened.

#[cfg(feature = "server-config")]
mod keys;
mod listeners;
#[cfg(feature = "server-config")]
mod properties;
mod segment;
mod snowflake;
#[cfg(feature = "server-config")]
mod sources;
mod span;
pub(crate) mod values;

use std::path::{Path, PathBuf};

use leaf_registry::{RegistryKind, RegistryOptions, RegistryUrl};
use leaf_snowflake::Identity;
use serde::{Deserialize, Serialize};

pub use listeners::{Grpc, Http, Log, LogFormat, Ops, Redis, Secret, Tls, TlsMode};
pub use segment::{Segment, Shard};
pub use snowflake::{ClockCheck, Snowflake};
#[cfg(feature = "server-config")]
pub use sources::{Loaded, Sources};
pub use span::Span;

/// Everything that can be configured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The name of the cluster of Leaf nodes, part of paths in ZooKeeper and etcd (Java:
    /// leaf.name). Nodes of different names know nothing of each other, even in one registry.
    pub name: String,
    /// The directory for state: SQLite files, the snowflake state file, the marks of the regression
    /// guard. Each node needs its own; the state file is locked.
    pub data_dir: PathBuf,
    /// This node's identity in the worker registry, `ip:port`. Default: found from
    /// `advertise_interface`, `http.listen` and `advertise_guess`.
    pub advertise: Option<String>,
    /// The interface whose address is the identity: its name, or a network like 10.0.0.0/8.
    pub advertise_interface: Option<String>,
    /// Which address becomes the identity if neither `advertise`, `advertise_interface` nor
    /// `http.listen` gives one: `first`, or `java` for the one that a Java Leaf takes.
    pub advertise_guess: Guess,
    /// The port of the identity if `advertise` is not set. Default: the port of `http.listen`.
    pub advertise_port: Option<u16>,
    /// How long a stop waits for requests under way, and then for the registry and the store; 0 s
    /// to 1 h. What is not given back in time costs ids, never uniqueness.
    pub stop_grace: Span,
    /// How long a stop reports that this node is not ready before it ends anything, so that load
    /// balancers can notice the stop; 0 s to 10 min.
    pub stop_delay: Span,
    /// The zone of this node's data centre, for clients that prefer nodes in their own zone. 1 to
    /// 64 letters, digits, `-`, `_` and `.`.
    pub zone: Option<String>,
    /// This node's share of the requests of clients that choose among nodes, relative to the
    /// weights of the other nodes; 0 to 1000, default 100. 0: no requests, as long as another node
    /// answers.
    pub weight: u32,
    /// Time zone of decoded timestamps, an IANA name. Default: the system's.
    pub time_zone: Option<String>,
    /// A file with the names of callers, the hashes of their tokens, and their roles. Without this
    /// file ids are open to everybody.
    pub tokens_file: Option<PathBuf>,
    /// The listener for ids.
    pub http: Http,
    /// The listener for ids over the Redis protocol.
    pub redis: Redis,
    /// The listener for ids over gRPC.
    pub grpc: Grpc,
    /// The listener for health and administration.
    pub ops: Ops,
    /// TLS of the listeners.
    pub tls: Tls,
    /// The log.
    pub log: Log,
    /// Segment mode.
    pub segment: Segment,
    /// Snowflake mode.
    pub snowflake: Snowflake,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "leaf".into(),
            data_dir: "leaf-data".into(),
            advertise: None,
            advertise_interface: None,
            advertise_guess: Guess::First,
            advertise_port: None,
            stop_grace: Span::from_secs(10),
            stop_delay: Span::from_secs(0),
            zone: None,
            weight: 100,
            time_zone: None,
            tokens_file: None,
            http: Http::default(),
            redis: Redis::default(),
            grpc: Grpc::default(),
            ops: Ops::default(),
            tls: Tls::default(),
            log: Log::default(),
            segment: Segment::default(),
            snowflake: Snowflake::default(),
        }
    }
}

/// The rule by which an address of an interface becomes the identity if none is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Guess {
    /// The first address that is neither loopback nor link-local, IPv4 before IPv6.
    First,
    /// The last IPv4 address that is not loopback: Java lists the interfaces the other way round,
    /// and a Java Leaf takes the first of its list.
    Java,
}

/// An error in the configuration or the command line, which the caller can correct: exit code 2. A
/// failure of a store is never a `ConfigError`, so that scripts can tell the two apart.
///
/// The text names the key or the flag and never holds a secret, so that it can be logged.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// An error of this text, which names the key and no secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl Config {
    /// The keys outside of all sections whose changes need no restart.
    pub const LIVE: &[&str] = &["tokens_file", "weight"];

    /// The file of callers and their tokens; `None` if the key is not set, or is empty.
    #[must_use]
    pub fn tokens_file(&self) -> Option<&Path> {
        self.tokens_file.as_deref().filter(|file| !file.as_os_str().is_empty())
    }

    /// The key and the value of `tls` of each listener, also if it is `off`.
    #[must_use]
    pub fn tls_modes(&self) -> [(&'static str, TlsMode); 4] {
        [
            ("http.tls", self.http.tls),
            ("redis.tls", self.redis.tls),
            ("grpc.tls", self.grpc.tls),
            ("ops.tls", self.ops.tls),
        ]
    }

    /// Refuses TLS without a certificate, and files that no listener needs.
    fn check_tls(&self) -> Result<(), ConfigError> {
        let Tls { certificate, key, client_ca } = &self.tls;
        let on = self.tls_modes().into_iter().find(|(_, mode)| *mode != TlsMode::Off);
        match on {
            Some((name, _)) if certificate.is_none() || key.is_none() => {
                Err(ConfigError(format!("{name}: set tls.certificate and tls.key, or `off`")))
            }
            None if certificate.is_some() || key.is_some() || client_ca.is_some() => {
                Err(ConfigError(
                    "tls: no listener uses it: set http.tls, redis.tls, grpc.tls or ops.tls".into(),
                ))
            }
            _ => Ok(()),
        }
    }

    /// A configuration in which every optional number has a value, so that the types of all numbers
    /// can be read from it.
    #[cfg(feature = "server-config")]
    fn example() -> Self {
        let mut example = Self { advertise_port: Some(0), ..Self::default() };
        example.snowflake.datacenter_id = Some(0);
        example.snowflake.epoch = Some(0);
        example
    }

    /// Refuses a configuration with which no node should run. Every section checks its own bounds;
    /// the other checks here concern keys of several sections, or of none.
    ///
    /// # Errors
    /// Names the key that is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
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
        if let Some(zone) = &self.zone {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if !(1..=64).contains(&zone.len()) || !zone.bytes().all(plain) {
                return refuse("zone: give 1 to 64 letters, digits, `-`, `_` and `.`".into());
            }
        }
        if self.weight > 1000 {
            return refuse("weight: give 0 to 1000".into());
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
        if self.advertise_port == Some(0) {
            return refuse("advertise_port: give 1 to 65535".into());
        }
        self.stop_grace.check_bounds("stop_grace", 0, 3_600_000)?;
        self.stop_delay.check_bounds("stop_delay", 0, 600_000)?;
        self.http.check()?;
        self.redis.check()?;
        self.grpc.check()?;
        self.ops.check()?;
        self.check_tls()?;
        if self.ops.token.is_some() && self.ops.token == self.redis.password {
            return refuse("ops.token and redis.password are the same: give each its own".into());
        }
        #[cfg(feature = "server-config")]
        self.log.filter()?;
        self.segment.check()?;
        snowflake.check(self.advertise.as_deref())?;
        if snowflake.enabled {
            self.check_registry()?;
        }
        Ok(())
    }

    /// The URL of the registry of worker ids: `snowflake.registry`, with `segment.store` in place
    /// of the word `store`.
    #[must_use]
    pub fn registry(&self) -> RegistryUrl {
        self.snowflake.registry.clone().in_store(&self.segment.store)
    }

    /// Refuses a registry in an SQLite file with a relative path: each process of the host would
    /// have its own file.
    fn check_registry(&self) -> Result<(), ConfigError> {
        let registry = self.registry();
        let file = registry.file(Path::new(""));
        let is_ordinal = registry.kind() == RegistryKind::Ordinal;
        if !is_ordinal && file.is_some_and(|file| file.is_relative()) {
            return Err(ConfigError::new(
                "snowflake.registry: the processes of a host share the file, and a relative path is in the data \
                 directory, of which each has its own, so that all would get one worker id: give an absolute path, \
                 like sqlite:/var/lib/leaf/workers.db; a single process needs no registry but `local`",
            ));
        }
        Ok(())
    }
}
