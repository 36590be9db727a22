//! gRPC: clients made by grpcio-tools, mistakes of clients, and the stop of the server.
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

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Request, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leaf_testkit::{
    Fault, FaultProxy, HttpClient, LeafServer, Ledger, MariaDb, http2_frame, wait_until,
};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const GRPC: [&str; 2] = ["--grpc-listen", "127.0.0.1:0"];

fn start() -> (tempfile::TempDir, LeafServer) {
    start_with(&[])
}

fn start_with(env: &[(&'static str, &str)]) -> (tempfile::TempDir, LeafServer) {
    let directory = tempfile::tempdir().unwrap();
    let env: Vec<_> = env.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    let server = LeafServer::start(SERVER, directory.path(), &GRPC, &env);
    (directory, server)
}

/// What a program of `tests/clients` prints.
fn python(program: &str, arguments: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = root.join("target/python/bin/python");
    assert!(python.exists(), "grpcio-tools is missing: scripts/test installs it");
    let output = Command::new(python)
        .arg(root.join("leaf-server/tests/clients").join(program))
        .arg(root.join("leaf-proto/proto"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_client_in_python_gets_ids_of_its_own() {
    let (_directory, server) = start();
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let mut ops = HttpClient::connect(server.ops()).unwrap();
    let made = ops.ask("POST", "/v1/tags", headers, r#"{"tag":"turns","order":"strict"}"#).unwrap();
    assert_eq!(made.status, 201);
    let printed = python("grpc_client.py", &[&server.grpc().to_string()]);
    let ledger = Ledger::default();
    let name: Arc<str> = "python".into();
    for line in printed.lines() {
        ledger.record(&name, line.parse().unwrap());
    }
    ledger.expect_at_least(1000 + 1001 + 21 * 500 + 410);
    // The same sequence as over HTTP.
    for _ in 0..100 {
        ledger.record(&name, server.id("/api/segment/get/leaf-segment-test"));
    }
}

/// Connections that do not speak gRPC are closed, and cost other clients nothing.
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

/// A literal header without an index (RFC 7541, section 6.2.2).
fn literal(name: &str, value: &str) -> Vec<u8> {
    let (name, value) = (name.as_bytes(), value.as_bytes());
    let lengths = [name.len(), value.len()].map(|length| u8::try_from(length).unwrap());
    [&[0, lengths[0]], name, &[lengths[1]], value].concat()
}

/// The head of a call on the stream of this number.
fn call(number: u32, method: &str) -> Vec<u8> {
    // POST, http
    let mut head = vec![0x83, 0x86];
    head.extend(literal(":path", &format!("/leaf.v1.IdService/{method}")));
    head.extend(literal(":authority", "leaf"));
    head.extend(literal("content-type", "application/grpc"));
    head.extend(literal("te", "trailers"));
    http2_frame(1, 4, 2 * number + 1, &head)
}

/// The message of such a call: a request for a thousand ids of the existing tag.
fn message() -> Vec<u8> {
    let tag = b"leaf-segment-test";
    let mut fields = vec![0x0a, u8::try_from(tag.len()).unwrap()];
    fields.extend(tag);
    asked(fields, 1000)
}

/// A request for `count` ids; `fields` begins it and names their source.
fn asked(mut fields: Vec<u8>, count: u16) -> Vec<u8> {
    // The field `count`, in two bytes of seven bits.
    fields.extend([0x18, 0x80 | (count & 0x7f) as u8, (count >> 7) as u8]);
    let length = u8::try_from(fields.len()).unwrap();
    [&[0, 0, 0, 0, length][..], &fields].concat()
}

/// A client that begins with these frames, and lets `window` bytes of each answer through.
fn raw(server: &LeafServer, window: u8, frames: &[Vec<u8>]) -> TcpStream {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(http2_frame(4, 0, 0, &[0, 4, 0, 0, 0, window]));
    bytes.extend(frames.concat());
    let mut client = TcpStream::connect(server.grpc()).unwrap();
    client.write_all(&bytes).unwrap();
    client
}

/// Nobody reads the large lists, although their windows are open. The memory of each connection is
/// bounded, and other clients are served.
#[test]
fn lists_that_nobody_reads_cost_little() {
    let (_directory, server) = start();
    // Snowflake ids, which are long.
    let message = asked(vec![0x12, 0], 1000);
    let calls: Vec<_> = (0..99)
        .flat_map(|number| [call(number, "NextIds"), http2_frame(0, 1, 2 * number + 1, &message)])
        .collect();
    let before = server.resident_kib();
    let clients: Vec<_> = (0..40).map(|_| raw(&server, 255, &calls)).collect();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(6) {
        assert!(server.id("/api/segment/get/leaf-segment-test") > 0);
        std::thread::sleep(Duration::from_millis(50));
    }
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 52 * 1024, "{grown} KiB for {} connections", clients.len());
}

/// Nobody reads the streams: no further ids are made for them, and the client's connection is
/// closed after a while.
#[test]
fn a_client_that_reads_no_stream_costs_little_and_is_closed() {
    let (_directory, server) = start();
    let streams: Vec<_> = (0..99)
        .flat_map(|number| {
            [call(number, "StreamIds"), http2_frame(0, 1, 2 * number + 1, &message())]
        })
        .collect();
    let before = server.resident_kib();
    // Some windows are empty. Others have a little room, so that the first messages are on their
    // way and the streams wait for the next ones.
    let clients: Vec<_> =
        (0..20).map(|number| raw(&server, (number % 2) * 255, &streams)).collect();
    // As long as one of them is there, others are served.
    for _ in 0..20 {
        assert!(server.id("/api/segment/get/leaf-segment-test") > 0);
        std::thread::sleep(Duration::from_millis(100));
    }
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 28 * 1024, "{grown} KiB for {} connections", clients.len());

    let clients: Vec<_> =
        clients.into_iter().map(|client| std::thread::spawn(|| answers_pings(client))).collect();
    wait_until("clients that read nothing are closed", Duration::from_secs(150), || {
        clients.iter().all(std::thread::JoinHandle::is_finished).then_some(())
    });
}

/// Answers a server's pings until the server closes the connection: the client is alive, but reads
/// no stream.
fn answers_pings(mut client: TcpStream) {
    client.set_read_timeout(Some(Duration::from_secs(150))).unwrap();
    let mut head = [0; 9];
    while client.read_exact(&mut head).is_ok() {
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        client.read_exact(&mut payload).unwrap();
        if head[3] == 6
            && head[4] & 1 == 0
            && client.write_all(&http2_frame(6, 1, 0, &payload)).is_err()
        {
            return;
        }
    }
}

/// A message that arrives byte by byte is refused after a time limit, and does not delay a stop of
/// the server.
#[test]
fn a_message_that_does_not_arrive_is_refused() {
    let (_directory, mut server) = start();
    let begun = Instant::now();
    let message = message();
    let part = |number: u32, bytes: &[u8]| http2_frame(0, 0, 2 * number + 1, bytes);
    let mut client = raw(&server, 255, &[call(0, "NextIds"), part(0, &message[..1])]);
    client.set_read_timeout(Some(Duration::from_millis(1000))).unwrap();
    let mut sent = 1;
    let refused = wait_until("the refusal", Duration::from_secs(60), || {
        let mut head = [0; 9];
        if client.read_exact(&mut head).is_err() {
            // Nothing yet: one more byte, but never the last one.
            if sent < message.len() - 1 {
                let _ = client.write_all(&part(0, &message[sent..=sent]));
                sent += 1;
            }
            return None;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        client.read_exact(&mut vec![0; length]).unwrap();
        // Headers that end the stream: nothing but a status.
        (head[3] == 1 && head[4] & 1 == 1).then_some(begun.elapsed())
    });
    assert!((9..40).contains(&refused.as_secs()), "{refused:?}");

    let _client = raw(&server, 255, &[call(0, "NextIds"), part(0, &message[..1])]);
    assert!(server.id("/api/segment/get/leaf-segment-test") > 0);
    let asked = Instant::now();
    assert!(server.stop().success());
    assert!(asked.elapsed() < Duration::from_secs(4), "a message that is not there holds no stop");
}

/// Whoever watches the health is told of the start, and does not hold the stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_the_health_ends_with_the_server() {
    let (_directory, mut server) = start();
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.grpc()));
    let mut health = HealthClient::new(channel.unwrap().connect().await.unwrap());
    let service = "leaf.v1.IdService".to_owned();
    let mut watch = health.watch(HealthCheckRequest { service }).await.unwrap().into_inner();
    let serving = tonic_health::ServingStatus::Serving as i32;
    let told = async { while watch.message().await.unwrap().unwrap().status != serving {} };
    tokio::time::timeout(Duration::from_secs(20), told).await.unwrap();

    let stopped = tokio::task::spawn_blocking(move || {
        let asked = Instant::now();
        assert!(server.stop().success());
        asked.elapsed()
    });
    let ended = async { while let Ok(Some(_)) = watch.message().await {} };
    tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap();
    let took = stopped.await.unwrap();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// A call of the tag that is there, for a thousand ids.
fn call_for_ids(timeout: &str) -> Request<Full<Bytes>> {
    Request::post("http://leaf/leaf.v1.IdService/NextIds".parse::<Uri>().unwrap())
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", timeout)
        .body(Full::new(Bytes::from(message())))
        .unwrap()
}

/// A connection that calls share.
async fn connect(server: &LeafServer) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(server.grpc()).await.unwrap();
    let connection =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = connection.await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A server that pauses makes many calls late at once. Their clients cancel them, and the other
/// calls of the connection still get their answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_given_up_take_no_other_with_them() {
    let (_directory, mut server) = start();
    let mut sender = connect(&server).await;
    assert_eq!(sender.send_request(call_for_ids("9S")).await.unwrap().status(), 200);
    server.process_mut().signal("STOP");
    let patient = tokio::spawn(sender.send_request(call_for_ids("30S")));
    let mut hasty = tokio::task::JoinSet::new();
    for _ in 0..90 {
        let answer = sender.send_request(call_for_ids("100m"));
        hasty.spawn(tokio::time::timeout(Duration::from_millis(100), answer));
    }
    assert!(hasty.join_all().await.iter().all(Result::is_err), "it stands still");
    // The server must find all calls and cancellations together when it goes on, even if the
    // client's connection gets no processor time for a while.
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.process_mut().signal("CONT");
    let answer = tokio::time::timeout(Duration::from_secs(20), patient).await.unwrap().unwrap();
    assert_eq!(answer.unwrap().status(), 200);
}

/// Requests that a page in a browser may send without permission, and requests that are not gRPC,
/// get no ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_requests_of_http2_are_refused() {
    let (_directory, server) = start();
    let mut sender = connect(&server).await;
    for (method, kind) in [
        ("POST", "text/plain"),
        ("POST", "application/json"),
        ("POST", "application/grpc-web+proto"),
        ("GET", "application/grpc"),
    ] {
        let mut request = call_for_ids("9S");
        *request.method_mut() = method.parse().unwrap();
        request.headers_mut().insert("content-type", kind.parse().unwrap());
        assert_eq!(sender.send_request(request).await.unwrap().status(), 415, "{method} {kind}");
    }
}

/// Whatever the protocol, a refusal is counted by its reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_every_protocol_are_counted() {
    let (_directory, server) = start();
    let mut sender = connect(&server).await;
    let mut request = call_for_ids("9S");
    *request.uri_mut() = "http://leaf/leaf.v2.Nothing/Ids".parse().unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().headers()["grpc-status"], "12");
    let mut request = call_for_ids("9S");
    *request.body_mut() = Full::new(Bytes::from_static(&[0, 0, 0, 0, 0]));
    assert_eq!(sender.send_request(request).await.unwrap().headers()["grpc-status"], "3");
    let counts = tokio::task::spawn_blocking(move || {
        let mut redis = TcpStream::connect(server.redis()).unwrap();
        redis.set_read_timeout(Some(Duration::from_secs(9))).unwrap();
        redis
            .write_all(b"INCR nothing\r\nNOTHING\r\nINCRBY leaf-segment-test 0\r\nQUIT\r\n")
            .unwrap();
        let mut replies = String::new();
        redis.read_to_string(&mut replies).unwrap();
        assert_eq!(replies.lines().filter(|line| line.starts_with('-')).count(), 3, "{replies}");
        for (path, status) in [("/api/segment/get/nothing", 404), ("/v1/ids/x", 400), ("/x", 404)] {
            assert_eq!(server.get(path).status, status, "{path}");
        }
        let mut ops = HttpClient::connect(server.ops()).unwrap();
        let evil = "Host: evil.example\r\n";
        assert_eq!(ops.ask("GET", "/v1/tags", evil, "").unwrap().status, 403);
        let status = ops.ask("GET", "/v1/status", "Host: localhost\r\n", "").unwrap();
        serde_json::from_str::<serde_json::Value>(&status.body).unwrap()["refused"].take()
    });
    let expected = serde_json::json!({
        "grpc": {"bad-request": 1, "not-found": 1},
        "http": {"bad-request": 1, "not-found": 1, "unknown-tag": 1},
        "ops": {"forbidden": 1},
        "redis": {"bad-request": 1, "not-found": 1, "unknown-tag": 1},
    });
    assert_eq!(counts.await.unwrap(), expected);
}

