//! Clients that hold on to connections: they cost their own slot for a while, and nobody else's.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use leaf_testkit::{HttpClient, LeafServer, RedisClient, http2_frame, wait_until};
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

#[test]
fn whoever_is_connected_when_the_stop_begins_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    // More than may be served at a time.
    let env = [("LEAF_HTTP__MAX_CONNECTIONS", "20".to_owned())];
    let mut server = LeafServer::start(SERVER, directory.path(), &[], &env);
    let mut clients: Vec<_> = (0..200)
        .map(|_| {
            let mut client = HttpClient::connect(server.ids()).unwrap();
            client.send(&format!("GET {SNOWFLAKE} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
            client
        })
        .collect();
    // Which limit it is, once.
    let told = "http.listen: all 20 connections are in use that the configuration allows";
    wait_until("the log says so", Duration::from_secs(10), || {
        server.output().contains(told).then_some(())
    });
    assert_eq!(server.output().matches(told).count(), 1);
    server.process_mut().signal("TERM");
    for client in &mut clients {
        assert_eq!(client.read().unwrap().status, 200);
    }
    assert!(server.process_mut().wait(Duration::from_secs(15)).success());
}

/// What a client gets for these bytes, until the server closes.
fn answers(address: std::net::SocketAddr, request: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    let mut all = String::new();
    client.read_to_string(&mut all).unwrap();
    all
}

#[test]
fn an_answer_never_waits_for_what_comes_after_its_request() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let get = format!("GET {SNOWFLAKE} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for rest in ["G", "GET /api", "\r\n"] {
        let mut client = HttpClient::connect(server.ids()).unwrap();
        client.send(&format!("{get}{get}{rest}")).unwrap();
        assert_eq!(client.read().unwrap().status, 200, "{rest:?}");
        assert_eq!(client.read().unwrap().status, 200, "{rest:?}");
    }
    let count = |request: &str, line: &str| answers(server.ids(), request).matches(line).count();
    // What is no HTTP is told so, after the answers to what came before it.
    assert_eq!(count(&format!("{get}{get}BAD\r\n\r\n"), "HTTP/1.1 200"), 2);
    assert_eq!(count(&format!("{get}{get}BAD\r\n\r\n"), "HTTP/1.1 400"), 1);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X-Filler: 1\r\n".repeat(100));
    assert_eq!(count(&many, "HTTP/1.1 431"), 1);
    // The last one of a connection, with another request behind it.
    let last = get.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    assert_eq!(count(&format!("{get}{last}{get}"), "HTTP/1.1 200"), 2);
}

/// A client that closed its sending half still expects the answers.
#[test]
fn a_client_that_closes_its_side_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let end = "Connection: close\r\n\r\n";
    for path in [SNOWFLAKE, "/v1/segments/leaf-segment-test/ids?count=3", "/clock"] {
        for rest in ["\r\n", end] {
            let mut client = TcpStream::connect(server.ids()).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let get = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n");
            client.write_all(format!("{get}\r\n{get}{rest}").as_bytes()).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let mut all = String::new();
            client.read_to_string(&mut all).unwrap();
            assert_eq!(all.matches("HTTP/1.1 200").count(), 2, "{path} {rest:?}: {all}");
        }
    }
}

/// More requests are sent than the server answers. The unanswered ones must not cost the answers
/// before them.
#[test]
fn the_last_answers_arrive_also_where_more_was_asked() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let mut client = TcpStream::connect(server.ids()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let path = "/v1/segments/leaf-segment-test/ids?count=1000";
    let get = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n");
    let before = format!("{get}\r\n").repeat(100);
    let after = format!("{get}\r\n").repeat(800);
    let mut reader = client.try_clone().unwrap();
    let sent = std::thread::spawn(move || {
        let _ =
            client.write_all(format!("{before}{get}Connection: close\r\n\r\n{after}").as_bytes());
        client
    });
    let (mut all, mut chunk) = (Vec::new(), [0; 2048]);
    loop {
        // Slowly.
        let later = Instant::now() + Duration::from_micros(100);
        wait_until("a moment has passed", Duration::from_secs(5), || {
            (Instant::now() > later).then_some(())
        });
        match reader.read(&mut chunk).unwrap() {
            0 => break,
            length => all.extend_from_slice(&chunk[..length]),
        }
        if all.len() > 100_000 {
            reader.read_to_end(&mut all).unwrap();
            break;
        }
    }
    drop(sent.join().unwrap());
    assert_eq!(String::from_utf8(all).unwrap().matches("HTTP/1.1 200").count(), 101);
}

