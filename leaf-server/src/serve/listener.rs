//! Accepts connections, and lets them end.
//!
//! When the server stops, first every answer announces that its connection closes, so that a client
//! with requests under way loses none. Only then are silent connections closed. A client whose
//! connection the system accepted before the stop is served, too.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_user_timeout};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::control::{Connections, Control};
use super::{DataPlane, Door};
use crate::caller::Peer;

/// Open files that are left to everything but connections for ids: the stores, the state file, the
/// ops listener.
const OTHER_FILES: u64 = 256;
/// A connection without a request for this many sweeps is asked to end, and the next sweep closes
/// it. The same holds if the client takes that long to send the rest of a request or to read an
/// answer.
const SILENT_SWEEPS: u32 = 4;
/// A client that acknowledges or reads nothing for this long is considered gone.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client that may be idle for ever is silent before the system probes whether it is
/// still there.
const KEEP_ALIVE: Duration = Duration::from_secs(300);
/// The pause before another connection is asked to make room, if the last one has not ended.
const EVICT_AGAIN: Duration = Duration::from_millis(50);
/// The pause before the next search for a connection that can make room, if none was found: one may
/// have been silent for long enough by then, or the limit may have been raised.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The most connections already accepted by the system that are still served at the stop: as many
/// as the system lets wait. Clients that connect again and again must not delay the stop for ever.
const LAST_ACCEPTS: usize = 4096;
/// How often it is logged that all connections that a listener may have are in use.
const TELL_FULL_AGAIN: Duration = Duration::from_secs(60);
/// How long connections may take to end after a drain has closed them.
const LAST_CLOSES: Duration = Duration::from_millis(100);
/// The pause after a failed accept (out of file descriptors): connections may end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The protocol of a listener's connections, and how many there may be.
///
/// A protocol does not deal with accepting, places and the stop; the listener does not deal with
/// what is sent.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// How connections are kept and ended.
    fn keeping(&self) -> Keeping;

    /// The most connections at a time, as it is configured now. The limit on open files may allow
    /// fewer.
    fn max_connections(&self) -> usize;

    /// Serves a connection of `peer` until the client or the server ends it. `control` says when it
    /// must end.
    fn serve(
        self: Arc<Self>,
        stream: impl Stream,
        peer: Peer,
        control: Arc<Control>,
    ) -> impl Future<Output = ()> + Send;
}

/// The bytes of a connection, whatever carries them.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// The rules by which a listener keeps and ends its connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    /// The listener, as the configuration names it.
    pub(crate) listener: &'static str,
    /// The interval of the sweeps, which look at all connections. A connection that is silent for
    /// three to six times as long ends, as does one that takes about that long to send the rest of
    /// a request, or to read an answer.
    pub(crate) sweep_every: Duration,
    /// If all places are taken, a connection that was silent for this many sweeps makes room.
    pub(crate) evict_after: u32,
    /// Whether a connection that makes room is closed at once. Else it is asked to end first.
    pub(crate) evict_at_once: bool,
    /// Whether a connection without a request under way may stay for ever. If not, it ends when it
    /// is silent.
    pub(crate) idle_stays: bool,
    /// The share of the open files that the listener may use.
    pub(crate) files: Share,
}

/// A listener's share of the files that this process may open. No other listener can take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// A small number of files.
    Small,
    /// One of this many equal parts of the files that are left for the listeners for ids.
    Large(u32),
}

/// A listener at work.
pub(crate) struct Listener<P> {
    /// Ends the accepting.
    stop: CancellationToken,
    slots: Arc<Slots<P>>,
    task: JoinHandle<()>,
}

/// The connections of a listener: how many there are, and how many there may be.
struct Slots<P> {
    protocol: Arc<P>,
    keeping: Keeping,
    /// The most connections that the open files leave room for.
    files: usize,
    /// When it was last logged that all connections are in use.
    full_at: Mutex<Option<Instant>>,
    connections: Arc<Connections>,
    /// The tasks of the connections.
    tasks: TaskTracker,
}

impl<P: Protocol> Slots<P> {
    /// The most connections now: as many as are configured, but no more than the open files allow.
    fn most(&self) -> usize {
        self.protocol.max_connections().min(self.files)
    }

