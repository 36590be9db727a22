//! The ids listener: the routes of the Java Leaf, and those of `/v1` for ids.

use std::borrow::Cow;

use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode};
use leaf_core::Clock;
use leaf_segment::TagHandle;
use leaf_snowflake::SystemClock;
use memchr::memchr;
use percent_encoding::percent_decode_str;

use super::body::{self, RequestBody};
use super::problem::{Form, Problem, check_method};
use super::reply::{self, Reply};
use super::routes::{self, Found, Route};
use super::{java, v1};
use crate::caller::Caller;
use crate::ids;
use crate::metrics::Operation::{self, Decode, Describe, Health, Lease, Next, Other, Return, Take};
use crate::refusal::Reason;
use crate::request::RequestId;

/// The path of segment ids of the Java Leaf, up to the tag.
const SEGMENT: &str = "/api/segment/get/";
/// The path of snowflake ids of the Java Leaf, up to a key that means nothing.
const SNOWFLAKE: &str = "/api/snowflake/get/";

/// The handler of a route of the ids listener.
#[derive(Debug, Clone, Copy)]
pub(super) enum To {
    /// The next id of a tag, for clients of the Java Leaf.
    SegmentId,
    /// The next snowflake id, for clients of the Java Leaf.
    SnowflakeId,
    /// Decodes a snowflake id, and answers in the JSON form of the Java Leaf.
    DecodeJava,
    /// Pages of the Java Leaf that are on the ops listener here.
    OnOps,
    /// The description of this server for clients.
    Server,
    /// The description of a tag for clients.
    Tag,
    /// Several ids of a tag.
    SegmentIds,
    /// A range of ids for a client to hand out.
    SegmentLease,
    /// Takes back the unused end of a leased range.
    SegmentReturn,
    /// Several snowflake ids.
    SnowflakeIds,
    /// Decodes a snowflake id, or returns the id that a text of a tag stands for.
    Decode,
    /// This node's clock, for the other nodes of the registry.
    Clock,
}

/// All routes of the listener. The first two are also answered by [`at_once`], where an id is in
/// memory.
pub(super) const ROUTES: &[Route<To>] = &[
    Route::new("GET, HEAD, POST", "/api/segment/get/{*key}", To::SegmentId, Next),
    Route::new("GET, HEAD, POST", "/api/snowflake/get/{*key}", To::SnowflakeId, Next),
    Route::new("GET, HEAD", "/decodeSnowflakeId", To::DecodeJava, Decode),
    Route::new("GET, HEAD", "/cache", To::OnOps, Other),
    Route::new("GET, HEAD", "/db", To::OnOps, Other),
    Route::new("GET", "/v1/server", To::Server, Describe),
    Route::new("GET", "/v1/segments/{tag}", To::Tag, Describe),
    Route::new("GET", "/v1/segments/{tag}/ids", To::SegmentIds, Take),
    Route::new("POST", "/v1/segments/{tag}/lease", To::SegmentLease, Lease),
    Route::new("POST", "/v1/segments/{tag}/return", To::SegmentReturn, Return),
    Route::new("GET", "/v1/snowflake/ids", To::SnowflakeIds, Take),
    Route::new("GET, HEAD", "/v1/ids/{id}", To::Decode, Decode),
    Route::new("GET, HEAD", "/clock", To::Clock, Health),
];

/// Answers a request for one id, if one is in memory; else returns `None`. Allocates nothing but
/// the answer.
pub(super) fn at_once<B>(caller: &Caller, request: &Request<B>) -> Option<Reply> {
    if !matches!(*request.method(), Method::GET | Method::POST) {
        return None;
    }
    let path = request.uri().path();
    if let Some(key) = path.strip_prefix(SEGMENT) {
        return ids::known(caller, undecoded_key(key)?, TagHandle::try_next)?.map(reply::id);
    }
    undecoded_key(path.strip_prefix(SNOWFLAKE)?)?;
    ids::snowflake_at_once(caller).map(reply::id)
}

/// Returns `key` unchanged if it needs no percent-decoding; `None` if it does, or is empty.
fn undecoded_key(key: &str) -> Option<&str> {
    (!key.is_empty() && memchr(b'%', key.as_bytes()).is_none()).then_some(key)
}

/// Answers a request. Its body, if there is one, is read and ignored.
pub(super) async fn route(
    caller: &Caller,
    head: &Parts,
    body: &mut RequestBody,
    request: &RequestId,
) -> (Operation, Reply) {
    let form = if head.uri.path().starts_with("/v1/") { Form::Json } else { Form::Text };
    let form = Form::accepted(&head.headers, form);
    let found = routes::find(ROUTES, plain(head.uri.path()));
    let operation = found.as_ref().map_or(Other, |(route, _)| route.operation);
    let reply = match body::read(body, body::OF_IDS).await {
        Ok(_) => answer(caller, head, found).await,
        Err(problem) => Err(problem),
    };
    (operation, reply.unwrap_or_else(|problem| problem.refusal(form, request)))
}

