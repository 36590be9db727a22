//! The ops listener: health for everybody; for operators the reasons why a node is not ready, its
//! tags and its worker ids.
//!
//! Requests of operators need the role `read` or `admin`. Without `tokens_file` and `ops.token`
//! they are answered on loopback only, and not if they come from a web page of another host. Tasks
//! of their own query the stores and the registry: a query whose client disconnects still ends
//! properly, so that its connection goes back to the pool.

mod change;
pub(crate) mod feed;
mod part;
mod status;
mod tables;
mod tags;
mod ui;
mod workers;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, CONNECTION, ETAG, HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Method, StatusCode, Version};
use leaf_node::requests::CreateTag;
use serde::Serialize;
use tracing::Instrument as _;

use self::change::{Asked, change};
use self::part::Part;
use self::tags::Target;
use super::body::{self, RequestBody};
use super::id_routes::decode_key;
use super::problem::{Form, Problem, check_method};
use super::reply::{self, Reply};
use super::routes::{self, Found, Route};
use super::v1;
use crate::caller::Caller;
use crate::metrics;
use crate::metrics::Operation::{self, Admin, Decode, Health, Metrics, Other};
use crate::node::Node;
use crate::refusal::Reason;
use crate::request::RequestId;

/// Time limit of an answer that needs a store or the registry.
const ANSWER: Duration = Duration::from_secs(20);

/// The handler of a route of the ops listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// Shows that the process answers. A supervisor restarts a process that does not.
    Alive,
    /// Shows whether this node can answer requests for ids. A balancer sends nothing to a node that
    /// cannot.
    Ready,
    /// Takes this node out of its balancers (`POST`), and puts it back (`DELETE`).
    Drain,
    /// Shows the state of this node, from memory alone.
    Status,
    /// The page of metrics.
    Metrics,
    /// A file of the dashboard.
    File(ui::File),
    /// Streams what the dashboard shows, and each change of it.
    Live,
    /// Decodes a snowflake id.
    Id,
    /// The double buffers, as on the page of the Java Leaf.
    Cache,
    /// The table of tags, as on the page of the Java Leaf.
    Db,
    /// Lists and creates tags.
    Tags,
    /// Shows, changes and deletes a tag.
    Tag,
    /// Raises a tag's next number.
    TagAdvance,
    /// Reopens a tag that a wrong clock has closed.
    TagReopen,
    /// Gives the newest key to a tag of scrambled ids.
    TagRekey,
    /// Cuts a tag (`PUT`), or removes its rule of traffic (`DELETE`).
    TagCut,
    /// Shows the first ids that a tag would have, without creating it.
    Sample,
    /// Decodes an id of a tag.
    TagId,
    /// Lists the worker ids.
    Workers,
    /// Frees the worker id of a dead holder.
    WorkerRelease,
    /// Takes a worker id out of service for good.
    WorkerRetire,
    /// Lets the ids' clock follow a wall clock that jumped ahead.
    ClockAccept,
}

/// All routes of the listener.
pub(super) const ROUTES: &[Route<To>] = &[
    Route::new("GET, HEAD", "/healthz", To::Alive, Health),
    Route::new("GET, HEAD", "/readyz", To::Ready, Health),
    Route::new("GET, HEAD", "/", To::File(ui::PAGE), Admin),
    Route::new("GET, HEAD", "/ui/app.js", To::File(ui::SCRIPT), Admin),
    Route::new("GET, HEAD", "/ui/style.css", To::File(ui::STYLE), Admin),
    Route::new("GET, HEAD", "/ui/uplot.js", To::File(ui::CHARTS), Admin),
    Route::new("GET, HEAD", "/ui/uplot.css", To::File(ui::CHART_STYLE), Admin),
    Route::new("GET", "/v1/live", To::Live, Admin),
    Route::new("GET, HEAD", "/v1/ids/{id}", To::Id, Decode),
    Route::new("POST, DELETE", "/v1/drain", To::Drain, Admin),
    Route::new("GET, HEAD", "/v1/status", To::Status, Admin),
    Route::new("GET, HEAD", "/metrics", To::Metrics, Metrics),
    Route::new("GET, HEAD", "/cache", To::Cache, Admin),
    Route::new("GET, HEAD", "/db", To::Db, Admin),
    Route::new("GET, HEAD, POST", "/v1/tags", To::Tags, Admin),
    Route::new("GET, HEAD, PATCH, DELETE", "/v1/tags/{tag}", To::Tag, Admin),
    Route::new("POST", "/v1/tags/{tag}/advance", To::TagAdvance, Admin),
    Route::new("POST", "/v1/tags/{tag}/reopen", To::TagReopen, Admin),
    Route::new("POST", "/v1/tags/{tag}/rekey", To::TagRekey, Admin),
    Route::new("PUT, DELETE", "/v1/tags/{tag}/cut", To::TagCut, Admin),
    Route::new("POST", "/v1/sample", To::Sample, Admin),
    Route::new("GET, HEAD", "/v1/tags/{tag}/ids/{id}", To::TagId, Admin),
    Route::new("GET, HEAD", "/v1/workers", To::Workers, Admin),
    Route::new("POST", "/v1/workers/{worker}/release", To::WorkerRelease, Admin),
    Route::new("POST", "/v1/workers/{worker}/retire", To::WorkerRetire, Admin),
    Route::new("POST", "/v1/clock/accept", To::ClockAccept, Admin),
];

