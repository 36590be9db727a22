//! G-36: servers of two versions share a store and a registry, while all are upgraded one after the
//! other and then downgraded. `scripts/upgrade` builds the other version and runs this.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, Ledger, MariaDb};

const NEW: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAGS: [&str; 3] = ["leaf-segment-test", "parts", "turns"];

/// Nodes whose binaries are exchanged, each with its data directory.
struct Nodes {
    home: tempfile::TempDir,
    config: PathBuf,
    servers: Vec<LeafServer>,
    /// By tag, and the snowflake ids.
    ledgers: Vec<Ledger>,
    last_turn: i64,
}

impl Nodes {
    fn launch(&self, binary: &str, node: usize) -> LeafServer {
        let data = self.home.path().join(format!("node-{node}"));
        let args = ["--config", self.config.to_str().unwrap()];
        let advertise = ("LEAF_ADVERTISE", format!("127.0.0.1:{}", 20_000 + node));
        LeafServer::start(binary, &data, &args, &[advertise, registry(binary)])
    }

    /// Asks every node in turn: no id comes twice, and those of the tag in strict order rise.
    fn ask(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for (node, server) in self.servers.iter().enumerate() {
                let issuer: Arc<str> = format!("node {node}").into();
                for (tag, ledger) in TAGS.iter().zip(&self.ledgers) {
                    let id = server.id(&format!("/api/segment/get/{tag}"));
                    ledger.record(&issuer, id);
                    if *tag == "turns" {
                        assert!(
                            id > self.last_turn,
                            "{id} of node {node} after {}",
                            self.last_turn
                        );
                        self.last_turn = id;
                    }
                }
                let id = server.id("/api/snowflake/get/x");
                self.ledgers[TAGS.len()].record(&issuer, id);
            }
        }
    }

    /// Gives every node another binary, one after the other: some stop in order, some are killed.
    fn exchange(&mut self, binary: &str) {
        for node in 0..self.servers.len() {
            match node % 2 {
                0 => assert!(self.servers[node].stop().success()),
                _ => self.servers[node].kill(),
            }
            self.servers[node] = self.launch(binary, node);
            self.ask(200);
        }
    }
}

/// The registry is the store's database: the old version names it by its kind, the new one as
/// `store`.
fn registry(binary: &str) -> (&'static str, String) {
    ("LEAF_SNOWFLAKE__REGISTRY", if binary == NEW { "store" } else { "mysql" }.into())
}

fn write_config(home: &Path, url: &str) -> PathBuf {
    let file = home.join("leaf.toml");
    let text = format!("[segment]\nstore = '{url}'\nrefresh = '1s'\n");
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
#[ignore = "scripts/upgrade runs it, with LEAF_OLD_SERVER"]
fn servers_of_two_versions_repeat_nothing() {
    let old = std::env::var("LEAF_OLD_SERVER").expect("scripts/upgrade sets LEAF_OLD_SERVER");
    let mysql = MariaDb::shared();
    let url = MariaDb::url(mysql.port(), &mysql.new_database());
    let home = tempfile::tempdir().unwrap();
    let config = write_config(home.path(), &url);
    let args = ["--config", config.to_str().unwrap(), "schema", "--apply"];
    let mut schema =
        LeafServer::process(&old, &home.path().join("schema"), &args, &[registry(&old)]);
    assert!(schema.wait(Duration::from_secs(20)).success(), "{}", schema.output());
    let ledgers = (0..=TAGS.len()).map(|_| Ledger::default()).collect();
    let mut nodes = Nodes { home, config, servers: Vec::new(), ledgers, last_turn: 0 };
    for node in 0..3 {
        let server = nodes.launch(&old, node);
        nodes.servers.push(server);
    }
    let mut ops = HttpClient::connect(nodes.servers[0].ops()).unwrap();
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    for body in [
        r#"{"tag":"parts","step":100,"shape":"interleave:1/2"}"#,
        r#"{"tag":"turns","order":"strict"}"#,
    ] {
        let made = ops.ask("POST", "/v1/tags", headers, body).unwrap();
        assert_eq!(made.status, 201, "{}", made.body);
    }
    nodes.ask(200);
    nodes.exchange(NEW);
    // A tag of the new version, with a generation, that the old one has to serve as well.
    let mut ops = HttpClient::connect(nodes.servers[0].ops()).unwrap();
    let repaired =
        ops.ask("POST", "/v1/tags/parts/advance", headers, r#"{"at_least":"100000"}"#).unwrap();
    assert_eq!(repaired.status, 200, "{}", repaired.body);
    nodes.ask(200);
    nodes.exchange(&old);
    nodes.exchange(NEW);
    for ledger in &nodes.ledgers {
        ledger.expect_at_least(3 * 200 * 10);
    }
}