#[test]
fn a_body_of_a_request_for_ids_disturbs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let mut client = TcpStream::connect(server.ids()).unwrap();
    client.set_nodelay(true).unwrap();
    let head = format!("POST {SNOWFLAKE} HTTP/1.1\r\nHost: localhost\r\n");
    let mut answer = [0; 2048];
    for _ in 0..100 {
        // In two packets, as some clients send it.
        client.write_all(format!("{head}Content-Length: 2\r\n\r\n").as_bytes()).unwrap();
        client.write_all(b"{}").unwrap();
        let read = client.read(&mut answer).unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"), "{:?}", &answer[..read]);
    }
    let chunked = format!("{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
    let answered = answers(server.ids(), &format!("{chunked}5\r\nhello\r\n0\r\n\r\n"));
    assert!(answered.starts_with("HTTP/1.1 200"), "{answered}");
    let large = format!("{head}Content-Length: 1000000\r\n\r\n{}", "x".repeat(100_000));
    let mut client = TcpStream::connect(server.ids()).unwrap();
    let _ = client.write_all(large.as_bytes());
    let read = client.read(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer[..read]);
    assert!(text.starts_with("HTTP/1.1 413") && text.contains("connection: close"), "{text}");
}

/// A client that asks and never reads costs what fits its buffers.
#[test]
fn answers_that_are_not_read_do_not_pile_up() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let mut client = TcpStream::connect(server.ids()).unwrap();
    client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let get =
        "GET /v1/segments/leaf-segment-test/ids?count=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let batch = get.repeat(100);
    let mut sent = 0;
    // Until nothing is taken any more.
    while let Ok(length) = client.write(batch.as_bytes()) {
        sent += length;
        assert!(sent < 100 << 20, "the server takes requests without end");
    }
    let kib = server.resident_kib();
    assert!(kib < 100 * 1024, "{kib} KiB");
}

/// S-01: takes two minutes, in which it waits.
#[test]
fn slow_and_silent_clients_are_closed() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let connect = || TcpStream::connect(server.ids()).unwrap();
    let started = Instant::now();

    let mut half_a_head = connect();
    half_a_head.write_all(b"GET / HTTP/1.1\r\nHost: le").unwrap();
    let mut idle = HttpClient::connect(server.ids()).unwrap();
    assert_eq!(idle.request("GET", SNOWFLAKE).unwrap().status, 200);
    let mut pooled = RedisClient::connect(server.redis()).unwrap();
    assert!(pooled.command(&["SNOWFLAKE"]).unwrap().id().is_some());
    let mut half_a_command = RedisClient::connect(server.redis()).unwrap();
    half_a_command.send(b"*1\r\n$4\r\nPI").unwrap();
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
    half_a_command.stream().set_read_timeout(Some(Duration::from_secs(90))).unwrap();
    assert_eq!(half_a_command.read().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    println!("half a head, half a command, idle: closed after {:?}", started.elapsed());
    let mut body = TcpStream::connect(server.ops()).unwrap();
    body.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = "POST /v1/tags HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    body.write_all(format!("{head}Content-Length: 9\r\n\r\n{{").as_bytes()).unwrap();
    let mut answer = [0; 12];
    body.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    // A Redis client may be silent for as long as it likes.
    assert!(pooled.command(&["SNOWFLAKE"]).unwrap().id().is_some());
}

/// Connections that send no request, or one now and then, or send a body slowly, or stay open after
/// their answer, do not keep others from requesting health.
#[test]
fn health_is_answered_whoever_holds_connections_to_the_ops_listener() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let silent: Vec<_> = (0..150).map(|_| TcpStream::connect(server.ops()).unwrap()).collect();
    let mut asking: Vec<_> = (0..150)
        .map(|_| {
            let mut client = HttpClient::connect(server.ops()).unwrap();
            // Not health, after which a connection is closed.
            assert_eq!(client.request("GET", "/nothing").unwrap().status, 404);
            client
        })
        .collect();
    let slow = "POST /v1/tags HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 9\r\n\r\n{";
    let stays = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let others = [slow, stays].map(|request| {
        let send = |_| {
            let mut client = TcpStream::connect(server.ops()).unwrap();
            client.write_all(request.as_bytes()).unwrap();
            client
        };
        (0..150).map(send).collect::<Vec<_>>()
    });
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        for path in ["/healthz", "/readyz"] {
            let asked = Instant::now();
            assert_eq!(HttpClient::once(server.ops(), "GET", path).status, 200);
            slowest = slowest.max(asked.elapsed());
        }
        // Those that were closed come back.
        for client in asking.iter_mut().take(20) {
            if client.request("GET", "/nothing").is_err() {
                *client = HttpClient::connect(server.ops()).unwrap();
            }
        }
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    drop((silent, asking, others));
}

#[test]
fn few_files_leave_both_listeners_something() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["--nofile=64:64", SERVER];
    let server = LeafServer::start_wrapped("prlimit", &args, directory.path());
    let _held: Vec<_> = (0..100).map(|_| TcpStream::connect(server.ids()).unwrap()).collect();
    for _ in 0..5 {
        assert_eq!(HttpClient::once(server.ops(), "GET", "/healthz").status, 200);
    }
}

