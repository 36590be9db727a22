//! `leaf.v1.IdService`.
//!
//! The methods translate messages to calls of `ids.rs` and back. Counts have the limits that they
//! have over HTTP, and a list has at most [`MOST`] ids. Lists and streams hold permits of their
//! connection's [`Budget`]. A refusal carries the word that HTTP has in its problem type.

use std::pin::Pin;

use futures_util::{Stream, stream};
use leaf_core::{Clock as _, Id, IdRange, SystemClock};
use leaf_proto::v1::id_service_server::IdService;
use leaf_proto::v1::{
    ClockRequest, ClockResponse, DecodeRequest, DecodeResponse, DescribeServerRequest,
    DescribeServerResponse, DescribeTagRequest, DescribeTagResponse, LeaseRangeRequest,
    LeaseRangeResponse, NextIdRequest, NextIdResponse, NextIdsRequest, NextIdsResponse,
    ReturnRangeRequest, ReturnRangeResponse, next_id_request, next_ids_request,
};
use leaf_segment::{LeasedRange, TagHandle};
use leaf_shape::Order;
use tonic::{Request, Response, Status};

use super::budget::{Budget, Slot};
use super::status::{bad_request as bad, refused};
use crate::caller::Caller;
use crate::ids::{self, IdError};
use crate::metrics::Operation;
use crate::node::Node;
use crate::refusal::{Face, Reason};
use crate::request::RequestId;

/// The most ids of one message: the whole message is built in memory.
const MOST: usize = 10_000;

/// The text for a request whose `source` is not set, or is set to a variant that only a later
/// version of the protocol has (which decodes as not set).
const NO_SOURCE: &str = "source: give a tag, or snowflake";

/// The id service. The node comes with each request's caller.
#[derive(Clone)]
pub(super) struct Ids;

/// Returns the [`Caller`], the [`RequestId`] or the [`Budget`] of a request, which its connection
/// has put into its extensions.
fn of<E: Clone + Send + Sync + 'static, T>(request: &Request<T>) -> Result<E, Status> {
    let put = request.extensions().get().cloned();
    put.ok_or_else(|| Status::internal("the request has no caller, id or budget"))
}

/// The next id of a tag. Waits if none is in memory.
async fn next(caller: &Caller, tag: &str) -> Result<Id, IdError> {
    ids::next(caller, &ids::handle(caller, tag).await?).await
}

/// What a method of the service returns.
type Answer<T> = Result<Response<T>, Status>;

/// Takes `count` ids of a source.
async fn take(
    caller: &Caller,
    source: &next_ids_request::Source,
    count: usize,
) -> Result<Vec<i64>, IdError> {
    match source {
        next_ids_request::Source::Tag(tag) => {
            let handle = ids::handle(caller, tag).await?;
            let ids = ids::take(caller, &handle, count).await?;
            Ok(ids.map(Id::get).collect())
        }
        next_ids_request::Source::Snowflake(_) => {
            let runs = ids::snowflake_take(caller, count).await?;
            Ok(runs.into_iter().flatten().map(Id::get).collect())
        }
    }
}

/// The number of ids that a request asks for; `asked` is 0 where the client gave none, which counts
/// as 1.
fn count(node: &Node, asked: u32) -> Result<usize, Status> {
    let most = ids::most_ids(node).min(MOST);
    match asked.max(1) as usize {
        count if count <= most => Ok(count),
        _ => Err(bad(format!("count: give 1 to {most}"))),
    }
}

/// The error that ends a stream after its beginning. It is counted as a refusal here, since the
/// call was already counted as answered.
fn refused_late(node: &Node, mut status: Status, reason: Reason, request: &RequestId) -> Status {
    node.requests.refused(Face::Grpc, Operation::Take, reason, Some(request));
    if let Ok(id) = request.to_string().parse() {
        status.metadata_mut().insert("x-request-id", id);
    }
    status
}

/// Puts the slot into an answer, whose messages then hold the slot's permits.
fn counted<T>(mut answer: Response<T>, slot: Slot) -> Response<T> {
    answer.extensions_mut().insert(slot);
    answer
}

#[tonic::async_trait]
impl IdService for Ids {
    async fn next_id(&self, request: Request<NextIdRequest>) -> Answer<NextIdResponse> {
        let caller = &of::<Caller, _>(&request)?;
        let id = match request.into_inner().source.ok_or_else(|| bad(NO_SOURCE))? {
            next_id_request::Source::Tag(tag) => {
                match ids::known(caller, &tag, TagHandle::try_next).flatten() {
                    Some(id) => id,
                    None => next(caller, &tag).await?,
                }
            }
            next_id_request::Source::Snowflake(_) => match ids::snowflake_at_once(caller) {
                Some(id) => id,
                None => ids::snowflake_next(caller).await?,
            },
        };
        Ok(Response::new(NextIdResponse { id: id.get() }))
    }

    async fn next_ids(&self, request: Request<NextIdsRequest>) -> Answer<NextIdsResponse> {
        let (caller, budget): (Caller, Budget) = (of(&request)?, of(&request)?);
        let request = request.into_inner();
        let count = count(&caller, request.count)?;
        let source = request.source.ok_or_else(|| bad(NO_SOURCE))?;
        let slot = Slot::default();
        budget.hold_list(count, &slot).await;
        let ids = take(&caller, &source, count).await?;
        Ok(counted(Response::new(NextIdsResponse { ids }), slot))
    }

    type StreamIdsStream = Pin<Box<dyn Stream<Item = Result<NextIdsResponse, Status>> + Send>>;

