//! Strict order over three servers on real stores, while nodes are killed and stopped and their
//! links are cut.
//!
//! Every call is recorded with the instants at which it was sent and answered. A call without an
//! answer may have burned ids, and is not judged.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic, and let other processes run for a while"
)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_testkit::{
    CallLog, Etcd, Fault, FaultProxy, Galera, HttpClient, LeafServer, Ledger, MariaDb, Postgres,
    RedisClient, RedisReply,
};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");

fn full() -> bool {
    std::env::var_os("LEAF_TEST_FULL").is_some()
}

/// A server, and the proxy by which its connection is cut.
struct Node {
    directory: tempfile::TempDir,
    proxy: FaultProxy,
    url: String,
    server: Option<LeafServer>,
    /// Where its callers find it: HTTP and the Redis protocol.
    places: Arc<Mutex<Option<(SocketAddr, SocketAddr)>>>,
}

impl Node {
    async fn start(store: SocketAddr, url: impl Fn(u16) -> String) -> Self {
        let proxy = FaultProxy::start(store).await;
        let url = url(proxy.address().port());
        let directory = tempfile::tempdir().unwrap();
        let mut node = Self { directory, proxy, url, server: None, places: Arc::default() };
        node.launch();
        node
    }

    fn launch(&mut self) {
        let env = [("LEAF_SNOWFLAKE__ENABLED", "false".to_owned())];
        let args = ["--segment-store", &self.url];
        let server = LeafServer::start(SERVER, self.directory.path(), &args, &env);
        *self.places.lock().unwrap() = Some((server.ids(), server.redis()));
        self.server = Some(server);
    }

    fn kill(&mut self) {
        *self.places.lock().unwrap() = None;
        self.server.take().unwrap().kill();
    }

    fn signal(&mut self, signal: &str) {
        self.server.as_mut().unwrap().process_mut().signal(signal);
    }
}

/// What callers share.
#[derive(Default)]
struct Calls {
    log: CallLog,
    ledger: Ledger,
    refused: AtomicU64,
    lost: AtomicU64,
    done: AtomicBool,
}

impl Calls {
    fn record(&self, issuer: &Arc<str>, sent: Duration, ids: &[i64]) {
        self.log.record(sent, *ids.iter().min().unwrap(), *ids.iter().max().unwrap());
        ids.iter().for_each(|id| self.ledger.record(issuer, *id));
    }

