//! Shows that this node is alive: an ephemeral znode, made again in every new session.
//!
//! Only the comparison of clocks reads this znode.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leaf_snowflake::{Identity, Peer, RegistryError};
use tokio_util::task::AbortOnDropHandle;
use zookeeper_client::Error;

use super::{Connected, Session};

/// Deadline of one write.
const PATIENCE: Duration = Duration::from_secs(2);

/// The znode that shows that this node is alive, and the task that keeps the znode.
#[derive(Debug)]
pub(crate) struct Liveness {
    session: Arc<Session>,
    /// The path of the znode below which the live nodes have their znodes.
    directory: String,
    interval: Duration,
    /// The task that keeps this node's ephemeral znode, and that znode's path.
    task: Mutex<Option<(String, AbortOnDropHandle<()>)>>,
}

impl Liveness {
    /// Makes no znode yet: [`Self::announce`] does.
    pub(crate) const fn new(session: Arc<Session>, directory: String, interval: Duration) -> Self {
        Self { session, directory, interval, task: Mutex::new(None) }
    }

    /// The task, locked for a moment.
    fn task(&self) -> MutexGuard<'_, Option<(String, AbortOnDropHandle<()>)>> {
        self.task.lock().expect("no holder of this lock panics")
    }

    /// Creates and keeps this node's ephemeral znode.
    pub(crate) fn announce(&self, who: &Identity, address: &Identity) {
        let path = format!("{}/{who}", self.directory);
        let (session, directory) = (Arc::clone(&self.session), self.directory.clone());
        let (kept, address, interval) = (path.clone(), address.to_string(), self.interval);
        let task = tokio::spawn(async move {
            loop {
                let keep = session.run("show this node as alive in ZooKeeper", async |connected| {
                    keep(connected, &directory, &kept, &address).await
                });
                if let Ok(Err(error)) = tokio::time::timeout(PATIENCE, keep).await {
                    tracing::debug!("{error}");
                }
                tokio::time::sleep(interval).await;
            }
        });
        *self.task() = Some((path, AbortOnDropHandle::new(task)));
    }

    /// Deletes this node's ephemeral znode.
    pub(crate) async fn withdraw(&self) {
        let Some((path, task)) = self.task().take() else { return };
        // Ends it first: it would make the znode again.
        drop(task);
        let gone = self.session.run("show this node as gone in ZooKeeper", async |connected| {
            connected.client.delete(&path, None).await
        });
        // Else it goes with the session.
        let _ = gone.await;
    }

    /// The nodes that are alive.
    pub(crate) async fn peers(&self) -> Result<Vec<Peer>, RegistryError> {
        self.session
            .run("look for live nodes in ZooKeeper", async |connected| {
                let names = connected.children(&self.directory).await?;
                let paths: Vec<_> =
                    names.iter().map(|name| format!("{}/{name}", self.directory)).collect();
                let contents = connected.read(&paths).await?;
                let peer = |(name, node): (&String, Option<(Vec<u8>, i32)>)| {
                    let address = String::from_utf8(node?.0).ok()?;
                    let address = Identity::parse(&address).ok()?;
                    Some(Peer { identity: Identity::parse(name).ok()?, address })
                };
                Ok(names.iter().zip(contents).filter_map(peer).collect())
            })
            .await
    }
}

/// Makes the znode, unless this session has made it already. A znode of an earlier session is
/// replaced, since it vanishes when that session ends.
async fn keep(
    connected: &Connected,
    directory: &str,
    path: &str,
    address: &str,
) -> Result<(), Error> {
    let client = &connected.client;
    match client.check_stat(path).await? {
        Some(stat) if stat.ephemeral_owner == client.session_id().0 => return Ok(()),
        // Of a session that is over, or about to be.
        Some(_) => match client.delete(path, None).await {
            Ok(()) | Err(Error::NoNode) => {}
            Err(error) => return Err(error),
        },
        None => {}
    }
    match client.create(path, address.as_bytes(), &connected.ephemeral()).await {
        Err(Error::NoNode) => {
            client.mkdir(directory, &connected.persistent()).await?;
            client.create(path, address.as_bytes(), &connected.ephemeral()).await?;
            Ok(())
        }
        created => created.map(|_| ()),
    }
}
