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

/// The largest body of a request for ids, in bytes. It is read and ignored; a connection may hold a
/// hundred of them.
pub(super) const OF_IDS: usize = 1024;
/// The largest body of an operator's request, in bytes.
pub(super) const OF_OPERATORS: usize = 16 * 1024;
/// How long a body may take to arrive.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a request that is under way. It lives until the request is answered, also where
/// there is no body: while it holds `under_way`, the connection is not closed to make room for
/// others.
pub(super) struct RequestBody {
    incoming: Incoming,
    control: Arc<Control>,
    /// `None` while the rest of the body is awaited: the connection may then be closed to make room
    /// for others.
    under_way: Option<UnderWay>,
}

impl RequestBody {
    /// The body of a request that was just received.
    pub(super) fn new(incoming: Incoming, control: Arc<Control>, under_way: UnderWay) -> Self {
        Self { incoming, control, under_way: Some(under_way) }
    }

    /// A guard for an answer that has no end: while it exists, the connection is not closed to make
    /// room for others.
    pub(super) fn keep(&self) -> UnderWay {
        UnderWay::begin(&self.control)
    }

    /// Whether the whole body was read.
    pub(super) fn is_read(&self) -> bool {
        self.incoming.is_end_stream()
    }
}

/// Reads the whole body, which may have at most `most` bytes.
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

/// Parses the body of an operator's request, which must be JSON by its `Content-Type`.
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
