//! The body of a request, with limits on its size and its time.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::HeaderMap;
use serde::de::DeserializeOwned;

use super::problem::Problem;
use crate::refusal::Reason;
use crate::serve::{Control, UnderWay};

/// The largest body of a request for ids, which means nothing: a connection may hold a hundred of
/// them.
pub(super) const OF_IDS: usize = 1024;
/// The largest body of an operator's request.
pub(super) const OF_OPERATORS: usize = 16 * 1024;
/// How long a body may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a request that is under way. It lives until the request is answered, also where
/// there is no body: while it holds `under_way`, the connection is not closed to make room for
/// others.
pub(super) struct RequestBody {
    incoming: Incoming,
    control: Arc<Control>,
    /// Not while the client is waited for: its connection may have to make room then.
    under_way: Option<UnderWay>,
}

impl RequestBody {
    /// The body of a request that was just received.
    pub(super) fn new(incoming: Incoming, control: Arc<Control>, under_way: UnderWay) -> Self {
        Self { incoming, control, under_way: Some(under_way) }
    }

    /// What keeps the connection for as long as an answer is sent that has no end.
    pub(super) fn keep(&self) -> UnderWay {
        UnderWay::begin(&self.control)
    }

    /// Whether all of it was read.
    pub(super) fn is_read(&self) -> bool {
        self.incoming.is_end_stream()
    }
}

/// Reads all of it, if it has so many bytes at most.
pub(super) async fn read(body: &mut RequestBody, most: usize) -> Result<Bytes, Problem> {
    if body.is_read() {
        return Ok(Bytes::new());
    }
    body.under_way = None;
    let all = Limited::new(&mut body.incoming, most).collect();
    let all = tokio::time::timeout(TIMEOUT, all).await;
    body.under_way = Some(UnderWay::begin(&body.control));
    let Ok(all) = all else {
        let text = format!("the body did not arrive within {TIMEOUT:?}");
        return Err(Problem::new(Reason::TooSlow, text));
    };
    match all {
        Ok(all) => Ok(all.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            let text = format!("a body has at most {most} bytes");
            Err(Problem::new(Reason::TooLarge, text))
        }
        Err(_) => Err(Problem::bad_request("the body ended early, or is not well-formed")),
    }
}

/// What an operator's request says, as JSON of this form.
pub(super) fn json<T: DeserializeOwned>(headers: &HeaderMap, text: &[u8]) -> Result<T, Problem> {
    let kind = headers.get(hyper::header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    // Nothing that a form in a web page can send.
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(Reason::NotJson, "send Content-Type: application/json"));
    }
    serde_json::from_slice(text).map_err(|error| Problem::bad_request(format!("body: {error}")))
}
