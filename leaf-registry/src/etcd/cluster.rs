//! A connection to an etcd cluster, for segments and for worker ids.
//!
//! Invariant: once an answer shows an older state of the cluster than this process has seen, or
//! another cluster, neither that answer nor any later one counts. A cluster that was restored from
//! a snapshot has an older revision than before, and perhaps another id. It lacks the grants that
//! were made since the snapshot, and would make them again. Each answer to a transaction or to a
//! linearizable read carries id and revision. In a cluster that did not go back, this revision is
//! never lower than one that was seen before the request was sent.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, ResponseHeader, Txn,
    TxnOp, TxnResponse,
};
use leaf_segment::{StoreError, StoreErrorKind};
use tokio::time::Instant;

use super::config;
use super::error::{classify, is_of_the_member, was_not_sent};
use crate::host_list::HostList;

/// How many keys one request reads.
const PAGE: i64 = 1000;
/// A request that takes longer has met a member that does not answer, or a slow cluster.
const LONG: Duration = Duration::from_millis(500);

/// A connection to one member of a cluster, made when it is first used.
///
/// The next member gets the requests once one does not answer, or refuses the login. A member that
/// accepts no connection costs nobody a request: what could not be sent goes to the next one at
/// once. (The client's own balancing over several members asks one that is down again and again.)
pub(super) struct Cluster {
    url: HostList,
    /// The number of the connection that requests use; modulo the number of members, the place of
    /// its member in the URL.
    turn: AtomicUsize,
    /// The last connection, and its number.
    connection: tokio::sync::Mutex<Option<(usize, Client)>>,
    /// The cluster's id, once an answer has shown it; 0 before.
    id: AtomicU64,
    /// The greatest revision of any answer.
    revision: AtomicI64,
    /// Whether an answer has shown another cluster, or an earlier state.
    went_back: AtomicBool,
}

