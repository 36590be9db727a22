//! Answers that are no errors: a status, a content type and a short body.
//!
//! No cache on the way may keep an answer: a repeated answer would be a repeated id.

use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use leaf_core::Id;
use serde::Serialize;
use tokio::sync::mpsc;

use super::reply_body::ReplyBody;
use crate::refusal::Reason;
use crate::serve::UnderWay;

/// An answer, whatever its body is made of.
pub(super) type Reply = Response<ReplyBody>;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const JSON_LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// An answer of one piece.
pub(super) fn reply(status: StatusCode, kind: HeaderValue, body: impl Into<Bytes>) -> Reply {
    of(status, kind, ReplyBody::whole(body))
}

/// An answer that no cache keeps: an id that is served twice from a cache is an id that was issued
/// twice.
fn of(status: StatusCode, kind: HeaderValue, body: ReplyBody) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    // To copy a prepared map would be slower: hyper reuses the memory of this one for the headers of
    // the next request, and a copy has room for two only.
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, NO_STORE);
    reply
}

/// Marks an answer as a refusal with this reason; it is counted as such.
pub(super) fn refused(mut reply: Reply, reason: Reason) -> Reply {
    reply.extensions_mut().insert(reason);
    reply
}

/// One line of text.
pub(super) fn text(status: StatusCode, line: impl Into<String>) -> Reply {
    reply(status, TEXT, line.into())
}

/// An answer with one id, in the form of the Java Leaf.
pub(super) fn id(id: Id) -> Reply {
    text(StatusCode::OK, itoa::Buffer::new().format(id.get()))
}

/// A value as JSON.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    // The values are plain structs.
    reply(status, JSON, serde_json::to_vec(value).unwrap_or_default())
}

/// A text that is JSON already.
pub(super) fn json_text(text: String) -> Reply {
    reply(StatusCode::OK, JSON, text)
}

/// JSON that is written while the client takes it.
pub(super) fn json_pieces(pieces: impl Iterator<Item = String> + Send + 'static) -> Reply {
    of(StatusCode::OK, JSON, ReplyBody::pieces(pieces))
}

/// Lines of JSON. Each is sent as soon as it comes.
pub(super) fn lines(lines: mpsc::Receiver<Bytes>, under_way: UnderWay) -> Reply {
    of(StatusCode::OK, JSON_LINES, ReplyBody::live(lines, under_way))
}

/// A page. Browsers must not guess another type from what is in it.
pub(super) fn html(page: String) -> Reply {
    let mut reply = reply(StatusCode::OK, HTML, page);
    reply.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    reply
}

/// A redirect to `to`, which the client follows with the same method.
pub(super) fn redirect(to: HeaderValue) -> Reply {
    let mut reply = text(StatusCode::TEMPORARY_REDIRECT, "on the ops listener");
    reply.headers_mut().insert(LOCATION, to);
    reply
}
