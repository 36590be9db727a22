//! The ops listener: health for everybody, and for operators why a node is not ready, its tags and
//! its worker ids.
//!
//! What operators ask needs the role `read` or `admin`; where no token has one it is answered on loopback
//! only, and not to a page that a browser was lured to. Stores and registry are asked by tasks of their
//! own: a client that leaves must not take a connection of the pool with it.

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

use hyper::body::Bytes;
use hyper::header::{
    AUTHORIZATION, CONNECTION, ETAG, HOST, HeaderMap, HeaderValue, IF_MATCH, ORIGIN,
};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::{Method, StatusCode, Version};
use leaf_node::requests::{AcceptClock, ChangeTag, CreateTag, ReleaseWorker, RetireWorker};
use serde::Serialize;
use tracing::Instrument as _;

use self::part::Part;
use super::body::{self, RequestBody};
use super::id_routes::decode_key;
use super::problem::{Form, Problem, check_method};
use super::reply::{self, Reply};
use super::routes::{self, Found, Route};
use super::v1;
use crate::access::Caller;
use crate::audit::{self, Change};
use crate::metrics::{self, Operation};
use crate::node::Node;
use crate::refusal::Reason;
use crate::request::RequestId;

/// How long an answer may take that needs a store or the registry.
const ANSWER: Duration = Duration::from_secs(20);

/// What answers a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// Whether the process answers: a supervisor restarts it where it does not.
    Alive,
    /// Whether ids can be had: a balancer sends nothing where it cannot.
    Ready,
    /// Takes this node out of its balancers, and back.
    Drain,
    /// Everything about this node, from memory.
    Status,
    /// All that is counted and measured.
    Metrics,
    /// A file of the dashboard.
    File(ui::File),
    /// What the dashboard shows, as it changes.
    Live,
    /// A snowflake id taken apart.
    Id,
    /// The double buffers, as on the page of the Java Leaf.
    Cache,
    /// The table of tags, as on the page of the Java Leaf.
    Db,
    /// What is about tags, worker ids and the clock.
    Records(Records),
}

/// What answers a route that is about the records of stores and of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Records {
    /// Lists and creates tags.
    Tags,
    /// Shows, changes and deletes a tag.
    Tag,
    /// Raises a tag's next number.
    TagAdvance,
    /// Gives the newest key to a tag of scrambled ids.
    TagRekey,
    /// Cuts a tag, and takes that back.
    TagCut,
    /// What the ids of a tag would look like.
    Sample,
    /// An id of a tag taken apart.
    TagId,
    /// Lists the worker ids.
    Workers,
    /// Frees the worker id of a dead holder.
    WorkerRelease,
    /// Takes a worker id out of service for good.
    WorkerRetire,
    /// Lets the ids follow a clock that jumped ahead.
    ClockAccept,
}

impl To {
    /// What its requests are counted as.
    const fn operation(self) -> Operation {
        match self {
            Self::Alive | Self::Ready => Operation::Health,
            Self::Metrics => Operation::Metrics,
            Self::Drain
            | Self::Status
            | Self::File(_)
            | Self::Live
            | Self::Cache
            | Self::Db
            | Self::Records(_) => Operation::Admin,
            Self::Id => Operation::Decode,
        }
    }
}

