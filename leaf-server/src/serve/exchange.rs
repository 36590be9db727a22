//! Runs connections of hyper as their listener orders, and reports to it the requests under way and
//! the answers that clients have not read.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http2;
use hyper::service::HttpService;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::time::Instant;

use super::{Control, Order, Stream};

/// The most concurrent requests of an HTTP/2 connection.
const STREAMS: u32 = 100;
/// The interval between pings, by which the server finds out whether an HTTP/2 client is still
/// there.
const PING_EVERY: Duration = Duration::from_secs(20);
/// The longest that the answer to a ping may take.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest head of a request, in bytes.
pub(crate) const HEAD_BYTES: usize = 16 * 1024;

/// Serves a connection over HTTP/2. `send_buffer` is the size of the buffer of each of its streams,
/// in bytes. `ran` is called whenever the connection has been polled, with the time at which that
/// began.
pub(crate) async fn serve_http2<S, B>(
    stream: impl Stream,
    service: S,
    control: &Control,
    send_buffer: usize,
    ran: impl Fn(Instant),
) where
    S: HttpService<Incoming, ResBody = B>,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    control.is_http2();
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        // A client may cancel all its requests at once, because a pause made all of them late: it
        // has done nothing wrong.
        .max_pending_accept_reset_streams(2 * STREAMS as usize)
        .max_header_list_size(HEAD_BYTES as u32)
        .max_send_buf_size(send_buffer)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    drive(connection, control, |begun, _| ran(begun)).await;
}

/// The state of a connection at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Nothing was under way when the connection was asked to end, or it was ordered to close.
    Idle,
    /// The client may still be reading or sending.
    Busy,
}

/// Runs a connection to its end, as the listener orders. `ran` is called whenever the connection
/// has been polled, with the time at which that began.
pub(crate) async fn drive(
    connection: impl GracefulConnection,
    control: &Control,
    mut ran: impl FnMut(Instant, &mut Context<'_>),
) -> Ended {
    let mut connection = pin!(connection);
    let mut finishing = false;
    std::future::poll_fn(|context| {
        let mut asked_now = false;
        loop {
            let begun = Instant::now();
            let ended = connection.as_mut().poll(context).is_ready();
            ran(begun, context);
            if ended {
                return Poll::Ready(if asked_now { Ended::Idle } else { Ended::Busy });
            }
            match control.order(context) {
                Order::Close => return Poll::Ready(Ended::Idle),
                Order::Finish if !finishing => {
                    (finishing, asked_now) = (true, true);
                    connection.as_mut().graceful_shutdown();
                }
                Order::Serve | Order::Finish => return Poll::Pending,
            }
        }
    })
    .await
}

/// A guard: while it exists, [`Control::under_way`] counts one more unanswered request.
pub(crate) struct UnderWay(Arc<Control>);

impl UnderWay {
    /// Counts a request in until the guard is dropped, also if that happens because the client
    /// leaves early.
    pub(crate) fn begin(control: &Arc<Control>) -> Self {
        control.under_way.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(control))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A guard: while it exists, the client has an answer that it has not read wholly.
pub(crate) struct Unread {
    control: Arc<Control>,
    mark: u32,
    /// Whether hyper has asked for the first part of the answer. It does so before the client reads
    /// anything; when it asks for another part, the client has read some.
    begun: bool,
}

impl Unread {
    /// Records that the client has an answer to read.
    pub(crate) fn begin(control: &Arc<Control>) -> Self {
        Self { control: Arc::clone(control), mark: control.transfer_begins(), begun: false }
    }

    /// Records that a part of the answer was asked for.
    pub(crate) fn moves(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            self.control.transfer_moves(&mut self.mark);
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.control.transfer_ends(self.mark);
    }
}
