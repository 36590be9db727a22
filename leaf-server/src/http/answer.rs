//! Answers: a status, a content type and a short body.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

pub(super) type Answer = Response<Full<Bytes>>;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

fn answer(status: StatusCode, kind: HeaderValue, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// One line of text.
pub(super) fn text(status: StatusCode, line: impl Into<String>) -> Answer {
    answer(status, TEXT, line.into())
}

pub(super) fn json(status: StatusCode, value: &serde_json::Value) -> Answer {
    answer(status, JSON, value.to_string())
}

/// 503, worth another try in a second.
pub(super) fn try_again(line: impl Into<String>) -> Answer {
    let mut answer = text(StatusCode::SERVICE_UNAVAILABLE, line);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

pub(super) fn not_allowed(allowed: &'static str) -> Answer {
    let mut answer =
        text(StatusCode::METHOD_NOT_ALLOWED, format!("method not allowed: use {allowed}"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}
