//! One request to one server, and what became of it.

#[cfg(feature = "grpc")]
pub(crate) mod grpc;
mod http;

use std::fmt;
use std::time::Duration;

use hyper::header::HeaderValue;

use crate::api::AskError;
use crate::calls::Ask;
use crate::endpoint::{Endpoint, Protocol};
use crate::error::ClientErrorKind;

/// Connections to all servers.
#[derive(Debug)]
pub(crate) struct Transport {
    http: http::Http,
    #[cfg(feature = "grpc")]
    grpc: grpc::Grpc,
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
    /// It does not have the mode that the request is for.
    NoSuchMode,
    /// It did not answer, and had less time than an attempt has.
    CutShort,
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

    /// What is told of the two: what a server said says more than that the time was over.
    pub(crate) fn or(self, earlier: Option<Self>) -> Self {
        match (self.fault, earlier) {
            (Fault::CutShort, Some(earlier)) => earlier,
            _ => self,
        }
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
        Self {
            #[cfg(feature = "grpc")]
            grpc: grpc::Grpc::new(authorization.clone()),
            http: http::Http::new(authorization),
        }
    }

    /// One request. Where it is given less time than `attempt`, no answer is not the server's
    /// fault.
    pub(crate) async fn ask<A: Ask>(
        &self,
        endpoint: &Endpoint,
        ask: &A,
        within: Duration,
        attempt: Duration,
    ) -> Result<A::Answer, AskError> {
        let asked = async {
            match endpoint.place.protocol {
                Protocol::Http => self.http.ask(endpoint, ask).await,
                #[cfg(feature = "grpc")]
                Protocol::Grpc => self.grpc.ask(endpoint, ask, within).await,
            }
        };
        let late = |_| {
            // It may be the connection, which is gone and nobody has said so.
            #[cfg(feature = "grpc")]
            if endpoint.place.protocol == Protocol::Grpc {
                self.grpc.forget(endpoint);
            }
            let fault = if within < attempt { Fault::CutShort } else { Fault::Server };
            let why = format!("no answer within {} ms", within.as_millis());
            Err(Failure::of(endpoint, why).with(fault).into())
        };
        tokio::time::timeout(within, asked).await.unwrap_or_else(late)
    }
}

/// Whether the refusal of a leaf-server is its failure, by its word for programs; `lasting` where
/// others of that kind would be refused by every server.
fn judge(endpoint: &Endpoint, reason: &str, text: String, lasting: bool) -> AskError {
    let kind = match reason {
        // Others may make ids of that mode.
        "mode-disabled" => return Failure::of(endpoint, text).with(Fault::NoSuchMode).into(),
        // Of this server: its clock, its store, how busy it is.
        "unavailable" | "end-of-time" => {
            return Failure::of(endpoint, text).with(Fault::Trouble).into();
        }
        "unknown-tag" => ClientErrorKind::UnknownTag,
        "disabled" => ClientErrorKind::Disabled,
        "exhausted" => ClientErrorKind::Exhausted,
        "bad-request" => ClientErrorKind::BadCount,
        "strict-order" | "no-ranges" => ClientErrorKind::NoRanges,
        _ if lasting || reason == "record" => ClientErrorKind::Refused,
        _ => return Failure::of(endpoint, text).with(Fault::Trouble).into(),
    };
    AskError::Refused { kind, text: format!("{endpoint}: {text}") }
}

/// An answer to another question, or none of a leaf-server.
fn not_an_answer(endpoint: &Endpoint) -> AskError {
    Failure::of(endpoint, "its answer is not what a leaf-server answers to that").into()
}

/// The refusal of a server, or of a gateway before it, that wants another token.
fn unauthorized(endpoint: &Endpoint, status: &str) -> AskError {
    let text =
        format!("{endpoint}: {status}: give the token that it asks for to the client's builder");
    AskError::Refused { kind: ClientErrorKind::Unauthorized, text }
}

/// What a server says, as far as it can stand in a line.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(200).collect()
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
