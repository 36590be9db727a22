//! A pool of the idle connections to a database.
//!
//! Invariant: there are never more connections than the driver's pool allows. Each caller waits for
//! one of that many permits first. A connection goes back only through [`Checkout::give_back`]; any
//! other end of a [`Checkout`] closes it.
//!
//! The driver's pool only opens and counts connections; a connection never goes back to it. It
//! would test each returned connection in a task of its own, so that the next statement finds no
//! idle connection and opens another one; and it uses the connections in rotation, so that after a
//! burst it keeps all of them open for ever, in each of a thousand nodes. This pool uses the
//! connection next that was used last, and closes those that stay idle.
//!
//! If the server has reached its limit of connections, the pool tries again after random pauses,
//! since other nodes may also be waiting; meanwhile the caller takes a connection that another
//! caller returns. The caller also does so while opening takes long: the PostgreSQL driver itself
//! retries such a server until its timeout.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sqlx::Database;
use sqlx::pool::PoolConnection;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

/// A connection that was idle this long is closed when another one is returned.
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
    /// Whether an error says that the server has no connection left.
    has_none_left: fn(&sqlx::Error) -> bool,
    /// One for each connection that may be in use.
    permits: Arc<Semaphore>,
    /// The idle connections, the last used one at the end; `None` once the pool is closed.
    idle: Mutex<Option<Vec<Idle<DB>>>>,
    /// Notified whenever a connection comes back.
    freed: Notify,
}

struct Idle<DB: Database> {
    connection: PoolConnection<DB>,
    opened: Instant,
    since: Instant,
}

impl<DB: Database> Pool<DB> {
    /// Makes a pool on top of the driver's pool, which nothing else may use.
    pub(crate) fn new(driver: sqlx::Pool<DB>, has_none_left: fn(&sqlx::Error) -> bool) -> Self {
        let permits = Arc::new(Semaphore::new(driver.options().get_max_connections() as usize));
        let idle = Mutex::new(Some(Vec::new()));
        let freed = Notify::new();
        Self(Arc::new(Inner { driver, has_none_left, permits, idle, freed }))
    }

    /// Takes the connection that was used last, or opens one where the pool has room.
    ///
    /// # Errors
    /// `PoolTimedOut` if there was no connection in time; `PoolClosed`; the driver's error if it
    /// could not open a connection, or if the server had none left in any try until the timeout.
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
    /// Closes the connections at once: the driver would close each in a task, and there may be no
    /// runtime here.
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

    /// Keeps a connection, unless it is too old or the pool is closed. Returns the connections to
    /// close.
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
    /// Released after the connection was returned or closed.
    _permit: OwnedSemaphorePermit,
}

impl<DB: Database> Checkout<DB> {
    /// The connection itself.
    pub(crate) fn connection(&mut self) -> &mut DB::Connection {
        self.connection.as_mut().expect("taken out only by `give_back` and `drop`")
    }

    /// Returns the connection to the pool. Only for a connection whose server has answered, with
    /// nothing left open on it.
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
