//! One connection: HTTP/1.1 with keep-alive and pipelining, or HTTP/2 if the client begins with its
//! preface.
//!
//! Everything has a limit: the size of a request's head, the time in which it must arrive, the time
//! that an answer may wait for a client that does not read, the number of concurrent requests over
//! HTTP/2. A connection that is idle for as long as a head may take is closed. No timer runs per
//! request: the listener sweeps all its connections at intervals, see [`Control`].

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Method, Request, Version};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tokio_util::either::Either;
use tracing::Instrument as _;

use super::body::RequestBody;
use super::outbox;
use super::problem::{Form, Problem};
use super::reply::Reply;
use super::{id_routes, ops};
use crate::caller::{Client, Peer};
use crate::metrics::Operation;
use crate::node::Node;
use crate::refusal::{Face, Reason};
use crate::request::{self, RequestId};
use crate::serve::{
    Control, Ended, HEAD_BYTES, Keeping, Order, Protocol, Share, Stream, UnderWay, drive, open,
    serve_http2,
};

/// The most headers of a request; more are refused with 431.
const HEADERS: usize = 64;
/// How many bytes HTTP/2 buffers for one stream. A client may open a hundred streams and read
/// nothing, which costs a hundred times as much.
const SEND_BUFFER: usize = 4 * 1024;

/// The value of `Connection` that announces the end.
const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// HTTP on one listener.
pub(crate) struct Http {
    node: Arc<Node>,
    /// Which routes it has: [`Face::Http`], or [`Face::Ops`].
    face: Face,
}

impl Http {
    /// HTTP on the listener for ids.
    pub(crate) const fn ids(node: Arc<Node>) -> Self {
        Self { node, face: Face::Http }
    }

    /// HTTP on the listener for health and administration.
    pub(crate) const fn ops(node: Arc<Node>) -> Self {
        Self { node, face: Face::Ops }
    }
}

impl Protocol for Http {
    fn keeping(&self) -> Keeping {
        match self.face {
            // Connections are few, and no client needs to keep one: an idle one ends after 6 to 12
            // s. Each that has no request under way may be closed to make room, so that no client
            // can keep others from asking for health.
            Face::Ops => Keeping {
                listener: "ops.listen",
                sweep_every: Duration::from_secs(2),
                evict_after: 0,
                evict_at_once: true,
                idle_stays: false,
                files: Share::Small,
            },
            _ => self.node.keeping("http.listen", false),
        }
    }

    fn max_connections(&self) -> usize {
        match self.face {
            Face::Ops => usize::MAX,
            _ => self.node.live.config().http.max_connections as usize,
        }
    }

    async fn serve(self: Arc<Self>, stream: impl Stream, peer: Peer, control: Arc<Control>) {
        let client = Client::new(Arc::clone(&self.node), self.face, peer);
        serve(stream, client, self.face, control).await;
    }
}

/// Serves a connection, in the HTTP version that its first bytes show, until the client or the
/// server ends it.
async fn serve(stream: impl Stream, client: Client, face: Face, control: Arc<Control>) {
    let node = Arc::clone(client.node());
    let _connected = node.requests.connected(face);
    let opened = control.unless(Order::Finish, open(stream)).await;
    let Some(Some((version, stream))) = opened else { return };
    let client = RefCell::new(client);
    let service = Answering { client, face, control: Arc::clone(&control) };
    // What was answered at once is counted together, with one look at the clock.
    let count = |begun: Instant| match control.at_once.load(Ordering::Relaxed) {
        0 => {}
        answered => {
            control.at_once.store(0, Ordering::Relaxed);
            node.requests.answered(face, Operation::Next, begun.elapsed(), answered.into());
        }
    };
    if version == Version::HTTP_2 {
        serve_http2(stream, service, &control, SEND_BUFFER, count).await;
    } else {
        let (stream, outbox) = outbox::collect(stream, Arc::clone(&control));
        let connection = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEADERS)
            // Who has nothing more to say may still wait for its answer.
            .half_close(true)
            .serve_connection(TokioIo::new(stream), service);
        let ended = drive(connection, &control, |begun, context| {
            count(begun);
            outbox.send(context);
        });
        if ended.await == Ended::Busy {
            control.unless(Order::Close, outbox.linger()).await;
        }
    }
}

/// An answer that is ready, or a future that makes it.
type Answer = Either<
    Ready<Result<Reply, Infallible>>,
    Pin<Box<dyn Future<Output = Result<Reply, Infallible>> + Send>>,