/// All routes of the listener.
pub(super) const ROUTES: &[Route<To>] = &[
    Route::new("GET, HEAD", "/healthz", To::Alive),
    Route::new("GET, HEAD", "/readyz", To::Ready),
    Route::new("GET, HEAD", "/", To::File(ui::File::Page)),
    Route::new("GET, HEAD", "/ui/app.js", To::File(ui::File::Script)),
    Route::new("GET, HEAD", "/ui/style.css", To::File(ui::File::Style)),
    Route::new("GET, HEAD", "/ui/uplot.js", To::File(ui::File::Charts)),
    Route::new("GET, HEAD", "/ui/uplot.css", To::File(ui::File::ChartStyle)),
    Route::new("GET", "/v1/live", To::Live),
    Route::new("GET, HEAD", "/v1/ids/{id}", To::Id),
    Route::new("POST, DELETE", "/v1/drain", To::Drain),
    Route::new("GET, HEAD", "/v1/status", To::Status),
    Route::new("GET, HEAD", "/metrics", To::Metrics),
    Route::new("GET, HEAD", "/cache", To::Cache),
    Route::new("GET, HEAD", "/db", To::Db),
    Route::new("GET, HEAD, POST", "/v1/tags", To::Records(Records::Tags)),
    Route::new("GET, HEAD, PATCH, DELETE", "/v1/tags/{tag}", To::Records(Records::Tag)),
    Route::new("POST", "/v1/tags/{tag}/advance", To::Records(Records::TagAdvance)),
    Route::new("POST", "/v1/tags/{tag}/rekey", To::Records(Records::TagRekey)),
    Route::new("PUT, DELETE", "/v1/tags/{tag}/cut", To::Records(Records::TagCut)),
    Route::new("POST", "/v1/sample", To::Records(Records::Sample)),
    Route::new("GET, HEAD", "/v1/tags/{tag}/ids/{id}", To::Records(Records::TagId)),
    Route::new("GET, HEAD", "/v1/workers", To::Records(Records::Workers)),
    Route::new("POST", "/v1/workers/{worker}/release", To::Records(Records::WorkerRelease)),
    Route::new("POST", "/v1/workers/{worker}/retire", To::Records(Records::WorkerRetire)),
    Route::new("POST", "/v1/clock/accept", To::Records(Records::ClockAccept)),
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
    let operation = found.as_ref().map_or(Operation::Other, |(route, _)| route.to.operation());
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

/// Answers a request by its route, to whoever has the role for it.
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
        let takes_some = match route.to {
            To::Cache | To::Db | To::Id | To::Records(Records::Tags) => true,
            To::Records(Records::Tag) => !matches!(head.method, Method::GET | Method::HEAD),
            To::Records(
                Records::TagAdvance
                | Records::TagRekey
                | Records::TagCut
                | Records::WorkerRelease
                | Records::WorkerRetire,
            ) => true,
            _ => false,
        };
        if !takes_some && head.uri.query().is_some_and(|query| !query.is_empty()) {
            return Err(Problem::bad_request("this route takes no parameters"));
        }
    }
    if !matches!(head.method, Method::GET | Method::HEAD) {
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
        // It changes nothing.
        if route.to == To::Records(Records::Sample) {
            let (tag, spec) = body::json::<CreateTag>(&asked.head.headers, &asked.body)?.read()?;
            let node = Arc::clone(caller);
            return shown(async move { tags::sample(&node, &tag, spec).await }).await;
        }
        return change(caller.clone(), asked).await;
    }
    let query = head.uri.query().unwrap_or_default();
    let node = Arc::clone(caller);
    match route.to {
        To::Alive => Ok(reply::text(StatusCode::OK, "ok")),
        To::Ready => match node.health() {
            health if health.can_answer() => Ok(reply::text(StatusCode::OK, health.to_string())),
            health => Err(Problem::unavailable(health.to_string())),
        },
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
        To::Records(records) => show(node, records, &parameters, query).await,
    }
}

/// Shows what is about tags and worker ids.
async fn show(
    node: Arc<Node>,
    records: Records,
    parameters: &[&str],
    query: &str,
) -> Result<Reply, Problem> {
    let decoded = |at: usize| parameters.get(at).map_or(Ok(String::new()), |it| decode(it));
    match records {
        Records::Tags => {
            let part = Part::of(query)?;
            shown(async move { tags::list(&node, &part).await }).await
        }
        Records::Tag => {
            let tag = decoded(0)?;
            let (tag, version) = detached(async move { tags::show(&node, &tag).await }).await?;
            Ok(with_version(reply::json(StatusCode::OK, &tag), version))
        }
        Records::TagId => {
            let (tag, id) = (decoded(0)?, decoded(1)?);
            shown(async move { tags::decode(&node, &tag, &id).await }).await
        }
        Records::Workers => shown(async move { workers::list(&node).await }).await,
        Records::TagAdvance
        | Records::TagRekey
        | Records::TagCut
        | Records::Sample
        | Records::WorkerRelease
        | Records::WorkerRetire
        | Records::ClockAccept => Err(Problem::not_found("this route only changes")),
    }
}