    /// Calls until it is told to stop; a connection that ends is made anew.
    fn run(&self, number: usize, places: &Mutex<Option<(SocketAddr, SocketAddr)>>) {
        let issuer: Arc<str> = format!("caller {number}").into();
        while !self.done.load(Ordering::SeqCst) {
            let place = *places.lock().unwrap();
            let ended = place.map(|(http, redis)| match number % 4 {
                0 => self.by_redis(&issuer, redis),
                _ => self.by_http(&issuer, http),
            });
            if let Some(Err(_)) = ended {
                self.lost.fetch_add(1, Ordering::SeqCst);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn by_http(&self, issuer: &Arc<str>, address: SocketAddr) -> std::io::Result<()> {
        let mut client = HttpClient::connect(address)?;
        for call in 0.. {
            if self.done.load(Ordering::SeqCst) {
                break;
            }
            let several = call % 5 == 0;
            let path =
                if several { "/v1/segments/turns/ids?count=3" } else { "/api/segment/get/turns" };
            let sent = self.log.now();
            let answer = client.request("GET", path)?;
            match answer.status {
                200 if several => {
                    let ids = answer.json()["ids"].as_array().unwrap().clone();
                    let ids: Vec<i64> =
                        ids.iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect();
                    assert_eq!(ids.len(), 3);
                    self.record(issuer, sent, &ids);
                }
                200 => self.record(issuer, sent, &[answer.body.parse().unwrap()]),
                503 => {
                    self.refused.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                }
                status => panic!("{issuer}: {status} {}", answer.body),
            }
        }
        Ok(())
    }

    /// Sends three commands at once; each is recorded as a separate call.
    fn by_redis(&self, issuer: &Arc<str>, address: SocketAddr) -> std::io::Result<()> {
        let mut client = RedisClient::connect(address)?;
        let commands = RedisClient::encode(&["INCR", "turns"]).repeat(3);
        while !self.done.load(Ordering::SeqCst) {
            let sent = self.log.now();
            client.send(&commands)?;
            for _ in 0..3 {
                match client.read()? {
                    RedisReply::Integer(id) => self.record(issuer, sent, &[id]),
                    RedisReply::Error(text) if text.starts_with("LOADING") => {
                        self.refused.fetch_add(1, Ordering::SeqCst);
                    }
                    other => panic!("{issuer}: {other:?}"),
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Kills, stops and cuts off one node after the other while callers use all of them.
async fn attack(nodes: Vec<Node>) {
    attack_over(nodes, None::<fn() -> SocketAddr>).await;
}

/// Attacks nodes, and lets the database fail over in the middle: `fail_over` returns the database's
/// new address.
async fn attack_over(mut nodes: Vec<Node>, mut fail_over: Option<impl FnOnce() -> SocketAddr>) {
    let (seconds, callers_per_node) = if full() { (60, 20) } else { (6, 8) };
    let calls = Arc::new(Calls::default());
    let callers: Vec<_> = (0..nodes.len() * callers_per_node)
        .map(|number| {
            let places = Arc::clone(&nodes[number % nodes.len()].places);
            let calls = Arc::clone(&calls);
            std::thread::spawn(move || calls.run(number, &places))
        })
        .collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut faults = 0_usize;
    while Instant::now() < end || faults < 4 {
        let many = nodes.len();
        let node = &mut nodes[faults % many];
        match faults % 4 {
            0 => {
                node.kill();
                tokio::time::sleep(Duration::from_millis(200)).await;
                tokio::task::block_in_place(|| node.launch());
            }
            1 => {
                node.signal("STOP");
                tokio::time::sleep(Duration::from_millis(700)).await;
                node.signal("CONT");
            }
            2 => {
                node.proxy.set(Fault::SwallowReplies);
                tokio::time::sleep(Duration::from_millis(300)).await;
                node.proxy.set(Fault::None);
            }
            _ => {
                node.proxy.set(Fault::Cut);
                tokio::time::sleep(Duration::from_millis(500)).await;
                node.proxy.set(Fault::None);
            }
        }
        faults += 1;
        tokio::time::sleep(Duration::from_millis(400)).await;
        if let Some(fail_over) = fail_over.take_if(|_| faults == 4) {
            let promoted = tokio::task::block_in_place(fail_over);
            nodes.iter().for_each(|node| node.proxy.point_to(promoted));
        }
    }
    calls.done.store(true, Ordering::SeqCst);
    for caller in callers {
        tokio::task::spawn_blocking(move || caller.join().unwrap()).await.unwrap();
    }
    println!(
        "{} calls answered, {} refused, {} connections lost, {faults} faults",
        calls.log.len(),
        calls.refused.load(Ordering::SeqCst),
        calls.lost.load(Ordering::SeqCst)
    );
    let least = 2 * callers_per_node * usize::try_from(seconds).unwrap();
    calls.log.expect_strict_order(least);
}

fn create_now(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let args = ["schema", "--segment-store", url, "--apply"];
    let mut process = LeafServer::process(SERVER, directory.path(), &args, &[]);
    assert_eq!(process.wait(Duration::from_secs(30)).code(), Some(0), "{}", process.output());
    let env = [("LEAF_SNOWFLAKE__ENABLED", "false".to_owned())];
    let server = LeafServer::start(SERVER, directory.path(), &["--segment-store", url], &env);
    let mut client = HttpClient::connect(server.ops()).unwrap();
    let body = r#"{"tag":"turns","order":"strict"}"#;
    let headers = "Host: localhost\r\nContent-Type: application/json\r\n";
    let made = client.ask("POST", "/v1/tags", headers, body).unwrap();
    assert_eq!((made.status, &made.json()["order"]), (201, &"strict".into()), "{}", made.body);
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn strict_order_holds_on_mariadb() {
    let database = tokio::task::spawn_blocking(MariaDb::shared).await.unwrap();
    let name = database.new_database();
    let url = |port| MariaDb::url(port, &name);
    tokio::task::block_in_place(|| create_now(&url(database.port())));
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Node::start(local(database.port()), url).await);
    }
    attack(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn strict_order_holds_on_etcd() {
    let cluster = tokio::task::spawn_blocking(Etcd::shared).await.unwrap();
    let name = cluster.new_name();
    let url = |port: u16| Etcd::url(&[port], &name);
    tokio::task::block_in_place(|| create_now(&url(cluster.ports()[0])));
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Node::start(local(cluster.ports()[0]), url).await);
    }
    attack(nodes).await;
}

/// Every server uses another node of Galera, which may be behind the others. Conflicts between the
/// nodes keep the order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn strict_order_holds_on_galera() {
    let cluster = tokio::task::spawn_blocking(Galera::start).await.unwrap();
    let name = cluster.new_database();
    let ports = cluster.ports();
    let url = |port| MariaDb::url(port, &name);
    tokio::task::block_in_place(|| create_now(&url(ports[0])));
    let mut nodes = Vec::new();
    for port in ports {
        nodes.push(Node::start(local(port), url).await);
    }
    attack(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn strict_order_holds_on_postgres() {
    let server = tokio::task::spawn_blocking(Postgres::shared).await.unwrap();
    let name = server.new_database();
    let url = |port| Postgres::url(port, &name);
    tokio::task::block_in_place(|| create_now(&url(server.port())));
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Node::start(local(server.port()), url).await);
    }
    attack(nodes).await;
}

/// Three processes on one file. It has no line that could break.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn strict_order_holds_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("shared.db").display());
    tokio::task::block_in_place(|| create_now(&url));
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Node::start(local(1), |_| url.clone()).await);
    }
    attack(nodes).await;
}

/// An asynchronous replica is promoted that lacks half a second of allocations: the order holds
/// over the jump.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn strict_order_holds_over_a_promotion_of_postgres() {
    let primary = tokio::task::spawn_blocking(Postgres::start).await.unwrap();
    let name = primary.new_database();
    let url = |port| Postgres::url(port, &name);
    tokio::task::block_in_place(|| create_now(&url(primary.port())));
    let replica = tokio::task::block_in_place(|| primary.start_replica());
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Node::start(local(primary.port()), url).await);
    }
    let fail_over = || {
        replica.stop_following();
        std::thread::sleep(Duration::from_millis(500));
        primary.crash();
        replica.promote();
        local(replica.port())
    };
    attack_over(nodes, Some(fail_over)).await;
    let jumped = replica.sql(&name, "SELECT max_id FROM leaf_sequence WHERE biz_tag = 'turns'");
    assert!(jumped.trim().parse::<i64>().unwrap() > 10_000_000, "it was a failover: {jumped}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn strict_order_holds_over_a_promotion_of_mariadb() {
    let (primary, replica) = tokio::task::spawn_blocking(MariaDb::start_replicated).await.unwrap();
    let name = primary.new_database();
    let url = |port| MariaDb::url(port, &name);
    tokio::task::block_in_place(|| create_now(&url(primary.port())));
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Node::start(local(primary.port()), url).await);
    }
    let fail_over = || {
        replica.sql("STOP SLAVE IO_THREAD");
        std::thread::sleep(Duration::from_millis(500));
        primary.crash();
        replica.sql("STOP SLAVE; SET GLOBAL read_only = 0");
        local(replica.port())
    };
    attack_over(nodes, Some(fail_over)).await;
    let of_turns = format!("SELECT max_id FROM {name}.leaf_sequence WHERE biz_tag = 'turns'");
    let jumped = replica.sql(&of_turns);
    assert!(jumped.trim().parse::<i64>().unwrap() > 10_000_000, "it was a failover: {jumped}");
}