/// Answers a request.
pub(super) async fn route(
    caller: &Caller,
    head: &Parts,
    body: &mut RequestBody,
    request: &RequestId,
) -> (Operation, Reply) {
    let form = if head.uri.path().starts_with("/v1/") { Form::Json } else { Form::Text };
    let form = Form::accepted(&head.headers, form);
    let found = routes::find(ROUTES, head.uri.path());
    let operation = found.as_ref().map_or(Other, |(route, _)| route.operation);
    let reply = answer(caller, head, body, found, request).await;
    // Health is for everybody, and nobody keeps a connection for it: others may need its place.
    let is_health = matches!(head.uri.path(), "/healthz" | "/readyz");
    let mut reply = reply.unwrap_or_else(|problem| match problem.reason {
        // An answer like any other: nothing was refused.
        Reason::Unavailable if is_health => problem.shown(form, request),
        _ => problem.refusal(form, request),
    });
    if is_health && caller.is_overloaded() {
        // Envoy then prefers other nodes, and others ignore it.
        reply.headers_mut().insert("x-envoy-degraded", HeaderValue::from_static("overloaded"));
    }
    if is_health && head.version < Version::HTTP_2 && !head.headers.contains_key(AUTHORIZATION) {
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    (operation, reply)
}

/// Answers a request by its route, if the caller has the role that the route needs.
async fn answer(
    caller: &Caller,
    head: &Parts,
    body: &mut RequestBody,
    found: Option<Found<'_, To>>,
    request: &RequestId,
) -> Result<Reply, Problem> {
    let Some((route, parameters)) = found else {
        return Err(Problem::not_found("no such route: try /readyz or /v1/status"));
    };
    check_method(&head.method, route.methods)?;
    if !matches!(route.to, To::Alive | To::Ready | To::File(_)) {
        authorize(caller, head)?;
        if !takes_parameters(route.to, &head.method)
            && head.uri.query().is_some_and(|query| !query.is_empty())
        {
            return Err(Problem::bad_request("this route takes no parameters"));
        }
    }
    if !is_look(&head.method) {
        let body = body::read(body, body::OF_OPERATORS).await?;
        // The body may have taken its time.
        authorize(caller, head)?;
        let asked = Asked {
            to: route.to,
            parameters: parameters.into_iter().map(String::from).collect(),
            head: head.clone(),
            body,
            request: request.clone(),
        };
        return match route.to {
            To::Sample => sample(caller, &asked).await,
            _ => change(caller.clone(), asked).await,
        };
    }
    show(caller, route.to, &parameters, head, body).await
}

/// Answers `GET` and `HEAD`.
async fn show(
    caller: &Caller,
    to: To,
    parameters: &[&str],
    head: &Parts,
    body: &mut RequestBody,
) -> Result<Reply, Problem> {
    let query = head.uri.query().unwrap_or_default();
    let node = Arc::clone(caller);
    let decoded = |at: usize| parameters.get(at).map_or(Ok(String::new()), |it| decode(it));
    match to {
        To::Alive => Ok(reply::text(StatusCode::OK, "ok")),
        To::Ready => ready(&node),
        To::Drain | To::Status => Ok(status::show(&node)),
        To::Metrics => {
            let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
            Ok(reply::reply(StatusCode::OK, kind, metrics::page(&node)))
        }
        To::File(file) => Ok(ui::show(file)),
        To::Live => Ok(reply::lines(feed::watch(caller)?, body.keep())),
        To::Id => {
            v1::decode(&node, parameters.first().copied().unwrap_or_default(), head.uri.query())
        }
        To::Cache => Ok(tables::cache(&node, &Part::of(query)?, &head.headers)),
        To::Db => {
            let (part, headers) = (Part::of(query)?, head.headers.clone());
            detached(async move { tables::db(&node, &part, &headers).await }).await
        }
        To::Tags => {
            let part = Part::of(query)?;
            shown(async move { tags::list(&node, &part).await }).await
        }
        To::Tag => {
            let tag = decoded(0)?;
            let (tag, version) =
                detached(async move { Target::of(&node, &tag, true)?.show().await }).await?;
            Ok(with_version(reply::json(StatusCode::OK, &tag), version))
        }
        To::TagId => {
            let (tag, id) = (decoded(0)?, decoded(1)?);
            shown(async move { Target::of(&node, &tag, true)?.decode(&id).await }).await
        }
        To::Workers => shown(async move { workers::list(&node).await }).await,
        _ => Err(Problem::not_found("this route only changes")),
    }
}

/// Answers `/readyz`: whether this node can answer requests for ids.
fn ready(node: &Node) -> Result<Reply, Problem> {
    match node.health() {
        health if health.can_answer() => Ok(reply::text(StatusCode::OK, health.to_string())),
        health => Err(Problem::unavailable(health.to_string())),
    }
}

/// Shows the first ids that a new tag would have, without creating it.
async fn sample(node: &Arc<Node>, asked: &Asked) -> Result<Reply, Problem> {
    let (tag, spec) = body::json::<CreateTag>(&asked.head.headers, &asked.body)?.read()?;
    let node = Arc::clone(node);
    shown(async move { tags::sample(&node, &tag, spec).await }).await
}

/// Whether requests of a route may have parameters behind a `?`.
fn takes_parameters(to: To, method: &Method) -> bool {
    match is_look(method) {
        true => matches!(to, To::Cache | To::Db | To::Id | To::Tags),
        false => !matches!(to, To::Drain | To::Sample | To::ClockAccept),
    }
}

/// Whether the method of a request is one that only reads.
fn is_look(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Adds the version of the shown record to the answer, as its `ETag`.
fn with_version(mut reply: Reply, version: HeaderValue) -> Reply {
    reply.headers_mut().insert(ETAG, version);
    reply
}

/// Percent-decodes a part of a path.
fn decode(part: &str) -> Result<String, Problem> {
    decode_key(part).map(Cow::into_owned)
}

/// Runs `answer` in a task of its own, and returns its result as JSON.
async fn shown<T: Serialize + Send + 'static>(
    answer: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<Reply, Problem> {
    Ok(reply::json(StatusCode::OK, &detached(answer).await?))
}

/// Runs `answer` in a task of its own, which goes on if the client disconnects. Waits [`ANSWER`]
/// for its result.
async fn detached<T: Send + 'static>(
    answer: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::time::timeout(ANSWER, tokio::spawn(answer.in_current_span())).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(failed()),
        Err(_) => {
            let text = format!(
                "no answer within {ANSWER:?}; whether something was changed is not known: look again"
            );
            Err(Problem::new(Reason::Unclear, text))
        }
    }
}

