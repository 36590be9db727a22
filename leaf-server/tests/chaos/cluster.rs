//! Three servers, their database and their registry, each reached through a proxy of one's own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_core::{Clock, WorkerId};
use leaf_registry::{Circumstances, RegistryKind, RegistryOptions, RegistryPlace};
use leaf_snowflake::SystemClock;
use leaf_testkit::{Fault, FaultProxy, HttpClient, LeafServer, MariaDb, ZooKeeper, wait_until};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
pub(crate) const NODES: usize = 3;
const LAYOUT: &str = "t41-w2-s12/1ms";
/// How long a node that ended by itself is left alone.
const AGAIN: Duration = Duration::from_secs(1);

/// Where a node's clients find it; nowhere while it is down.
pub(crate) type Address = Arc<Mutex<Option<SocketAddr>>>;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Link {
    Database,
    Registry,
}

pub(crate) struct Cluster {
    database: MariaDb,
    registry: ZooKeeper,
    nodes: Vec<Node>,
    home: tempfile::TempDir,
    faults: BTreeMap<&'static str, usize>,
    /// How often a node found its worker id taken over, of those that ended since.
    taken_over: usize,
}

struct Node {
    number: usize,
    server: Option<LeafServer>,
    address: Address,
    /// Started again then.
    down_until: Option<Instant>,
    frozen_until: Option<Instant>,
    links: [(FaultProxy, Option<Instant>); 2],
    /// How often its data directory was lost.
    lives: usize,
}

impl Cluster {
    pub(crate) fn start(runtime: &tokio::runtime::Runtime) -> Self {
        let (database, registry) = (MariaDb::start(), ZooKeeper::start(1));
        let name = database.new_database();
        let home = tempfile::tempdir().expect("a temporary directory");
        let proxy =
            |port: u16| (runtime.block_on(FaultProxy::start(([127, 0, 0, 1], port).into())), None);
        let nodes = (0..NODES).map(|number| {
            let links = [proxy(database.port()), proxy(registry.ports()[0])];
            // What a silent node had is soon another's, and two that issue in the same millisecond under
            // one worker id repeat an id for certain.
            let config = format!(
                "advertise = '127.0.0.1:{}'\n\
                 [segment]\nstore = '{}'\nmax_step = 1000\n\
                 [snowflake]\nregistry = 'zk_recycle'\nzookeeper = '127.0.0.1:{}'\n\
                 layout = '{LAYOUT}'\noffline_for = '1s'\nreport_interval = '200ms'\n\
                 recycle_after = '0s'\nsession_timeout = '1s'\nsequence_start = 0\n",
                9001 + number,
                MariaDb::url(links[0].0.address().port(), &name),
                links[1].0.address().port(),
            );
            std::fs::write(home.path().join(format!("{number}.toml")), config).expect("ours");
            Node {
                number,
                server: None,
                address: Address::default(),
                down_until: None,
                frozen_until: None,
                links,
                lives: 0,
            }
        });
        let nodes = nodes.collect();
        let mut cluster =
            Self { database, registry, nodes, home, faults: BTreeMap::new(), taken_over: 0 };
        let config = cluster.home.path().join("0.toml").display().to_string();
        let args = ["--config", &config, "schema", "--apply"];
        let data = cluster.home.path().join("schema");
        let mut schema = LeafServer::process(SERVER, &data, &args, &[]);
        assert!(schema.wait(Duration::from_secs(20)).success(), "{}", schema.output());
        cluster.database.sql(&format!(
            "INSERT INTO {name}.leaf_alloc (biz_tag, max_id, step) VALUES ('a', 1, 50), ('b', 1, 50)"
        ));
        for node in &mut cluster.nodes {
            node.launch(cluster.home.path().to_owned());
        }
        wait_until("all nodes are ready", Duration::from_secs(30), || {
            cluster.all_ready().then_some(())
        });
        runtime.block_on(retire_one(cluster.registry.ports()[0]));
        cluster
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.nodes.iter().map(|node| Arc::clone(&node.address)).collect()
    }

