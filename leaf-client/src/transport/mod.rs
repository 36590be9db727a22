//! Sends one request to one server, and classifies the outcome.

#[cfg(feature = "grpc")]
pub(crate) mod client;
#[cfg(feature = "grpc")]
mod grpc;
mod http;
#[cfg(not(feature = "tls"))]
mod plain;
#[cfg(feature = "tls")]
mod tls;

use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
#[cfg(not(feature = "tls"))]
pub(crate) use plain::Connecting;
#[cfg(not(feature = "tls"))]
use plain::Connector;
#[cfg(feature = "tls")]
use tls::Connector;
#[cfg(feature = "tls")]
pub(crate) use tls::{Certificates, Connecting};

use crate::calls::Ask;
use crate::endpoint::{Endpoint, Protocol};
use crate::error::ClientErrorKind;
use crate::failure::{AskError, Failure, Fault};

/// Connections to all servers.
#[derive(Debug)]
pub(crate) struct Transport {
    http: http::Http,
    #[cfg(feature = "grpc")]
    grpc: grpc::Grpc,
}

impl Transport {
    /// Creates the connections. `authorization`, the token, is sent to every server.
    pub(crate) fn new(connecting: Connecting, authorization: Option<HeaderValue>) -> Self {
        let connecting = Arc::new(connecting);
        Self {
            #[cfg(feature = "grpc")]
            grpc: grpc::Grpc::new(Arc::clone(&connecting), authorization.clone()),
            http: http::Http::new(connecting, authorization),
        }
    }

    /// Sends one request, and waits `within` for the answer. If `within` is shorter than `attempt`,
    /// a missing answer does not count against the server.
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

/// Classifies an error answer by its `reason` code: `Failed` if another server may serve the
/// request, `Refused` if no server will. An unknown reason is `Refused` only if `lasting`: the HTTP
/// or gRPC status says that the request itself is at fault.
fn judge(endpoint: &Endpoint, reason: &str, text: String, lasting: bool) -> AskError {
    let kind = match reason {
        // Others may make ids of that mode.
        "mode-disabled" => return Failure::of(endpoint, text).with(Fault::NoSuchMode).into(),
        // Of this server: its clock, its store, how busy it is.
        "unavailable" | "end-of-time" | "too-fast" => {
            return Failure::of(endpoint, text).with(Fault::Trouble).into();
        }
        "unknown-tag" => ClientErrorKind::UnknownTag,
        "disabled" => ClientErrorKind::Disabled,
        "exhausted" => ClientErrorKind::Exhausted,
        "bad-request" => ClientErrorKind::BadCount,
        "strict-order" | "no-ranges" => ClientErrorKind::NoRanges,
        "cut" => ClientErrorKind::Refused,
        _ if lasting || reason == "record" => ClientErrorKind::Refused,
        _ => return Failure::of(endpoint, text).with(Fault::Trouble).into(),
    };
    AskError::Refused { kind, text: format!("{endpoint}: {text}") }
}

/// The failure of a server whose answer does not fit the request, or is not a leaf-server's.
fn not_an_answer(endpoint: &Endpoint) -> AskError {
    Failure::of(endpoint, "its answer is not what a leaf-server answers to that").into()
}

/// The error of a caller without the right token: the server's text, or the status if a gateway in
/// front of it sent none.
fn unauthorized(endpoint: &Endpoint, status: &str, told: Option<String>) -> AskError {
    let text = match told.filter(|told| !told.is_empty()) {
        Some(told) => format!("{endpoint}: {told}"),
        None => format!("{endpoint}: {status}: give the token that it asks for to the builder"),
    };
    AskError::Refused { kind: ClientErrorKind::Unauthorized, text }
}

/// The text of an error with all its causes: the first one alone often says too little.
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
