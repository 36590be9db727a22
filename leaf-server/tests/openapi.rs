//! schemathesis sends requests that docs/openapi.yaml allows, and others. The document must name
//! every answer. `scripts/test` installs schemathesis.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use leaf_testkit::LeafServer;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");

fn check(tag: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let program = root.join("target/python/bin/schemathesis");
    assert!(program.exists(), "schemathesis is missing: scripts/test installs it");
    let directory = tempfile::tempdir().unwrap();
    // Scrambled ids need a key.
    let keys = directory.path().join("keys");
    let key = "1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    std::fs::write(&keys, key).unwrap();
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
    let workers = directory.path().join("workers.db");
    let env = [
        ("LEAF_SEGMENT__KEYS_FILE", keys.display().to_string()),
        ("LEAF_SNOWFLAKE__REGISTRY", format!("sqlite:{}", workers.display())),
        ("LEAF_ADVERTISE", "10.0.0.7:8080".to_owned()),
    ];
    let server = LeafServer::start(SERVER, &directory.path().join("data"), &[], &env);
    let at = if tag == "ids" { server.ids() } else { server.ops() };
    // The same requests at every run; with --full others, and more.
    let how: &[&str] = match std::env::var_os("LEAF_TEST_FULL") {
        None => &["--generation-deterministic", "--max-examples", "8"],
        Some(_) => &["--max-examples", "300"],
    };
    let output = Command::new(program)
        .arg("run")
        .arg(root.join("docs/openapi.yaml"))
        .args(["--url", &format!("http://{at}"), "--include-tag", tag, "--no-color"])
        // After it `/readyz` answers 503, which counts as a failure here; and a stream without an end.
        .args(["--exclude-operation-id", "drain", "--exclude-operation-id", "live"])
        .args(how)
        .env("SCHEMATHESIS_HOOKS", "whole_numbers")
        .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn ids() {
    check("ids");
}

#[test]
fn ops() {
    check("ops");
}