    /// Ends what has lasted long enough, and starts what is to run.
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        for node in &mut self.nodes {
            if node.frozen_until.is_some_and(|until| until <= now) {
                node.thaw();
            }
            for (proxy, until) in &mut node.links {
                if until.is_some_and(|until| until <= now) {
                    proxy.set(Fault::None);
                    *until = None;
                }
            }
            if let Some(server) = &mut node.server
                && let Some(status) = server.process_mut().ended()
            {
                let last = server.output().lines().last().unwrap_or_default().to_owned();
                // It says so when every worker id is another's; anything else is a failure.
                assert_eq!(status.code(), Some(3), "node {} ended: {last}", node.number);
                assert!(last.contains("worker id"), "node {} ended: {last}", node.number);
                node.down(now + AGAIN);
            }
            if node.down_until.is_some_and(|until| until <= now) {
                node.launch(self.home.path().to_owned());
            }
        }
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        for node in &mut self.nodes {
            node.thaw();
            for (proxy, until) in &mut node.links {
                proxy.set(Fault::None);
                *until = None;
            }
        }
    }

    pub(crate) fn all_ready(&self) -> bool {
        self.nodes.iter().all(Node::is_ready)
    }

    pub(crate) fn describe(&self) -> String {
        let tell = |node: &Node| match &node.server {
            Some(server) => format!("node {}: {}", node.number, server.output()),
            None => format!("node {} is down", node.number),
        };
        self.nodes.iter().map(tell).collect::<Vec<_>>().join("\n")
    }

    /// How often a worker id was taken over while its holder was silent.
    pub(crate) fn taken_over(&self) -> usize {
        self.taken_over + self.nodes.iter().map(Node::taken_over).sum::<usize>()
    }

    pub(crate) fn faults(&self) -> String {
        let count = |(what, count): (&&str, &usize)| format!("{count} x {what}");
        self.faults.iter().map(count).collect::<Vec<_>>().join(", ")
    }

    fn note(&mut self, what: &'static str) {
        *self.faults.entry(what).or_default() += 1;
    }

    pub(crate) fn kill(&mut self, number: usize, away: Duration, lose_data: bool) -> String {
        self.note(if lose_data { "killed, data directory lost" } else { "killed" });
        let node = &mut self.nodes[number];
        self.taken_over += node.taken_over();
        if let Some(server) = &mut node.server {
            server.kill();
        }
        node.lives += usize::from(lose_data);
        node.frozen_until = None;
        node.down(Instant::now() + away);
        format!("node {number} killed, lost its data: {lose_data}, back in {away:?}")
    }

    pub(crate) fn stop(&mut self, number: usize, away: Duration) -> String {
        self.note("stopped");
        let node = &mut self.nodes[number];
        node.thaw();
        if let Some(server) = &mut node.server {
            // What takes longer than this is killed, as an init system would.
            server.process_mut().signal("TERM");
            std::thread::sleep(Duration::from_millis(300));
            server.kill();
        }
        self.taken_over += node.taken_over();
        node.down(Instant::now() + away);
        format!("node {number} stopped, back in {away:?}")
    }

    pub(crate) fn freeze(&mut self, number: usize, length: Duration) -> String {
        let node = &mut self.nodes[number];
        let (Some(server), None) = (&mut node.server, node.frozen_until) else {
            return format!("node {number} is down or frozen already");
        };
        server.process_mut().signal("STOP");
        node.frozen_until = Some(Instant::now() + length);
        self.note("frozen");
        format!("node {number} frozen for {length:?}")
    }

    pub(crate) fn disturb(
        &mut self,
        number: usize,
        link: Link,
        fault: usize,
        length: Duration,
    ) -> String {
        self.note("link disturbed");
        let faults = [
            Fault::Cut,
            Fault::Reset,
            Fault::BlackHole,
            Fault::SwallowReplies,
            Fault::Delay(Duration::from_millis(150)),
        ];
        let (proxy, until) = &mut self.nodes[number].links[link as usize];
        proxy.set(faults[fault]);
        *until = Some(Instant::now() + length);
        format!("node {number}: {link:?} {:?} for {length:?}", faults[fault])
    }

    pub(crate) fn crash_database(&mut self) -> String {
        self.note("database crashed");
        self.database.crash_and_restart();
        "the database crashed and is back".into()
    }

    pub(crate) fn crash_registry(&mut self) -> String {
        self.note("registry crashed");
        self.registry.crash_and_restart();
        "the registry crashed and is back".into()
    }
}

/// Of four worker ids, so that there are as many as nodes: whoever starts anew takes what a silent one had.
async fn retire_one(port: u16) {
    let address = ZooKeeper::address(&[port]).parse().expect("an address");
    let (options, here) = (RegistryOptions::default(), Path::new("."));
    let place = RegistryPlace::Zookeeper(address);
    let open = place.open(RegistryKind::ZkRecycle, None, here, &options).await.expect("it opens");
    let at = Circumstances {
        now: SystemClock.wall_millis(),
        layout: LAYOUT.parse().expect("a layout"),
        offline_for: Duration::from_secs(1),
        report_interval: Duration::from_millis(200),
    };
    let used = open.registry.workers().await.expect("it answers");
    let free = (0..4).map(WorkerId::new).find(|id| used.iter().all(|used| used.worker != *id));
    let admin = open.admin.expect("it has one");
    admin.retire(free.expect("three nodes have three"), at).await.expect("nobody has it");
}

impl Node {
    fn launch(&mut self, home: PathBuf) {
        let config = home.join(format!("{}.toml", self.number)).display().to_string();
        let data = home.join(format!("{}-{}", self.number, self.lives));
        let server = LeafServer::launch(SERVER, &data, &["--config", &config], &[]);
        *self.address.lock().expect("no holder of this lock panics") = Some(server.ids());
        self.server = Some(server);
        self.down_until = None;
    }

    fn down(&mut self, until: Instant) {
        *self.address.lock().expect("no holder of this lock panics") = None;
        self.server = None;
        self.down_until = Some(until);
    }

    fn taken_over(&self) -> usize {
        let output = self.server.as_ref().map(LeafServer::output).unwrap_or_default();
        output.matches("its ids stop").count()
    }

    fn thaw(&mut self) {
        if let (Some(server), Some(_)) = (&mut self.server, self.frozen_until.take()) {
            server.process_mut().signal("CONT");
        }
    }

    fn is_ready(&self) -> bool {
        self.server.as_ref().is_some_and(|server| {
            let asked = HttpClient::connect(server.ops());
            asked
                .and_then(|mut client| client.request("GET", "/readyz"))
                .is_ok_and(|ready| ready.body == "ready")
        })
    }
}
