//! Ids over gRPC, on a listener of its own, which shares its code and threads with those of HTTP
//! and the Redis protocol.
//!
//! tonic decodes and encodes messages; hyper serves the connections, as it does for HTTP/2. A
//! request with one message is read whole before it counts as under way, so that the listener can
//! close the connection of a client that sends slowly.

mod budget;
mod deadline;
mod ids;
mod request;
mod status;

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::AUTHORIZATION;
use hyper::service::Service;
use hyper::{Method, Request, Response, Version};
use leaf_core::Health;
use leaf_proto::v1;
use leaf_proto::v1::id_service_server::{IdServiceServer, SERVICE_NAME};
use tokio::time::Instant;
use tonic::Status;
use tonic::codegen::Service as TowerService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_reflection::server::Builder;

use self::budget::{Budget, Slot};
use self::ids::Ids;
use self::request::{check, explained, is_meant};
use self::status::{bad_request, reason_of, refused};
use crate::caller::{Client, Peer};
use crate::metrics::Operation;
use crate::node::Node;
use crate::refusal::{Face, Reason};
use crate::request::{HEADER, RequestId, in_span_once_it_waits};
use crate::serve::{
    Control, Keeping, Order, Protocol, Stream, UnderWay, Unread, open, serve_http2,
};

/// Converts an order to its form in messages.
const fn order(order: leaf_shape::Order) -> v1::Order {
    match order {
        leaf_shape::Order::Relaxed => v1::Order::Relaxed,
        leaf_shape::Order::Strict => v1::Order::Strict,
    }
}

/// The largest message of a request, in bytes: a tag has at most 512, and a connection may hold a
/// hundred messages.
const LARGEST: usize = 1024;
/// How long a message may take to arrive.
const ARRIVES: Duration = Duration::from_secs(10);
/// How many bytes are buffered for one answer. A client may ask for a hundred answers and read
/// nothing, which costs a hundred times as much.
const SEND_BUFFER: usize = 4 * 1024;
/// The interval at which a connection that was asked to end checks whether calls still wait for
/// their answers. It is closed when none does.
const LAST_ANSWERS: Duration = Duration::from_millis(300);
/// The name of the health service.
const HEALTH: &str = "grpc.health.v1.Health";
/// How often the health service looks at the node.
const LOOK: Duration = Duration::from_secs(1);

/// gRPC on a listener.
pub(crate) struct Grpc {
    node: Arc<Node>,
    services: Services,
}

/// The services that a path can name. Cheap to clone.
#[derive(Clone)]
struct Services {
    ids: IdServiceServer<Ids>,
    health: HealthServer<HealthService>,
    reflection: Reflect,
    /// The reflection service in its older version, `v1alpha`, which many tools still use.
    old_reflection: Reflect,
}

/// Answers requests to the reflection service, which describes the other services.
type Reflect = Arc<dyn Fn(Request<Incoming>) -> Answer<tonic::body::Body> + Send + Sync>;

/// An answer under way. Boxed, since each service has another type.
type Answer<B> = Pin<Box<dyn Future<Output = Result<Response<B>, Infallible>> + Send>>;

