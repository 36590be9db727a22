//! The znode `forever/{ip}:{port}-NNNNNNNNNN` of the original Java Leaf.
//!
//! ZooKeeper assigns the number, which is the worker id. The content is JSON of exactly three
//! fields; the Java reader fails on any other field. Leaf writes the ceiling into `timestamp`, and
//! 0 before there is a fence.

use leaf_core::{UnixMillis, WorkerId};
use leaf_snowflake::{Identity, JavaMirror, JavaReport, RegistryErrorKind, WorkerRecord};
use serde::{Deserialize, Serialize};

/// The content of a znode, in the names of the Java program.
#[derive(Debug, Serialize, Deserialize)]
struct Endpoint {
    ip: String,
    port: String,
    /// Unix milliseconds. A Java Leaf writes its clock at its last report, Leaf the ceiling.
    timestamp: u64,
}

/// Encodes the content of a holder's znode. `timestamp`: Unix milliseconds.
pub(super) fn content(who: &Identity, timestamp: u64) -> Vec<u8> {
    let (ip, port) = who.as_str().rsplit_once(':').unwrap_or((who.as_str(), ""));
    let endpoint = Endpoint { ip: ip.into(), port: port.into(), timestamp };
    serde_json::to_vec(&endpoint).expect("texts and a number serialize")
}

/// The content of the mirror of a record.
pub(super) fn of(record: &WorkerRecord) -> Vec<u8> {
    content(&record.holder, record.fence.ceiling.get())
}

/// Whether Leaf or a Java Leaf wrote the content of a znode; an error text if neither did.
pub(super) fn judge(
    holder: &str,
    content: &[u8],
    record: Option<&WorkerRecord>,
) -> Result<JavaMirror, String> {
    let endpoint: Endpoint =
        serde_json::from_slice(content).map_err(|error| format!("znode of {holder}: {error}"))?;
    let ours = match record {
        Some(record) => record.fence.ceiling.get() == endpoint.timestamp,
        None => endpoint.timestamp == 0,
    };
    if ours {
        return Ok(JavaMirror::Agrees);
    }
    let at = Some(UnixMillis::new(endpoint.timestamp));
    Ok(JavaMirror::Java(JavaReport { holder: holder.into(), at }))
}

/// Reads identity and worker id from the name of a znode.
pub(super) fn parse(name: &str) -> Option<(&str, WorkerId)> {
    let (who, number) = name.rsplit_once('-')?;
    Some((who, WorkerId::new(number.parse().ok()?)))
}

/// The name of a worker id's znode.
pub(super) fn name(who: &Identity, worker: WorkerId) -> String {
    format!("{who}-{:010}", worker.get())
}

/// Refuses an identity with a '-', or without a port. A '-' would stop every Java Leaf of the tree:
/// each parses everything behind the *first* '-' as the worker id.
pub(super) fn check(who: &Identity) -> Result<(), RegistryErrorKind> {
    if who.as_str().contains('-') || !who.as_str().contains(':') {
        return Err(RegistryErrorKind::BadIdentity(format!(
            "{who} cannot be a name in zk_normal, Java Leafs could not read it: identify this node by an IP \
             address and a port"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_exactly_what_the_java_reader_takes() {
        let who = Identity::parse("10.1.46.33:8080").unwrap();
        let text = String::from_utf8(content(&who, 1_567_733_700_834)).unwrap();

        assert_eq!(text, r#"{"ip":"10.1.46.33","port":"8080","timestamp":1567733700834}"#);
        assert_eq!(
            judge("10.1.46.33:8080", text.as_bytes(), None),
            Ok(JavaMirror::Java(JavaReport {
                holder: "10.1.46.33:8080".into(),
                at: Some(UnixMillis::new(1_567_733_700_834)),
            }))
        );
        assert_eq!(
            judge("a:1", &content(&who, 0), None),
            Ok(JavaMirror::Agrees),
            "made, not yet claimed"
        );
        assert!(judge("a:1", b"{}", None).is_err());
    }

    #[test]
    fn a_name_ends_at_its_last_hyphen() {
        let who = Identity::parse("10.1.46.33:8080").unwrap();
        assert_eq!(name(&who, WorkerId::new(7)), "10.1.46.33:8080-0000000007");
        assert_eq!(parse("10.1.46.33:8080-0000000007"), Some((who.as_str(), WorkerId::new(7))));
        assert_eq!(parse("my-host:1-0000000012"), Some(("my-host:1", WorkerId::new(12))));
        assert_eq!(parse("x"), None);
        assert!(check(&who).is_ok());
        assert!(check(&Identity::parse("my-host:8080").unwrap()).is_err());
        assert!(check(&Identity::parse("10.1.46.33").unwrap()).is_err());
        assert!(check(&Identity::parse("[::1]:8080").unwrap()).is_ok());
    }
}
