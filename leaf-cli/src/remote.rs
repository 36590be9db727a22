//! Requests to servers, and the choice of the servers and the token.
//!
//! Invariant: a token is sent to the servers that were named and to nobody else, and is never in an
//! argument, an error or a log. No redirect is followed.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use leaf_node::config::ConfigError;
use leaf_segment::admin::TagAdminError;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::Servers;
use crate::exit;

/// Time limit for the answer to a read; [`PATIENCE_WITH_CHANGES`] is that for a change. Both are
/// longer than a server itself waits for its stores.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_WITH_CHANGES: Duration = Duration::from_secs(25);
/// The time limit for opening a connection. A request whose connection was not opened has not
/// reached the server.
const CONNECT: Duration = Duration::from_secs(3);
/// The largest answer that is read, in bytes.
const LARGEST: usize = 16 * 1024 * 1024;

const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The port of ids where a URL names none.
pub(crate) const IDS: u16 = 8080;
/// The port of health and administration where a URL names none.
pub(crate) const OPS: u16 = 8081;

/// Sends requests to servers, with the token.
pub(crate) struct Asking {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    token: Option<HeaderValue>,
}

/// A server's error response (RFC 9457).
#[derive(serde::Deserialize)]
struct Problem {
    #[serde(default)]
    r#type: String,
    detail: String,
}

/// Why a request failed.
struct Refused {
    error: anyhow::Error,
    /// No connection was made, so the server has certainly done nothing.
    is_unreached: bool,
}

impl<E: Into<anyhow::Error>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self { error: error.into(), is_unreached: false }
    }
}

/// Where a server's error text begins to explain its HTTP parameters. From there on the text is cut
/// off, since `leaf` has options instead.
const OF_HTTP: [&str; 2] = [". To delete it,", "; set `"];

impl Asking {
    /// Reads the token, if there is one.
    ///
    /// # Errors
    /// [`ConfigError`]: the token's file cannot be read, or holds no token.
    pub(crate) fn new(servers: &Servers) -> Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT));
        let connector = HttpsConnectorBuilder::new()
            .with_native_roots()
            .map_err(|error| ConfigError::new(format!("certificates of this system: {error}")))?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let token = token(servers.token_file.as_deref())?.map(|token| {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            // The error must not repeat it.
            let mut value =
                value.map_err(|_| ConfigError::new("the token has characters that none has"))?;
            value.set_sensitive(true);
            Ok::<_, ConfigError>(value)
        });
        Ok(Self {
            // No connection is kept while somebody thinks about a question: servers end those that are idle.
            client: Client::builder(TokioExecutor::new())
                .pool_max_idle_per_host(0)
                .build(connector),
            token: token.transpose()?,
        })
    }

    /// Sends a `GET` request, and parses the JSON answer.
    ///
    /// # Errors
    /// The server does not answer, or refuses the request; the exit code depends on which.
    pub(crate) async fn get<T: DeserializeOwned>(&self, server: &Uri, path: &str) -> Result<T> {
        self.ask(Method::GET, server, path, None).await.map_err(|refused| refused.error)
    }

    /// Sends a `POST` request with a JSON body, and parses the JSON answer.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        server: &Uri,
        path: &str,
        body: &Value,
    ) -> Result<T> {
        self.ask(Method::POST, server, path, Some(body)).await.map_err(|refused| refused.error)
    }

    /// Sends a request to the servers in turn, and returns the first answer. A change goes to the
    /// next server only if the one before was not reached.
    ///
    /// # Errors
    /// No server can be reached; else as [`Self::get`].
    pub(crate) async fn first<T: DeserializeOwned>(
        &self,
        servers: &[Uri],
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T> {
        let mut why = None;
        for server in servers {
            match self.ask(method.clone(), server, path, body).await {
                Ok(answer) => return Ok(answer),
                Err(Refused { error, is_unreached }) => {
                    // Another server is asked only if this one was never reached, or if the request only reads.
                    let is_away = exit::code(&error) == exit::UNREACHABLE;
                    let may_ask_another = is_unreached || (is_away && method == Method::GET);
                    if !may_ask_another {
                        return Err(error);
                    }
                    why.get_or_insert(error);
                }
            }
        }
        Err(why.unwrap_or_else(|| anyhow!("no server is named")))
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        server: &Uri,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Refused> {
        let changes = method != Method::GET;
        let (status, body) = self.send(method, server, path, body).await?;
        if !status.is_success() {
            return Err(refusal(server, status, &body).into());
        }
        let answer = serde_json::from_slice(&body).with_context(|| match changes {
            true => format!("{server}: it was done, but this version cannot read the answer"),
            false => format!("{server}: the answer is none of leaf-server: is the URL right?"),
        });
        Ok(answer?)
    }

    /// Sends a request over a new connection, and returns the answer's status and body.
    async fn send(
        &self,
        method: Method,
        server: &Uri,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Bytes), Refused> {
        let authority = server.authority().map_or("", |authority| authority.as_str());
        let prefix = server.path().trim_end_matches('/');
        let url = format!("{}://{authority}{prefix}{path}", server.scheme_str().unwrap_or("http"));
        let changes = method != Method::GET;
        let patience = if changes { PATIENCE_WITH_CHANGES } else { PATIENCE };
        let mut request =
            Request::builder().method(method).uri(url).header(ACCEPT, "application/json");
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request
            .body(Full::from(body.map(Value::to_string).unwrap_or_default()))
            .context(format!("{server}"))?;
        let answer = async {
            let answer = self.client.request(request).await;
            let answer = answer.map_err(|error| Refused {
                is_unreached: error.is_connect(),
                error: error.into(),
            })?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), LARGEST).collect().await;
            Ok::<_, Refused>((status, body.map_err(|error| anyhow!(error))?.to_bytes()))
        };
        let answer = tokio::time::timeout(patience, answer).await;
        let answer =
            answer.unwrap_or_else(|_| Err(anyhow!("no answer within {patience:?}").into()));
        answer.map_err(|Refused { mut error, is_unreached }| {
            if changes && !is_unreached {
                error = anyhow!("{error:#}; it may have been done all the same: look again");
            }
            let error = exit::with(exit::UNREACHABLE, error.context(format!("{server}")));
            Refused { error, is_unreached }
        })
    }
}

