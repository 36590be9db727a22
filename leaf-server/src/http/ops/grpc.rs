//! `leaf.v1.AdminService`: what the routes of the ops listener do, over gRPC, for whoever they are
//! for.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use http_body_util::Full;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::http::request::Parts;
use leaf_core::{Step, WorkerId};
use leaf_node::records::{TagShown, WorkerShown};
use leaf_proto::v1::admin_service_server::{AdminService, AdminServiceServer, SERVICE_NAME};
use leaf_proto::v1::{
    self, AdvanceTagRequest, AdvanceTagResponse, ChangeTagRequest, CreateTagRequest,
    DecodeTagIdRequest, DecodeTagIdResponse, DeleteTagRequest, DeleteTagResponse, FailedStore,
    GetTagRequest, ListTagsRequest, ListTagsResponse, ListWorkersRequest, ListWorkersResponse,
    RekeyTagRequest, ReleaseWorkerRequest, ReleaseWorkerResponse, RetireWorkerRequest,
    RetireWorkerResponse, Tag, Worker,
};
use leaf_segment::{Order, Period, TagChange, TagSpec};
use tonic::codegen::Service as _;
use tonic::{Code, Request, Response, Status};

use super::super::body::{self, RequestBody};
use super::super::problem::Problem;
use super::super::reply::Reply;
use super::super::reply_body::ReplyBody;
use super::{authorize, detached, tags, workers};
use crate::grpc::{self, bad_request as bad};
use crate::node::Node;

/// So many tags are in one message of a list: clients take 4 MiB by default.
const TAGS: usize = 500;

/// Answers a request of gRPC.
pub(super) async fn answer(node: &Arc<Node>, head: &Parts, body: &mut RequestBody) -> Reply {
    let reply = match call(node, head, body).await {
        Ok(reply) => reply,
        Err(problem) => Status::from(problem).into_http(),
    };
    reply.map(ReplyBody::grpc)
}

/// Checks service, token and message, then lets the service answer. The checks are those of the
/// HTTP routes, so that neither way is easier than the other.
async fn call(
    node: &Arc<Node>,
    head: &Parts,
    body: &mut RequestBody,
) -> Result<hyper::Response<tonic::body::Body>, Problem> {
    if head.uri.path().split('/').nth(1) != Some(SERVICE_NAME) {
        let text = format!("no such service: the ops listener has {SERVICE_NAME}");
        return Ok(Status::unimplemented(text).into_http());
    }
    authorize(node.live.token(), node.ops.ip(), &head.headers, &head.uri)?;
    let message = body::read(body, body::OF_OPERATORS).await?;
    if let Err(refused) = grpc::check(&message, body::OF_OPERATORS) {
        return Ok(refused.into_http());
    }
    let mut request = hyper::Request::new(Full::<Bytes>::new(message));
    *request.uri_mut() = head.uri.clone();
    *request.method_mut() = head.method.clone();
    *request.version_mut() = head.version;
    *request.headers_mut() = head.headers.clone();
    let mut service = AdminServiceServer::new(Admin { node: Arc::clone(node) });
    detached(async move {
        let Ok(reply) = service.call(request).await;
        Ok(grpc::explained(reply))
    })
    .await
}

/// A refusal as gRPC has it.
impl From<Problem> for Status {
    fn from(problem: Problem) -> Self {
        let code = match (problem.kind, problem.status) {
            ("tag-exists", _) => Code::AlreadyExists,
            ("used-before", _) => Code::FailedPrecondition,
            ("mode-disabled", _) => Code::FailedPrecondition,
            // Done in part, or not known to be done.
            ("half-deleted" | "unclear", _) => Code::Aborted,
            (_, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE) => Code::InvalidArgument,
            (_, StatusCode::UNAUTHORIZED) => Code::Unauthenticated,
            (_, StatusCode::FORBIDDEN) => Code::PermissionDenied,
            (_, StatusCode::NOT_FOUND) => Code::NotFound,
            (_, StatusCode::REQUEST_TIMEOUT) => Code::DeadlineExceeded,
            (_, StatusCode::CONFLICT) => Code::FailedPrecondition,
            (_, StatusCode::SERVICE_UNAVAILABLE) => Code::Unavailable,
            _ => Code::Internal,
        };
        grpc::with_reason(code, problem.kind, problem.detail)
    }
}

