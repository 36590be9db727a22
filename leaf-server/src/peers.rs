//! Asks the other nodes: finds them in the worker registry, and reads by HTTP what their clocks show and, for
//! whoever looks at a dashboard, how they are.
//!
//! A node that does not tell its clock in time is left out; the clocks are compared in leaf-snowflake.

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

/// The longest answer: a clock is a number of 13 digits, a node's description some words.
const LONGEST: usize = 1024;
/// How long a node may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most nodes that are asked how they are.
const MOST: usize = 256;
/// How many nodes are asked at the same time.
const AT_A_TIME: usize = 16;

/// The nodes that the registry shows as alive.
///
/// Every node shows its HTTP address in its record there.
#[derive(Debug)]
pub(crate) struct HttpPeers {
    config: Config,
    registry: Registry,
    own: Identity,
    /// How the nodes are that were listed last, by address.
    states: Mutex<BTreeMap<Identity, PeerState>>,
    /// Held while they are asked.
    looking: tokio::sync::Mutex<()>,
}

/// How another node is, as it said last.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct PeerState {
    /// `ready`, `degraded` or `not ready`, or `no answer`; nothing where it was not asked yet.
    state: Option<Cow<'static, str>>,
    /// Which version of Leaf it is.
    version: Option<String>,
}

/// What another node says of itself.
#[derive(Deserialize)]
struct Told {
    ready: bool,
    /// A version before this one does not tell it.
    state: Option<String>,
    version: String,
}

impl PeerState {
    /// What its answer says, if it is one.
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

    /// How the nodes are that the registry listed when their clocks were read last, by address.
    pub(crate) fn states(&self) -> BTreeMap<String, PeerState> {
        self.known().iter().map(|(peer, state)| (peer.to_string(), state.clone())).collect()
    }

    /// Nobody looks any more: what was told is too old for whoever looks next.
    pub(crate) fn forget_states(&self) {
        self.known().values_mut().for_each(|state| *state = PeerState::default());
    }

    /// Asks all of them how they are, unless that is done already.
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

    /// How other nodes are reached.
    ///
    /// It is made anew each time, since certificates change; on a thread of its own, since a disk may hang.
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

/// What the node at an address answers to `GET`, over a connection of its own. `None` for any failure: callers do
/// not care which. The caller bounds the time.
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