/// A request that changes something.
struct Asked {
    to: To,
    /// As they stand in the path.
    parameters: Vec<String>,
    head: Parts,
    body: Bytes,
    request: RequestId,
}

/// Does what a request asks for, and writes that to the audit log; a stop waits for both.
async fn change(caller: Caller, asked: Asked) -> Result<Reply, Problem> {
    let changes = caller.changes.clone();
    detached(changes.track_future(async move {
        let asked = Arc::new(asked);
        // In a task of its own: one that panics leaves a line, too.
        let performed = {
            let (node, asked) = (Arc::clone(&caller), Arc::clone(&asked));
            tokio::spawn(async move { perform(&node, &asked).await }.in_current_span())
        };
        let done = performed.await.unwrap_or_else(|_| Err(failed()));
        let head = &asked.head;
        let (status, problem) = match &done {
            Ok(reply) => (reply.status(), None),
            Err(problem) => (problem.status(), Some(problem.detail.clone())),
        };
        let change = Change {
            time: jiff::Timestamp::now().to_string(),
            caller: caller.name().to_owned(),
            address: caller.address.map(|address| address.to_string()),
            request: asked.request.to_string(),
            method: head.method.to_string(),
            path: head.uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned(),
            body: Some(&asked.body)
                .filter(|body| body.len() <= audit::LARGEST_BODY && asked.to != To::Drain)
                .and_then(|body| serde_json::from_slice(body).ok()),
            status: status.as_u16(),
            problem,
        };
        caller.audit.write(change).await;
        done
    }))
    .await
}

/// Does what a request asks for.
async fn perform(node: &Node, asked: &Asked) -> Result<Reply, Problem> {
    let Asked { to, parameters, head, body, .. } = asked;
    let first = || parameters.first().map_or(Ok(String::new()), |it| decode(it));
    let ok = StatusCode::OK;
    let records = match to {
        To::Drain => {
            node.drain(head.method == "POST");
            return Ok(status::show(node));
        }
        To::Records(records) => records,
        _ => return Err(Problem::not_found("this route changes nothing")),
    };
    if head.headers.contains_key(IF_MATCH)
        && (*records, &head.method) != (Records::Tag, &Method::PATCH)
    {
        let why = "If-Match: only PATCH of a tag goes by a version";
        return Err(Problem::bad_request(why));
    }
    let how = How::of(head.uri.query().unwrap_or_default())?;
    if how.confirm.is_some() && (*records, &head.method) != (Records::Tag, &Method::DELETE) {
        return Err(Problem::bad_request("confirm: only a deletion is confirmed by it"));
    }
    let dry_run = how.dry_run;
    match (records, head.method.as_str()) {
        (Records::Tags, _) => {
            let (tag, spec) = body::json::<CreateTag>(&head.headers, body)?.read()?;
            let status = if dry_run { ok } else { StatusCode::CREATED };
            Ok(reply::json(status, &tags::create(node, &tag, spec, dry_run).await?))
        }
        (Records::Tag, "PATCH") => {
            let change = body::json::<ChangeTag>(&head.headers, body)?.read()?;
            let expected = expected(&head.headers)?;
            let changed = tags::change(node, &first()?, change, &expected, dry_run).await?;
            Ok(with_version(reply::json(ok, &changed.0), changed.1))
        }
        (Records::Tag, _) => {
            let gone = tags::delete(node, &first()?, &how, &parameters[0]).await?;
            Ok(reply::json(ok, &gone))
        }
        (Records::TagAdvance, _) => {
            let advance = body::json(&head.headers, body)?;
            Ok(reply::json(ok, &tags::advance(node, &first()?, &advance, dry_run).await?))
        }
        (Records::TagRekey, _) => {
            Ok(reply::json(ok, &tags::rekey(node, &first()?, dry_run).await?))
        }
        (Records::TagCut, method) => {
            Ok(reply::json(ok, &tags::cut(node, &first()?, method == "PUT", dry_run).await?))
        }
        (Records::WorkerRelease, _) => {
            let ReleaseWorker { holder_is_dead } = body::json(&head.headers, body)?;
            let worker = workers::worker(&parameters[0])?;
            Ok(reply::json(ok, &workers::release(node, worker, holder_is_dead, dry_run).await?))
        }
        (Records::WorkerRetire, _) => {
            let RetireWorker { for_good } = body::json(&head.headers, body)?;
            let worker = workers::worker(&parameters[0])?;
            Ok(reply::json(ok, &workers::retire(node, worker, for_good, dry_run).await?))
        }
        (Records::ClockAccept, _) => {
            let AcceptClock { clock_is_right } = body::json(&head.headers, body)?;
            Ok(reply::json(ok, &workers::accept_clock(node, clock_is_right).await?))
        }
        (Records::TagId | Records::Workers | Records::Sample, _) => {
            Err(Problem::not_found("this route changes nothing"))
        }
    }
}

