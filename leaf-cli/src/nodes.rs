//! Asks the live nodes of the registry over HTTP for their keys and clocks.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leaf_core::{Clock as _, Tag};
use leaf_node::config::Config;
use leaf_node::tls::PeerConnector;
use leaf_shape::keys::KeyId;
use leaf_snowflake::{Registry, SystemClock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config;
use crate::remote::encoded;

/// How long the registry, and then each node, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest answer that is read, in bytes.
const LARGEST: u64 = 64 * 1024;
/// The most nodes whose clocks are read.
const MOST: usize = 64;

/// Fails unless `key` is the newest key of every live node for the tag: a node without it would
/// stop serving the tag. Nodes that do not serve the tag are skipped. If nodes share no registry,
/// or make no snowflake ids, none is asked.
pub(crate) async fn have_key(config: &Config, tag: &Tag, key: KeyId) -> Result<()> {
    if !config.snowflake.enabled || config.registry().is_in_state_file() {
        return Ok(());
    }
    let registry = config::registry(config).await?;
    let peers = tokio::time::timeout(PATIENCE, registry.peers()).await;
    let peers = peers.context("no answer from the registry").and_then(|peers| Ok(peers?));
    let peers =
        peers.context("which nodes are alive is not known; say --yes if all have the key")?;
    let connector = PeerConnector::new(config)?;
    let mut without = Vec::new();
    for peer in peers {
        let asked =
            tokio::time::timeout(PATIENCE, newest_key(&connector, peer.address.as_str(), tag))
                .await;
        let why = match asked {
            Ok(Ok(Some(has))) if has == format!("{}:{}", key.version, key.check) => continue,
            Ok(Ok(Some(has))) => {
                let version = has.split(':').next().unwrap_or_default();
                format!("its newest is {version}, or another key of that version")
            }
            Ok(Ok(None)) => continue,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "no answer".into(),
        };
        without.push(format!("{} ({why})", peer.identity));
    }
    if without.is_empty() {
        return Ok(());
    }
    bail!(
        "key {} is not on every live node: {}. Append it to segment.keys_file there and send SIGHUP, or say --yes",
        key.version,
        without.join(", ")
    )
}

/// A node's newest key for a tag, as shown by `GET /v1/segments/{tag}`; `None` if the node does not
/// serve the tag.
async fn newest_key(connector: &PeerConnector, address: &str, tag: &Tag) -> Result<Option<String>> {
    let tag = encoded(tag.as_str());
    let body = match fetch(connector, address, &format!("/v1/segments/{tag}")).await? {
        (200, body) => body,
        (404, _) => return Ok(None),
        // The node's certificate is not verified: no token is sent there.
        (401, _) => {
            bail!("it answers callers with a token only; look into its segment.keys_file")
        }
        (status, _) => bail!("status {status}"),
    };
    let facts: serde_json::Value = serde_json::from_str(&body)?;
    Ok(Some(facts["newest_key"].as_str().unwrap_or("none").to_owned()))
}

/// How this host's clock differs from that of a node.
pub(crate) struct NodeClock {
    pub(crate) node: String,
    /// This host's clock minus the node's clock.
    pub(crate) offset_ms: i64,
    /// How far off `offset_ms` may be, in either direction.
    uncertainty: Duration,
}

impl NodeClock {
    /// The least by which the two clocks differ, given the uncertainty.
    pub(crate) fn differs_by(&self) -> Duration {
        Duration::from_millis(self.offset_ms.unsigned_abs()).saturating_sub(self.uncertainty)
    }
}

/// The clocks of up to 64 live nodes of a registry, and the number of those nodes that did not tell
/// their clock.
///
/// # Errors
/// The live nodes cannot be read from the registry.
pub(crate) async fn clocks(
    config: &Config,
    registry: &Registry,
) -> Result<(Vec<NodeClock>, usize)> {
    let peers = tokio::time::timeout(PATIENCE, registry.peers()).await;
    let peers = peers.context("no answer from the registry").and_then(|peers| Ok(peers?));
    let mut peers = peers.context("which nodes are alive is not known")?;
    peers.truncate(MOST);
    let all = peers.len();
    let connector = PeerConnector::new(config)?;
    let mut asked = JoinSet::new();
    for peer in peers {
        let connector = connector.clone();
        asked.spawn(async move {
            let clock = clock(&connector, peer.address.as_str());
            let (offset_ms, uncertainty) =
                tokio::time::timeout(PATIENCE, clock).await.ok()?.ok()?;
            Some(NodeClock { node: peer.identity.to_string(), offset_ms, uncertainty })
        });
    }
    let clocks: Vec<NodeClock> = asked.join_all().await.into_iter().flatten().collect();
    let silent = all - clocks.len();
    Ok((clocks, silent))
}

/// This host's clock minus that of a node, in milliseconds, and the uncertainty of this difference.
async fn clock(connector: &PeerConnector, address: &str) -> Result<(i64, Duration)> {
    let asked = Instant::now();
    let (_, body) = fetch(connector, address, "/clock").await?;
    let (half, now) = (asked.elapsed() / 2, SystemClock.wall_millis());
    let there: u64 = body.trim().parse().context("no clock")?;
    // The node looked at its clock in the middle, or at any moment before or after.
    let here = now.get().saturating_sub(u64::try_from(half.as_millis()).unwrap_or(0));
    let offset = here.cast_signed().saturating_sub(there.cast_signed());
    Ok((offset, half + Duration::from_millis(1)))
}

/// What a node answers to `GET`: the status, and the body.
async fn fetch(connector: &PeerConnector, address: &str, path: &str) -> Result<(u16, String)> {
    let mut stream = connector.connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LARGEST).read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer).context("not HTTP")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("not HTTP")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.context("not HTTP")?, body.to_owned()))
}
