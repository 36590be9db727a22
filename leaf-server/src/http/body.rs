//! The body of a request, with limits on its size and its time.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::HeaderMap;
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// The largest body of a request, and how long it may take.
const LARGEST: usize = 16 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads all of it.
pub(super) async fn read(body: &mut Incoming) -> Result<Bytes, Problem> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let all = tokio::time::timeout(TIMEOUT, Limited::new(body, LARGEST).collect()).await;
    let Ok(all) = all else {
        let text = format!("the body did not arrive within {TIMEOUT:?}");
        return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", text));
    };
    match all {
        Ok(all) => Ok(all.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            let text = format!("a body has at most {LARGEST} bytes");
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", text))
        }
        Err(_) => Err(Problem::bad_request("the body ended early, or is not well-formed")),
    }
}

/// Reads it as JSON of this form.
pub(super) async fn json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: &mut Incoming,
) -> Result<T, Problem> {
    let kind = headers.get(hyper::header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    // Nothing that a form in a web page can send.
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not-json",
            "send Content-Type: application/json",
        ));
    }
    let text = read(body).await?;
    serde_json::from_slice(&text).map_err(|error| Problem::bad_request(format!("body: {error}")))
}