/// A request for a thousand ids on the stream of this number.
fn ask(request: u32) -> Vec<u8> {
    let path = b"/v1/snowflake/ids?count=1000";
    // GET, http, :path and :authority as literals without an index (RFC 7541, section 6.2.2).
    let mut head = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    head.extend(path);
    head.extend([0x01, 4]);
    head.extend(b"leaf");
    http2_frame(1, 5, 2 * request + 1, &head)
}

/// An HTTP/2 client that asks for a hundred answers at once and lets none of them through.
fn asks_without_a_window(server: &LeafServer) -> TcpStream {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE = 0
    bytes.extend(http2_frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    (0..99).for_each(|request| bytes.extend(ask(request)));
    let mut client = TcpStream::connect(server.ids()).unwrap();
    client.write_all(&bytes).unwrap();
    client
}

/// Reads so many heads of answers that say 200.
fn reads_heads(client: &mut TcpStream, mut left: u32) {
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    while left > 0 {
        let mut head = [0; 9];
        client.read_exact(&mut head).unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        client.read_exact(&mut payload).unwrap();
        if head[3] == 1 {
            // `:status: 200` of the static table, behind what may be a change of the table's size.
            assert!(payload[..4.min(payload.len())].contains(&0x88), "{payload:?}");
            left -= 1;
        }
    }
}

/// Answers for which an HTTP/2 client has no window are not produced.
#[test]
fn an_http2_client_without_a_window_costs_little() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let before = server.resident_kib();
    let mut clients: Vec<_> = (0..60).map(|_| asks_without_a_window(&server)).collect();
    // All are answered, a thousand ids each, by a head at least.
    clients.iter_mut().for_each(|client| reads_heads(client, 99));

    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 30 * 1024, "{grown} KiB for {} connections", clients.len());
}

/// The client takes no answers, but keeps sending one more request and cancelling it. It is closed
/// all the same, because it takes none of the other answers.
#[test]
fn an_http2_client_that_takes_nothing_is_closed_whatever_it_asks_besides() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let mut client = asks_without_a_window(&server);
    client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut request = 99;
    wait_until("a client that takes no answer is closed", Duration::from_secs(120), || {
        // Ended by us: CANCEL.
        let given_up = http2_frame(3, 0, 2 * request + 1, &[0, 0, 0, 8]);
        let asked = client.write_all(&[ask(request), given_up].concat());
        request += 1;
        let read = client.read(&mut [0; 65_536]);
        let over = |error: &std::io::Error| {
            !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
        };
        let ended = asked.is_err() || read.as_ref().is_ok_and(|bytes| *bytes == 0);
        (ended || read.is_err_and(|error| over(&error))).then_some(())
    });
    assert!(request > 105, "it had some time: {request}");
}