impl Grpc {
    /// Creates the services. Call this in a tokio runtime: it spawns a task that reports the node's
    /// health.
    pub(crate) fn new(node: Arc<Node>) -> Self {
        let reflection = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(leaf_proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let new = reflection().build_v1().expect("the descriptors are ours");
        let new = new.max_decoding_message_size(LARGEST);
        let old = reflection().build_v1alpha().expect("the descriptors are ours");
        let old = old.max_decoding_message_size(LARGEST);
        let reporter = HealthReporter::new();
        let services = Services {
            ids: IdServiceServer::new(Ids).max_decoding_message_size(LARGEST),
            health: HealthServer::new(HealthService::from_health_reporter(reporter.clone()))
                .max_decoding_message_size(LARGEST),
            reflection: Arc::new(move |request| new.clone().call(request)),
            old_reflection: Arc::new(move |request| old.clone().call(request)),
        };
        tokio::spawn(report(Arc::downgrade(&node), reporter));
        Self { node, services }
    }
}

/// Reports the node's health to the health service, until the node is dropped.
async fn report(node: std::sync::Weak<Node>, reporter: HealthReporter) {
    let mut told = None;
    loop {
        let Some(status) = node.upgrade().map(|node| match node.health() {
            Health::NotReady(_) => ServingStatus::NotServing,
            Health::Ready | Health::Degraded(_) => ServingStatus::Serving,
        }) else {
            return;
        };
        // Those who watch are told of changes only.
        if told.replace(status) != Some(status) {
            for name in ["", SERVICE_NAME] {
                reporter.set_service_status(name, status).await;
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until the connection was asked to end and no call waits for its answer any more. Streams
/// of health and reflection are not waited for: they last as long as their client does.
async fn ended(control: &Control) {
    control.unless(Order::Finish, std::future::pending::<()>()).await;
    loop {
        tokio::time::sleep(LAST_ANSWERS).await;
        if control.under_way.load(Ordering::Relaxed) == 0 {
            return;
        }
    }
}

impl Protocol for Grpc {
    fn keeping(&self) -> Keeping {
        // HTTP/2 asks by pings whether a client is still there.
        self.node.keeping("grpc.listen", true)
    }

    fn max_connections(&self) -> usize {
        self.node.live.config().grpc.max_connections as usize
    }

    async fn serve(self: Arc<Self>, stream: impl Stream, peer: Peer, control: Arc<Control>) {
        let _connected = self.node.requests.connected(Face::Grpc);
        let begun = control.unless(Order::Finish, open(stream));
        let begun = tokio::time::timeout(ARRIVES, begun).await;
        let Ok(Some(Some((Version::HTTP_2, stream)))) = begun else { return };
        let answering = Answering {
            client: RefCell::new(Client::new(Arc::clone(&self.node), Face::Grpc, peer)),
            services: self.services.clone(),
            control: Arc::clone(&control),
            budget: Budget::new(),
        };
        tokio::select! {
            () = serve_http2(stream, answering, &control, SEND_BUFFER, |_| {}) => {}
            () = ended(&control) => {}
        }
    }
}

/// Answers the requests of a connection.
struct Answering {
    client: RefCell<Client>,
    services: Services,
    control: Arc<Control>,
    budget: Budget,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response<Counted>;
    type Error = Infallible;
    type Future = Answer<Counted>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.control.requests.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let (services, control) = (self.services.clone(), Arc::clone(&self.control));
        let caller = self.client.borrow_mut().by(request.headers().get(AUTHORIZATION)).clone();
        let (node, budget) = (Arc::clone(&caller), self.budget.clone());
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            let id = RequestId::of(&head.headers);
            head.extensions.insert(budget);
            head.extensions.insert(caller);
            head.extensions.insert(id.clone());
            if !is_meant(&head) {
                node.requests.refused(Face::Grpc, Operation::Other, Reason::BadRequest, Some(&id));
                let mut reply = request::unsupported();
                reply.headers_mut().insert(HEADER, id.value());
                return Ok(reply.map(|body| Counted::of(body, &control)));
            }
            let uri = head.uri.clone();
            let request = Request::from_parts(head, body);
            let mut path = uri.path().split('/').skip(1);
            let service = path.next().unwrap_or_default();
            let operation = operation(service, path.next().unwrap_or_default());
            let reply = match service {
                SERVICE_NAME => {
                    let answer = whole(request, services.ids, &control);
                    let span = || crate::request::span(Face::Grpc, &id, &Method::POST, &uri);
                    in_span_once_it_waits(answer, span).await
                }
                HEALTH => whole(request, services.health, &control).await,
                "grpc.reflection.v1.ServerReflection" => (services.reflection)(request).await,
                "grpc.reflection.v1alpha.ServerReflection" => {
                    (services.old_reflection)(request).await
                }
                _ => {
                    let text = "no such service: there are leaf.v1.IdService, grpc.health.v1.Health and reflection";
                    Ok(refused(Reason::NotFound, text).into_http())
                }
            };
            reply.map(|mut reply| {
                match reason_of(&reply) {
                    Some(reason) => {
                        reply.headers_mut().insert(HEADER, id.value());
                        node.requests.refused(Face::Grpc, operation, reason, Some(&id));
                    }
                    None => node.requests.answered(Face::Grpc, operation, begun.elapsed(), 1),
                }
                let slot = reply.extensions_mut().remove::<Slot>();
                reply.map(|body| Counted { slot, ..Counted::of(body, &control) })
            })
        })
    }
}

/// The operation under which a call is counted.
fn operation(service: &str, method: &str) -> Operation {
    match (service, method) {
        (HEALTH, _) | (SERVICE_NAME, "Clock") => Operation::Health,
        (SERVICE_NAME, "NextId") => Operation::Next,
        (SERVICE_NAME, "NextIds" | "StreamIds") => Operation::Take,
        (SERVICE_NAME, "LeaseRange") => Operation::Lease,
        (SERVICE_NAME, "ReturnRange") => Operation::Return,
        (SERVICE_NAME, "Decode") => Operation::Decode,
        (SERVICE_NAME, "DescribeTag" | "DescribeServer") => Operation::Describe,
        _ => Operation::Other,
    }
}

/// Reads the one message of a request, then lets the service answer it.
async fn whole<S>(
    request: Request<Incoming>,
    mut service: S,
    control: &Arc<Control>,
) -> Result<Response<tonic::body::Body>, Infallible>
where
    S: TowerService<
            Request<Full<Bytes>>,
            Response = Response<tonic::body::Body>,
            Error = Infallible,
        >,
{
    let (head, body) = request.into_parts();
    let within = match deadline::of(&head.headers) {
        Ok(within) => within,
        Err(text) => return Ok(bad_request(text).into_http()),
    };
    let until = within.map(|within| Instant::now() + within);
    let late = |why: String| Ok(refused(Reason::TooSlow, why).into_http());
    let arrives = within.map_or(ARRIVES, |within| within.min(ARRIVES));
    let read = Limited::new(body, LARGEST + 5).collect();
    let body = match tokio::time::timeout(arrives, read).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => {
            let text = format!("a request has one message of at most {LARGEST} bytes");
            return Ok(bad_request(text).into_http());
        }
        Err(_) => return late(format!("the message did not arrive within {arrives:?}")),
    };
    if let Err(why) = check(&body, LARGEST) {
        return Ok(bad_request(why).into_http());
    }
    let _under_way = UnderWay::begin(control);
    let answered = service.call(Request::from_parts(head, Full::new(body)));
    let answered = match until {
        None => answered.await,
        Some(until) => match tokio::time::timeout_at(until, answered).await {
            Ok(answered) => answered,
            Err(_) => return late("no answer before the client's deadline".into()),
        },
    };
    answered.map(explained)
}

/// A body that tells the listener whether its client reads it.
struct Counted {
    body: tonic::body::Body,
    control: Arc<Control>,
    unread: Option<Unread>,
    /// The permits of the connection's budget that the next message holds.
    slot: Option<Slot>,
}

impl Counted {
    /// A body that is not sent yet.
    fn of(body: tonic::body::Body, control: &Arc<Control>) -> Self {
        let unread = (!body.is_end_stream()).then(|| Unread::begin(control));
        Self { body, control: Arc::clone(control), unread, slot: None }
    }
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match (&frame, &mut self.unread) {
            (Poll::Ready(Some(_)), Some(unread)) => unread.moves(),
            (Poll::Ready(Some(_)), None) => self.unread = Some(Unread::begin(&self.control)),
            // There is nothing that the client could take.
            (Poll::Ready(None) | Poll::Pending, _) => self.unread = None,
        }
        frame.map_ok(|frame| {
            frame.map_data(|bytes| {
                // Copied, since tonic's message is a part of a buffer of 8 KiB or more, which would
                // stay in memory until the client has read the message.
                let bytes = Bytes::copy_from_slice(&bytes);
                match &self.slot {
                    Some(slot) => slot.guard(bytes, &self.control),
                    None => bytes,
                }
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
