//! Ids over gRPC: a client made by grpcio-tools, what clients may do wrong, and the end.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leaf_testkit::{HttpClient, LeafServer, Ledger};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const GRPC: [&str; 2] = ["--grpc-listen", "127.0.0.1:0"];

fn start() -> (tempfile::TempDir, LeafServer) {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &GRPC, &[]);
    (directory, server)
}

#[test]
fn a_client_in_python_gets_ids_of_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = root.join("target/python/bin/python");
    assert!(python.exists(), "grpcio-tools is missing: scripts/test installs it");
    let (_directory, server) = start();
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let mut ops = HttpClient::connect(server.ops()).unwrap();
    let made = ops.ask("POST", "/v1/tags", headers, r#"{"tag":"turns","order":"strict"}"#).unwrap();
    assert_eq!(made.status, 201);
    let output = Command::new(python)
        .arg(root.join("leaf-server/tests/clients/grpc_client.py"))
        .arg(root.join("leaf-proto/proto"))
        .arg(server.grpc().to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ledger = Ledger::default();
    let name: Arc<str> = "python".into();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        ledger.record(&name, line.parse().unwrap());
    }
    ledger.expect_at_least(1000 + 1001 + 21 * 500 + 410);
    // The same sequence as over HTTP.
    for _ in 0..100 {
        ledger.record(&name, server.id("/api/segment/get/leaf-segment-test"));
    }
}

/// What is no gRPC is refused, and costs nobody else anything.
#[test]
fn other_protocols_and_silence_end() {
    let (_directory, mut server) = start();
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"*1\r\n$4\r\nPING\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrubbish rubbish rubbish",
        &[0xff; 5000],
    ] {
        let mut stream = TcpStream::connect(server.grpc()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(bytes).unwrap();
        // It ends, in whatever way.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let _silent = TcpStream::connect(server.grpc()).unwrap();
    assert!(server.id("/api/segment/get/leaf-segment-test") > 0);
    let asked = Instant::now();
    assert!(server.stop().success());
    assert!(asked.elapsed() < Duration::from_secs(4), "a silent connection does not hold a stop");
}