/// S-07: requests that a proxy in front may interpret differently from this server.
#[test]
fn requests_that_can_be_read_in_two_ways_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let (get, post) =
        (format!("GET {SNOWFLAKE} HTTP/1.1\r\n"), format!("POST {SNOWFLAKE} HTTP/1.1\r\n"));
    let host = "Host: leaf\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n";
    let hidden = format!("0\r\n\r\n{get}{host}\r\n");
    for (status, request) in [
        (200, format!("{get}{host}Connection: close\r\n\r\n")),
        (200, format!("{get}{host}X: a\r\nX: b\r\nConnection: close\r\n\r\n")),
        (400, format!("{get}\r\n")),
        (400, format!("{get}{host}{host}\r\n")),
        (400, format!("{get}X: a\r\nX: b\r\n\r\n")),
        (400, format!("{get}{host}Host: other\r\n\r\n")),
        (400, format!("{get}{host}\r\n").replace("\r\n", "\n")),
        (400, format!("{get}Host: leaf\n\r\n")),
        (400, format!("{get}{host}Content-Length: 5\r\n\r\nhello")),
        (400, format!("{post}{host}Content-Length: 5\r\n{chunked}\r\n{hidden}")),
        (400, format!("{post}{host}{chunked}Content-Length: 5\r\n\r\n{hidden}")),
        (400, format!("{post}{host}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello")),
        (400, format!("{post}{host}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello")),
        (400, format!("{post}{host}Transfer-Encoding: xchunked\r\n\r\n{hidden}")),
        (400, format!("{post}{host}Transfer-Encoding : chunked\r\n\r\n{hidden}")),
        (400, format!("{get}{host}X: a\r\n folded\r\n\r\n")),
        (400, format!("{post}{host}Content-Length: +5\r\n\r\nhello")),
    ] {
        let answered = answers(server.ids(), &request);
        assert!(answered.starts_with(&format!("HTTP/1.1 {status}")), "{request:?}: {answered}");
        assert_eq!(answered.matches("HTTP/1.1").count(), 1, "{request:?}: {answered}");
    }
    // A body that looks like requests is a body.
    let body = format!("{get}{host}\r\n\n");
    let length = body.len();
    let request = format!(
        "{post}{host}Content-Length: {length}\r\n\r\n{body}{get}{host}Connection: close\r\n\r\n"
    );
    assert_eq!(answers(server.ids(), &request).matches("HTTP/1.1 200").count(), 2);
}

/// Names that do not exist keep nobody waiting who asks for ids.
#[test]
fn unknown_tags_do_not_fill_the_waiting_room() {
    let database = leaf_testkit::MariaDb::shared();
    let url = leaf_testkit::MariaDb::url(database.port(), &database.new_database());
    LeafServer::make_tables(SERVER, &url);
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let to = ([127, 0, 0, 1], database.port()).into();
    let proxy = runtime.block_on(leaf_testkit::FaultProxy::start(to));
    let url =
        url.replace(&format!(":{}/", database.port()), &format!(":{}/", proxy.address().port()));
    let env = [("LEAF_HTTP__MAX_WAITING", "20".to_owned())];
    let server = LeafServer::start(SERVER, directory.path(), &["--segment-store", &url], &env);
    assert_eq!(server.id("/api/segment/get/leaf-segment-test"), 1);

    // Each look-up waits for the store now.
    proxy.set(leaf_testkit::Fault::BlackHole);
    let strangers: Vec<_> = (0..60)
        .map(|number| {
            let address = server.ids();
            std::thread::spawn(move || {
                let path = format!("/api/segment/get/nope-{number}");
                HttpClient::once(address, "GET", &path).status
            })
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut asked = 0;
    while Instant::now() < deadline {
        asked += 1;
        assert_eq!(server.get("/v1/snowflake/ids?count=3").status, 200);
        // There is stock for some.
        if asked <= 100 {
            assert_eq!(server.get("/v1/segments/leaf-segment-test/ids").status, 200);
        }
    }
    for stranger in strangers {
        assert_eq!(stranger.join().unwrap(), 503);
    }
}
