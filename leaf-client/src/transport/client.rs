//! One call over gRPC.

use std::time::Duration;

use hyper::header::HeaderValue;
use leaf_proto::v1::id_service_client::IdServiceClient;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use super::Connector;

/// How much longer a server may work on a request than the client waits for it.
const LATER: Duration = Duration::from_millis(100);

/// Connections to one server.
pub(super) type Connections = hyper_util::client::legacy::Client<Connector, Body>;

/// The answer to a request; `None` if the message is not an answer to this request.
pub(crate) type Sent<T> = Result<Option<T>, Status>;

/// One call to one server.
pub(crate) struct Client {
    pub(super) stub: IdServiceClient<Connections>,
    pub(super) authorization: Option<HeaderValue>,
    pub(super) within: Duration,
}

impl Client {
    /// Sends `message` with `call`, a method of the stub.
    pub(crate) async fn send<M, T>(
        self,
        message: M,
        call: impl AsyncFnOnce(IdServiceClient<Connections>, Request<M>) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        let mut request = Request::new(message);
        // The server need not work for a client that no longer waits. Its limit is a little longer
        // than the client's, so that the client's own timeout comes first.
        request.set_timeout(self.within + LATER);
        if let Some(authorization) = self.authorization {
            let mut value = MetadataValue::try_from(authorization.as_bytes())
                .map_err(|_| Status::unauthenticated("the token is no metadata of gRPC"))?;
            value.set_sensitive(true);
            request.metadata_mut().insert("authorization", value);
        }
        Ok(call(self.stub, request).await?.into_inner())
    }
}