/// Administers the stores and the registry of a node.
struct Admin {
    node: Arc<Node>,
}

/// What a method of the service returns.
type Answer<T> = Result<Response<T>, Status>;

/// A tag as a message; the fields are those of the JSON.
fn tag(shown: TagShown) -> Tag {
    Tag {
        tag: shown.tag,
        max_id: shown.max_id.unwrap_or(leaf_segment::SEALED),
        order: shown.order.map_or(v1::Order::Unspecified, grpc::order).into(),
        shape: shown.shape,
        key: shown.key.map(u32::from),
        reset: match shown.reset {
            None => v1::Period::Unspecified,
            Some(Period::Daily) => v1::Period::Daily,
            Some(Period::Monthly) => v1::Period::Monthly,
            Some(Period::Yearly) => v1::Period::Yearly,
        }
        .into(),
        slice: shown.slice,
        slice_bits: shown.slice_bits.map(u32::from),
        text: shown.text,
        time_zone: shown.time_zone.map(Into::into),
        step: shown.step,
        enabled: shown.enabled,
        min_step: shown.min_step,
        max_step: shown.max_step,
        max_take: shown.max_take,
        description: shown.description,
        store: shown.store,
    }
}

/// The next tags of a list, as many as a message has.
fn part(tags: &mut impl Iterator<Item = TagShown>) -> Vec<Tag> {
    tags.take(TAGS).map(tag).collect()
}

/// A worker id as a message.
fn worker(shown: WorkerShown) -> Worker {
    Worker {
        worker: shown.worker,
        state: shown.state.into(),
        holder: shown.holder,
        last_report_unix_millis: shown.last_report_ms.map(millis),
        ceiling_unix_millis: shown.ceiling_ms.map(millis),
        term: shown.term,
        remark: shown.remark,
    }
}

/// A time as the messages have it.
fn millis(at: u64) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}

/// A step where one is given.
fn step(name: &str, value: Option<u32>) -> Result<Option<Step>, Status> {
    Ok(value.map(|value| tags::step(name, value.into())).transpose()?)
}

/// A limit where one is given; 0 stands for the servers' own.
fn limit(name: &str, value: Option<u32>) -> Result<Option<Option<Step>>, Status> {
    Ok(match value {
        None => None,
        Some(0) => Some(None),
        value => Some(step(name, value)?),
    })
}

/// What is to be created. A number of an enumeration that this version does not know is refused,
/// not ignored: it may be what makes ids unique.
fn spec(new: CreateTagRequest) -> Result<TagSpec, Status> {
    let order = match v1::Order::try_from(new.order) {
        Ok(v1::Order::Unspecified) => None,
        Ok(v1::Order::Relaxed) => Some(Order::Relaxed),
        Ok(v1::Order::Strict) => Some(Order::Strict),
        Err(_) => return Err(bad("order: this version has relaxed and strict")),
    };
    let reset = match v1::Period::try_from(new.reset) {
        Ok(v1::Period::Unspecified) => None,
        Ok(v1::Period::Daily) => Some(Period::Daily),
        Ok(v1::Period::Monthly) => Some(Period::Monthly),
        Ok(v1::Period::Yearly) => Some(Period::Yearly),
        Err(_) => return Err(bad("reset: this version has daily, monthly and yearly")),
    };
    let shape = new.shape.map(|shape| shape.parse()).transpose();
    let slice_bits = new.slice_bits.map(u8::try_from).transpose();
    Ok(TagSpec {
        step: step("step", new.step)?,
        order,
        shape: shape.map_err(|error: String| bad(format!("shape: {error}")))?.unwrap_or_default(),
        slice: new.slice,
        slice_bits: slice_bits.map_err(|_| bad("slice_bits: give 63 or 53"))?,
        reset,
        time_zone: new.time_zone,
        text: new.text,
        first: new.first,
        description: new.description,
    })
}

#[tonic::async_trait]
impl AdminService for Admin {
    type ListTagsStream = Pin<Box<dyn Stream<Item = Result<ListTagsResponse, Status>> + Send>>;

