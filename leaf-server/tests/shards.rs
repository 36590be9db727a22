//! G-34: each store records which shard it is, and nodes with another configuration are refused.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, MariaDb, Response, wait_until};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SOON: Duration = Duration::from_secs(20);

/// A configuration with the store of all other tags and the shards, each with its patterns.
fn config(home: &Path, name: &str, rest: &str, shards: &[(&str, &str)]) -> PathBuf {
    let mut text =
        format!("[snowflake]\nenabled = false\n[segment]\nrefresh = '1s'\nstore = '{rest}'\n");
    for (store, tags) in shards {
        text += &format!("[[segment.shard]]\nstore = '{store}'\ntags = ['{tags}']\n");
    }
    let file = home.join(format!("{name}.toml"));
    std::fs::write(&file, text).unwrap();
    file
}

fn ready(server: &LeafServer) -> Response {
    HttpClient::once(server.ops(), "GET", "/readyz")
}

fn create(server: &LeafServer, tag: &str) -> Response {
    let mut ops = HttpClient::connect(server.ops()).unwrap();
    let body = format!(r#"{{"tag":"{tag}","step":10}}"#);
    ops.ask("POST", "/v1/tags", "Host: localhost\r\nContent-Type: application/json\r\n", &body)
        .unwrap()
}

fn three_databases(mysql: &MariaDb, home: &Path) -> [String; 3] {
    [(); 3].map(|()| {
        let url = MariaDb::url(mysql.port(), &mysql.new_database());
        // The tables alone, as an administrator runs the printed statements.
        let mut schema =
            LeafServer::process(SERVER, home, &["schema", "--segment-store", &url], &[]);
        assert!(schema.wait(SOON).success());
        let statements = schema.output();
        let name = url.rsplit('/').next().unwrap().split('?').next().unwrap().to_owned();
        mysql.sql(&format!("USE {name}; {statements}"));
        url
    })
}

#[test]
fn swapped_missing_and_added_shards_are_refused() {
    let (mysql, home) = (MariaDb::shared(), tempfile::tempdir().unwrap());
    let [a, b, c] = three_databases(&mysql, home.path());
    let run = |file: &Path, data: &str| {
        let args = ["--config", file.to_str().unwrap()];
        LeafServer::launch(SERVER, &home.path().join(data), &args, &[])
    };
    let right = config(home.path(), "right", &a, &[(&b, "order*")]);
    let mut first = run(&right, "first");
    first.wait_ready();
    let mut ids = HashSet::new();
    for tag in ["orders", "users"] {
        assert_eq!(create(&first, tag).status, 201);
        ids.insert((tag, first.id(&format!("/api/segment/get/{tag}"))));
    }

    for (name, rest, shards) in [
        ("swapped", &b, &[(a.as_str(), "order*")][..]),
        ("missing", &a, &[]),
        ("added", &a, &[(b.as_str(), "order*"), (c.as_str(), "user*")]),
        ("renamed", &a, &[(b.as_str(), "orders")]),
        ("twice", &a, &[(a.as_str(), "order*")]),
    ] {
        let wrong = config(home.path(), name, rest, shards);
        let server = run(&wrong, name);
        let told = wait_until("a store in another place is refused", SOON, || {
            let ready = ready(&server);
            ready.body.contains("another place among the shards").then_some(ready)
        });
        // One of the stores has this place, or none yet, and serves.
        let some_serve = matches!(name, "twice" | "added");
        assert!(told.status == 503 || some_serve, "{name}: {}", told.body);
        let mut known = vec!["orders", "users"];
        if name == "added" || name == "renamed" {
            // The tags of a store that this configuration adds are not known to be elsewhere.
            assert_ne!(create(&server, "orders-2").status, 201, "{name}");
        }
        if name == "twice" {
            known.pop();
        }
        for tag in known {
            let answer = server.get(&format!("/api/segment/get/{tag}"));
            assert_ne!(answer.status, 200, "{name}: {tag} {}", answer.body);
        }
        let args = ["--config", wrong.to_str().unwrap(), "check"];
        let mut check = LeafServer::process(SERVER, &home.path().join("check"), &args, &[]);
        let code = check.wait(SOON);
        assert!(!code.success() && check.output().contains("it was used as"), "{}", check.output());
    }
    let mut again = run(&right, "again");
    again.wait_ready();
    for server in [&first, &again] {
        for tag in ["orders", "users"] {
            ids.insert((tag, server.id(&format!("/api/segment/get/{tag}"))));
        }
    }
    assert_eq!(ids.len(), 6, "{ids:?}");
}

/// A tag is made in both stores by plain SQL while nodes run.
#[test]
fn a_tag_that_is_open_in_two_stores_is_refused() {
    let (mysql, home) = (MariaDb::shared(), tempfile::tempdir().unwrap());
    let [a, b, _] = three_databases(&mysql, home.path());
    let file = config(home.path(), "leaf", &a, &[(&b, "order*")]);
    let args = ["--config", file.to_str().unwrap()];
    let server = LeafServer::start(SERVER, &home.path().join("data"), &args, &[]);
    let name = a.rsplit('/').next().unwrap().split('?').next().unwrap();
    let insert = |tag: &str| {
        mysql.sql(&format!(
            "INSERT INTO {name}.leaf_alloc (biz_tag, max_id, step) VALUES ('{tag}', 1, 10)"
        ));
    };
    insert("order-old");
    let refused = create(&server, "order-old");
    assert!(refused.status == 409 && refused.body.contains("leaf tag import"), "{}", refused.body);

    assert_eq!(create(&server, "orders").status, 201);
    let mut ids = HashSet::new();
    assert!(ids.insert(server.id("/api/segment/get/orders")));
    insert("orders");
    let told = wait_until("ids of two stores are refused", SOON, || {
        let answer = server.get("/api/segment/get/orders");
        match answer.status {
            200 => {
                assert!(ids.insert(answer.body.parse().unwrap()));
                None
            }
            status => Some(status),
        }
    });
    assert_eq!(told, 500);
    assert!(ready(&server).body.contains("degraded: tag \"orders\": "), "{}", ready(&server).body);
    assert!(server.output().contains("and is open in mysql://"), "{}", server.output());
    mysql.sql(&format!("DELETE FROM {name}.leaf_alloc WHERE biz_tag = 'orders'"));
    wait_until("it is in one store again", SOON, || {
        (server.get("/api/segment/get/orders").status == 200).then_some(())
    });
}
