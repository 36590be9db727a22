//! Nodes of two versions of Leaf on one registry, as during an upgrade.

use leaf_snowflake::{Fence, RegistryErrorKind, UnknownFields, WorkerRecord};

use crate::fixture::*;

/// A node of a later version writes one more field into a record that a node of this version holds.
/// Later it writes a record version that this version must not change.
pub(crate) async fn what_a_later_version_adds_is_kept(f: Fixture) {
    let node = f.node("10.0.0.1:1").await;
    let mut lease = node.claim().await;
    let worker = lease.worker;
    let later = |fence: &Fence, version: u32| {
        let (holder, unknown) = (node.who.clone(), UnknownFields::default());
        let record =
            WorkerRecord { address: holder.clone(), holder, fence: fence.clone(), unknown };
        let mut json: serde_json::Value = serde_json::from_str(&record.encode()).unwrap();
        json["version"] = version.into();
        json["zone"] = "a".into();
        json["fence"]["region"] = 7.into();
        json.to_string()
    };
    let kept = async || {
        let workers = node.registry().workers().await.unwrap();
        let found = workers.into_iter().find(|found| found.worker == worker).unwrap();
        found.fence.and_then(|fence| fence.unknown.get("region").cloned())
    };
    f.tamper(worker, Some(&later(&lease.fence, 1))).await;
    assert_eq!(kept().await, Some(7.into()), "read");

    node.registry().extend(&mut lease, report(NOW + seconds(601))).await.unwrap();
    assert_eq!(kept().await, Some(7.into()), "extended");
    node.registry().release(lease, report(NOW)).await.unwrap();
    assert_eq!(kept().await, Some(7.into()), "released");
    let mut next = f.node("10.0.0.1:1").await.claim_at(NOW + seconds(700)).await.unwrap();
    assert_eq!((next.worker, kept().await), (worker, Some(7.into())), "claimed");

    f.tamper(worker, Some(&later(&next.fence, 2))).await;
    let refused = node.registry().extend(&mut next, report(NOW + seconds(1400))).await;
    assert_eq!(kind(refused), RegistryErrorKind::NewerFormat { version: 2 });
    let workers = node.registry().workers().await.unwrap();
    let found = workers.iter().find(|found| found.worker == worker).unwrap();
    assert!(found.remark.as_ref().unwrap().contains("version 2"), "{found:?}");
}
