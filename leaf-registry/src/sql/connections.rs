//! The connections to a database, and how work uses one.
//!
//! Invariant: a connection is used again only after an answer that shows it to be in order, with
//! nothing left open on it. A future that is dropped half-way (a deadline passed) closes its
//! connection. An error that says that the server is read-only closes it too: its address may lead
//! to a new primary by now.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_segment::{StoreError, StoreErrorKind};
use sqlx::pool::PoolOptions;
use sqlx::{Connection, Database};
use tokio::time::timeout;

use super::dialect::{Dialect, ErrorMeaning};
use super::failover_guard::FailoverGuard;
use super::pool::{Checkout, Pool};
use super::url::{Address, ServerOptions};

/// The kind of work that is done on a connection.
///
/// The kind of access decides whether a connection may be used again after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing is changed.
    Read,
    /// At most one of the statements changes something. That statement is a transaction of its own,
    /// and all rows that it returns are read.
    Statement,
    /// Something is changed. On a server each statement commits by itself; in SQLite they commit
    /// together.
    Write,
    /// The work begins and ends transactions: after any error one may be open.
    Transaction,
    /// Like `Transaction`, but the work changes settings of the session: a server's connection is
    /// closed afterwards.
    TransactionThenClose,
}

/// Why work on a connection failed.
#[derive(Debug)]
pub(crate) enum WorkError {
    /// The database answered with an error, or did not answer.
    Database(sqlx::Error),
    /// What was read does not allow the change. The connection is in order.
    Refused(StoreErrorKind),
}

impl From<sqlx::Error> for WorkError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// The connections of one store.
pub(crate) trait Connections: fmt::Debug + Send + Sync + 'static {
    /// The driver.
    type Db: Database;

    /// The pool, for work that outlives a call and takes a connection of its own.
    fn pool(&self) -> &Pool<Self::Db>;

    /// Takes a connection.
    fn begin(
        &self,
        access: Access,
    ) -> impl Future<Output = Result<Checkout<Self::Db>, sqlx::Error>> + Send;

    /// Ends the work: keeps its changes if `result` is `Ok`, and returns the connection to the pool
    /// if the connection is in order.
    fn finish<T: Send>(
        &self,
        checkout: Checkout<Self::Db>,
        access: Access,
        result: Result<T, WorkError>,
    ) -> impl Future<Output = Result<T, WorkError>> + Send;

    /// The error of an operation, classified.
    fn explain(
        &self,
        operation: String,
        error: WorkError,
    ) -> impl Future<Output = StoreError> + Send;
}

/// Runs `work` on a connection.
///
/// If the returned future is dropped half-way, the connection is closed: a server rolls back what
/// was open on it.
pub(crate) async fn run<C: Connections, T: Send>(
    connections: &C,
    access: Access,
    operation: String,
    work: impl AsyncFnOnce(&mut <C::Db as Database>::Connection) -> Result<T, WorkError>,
) -> Result<T, StoreError> {
    let done = async {
        let mut checkout = connections.begin(access).await?;
        let result = work(checkout.connection()).await;
        connections.finish(checkout, access, result).await
    };
    match done.await {
        Ok(done) => Ok(done),
        Err(error) => Err(connections.explain(operation, error).await),
    }
}

/// The longest wait for a connection: to make one takes ten round trips and more to a distant
/// server.
const PATIENCE: Duration = Duration::from_secs(2);
/// After this wait for a connection, a test finds out whether the server can be reached at all:
/// where the server refuses connections, the pool retries without giving a reason. It is well below
/// the time that a generator gives one attempt, so that time is left to find the reason.
const HOPE: Duration = Duration::from_secs(1);

/// Connections to a server, made when they are needed.
///
/// A generator fetches for many tags at a time: so the size of the pool also bounds the load on the
/// database.
pub(crate) struct ServerPool<D: Dialect> {
    pool: Pool<D::Db>,
    /// Where the server is, unless it is behind a socket of this host.
    address: Option<Address>,
    /// For errors; see [`LastFailure`].
    last_failure: LastFailure,
}

/// Why the connection that was made last could not be prepared; `None` if it could. The pool itself
/// only reports a timeout.
type LastFailure = Arc<Mutex<Option<String>>>;

impl<D: Dialect> ServerPool<D> {
    /// Makes a pool of at most `most` connections, each prepared by the dialect when it is made.
    pub(crate) fn new(
        options: <<D::Db as Database>::Connection as Connection>::Options,
        guard: &Arc<FailoverGuard>,
        most: u32,
    ) -> Self
    where
        <<D::Db as Database>::Connection as Connection>::Options: ServerOptions,
    {
        let address = options.address();
        let last_failure = LastFailure::default();
        let (guard, noted) = (Arc::clone(guard), Arc::clone(&last_failure));
        let pool = PoolOptions::<D::Db>::new()
            .max_connections(most)
            .acquire_timeout(PATIENCE)
            // A ping would be a second round trip; a stale connection costs one retry instead.
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let (guard, noted) = (Arc::clone(&guard), Arc::clone(&noted));
                Box::pin(async move {
                    let prepared = async {
                        if let Some(settings) = D::PREPARE {
                            D::run_text(connection, settings).await?;
                        }
                        D::identify_server(connection, &guard).await
                    }
                    .await;
                    *noted.lock().expect("no holder of this lock panics") =
                        prepared.as_ref().err().map(ToString::to_string);
                    prepared
                })
            })
            .connect_lazy_with(options);
        Self {
            pool: Pool::new(pool, |error| {
                (D::ERROR_MEANING)(error) == ErrorMeaning::NoConnectionLeft
            }),
            address,
            last_failure,
        }
    }
}

