//! Clients that hold on to connections: they cost their own slot for a while, and nobody else's.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, wait_until};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const SNOWFLAKE: &str = "/api/snowflake/get/x";

#[test]
fn more_connections_than_files_leave_health_alone_and_are_served_in_turn() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["--nofile=300:300", SERVER];
    let server = LeafServer::start_wrapped("prlimit", &args, directory.path());

    let idle: Vec<_> = (0..100).map(|_| HttpClient::connect(server.ids()).unwrap()).collect();
    let mut late = HttpClient::connect(server.ids()).unwrap();
    late.send(&format!("GET {SNOWFLAKE} HTTP/1.1\r\nHost: leaf\r\n\r\n")).unwrap();
    assert_eq!(HttpClient::once(server.ops(), "GET", "/readyz").body, "ready");
    drop(idle);

    assert_eq!(late.read().unwrap().status, 200, "served once there is room");
    assert!(!server.output().contains("accept:"), "{}", server.output());
}

#[test]
fn a_request_may_come_in_pieces_also_one_that_begins_as_http2_does() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let mut client = TcpStream::connect(server.ids()).unwrap();
    client.set_nodelay(true).unwrap();
    for piece in ["P", "O", "ST /api/snowflake/get/x HT", "TP/1.1\r\nHost: localhost\r\n\r\n"] {
        client.write_all(piece.as_bytes()).unwrap();
        let later = Instant::now() + Duration::from_millis(50);
        wait_until("a piece is sent", Duration::from_secs(5), || {
            (Instant::now() > later).then_some(())
        });
    }
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

/// A backlog longer than what a task does in one go.
#[test]
fn whoever_is_connected_when_the_stop_begins_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let env = [("LEAF_HTTP__MAX_CONNECTIONS", "300".to_owned())];
    let mut server = LeafServer::start(SERVER, directory.path(), &[], &env);
    let mut clients: Vec<_> = (0..200)
        .map(|_| {
            let mut client = HttpClient::connect(server.ids()).unwrap();
            client.send(&format!("GET {SNOWFLAKE} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
            client
        })
        .collect();
    server.process_mut().signal("TERM");
    for client in &mut clients {
        assert_eq!(client.read().unwrap().status, 200);
    }
    assert!(server.process_mut().wait(Duration::from_secs(15)).success());
}

/// Takes two minutes: with `scripts/test --full` only.
#[test]
fn slow_and_silent_clients_are_closed() {
    if std::env::var_os("LEAF_TEST_FULL").is_none() {
        println!("not run: scripts/test --full runs it");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let connect = || TcpStream::connect(server.ids()).unwrap();
    let started = Instant::now();

    let mut half_a_head = connect();
    half_a_head.write_all(b"GET / HTTP/1.1\r\nHost: le").unwrap();
    let mut idle = HttpClient::connect(server.ids()).unwrap();
    assert_eq!(idle.request("GET", SNOWFLAKE).unwrap().status, 200);
    let mut never_reads = connect();
    never_reads.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let request = format!("GET {SNOWFLAKE} HTTP/1.1\r\nHost: leaf\r\n\r\n").repeat(1000);
    let closed =
        wait_until("a client that never reads is closed", Duration::from_secs(120), || {
            match never_reads.write(request.as_bytes()) {
                Ok(_) => None,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
                Err(_) => Some(started.elapsed()),
            }
        });
    println!("never reads: closed after {closed:?}");

    let mut rest = Vec::new();
    half_a_head.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
    let _ = half_a_head.read_to_end(&mut rest).unwrap();
    assert!(idle.read().is_err());
    println!("half a head, idle: closed after {:?}", started.elapsed());
    let mut body = TcpStream::connect(server.ops()).unwrap();
    body.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = "POST /v1/tags HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    body.write_all(format!("{head}Content-Length: 9\r\n\r\n{{").as_bytes()).unwrap();
    let mut answer = [0; 12];
    body.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
}
