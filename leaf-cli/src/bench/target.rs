//! The server that is measured, the requests to it, and a connection to it.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use hyper::Uri;
use hyper_rustls::ConfigBuilderExt as _;
use leaf_node::config::ConfigError;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::wire::{Failure, Protocol, Wire, broken};
use crate::cli::Bench;
use crate::remote::{self, encoded};

/// Time limit for opening a connection, and for the answer of Redis in [`redis_number`].
const CONNECT: Duration = Duration::from_secs(10);

/// The parts of a server's URL.
struct Url {
    scheme: String,
    authority: String,
    /// Without a slash at its end.
    path: String,
    host: String,
    port: u16,
    is_tls: bool,
}

impl FromStr for Url {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let refuse = || {
            ConfigError::new(
                "give a URL like http://127.0.0.1:8080, https://…, redis://127.0.0.1:6379, rediss://… or \
                 grpc://127.0.0.1:8082, without a user or password: a token is read from LEAF_TOKEN",
            )
        };
        let url: Uri = text.parse().map_err(|_| refuse())?;
        let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(refuse());
        };
        if authority.as_str().contains('@') || url.query().is_some() {
            return Err(refuse());
        }
        let (port, is_tls) = match scheme {
            "http" => (remote::IDS, false),
            "https" => (443, true),
            "redis" => (6379, false),
            "rediss" => (6379, true),
            "grpc" => (8082, false),
            _ => return Err(refuse()),
        };
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(port);
        let (scheme, authority) = (scheme.to_owned(), authority.to_string());
        if !scheme.starts_with("http") && url.path().len() > 1 {
            return Err(ConfigError::new(
                "the URL has a path: there is database 0 of Redis, and no path in gRPC",
            ));
        }
        let path = url.path().trim_end_matches('/').to_owned();
        Ok(Self { scheme, authority, path, host, port, is_tls })
    }
}

/// The number that a key of Redis holds.
///
/// # Errors
/// [`ConfigError`] if the URL is not one of Redis; the server cannot be reached; the key holds no
/// number.
pub(crate) async fn redis_number(url: &str, key: &str, token_file: Option<&Path>) -> Result<u64> {
    let Url { scheme, authority, host, port, is_tls, .. } = url.parse()?;
    if !scheme.starts_with("redis") {
        return Err(ConfigError::new("give a URL like redis://127.0.0.1:6379").into());
    }
    let token = remote::token(token_file)?;
    let greeting = token.as_ref().map(|token| command(&["AUTH", token]));
    let request = command(&["GET", key]).into();
    let asks = Asks::Bytes { protocol: Protocol::Redis, request, greeting };
    let tls = is_tls.then(tls).transpose()?;
    let target = Target { shown: String::new(), host, port, tls, asks, token };
    let hidden = |failure: Failure| target.hide(&failure.to_string());
    let mut connection = Connection::open(&target).await.map_err(|failure| {
        crate::exit::with(crate::exit::UNREACHABLE, anyhow!("{authority}: {}", hidden(failure)))
    })?;
    let answer = tokio::time::timeout(CONNECT, connection.ask()).await;
    let number = answer.map_err(|_| anyhow!("{authority}: no answer within {CONNECT:?}"))?;
    number.map_err(|failure| anyhow!("{authority}: GET of the key: {}", hidden(failure)))
}

/// A server, and how it is asked for an id.
pub(super) struct Target {
    /// The name of the target in the report, like `ids of orders from http://127.0.0.1:8080`.
    pub(super) shown: String,
    host: String,
    port: u16,
    tls: Option<Arc<ClientConfig>>,
    asks: Asks,
    /// The token, to hide it in texts of the server, which may repeat it.
    token: Option<String>,
}

enum Asks {
    /// Sends `request` for each id; a new connection sends `greeting` first.
    Bytes { protocol: Protocol, request: Arc<[u8]>, greeting: Option<Vec<u8>> },
    #[cfg(feature = "grpc")]
    Grpc(super::grpc::Asks),
}

impl std::fmt::Debug for Target {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl Target {
    /// Replaces the token in a server's text by `***`.
    pub(super) fn hide(&self, text: &str) -> String {
        let token = self.token.as_deref().unwrap_or_default();
        if token.is_empty() { text.to_owned() } else { text.replace(token, "***") }
    }