    /// Takes ids before the client reads them, as far as the windows of HTTP/2 reach: if the client
    /// leaves, some thousands are lost.
    async fn stream_ids(&self, request: Request<NextIdsRequest>) -> Answer<Self::StreamIdsStream> {
        let (caller, budget): (Caller, Budget) = (of(&request)?, of(&request)?);
        let id = of::<RequestId, _>(&request)?;
        let request = request.into_inner();
        let count = count(&caller, request.count)?;
        let source = request.source.ok_or_else(|| bad(NO_SOURCE))?;
        if let next_ids_request::Source::Tag(tag) = &source {
            let handle = ids::handle(&caller, tag).await?;
            if handle.meaning().order == Order::Strict {
                let text = "the tag is in strict order, which ids that are taken ahead would break: ask for them with \
                            NextIds";
                return Err(refused(Reason::StrictOrder, text));
            }
        }
        let slot = Slot::default();
        // Before there is an answer, since even an empty one has a buffer.
        budget.hold_message(count, &slot).await;
        let state = Some((caller, source, budget, slot.clone(), id));
        let answers = stream::unfold(state, move |state| async move {
            let (caller, source, budget, slot, id) = state?;
            budget.hold_message(count, &slot).await;
            if caller.stopping() {
                let text = "this server stops: ask another one";
                let reason = Reason::Unavailable;
                let error = refused_late(&caller, refused(reason, text), reason, &id);
                return Some((Err(error), None));
            }
            match take(&caller, &source, count).await {
                Ok(ids) => {
                    // Pauses after each message, so that other tasks of this thread run, and the
                    // connection can see whether the client still has room.
                    tokio::task::yield_now().await;
                    Some((Ok(NextIdsResponse { ids }), Some((caller, source, budget, slot, id))))
                }
                Err(error) => {
                    let reason = error.reason();
                    Some((Err(refused_late(&caller, error.into(), reason, &id)), None))
                }
            }
        });
        Ok(counted(Response::new(Box::pin(answers)), slot))
    }

    async fn lease_range(&self, request: Request<LeaseRangeRequest>) -> Answer<LeaseRangeResponse> {
        let caller: Caller = of(&request)?;
        let LeaseRangeRequest { tag, count } = request.into_inner();
        let count = count as usize;
        if !(1..=ids::LARGEST_RANGE).contains(&count) {
            return Err(bad(format!("count: give 1 to {}", ids::LARGEST_RANGE)));
        }
        let handle = ids::handle(&caller, &tag).await?;
        let LeasedRange { range, ticket } = ids::lease(&caller, &handle, count).await?;
        Ok(Response::new(LeaseRangeResponse { start: range.start(), end: range.end(), ticket }))
    }

    async fn return_range(
        &self,
        request: Request<ReturnRangeRequest>,
    ) -> Answer<ReturnRangeResponse> {
        let caller: Caller = of(&request)?;
        let ReturnRangeRequest { tag, ticket, start, end } = request.into_inner();
        let range = IdRange::new(start, end);
        let range = range.ok_or_else(|| {
            let text =
                "start, end: give the first unused id, and the end of the range that was leased";
            bad(text)
        })?;
        let handle = ids::handle_of_lease(&caller, &tag).await?;
        let returned = ids::return_unused(&caller, &handle, ticket, range).await?;
        Ok(Response::new(ReturnRangeResponse { returned }))
    }

    async fn decode(&self, request: Request<DecodeRequest>) -> Answer<DecodeResponse> {
        let layout = of::<Caller, _>(&request)?.layout;
        let id = Id::new(request.into_inner().id);
        let parts = id.and_then(|id| layout.decode(id));
        let parts = parts.ok_or_else(|| bad("id: it is none of the configured layout"))?;
        let (datacenter, worker) = layout.datacenter_of(parts.worker);
        Ok(Response::new(DecodeResponse {
            unix_millis: i64::try_from(parts.timestamp.get()).unwrap_or(i64::MAX),
            worker,
            sequence: parts.sequence,
            datacenter: (layout.datacenter_bits() > 0).then_some(datacenter),
        }))
    }

    async fn clock(&self, _: Request<ClockRequest>) -> Answer<ClockResponse> {
        let now = SystemClock.wall_millis().get();
        Ok(Response::new(ClockResponse { unix_millis: i64::try_from(now).unwrap_or(i64::MAX) }))
    }

    async fn describe_tag(
        &self,
        request: Request<DescribeTagRequest>,
    ) -> Answer<DescribeTagResponse> {
        let caller: Caller = of(&request)?;
        let DescribeTagRequest { tag } = request.into_inner();
        let handle = ids::handle(&caller, &tag).await?;
        let facts = ids::facts(&caller, &handle);
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Ok(Response::new(DescribeTagResponse {
            tag,
            order: super::order(facts.order).into(),
            leases: facts.leases,
            step: facts.step,
            max_take: small(facts.max_take),
            max_count: small(facts.max_count.min(MOST)),
            generation: facts.generation,
        }))
    }

    async fn describe_server(
        &self,
        request: Request<DescribeServerRequest>,
    ) -> Answer<DescribeServerResponse> {
        let node: Caller = of(&request)?;
        Ok(Response::new(DescribeServerResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            zone: node.config.zone.clone(),
            weight: Some(node.live.config().weight),
            ready: node.health_lately().can_answer(),
            segment: node.ids.segments().is_some(),
            snowflake: node.ids.snowflake().is_some(),
        }))
    }
}
