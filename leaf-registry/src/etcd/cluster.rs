//! A connection to an etcd cluster, for segments and for worker ids.

use etcd_client::Client;

use super::EtcdUrl;
use super::error::needs_login;

/// A connection to the members of a cluster: made when it is first used, and anew after the cluster
/// refused who we are.
///
/// The client balances over the members by itself and reconnects; a member that is down costs a
/// request at most.
pub(super) struct Cluster {
    url: EtcdUrl,
    client: tokio::sync::Mutex<Option<Client>>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Cluster {
    /// A cluster that nobody has connected to yet.
    pub(super) fn new(url: EtcdUrl) -> Self {
        Self { url, client: tokio::sync::Mutex::default() }
    }

    /// The client, connected if it was not. Cheap to call: clones share one connection.
    pub(super) async fn client(&self) -> Result<Client, etcd_client::Error> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let connected = Client::connect(self.url.members(), Some(self.url.options())).await?;
        Ok(client.insert(connected).clone())
    }

    /// Looks at an answer: after a refused login the next request connects anew.
    pub(super) async fn answer<T>(
        &self,
        answer: Result<T, etcd_client::Error>,
    ) -> Result<T, etcd_client::Error> {
        if let Err(error) = &answer
            && needs_login(error)
        {
            *self.client.lock().await = None;
        }
        answer
    }
}