    /// Creates the target from the command line.
    ///
    /// # Errors
    /// [`ConfigError`], which repeats no password.
    pub(super) fn new(bench: &Bench) -> Result<Self> {
        let url: Url = bench.url.parse()?;
        let Url { scheme, authority, path, host, port, is_tls } = url;
        let token = remote::token(bench.token_file.as_deref())?;
        let (tag, hidden) = (bench.of.tag.as_deref(), token.clone());
        let asks = match scheme.as_str() {
            "http" | "https" => {
                let of = match tag {
                    Some(tag) => {
                        format!("/api/segment/get/{}", encoded(tag))
                    }
                    None => "/api/snowflake/get/bench".into(),
                };
                let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
                let request = format!(
                    "GET {path}{of} HTTP/1.1\r\nHost: {authority}\r\n{}\r\n",
                    token.unwrap_or_default()
                );
                Asks::Bytes {
                    protocol: Protocol::Http,
                    request: request.as_bytes().into(),
                    greeting: None,
                }
            }
            "grpc" => grpc(tag, token.as_deref())?,
            _ => {
                let request = match tag {
                    Some(tag) => command(&["INCR", tag]),
                    None => command(&["SNOWFLAKE"]),
                };
                let greeting = token.map(|token| command(&["AUTH", &token]));
                Asks::Bytes { protocol: Protocol::Redis, request: request.into(), greeting }
            }
        };
        let tls = is_tls.then(tls).transpose()?;
        let of = tag.map_or_else(|| "snowflake ids".into(), |tag| format!("ids of {tag}"));
        let shown = format!("{of} from {scheme}://{authority}{path}");
        Ok(Self { shown, host, port, tls, asks, token: hidden })
    }
}

#[cfg(feature = "grpc")]
fn grpc(tag: Option<&str>, token: Option<&str>) -> Result<Asks> {
    Ok(Asks::Grpc(super::grpc::Asks::new(tag, token)?))
}

#[cfg(not(feature = "grpc"))]
fn grpc(_: Option<&str>, _: Option<&str>) -> Result<Asks> {
    Err(ConfigError::new("this leaf was built without the feature grpc").into())
}

/// A command in Redis' protocol.
fn command(words: &[&str]) -> Vec<u8> {
    let each = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), each.collect::<String>()).into_bytes()
}

/// TLS with the certificates that this system trusts.
fn tls() -> Result<Arc<ClientConfig>> {
    let config = ClientConfig::builder()
        .with_native_roots()
        .map_err(|error| ConfigError::new(format!("certificates of this system: {error}")))?;
    Ok(Arc::new(config.with_no_client_auth()))
}

/// A connection on which ids are requested.
pub(super) enum Connection {
    Plain(Wire<TcpStream>),
    Tls(Box<Wire<TlsStream<TcpStream>>>),
    #[cfg(feature = "grpc")]
    Grpc(Box<super::grpc::Connection>),
}

impl Connection {
    /// Opens a connection, and sends the token if it is not part of each request.
    pub(super) async fn open(target: &Target) -> Result<Self, Failure> {
        let opened = tokio::time::timeout(CONNECT, Self::try_open(target)).await;
        opened.unwrap_or_else(|_| Err(Failure::Broken(format!("no connection within {CONNECT:?}"))))
    }

    async fn try_open(target: &Target) -> Result<Self, Failure> {
        let place = (target.host.as_str(), target.port);
        let (protocol, request, greeting) = match &target.asks {
            Asks::Bytes { protocol, request, greeting } => {
                (*protocol, Arc::clone(request), greeting)
            }
            #[cfg(feature = "grpc")]
            Asks::Grpc(asks) => {
                let connection = super::grpc::Connection::open(place, asks).await?;
                return Ok(Self::Grpc(Box::new(connection)));
            }
        };
        let stream = TcpStream::connect(place).await.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        let mut connection = match &target.tls {
            None => Self::Plain(Wire::new(stream, protocol, request)),
            Some(config) => {
                let name = ServerName::try_from(target.host.clone()).map_err(broken)?;
                let connector = TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name, stream).await.map_err(broken)?;
                Self::Tls(Box::new(Wire::new(stream, protocol, request)))
            }
        };
        if let Some(greeting) = greeting {
            match &mut connection {
                Self::Plain(wire) => wire.greet(greeting).await?,
                Self::Tls(wire) => wire.greet(greeting).await?,
                #[cfg(feature = "grpc")]
                Self::Grpc(_) => {}
            }
        }
        Ok(connection)
    }

    /// Asks for an id.
    pub(super) async fn ask(&mut self) -> Result<u64, Failure> {
        match self {
            Self::Plain(wire) => wire.ask().await,
            Self::Tls(wire) => wire.ask().await,
            #[cfg(feature = "grpc")]
            Self::Grpc(connection) => connection.ask().await,
        }
    }

    /// Whether the last answer announced that the server closes the connection.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Plain(wire) => wire.is_over,
            Self::Tls(wire) => wire.is_over,
            #[cfg(feature = "grpc")]
            Self::Grpc(_) => false,
        }
    }
}
