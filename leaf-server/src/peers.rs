//! Reads the clocks of the other nodes: finds the nodes in the worker registry, asks them by HTTP.
//!
//! A node that does not answer in time is left out. The answers are compared in leaf-snowflake.

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
use tokio::task::JoinSet;

/// A clock is a number of 13 digits.
const LONGEST: usize = 64;

/// The nodes that the registry shows as alive.
///
/// Every node shows its HTTP address in its record there.
#[derive(Debug)]
pub(crate) struct HttpPeers {
    config: Config,
    registry: Registry,
    own: Identity,
}

impl HttpPeers {
    /// The other nodes of `registry`; this one, `own`, is left out.
    pub(crate) const fn new(config: Config, registry: Registry, own: Identity) -> Self {
        Self { config, registry, own }
    }
}

impl Peers for HttpPeers {
    fn list(&self) -> BoxFuture<'_, Result<Vec<Identity>, RegistryError>> {
        Box::pin(async {
            let peers = self.registry.peers().await?;
            let others = peers.into_iter().filter(|peer| peer.identity != self.own);
            Ok(others.map(|peer| peer.address).collect())
        })
    }

    fn ask<'a>(&'a self, peer: &'a Identity) -> BoxFuture<'a, Option<UnixMillis>> {
        Box::pin(async move {
            // Read each time, since certificates change; on a thread of its own, since a disk may hang.
            let config = self.config.clone();
            let connector = tokio::task::spawn_blocking(move || PeerConnector::new(&config));
            let clock = match connector.await.ok()? {
                Ok(connector) => ask(&connector, peer.as_str()).await,
                Err(error) => {
                    tracing::warn!("{error}; the clocks of other nodes cannot be asked for");
                    None
                }
            };
            if clock.is_none() {
                tracing::debug!("{peer} does not tell its clock");
            }
            clock
        })
    }
}

/// Asks the node at an address for its clock, over a connection of its own. `None` where anything
/// goes wrong: which clock is right does not depend on why one is not known. The caller bounds the
/// time.
async fn ask(connector: &PeerConnector, address: &str) -> Option<UnixMillis> {
    let stream = connector.connect(address).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    // Ends with this question, whatever becomes of it.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let request =
        Request::get("/clock").header("host", address).body(Empty::<Bytes>::new()).ok()?;
    let answer = sender.send_request(request).await.ok()?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LONGEST).collect().await.ok()?.to_bytes();
    let text = std::str::from_utf8(&body).ok().filter(|_| status == StatusCode::OK)?;
    text.trim().parse().ok().map(UnixMillis::new)
}
