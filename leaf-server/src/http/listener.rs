//! Accepting connections, and letting them end.
//!
//! Every connection has limits: on the time its request's head may take, on the head's size, on the
//! time an answer may wait for a client that does not read, and on how many connections there are.
//! One that is idle is closed after the time that a head may take.
//!
//! At the end every answer announces that its connection closes, so that a client under way loses no
//! request; only then are the connections closed that have been silent.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rustix::net::sockopt::set_tcp_user_timeout;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::answer::Answer;
use super::{Generators, ids, ops};

const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const HEAD_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
/// The most connections of a listener, where the limit on open files allows them.
const CONNECTIONS: u32 = 10_000;
/// Open files that are nobody's connection: the stores, the state file, the other listener.
const OTHER_FILES: u64 = 256;
/// A client that acknowledges nothing, or reads nothing, for so long is gone.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long answers announce the end before silent connections are closed.
const ANNOUNCE: Duration = Duration::from_millis(500);
/// After a failed accept (out of file descriptors): others may end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listener at work.
pub(crate) struct Listener {
    stop: oneshot::Sender<()>,
    task: JoinHandle<GracefulShutdown>,
    /// One per connection.
    slots: Arc<Semaphore>,
    connections: u32,
}

const CLOSE: HeaderValue = HeaderValue::from_static("close");

#[derive(Clone, Copy)]
enum Routes {
    Ids,
    Ops,
}

impl Listener {
    /// Serves ids.
    pub(crate) fn ids(listener: TcpListener, generators: Arc<Generators>) -> Self {
        Self::start(listener, generators, Routes::Ids)
    }

    /// Serves health.
    pub(crate) fn ops(listener: TcpListener, generators: Arc<Generators>) -> Self {
        Self::start(listener, generators, Routes::Ops)
    }

    fn start(listener: TcpListener, generators: Arc<Generators>, routes: Routes) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let connections = connections(routes);
        let slots = Arc::new(Semaphore::new(connections as usize));
        let free_slots = Arc::clone(&slots);
        let task = tokio::spawn(async move {
            let open = GracefulShutdown::new();
            let mut out_of_files = false;
            loop {
                let accepted = async {
                    let slot = Arc::clone(&free_slots).acquire_owned().await;
                    (slot, listener.accept().await)
                };
                let (slot, accepted) = tokio::select! {
                    biased;
                    // Also when the `Listener` was dropped.
                    _ = &mut stopped => return open,
                    accepted = accepted => accepted,
                };
                match accepted {
                    Ok((stream, _)) => {
                        out_of_files = false;
                        let connection = open.watch(serve(stream, Arc::clone(&generators), routes));
                        tokio::spawn(async move {
                            // A client that breaks off is not the server's error.
                            let _ = connection.await;
                            drop(slot);
                        });
                    }
                    Err(error) => {
                        if !out_of_files {
                            tracing::warn!("accept: {error}; trying again every {ACCEPT_PAUSE:?}");
                        }
                        out_of_files = true;
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        Self { stop, task, slots, connections }
    }

    /// Stops accepting, announces the end, lets requests under way finish for up to `grace`, and
    /// closes the rest. Call it after [`Generators::begin_stop`].
    pub(crate) async fn drain(self, grace: Duration) {
        // The task ends by this only.
        let _ = self.stop.send(());
        let Ok(open) = self.task.await else { return };
        let all_gone = self.slots.acquire_many(self.connections);
        if tokio::time::timeout(ANNOUNCE.min(grace), all_gone).await.is_ok() {
            return;
        }
        if tokio::time::timeout(grace, open.shutdown()).await.is_err() {
            tracing::warn!("some connections did not end within {grace:?}");
        }
    }
}

/// How many connections the listener takes. As many files are allowed to be open as the system
/// lets this process have; health is always left some.
fn connections(routes: Routes) -> u32 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        limit.current = limit.maximum;
        // Where it is refused the limit stays what it was.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let share = match routes {
        Routes::Ids => files.saturating_sub(OTHER_FILES),
        Routes::Ops => OTHER_FILES / 2,
    };
    u32::try_from(share).unwrap_or(u32::MAX).clamp(16, CONNECTIONS)
}

fn serve(
    stream: TcpStream,
    generators: Arc<Generators>,
    routes: Routes,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> + Send {
    // A small answer must not wait for the client's acknowledgement. Without it, it is only slow.
    let _ = stream.set_nodelay(true);
    // Without this one a client that never reads would hold its slot for ever.
    let _ = set_tcp_user_timeout(&stream, UNREAD_TIMEOUT.as_millis() as u32);
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(move |request| {
                let generators = Arc::clone(&generators);
                async move {
                    let mut answer: Answer = match routes {
                        Routes::Ids => ids::route(&generators, &request).await,
                        Routes::Ops => ops::route(&generators, &request),
                    };
                    if generators.stopping() {
                        answer.headers_mut().insert(CONNECTION, CLOSE);
                    }
                    Ok::<_, Infallible>(answer)
                }
            }),
        )
}