/// The server does not work for a client that waits no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clients_deadline_ends_the_work() {
    let database = tokio::task::spawn_blocking(MariaDb::shared).await.unwrap();
    let url = MariaDb::url(database.port(), &database.new_database());
    let proxy = FaultProxy::start(([127, 0, 0, 1], database.port()).into()).await;
    let far =
        url.replace(&format!(":{}/", database.port()), &format!(":{}/", proxy.address().port()));
    let directory = tempfile::tempdir().unwrap();
    LeafServer::make_tables(SERVER, &url);
    let arguments = [&GRPC[..], &["--segment-store", &far]].concat();
    let env = [("LEAF_SEGMENT__WAIT", "20s".to_owned())];
    let server = LeafServer::start(SERVER, directory.path(), &arguments, &env);
    let ask = async |timeout: &str| {
        let answer = connect(&server).await.send_request(call_for_ids(timeout)).await.unwrap();
        let (head, body) = answer.into_parts();
        let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
        let status = head.headers.get("grpc-status").or(trailers.get("grpc-status")).cloned();
        status.unwrap().to_str().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(ask("9S").await, 0);
    assert_eq!(ask("soon").await, tonic::Code::InvalidArgument as u32);

    proxy.set(Fault::BlackHole);
    let begun = Instant::now();
    let mut last = 0;
    // What is in memory is there whatever the store does.
    while last == 0 && begun.elapsed() < Duration::from_secs(10) {
        last = ask("500m").await;
    }
    assert_eq!(last, tonic::Code::DeadlineExceeded as u32);
    assert!(begun.elapsed() < Duration::from_secs(15), "not the server's 20 s");
}
