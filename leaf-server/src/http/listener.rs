//! Accepting connections, and letting them end.
//!
//! Every connection has limits: on the time its request's head may take, on the head's size, and on
//! how many connections there are. One that is idle is closed after the same time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::answer::Answer;
use super::{Generators, ids, ops};

const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const HEAD_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
const CONNECTIONS: usize = 10_000;
/// After a failed accept (out of file descriptors): others may end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listener at work.
pub(crate) struct Listener {
    stop: oneshot::Sender<()>,
    task: JoinHandle<GracefulShutdown>,
}

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
        let task = tokio::spawn(async move {
            let connections = GracefulShutdown::new();
            let slots = Arc::new(Semaphore::new(CONNECTIONS));
            loop {
                let accepted = async {
                    let slot = Arc::clone(&slots).acquire_owned().await;
                    (slot, listener.accept().await)
                };
                let (slot, accepted) = tokio::select! {
                    biased;
                    // Also when the `Listener` was dropped.
                    _ = &mut stopped => return connections,
                    accepted = accepted => accepted,
                };
                match accepted {
                    Ok((stream, _)) => {
                        let connection =
                            connections.watch(serve(stream, Arc::clone(&generators), routes));
                        tokio::spawn(async move {
                            // A client that breaks off is not the server's error.
                            let _ = connection.await;
                            drop(slot);
                        });
                    }
                    Err(error) => {
                        tracing::warn!("accept: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        Self { stop, task }
    }

    /// Stops accepting, lets requests under way finish for up to `grace`, and closes the rest.
    pub(crate) async fn drain(self, grace: Duration) {
        // The task ends by this only.
        let _ = self.stop.send(());
        let Ok(connections) = self.task.await else { return };
        if tokio::time::timeout(grace, connections.shutdown()).await.is_err() {
            tracing::warn!("some connections did not end within {grace:?}");
        }
    }
}

fn serve(
    stream: TcpStream,
    generators: Arc<Generators>,
    routes: Routes,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> + Send {
    // A small answer must not wait for the client's acknowledgement. Without it, it is only slow.
    let _ = stream.set_nodelay(true);
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
                    let answer: Answer = match routes {
                        Routes::Ids => ids::route(&generators, &request).await,
                        Routes::Ops => ops::route(&generators, &request),
                    };
                    Ok::<_, Infallible>(answer)
                }
            }),
        )
}
