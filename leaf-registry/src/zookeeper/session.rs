//! The session with ZooKeeper.
//!
//! Within a session the server executes requests in their order, also across a lost connection: a
//! request without an answer takes effect before any later request, or never. When a session has
//! ended, the next request begins another. A session does not decide who holds a worker id, so no
//! node loses its worker id when its session ends.

use std::sync::Arc;
use std::time::Duration;

use leaf_snowflake::RegistryError;
use tokio::sync::Mutex;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, MultiReadResult};

use super::error::classify;
use crate::host_list::HostList;

/// How long the connection to one host may take.
const CONNECT: Duration = Duration::from_secs(1);

/// A session with ZooKeeper, which begins when it is first used; after its end, the next use begins
/// a new one.
#[derive(Debug)]
pub(crate) struct Session {
    servers: HostList,
    timeout: Duration,
    client: Mutex<Option<Client>>,
}

/// A session's client, and how the znodes that it makes are protected.
///
/// Without a login, znodes are open to everybody, as those of the Java programs are; with one, only
/// this login may use them.
#[derive(Debug, Clone)]
pub(crate) struct Connected {
    pub(crate) client: Client,
    /// Who may use the znodes that are made.
    acls: Acls<'static>,
}

impl Session {
    /// A session that has not begun.
    pub(crate) fn new(servers: HostList, timeout: Duration) -> Arc<Self> {
        Arc::new(Self { servers, timeout, client: Mutex::default() })
    }

    /// The session's client. Begins a session where there is none or the last one is over:
    /// connects, makes the chroot, and waits until the member that it reached has everything that
    /// was written before.
    async fn begin(&self) -> Result<Connected, Error> {
        let mut client = self.client.lock().await;
        let acls = match self.servers.login() {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        };
        if let Some(client) = client.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(Connected { client: client.clone(), acls });
        }
        let mut connector = Client::connector()
            .with_session_timeout(self.timeout)
            .with_connection_timeout(CONNECT.min(self.timeout * 2 / 5))
            .with_fail_eagerly();
        if let Some((user, password)) = self.servers.login() {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        let connected = connector.connect(&self.servers.without_login()).await?;
        let connected = Connected { client: connected, acls };
        // The chroot is not made by connecting to it.
        if let (path, Ok(root)) =
            (connected.client.path().to_owned(), connected.client.clone().chroot("/"))
            && path != "/"
        {
            match root.mkdir(&path, &connected.persistent()).await {
                // The chroot may exist although this login may not create its parents: go on.
                Ok(()) | Err(Error::NoAuth) => {}
                Err(error) => return Err(error),
            }
        }
        // This session may be on a member that lags behind: wait until it knows all that was
        // written in earlier sessions.
        match connected.client.sync("/").await {
            Ok(()) | Err(Error::NoNode) => {}
            Err(error) => return Err(error),
        }
        *client = Some(connected.client.clone());
        Ok(connected)
    }

    /// Runs `action` in the session.
    ///
    /// It runs once: only the caller knows whether a retry is harmless.
    pub(crate) async fn run<T>(
        &self,
        operation: &str,
        action: impl AsyncFnOnce(&Connected) -> Result<T, Error>,
    ) -> Result<T, RegistryError> {
        let result = match self.begin().await {
            Ok(connected) => action(&connected).await,
            Err(error) => Err(error),
        };
        result.map_err(|error| classify(operation.to_owned(), error))
    }
}

impl Connected {
    /// Options for znodes that outlive the session.
    pub(crate) fn persistent(&self) -> CreateOptions<'static> {
        CreateMode::Persistent.with_acls(self.acls)
    }

    /// Options for znodes that end with the session.
    pub(crate) fn ephemeral(&self) -> CreateOptions<'static> {
        CreateMode::Ephemeral.with_acls(self.acls)
    }

    /// Options for znodes whose names ZooKeeper numbers.
    pub(crate) fn sequential(&self) -> CreateOptions<'static> {
        CreateMode::PersistentSequential.with_acls(self.acls)
    }

    /// The names below a znode; none where it does not exist.
    pub(crate) async fn children(&self, path: &str) -> Result<Vec<String>, Error> {
        match self.client.list_children(path).await {
            Err(Error::NoNode) => Ok(Vec::new()),
            children => children,
        }
    }

    /// Content and version of znodes at one moment; `None` for those that do not exist.
    pub(crate) async fn read(
        &self,
        paths: &[String],
    ) -> Result<Vec<Option<(Vec<u8>, i32)>>, Error> {
        let mut reader = self.client.new_multi_reader();
        for path in paths {
            reader.add_get_data(path)?;
        }
        let node = |result: MultiReadResult| match result {
            MultiReadResult::Data { data, stat } => Ok(Some((data, stat.version))),
            MultiReadResult::Error { err: Error::NoNode } => Ok(None),
            MultiReadResult::Error { err } => Err(err),
            other => Err(Error::UnexpectedError(format!("{other:?} in answer to a read"))),
        };
        reader.commit().await?.into_iter().map(node).collect()
    }
}
