//! The client of `leaf-client` against real servers: what its ids are like, and what its callers
//! notice of servers that die, hang or come back.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

mod all_protocols;
mod begin_anew;
mod encrypted;
mod other_languages;
mod servers;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leaf_client::{ClientErrorKind, LeafClient, LeafClientBuilder};
use leaf_testkit::{HttpClient, LeafServer, Ledger};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAG: &str = "leaf-segment-test";

fn start(data: &Path, env: &[(&str, &str)]) -> LeafServer {
    let env: Vec<_> = env.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    LeafServer::start(SERVER, data, &["--grpc-listen", "127.0.0.1:0"], &env)
}

/// What a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    Grpc,
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Http, Protocol::Grpc];

impl Protocol {
    fn address(self, server: &LeafServer) -> SocketAddr {
        match self {
            Self::Http => server.ids(),
            Self::Grpc => server.grpc(),
        }
    }

    fn url_of(self, address: SocketAddr) -> String {
        match self {
            Self::Http => format!("http://{address}"),
            Self::Grpc => format!("grpc://{address}"),
        }
    }

    /// A client with a deadline that a machine that stands still for a moment does not exceed.
    fn builder(self, servers: &[&LeafServer]) -> LeafClientBuilder {
        let urls = servers.iter().map(|server| self.url_of(self.address(server)));
        LeafClient::builder().endpoints(urls).deadline(Duration::from_secs(10))
    }
}

fn builder(servers: &[&LeafServer]) -> LeafClientBuilder {
    Protocol::Http.builder(servers)
}

fn make_tag(server: &LeafServer, new: &str) {
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let mut client = HttpClient::connect(server.ops()).unwrap();
    let made = client.ask("POST", "/v1/tags", headers, new).unwrap();
    assert_eq!(made.status, 201, "{}", made.body);
}

/// Records what a caller was given.
struct Caller {
    ledger: Ledger,
    name: Arc<str>,
    last: i64,
}

impl Caller {
    fn new() -> Self {
        Self { ledger: Ledger::default(), name: "the caller".into(), last: -1 }
    }

    fn got(&mut self, id: leaf_client::Id) {
        self.ledger.record(&self.name, id.get());
    }

    fn got_rising(&mut self, id: leaf_client::Id) {
        assert!(id.get() > self.last, "{id} after {}", self.last);
        self.last = id.get();
        self.got(id);
    }
}

/// Every call, on every kind of tag.
#[tokio::test(flavor = "multi_thread")]
async fn tags_of_every_kind_yield_ids_once() {
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("keys");
    let key = "1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    std::fs::write(&keys, key).unwrap();
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
    let keys = keys.display().to_string();
    let server = start(&directory.path().join("data"), &[("LEAF_SEGMENT__KEYS_FILE", &keys)]);
    for new in [
        r#"{"tag":"plain","step":100}"#,
        r#"{"tag":"turns","order":"strict"}"#,
        r#"{"tag":"days","order":"strict","reset":"daily"}"#,
        r#"{"tag":"secret","step":100,"shape":"scramble:53"}"#,
        r#"{"tag":"parts","step":100,"shape":"interleave:3/8"}"#,
        r#"{"tag":"a/b c","step":100}"#,
    ] {
        make_tag(&server, new);
    }
    for protocol in PROTOCOLS {
        println!("{protocol:?}");
        every_kind_over(protocol, &server).await;
    }
}

