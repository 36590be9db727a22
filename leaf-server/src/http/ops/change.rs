//! The changes of operators over HTTP: each passes through [`change`], which writes the audit log.

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::header::{HeaderMap, IF_MATCH};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{Method, StatusCode};
use leaf_node::records::FreedShown;
use leaf_node::requests::{AcceptClock, ChangeTag, CreateTag, ReleaseWorker, RetireWorker};
use serde_json::Value;
use tracing::Instrument as _;

use super::super::body;
use super::super::problem::Problem;
use super::super::reply::{self, Reply};
use super::{Records, To, decode, detached, failed, status, tags, with_version, workers};
use crate::audit::{self, Change};
use crate::caller::Caller;
use crate::node::Node;
use crate::request::RequestId;

/// A request that changes something.
pub(super) struct Asked {
    pub(super) to: To,
    /// The parameters in the path, still percent-encoded.
    pub(super) parameters: Vec<String>,
    pub(super) head: Parts,
    pub(super) body: Bytes,
    pub(super) request: RequestId,
}

/// Performs the change, and writes it to the audit log. A stop of the server waits for both.
pub(super) async fn change(caller: Caller, asked: Asked) -> Result<Reply, Problem> {
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

/// Performs the change that a request asks for.
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
    let how = How::of(head, *records)?;
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
            let confirm = how.confirm.as_deref();
            let gone = tags::delete(node, &first()?, confirm, dry_run, &parameters[0]).await?;
            Ok(reply::json(ok, &gone))
        }
        (Records::TagAdvance, _) => {
            let advance = body::json(&head.headers, body)?;
            Ok(reply::json(ok, &tags::advance(node, &first()?, &advance, dry_run).await?))
        }
        (Records::TagReopen, _) => {
            let reopen = body::json(&head.headers, body)?;
            Ok(reply::json(ok, &tags::reopen(node, &first()?, reopen, dry_run).await?))
        }
        (Records::TagRekey, _) => {
            Ok(reply::json(ok, &tags::rekey(node, &first()?, dry_run).await?))
        }
        (Records::TagCut, method) => {
            Ok(reply::json(ok, &tags::cut(node, &first()?, method == "PUT", dry_run).await?))
        }
        (Records::WorkerRelease, _) => Ok(reply::json(ok, &release(node, asked, dry_run).await?)),
        (Records::WorkerRetire, _) => Ok(reply::json(ok, &retire(node, asked, dry_run).await?)),
        (Records::ClockAccept, _) => {
            let AcceptClock { clock_is_right } = body::json(&head.headers, body)?;
            Ok(reply::json(ok, &workers::accept_clock(node, clock_is_right).await?))
        }
        (Records::TagId | Records::Workers | Records::Sample, _) => {
            Err(Problem::not_found("this route changes nothing"))
        }
    }
}

async fn release(node: &Node, asked: &Asked, dry_run: bool) -> Result<FreedShown, Problem> {
    let ReleaseWorker { holder_is_dead } = body::json(&asked.head.headers, &asked.body)?;
    let worker = workers::worker(&asked.parameters[0])?;
    workers::release(node, worker, holder_is_dead, dry_run).await
}

async fn retire(node: &Node, asked: &Asked, dry_run: bool) -> Result<Value, Problem> {
    let RetireWorker { for_good } = body::json(&asked.head.headers, &asked.body)?;
    let worker = workers::worker(&asked.parameters[0])?;
    workers::retire(node, worker, for_good, dry_run).await
}

/// The versions of the record that `If-Match` allows (RFC 9110, section 13.1.1). Empty if every
/// version is allowed.
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

/// The query parameters of a change: `?confirm=…&dry_run=true`.
#[derive(Default)]
pub(super) struct How {
    /// The name of the tag, which the client repeats to confirm a deletion; `None` if it was not
    /// given.
    pub(super) confirm: Option<String>,
    /// Whether to check everything and write nothing. The answer is that of the real change.
    pub(super) dry_run: bool,
}

impl How {
    /// Reads the parameters of a request for this route, and refuses those that the route does not
    /// use, `If-Match` included.
    fn of(head: &Parts, records: Records) -> Result<Self, Problem> {
        let to = (records, &head.method);
        if head.headers.contains_key(IF_MATCH) && to != (Records::Tag, &Method::PATCH) {
            let why = "If-Match: only PATCH of a tag goes by a version";
            return Err(Problem::bad_request(why));
        }
        let how = Self::of_query(head.uri.query().unwrap_or_default())?;
        if how.confirm.is_some() && to != (Records::Tag, &Method::DELETE) {
            return Err(Problem::bad_request("confirm: only a deletion is confirmed by it"));
        }
        Ok(how)
    }

    fn of_query(query: &str) -> Result<Self, Problem> {
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
