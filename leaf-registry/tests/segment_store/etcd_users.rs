//! etcd with users and roles.

use std::sync::Arc;

use leaf_registry::OpenStore;
use leaf_segment::{NewTag, StoreErrorKind};
use leaf_testkit::{Etcd, all_tags};

use crate::fixture::open;
use crate::{create, refusal, step, tag};

/// An etcd that wants a login, with the user `leaf` whose role may read and write the two prefixes
/// of tags under this name.
async fn etcd_with_users(name: &'static str) -> Arc<Etcd> {
    let prepare = move || {
        let server = Etcd::start(1);
        for user in ["root:root", "leaf:s@cret", "none:none"] {
            server.ctl(&["user", "add", user]);
        }
        for role in ["root", "leaf"] {
            server.ctl(&["role", "add", role]);
            server.ctl(&["user", "grant-role", role, role]);
        }
        for kind in ["segment", "sequence"] {
            let prefix = format!("/leaf/{name}/{kind}/");
            server.ctl(&["role", "grant-permission", "leaf", "--prefix", "readwrite", &prefix]);
        }
        server.ctl(&["auth", "enable"]);
        Arc::new(server)
    };
    tokio::task::spawn_blocking(prepare).await.unwrap()
}

async fn open_as(server: &Etcd, login: &str) -> OpenStore {
    let place = format!("127.0.0.1:{}/users", server.ports()[0]);
    open(&format!("etcd://{login}@{place}")).await
}

/// A process that loses the right to read tags of other kinds must not take them for deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_do_not_go_with_the_right_to_read_them() {
    let server = etcd_with_users("users").await;
    let opened = open_as(&server, "leaf:s%40cret").await;
    let store = opened.store;
    create(&*store, "orders", 10).await;
    store.create(&NewTag::strict(tag("turns"))).await.unwrap();
    let range = store.allocate(&tag("orders"), step(10), step(10).into()).await.unwrap();
    assert_eq!(range.start(), 1);
    assert_eq!(all_tags(&*store).await.unwrap().len(), 2);

    let prefix = "/leaf/users/sequence/";
    server.ctl(&["--user=root:root", "role", "revoke-permission", "leaf", "--prefix", prefix]);

    assert_eq!(refusal(all_tags(&*store)).await, StoreErrorKind::Refused);
    // Whoever has never read one has plain tags only.
    let anew = open_as(&server, "leaf:s%40cret").await.store;
    assert_eq!(all_tags(&*anew).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_is_refused_is_told_without_the_password() {
    let server = etcd_with_users("users").await;
    for login in ["leaf:canary", "nobody:canary", "none:none"] {
        let store = open_as(&server, login).await.store;
        let error = all_tags(&*store).await.unwrap_err();
        assert_eq!(*error.kind(), StoreErrorKind::Refused, "{login}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    }
}

/// A role without the right to write is detected by a request that writes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_to_write_is_told_by_what_changes_nothing() {
    let server = etcd_with_users("users").await;
    let root = ["--user=root:root", "role"];
    let reads = [
        &["grant-permission", "leaf", "--prefix", "read", "/leaf/users/segment/"][..],
        &["grant-permission", "leaf", "--prefix", "read", "/leaf/users/sequence/"],
    ];
    let store = open_as(&server, "leaf:s%40cret").await.store;
    create(&*store, "orders", 10).await;
    let revision =
        || server.ctl(&["--user=root:root", "get", "/leaf/users", "--prefix", "-w=json"]);
    let before = revision();
    store.try_allocating().unwrap().await.unwrap();
    for grant in reads {
        server.ctl(&[&root[..], grant].concat());
    }
    assert_eq!(refusal(store.try_allocating().unwrap()).await, StoreErrorKind::Refused);
    let cut = |text: &str| text.split("\"kvs\"").nth(1).unwrap().to_owned();
    assert_eq!(cut(&revision()), cut(&before), "nothing was written");
}