    /// Waits until there may be another connection. If there is no room, ends a connection that can
    /// make some. Only the task that accepts calls this, so the limit cannot be exceeded.
    async fn room(&self) {
        loop {
            let freed = self.connections.freed.notified();
            tokio::pin!(freed);
            // Registered before the look, so that nothing in between is missed.
            freed.as_mut().enable();
            if self.connections.len() < self.most() {
                return;
            }
            self.tell_full();
            let Keeping { evict_after, evict_at_once, .. } = self.keeping;
            let evicted = self.connections.evict(evict_after, evict_at_once);
            let pause = if evicted { EVICT_AGAIN } else { LOOK_AGAIN };
            let _ = tokio::time::timeout(pause, freed).await;
        }
    }

    /// Logs, once a minute, that new connections wait for others to end, and which limit is
    /// reached.
    fn tell_full(&self) {
        let mut told = self.full_at.lock().expect("no holder of this lock panics");
        if told.is_some_and(|at| at.elapsed() < TELL_FULL_AGAIN) {
            return;
        }
        *told = Some(Instant::now());
        let (most, listener) = (self.most(), self.keeping.listener);
        let limit = if self.files <= self.protocol.max_connections() {
            "the limit of open files (ulimit -n, LimitNOFILE)"
        } else {
            "the configuration"
        };
        tracing::warn!("{listener}: all {most} connections are in use that {limit} allows");
    }
}

impl<P: Protocol> Listener<P> {
    /// Serves the connections that are accepted and pass the `door`, on the threads of `plane`.
    pub(crate) fn start(listener: TcpListener, protocol: P, plane: DataPlane, door: Door) -> Self {
        let stop = CancellationToken::new();
        let keeping = protocol.keeping();
        let slots = Arc::new(Slots {
            protocol: Arc::new(protocol),
            keeping,
            files: keeping.files.of_the_limit(),
            full_at: Mutex::default(),
            connections: Arc::default(),
            tasks: TaskTracker::new(),
        });
        let serving = Serving { plane, door, slots: Arc::clone(&slots) };
        let task = tokio::spawn(serving.accept(listener, stop.clone()));
        Self { stop, slots, task }
    }

    /// Stops accepting, announces the end for the time `announce`, lets requests under way finish
    /// until the deadline, and closes the rest. Call it after
    /// [`Node::begin_stop`](crate::node::Node::begin_stop).
    pub(crate) async fn drain(mut self, announce: Duration, deadline: Instant) {
        self.stop.cancel();
        // The task ends by this only.
        let _ = (&mut self.task).await;
        self.slots.tasks.close();
        self.slots.connections.announce_end();
        let announced = Instant::now() + announce;
        let _ = tokio::time::timeout_at(announced.min(deadline), self.slots.tasks.wait()).await;
        self.slots.connections.finish();
        if tokio::time::timeout_at(deadline, self.slots.tasks.wait()).await.is_err() {
            let left = self.slots.connections.len();
            tracing::warn!("{left} connections did not end in time");
            self.slots.connections.close();
            let _ = tokio::time::timeout(LAST_CLOSES, self.slots.tasks.wait()).await;
        }
    }
}

/// A listener that is dropped without a drain stops at once: nothing of it may run on in a program
/// that embeds the server.
impl<P> Drop for Listener<P> {
    fn drop(&mut self) {
        self.task.abort();
        self.slots.connections.close();
    }
}

/// The task that accepts connections and gives them to threads.
struct Serving<P> {
    plane: DataPlane,
    door: Door,
    slots: Arc<Slots<P>>,
}

impl<P: Protocol> Serving<P> {
    /// Accepts connections until `stop` is cancelled. Meanwhile sweeps end connections that have
    /// been silent for long, unless idle ones may stay.
    async fn accept(self, listener: TcpListener, stop: CancellationToken) {
        let mut sweeps = tokio::time::interval(self.slots.keeping.sweep_every);
        // A process that was frozen does not catch up on them.
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut out_of_files = false;
        // It waits for a place: nobody has to make room before somebody comes.
        let mut newcomer = None;
        loop {
            let accepted = async {
                loop {
                    if newcomer.is_none() {
                        // The runtime that serves it must be the one that watches it.
                        newcomer = Some(listener.accept().await?.0.into_std()?);
                    }
                    self.slots.room().await;
                    let has_gone = || newcomer.as_ref().is_some_and(has_left);
                    if self.plane.has_room(has_gone).await {
                        return Ok::<_, std::io::Error>(());
                    }
                    // It has no turn: those that wait behind it have.
                    newcomer = None;
                }
            };
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = sweeps.tick() => {
                    self.slots.connections.sweep(SILENT_SWEEPS, self.slots.keeping.idle_stays);
                    continue;
                }
                accepted = accepted => accepted,
            };
            match accepted {
                Ok(()) => {
                    out_of_files = false;
                    if let Some(stream) = newcomer.take() {
                        self.serve(stream);
                    }
                }
                // It has gone again.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if !out_of_files {
                        tracing::warn!("accept: {error}; trying again every {ACCEPT_PAUSE:?}");
                    }
                    out_of_files = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        self.accept_the_last(newcomer, listener);
    }

