//! Accepting connections, and letting them end.
//!
//! At the end every answer announces that its connection closes, so that a client under way loses no
//! request; only then are the connections closed that have been silent. A client that was accepted by
//! the system before the end is served, too.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::DataPlane;
use super::connection::{self, Routes};
use super::control::Connections;
use crate::node::Node;

/// Open files that are nobody's connection: the stores, the state file, the other listener.
const OTHER_FILES: u64 = 256;
/// A connection that asks nothing for so many sweeps is asked to end, and closed with the next. So is one that
/// takes that long to send a request's head or to read an answer.
const SILENT_SWEEPS: u32 = 4;
/// How often connections are looked at: one that is silent ends after one minute to one and a half, on the
/// ops listener, where connections are few and nobody needs to keep one, after eight to ten seconds.
const SWEEP_IDS_EVERY: Duration = Duration::from_secs(15);
const SWEEP_OPS_EVERY: Duration = Duration::from_secs(2);
/// Where all places are taken a connection for ids makes room that was silent for this many sweeps. On the
/// ops listener any that waits for no answer does, and at once, so that nobody can keep others from asking for
/// health.
const EVICTED_IDS: u32 = 1;
const EVICTED_OPS: u32 = 0;
/// How soon the next one is asked to make room where the last one did not.
const EVICT_AGAIN: Duration = Duration::from_millis(50);
/// After a failed accept (out of file descriptors): others may end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listener at work.
pub(crate) struct Listener {
    stop: CancellationToken,
    connections: Arc<Connections>,
    slots: Arc<Slots>,
    task: JoinHandle<()>,
}

/// How many connections there are, and may be.
struct Slots {
    node: Arc<Node>,
    routes: Routes,
    files: usize,
    taken: AtomicUsize,
    freed: Notify,
    connections: Arc<Connections>,
}

/// One connection's.
struct Slot(Arc<Slots>);

impl Slots {
    fn most(&self) -> usize {
        match self.routes {
            Routes::Ids => self.node.live.max_connections.load(Ordering::Relaxed).min(self.files),
            Routes::Ops => self.files,
        }
    }

    /// A free one. Only the one task that accepts takes any.
    fn try_take(self: &Arc<Self>) -> Option<Slot> {
        if self.taken.load(Ordering::Acquire) >= self.most() {
            return None;
        }
        Some(Slot::of(self))
    }

    /// Waits for a free one. Where none is, a connection that others need less makes room.
    async fn take(self: &Arc<Self>) -> Slot {
        let least = match self.routes {
            Routes::Ids => EVICTED_IDS,
            Routes::Ops => EVICTED_OPS,
        };
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Registered before the look, so that nothing in between is missed.
            freed.as_mut().enable();
            if let Some(slot) = self.try_take() {
                return slot;
            }
            let evicted = self.connections.evict(least, self.routes == Routes::Ops);
            // The limit may be raised meanwhile.
            let pause = if evicted { EVICT_AGAIN } else { Duration::from_secs(1) };
            let _ = tokio::time::timeout(pause, freed).await;
        }
    }

    /// Waits until all are free.
    async fn empty(&self) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.taken.load(Ordering::Acquire) == 0 {
                return;
            }
            freed.await;
        }
    }
}

impl Slot {
    fn of(slots: &Arc<Slots>) -> Self {
        slots.taken.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(slots))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
        self.0.freed.notify_waiters();
    }
}

impl Listener {
    /// Serves ids, on the threads of the data plane.
    pub(crate) fn ids(listener: TcpListener, node: Arc<Node>, plane: &DataPlane) -> Self {
        Self::start(listener, node, Routes::Ids, plane.clone())
    }

    /// Serves health and administration, on the control plane.
    pub(crate) fn ops(listener: TcpListener, node: Arc<Node>) -> Self {
        Self::start(listener, node, Routes::Ops, DataPlane::here())
    }

