//! A name that is misspelt makes a second cluster.

use std::sync::Arc;

use leaf_registry::RegistryKind;
use leaf_testkit::{Etcd, ZooKeeper};
use tokio::task::spawn_blocking;

use crate::fixture::{Fixture, Server};

/// W-27: before its first claim, a new cluster gets a warning that names the other clusters in the
/// same registry; an existing cluster gets none.
async fn the_others_are_named(servers: [Server; 2], kind: RegistryKind) {
    let [known, misspelt] = servers;
    let known = Fixture::on(known, kind).await;
    let warning =
        async |f: &Fixture| f.open().await.registry.warning_of_a_new_cluster().await.unwrap();
    assert_eq!(warning(&known).await, None, "it is alone");
    known.node("10.0.0.1:1").await.claim().await;
    assert_eq!(warning(&known).await, None);

    let misspelt = Fixture::on(misspelt, kind).await;
    let name = |f: &Fixture| match &f.server {
        Server::Etcd(_, name) => name.clone(),
        _ => f.options.name.clone(),
    };
    let told = warning(&misspelt).await.expect("another cluster is there");
    assert!(told.contains(&format!("{:?}", name(&known))), "{told}");
    misspelt.node("10.0.0.1:1").await.claim().await;
    assert_eq!(warning(&misspelt).await, None, "it is told before the first claim");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_etcd() {
    let etcd = Arc::new(spawn_blocking(|| Etcd::start(1)).await.unwrap());
    let server = || Server::Etcd(Arc::clone(&etcd), etcd.new_name());
    the_others_are_named([server(), server()], RegistryKind::Store("etcd")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_zookeeper() {
    for kind in [RegistryKind::ZkNormal, RegistryKind::ZkRecycle] {
        let server = Arc::new(spawn_blocking(|| ZooKeeper::start(1)).await.unwrap());
        let server = || Server::ZooKeeper(Arc::clone(&server));
        the_others_are_named([server(), server()], kind).await;
    }
}