    async fn list_tags(&self, _: Request<ListTagsRequest>) -> Answer<Self::ListTagsStream> {
        let failed = |it: tags::Failed| FailedStore { store: it.store, detail: it.detail };
        let all = tags::list(&self.node).await?;
        let failed = all.failed.into_iter().map(failed).collect();
        let mut tags = all.tags.into_iter();
        let first = ListTagsResponse { tags: part(&mut tags), failed };
        let rest = std::iter::from_fn(move || {
            let tags = part(&mut tags);
            (!tags.is_empty()).then(|| ListTagsResponse { tags, failed: Vec::new() })
        });
        let parts = [first].into_iter().chain(rest).map(Ok);
        Ok(Response::new(Box::pin(stream::iter(parts))))
    }

    async fn get_tag(&self, request: Request<GetTagRequest>) -> Answer<Tag> {
        let GetTagRequest { tag: name } = request.into_inner();
        Ok(Response::new(tag(tags::show(&self.node, &name).await?)))
    }

    async fn create_tag(&self, request: Request<CreateTagRequest>) -> Answer<Tag> {
        let request = request.into_inner();
        let name = request.tag.clone();
        let made = tags::create(&self.node, &name, spec(request)?).await?;
        Ok(Response::new(tag(made)))
    }

    async fn change_tag(&self, request: Request<ChangeTagRequest>) -> Answer<Tag> {
        let request = request.into_inner();
        let change = TagChange {
            step: step("step", request.step)?,
            enabled: request.enabled,
            min_step: limit("min_step", request.min_step)?,
            max_step: limit("max_step", request.max_step)?,
            max_take: limit("max_take", request.max_take)?,
        };
        Ok(Response::new(tag(tags::change(&self.node, &request.tag, change).await?)))
    }

    async fn advance_tag(&self, request: Request<AdvanceTagRequest>) -> Answer<AdvanceTagResponse> {
        let AdvanceTagRequest { tag: name, at_least, far } = request.into_inner();
        let done = tags::advance(&self.node, &name, at_least, far.into()).await?;
        Ok(Response::new(AdvanceTagResponse { tag: Some(tag(done.tag)), raised: done.raised }))
    }

    async fn rekey_tag(&self, request: Request<RekeyTagRequest>) -> Answer<Tag> {
        let RekeyTagRequest { tag: name } = request.into_inner();
        Ok(Response::new(tag(tags::rekey(&self.node, &name).await?)))
    }

    async fn delete_tag(&self, request: Request<DeleteTagRequest>) -> Answer<DeleteTagResponse> {
        let DeleteTagRequest { tag: name, confirm } = request.into_inner();
        let gone = tags::delete(&self.node, &name, Some(&confirm), "as `confirm`").await?;
        let tags::Gone { deleted, next_first, ids_below } = gone;
        let deleted = Some(tag(deleted));
        Ok(Response::new(DeleteTagResponse { deleted, next_first, ids_below }))
    }

    async fn decode_tag_id(
        &self,
        request: Request<DecodeTagIdRequest>,
    ) -> Answer<DecodeTagIdResponse> {
        let DecodeTagIdRequest { tag: name, id } = request.into_inner();
        let told = tags::decode(&self.node, &name, &id).await?;
        Ok(Response::new(DecodeTagIdResponse {
            tag: told.tag,
            id: told.id,
            number: told.number,
            key: told.key.map(u32::from),
            period: told.period,
            granted: told.granted,
        }))
    }

    async fn list_workers(&self, _: Request<ListWorkersRequest>) -> Answer<ListWorkersResponse> {
        let all = workers::list(&self.node).await?.workers;
        Ok(Response::new(ListWorkersResponse { workers: all.into_iter().map(worker).collect() }))
    }

    async fn release_worker(
        &self,
        request: Request<ReleaseWorkerRequest>,
    ) -> Answer<ReleaseWorkerResponse> {
        let ReleaseWorkerRequest { worker, holder_is_dead } = request.into_inner();
        let done = workers::release(&self.node, WorkerId::new(worker), holder_is_dead).await?;
        let free_from_unix_millis = millis(done.free_from_ms.get());
        Ok(Response::new(ReleaseWorkerResponse { worker, free_from_unix_millis }))
    }

    async fn retire_worker(
        &self,
        request: Request<RetireWorkerRequest>,
    ) -> Answer<RetireWorkerResponse> {
        let RetireWorkerRequest { worker, for_good } = request.into_inner();
        workers::retire(&self.node, WorkerId::new(worker), for_good).await?;
        Ok(Response::new(RetireWorkerResponse { worker }))
    }
}
