//! The client of `leaf-client` against real servers: what its ids are like, and what its callers notice of servers
//! that die, hang or come back.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leaf_client::{ClientErrorKind, LeafClient, LeafClientBuilder, Step, TagHandle};
use leaf_testkit::{Fault, FaultProxy, HttpClient, LeafServer, Ledger};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAG: &str = "leaf-segment-test";

fn start(data: &Path, env: &[(&str, &str)]) -> LeafServer {
    let env: Vec<_> = env.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    LeafServer::start(SERVER, data, &[], &env)
}

fn builder(servers: &[&LeafServer]) -> LeafClientBuilder {
    LeafClient::builder().endpoints(servers.iter().map(|server| format!("http://{}", server.ids())))
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
    let client = builder(&[&server]).build().unwrap();
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

/// All callers of one id of a strict tag share requests, and are in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_strict_tag_that_begins_later_gets_a_higher_id() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    make_tag(&server, r#"{"tag":"turns","order":"strict"}"#);
    let clients = [builder(&[&server]).build().unwrap(), builder(&[&server]).build().unwrap()];
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
            }
        });
    }
    callers.join_all().await;
    log.expect_strict_order(15 * 150);
}

/// What a client did not use is leased again.
#[tokio::test(flavor = "multi_thread")]
async fn a_close_returns_the_tail() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let client = builder(&[&server]).build().unwrap();
    let orders = client.tag(TAG).await.unwrap();
    for id in 1..=700 {
        assert_eq!(orders.next().await.unwrap().get(), id);
    }
    // Both of its ranges by now.
    tokio::time::sleep(Duration::from_millis(300)).await;
    client.close().await;
    assert_eq!(orders.try_next(), None);
    assert_eq!(orders.next().await.unwrap_err().kind(), ClientErrorKind::Closed);

    let client = builder(&[&server]).build().unwrap();
    assert_eq!(client.tag(TAG).await.unwrap().next().await.unwrap().get(), 701);
}

/// Takes ids for so long, and returns how long the slowest took.
async fn take_for(length: Duration, tag: &TagHandle, caller: &mut Caller) -> Duration {
    let (until, mut slowest) = (Instant::now() + length, Duration::ZERO);
    while Instant::now() < until {
        let asked = Instant::now();
        let id = tag.next().await;
        slowest = slowest.max(asked.elapsed());
        caller
            .got_rising(id.unwrap_or_else(|error| panic!("after {:?}: {error}", asked.elapsed())));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    slowest
}

/// All servers away: callers notice nothing while the stock lasts, then get a precise error within their deadline,
/// and go on by themselves when a server is back.
#[tokio::test(flavor = "multi_thread")]
async fn servers_may_go_away_while_the_stock_lasts() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut server = start(&data, &[]);
    let proxy = FaultProxy::start(server.ids()).await;
    let place = format!("http://{}", proxy.address());
    let client = LeafClient::builder().endpoint(&place).build().unwrap();
    let orders = client.tag(TAG).await.unwrap();
    let mut caller = Caller::new();
    take_for(Duration::from_millis(500), &orders, &mut caller).await;

    server.kill();
    let slowest = take_for(Duration::from_secs(2), &orders, &mut caller).await;
    assert!(slowest < Duration::from_millis(500), "somebody waited {slowest:?}");
    // To the end of the stock.
    while let Some(id) = orders.try_next() {
        caller.got_rising(id);
    }
    let asked = Instant::now();
    let error = orders.next().await.unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Unavailable);
    assert!(error.retryable() && error.to_string().contains(&place), "{error}");
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(4), "the deadline is 1 s, and it took {took:?}");

    let server = start(&data, &[]);
    proxy.point_to(server.ids());
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match orders.next().await {
            Ok(id) => break caller.got_rising(id),
            Err(error) if error.retryable() && Instant::now() < deadline => {}
            Err(error) => panic!("{error}"),
        }
    }
    take_for(Duration::from_millis(500), &orders, &mut caller).await;
    client.close().await;
}

/// Two servers on one store, told apart by their worker ids.
fn two_servers(directory: &Path, zones: [&str; 2]) -> [LeafServer; 2] {
    let store = format!("sqlite:{}", directory.join("leaf.db").display());
    [0, 1].map(|number| {
        let host = format!("leaf-{number}");
        let env = [
            ("LEAF_ZONE", zones[number]),
            ("LEAF_SEGMENT__STORE", store.as_str()),
            ("LEAF_SNOWFLAKE__REGISTRY", "ordinal"),
            ("LEAF_SNOWFLAKE__HOST_NAME", host.as_str()),
        ];
        start(&directory.join(&host), &env)
    })
}

async fn workers(client: &LeafClient, lists: usize) -> BTreeSet<u32> {
    let mut seen = BTreeSet::new();
    for _ in 0..lists {
        let id = client.snowflake().next().await.unwrap();
        seen.insert(leaf_core::Layout::LEAF.decode(id).unwrap().worker.get());
        // The next one is of another list.
        while client.snowflake().try_next().is_some() {}
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_the_own_zone_are_asked_others_when_they_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let mut servers = two_servers(directory.path(), ["a", "b"]);
    let both = builder(&[&servers[0], &servers[1]]).build().unwrap();
    assert_eq!(workers(&both, 40).await, BTreeSet::from([0, 1]), "no zone: both");

    let near = builder(&[&servers[0], &servers[1]]).zone("b").build().unwrap();
    near.tag(TAG).await.unwrap().warm_up().await.unwrap();
    // It asks them for their zones first.
    tokio::time::sleep(Duration::from_millis(700)).await;
    while near.snowflake().try_next().is_some() {}
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(workers(&near, 20).await, BTreeSet::from([1]));
    servers[1].kill();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(workers(&near, 20).await, BTreeSet::from([0]), "and nobody saw an error");
    let tag = near.tag(TAG).await.unwrap();
    let mut caller = Caller::new();
    for _ in 0..10_000 {
        caller.got_rising(tag.next().await.unwrap());
    }
}

/// One of two servers hangs: each request that meets it goes to the other one, and soon none does.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_ejected() {
    let directory = tempfile::tempdir().unwrap();
    let servers = two_servers(directory.path(), ["a", "a"]);
    let proxy = FaultProxy::start(servers[0].ids()).await;
    let urls = [proxy.address(), servers[1].ids()].map(|address| format!("http://{address}"));
    let deadline = Duration::from_secs(3);
    let client = LeafClient::builder()
        .endpoints(urls)
        .attempt(Duration::from_millis(200))
        .deadline(deadline)
        .max_lease(Step::new(50).unwrap())
        .build()
        .unwrap();
    let tag = client.tag(TAG).await.unwrap();
    let mut caller = Caller::new();
    for fault in [Fault::SwallowRequests, Fault::Cut, Fault::None] {
        proxy.set(fault);
        let started = Instant::now();
        for _ in 0..2000 {
            caller.got_rising(tag.next().await.unwrap());
        }
        let took = started.elapsed();
        // 40 leases, half of which met the bad server would take 4 s.
        assert!(took < Duration::from_secs(3), "{fault:?}: {took:?}");
    }
    client.close().await;
}
