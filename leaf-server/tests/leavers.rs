//! S-14: clients that leave before their answer arrives. No id that the server sent to such a
//! client is issued again, and strict order holds for the clients that stay.
//!
//! Clients reach the server through a [`Tap`]. It keeps every byte that the server had sent when a
//! client left, even unread ones, and of an answer that was cut the ids that had arrived. So the
//! record has all that a client might have read. Over HTTP/1.1 the server notices that a client
//! left only when it sends; over HTTP/2 a client can cancel a request, and the server then stops
//! working on it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests may panic and sleep")]

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_testkit::{
    CallLog, Fault, FaultProxy, HttpClient, LeafServer, Ledger, MariaDb, http2_frame,
};
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const LEAVERS: usize = 8;
const ROUNDS: usize = 60;

/// What a server sent on one connection, and whether its client left before the end.
#[derive(Debug)]
struct Sent {
    bytes: Vec<u8>,
    left: bool,
}

/// A proxy in front of a server, which keeps what the server sends. When a client leaves, the proxy
/// resets the connection to the server, and keeps what had been sent before.
struct Tap {
    address: SocketAddr,
    connections: tokio::task::JoinHandle<()>,
    sent: Arc<Mutex<Vec<Sent>>>,
    open: Arc<tokio::sync::Semaphore>,
}

const MOST_OPEN: u32 = 1000;

impl Tap {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let sent = Arc::<Mutex<Vec<Sent>>>::default();
        let open = Arc::new(tokio::sync::Semaphore::new(MOST_OPEN as usize));
        let (record, permits) = (Arc::clone(&sent), Arc::clone(&open));
        let connections = tokio::spawn(async move {
            let mut tasks = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
                let record = Arc::clone(&record);
                tasks.spawn(async move {
                    let server = TcpStream::connect(server).await.unwrap();
                    let sent = pass_on(client, server).await;
                    record.lock().unwrap().push(sent);
                    drop(permit);
                });
            }
        });
        Self { address, connections, sent, open }
    }

    /// What was sent on all connections, which must have ended.
    async fn all_sent(self) -> Vec<Sent> {
        let ended = self.open.acquire_many(MOST_OPEN);
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
        drop(ended.expect("the connections end").unwrap());
        self.connections.abort();
        std::mem::take(&mut *self.sent.lock().unwrap())
    }
}

/// Passes on what both say until one of them is gone.
async fn pass_on(mut client: TcpStream, mut server: TcpStream) -> Sent {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let mut sent = Sent { bytes: Vec::new(), left: false };
    let (mut request, mut reply) = (vec![0; 4096], vec![0; 64 * 1024]);
    let mut client_sends = true;
    while !sent.left {
        tokio::select! {
            read = client.read(&mut request), if client_sends => match read {
                Ok(0) => {
                    // It may still read: a server does not know better, either.
                    client_sends = false;
                    sent.left = server.shutdown().await.is_err();
                }
                Ok(read) => sent.left = server.write_all(&request[..read]).await.is_err(),
                Err(_) => sent.left = true,
            },
            read = server.read(&mut reply) => {
                let Ok(read @ 1..) = read else { return sent };
                sent.bytes.extend(&reply[..read]);
                sent.left = client.write_all(&reply[..read]).await.is_err();
            }
        }
    }
    // What had arrived when the client left, also what nobody has told this task of yet.
    let moment = Duration::from_millis(1);
    while let Ok(Ok(read @ 1..)) = tokio::time::timeout(moment, server.read(&mut reply)).await {
        sent.bytes.extend(&reply[..read]);
    }
    server.set_zero_linger().unwrap();
    sent
}

