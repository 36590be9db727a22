//! The changes of operators over HTTP: each passes through [`change`], which writes the audit log.

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::header::{HeaderMap, IF_MATCH};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{Method, StatusCode};
use leaf_node::requests::{AcceptClock, ChangeTag, CreateTag};
use tracing::Instrument as _;

use super::super::body;
use super::super::problem::Problem;
use super::super::reply::{self, Reply};
use super::super::v1::parameters;
use super::tags::Target;
use super::{To, decode, detached, failed, status, with_version, workers};
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
    let ok = StatusCode::OK;
    if *to == To::Drain {
        node.drain(head.method == "POST");
        return Ok(status::show(node));
    }
    let how = How::of(head, *to)?;
    let dry_run = how.dry_run;
    let target = || {
        let name = parameters.first().map_or(Ok(String::new()), |it| decode(it))?;
        Target::of(node, &name, dry_run)
    };
    match (to, head.method.as_str()) {
        (To::Tags, _) => {
            let (tag, spec) = body::json::<CreateTag>(&head.headers, body)?.read()?;
            let status = if dry_run { ok } else { StatusCode::CREATED };
            Ok(reply::json(status, &Target::of(node, &tag, dry_run)?.create(spec).await?))
        }
        (To::Tag, "PATCH") => {
            let change = body::json::<ChangeTag>(&head.headers, body)?.read()?;
            let expected = expected(&head.headers)?;
            let changed = target()?.change(change, &expected).await?;
            Ok(with_version(reply::json(ok, &changed.0), changed.1))
        }
        (To::Tag, _) => {
            let gone = target()?.delete(how.confirm.as_deref(), &parameters[0]).await?;
            Ok(reply::json(ok, &gone))
        }
        (To::TagAdvance, _) => {
            let advance = body::json(&head.headers, body)?;
            Ok(reply::json(ok, &target()?.advance(&advance).await?))
        }
        (To::TagReopen, _) => {
            let reopen = body::json(&head.headers, body)?;
            Ok(reply::json(ok, &target()?.reopen(reopen).await?))
        }
        (To::TagRekey, _) => Ok(reply::json(ok, &target()?.rekey().await?)),
        (To::TagCut, method) => Ok(reply::json(ok, &target()?.cut(method == "PUT").await?)),
        (To::WorkerRelease, _) => {
            let asked = body::json(&head.headers, body)?;
            Ok(reply::json(ok, &workers::release(node, &parameters[0], &asked, dry_run).await?))
        }
        (To::WorkerRetire, _) => {
            let asked = body::json(&head.headers, body)?;
            Ok(reply::json(ok, &workers::retire(node, &parameters[0], &asked, dry_run).await?))
        }
        (To::ClockAccept, _) => {
            let AcceptClock { clock_is_right } = body::json(&head.headers, body)?;
            Ok(reply::json(ok, &workers::accept_clock(node, clock_is_right).await?))
        }
        _ => Err(Problem::not_found("this route changes nothing")),
    }
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
    fn of(head: &Parts, to: To) -> Result<Self, Problem> {
        let to = (to, &head.method);
        if head.headers.contains_key(IF_MATCH) && to != (To::Tag, &Method::PATCH) {
            let why = "If-Match: only PATCH of a tag goes by a version";
            return Err(Problem::bad_request(why));
        }
        let unknown =
            "unknown parameter: there are `confirm` and `dry_run`, which is true or false";
        let [confirm, dry_run] = parameters(head.uri.query(), ["confirm", "dry_run"], unknown)?;
        if confirm.is_some() && to != (To::Tag, &Method::DELETE) {
            return Err(Problem::bad_request("confirm: only a deletion is confirmed by it"));
        }
        let dry_run = match dry_run {
            Some("true") => true,
            Some("false") | None => false,
            Some(_) => return Err(Problem::bad_request(unknown)),
        };
        Ok(Self { confirm: confirm.map(decode).transpose()?, dry_run })
    }
}
