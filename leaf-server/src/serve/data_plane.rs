//! The threads that answer requests for ids: each has a runtime of its own and never waits for
//! another.
//!
//! A connection stays on the thread that it was given to: the one with the fewest connections then,
//! among those that were not overloaded.
//! The control plane runs on other threads: it accepts the connections, and is not needed for their
//! requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Pressure;
use crate::metrics::use_cells_of;

/// The most new connections that may wait for the first look of a thread. If more waited, their
/// clients might have given up by then, and each costs as much as some ids.
const NEWCOMERS: usize = 64;
/// How long a new connection waits at most while all threads are crowded (overloaded, or with
/// [`NEWCOMERS`]).
const NEXT: Duration = Duration::from_millis(100);
/// The pause after a waiting connection whose client has gone, while all threads are crowded: so at
/// most a thousand of them a second are closed.
const GONE: Duration = Duration::from_millis(1);

/// The threads that serve connections.
#[derive(Clone)]
pub(crate) struct DataPlane {
    threads: Arc<[Thread]>,
    /// The measured load of each thread; empty if it is not measured.
    pressures: Arc<[Pressure]>,
}

/// One thread with a runtime of its own. A connection never moves to another thread, so that
/// processors share nothing of it.
struct Thread {
    runtime: Handle,
    /// How many connections the thread serves. The next one goes to the thread with the fewest,
    /// unless that one is overloaded.
    connections: AtomicUsize,
    /// How many of its connections it has not looked at yet.
    newcomers: AtomicUsize,
    /// Lets one connection at a time do the costly part of a TLS handshake.
    handshakes: Semaphore,
    /// Ends the thread when the data plane is dropped.
    _stop: DropGuard,
}

/// A connection's place on a thread.
pub(super) struct Place {
    plane: DataPlane,
    thread: usize,
    placed: Instant,
}

impl DataPlane {
    /// The number of threads for a configured value; 0 stands for one per processor that this
    /// process may use.
    pub(crate) fn threads(configured: u32) -> usize {
        match configured {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads as usize,
        }
    }

    /// Starts the data plane, with one thread for each of `pressures`. Tasks of the caller's runtime
    /// measure the threads.
    pub(crate) fn start(pressures: &Arc<[Pressure]>) -> Result<Self> {
        let threads: Result<Vec<_>> = (0..pressures.len())
            .map(|number| {
                let thread = Thread::start(number)?;
                let (runtime, pressures) = (thread.runtime.clone(), Arc::clone(pressures));
                tokio::spawn(async move { pressures[number].watch(&runtime).await });
                Ok(thread)
            })
            .collect();
        Ok(Self { threads: threads?.into(), pressures: Arc::clone(pressures) })
    }

    /// A data plane that is the caller's runtime, which counts as one thread.
    pub(crate) fn here() -> Self {
        let thread = Thread::of(Handle::current(), CancellationToken::new());
        Self { threads: [thread].into(), pressures: [].into() }
    }

    fn is_overloaded(&self, thread: usize) -> bool {
        self.pressures.get(thread).is_some_and(Pressure::is_overloaded)
    }

    /// Waits until a thread can take on a new connection, but no longer than [`NEXT`]: also under
    /// overload, ten a second get their turn. Returns `false` if the client has gone meanwhile.
    pub(super) async fn has_room(&self, has_gone: impl Fn() -> bool) -> bool {
        let is_crowded = |(at, thread): (usize, &Thread)| {
            self.is_overloaded(at) || thread.newcomers.load(Ordering::Relaxed) >= NEWCOMERS
        };
        let until = Instant::now() + NEXT;
        while self.threads.iter().enumerate().all(is_crowded) {
            if has_gone() {
                // To close one costs something, too.
                tokio::time::sleep(GONE).await;
                return false;
            }
            if Instant::now() >= until {
                break;
            }
            tokio::time::sleep(NEXT / 20).await;
        }
        true
    }