/// The error of a request whose task panicked.
fn failed() -> Problem {
    Problem::new(Reason::Failed, "the request failed; the server's log says why")
}

/// Checks that the caller has the role that a request needs. Without `tokens_file` and `ops.token`
/// every program of this host may ask. A change must not come from a web page of another host.
fn authorize(caller: &Caller, head: &Parts) -> Result<(), Problem> {
    let shows = matches!(head.method, Method::GET | Method::HEAD);
    let allowed = if shows { caller.check_reads() } else { caller.check_administers() };
    match allowed {
        Err(denial) if caller.access.ops_has_callers() => {
            return Err(Problem::new(denial.reason(), denial.to_string()));
        }
        Err(_) => is_of_this_host(caller.ops.ip(), &head.headers, &head.uri)?,
        Ok(()) => {}
    }
    if shows { Ok(()) } else { is_of_no_other_page(&head.headers, &head.uri) }
}

/// The hosts that a request names, in every `Host` header and in its URI: a proxy in front may go
/// by any of them. `None` if one of them is invalid.
fn named(headers: &HeaderMap, uri: &hyper::Uri) -> Option<Vec<Authority>> {
    let named = headers.get_all(HOST).iter();
    let named = named.map(|host| host.to_str().ok().and_then(|host| host.parse().ok()));
    named.chain(uri.authority().cloned().map(Some)).collect()
}