impl<D: Dialect> Connections for ServerPool<D> {
    type Db = D::Db;

    fn pool(&self) -> &Pool<D::Db> {
        &self.pool
    }

    async fn begin(&self, _access: Access) -> Result<Checkout<D::Db>, sqlx::Error> {
        let mut checkout = pin!(self.pool.acquire());
        let Some(address) = &self.address else { return checkout.await };
        if let Ok(checkout) = timeout(HOPE, &mut checkout).await {
            return checkout;
        }
        match address.is_reached().await {
            // It is slow, or all connections are in use.
            true => checkout.await,
            false => Err(sqlx::Error::PoolTimedOut),
        }
    }

    async fn finish<T: Send>(
        &self,
        checkout: Checkout<D::Db>,
        access: Access,
        result: Result<T, WorkError>,
    ) -> Result<T, WorkError> {
        use ErrorMeaning::{Conflict, Duplicate, OutOfRange, Unencodable};
        let in_order = match &result {
            Ok(_) | Err(WorkError::Refused(_)) => true,
            Err(WorkError::Database(error)) => {
                !matches!(access, Access::Transaction | Access::TransactionThenClose)
                    && matches!(
                        (D::ERROR_MEANING)(error),
                        Conflict | Duplicate | OutOfRange | Unencodable
                    )
            }
        };
        if in_order && access != Access::TransactionThenClose {
            checkout.give_back();
        }
        result
    }

    async fn explain(&self, operation: String, error: WorkError) -> StoreError {
        let WorkError::Database(sqlx::Error::PoolTimedOut) = error else {
            return classify::<D>(operation, error);
        };
        let noted = self.last_failure.lock().expect("no holder of this lock panics").clone();
        let why = match (noted, &self.address) {
            (Some(why), _) => why,
            (None, Some(address)) => address.why_no_connection().await,
            (None, None) => "no connection over the socket in time: is the server up?".into(),
        };
        StoreError::new(StoreErrorKind::Unavailable, operation).because(why)
    }
}

/// Classifies the error of an operation, and says what an operator can do about a missing table or
/// a lack of connections.
///
/// A conflict is worth another try; the dialect decides which errors are conflicts.
pub(crate) fn classify<D: Dialect>(operation: String, error: WorkError) -> StoreError {
    let error = match error {
        WorkError::Refused(kind) => return StoreError::new(kind, operation),
        WorkError::Database(error) => error,
    };
    let meaning = (D::ERROR_MEANING)(&error);
    let kind = meaning.kind();
    let way_out = match meaning {
        ErrorMeaning::MissingTable => "make the table with `leaf-server schema --apply`",
        ErrorMeaning::NoConnectionLeft => {
            "raise the server's max_connections, or this user's limit: an idle node holds 2 connections, a busy one up \
             to 18"
        }
        // `TagExists` says it; the database would only add the names of a table and a key.
        ErrorMeaning::Duplicate => return StoreError::new(kind, operation),
        _ => return StoreError::new(kind, operation).because(error),
    };
    StoreError::new(kind, operation).because(format!("{error}; {way_out}"))
}

impl<D: Dialect> fmt::Debug for ServerPool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerPool").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// If a column of `leaf_tag_settings` is missing, makes the error say what to do.
pub(crate) fn explain_missing_column<D: Dialect>(error: sqlx::Error) -> sqlx::Error {
    if (D::ERROR_MEANING)(&error) != ErrorMeaning::MissingColumn {
        return error;
    }
    advised(
        error,
        "the table does not have the columns that `leaf-server schema` shows: correct the table, and keep its rows, \
         which hold slices and templates",
    )
}

/// Adds to an error what an operator can do about it. It then counts as a refusal.
pub(super) fn advised(error: sqlx::Error, advice: &str) -> sqlx::Error {
    sqlx::Error::Configuration(format!("{error}; {advice}").into())
}

/// Treats an optional table that is missing, or that this user may not use, as empty.
pub(crate) fn empty_if_absent<D: Dialect, T: Default>(
    result: Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    match result {
        Err(error) if (D::ERROR_MEANING)(&error).is_absent() => Ok(T::default()),
        result => result,
    }
}

/// Treats a tag that the table's character set cannot hold as a tag without a row.
pub(crate) fn no_row_if_tag_unencodable<D: Dialect, T: Default>(
    result: Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    match result {
        Err(error) if (D::ERROR_MEANING)(&error) == ErrorMeaning::Unencodable => Ok(T::default()),
        result => result,
    }
}
