//! The pools `recycle/notuse` and `recycle/inuse` of the community fork: a znode `workId:{N}` in
//! one of them.
//!
//! The fork makes the znodes 0 to 1024, the last of which does not fit into ten bits. It moves a
//! znode by deleting it and creating it again; a node of the fork that dies in between loses the
//! znode. Leaf writes the ceiling into `lastUsedTimestamp`.

use leaf_core::{UnixMillis, WorkerId};
use leaf_snowflake::{FenceState, JavaMirror, JavaReport, WorkerRecord};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::worker_ids::worker_id;

/// How many worker ids a Java Leaf has: as many as ten bits hold.
pub(super) const COUNT: u32 = 1024;

/// The content of a znode, in the names of the fork.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    work_id: u32,
    last_used_ip: Option<String>,
    /// The fork writes a text; a number is accepted, too.
    last_used_port: Option<Value>,
    /// Unix milliseconds. A Java Leaf writes its clock at its last report, Leaf the ceiling.
    last_used_timestamp: Option<u64>,
}

/// The content of an entry.
fn encode(entry: &Entry) -> Vec<u8> {
    serde_json::to_vec(entry).expect("texts and numbers serialize")
}

/// The content of an entry that nobody has used.
pub(super) fn unused(worker: WorkerId) -> Vec<u8> {
    let (last_used_ip, last_used_port, last_used_timestamp) = (None, None, None);
    encode(&Entry { work_id: worker.get(), last_used_ip, last_used_port, last_used_timestamp })
}

/// The content of the mirror of a record.
pub(super) fn of(worker: WorkerId, record: &WorkerRecord) -> Vec<u8> {
    let who = record.holder.as_str();
    let (ip, port) = who.rsplit_once(':').unwrap_or((who, ""));
    encode(&Entry {
        work_id: worker.get(),
        last_used_ip: Some(ip.into()),
        last_used_port: Some(port.into()),
        last_used_timestamp: Some(record.fence.ceiling.get()),
    })
}

/// Whether Leaf or a Java Leaf wrote the entry; an error text if neither did. An entry in `inuse`
/// that names no holder, or whose fence is released, counts as a Java Leaf's: the fork moves an
/// entry first and writes the holder into it later.
pub(super) fn judge(
    content: &[u8],
    record: Option<&WorkerRecord>,
    in_use: bool,
) -> Result<JavaMirror, String> {
    let entry: Entry = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    let port = match &entry.last_used_port {
        Some(Value::String(port)) => port.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let holder = entry.last_used_ip.map(|ip| format!("{ip}:{port}"));
    let at = entry.last_used_timestamp;
    let released = record.is_some_and(|record| record.fence.state != FenceState::Held);
    let ours = match (record, &holder) {
        _ if in_use && released => false,
        (Some(record), Some(holder)) => {
            let without_port = record.holder.as_str() == holder.trim_end_matches(':');
            (record.holder.as_str() == holder || without_port)
                && at == Some(record.fence.ceiling.get())
        }
        (None, None) => !in_use,
        _ => false,
    };
    if ours {
        return Ok(JavaMirror::Agrees);
    }
    let holder = holder.unwrap_or_else(|| "nobody".into());
    Ok(JavaMirror::Java(JavaReport { holder, at: at.map(UnixMillis::new) }))
}

/// The worker id in the name of a znode.
pub(super) fn parse(name: &str) -> Option<WorkerId> {
    worker_id(name.strip_prefix("workId:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_exactly_the_forks_fields() {
        let text = String::from_utf8(unused(WorkerId::new(7))).unwrap();
        assert_eq!(
            text,
            r#"{"workId":7,"lastUsedIp":null,"lastUsedPort":null,"lastUsedTimestamp":null}"#
        );
        assert_eq!(judge(text.as_bytes(), None, false), Ok(JavaMirror::Agrees));
        assert!(
            matches!(judge(text.as_bytes(), None, true), Ok(JavaMirror::Java(_))),
            "just taken"
        );
        let java = br#"{"workId":7,"lastUsedIp":"10.1.46.33","lastUsedPort":"8080",
                        "lastUsedTimestamp":1567733700834}"#;
        let report = JavaReport {
            holder: "10.1.46.33:8080".into(),
            at: Some(UnixMillis::new(1_567_733_700_834)),
        };
        assert_eq!(judge(java, None, true), Ok(JavaMirror::Java(report)));
        assert!(judge(b"x", None, false).is_err());
        assert_eq!(parse("workId:12"), Some(WorkerId::new(12)));
        assert_eq!(parse("workId:x"), None);
    }
}