/// A request that is under way. Dropped without an answer after [`LONG`], it leaves the member: the
/// caller did not wait until the request failed.
struct Sent<'a> {
    cluster: &'a Cluster,
    turn: usize,
    begun: Instant,
    answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.answered && self.begun.elapsed() > LONG {
            self.cluster.leave(self.turn);
        }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Cluster {
    /// A cluster that nobody has connected to yet. Begins with any member: many nodes share the
    /// members.
    pub(super) fn new(url: HostList) -> Self {
        let first = fastrand::usize(..url.hosts().len());
        Self {
            url,
            turn: AtomicUsize::new(first),
            connection: tokio::sync::Mutex::default(),
            id: AtomicU64::new(0),
            revision: AtomicI64::new(0),
            went_back: AtomicBool::new(false),
        }
    }

    /// Sends one request that any member may answer from its own, perhaps older, state; the error
    /// is classified. If there is no connection, it is sent to each member in turn.
    pub(super) async fn ask<T, R>(
        &self,
        operation: &str,
        request: impl Fn(Client) -> R,
    ) -> Result<T, StoreError>
    where
        R: Future<Output = Result<T, etcd_client::Error>>,
    {
        let mut left = self.url.hosts().len();
        loop {
            let turn = self.turn.load(Ordering::Relaxed);
            let mut sent = Sent { cluster: self, turn, begun: Instant::now(), answered: false };
            let answer = match self.client(&mut sent.turn).await {
                Ok(client) => request(client).await,
                Err(error) => Err(error),
            };
            sent.answered = true;
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if is_of_the_member(&error) {
                self.leave(sent.turn);
            }
            left -= 1;
            if left == 0 || !was_not_sent(&error) {
                return Err(classify(operation.into(), &self.url, &error));
            }
        }
    }

    /// Returns the client, and sets `turn` to the number of its connection; connects first if there
    /// is none. Cheap to call: clones share one connection.
    async fn client(&self, turn: &mut usize) -> Result<Client, etcd_client::Error> {
        let mut connection = self.connection.lock().await;
        *turn = self.turn.load(Ordering::Relaxed);
        if let Some((number, client)) = &*connection
            && number == turn
        {
            return Ok(client.clone());
        }
        let hosts = self.url.hosts();
        let host = [&hosts[*turn % hosts.len()]];
        let client = Client::connect(host, Some(config::options(&self.url))).await?;
        Ok(connection.insert((*turn, client)).1.clone())
    }

    /// Makes the next request connect to the next member, unless another request has left the
    /// connection of this number already.
    fn leave(&self, turn: usize) {
        let next = turn.wrapping_add(1);
        let _ = self.turn.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Sends one transaction; its error is classified.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(super) async fn txn(&self, operation: &str, txn: Txn) -> Result<TxnResponse, StoreError> {
        let commit = |mut client: Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        self.run(operation, commit, TxnResponse::header).await
    }

    /// Sends one linearizable read; its error is classified.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub(super) async fn get(
        &self,
        operation: &str,
        key: impl Into<Vec<u8>>,
        options: GetOptions,
    ) -> Result<GetResponse, StoreError> {
        let key = key.into();
        let get = |mut client: Client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.get(key, Some(options)).await }
        };
        self.run(operation, get, GetResponse::header).await
    }

    /// Sends one request whose answer shows the state of the cluster in its header.
    ///
    /// # Errors
    /// `WentBack` once an answer has shown another cluster, or an earlier state of this one.
    async fn run<T, R>(
        &self,
        operation: &str,
        request: impl Fn(Client) -> R,
        header: fn(&T) -> Option<&ResponseHeader>,
    ) -> Result<T, StoreError>
    where
        R: Future<Output = Result<T, etcd_client::Error>>,
    {
        let went_back = || StoreError::new(StoreErrorKind::WentBack, operation);
        if self.went_back.load(Ordering::Acquire) {
            return Err(went_back());
        }
        // Before the request: an answer that was sent earlier may arrive later.
        let known = self.revision.load(Ordering::Acquire);
        let answer = self.ask(operation, request).await?;
        if let Some(header) = header(&answer)
            && let Some(how) = self.compare(header, known)
        {
            if !self.went_back.swap(true, Ordering::AcqRel) {
                tracing::error!("etcd {how}: {}", StoreErrorKind::WentBack);
            }
            return Err(went_back().because(how));
        }
        Ok(answer)
    }

    /// Checks whether this user may write the keys, and whether etcd has room, by a transaction
    /// with a condition that never holds. Nothing is written.
    pub(super) async fn try_put(
        &self,
        operation: &str,
        keys: [String; 2],
    ) -> Result<(), StoreError> {
        let never = keys.clone().map(|key| Compare::version(key, CompareOp::Equal, -1));
        let puts = keys.map(|key| TxnOp::put(key, "", None::<PutOptions>));
        let txn = Txn::new().when(never).and_then(puts);
        self.txn(operation, txn).await.map(drop)
    }

    /// Records the cluster id and the revision of an answer; returns what is wrong if they show an
    /// earlier state or another cluster.
    fn compare(&self, header: &ResponseHeader, known: i64) -> Option<String> {
        let (id, revision) = (header.cluster_id(), header.revision());
        let first = self.id.compare_exchange(0, id, Ordering::AcqRel, Ordering::Acquire);
        if let Err(before) = first
            && before != id
        {
            return Some(format!("is another cluster: its id was {before:x}, and is {id:x}"));
        }
        let before = self.revision.fetch_max(revision, Ordering::AcqRel);
        let lost = format!("went back from revision {} to {revision}", before.max(known));
        (revision < known).then_some(lost)
    }

    /// Calls `each` with all keys that start with `prefix`.
    ///
    /// It reads page by page, so the keys are not all of one moment: a caller that acts on a record
    /// must compare it again when it writes.
    pub(super) async fn read_prefix(
        &self,
        operation: &str,
        prefix: &str,
        mut each: impl FnMut(&KeyValue),
    ) -> Result<(), StoreError> {
        let mut from = prefix.as_bytes().to_vec();
        loop {
            let options = GetOptions::new().with_range(end_of(prefix)).with_limit(PAGE);
            let answer = self.get(operation, from, options).await?;
            answer.kvs().iter().for_each(&mut each);
            match answer.kvs().last().filter(|_| answer.more()) {
                Some(last) => from = [last.key(), &[0]].concat(),
                None => return Ok(()),
            }
        }
    }

    /// Reads the names of up to `limit` keys that start with `prefix`, from the first one behind
    /// `prefix` + `after` on (from the beginning if `after` is empty). Returns the names without
    /// the prefix, and whether there are more.
    pub(super) async fn read_names(
        &self,
        operation: &str,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<String>, bool), StoreError> {
        let from = [prefix.as_bytes(), after.as_bytes(), &[0][..usize::from(!after.is_empty())]];
        let options = GetOptions::new().with_range(end_of(prefix)).with_keys_only();
        let options = options.with_limit(limit as i64);
        let answer = self.get(operation, from.concat(), options).await?;
        let names = answer.kvs().iter().filter_map(|kv| {
            let name = String::from_utf8_lossy(kv.key()).strip_prefix(prefix)?.to_owned();
            Some(name)
        });
        Ok((names.collect(), answer.more()))
    }
}

/// The least key behind all keys that start with the prefix.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