>;

/// Answers the requests of a connection.
struct Answering {
    client: RefCell<Client>,
    face: Face,
    control: Arc<Control>,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Reply;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        self.control.requests.fetch_add(1, Ordering::Relaxed);
        let http1 = request.version() < Version::HTTP_2;
        let face = self.face;
        let mut client = self.client.borrow_mut();
        let (hosts, authorization) = hosts_and_authorization(request.headers());
        let caller = client.by(authorization);
        if let Some(why) = self.malformed(&request, hosts) {
            let id = RequestId::of(request.headers());
            caller.requests.refused(face, Operation::Other, Reason::BadRequest, Some(&id));
            let mut reply = Problem::bad_request(why).shown(Form::Text, &id);
            if http1 {
                reply.headers_mut().insert(CONNECTION, CLOSE);
            }
            return Either::Left(ready(Ok(reply)));
        }
        if face == Face::Http
            && request.body().is_end_stream()
            && let Some(mut reply) = id_routes::at_once(caller, &request)
        {
            let before = self.control.at_once.load(Ordering::Relaxed);
            self.control.at_once.store(before + 1, Ordering::Relaxed);
            complete(&mut reply, caller, &self.control, http1);
            return Either::Left(ready(Ok(reply)));
        }
        let under_way = UnderWay::begin(&self.control);
        let (caller, control, begun) = (caller.clone(), Arc::clone(&self.control), Instant::now());
        Either::Right(Box::pin(async move {
            let id = RequestId::of(request.headers());
            let (head, body) = request.into_parts();
            let mut body = RequestBody::new(body, Arc::clone(&control), under_way);
            let span = || request::span(face, &id, &head.method, &head.uri);
            let (operation, mut reply) = if face == Face::Ops {
                // Boxed separately: this future is several times as large as that for ids, and
                // there may be many thousand requests for ids at a time.
                let answer = ops::route(&caller, &head, &mut body, &id);
                Box::pin(answer.instrument(span())).await
            } else {
                let answer = id_routes::route(&caller, &head, &mut body, &id);
                request::in_span_once_it_waits(answer, span).await
            };
            let requests = &caller.requests;
            match reply.extensions().get::<Reason>() {
                Some(reason) => requests.refused(face, operation, *reason, Some(&id)),
                None => requests.answered(face, operation, begun.elapsed(), 1),
            }
            if http1 && !body.is_read() {
                // What is left of it cannot be told from a next request.
                reply.headers_mut().insert(CONNECTION, CLOSE);
            }
            complete(&mut reply, &caller, &control, http1);
            Ok(reply)
        }))
    }
}

impl Answering {
    /// Why a request is refused before its route is looked at: it is malformed, and a proxy in
    /// front may have read another request. `None` if it is well-formed. `hosts` is how many `Host`
    /// headers it has.
    fn malformed(&self, request: &Request<Incoming>, hosts: usize) -> Option<&'static str> {
        if self.control.ambiguous.load(Ordering::Relaxed) {
            return Some(
                "the head can be read in two ways: end each line with CR LF, and give one Content-Length or \
                 Transfer-Encoding",
            );
        }
        // RFC 9112, section 3.2.
        if request.version() == Version::HTTP_11 && hosts != 1 {
            return Some("send one Host header");
        }
        let bodiless =
            self.face == Face::Http && matches!(*request.method(), Method::GET | Method::HEAD);
        (bodiless && !request.body().is_end_stream()).then_some("GET and HEAD have no body here")
    }
}

/// Returns how many `Host` headers there are, and the first `Authorization`. One pass over the few
/// names takes less time than to hash two for `get`.
fn hosts_and_authorization(headers: &HeaderMap) -> (usize, Option<&HeaderValue>) {
    let (mut hosts, mut authorization) = (0, None);
    for (name, value) in headers {
        if *name == HOST {
            hosts += 1;
        } else if *name == AUTHORIZATION {
            authorization = authorization.or(Some(value));
        }
    }
    (hosts, authorization)
}

/// Completes an answer. Over HTTP/1, announces that the connection closes if this node stops; over
/// HTTP/2, counts the answer as unread until the client has taken it.
fn complete(reply: &mut Reply, node: &Node, control: &Arc<Control>, http1: bool) {
    if !http1 {
        reply.body_mut().count(control);
    } else if node.stopping() {
        reply.headers_mut().insert(CONNECTION, CLOSE);
    }
}
