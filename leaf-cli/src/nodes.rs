//! The live nodes of the registry, asked over HTTP for what only they know.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leaf_core::{KeyId, Tag};
use leaf_node::config::Config;
use leaf_node::tls::PeerConnector;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::config;

/// How long the registry, and then each node, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest answer that is read.
const LARGEST: u64 = 64 * 1024;

/// Refuses unless this key is the newest that every live node has for the tag: a node without it
/// would stop to serve the tag. One that does not serve the tag now is passed over. Nobody is asked
/// where nodes do not share a registry.
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

/// The newest key that a node has for a tag, as `GET /v1/segments/{tag}` tells it; `None` where it
/// does not serve the tag.
async fn newest_key(connector: &PeerConnector, address: &str, tag: &Tag) -> Result<Option<String>> {
    let mut path = String::from("/v1/segments/");
    for byte in tag.as_str().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                path.push(byte.into());
            }
            _ => path += &format!("%{byte:02X}"),
        }
    }
    let mut stream = connector.connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LARGEST).read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer).context("not HTTP")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("not HTTP")?;
    match head.split(' ').nth(1) {
        Some("200") => {}
        Some("404") => return Ok(None),
        // The node's certificate is not verified: no token is sent there.
        Some("401") => {
            bail!("it answers callers with a token only; look into its segment.keys_file")
        }
        _ => bail!("{}", head.lines().next().unwrap_or_default()),
    }
    let facts: serde_json::Value = serde_json::from_str(body)?;
    Ok(Some(facts["newest_key"].as_str().unwrap_or("none").to_owned()))
}