async fn every_kind_over(protocol: Protocol, server: &LeafServer) {
    let client = protocol.builder(&[server]).build().unwrap();
    for (tag, leased, rising) in [
        ("plain", true, true),
        ("a/b c", true, true),
        ("turns", false, true),
        ("days", false, true),
        ("secret", false, false),
        ("parts", false, true),
    ] {
        let handle = client.tag(tag).await.unwrap();
        assert_eq!(handle.tag().as_str(), tag);
        handle.warm_up().await.unwrap();
        let mut caller = Caller::new();
        for round in 0..400 {
            let id = handle.next().await.unwrap();
            if rising {
                caller.got_rising(id)
            } else {
                caller.got(id)
            }
            if let Some(id) = handle.try_next().filter(|_| round % 2 == 0) {
                if rising { caller.got_rising(id) } else { caller.got(id) }
            }
        }
        // Behind the buffer.
        for id in handle.take_ids(500).await.unwrap() {
            caller.got(id);
        }
        let mut local = handle.local(20);
        for _ in 0..100 {
            caller.got(local.next().await.unwrap());
        }
        match handle.take(300).await {
            Ok(ranges) => ranges.into_iter().flatten().for_each(|id| caller.got(id)),
            Err(error) => assert_eq!(error.kind(), ClientErrorKind::NoRanges, "{tag}: {error}"),
        }
        assert_eq!(handle.take(1).await.is_ok(), leased, "{tag}");
        for count in [0, 2_000_000, usize::MAX] {
            let error = handle.take_ids(count).await.unwrap_err();
            assert_eq!(error.kind(), ClientErrorKind::BadCount, "{tag}: {error}");
        }
    }
    let snowflake = client.snowflake();
    let mut caller = Caller::new();
    for _ in 0..3000 {
        caller.got_rising(snowflake.next().await.unwrap());
    }
    snowflake.take(500).await.unwrap().into_iter().for_each(|id| caller.got_rising(id));
    assert_eq!(snowflake.take(1001).await.unwrap_err().kind(), ClientErrorKind::BadCount);
    for (tag, kind) in [
        ("nope", ClientErrorKind::UnknownTag),
        ("", ClientErrorKind::BadTag),
        (" ", ClientErrorKind::BadTag),
    ] {
        assert_eq!(client.tag(tag).await.unwrap_err().kind(), kind, "{tag:?}");
    }
    client.close().await;
    for tag in ["plain", "secret"] {
        assert_eq!(client.tag(tag).await.map(|_| ()).unwrap_err().kind(), ClientErrorKind::Closed);
    }
}

/// Calls for one id of a strict tag share requests, and still are in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_strict_tag_that_begins_later_gets_a_higher_id() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    make_tag(&server, r#"{"tag":"turns","order":"strict"}"#);
    let clients = PROTOCOLS.map(|protocol| protocol.builder(&[&server]).build().unwrap());
    let log = Arc::new(leaf_testkit::CallLog::default());
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..16 {
        let turns = clients[number % 2].tag("turns").await.unwrap();
        let log = Arc::clone(&log);
        callers.spawn(async move {
            for _ in 0..150 {
                let sent = log.now();
                // Some leave before their answer: theirs is lost, and nobody else's.
                let limit = Duration::from_micros(if number == 0 { 300 } else { 10_000_000 });
                match tokio::time::timeout(limit, turns.next()).await {
                    Ok(id) => {
                        let id = id.unwrap().get();
                        log.record(sent, id, id);
                    }
                    Err(_) => assert_eq!(number, 0, "nobody else is late"),
                }
                // Else one client may be through before the other has begun.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
    callers.join_all().await;
    log.expect_strict_order(15 * 150);
}

/// What a client did not use is leased again.
#[tokio::test(flavor = "multi_thread")]
async fn a_close_returns_the_tail() {
    for protocol in PROTOCOLS {
        the_tail_is_returned_over(protocol).await;
    }
}

async fn the_tail_is_returned_over(protocol: Protocol) {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let client = protocol.builder(&[&server]).build().unwrap();
    let orders = client.tag(TAG).await.unwrap();
    for id in 1..=700 {
        assert_eq!(orders.next().await.unwrap().get(), id);
    }
    // Both of its ranges are there: no request is under way.
    let both = || {
        let mut ops = HttpClient::connect(server.ops()).unwrap();
        let tags = ops.request("GET", "/v1/tags").unwrap().json();
        let max_id: i64 = tags["tags"][0]["max_id"].as_str().unwrap().parse().unwrap();
        (max_id > 2001).then_some(())
    };
    leaf_testkit::wait_until("both ranges are leased", Duration::from_secs(10), both);
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.close().await;
    assert_eq!(orders.try_next(), None);
    assert_eq!(orders.next().await.unwrap_err().kind(), ClientErrorKind::Closed);

    let client = protocol.builder(&[&server]).build().unwrap();
    assert_eq!(client.tag(TAG).await.unwrap().next().await.unwrap().get(), 701, "{protocol:?}");
}
