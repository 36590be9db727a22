//! Requests over gRPC.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use leaf_proto::v1::id_service_client::IdServiceClient;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::client::{Client, Connections};
use super::{Connecting, causes, judge, not_an_answer, unauthorized};
use crate::calls::Ask;
use crate::endpoint::{Endpoint, Place};
use crate::failure::{AskError, Failure, Fault};
use crate::wire::one_line;

/// How often a connection with a request under way is checked by an HTTP/2 ping.
const PING_EVERY: Duration = Duration::from_secs(20);

pub(super) struct Grpc {
    connecting: Arc<Connecting>,
    /// The connections to each server. Many requests share one connection; a request without an
    /// answer may be the only sign that it is broken.
    connections: Mutex<HashMap<(Place, SocketAddr), Connections>>,
    authorization: Option<HeaderValue>,
}

/// Without the token.
impl fmt::Debug for Grpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grpc").finish_non_exhaustive()
    }
}

impl Grpc {
    /// Connections to a server of this name.
    fn connect(&self, place: &Place) -> Connections {
        hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(20))
            .http2_only(true)
            .http2_keep_alive_interval(PING_EVERY)
            .build(self.connecting.connector(place))
    }

    pub(super) fn new(connecting: Arc<Connecting>, authorization: Option<HeaderValue>) -> Self {
        Self { connecting, connections: Mutex::default(), authorization }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<(Place, SocketAddr), Connections>> {
        self.connections.lock().expect("no holder of this lock panics")
    }

    /// Drops the connection to this server: the next request opens a new one.
    pub(super) fn forget(&self, endpoint: &Endpoint) {
        self.all().remove(&(endpoint.place.clone(), endpoint.address));
    }

    pub(super) async fn ask<A: Ask>(
        &self,
        endpoint: &Endpoint,
        ask: &A,
        within: Duration,
    ) -> Result<A::Answer, AskError> {
        let place: Uri =
            endpoint.url("").parse().map_err(|error| Failure::of(endpoint, format!("{error}")))?;
        let server = (endpoint.place.clone(), endpoint.address);
        let new = || self.connect(&endpoint.place);
        let connections = self.all().entry(server).or_insert_with(new).clone();
        let stub =
            IdServiceClient::with_origin(connections, place).max_decoding_message_size(ask.limit());
        let client = Client { stub, authorization: self.authorization.clone(), within };
        match ask.grpc(client).await {
            Ok(answer) => answer.ok_or_else(|| not_an_answer(endpoint)),
            Err(status) => Err(refused(endpoint, &status)),
        }
    }
}

/// Classifies an error response: try another server, or return the error to the caller.
fn refused(endpoint: &Endpoint, status: &Status) -> AskError {
    let info = status.get_details_error_info().filter(|info| info.domain == "leaf");
    let is_cut = info.as_ref().is_some_and(|info| info.reason == "cut");
    if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) && !is_cut {
        let told = info.map(|_| one_line(status.message()));
        return unauthorized(endpoint, &status.code().to_string(), told);
    }
    let Some(info) = info else {
        // Where there was no answer the status says little, and in a form for programmers.
        let why = std::error::Error::source(status).map_or_else(|| causes(status), causes);
        let text = format!("{}, and no word of a leaf-server", one_line(&why));
        return match status.code() {
            // An older server.
            Code::Unimplemented => Failure::of(endpoint, text).with(Fault::None).into(),
            // Of this process: no connection, or no answer.
            _ => Failure::of(endpoint, text).into(),
        };
    };
    let lasting =
        matches!(status.code(), Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition);
    judge(endpoint, &info.reason, one_line(status.message()), lasting)
}
