//! The client of `leaf-client` against real servers: what its ids are like, and what its callers notice of servers
//! that die, hang or come back.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_client::{ClientErrorKind, LeafClient, LeafClientBuilder, Step, TagHandle};
use leaf_proto::v1::id_service_client::IdServiceClient;
use leaf_proto::v1::{
    LeaseRangeRequest, LeaseRangeResponse, NextIdRequest, NextIdsRequest, ReturnRangeRequest,
    next_id_request, next_ids_request,
};
use leaf_testkit::{
    Address, Fault, FaultProxy, HttpClient, LeafServer, Ledger, Load, MariaDb, Plan, RedisClient,
};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAG: &str = "leaf-segment-test";

fn start(data: &Path, env: &[(&str, &str)]) -> LeafServer {
    let env: Vec<_> = env.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    LeafServer::start(SERVER, data, &[], &env)
}

/// A client with a deadline that a machine that stands still for a moment does not exceed.
fn builder(servers: &[&LeafServer]) -> LeafClientBuilder {
    let urls = servers.iter().map(|server| format!("http://{}", server.ids()));
    LeafClient::builder().endpoints(urls).deadline(Duration::from_secs(10))
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
    let deadline = Instant::now() + Duration::from_secs(20);
    while workers(&near, 20).await != BTreeSet::from([1]) {
        assert!(Instant::now() < deadline, "servers of another zone are asked");
    }
    servers[1].kill();
    // What lies in the client is a second old at most.
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

/// A server that is killed and started again behind an address that stays.
struct Node {
    directory: tempfile::TempDir,
    store: String,
    server: Option<LeafServer>,
    proxy: FaultProxy,
    redis: Arc<Mutex<Option<SocketAddr>>>,
    http: Address,
    grpc: Arc<Mutex<Option<SocketAddr>>>,
}

impl Node {
    async fn start(store: &str) -> Self {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut node = Self {
            directory: tempfile::tempdir().unwrap(),
            store: store.to_owned(),
            server: None,
            proxy: FaultProxy::start(nowhere).await,
            redis: Arc::default(),
            http: Arc::default(),
            grpc: Arc::default(),
        };
        node.launch();
        node
    }

    fn launch(&mut self) {
        let env = [
            ("LEAF_SEGMENT__STORE", self.store.as_str()),
            ("LEAF_SNOWFLAKE__ENABLED", "false"),
            ("LEAF_GRPC__LISTEN", "127.0.0.1:0"),
        ];
        let server = start(self.directory.path(), &env);
        *self.grpc.lock().unwrap() = Some(server.grpc());
        self.proxy.point_to(server.ids());
        *self.redis.lock().unwrap() = Some(server.redis());
        *self.http.lock().unwrap() = Some(server.ids());
        self.server = Some(server);
    }

    fn kill(&mut self) {
        *self.redis.lock().unwrap() = None;
        *self.grpc.lock().unwrap() = None;
        *self.http.lock().unwrap() = None;
        self.server.take().unwrap().kill();
    }
}

/// INCRs on one connection after the other; a connection's ids rise.
fn take_over_redis(place: &Mutex<Option<SocketAddr>>, ledger: &Ledger, done: &AtomicBool) {
    let name: Arc<str> = "redis".into();
    while !done.load(Ordering::SeqCst) {
        let address = *place.lock().unwrap();
        if let Some(Ok(mut client)) = address.map(RedisClient::connect) {
            let mut last = -1;
            while let Ok(reply) = client.command(&["INCR", "orders"]) {
                if let Some(id) = reply.id() {
                    ledger.record(&name, id);
                    assert!(id > last, "{id} after {last}");
                    last = id;
                }
                if done.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every call of gRPC that yields ids, on one connection after the other.
async fn take_over_grpc(
    place: Arc<Mutex<Option<SocketAddr>>>,
    ledger: Arc<Ledger>,
    done: Arc<AtomicBool>,
) -> usize {
    let (name, mut taken): (Arc<str>, usize) = ("grpc".into(), 0);
    while !done.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let Some(address) = *place.lock().unwrap() else { continue };
        let channel = tonic::transport::Channel::from_shared(format!("http://{address}")).unwrap();
        let Ok(channel) = channel.connect().await else { continue };
        let mut client = IdServiceClient::new(channel);
        while let Ok(ids) = ids_of_one_round(&mut client, taken).await {
            for id in ids {
                ledger.record(&name, id);
                taken += 1;
            }
            if done.load(Ordering::SeqCst) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    taken
}

/// Ids by one call after the other.
async fn ids_of_one_round(
    client: &mut IdServiceClient<tonic::transport::Channel>,
    round: usize,
) -> Result<Vec<i64>, tonic::Status> {
    let tag = || "orders".to_owned();
    let source = || Some(next_ids_request::Source::Tag(tag()));
    match round % 4 {
        0 => {
            let request = NextIdRequest { source: Some(next_id_request::Source::Tag(tag())) };
            Ok(vec![client.next_id(request).await?.into_inner().id])
        }
        1 => {
            let request = NextIdsRequest { source: source(), count: 3 };
            Ok(client.next_ids(request).await?.into_inner().ids)
        }
        2 => {
            let request = NextIdsRequest { source: source(), count: 5 };
            let mut stream = client.stream_ids(request).await?.into_inner();
            let mut ids = Vec::new();
            for _ in 0..3 {
                ids.extend(stream.message().await?.map(|answer| answer.ids).unwrap_or_default());
            }
            Ok(ids)
        }
        _ => {
            let request = LeaseRangeRequest { tag: tag(), count: 10 };
            let LeaseRangeResponse { start, end, ticket } =
                client.lease_range(request).await?.into_inner();
            let back = ReturnRangeRequest { tag: tag(), ticket, start: start + 4, end };
            // What becomes of it is another's business: the rest is not used.
            let _ = client.return_range(back).await;
            Ok((start..start + 4).collect())
        }
    }
}

/// Three servers on MariaDB are killed and started again at random; clients of every protocol take ids of one tag. Two
/// servers at most are away at a time, and no caller of this crate's client notices.
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_all_protocols_share_a_tag_over_kill_9() {
    let full = std::env::var_os("LEAF_TEST_FULL").is_some();
    let seconds = if full { 60 } else { 10 };
    // The default of a client is 1 s. Beside other tests the machine itself may stand still for as long.
    let deadline = Duration::from_secs(if full { 1 } else { 4 });
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mariadb = MariaDb::shared();
    let store = MariaDb::url(mariadb.port(), &mariadb.new_database());
    let schema = std::process::Command::new(SERVER)
        .args(["schema", "--apply", "--segment-store", &store])
        .output()
        .unwrap();
    assert!(schema.status.success(), "{schema:?}");
    let mut nodes =
        [Node::start(&store).await, Node::start(&store).await, Node::start(&store).await];
    make_tag(nodes[0].server.as_ref().unwrap(), r#"{"tag":"orders","step":50}"#);

    let ledger = Arc::new(Ledger::default());
    let done = Arc::new(AtomicBool::new(false));
    let urls = nodes.each_ref().map(|node| format!("http://{}", node.proxy.address()));
    let mut sdk = tokio::task::JoinSet::new();
    for number in 0..6 {
        let client = LeafClient::builder().endpoints(&urls).deadline(deadline).build().unwrap();
        let (ledger, done) = (Arc::clone(&ledger), Arc::clone(&done));
        sdk.spawn(async move {
            let name: Arc<str> = format!("client {number}").into();
            let orders = client.tag("orders").await.unwrap();
            let (mut last, mut slowest) = (-1, Duration::ZERO);
            while !done.load(Ordering::SeqCst) {
                let asked = Instant::now();
                // All are in order: what one call yields, and what the calls yield.
                let ids: Vec<leaf_client::Id> = match last % 7 {
                    0 => orders.take_ids(10).await,
                    1 => Ok(orders.try_next().into_iter().collect()),
                    _ => orders.next().await.map(|id| vec![id]),
                }
                .unwrap_or_else(|error| panic!("{name}, after {:?}: {error}", asked.elapsed()));
                slowest = slowest.max(asked.elapsed());
                for id in ids {
                    ledger.record(&name, id.get());
                    assert!(id.get() > last, "{name}: {id} after {last}");
                    last = id.get();
                }
                tokio::time::sleep(Duration::from_micros(500)).await;
            }
            client.close().await;
            slowest
        });
    }
    let redis = [0, 1].map(|at| {
        let (place, ledger) = (Arc::clone(&nodes[at].redis), Arc::clone(&ledger));
        let done = Arc::clone(&done);
        std::thread::spawn(move || take_over_redis(&place, &ledger, &done))
    });
    let plan = Plan { pipeline: 5, ..Plan::of("/api/segment/get/orders") };
    let http = [1, 2].map(|at| Load::start(&ledger, "http", &nodes[at].http, &plan));

    let grpc = [0, 2].map(|at| {
        let place = Arc::clone(&nodes[at].grpc);
        tokio::spawn(take_over_grpc(place, Arc::clone(&ledger), Arc::clone(&done)))
    });
    let (until, mut kills) = (Instant::now() + Duration::from_secs(seconds), 0);
    while Instant::now() < until {
        let (first, second) = (random.usize(0..3), random.usize(0..3));
        let pause = Duration::from_millis(random.u64(0..700));
        nodes[first].kill();
        if second != first {
            nodes[second].kill();
        }
        kills += 1;
        tokio::time::sleep(pause).await;
        for node in nodes.iter_mut().filter(|node| node.server.is_none()) {
            tokio::task::block_in_place(|| node.launch());
        }
        tokio::time::sleep(Duration::from_millis(random.u64(0..500))).await;
    }
    done.store(true, Ordering::SeqCst);
    let slowest = sdk.join_all().await.into_iter().max().unwrap();
    redis.into_iter().for_each(|thread| thread.join().unwrap());
    let load = http.map(Load::end);
    for taken in grpc {
        assert!(taken.await.unwrap() > 100, "too few ids over gRPC");
    }
    println!("{} ids, {kills} times servers were killed, slowest call {slowest:?}", ledger.len());
    assert!(load.iter().all(|report| report.issued > 100), "{load:?}");
    ledger.expect_at_least(seconds as usize * 1000);
    let end = ledger.bounds().unwrap().1 + 1;
    let burned = end - 1 - ledger.len() as i64;
    println!("{burned} of {end} burned");
}

/// The range caches of docs/clients in other languages, where these are on the machine: each past a server that is
/// away, and at a tag whose name must be encoded.
#[test]
fn range_caches_in_other_languages_work() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/clients");
    let directory = tempfile::tempdir().unwrap();
    let server = start(&directory.path().join("data"), &[]);
    make_tag(&server, r#"{"tag":"a/b c","step":100}"#);
    let ledger = Ledger::default();
    for (program, words, file) in [
        ("python3", &[][..], "range_cache.py"),
        ("node", &[], "range_cache.mjs"),
        ("go", &["run"], "range_cache.go"),
        ("java", &[], "RangeCache.java"),
    ] {
        let run = |servers: &[&str]| {
            let mut command = std::process::Command::new(program);
            command.args(words).arg(docs.join(file)).args(["a/b c", "5000"]).args(servers).output()
        };
        // Java needs its compiler, too.
        let tool = if program == "java" { "javac" } else { program };
        if std::process::Command::new(tool).arg("--help").output().is_err() {
            println!("== no test of {file}: {tool} is not installed");
            continue;
        }
        let url = format!("http://{}", server.ids());
        let output = run(&["http://127.0.0.1:1", &url]).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{file}: {errors}");
        let text = String::from_utf8(output.stdout).unwrap();
        let ids: Vec<i64> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(ids.len() == 5000 && ids.is_sorted_by(|a, b| a < b), "{file}: {errors}");
        let name: Arc<str> = file.into();
        ids.iter().for_each(|id| ledger.record(&name, *id));
        let nowhere = run(&["http://127.0.0.1:1"]).unwrap();
        let errors = String::from_utf8_lossy(&nowhere.stderr);
        assert!(!nowhere.status.success() && errors.contains("127.0.0.1:1"), "{file}: {errors}");
    }
    ledger.expect_at_least(5000);
}

/// A forked process hands out none of its parent's ids.
#[test]
fn the_range_cache_in_python_knows_that_it_was_forked() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/clients");
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), &[]);
    let program = r#"
import os, sys
sys.path.insert(0, sys.argv[1])
from range_cache import RangeCache
ids = RangeCache([sys.argv[2]], "leaf-segment-test", 100)
mine = [ids.next_id() for _ in range(10)]
child = os.fork()
mine += [ids.next_id() for _ in range(200)]
os.write(1, "".join(f"{id}\n" for id in (mine if child else mine[10:])).encode())
if child:
    assert os.waitpid(child, 0)[1] == 0
"#;
    let python = leaf_testkit::require("python3", "python3");
    let mut command = std::process::Command::new(python);
    command.args(["-c", program]).arg(docs).arg(format!("http://{}", server.ids()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (ledger, name) = (Ledger::default(), Arc::<str>::from("python"));
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        ledger.record(&name, line.parse().unwrap());
    }
    ledger.expect_at_least(410);
}