/// Answers a request by its route. `HEAD` takes no id.
async fn answer(
    caller: &Caller,
    head: &Parts,
    found: Option<Found<'_, To>>,
) -> Result<Reply, Problem> {
    let Some((route, parameters)) = found else {
        return Err(match plain(head.uri.path()) {
            "/healthz" | "/readyz" | "/v1/status" => {
                Problem::not_found("that is on the ops listener")
            }
            _ => Problem::not_found("no such route: try /api/segment/get/{tag}"),
        });
    };
    check_method(&head.method, route.methods)?;
    let parameter = parameters.first().copied().unwrap_or_default();
    let query = head.uri.query();
    match route.to {
        To::SegmentId => {
            let handle = java_handle(caller, parameter).await?;
            if head.method == Method::HEAD {
                return Ok(reply::text(StatusCode::OK, ""));
            }
            Ok(reply::id(ids::next(caller, &handle).await?))
        }
        To::SnowflakeId => {
            check_snowflake_key(caller, parameter)?;
            if head.method == Method::HEAD {
                return Ok(reply::text(StatusCode::OK, ""));
            }
            Ok(reply::id(ids::snowflake_next(caller).await?))
        }
        To::Server => Ok(v1::server(caller)),
        To::Tag => Ok(v1::tag(caller, &handle(caller, parameter).await?)),
        To::SegmentIds => {
            let handle = handle(caller, parameter).await?;
            v1::segment_ids(caller, &handle, query, head.version).await
        }
        To::SegmentLease => {
            let handle = handle(caller, parameter).await?;
            v1::lease(caller, &handle, query).await
        }
        To::SegmentReturn => {
            let handle = ids::handle_of_lease(caller, &decode_key(parameter)?).await?;
            v1::return_unused(caller, &handle, query).await
        }
        To::SnowflakeIds => v1::snowflake_ids(caller, query, head.version).await,
        To::Decode => match v1::tag_of(query)? {
            Some(tag) => v1::read_text(&handle(caller, tag).await?, parameter),
            None => v1::decode(caller, parameter, query),
        },
        To::DecodeJava => Ok(java::decode(caller, query)),
        To::OnOps => Ok(java::on_ops(caller, head)),
        To::Clock => Ok(reply::text(StatusCode::OK, SystemClock.wall_millis().to_string())),
    }
}

/// The handle of a tag. `key` is its name as in a path, percent-encoded.
async fn handle(caller: &Caller, key: &str) -> Result<TagHandle, Problem> {
    Ok(ids::handle(caller, &decode_key(key)?).await?)
}

/// The handle of a tag in a path of the Java Leaf, whose framework ignores a slash at the end of
/// the key. Here such a slash may belong to the tag's name: the key is tried with the slash first,
/// then without it.
async fn java_handle(caller: &Caller, key: &str) -> Result<TagHandle, Problem> {
    let found = handle(caller, key).await;
    match (found, key.strip_suffix('/')) {
        (Err(problem), Some(key))
            if matches!(problem.reason, Reason::UnknownTag | Reason::NoRole) && !key.is_empty() =>
        {
            handle(caller, key).await
        }
        // Nothing else: a tag of that very name may be disabled, or not known here yet.
        (found, _) => found,
    }
}

/// Checks the key of a path for snowflake ids. As in the Java Leaf the key is ignored, but must not
/// be empty.
fn check_snowflake_key(caller: &Caller, key: &str) -> Result<(), Problem> {
    ids::snowflake(caller)?;
    if decode_key(key)?.is_empty() {
        return Err(Problem::bad_request("key is empty: any other will do"));
    }
    Ok(())
}

/// The path as the Java Leaf's framework reads it: with one slash at its start, and none behind the
/// name of a page.
fn plain(path: &str) -> &str {
    let start = path.bytes().take_while(|byte| *byte == b'/').count().saturating_sub(1);
    let path = &path[start..];
    match path.strip_suffix('/') {
        Some(page @ ("/decodeSnowflakeId" | "/cache" | "/db")) => page,
        _ => path,
    }
}

/// Decodes `%xx` once, strictly.
pub(super) fn decode_key(key: &str) -> Result<Cow<'_, str>, Problem> {
    let bytes = key.as_bytes();
    let well_formed = bytes.iter().enumerate().all(|(at, byte)| {
        *byte != b'%'
            || bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    });
    if !well_formed {
        return Err(Problem::bad_request("key is not valid percent-encoding: write % as %25"));
    }
    percent_decode_str(key).decode_utf8().map_err(|_| Problem::bad_request("key is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_once_and_strictly() {
        let decoded = |key: &str| decode_key(key).map(Cow::into_owned).map_err(|_| ());
        assert_eq!(decoded("orders.v1"), Ok("orders.v1".into()));
        assert_eq!(decoded("a%2Fb%20c"), Ok("a/b c".into()));
        assert_eq!(decoded("%25zz"), Ok("%zz".into()));
        assert_eq!(decoded("%E8%AE%A2%E5%8D%95"), Ok("订单".into()));
        for bad in ["%", "%2", "%zz", "a%+1", "%ff"] {
            assert_eq!(decoded(bad), Err(()), "{bad}");
        }
    }
}