    /// Takes a place on the thread with the fewest connections; prefers threads that are not
    /// overloaded.
    pub(super) fn place(&self) -> Place {
        let load = |(at, thread): &(usize, &Thread)| {
            (self.is_overloaded(*at), thread.connections.load(Ordering::Relaxed))
        };
        let by_load = self.threads.iter().enumerate().min_by_key(load);
        let thread = by_load.map_or(0, |(at, _)| at);
        self.threads[thread].connections.fetch_add(1, Ordering::Relaxed);
        self.threads[thread].newcomers.fetch_add(1, Ordering::Relaxed);
        Place { plane: self.clone(), thread, placed: Instant::now() }
    }

    /// Returns once every thread has shown that it answers.
    pub(crate) async fn answers(&self) {
        for thread in &*self.threads {
            let _ = thread.runtime.spawn(async {}).await;
        }
    }
}

impl Place {
    /// Records that the thread looks at the connection for the first time; returns whether the
    /// thread is overloaded.
    pub(super) fn begins(&self) -> bool {
        self.plane.threads[self.thread].newcomers.fetch_sub(1, Ordering::Relaxed);
        let Some(pressure) = self.plane.pressures.get(self.thread) else { return false };
        pressure.newcomer_waited(self.placed.elapsed());
        pressure.is_overloaded()
    }

    /// Lets one connection of this thread at a time do the costly part of a TLS handshake.
    pub(super) fn handshakes(&self) -> &Semaphore {
        &self.plane.threads[self.thread].handshakes
    }

    /// The runtime of the thread that the connection was given to.
    pub(super) fn runtime(&self) -> &Handle {
        &self.plane.threads[self.thread].runtime
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.plane.threads[self.thread].connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Thread {
    /// Starts a thread.
    fn start(number: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("start a runtime of the data plane")?;
        let stop = CancellationToken::new();
        let thread = Self::of(runtime.handle().clone(), stop.clone());
        std::thread::Builder::new()
            .name(format!("leaf-data-{number}"))
            .spawn(move || {
                use_cells_of(number);
                runtime.block_on(stop.cancelled());
            })
            .context("start a thread of the data plane")?;
        Ok(thread)
    }

    /// A thread whose runtime runs already.
    fn of(runtime: Handle, stop: CancellationToken) -> Self {
        Self {
            runtime,
            connections: AtomicUsize::new(0),
            newcomers: AtomicUsize::new(0),
            handshakes: Semaphore::new(1),
            _stop: stop.drop_guard(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    async fn wait_until(what: impl Fn() -> bool) {
        let wait = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    #[allow(clippy::disallowed_methods, reason = "threads are to be held up")]
    async fn overloaded_threads_get_next_to_nothing_new() {
        let pressures: Arc<[Pressure]> = [Pressure::default(), Pressure::default()].into();
        let plane = DataPlane::start(&pressures).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let overload = |thread: usize| {
            for _ in 0..3 {
                let stop = Arc::clone(&stop);
                plane.threads[thread].runtime.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(10));
                        tokio::task::yield_now().await;
                    }
                });
            }
        };
        overload(0);
        wait_until(|| pressures[0].is_overloaded()).await;
        assert!(pressures[0].delay() < Duration::from_secs(10));
        // The other one gets them, though it has more.
        let places: Vec<_> = (0..5).map(|_| plane.place()).collect();
        let elsewhere = places.iter().all(|place| place.thread == 1);
        assert!(elsewhere, "an overloaded thread got a connection");
        overload(1);
        wait_until(|| pressures[1].is_overloaded()).await;
        // Whoever has gone meanwhile costs the others no turn.
        for _ in 0..10 {
            assert!(!plane.has_room(|| true).await, "one that has gone gets a turn");
        }
        let begun = Instant::now();
        assert!(plane.has_room(|| false).await);
        assert!(begun.elapsed() >= NEXT, "newcomers do not wait");
        stop.store(true, Ordering::Relaxed);
        wait_until(|| !pressures.iter().any(Pressure::is_overloaded)).await;
        assert!(plane.has_room(|| true).await);
    }
}
