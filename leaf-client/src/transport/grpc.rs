//! Requests over gRPC.

use std::fmt;
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use leaf_proto::v1::id_service_client::IdServiceClient;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt as _;

use super::{Answer, Failure, Fault, causes, kind_of, not_an_answer, one_line, unauthorized};
use crate::calls::Ask;
use crate::endpoint::Endpoint;

/// How often a connection that waits for an answer is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(20);

type Connections = hyper_util::client::legacy::Client<HttpConnector, Body>;

/// The answer to a question; `None` where it is one to another question.
pub(crate) type Sent<T> = Result<Option<T>, Status>;

pub(super) struct Grpc {
    connections: Connections,
    authorization: Option<HeaderValue>,
}

/// Without the token.
impl fmt::Debug for Grpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grpc").finish_non_exhaustive()
    }
}

/// One call to one server.
pub(crate) struct Client {
    stub: IdServiceClient<Connections>,
    authorization: Option<HeaderValue>,
    within: Duration,
}

impl Client {
    /// Sends a message by a method of the stub.
    pub(crate) async fn send<M, T>(
        self,
        message: M,
        call: impl AsyncFnOnce(IdServiceClient<Connections>, Request<M>) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        let mut request = Request::new(message);
        // The server need not work for a client that waits no longer.
        request.set_timeout(self.within);
        if let Some(authorization) = self.authorization {
            let mut value = MetadataValue::try_from(authorization.as_bytes())
                .map_err(|_| Status::unauthenticated("the token is no metadata of gRPC"))?;
            value.set_sensitive(true);
            request.metadata_mut().insert("authorization", value);
        }
        Ok(call(self.stub, request).await?.into_inner())
    }
}

impl Grpc {
    pub(super) fn new(authorization: Option<HeaderValue>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let connections = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(20))
            .http2_only(true)
            .http2_keep_alive_interval(PING_EVERY)
            .build(connector);
        Self { connections, authorization }
    }

    pub(super) async fn ask<A: Ask>(
        &self,
        endpoint: &Endpoint,
        ask: &A,
        within: Duration,
    ) -> Result<Answer<A::Answer>, Failure> {
        let place: Uri = format!("http://{}", endpoint.address)
            .parse()
            .map_err(|error| Failure::of(endpoint, format!("{error}")))?;
        let stub = IdServiceClient::with_origin(self.connections.clone(), place)
            .max_decoding_message_size(ask.limit());
        let client = Client { stub, authorization: self.authorization.clone(), within };
        match ask.grpc(client).await {
            Ok(Some(answer)) => Ok(Answer::Good(answer)),
            Ok(None) => Err(not_an_answer(endpoint)),
            Err(status) => refused(endpoint, &status),
        }
    }
}

/// Whether an answer that is none is a server's failure.
fn refused<T>(endpoint: &Endpoint, status: &Status) -> Result<Answer<T>, Failure> {
    let fail = |text: String| Failure::of(endpoint, text);
    if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) {
        return Ok(unauthorized(endpoint, &status.code().to_string()));
    }
    let Some(info) = status.get_details_error_info().filter(|info| info.domain == "leaf") else {
        return Err(match status.code() {
            // An older server.
            Code::Unimplemented => {
                fail(format!("{}: {}", status.code(), one_line(status.message())))
            }
            // Of this process: no connection, or no answer.
            _ => fail(format!("{}, and no word of a leaf-server", one_line(&causes(status)))),
        });
    };
    let text = one_line(status.message());
    match status.code() {
        // This server makes no ids of that mode; others may.
        _ if info.reason == "mode-disabled" => Err(fail(text).with(Fault::NoSuchMode)),
        Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::Internal => {
            Ok(Answer::Refused { kind: kind_of(&info.reason), text: format!("{endpoint}: {text}") })
        }
        _ => Err(fail(text).with(Fault::Trouble)),
    }
}
