//! The open connections to a database that nobody uses at the moment.
//!
//! Invariant: there are never more connections than the driver's pool allows. Each caller waits for
//! one of that many permits first. A connection goes back only through [`Checkout::give_back`]; any
//! other end of a [`Checkout`] closes it.
//!
//! The driver's pool opens connections, and counts them. It is not given them back: it would ask
//! the server after each use whether it still answers, on a task of its own, so that the next
//! statement finds no connection and opens another one; and it takes the connections in turn, so
//! that after a rush it keeps them all for ever, in each of a thousand nodes. Here the one that was
//! used last is used next, and the others leave.
//!
//! A server that has no connection left for this process is asked again after pauses of a random
//! length, since other nodes may want one, too; meanwhile the connections that are here serve in
//! turn. So they do while a new one takes long: the driver for PostgreSQL asks such a server again by
//! itself, until its time is over.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sqlx::Database;
use sqlx::pool::PoolConnection;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

/// How long a connection stays open without being used.
const KEPT: Duration = Duration::from_secs(10);
/// A connection that takes longer to open is given up when another one is free.
const OPENS_WITHIN: Duration = Duration::from_millis(100);
/// The pause before a server that had no connection left is asked again, in milliseconds.
const PAUSE_MILLIS: Range<u64> = 20..200;

/// Connections to one database.
pub(crate) struct Pool<DB: Database>(Arc<Inner<DB>>);

struct Inner<DB: Database> {
    /// Opens connections, and closes those that are beyond its limits.
    driver: sqlx::Pool<DB>,
    /// Whether the server had no connection left.
    has_none_left: fn(&sqlx::Error) -> bool,
    /// One for each connection that may be in use.
    permits: Arc<Semaphore>,
    /// The one that was used last is the last one; `None` once the pool is closed.
    idle: Mutex<Option<Vec<Idle<DB>>>>,
    /// Told whenever one comes back.
    freed: Notify,
}

struct Idle<DB: Database> {
    connection: PoolConnection<DB>,
    opened: Instant,
    since: Instant,
}

impl<DB: Database> Pool<DB> {
    /// A pool over the driver's, which nobody else may use.
    pub(crate) fn new(driver: sqlx::Pool<DB>, has_none_left: fn(&sqlx::Error) -> bool) -> Self {
        let permits = Arc::new(Semaphore::new(driver.options().get_max_connections() as usize));
        let idle = Mutex::new(Some(Vec::new()));
        let freed = Notify::new();
        Self(Arc::new(Inner { driver, has_none_left, permits, idle, freed }))
    }

    /// Takes the connection that was used last, or opens one where the pool has room.
    ///
    /// # Errors
    /// `PoolTimedOut` when there was none in time, `PoolClosed`; the error of the driver when
    /// it could not open one, where the server had none left after several tries.
    pub(crate) async fn acquire(&self) -> Result<Checkout<DB>, sqlx::Error> {
        let patience = self.0.driver.options().get_acquire_timeout();
        let mut refused = None;
        let acquired = timeout(patience, async {
            let permit = Arc::clone(&self.0.permits).acquire_owned().await;
            let permit = permit.map_err(|_| sqlx::Error::PoolClosed)?;
            let (connection, opened) = loop {
                let idle = self.0.idle().as_mut().ok_or(sqlx::Error::PoolClosed)?.pop();
                if let Some(idle) = idle {
                    break (idle.connection, idle.opened);
                }
                let opening = async {
                    match self.0.driver.acquire().await {
                        Err(error) if (self.0.has_none_left)(&error) => refused = Some(error),
                        opened => return Some(opened),
                    }
                    sleep(Duration::from_millis(fastrand::u64(PAUSE_MILLIS))).await;
                    None
                };
                let another = async {
                    sleep(OPENS_WITHIN).await;
                    while self.0.idle().as_ref().is_some_and(Vec::is_empty) {
                        self.0.freed.notified().await;
                    }
                };
                tokio::select! {
                    biased;
                    opened = opening => if let Some(opened) = opened {
                        break (opened?, Instant::now());
                    },
                    () = another => {}
                }
            };
            let pool = Arc::clone(&self.0);
            Ok(Checkout { connection: Some(connection), opened, pool, _permit: permit })
        });
        match acquired.await {
            Ok(acquired) => acquired,
            Err(_) => Err(refused.unwrap_or(sqlx::Error::PoolTimedOut)),
        }
    }

    /// Closes the idle connections, and waits for those in use.
    pub(crate) async fn close(&self) {
        drop(self.0.idle().take());
        self.0.driver.close().await;
    }
}

impl<DB: Database> Clone for Pool<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<DB: Database> fmt::Debug for Pool<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The driver's own text has the connection's options in it.
        f.debug_struct("Pool").field("size", &self.0.driver.size()).finish_non_exhaustive()
    }
}

impl<DB: Database> Drop for Inner<DB> {
    /// The driver would say goodbye to the server in a task; there may be no runtime here.
    fn drop(&mut self) {
        let idle = self.idle.get_mut().ok().and_then(Option::take);
        for idle in idle.into_iter().flatten() {
            drop(idle.connection.detach());
        }
    }
}

impl<DB: Database> Inner<DB> {
    fn idle(&self) -> MutexGuard<'_, Option<Vec<Idle<DB>>>> {
        self.idle.lock().expect("no holder of this lock panics")
    }

    /// Keeps a connection, unless it is too old. Returns those that leave.
    fn keep(&self, connection: PoolConnection<DB>, opened: Instant) -> Vec<PoolConnection<DB>> {
        let now = Instant::now();
        let lifetime = self.driver.options().get_max_lifetime();
        let mut idle = self.idle();
        let Some(idle) = idle.as_mut().filter(|_| lifetime.is_none_or(|it| now - opened < it))
        else {
            return vec![connection];
        };
        // The first ones have waited longest.
        let unneeded = idle.iter().take_while(|idle| now - idle.since >= KEPT).count();
        let left = idle.drain(..unneeded).map(|idle| idle.connection).collect();
        idle.push(Idle { connection, opened, since: now });
        self.freed.notify_one();
        left
    }
}

/// A connection that goes back to its pool only through [`Checkout::give_back`].
pub(crate) struct Checkout<DB: Database> {
    connection: Option<PoolConnection<DB>>,
    opened: Instant,
    pool: Arc<Inner<DB>>,
    /// Given back after the connection.
    _permit: OwnedSemaphorePermit,
}

impl<DB: Database> Checkout<DB> {
    /// The connection itself.
    pub(crate) fn connection(&mut self) -> &mut DB::Connection {
        self.connection.as_mut().expect("taken out only by `give_back` and `drop`")
    }

    /// Returns the connection to the pool: the server has answered, and nothing is left open.
    pub(crate) fn give_back(mut self) {
        let Some(connection) = self.connection.take() else { return };
        for mut unneeded in self.pool.keep(connection, self.opened) {
            // In a task of the driver, which says goodbye to the server.
            unneeded.close_on_drop();
        }
    }
}

impl<DB: Database> Drop for Checkout<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(connection.detach());
        }
    }
}
