//! Clients of every protocol on one tag, while servers are killed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_client::LeafClient;
use leaf_proto::v1::id_service_client::IdServiceClient;
use leaf_proto::v1::{
    LeaseRangeRequest, LeaseRangeResponse, NextIdRequest, NextIdsRequest, ReturnRangeRequest,
    next_id_request, next_ids_request,
};
use leaf_testkit::{Address, FaultProxy, LeafServer, Ledger, Load, MariaDb, Plan, RedisClient};
use tokio::time::Instant;

use crate::{SERVER, make_tag, start};

/// A server that is killed and started again behind an address that stays.
struct Node {
    directory: tempfile::TempDir,
    store: String,
    server: Option<LeafServer>,
    proxy: FaultProxy,
    grpc_proxy: FaultProxy,
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
            grpc_proxy: FaultProxy::start(nowhere).await,
            redis: Arc::default(),
            http: Arc::default(),
            grpc: Arc::default(),
        };
        node.launch();
        node
    }

    fn launch(&mut self) {
        let env =
            [("LEAF_SEGMENT__STORE", self.store.as_str()), ("LEAF_SNOWFLAKE__ENABLED", "false")];
        let server = start(self.directory.path(), &env);
        *self.grpc.lock().unwrap() = Some(server.grpc());
        self.proxy.point_to(server.ids());
        self.grpc_proxy.point_to(server.grpc());
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
    let (mut round, mut given_back, mut calls) = (0, 0, [0; 4]);
    while !done.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let Some(address) = *place.lock().unwrap() else { continue };
        let channel = tonic::transport::Channel::from_shared(format!("http://{address}")).unwrap();
        let Ok(channel) = channel.connect().await else { continue };
        let mut client = IdServiceClient::new(channel);
        let mut record = |id| {
            ledger.record(&name, id);
            taken += 1;
        };
        while let Ok(back) = one_call(&mut client, round, &mut record).await {
            calls[round % 4] += 1;
            given_back += usize::from(back);
            round += 1;
            if done.load(Ordering::SeqCst) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert!(calls.iter().all(|count| *count > 10), "calls of each kind: {calls:?}");
    assert!(given_back > 10, "{given_back} of {} leases were given back", calls[3]);
    taken
}

/// Takes ids by one kind of call, chosen by `round`; each is recorded as it is read. Returns
/// whether unused ids went back.
async fn one_call(
    client: &mut IdServiceClient<tonic::transport::Channel>,
    round: usize,
    record: &mut impl FnMut(i64),
) -> Result<bool, tonic::Status> {
    let tag = || "orders".to_owned();
    let source = || Some(next_ids_request::Source::Tag(tag()));
    match round % 4 {
        0 => {
            let request = NextIdRequest { source: Some(next_id_request::Source::Tag(tag())) };
            record(client.next_id(request).await?.into_inner().id);
        }
        1 => {
            let request = NextIdsRequest { source: source(), count: 3 };
            client.next_ids(request).await?.into_inner().ids.into_iter().for_each(record);
        }
        2 => {
            let request = NextIdsRequest { source: source(), count: 5 };
            let mut stream = client.stream_ids(request).await?.into_inner();
            for _ in 0..3 {
                let answer = stream.message().await?;
                answer.into_iter().flat_map(|answer| answer.ids).for_each(&mut *record);
            }
        }
        _ => {
            let request = LeaseRangeRequest { tag: tag(), count: 10 };
            let LeaseRangeResponse { start, end, ticket } =
                client.lease_range(request).await?.into_inner();
            let back = ReturnRangeRequest { tag: tag(), ticket, start: start + 4, end };
            (start..start + 4).for_each(record);
            return Ok(client.return_range(back).await?.into_inner().returned);
        }
    }
    Ok(false)
}

/// Three servers on MariaDB are killed and started again at random, two at most at a time; clients
/// of every protocol take ids of one tag. Callers of leaf-client do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_all_protocols_share_a_tag_over_kill_9() {
    let full = std::env::var_os("LEAF_TEST_FULL").is_some();
    let seconds = if full { 60 } else { 10 };
    // The default deadline of a client is 1 s. Beside other tests the whole machine may stand still
    // that long.
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
    let http = nodes.each_ref().map(|node| format!("http://{}", node.proxy.address()));
    let grpc = nodes.each_ref().map(|node| format!("grpc://{}", node.grpc_proxy.address()));
    let mut sdk = tokio::task::JoinSet::new();
    for number in 0..6 {
        let urls = if number % 2 == 0 { &http } else { &grpc };
        let client = LeafClient::builder().endpoints(urls).deadline(deadline).build().unwrap();
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
