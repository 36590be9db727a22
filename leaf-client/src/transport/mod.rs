//! One request to one server, and what became of it.

use std::fmt;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::de::DeserializeOwned;

use crate::endpoint::Endpoint;
use crate::wire::Problem;

const ACCEPTED: HeaderValue = HeaderValue::from_static("application/json");

/// Connections to all servers.
#[derive(Debug)]
pub(crate) struct Transport {
    client: Client<HttpConnector, Full<Bytes>>,
    authorization: Option<HeaderValue>,
}

/// An answer that is no failure of the server: what was asked for, or why the client does not get it.
#[derive(Debug)]
pub(crate) enum Answer {
    Body(Bytes),
    /// With the status.
    Refusal(StatusCode, Problem),
}

/// Why a server did not serve.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// Which server.
    endpoint: String,
    why: String,
    /// What it says of the server.
    pub(crate) fault: Fault,
}

/// What a failure says of the server that it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is ill.
    Server,
    /// It answers, and cannot serve this request now.
    Trouble,
    /// Nothing.
    None,
}

impl Failure {
    pub(crate) fn of(endpoint: &Endpoint, why: impl Into<String>) -> Self {
        Self { endpoint: endpoint.to_string(), why: why.into(), fault: Fault::Server }
    }

    pub(crate) fn with(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    /// One that no server is to blame for.
    pub(crate) fn of_names(why: impl Into<String>) -> Self {
        Self { endpoint: String::new(), why: why.into(), fault: Fault::None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.endpoint.is_empty() {
            write!(f, "{}: ", self.endpoint)?;
        }
        f.write_str(&self.why)
    }
}

impl std::error::Error for Failure {}

impl Transport {
    /// The token is shown to every server.
    pub(crate) fn new(authorization: Option<HeaderValue>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            // Below the time after which a server closes a connection that nobody uses.
            .pool_idle_timeout(Duration::from_secs(20))
            .build(connector);
        Self { client, authorization }
    }

    /// One request, whose answer has at most `limit` bytes. Where it is given less time than `attempt`, no answer is not
    /// the server's fault.
    pub(crate) async fn ask(
        &self,
        endpoint: &Endpoint,
        method: Method,
        path: &str,
        limit: usize,
        within: Duration,
        attempt: Duration,
    ) -> Result<Answer, Failure> {
        let fail = |why: String| Failure::of(endpoint, why);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", endpoint.address))
            .header(HOST, &endpoint.place.authority)
            .header(ACCEPT, ACCEPTED);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Full::default()).map_err(|error| fail(error.to_string()))?;
        let asked = async {
            let answer =
                self.client.request(request).await.map_err(|error| fail(causes(&error)))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), limit).collect().await;
            let body = body.map_err(|error| fail(format!("its answer broke off: {error}")))?;
            judge(endpoint, status, body.to_bytes())
        };
        let late = |_| {
            let fault = if within < attempt { Fault::Trouble } else { Fault::Server };
            Err(fail(format!("no answer within {within:?}")).with(fault))
        };
        tokio::time::timeout(within, asked).await.unwrap_or_else(late)
    }
}

/// Whether an answer is a server's failure.
fn judge(endpoint: &Endpoint, status: StatusCode, body: Bytes) -> Result<Answer, Failure> {
    if status == StatusCode::OK {
        return Ok(Answer::Body(body));
    }
    let problem = serde_json::from_slice::<Problem>(&body).ok().filter(Problem::is_of_leaf);
    match problem {
        // This server makes no ids of that mode; others may.
        Some(problem) if problem.kind() == "mode-disabled" => {
            Err(Failure::of(endpoint, problem.text()).with(Fault::None))
        }
        // Others would say the same.
        Some(problem) if status.is_client_error() || problem.kind() == "record" => {
            Ok(Answer::Refusal(status, problem))
        }
        Some(problem) => {
            let text = format!("{status}: {}", problem.text());
            Err(Failure::of(endpoint, text).with(Fault::Trouble))
        }
        None if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            let problem = serde_json::from_str("{}").expect("all fields have defaults");
            Ok(Answer::Refusal(status, problem))
        }
        None => Err(Failure::of(endpoint, format!("{status}, and no word of a leaf-server"))),
    }
}

/// The JSON of an answer.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

/// An error with what caused it: the error itself often says nothing.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