/// Refuses a request that comes from a web page of another host. A browser sends its user's client
/// certificate along, whichever page makes the request.
fn is_of_no_other_page(headers: &HeaderMap, uri: &hyper::Uri) -> Result<(), Problem> {
    let own = named(headers, uri).unwrap_or_default();
    let mut origins = headers.get_all(ORIGIN).iter().map(|it| it.to_str().unwrap_or_default());
    // With TLS or without.
    let is_own = |origin: &str| {
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some_and(|rest| own.first().is_some_and(|authority| authority.as_str() == rest))
    };
    if origins.any(|origin| !is_own(origin)) {
        let why = "pages of other hosts may not administer this node";
        return Err(Problem::new(Reason::Forbidden, why));
    }
    Ok(())
}

/// Checks that a request can only come from a program of this host: the listener is on loopback,
/// and the request names this host by an address or as `localhost`.
fn is_of_this_host(listen: IpAddr, headers: &HeaderMap, uri: &hyper::Uri) -> Result<(), Problem> {
    let forbidden = |why: &str| Err(Problem::new(Reason::Forbidden, why));
    if !listen.is_loopback() {
        return forbidden(
            "administration is off: set ops.token or tokens_file, or let ops.listen be on loopback",
        );
    }
    // A page in a browser of this host can reach loopback, too, under a name of its own.
    let all = named(headers, uri).unwrap_or_default();
    let is_plain = |authority: &Authority| {
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let is_own = host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok();
        is_own && !authority.as_str().contains('@')
    };
    if all.is_empty() || !all.iter().all(is_plain) {
        return forbidden("ask for this host by its address or as localhost, or set ops.token");
    }
    is_of_no_other_page(headers, uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of a refusal, 200 for none.
    fn status(listen: &str, headers: &[(&'static str, &'static str)]) -> u16 {
        let mut given = HeaderMap::new();
        for (name, value) in headers {
            given.append(*name, HeaderValue::from_static(value));
        }
        let uri = hyper::Uri::from_static("/v1/status");
        let allowed = is_of_this_host(listen.parse().unwrap(), &given, &uri);
        allowed.err().map_or(200, |problem| problem.status().as_u16())
    }

    #[test]
    fn without_tokens_administration_needs_loopback_without_a_browser_in_between() {
        let (own, any) = ("127.0.0.1", "0.0.0.0");
        let localhost = ("host", "localhost:8081");
        for host in ["127.0.0.1:8081", "[::1]:8081", "LOCALHOST"] {
            assert_eq!(status(own, &[("host", host)]), 200, "{host}");
        }
        // A name that somebody lets point to loopback, and a page that asks in its browser's name.
        assert_eq!(status(own, &[("host", "evil.example:8081")]), 403);
        assert_eq!(status(own, &[]), 403);
        assert_eq!(status(own, &[localhost, ("origin", "http://evil.example")]), 403);
        let same = ("origin", "http://localhost:8081");
        assert_eq!(status(own, &[localhost, same]), 200);
        assert_eq!(status(own, &[localhost, same, ("origin", "http://evil.example")]), 403);
        assert_eq!(status(any, &[localhost]), 403);
        // Two names.
        assert_eq!(status(own, &[localhost, ("host", "evil.example:8081")]), 403);
        assert_eq!(status(own, &[("host", "user@localhost:8081")]), 403);
        for (named, wanted) in
            [("http://evil.example/v1/status", 403), ("http://[::1]/v1/status", 200)]
        {
            let uri = hyper::Uri::from_static(named);
            let headers = [(HOST, HeaderValue::from_static("localhost"))].into_iter().collect();
            let allowed = is_of_this_host(own.parse().unwrap(), &headers, &uri);
            let allowed = allowed.err().map_or(200, |it| it.status().as_u16());
            assert_eq!(allowed, wanted, "{named}");
        }
    }
}
