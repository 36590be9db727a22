//! A connection to an etcd cluster, for segments and for worker ids.

use etcd_client::{Client, GetOptions, KeyValue};
use leaf_segment::StoreError;

use super::EtcdUrl;
use super::error::{classify, needs_login};

/// How many keys one request reads.
const PAGE: i64 = 1000;

/// A connection to the members of a cluster: made when it is first used, and anew after the cluster
/// refused the login.
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

    /// Sends one request; its error is classified.
    pub(super) async fn run<T>(
        &self,
        operation: &str,
        request: impl AsyncFnOnce(Client) -> Result<T, etcd_client::Error>,
    ) -> Result<T, StoreError> {
        let answer = async { request(self.client().await?).await };
        self.answer(answer.await).await.map_err(|error| classify(operation.into(), error))
    }

    /// Calls `each` with all keys that start with `prefix`.
    ///
    /// It reads page by page, so the keys are not all of one moment: whoever acts on a record
    /// compares it again when it writes.
    pub(super) async fn read_prefix(
        &self,
        operation: &str,
        prefix: &str,
        mut each: impl FnMut(&KeyValue),
    ) -> Result<(), StoreError> {
        let (mut from, mut end) = (prefix.as_bytes().to_vec(), prefix.as_bytes().to_vec());
        // The key behind all that start with the prefix.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
            let answer =
                self.run(operation, async move |mut client| client.get(from, Some(options)).await);
            let answer = answer.await?;
            answer.kvs().iter().for_each(&mut each);
            match answer.kvs().last().filter(|_| answer.more()) {
                Some(last) => from = [last.key(), &[0]].concat(),
                None => return Ok(()),
            }
        }
    }
}
