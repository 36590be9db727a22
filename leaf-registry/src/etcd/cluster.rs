//! A connection to an etcd cluster, for segments and for worker ids.

use etcd_client::Client;

use super::EtcdUrl;
use super::error::needs_login;

/// Made when it is first used, and anew after the cluster refused who we are.
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
    pub(super) fn new(url: EtcdUrl) -> Self {
        Self { url, client: tokio::sync::Mutex::default() }
    }

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