/// The versions of which a record may be, by `If-Match` (RFC 9110, section 13.1.1); none where any will
/// do.
fn expected(headers: &HeaderMap) -> Result<Vec<String>, Problem> {
    let mut versions = Vec::new();
    for list in headers.get_all(IF_MATCH) {
        for version in list.to_str().unwrap_or("not text").split(',').map(str::trim) {
            if version.is_empty() {
                continue;
            }
            // A proxy that compresses an answer makes its version a weak one.
            let version = version.strip_prefix("W/").unwrap_or(version);
            let is_tag = version.len() >= 2 && version.starts_with('"') && version.ends_with('"');
            if !is_tag && version != "*" {
                let why = "If-Match: give the ETag of the record as it was shown, in its quotes";
                return Err(Problem::bad_request(why));
            }
            versions.push(version.to_owned());
        }
    }
    // One that may be any adds nothing.
    Ok(if versions.iter().any(|version| version == "*") { Vec::new() } else { versions })
}

/// The answer with the version of the record that it shows.
fn with_version(mut reply: Reply, version: HeaderValue) -> Reply {
    reply.headers_mut().insert(ETAG, version);
    reply
}

/// A part of a path, as it was before it was encoded.
fn decode(part: &str) -> Result<String, Problem> {
    decode_key(part).map(Cow::into_owned)
}

/// How a change is made: `?confirm=…&dry_run=true`.
#[derive(Default)]
struct How {
    /// The tag, repeated.
    confirm: Option<String>,
    /// Everything is checked and nothing is written; the answer is as if it were.
    dry_run: bool,
}

impl How {
    fn of(query: &str) -> Result<Self, Problem> {
        let mut how = Self::default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("confirm", tag)) => how.confirm = Some(decode(tag)?),
                Some(("dry_run", "true")) => how.dry_run = true,
                Some(("dry_run", "false")) => how.dry_run = false,
                _ => {
                    return Err(Problem::bad_request(
                        "unknown parameter: there are `confirm` and `dry_run`, which is true or false",
                    ));
                }
            }
        }
        Ok(how)
    }
}

/// As JSON.
async fn shown<T: Serialize + Send + 'static>(
    answer: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<Reply, Problem> {
    Ok(reply::json(StatusCode::OK, &detached(answer).await?))
}

/// Runs in a task, which goes on when the client has left.
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

/// The server made a mistake.
fn failed() -> Problem {
    Problem::new(Reason::Failed, "the request failed; the server's log says why")
}

/// Whether the caller has the role that a request needs. Where nobody is asked who he is, everybody of
/// this host may ask.
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

/// The hosts that a request names: whatever names one counts, since a proxy may look at another one.
/// `None` where one cannot be read.
fn named(headers: &HeaderMap, uri: &hyper::Uri) -> Option<Vec<Authority>> {
    let named = headers.get_all(HOST).iter();
    let named = named.map(|host| host.to_str().ok().and_then(|host| host.parse().ok()));
    named.chain(uri.authority().cloned().map(Some)).collect()
}

/// Whether a request does not come from a page of another host. A browser shows its user's certificate
/// whatever page asks.
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

/// Whether a request can only come from a program of this host.
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
