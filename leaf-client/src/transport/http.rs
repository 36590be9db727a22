//! Requests over HTTP/1.1.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::{Connecting, Connector, causes, judge, not_an_answer, unauthorized};
use crate::calls::Ask;
use crate::endpoint::{Endpoint, Place};
use crate::failure::{AskError, Failure};
use crate::wire::Problem;

const ACCEPTED: HeaderValue = HeaderValue::from_static("application/json");

/// Connections to the servers of one name.
type Connections = Client<Connector, Full<Bytes>>;

pub(super) struct Http {
    connecting: Arc<Connecting>,
    /// The connections for each configured URL.
    connections: Mutex<HashMap<Place, Connections>>,
    authorization: Option<HeaderValue>,
}

/// Without the token.
impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

impl Http {
    pub(super) fn new(connecting: Arc<Connecting>, authorization: Option<HeaderValue>) -> Self {
        Self { connecting, connections: Mutex::default(), authorization }
    }

    fn connections(&self, place: &Place) -> Connections {
        let mut all = self.connections.lock().expect("no holder of this lock panics");
        if let Some(connections) = all.get(place) {
            return connections.clone();
        }
        let connections = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            // Below the time after which a server closes a connection that nobody uses.
            .pool_idle_timeout(Duration::from_secs(20))
            .build(self.connecting.connector(place));
        all.insert(place.clone(), connections.clone());
        connections
    }

    pub(super) async fn ask<A: Ask>(
        &self,
        endpoint: &Endpoint,
        ask: &A,
    ) -> Result<A::Answer, AskError> {
        let fail = |why: String| Failure::of(endpoint, why);
        let (method, path) = ask.http();
        let mut request = Request::builder()
            .method(method)
            .uri(endpoint.url(&path))
            .header(HOST, &endpoint.place.authority)
            .header(ACCEPT, ACCEPTED);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Full::default()).map_err(|error| fail(error.to_string()))?;
        let answer = self.connections(&endpoint.place).request(request).await;
        let answer = answer.map_err(|error| fail(causes(&error)))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ask.limit()).collect().await;
        let body = body.map_err(|error| fail(format!("its answer broke off: {error}")))?.to_bytes();
        if status == StatusCode::OK {
            return ask.read(&body).ok_or_else(|| not_an_answer(endpoint));
        }
        Err(refused(endpoint, status, &body))
    }
}

/// Classifies an error response: try another server, or return the error to the caller.
fn refused(endpoint: &Endpoint, status: StatusCode, body: &[u8]) -> AskError {
    let problem = serde_json::from_slice::<Problem>(body).ok().filter(Problem::is_of_leaf);
    let is_cut = problem.as_ref().is_some_and(|problem| problem.kind() == "cut");
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) && !is_cut {
        return unauthorized(endpoint, &status.to_string(), problem.map(|problem| problem.text()));
    }
    let Some(problem) = problem else {
        return Failure::of(endpoint, format!("{status}, and no word of a leaf-server")).into();
    };
    let lasting = status.is_client_error();
    let text = problem.text();
    let text = if text.is_empty() { status.to_string() } else { text };
    judge(endpoint, problem.kind(), text, lasting)
}
