//! Finds the other nodes in the registry, and reads over HTTP their clocks and, for viewers of the
//! dashboard, their states.
//!
//! A node whose clock cannot be read in time is left out. leaf-snowflake compares the clocks.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures_core::future::BoxFuture;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use leaf_core::UnixMillis;
use leaf_node::config::Config;
use leaf_node::tls::PeerConnector;
use leaf_snowflake::{Identity, Peers, Registry, RegistryError};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// The longest answer that is read, in bytes: a clock has 13 digits, a node's description some
/// words.
const LONGEST: usize = 1024;
/// How long a node may take to answer with its state.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most nodes whose states are read.
const MOST: usize = 256;
/// How many nodes are asked at the same time.
const AT_A_TIME: usize = 16;

/// The other nodes that the registry lists as alive.
///
/// Every node writes its HTTP address into its record there.
#[derive(Debug)]
pub(crate) struct HttpPeers {
    config: Config,
    registry: Registry,
    own: Identity,
    /// The states of the nodes that the registry listed last, by address.
    states: Mutex<BTreeMap<Identity, PeerState>>,
    /// Locked while the states are read, so that only one reading runs at a time.
    looking: tokio::sync::Mutex<()>,
}

/// The state of another node, as last read from it.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct PeerState {
    /// `ready`, `degraded`, `not ready` or `no answer`; `None` until the node has been asked.
    state: Option<Cow<'static, str>>,
    /// The node's version of Leaf.
    version: Option<String>,
}

/// The answer of another node to `GET /v1/server`.
#[derive(Deserialize)]
struct Told {
    ready: bool,
    /// `None` from a node of an older version, which does not send it.
    state: Option<String>,
    version: String,
}

impl PeerState {
    /// Parses the answer of a node; the state is `no answer` if there is none or if it is invalid.
    fn of(answer: Option<String>) -> Self {
        let told = answer.and_then(|answer| serde_json::from_str::<Told>(&answer).ok());
        let Some(Told { ready, state, version }) = told else {
            return Self { state: Some("no answer".into()), version: None };
        };
        let ready = if ready { "ready" } else { "not ready" };
        Self { state: Some(state.map_or(ready.into(), Cow::Owned)), version: Some(version) }
    }
}

impl HttpPeers {
    /// The other nodes of `registry`; this one, `own`, is left out.
    pub(crate) fn new(config: Config, registry: Registry, own: Identity) -> Self {
        Self {
            config,
            registry,
            own,
            states: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Identity, PeerState>> {
        self.states.lock().expect("no holder of this lock panics")
    }

    /// The states of the nodes that the registry listed when their clocks were last read, by
    /// address.
    pub(crate) fn states(&self) -> BTreeMap<String, PeerState> {
        self.known().iter().map(|(peer, state)| (peer.to_string(), state.clone())).collect()
    }

    /// Resets the states of the other nodes to unknown, after the last viewer of the dashboard has
    /// left: the next viewer must not see old ones.
    pub(crate) fn forget_states(&self) {
        self.known().values_mut().for_each(|state| *state = PeerState::default());
    }

    /// Asks the listed nodes for their states, [`MOST`] at most. Does nothing while another call
    /// does it.
    pub(crate) async fn look(&self) {
        let Ok(_looking) = self.looking.try_lock() else { return };
        let peers: Vec<Identity> = self.known().keys().take(MOST).cloned().collect();
        if peers.is_empty() {
            return;
        }
        let Some(connector) = self.connector().await else { return };
        for peers in peers.chunks(AT_A_TIME) {
            let mut asked = JoinSet::new();
            for peer in peers.iter().cloned() {
                let connector = connector.clone();
                asked.spawn(async move {
                    let told = fetch(&connector, peer.as_str(), "/v1/server");
                    let told = tokio::time::timeout(PATIENCE, told).await.ok().flatten();
                    (peer, PeerState::of(told))
                });
            }
            while let Some(Ok((peer, state))) = asked.join_next().await {
                // One that has left the list meanwhile stays away.
                if let Some(known) = self.known().get_mut(&peer) {
                    *known = state;
                }
            }
        }
    }

    /// Makes the connector for requests to other nodes; `None` if that fails, which is logged.
    ///
    /// It is made again for each use, since certificates change, and on a blocking thread, since a
    /// disk may hang.
    async fn connector(&self) -> Option<PeerConnector> {
        let config = self.config.clone();
        let connector = tokio::task::spawn_blocking(move || PeerConnector::new(&config));
        connector
            .await
            .ok()?
            .inspect_err(|error| tracing::warn!("{error}; other nodes cannot be asked"))
            .ok()
    }
}

impl Peers for HttpPeers {
    fn list(&self) -> BoxFuture<'_, Result<Vec<Identity>, RegistryError>> {
        Box::pin(async {
            let peers = self.registry.peers().await?;
            let others = peers.into_iter().filter(|peer| peer.identity != self.own);
            let others: Vec<Identity> = others.map(|peer| peer.address).collect();
            let mut known = self.known();
            let before = std::mem::take(&mut *known);
            let state = |peer: &Identity| before.get(peer).cloned().unwrap_or_default();
            *known = others.iter().map(|peer| (peer.clone(), state(peer))).collect();
            drop(known);
            Ok(others)
        })
    }

    fn ask<'a>(&'a self, peer: &'a Identity) -> BoxFuture<'a, Option<UnixMillis>> {
        Box::pin(async move {
            let connector = self.connector().await?;
            let clock = fetch(&connector, peer.as_str(), "/clock").await;
            let clock = clock.and_then(|text| text.trim().parse().ok()).map(UnixMillis::new);
            if clock.is_none() {
                tracing::debug!("{peer} does not tell its clock");
            }
            clock
        })
    }
}

/// Sends `GET path` to the node at `address` over a new connection, and returns the body of the
/// answer. Returns `None` for any failure: callers do not care which. The caller limits the time.
async fn fetch(connector: &PeerConnector, address: &str, path: &str) -> Option<String> {
    let stream = connector.connect(address).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    // Ends with this question, whatever becomes of it.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request = Request::get(path).header("host", address).body(Empty::<Bytes>::new()).ok()?;
    let answer = sender.send_request(request).await.ok()?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LONGEST).collect().await.ok()?.to_bytes();
    String::from_utf8(body.to_vec()).ok().filter(|_| status == StatusCode::OK)
}