/// Converts an error response into an error with the matching exit code.
fn refusal(server: &Uri, status: StatusCode, body: &[u8]) -> anyhow::Error {
    let problem: Option<Problem> = serde_json::from_slice(body).ok();
    let word = problem.as_ref().and_then(|problem| problem.r#type.rsplit(':').next());
    let is = |wanted: &str| word == Some(wanted);
    let (is_unconfirmed, is_conflict) = (is("unconfirmed"), is("conflict"));
    // As on the store itself: it answered, and more is to be done.
    let is_half_done = is("half-deleted") || is("unclear");
    let told = problem.map(|problem| problem.detail);
    let told = told.unwrap_or_else(|| format!("{status}: is it a listener of leaf-server?"));
    if is_unconfirmed {
        let why = OF_HTTP.iter().find_map(|of| Some(told.split_once(of)?.0));
        let why = why.unwrap_or(&told).to_owned();
        return TagAdminError::Unconfirmed(why).into();
    }
    let hint = match status {
        StatusCode::UNAUTHORIZED => "; give the token in LEAF_TOKEN, or by --token-file",
        _ => "",
    };
    let code = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => exit::NOT_PERMITTED,
        StatusCode::NOT_FOUND => exit::NOT_FOUND,
        StatusCode::BAD_REQUEST
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::URI_TOO_LONG
        | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => exit::USAGE,
        _ if is_conflict => exit::USAGE,
        _ if is_half_done => exit::FAILED,
        StatusCode::SERVICE_UNAVAILABLE => exit::UNREACHABLE,
        _ => exit::FAILED,
    };
    exit::with(code, anyhow!("{server}: {told}{hint}"))
}

/// Escapes a word for a path or a query: all characters but the unreserved ones (RFC 3986, section
/// 2.3).
pub(crate) fn encoded(word: &str) -> impl std::fmt::Display {
    utf8_percent_encode(word, ESCAPED)
}