/// The ids of all answers; of a list that was cut, only the complete ids.
fn ids(sent: &[u8]) -> Vec<i64> {
    if sent.starts_with(b":") || sent.starts_with(b"-") {
        let text = String::from_utf8_lossy(sent);
        let whole = text.rsplit_once("\r\n").map_or("", |(whole, _)| whole);
        return whole
            .lines()
            .map(|line| line.strip_prefix(':').expect(line).parse().unwrap())
            .collect();
    }
    let bodies =
        if sent.starts_with(b"HTTP/1.1") { bodies_of_http1(sent) } else { bodies_of_http2(sent) };
    let mut ids = Vec::new();
    for (body, whole) in bodies {
        match body.parse() {
            Ok(id) if whole => ids.push(id),
            Ok(_) => {}
            // Each id of a list is a string in quotes.
            Err(_) => {
                assert!(!whole || body.contains(r#""ids""#), "refused: {body}");
                let quoted = body.split('"').skip(1).step_by(2);
                let closed = body.matches('"').count() / 2;
                ids.extend(quoted.take(closed).filter_map(|id| id.parse::<i64>().ok()));
            }
        }
    }
    ids
}

/// The bodies of HTTP/1.1 answers, and whether each is complete.
fn bodies_of_http1(sent: &[u8]) -> Vec<(String, bool)> {
    let text = String::from_utf8_lossy(sent);
    let body = |answer: &str| {
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let head = head.to_lowercase();
        let length: usize = head.split_once("content-length: ")?.1.lines().next()?.parse().unwrap();
        let whole = body.get(..length);
        Some((whole.unwrap_or(body).to_owned(), whole.is_some()))
    };
    text.split("HTTP/1.1").filter_map(body).collect()
}

/// The bodies of HTTP/2 streams (RFC 9113, sections 4.1 and 6.1), and whether each is complete.
fn bodies_of_http2(mut sent: &[u8]) -> Vec<(String, bool)> {
    let mut streams = HashMap::<u32, (Vec<u8>, bool)>::new();
    while let Some((head, rest)) = sent.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = rest.get(..length).unwrap_or(rest);
        let (is_data, ends) = (head[3] == 0, head[4] & 1 == 1);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        if is_data {
            let (body, whole) = streams.entry(stream).or_default();
            body.extend(payload);
            *whole = ends && payload.len() == length;
        }
        sent = &rest[payload.len()..];
    }
    let text = |(body, whole)| (String::from_utf8(body).unwrap(), whole);
    streams.into_values().map(text).collect()
}

/// Asks for one id and waits for it; the call is recorded.
fn ask(client: &mut HttpClient, path: &str, calls: &CallLog) {
    let sent = calls.now();
    let answer = client.request("GET", path).unwrap();
    let id = answer.body.parse().unwrap_or_else(|_| panic!("{answer:?}"));
    calls.record(sent, id, id);
}

/// One client that leaves, again and again: each time after it has asked for several answers.
fn leave_again_and_again(tap: SocketAddr, redis: SocketAddr, paths: &[&str], calls: &CallLog) {
    let get = |path: &&str| format!("GET {path} HTTP/1.1\r\nHost: leaf\r\n\r\n");
    let requests: String = paths.iter().map(get).collect();
    let mut silent = Vec::new();
    for round in 0..ROUNDS {
        let moment = || std::thread::sleep(Duration::from_micros(fastrand::u64(0..6000)));
        if round % 4 == 0 {
            give_up_streams(tap, paths, moment);
            continue;
        }
        if round % 4 == 3 {
            let tag = paths[0].rsplit('/').next().unwrap();
            let mut client = std::net::TcpStream::connect(redis).unwrap();
            client.write_all(format!("INCR {tag}\r\n").repeat(40).as_bytes()).unwrap();
            moment();
            continue;
        }
        let mut client = HttpClient::connect(tap).unwrap();
        ask(&mut client, paths[0], calls);
        let mut stream = client.into_stream();
        stream.write_all(requests.as_bytes()).unwrap();
        moment();
        match round % 8 {
            // Only says no more, and reads nothing for a while.
            1 | 5 => {
                stream.shutdown(Shutdown::Write).unwrap();
                silent.push(stream);
            }
            // Closed with answers unread, or before they came: both end in a reset, the latter when
            // the first answer arrives.
            2 => drop(stream),
            _ => reset(stream),
        }
    }
}

/// Closes a connection with a reset, which the tap always notices: after a plain close, on a busy
/// machine, it may have passed on all answers before.
fn reset(client: std::net::TcpStream) {
    set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
}

/// Sends all requests over one HTTP/2 connection, cancels every second one, and then leaves.
fn give_up_streams(tap: SocketAddr, paths: &[&str], moment: impl Fn()) {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(http2_frame(4, 0, 0, &[]));
    let mut given_up = Vec::new();
    for (stream, path) in (1..48).step_by(2).zip(paths.iter().cycle()) {
        // GET, http, :path and :authority as literals without an index (RFC 7541, section 6.2.2).
        let mut head = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
        head.extend(path.as_bytes());
        head.extend(b"\x01\x04leaf");
        bytes.extend(http2_frame(1, 5, stream, &head));
        if stream % 4 == 1 {
            // CANCEL
            given_up.extend(http2_frame(3, 0, stream, &[0, 0, 0, 8]));
        }
    }
    let mut client = std::net::TcpStream::connect(tap).unwrap();
    client.write_all(&bytes).unwrap();
    moment();
    client.write_all(&given_up).unwrap();
    moment();
}

#[test]
fn ids_of_clients_that_left_are_issued_to_nobody_else() {
    let database = MariaDb::shared();
    let name = database.new_database();
    let runtime = Runtime::new().unwrap();
    let proxy = runtime.block_on(FaultProxy::start(([127, 0, 0, 1], database.port()).into()));
    let url = MariaDb::url(proxy.address().port(), &name);
    let directory = tempfile::tempdir().unwrap();
    let (args, direct) = (["--segment-store", &url], MariaDb::url(database.port(), &name));
    let make = ["schema", "--apply", "--segment-store", &direct];
    let mut schema = LeafServer::process(SERVER, directory.path(), &make, &[]);
    assert!(schema.wait(Duration::from_secs(20)).success(), "{}", schema.output());
    let env = [("LEAF_SNOWFLAKE__ENABLED", "false".to_owned())];
    let server = LeafServer::start(SERVER, directory.path(), &args, &env);
    let mut ops = HttpClient::connect(server.ops()).unwrap();
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    // Segments are small, so that most clients leave during a fetch; a list is larger than one, so
    // that it is fetched for its caller alone.
    database.sql(&format!(
        "USE {name}; INSERT INTO leaf_tag_settings VALUES \
         ('plain', '{{\"version\":1,\"enabled\":true,\"max_step\":20}}')"
    ));
    for tag in [r#"{"tag":"plain","step":20}"#, r#"{"tag":"turns","order":"strict"}"#] {
        let answer = ops.ask("POST", "/v1/tags", headers, tag).unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
    }

    for (tag, strict) in [("plain", false), ("turns", true)] {
        let path = format!("/api/segment/get/{tag}");
        let list = format!("/v1/segments/{tag}/ids?count=50");
        let paths = [&*path, &*list, &*path];
        let calls = CallLog::default();
        let tap = runtime.block_on(Tap::start(server.ids()));
        let redis = runtime.block_on(Tap::start(server.redis()));
        proxy.set(Fault::Delay(Duration::from_millis(4)));
        std::thread::scope(|scope| {
            let leavers: Vec<_> = (0..LEAVERS)
                .map(|_| {
                    scope
                        .spawn(|| leave_again_and_again(tap.address, redis.address, &paths, &calls))
                })
                .collect();
            // Others ask all the time, and get what was put back, if it was.
            let mut stays = HttpClient::connect(tap.address).unwrap();
            while leavers.iter().any(|leaver| !leaver.is_finished()) {
                ask(&mut stays, &path, &calls);
            }
            // One leaves while nobody else asks, and then others ask.
            for _ in 0..20 {
                give_up_streams(tap.address, &[&list], || {
                    std::thread::sleep(Duration::from_millis(2));
                });
                std::thread::sleep(Duration::from_millis(40));
                ask(&mut stays, &path, &calls);
            }
            proxy.set(Fault::None);
            (0..200).for_each(|_| ask(&mut stays, &path, &calls));
        });

        let mut sent = runtime.block_on(tap.all_sent());
        sent.extend(runtime.block_on(redis.all_sent()));
        let (ledger, mut to_leavers) = (Ledger::default(), 0);
        for (number, sent) in sent.iter().enumerate() {
            let issuer: Arc<str> = format!("connection {number}, left: {}", sent.left).into();
            let ids = ids(&sent.bytes);
            ids.iter().for_each(|id| ledger.record(&issuer, *id));
            to_leavers += if sent.left { ids.len() } else { 0 };
        }
        let left = sent.iter().filter(|sent| sent.left).count();
        println!(
            "{tag}: {left} of {} connections were left, with {to_leavers} ids sent",
            sent.len()
        );
        assert_eq!(sent.len(), LEAVERS * ROUNDS + 1 + 20);
        // Seven rounds of each client end with `reset`.
        assert!(left >= LEAVERS * 7, "only {left} clients left early");
        // Of 64 `drop`s nearly each leaves a list of 50 ids unread.
        assert!(to_leavers >= LEAVERS * ROUNDS, "only {to_leavers} ids were sent to them");
        ledger.expect_at_least(LEAVERS * ROUNDS * 4);
        if strict {
            calls.expect_strict_order(LEAVERS * ROUNDS / 2 + 200);
        }
    }
}