    fn start(listener: TcpListener, node: Arc<Node>, routes: Routes, plane: DataPlane) -> Self {
        let (stop, connections) = (CancellationToken::new(), Arc::<Connections>::default());
        let slots = Arc::new(Slots {
            node: Arc::clone(&node),
            routes,
            files: share_of_files(routes),
            taken: AtomicUsize::new(0),
            freed: Notify::new(),
            connections: Arc::clone(&connections),
        });
        let serving = Serving {
            plane,
            node,
            routes,
            connections: Arc::clone(&connections),
            slots: Arc::clone(&slots),
        };
        let accepting = Accepting { listener, serving };
        let task = tokio::spawn(accepting.run(stop.clone()));
        Self { stop, connections, slots, task }
    }

    /// Stops accepting, announces the end for some time, lets requests under way finish until the
    /// deadline, and leaves the rest. Call it after [`Node::begin_stop`].
    pub(crate) async fn drain(self, announce: Duration, deadline: Instant) {
        self.stop.cancel();
        // The task ends by this only.
        let _ = self.task.await;
        self.connections.announce_end();
        let announced = Instant::now() + announce;
        let _ = tokio::time::timeout_at(announced.min(deadline), self.slots.empty()).await;
        self.connections.finish();
        if tokio::time::timeout_at(deadline, self.slots.empty()).await.is_err() {
            let left = self.slots.taken.load(Ordering::Relaxed);
            tracing::warn!("{left} connections did not end in time");
        }
    }
}

/// The task that accepts.
struct Accepting {
    listener: TcpListener,
    serving: Serving,
}

/// What becomes of connections that were accepted.
struct Serving {
    plane: DataPlane,
    node: Arc<Node>,
    routes: Routes,
    connections: Arc<Connections>,
    slots: Arc<Slots>,
}

impl Accepting {
    async fn run(self, stop: CancellationToken) {
        let mut sweeps = tokio::time::interval(match self.serving.routes {
            Routes::Ids => SWEEP_IDS_EVERY,
            Routes::Ops => SWEEP_OPS_EVERY,
        });
        // A process that was frozen does not catch up on them.
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut out_of_files = false;
        // It waits for a place: nobody has to make room before somebody comes.
        let mut newcomer = None;
        loop {
            let accepted = async {
                if newcomer.is_none() {
                    // The runtime that serves it must be the one that watches it.
                    newcomer = Some(self.listener.accept().await?.0.into_std()?);
                }
                Ok::<_, std::io::Error>(self.serving.slots.take().await)
            };
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = sweeps.tick() => {
                    self.serving.connections.sweep(SILENT_SWEEPS);
                    continue;
                }
                accepted = accepted => accepted,
            };
            match accepted {
                Ok(slot) => {
                    out_of_files = false;
                    if let Some(stream) = newcomer.take() {
                        self.serving.serve(stream, slot);
                    }
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
        // Those whose connection stands already, as far as their client can tell; above the limit, too: no
        // more come. The listener does not block: with no more of them it says so.
        let Self { listener, serving } = self;
        if let Some(stream) = newcomer {
            serving.serve(stream, Slot::of(&serving.slots));
        }
        let Ok(listener) = listener.into_std() else { return };
        loop {
            match listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    serving.serve(stream, Slot::of(&serving.slots));
                }
                // It has gone again.
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    _ => return tracing::warn!("accept: {error}; those that wait are not served"),
                },
            }
        }
    }
}

impl Serving {
    fn serve(&self, stream: std::net::TcpStream, slot: Slot) {
        let place = self.plane.place();
        let (node, routes, open) = (Arc::clone(&self.node), self.routes, self.connections.add());
        place.runtime().clone().spawn(async move {
            // A client that breaks off is not the server's error.
            if let Ok(stream) = TcpStream::from_std(stream) {
                connection::serve(stream, node, routes, Arc::clone(&open.control)).await;
            }
            drop((open, place, slot));
        });
    }
}

/// How many connections the limit on open files leaves room for. As many files are allowed to be open as
/// the system lets this process have; health is always left some.
fn share_of_files(routes: Routes) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        limit.current = limit.maximum;
        // Where it is refused the limit stays what it was.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let share = match routes {
        // Of very few both have the same, and the rest is left to what is nobody's connection.
        _ if files < 2 * OTHER_FILES => files / 8,
        Routes::Ids => files.saturating_sub(OTHER_FILES),
        Routes::Ops => OTHER_FILES / 2,
    };
    usize::try_from(share).unwrap_or(usize::MAX).max(2)
}