/// Reads the token from the file or, without a file, from LEAF_TOKEN; `None` if that is empty or
/// not set.
///
/// # Errors
/// The file cannot be read, or the token has characters that no token may have. The error does not
/// contain the token.
pub(crate) fn token(file: Option<&Path>) -> Result<Option<String>, ConfigError> {
    let token = match file {
        Some(file) => Some(read_token(file)?),
        None => std::env::var("LEAF_TOKEN").ok().map(|token| token.trim().to_owned()),
    };
    let token = token.filter(|token| !token.is_empty());
    if token.iter().any(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(ConfigError::new("the token has characters that none has"));
    }
    Ok(token)
}

/// Reads the token from a file: the first word in it.
fn read_token(file: &Path) -> Result<String, ConfigError> {
    let refuse = |why: &dyn std::fmt::Display| {
        ConfigError::new(format!("--token-file: {}: {why}", file.display()))
    };
    let text = std::fs::read_to_string(file).map_err(|error| refuse(&error))?;
    let token = text.split_whitespace().next().ok_or_else(|| refuse(&"it is empty"))?;
    Ok(token.to_owned())
}

/// The URLs of the servers that the options or LEAF_SERVER name, else that of this host. `port` is
/// added to a URL without a port.
///
/// # Errors
/// [`ConfigError`]: one of the names is not a URL. The text contains no password.
pub(crate) fn named(servers: &Servers, port: u16) -> Result<Vec<Uri>, ConfigError> {
    let mut named = servers.server.clone();
    if named.is_empty() {
        named = of_environment();
    }
    if named.is_empty() {
        named.push("http://127.0.0.1".into());
    }
    named.iter().map(|server| read_url(server, port)).collect()
}

/// The servers that LEAF_SERVER names.
pub(crate) fn of_environment() -> Vec<String> {
    let named = std::env::var("LEAF_SERVER").unwrap_or_default();
    let each = named.split(',').map(str::trim);
    each.filter(|server| !server.is_empty()).map(String::from).collect()
}

fn read_url(text: &str, port: u16) -> Result<Uri, ConfigError> {
    let refuse = || {
        ConfigError::new(
            "--server, LEAF_SERVER: give URLs like http://127.0.0.1 or https://id-1.internal:8443, without a user",
        )
    };
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url: Uri = full.parse().map_err(|_| refuse())?;
    let scheme = url.scheme_str().filter(|scheme| ["http", "https"].contains(scheme));
    let (Some(scheme), Some(authority)) = (scheme, url.authority()) else { return Err(refuse()) };
    if authority.as_str().contains('@') || url.query().is_some() {
        return Err(refuse());
    }
    let host = authority.host();
    let port = match authority.as_str().strip_prefix(host).unwrap_or_default() {
        "" => port,
        // One that is none must not become another one.
        _ => authority.port_u16().ok_or_else(refuse)?,
    };
    if host.contains(',') {
        return Err(refuse());
    }
    let path = url.path().trim_end_matches('/');
    format!("{scheme}://{host}:{port}{path}").parse().map_err(|_| refuse())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_port_has_that_of_what_is_asked() {
        for (text, url) in [
            ("http://127.0.0.1", "http://127.0.0.1:8081/"),
            ("id-1.internal", "http://id-1.internal:8081/"),
            ("id-1.internal:9000", "http://id-1.internal:9000/"),
            ("https://[::1]:9", "https://[::1]:9/"),
            ("https://proxy/leaf/", "https://proxy:8081/leaf"),
        ] {
            assert_eq!(read_url(text, OPS).unwrap().to_string(), url, "{text}");
        }
        for text in [
            "",
            "redis://127.0.0.1",
            "http://user:canary@host",
            "http://h?x=canary",
            "a b",
            "127.0.0.1:99999",
            "http://127.0.0.1:",
            "http://127.0.0.1:abc",
            "http://[::1]:-1",
            "http://a,b",
        ] {
            let error = read_url(text, OPS).unwrap_err().to_string();
            assert!(error.contains("give URLs") && !error.contains("canary"), "{error}");
        }
    }
}