    /// Accepts the connections that the system has established already, which their clients take
    /// for open. Exceeds the limit if need be: no more follow.
    fn accept_the_last(&self, newcomer: Option<std::net::TcpStream>, listener: TcpListener) {
        if let Some(stream) = newcomer {
            self.serve(stream);
        }
        // It does not block: with no more of them it says so.
        let Ok(listener) = listener.into_std() else { return };
        for _ in 0..LAST_ACCEPTS {
            match listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    self.serve(stream);
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

    /// Gives a connection to a thread of the data plane, which [`DataPlane::place`] chooses.
    fn serve(&self, stream: std::net::TcpStream) {
        let place = self.plane.place();
        let idle_stays = self.slots.keeping.idle_stays;
        let (protocol, open) = (Arc::clone(&self.slots.protocol), self.slots.connections.add());
        let door = self.door.clone();
        let runtime = place.runtime().clone();
        let connection = async move {
            let gone = place.begins() && has_left(&stream);
            // A client that breaks off is not the server's error.
            if let (false, Ok(stream)) = (gone, TcpStream::from_std(stream)) {
                // A small answer must not wait for the client's acknowledgement. If this cannot be
                // set, answers are only slower.
                let _ = stream.set_nodelay(true);
                // Without this one a client that never reads would hold its slot for ever.
                let _ = set_tcp_user_timeout(&stream, UNREAD_TIMEOUT.as_millis() as u32);
                if idle_stays {
                    // Without it the place of a client whose machine is gone is kept for ever.
                    let _ = set_socket_keepalive(&stream, true);
                    let _ = set_tcp_keepidle(&stream, KEEP_ALIVE);
                }
                let entered = door.enter(stream, &open.control, place.handshakes()).await;
                if let Some((stream, peer)) = entered {
                    protocol.serve(stream, peer, Arc::clone(&open.control)).await;
                }
            }
            drop((place, open));
        };
        self.slots.tasks.spawn_on(connection, &runtime);
    }
}

/// Whether a client has closed its side, in all likelihood because it gave up while it waited. (A
/// client that only says that it sends no more looks the same: it is served, unless its thread is
/// overloaded.)
fn has_left(stream: &std::net::TcpStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

impl Share {
    /// The most connections that the limit on open files leaves room for. First raises that limit
    /// as far as the system lets this process. The ops listener always has a share, for questions
    /// about health.
    fn of_the_limit(self) -> usize {
        let mut limit = getrlimit(Resource::Nofile);
        if limit.current < limit.maximum || limit.maximum.is_none() {
            limit.current = limit.maximum;
            // Where it is refused the limit stays what it was.
            let _ = setrlimit(Resource::Nofile, limit);
        }
        usize::try_from(self.of(limit.current.unwrap_or(u64::MAX))).unwrap_or(usize::MAX)
    }

    /// The listener's share if this process may open `files` files.
    fn of(self, files: u64) -> u64 {
        let share = match self {
            // If there are very few, each listener gets the same part, and the rest is left to
            // other files.
            _ if files < 2 * OTHER_FILES => files / 8,
            Self::Large(parts) => (files - OTHER_FILES) / u64::from(parts),
            Self::Small => OTHER_FILES / 2,
        };
        share.max(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_at_most_the_files_there_are() {
        for files in [0, 64, 511, 512, 1024, 1_048_576, u64::MAX] {
            let all = Share::Small.of(files) + 2 * Share::Large(2).of(files);
            assert!(all <= files.max(6), "{files}: {all}");
            assert!(Share::Large(1).of(files) >= Share::Large(2).of(files));
        }
        assert_eq!((Share::Small.of(1024), Share::Large(1).of(1024)), (128, 768));
    }
}
