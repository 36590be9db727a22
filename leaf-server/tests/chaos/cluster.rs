//! Three nodes and a guest with real servers, and all faults that hit them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use leaf_core::{Clock, Tag, WorkerId};
use leaf_registry::{RegistryKind, RegistryOptions, RegistryUrl, StoreUrl};
use leaf_segment::NewTag;
use leaf_segment::admin::TagSpec;
use leaf_shape::keys::KeyRing;
use leaf_snowflake::{NodeSettings, SystemClock};
use leaf_testkit::{Fault, FaultProxy, LeafServer, wait_until};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::backends::{Backends, Kinds};
use crate::history::{End, Line, Space};
use crate::node::{AGAIN, Address, Link, Node};

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
pub(crate) const NODES: usize = 3;
/// Number of the node that is there only now and then.
const GUEST: usize = NODES;
const OFFLINE_FOR: Duration = Duration::from_secs(1);
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
const MAX_STEP: i64 = 1000;
const MARGIN: i64 = 100_000;
/// How often the operator looks for nodes that lost their worker id.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const NEVER: Duration = Duration::from_secs(100_000);

pub(crate) struct Cluster {
    /// The machine's processor times at the start of the run.
    processors: Processors,
    /// Declared before `backends` and the directory, so that the nodes are killed first.
    nodes: Vec<Node>,
    backends: Backends,
    _home: tempfile::TempDir,
    start: Instant,
    guest_until: Option<Instant>,
    registry_until: Option<Instant>,
    looked_at: Instant,
    faults: Vec<Line>,
    failovers: i64,
    worker_bits: u32,
}

impl Cluster {
    pub(crate) fn start(runtime: &Runtime, kinds: Kinds) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let backends = Backends::start(kinds, home.path());
        // Few worker ids, so that another node soon takes that of a silent node. Two nodes that
        // issue in the same millisecond under one worker id then repeat an id for certain.
        let worker_bits = if kinds.registry == "zk_normal" { 10 } else { 2 };
        let layout = format!("t41-w{worker_bits}-s12/1ms");
        let proxies = |ports: &[u16]| -> Vec<FaultProxy> {
            let start =
                |port: &u16| runtime.block_on(FaultProxy::start(([127, 0, 0, 1], *port).into()));
            ports.iter().map(start).collect()
        };
        let nodes = (0..=GUEST).map(|number| {
            let (store, registry) =
                (proxies(&backends.store_ports()), proxies(&backends.registry_ports()));
            let ports = |proxies: &[FaultProxy]| -> Vec<u16> {
                proxies.iter().map(|proxy| proxy.address().port()).collect()
            };
            // A guest is a stranger, or where worker ids belong to names the first node's twin.
            let name = if number == GUEST && kinds.bound() { 0 } else { number };
            // Tags that nobody uses for a moment leave.
            let idle = if kinds.idle { "idle = '1s'\nrefresh = '1s'\n" } else { "" };
            let config = format!(
                "name = 'chaos'\nadvertise = '127.0.0.1:{}'\n\
                 [segment]\nstore = '{}'\nmax_step = {MAX_STEP}\nfailover_margin = {MARGIN}\n{idle}\
                 [snowflake]\nregistry = '{}'\nsession_timeout = '1s'\nlayout = '{layout}'\n\
                 offline_for = '1s'\nreport_interval = '200ms'\nrecycle_after = '0s'\n\
                 sequence_start = 0\n[log]\nlevel = 'info,leaf_server=debug,leaf_segment=debug,leaf_snowflake=debug,sqlx=debug,tower=debug'\n",
                9001 + name,
                backends.store_url(&ports(&store)),
                backends.registry_url(&ports(&registry)),
            );
            Node::new(number, home.path(), &config, store, registry)
        });
        let nodes: Vec<Node> = nodes.collect();
        let (guest_until, registry_until) = (None, None);
        let mut cluster = Self {
            nodes,
            backends,
            _home: home,
            start: Instant::now(),
            guest_until,
            registry_until,
            looked_at: Instant::now(),
            faults: Vec::new(),
            failovers: 0,
            processors: Processors::now(),
            worker_bits,
        };
        cluster.make_tables();
        runtime.block_on(cluster.make_tags());
        for node in &mut cluster.nodes[..NODES] {
            node.launch();
        }
        let late = Instant::now() + Duration::from_secs(60);
        wait_until("all nodes are ready", Duration::from_secs(61), || {
            let told = || cluster.nodes.iter().map(Node::describe).collect::<Vec<_>>().join("\n");
            assert!(Instant::now() < late, "not all nodes are ready:\n{}", told());
            cluster.all_ready().then_some(())
        });
        if worker_bits == 2 {
            runtime.block_on(cluster.retire_one(&layout));
        }
        cluster.start = Instant::now();
        cluster
    }

    fn make_tables(&self) {
        let data = self._home.path().join("schema");
        let args = self.nodes[0].arguments();
        let args: Vec<&str> =
            args.iter().map(String::as_str).chain(["schema", "--apply"]).collect();
        let mut schema = LeafServer::process(SERVER, &data, &args, &[]);
        assert!(schema.wait(Duration::from_secs(20)).success(), "{}", schema.output());
    }

    async fn store(&self) -> leaf_registry::OpenStore {
        let url = self.backends.store_url(&self.backends.store_ports());
        let url: StoreUrl = url.parse().expect("a URL");
        url.open(Path::new("."), &leaf_registry::StoreOptions::default()).await.expect("it opens")
    }

    async fn make_tags(&self) {
        let store = self.store().await;
        for (tag, _) in TAGS {
            let step = leaf_core::Step::new(50).expect("a step");
            let new = NewTag::new(Tag::parse(tag).expect("a tag"), step);
            store.store.create(&new).await.expect("it can be made");
        }
        let spec = TagSpec {
            step: Some(leaf_core::Step::new(50).expect("a step")),
            family: true,
            ..TagSpec::default()
        };
        let family = spec.record(Tag::parse("family/*").expect("a tag"), &KeyRing::default());
        store.store.create(&family.expect("a family")).await.expect("it can be made");
        store.store.close().await;
    }

    /// The store's `max_id` of each tag.
    pub(crate) async fn max_ids(&self) -> BTreeMap<Space, i64> {
        let store = self.store().await;
        let mut all = BTreeMap::new();
        for (tag, space) in TAGS {
            let tag = Tag::parse(tag).expect("a tag");
            let record = store.store.tag(&tag).await.expect("it answers");
            all.insert(space, record.expect("it is there").max_id);
        }
        store.store.close().await;
        all
    }

    /// Retires one of four worker ids, so that there are as many as nodes. A node that starts anew
    /// then takes the worker id of a silent one.
    async fn retire_one(&self, layout: &str) {
        let options = RegistryOptions { name: "chaos".into(), ..RegistryOptions::default() };
        let ports = self.backends.registry_ports();
        let url: RegistryUrl = self.backends.registry_url(&ports).parse().expect("a URL");
        let open = url.open(Path::new("."), &options).await.expect("it opens");
        let at = NodeSettings {
            now: SystemClock.wall_millis(),
            layout: layout.parse().expect("a layout"),
            offline_for: OFFLINE_FOR,
            report_interval: REPORT_INTERVAL,
            tolerance: Duration::from_secs(1),
            dry_run: false,
        };
        let used = open.registry.workers().await.expect("it answers");
        let free = (0..4).map(WorkerId::new).find(|id| used.iter().all(|used| used.worker != *id));
        // Where worker ids begin at 1 there are three.
        if let Some(free) = free.filter(|id| id.get() > 0 || url.kind() != RegistryKind::Mysql) {
            open.registry.retire_worker(free, at).await.expect("nobody has it");
        }
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.nodes.iter().map(|node| node.address.clone()).collect()
    }

    pub(crate) fn since_start(&self) -> Instant {
        self.start
    }

    /// Ends faults whose time is over, and starts nodes that must run again.
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        for node in &mut self.nodes {
            let again = if node.number == GUEST { NEVER } else { AGAIN };
            node.tick(now, again);
        }
        if self.backends.kinds().bound() && now - self.looked_at > LOOK_EVERY {
            self.looked_at = now;
            for node in self.nodes[..NODES].iter_mut().filter(|node| node.is_lost()) {
                node.kill(AGAIN, false);
            }
        }
        if self.guest_until.is_some_and(|until| until <= now) {
            self.end_guest();
        }
        if self.registry_until.is_some_and(|until| until <= now) {
            self.registry_until = None;
            self.backends.start_registry();
        }
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.end_guest();
        if self.registry_until.take().is_some() {
            self.backends.start_registry();
        }
        self.nodes.iter_mut().for_each(Node::heal);
    }

    pub(crate) fn all_ready(&self) -> bool {
        self.nodes[..NODES].iter().all(Node::is_ready)
    }

    pub(crate) fn describe(&self) -> String {
        self.nodes[..NODES].iter().map(Node::describe).collect::<Vec<_>>().join("\n")
    }

    /// The end of the history.
    pub(crate) fn end(&self, runtime: &Runtime, seed: u64, length: Duration) -> Line {
        let kinds = self.backends.kinds();
        Line::End(End {
            seed,
            registry: kinds.registry.into(),
            store: kinds.store.into(),
            length: u64::try_from(length.as_micros()).unwrap_or(u64::MAX),
            worker_bits: self.worker_bits,
            offline_for: u64::try_from(OFFLINE_FOR.as_millis()).unwrap_or(u64::MAX),
            max_id: runtime.block_on(self.max_ids()),
            // Both segments, and one on its way; every node, at the end.
            burned_per_event: 3 * MAX_STEP,
            events: (self.faults.len() + NODES + 1) as i64,
            margin: if kinds.can_fail_over() { MARGIN } else { 0 },
            failovers: self.failovers,
            together: kinds.together(),
            stolen: self.processors.stolen(),
        })
    }

    pub(crate) fn take_faults(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.faults)
    }

    /// Writes down that something was done that lasts for so long.
    fn note(&mut self, kind: &str, length: Duration) {
        let from = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let until = from + u64::try_from(length.as_micros()).unwrap_or(0);
        self.faults.push(Line::Fault { kind: kind.into(), from, until });
    }

    pub(crate) fn kill(&mut self, number: usize, away: Duration, lose_data: bool) -> String {
        self.note(if lose_data { "killed with its data" } else { "killed" }, away);
        self.nodes[number].kill(away, lose_data);
        format!("node {number} killed, lost its data: {lose_data}, back in {away:?}")
    }

    pub(crate) fn stop(&mut self, number: usize, away: Duration) -> String {
        self.note("stopped", away);
        self.nodes[number].stop(away);
        format!("node {number} stopped, back in {away:?}")
    }

    pub(crate) fn freeze(&mut self, number: usize, length: Duration) -> String {
        if !self.nodes[number].runs() {
            return format!("node {number} is down or frozen already");
        }
        self.note("frozen", length);
        self.nodes[number].freeze(length);
        format!("node {number} frozen for {length:?}")
    }

    pub(crate) fn set_clock(&mut self, number: usize, offset: &str, length: Duration) -> String {
        self.note("clock set", length);
        self.nodes[number].set_clock(offset, length);
        format!("node {number}: clock {offset} s for {length:?}")
    }

    pub(crate) fn leave_the_log(&mut self, number: usize, length: Duration) -> String {
        self.note("log unread", length);
        self.nodes[number].leave_its_log(Some(length));
        format!("node {number}: nobody reads its log for {length:?}")
    }

    pub(crate) fn fill_the_disk(&mut self, number: usize, length: Duration) -> String {
        self.note("disk full", length);
        self.nodes[number].fill_the_disk(length);
        format!("node {number}: disk full for {length:?}")
    }

    /// Lets the guest in: with nothing, or with a copy of another node's data directory.
    pub(crate) fn invite(&mut self, copy_of: Option<usize>, length: Duration) -> String {
        if self.guest_until.is_some() {
            return "the guest is there already".into();
        }
        let (nodes, guest) = self.nodes.split_at_mut(NODES);
        let guest = &mut guest[0];
        let copied = copy_of.is_some_and(|number| guest.copy_of(&nodes[number]));
        self.guest_until = Some(Instant::now() + length);
        guest.launch();
        self.note(if copied { "a copy beside" } else { "a guest" }, length);
        format!("a guest for {length:?}, a copy of {copy_of:?}: {copied}")
    }

    fn end_guest(&mut self) {
        if self.guest_until.take().is_some() {
            self.nodes[GUEST].kill(NEVER, true);
        }
    }

    pub(crate) fn disturb(
        &mut self,
        number: usize,
        link: Link,
        fault: Fault,
        length: Duration,
    ) -> String {
        self.note("line disturbed", length);
        self.nodes[number].disturb(link, fault, length);
        format!("node {number}: {link:?} {fault:?} for {length:?}")
    }

    pub(crate) fn crash_store(&mut self) -> String {
        let done = self.backends.crash_store();
        if done {
            self.note("store crashed", Duration::ZERO);
        }
        format!("the store crashed and is back: {done}")
    }

    pub(crate) fn fail_over(&mut self, stale: Duration) -> String {
        let done = self.backends.fail_over(stale);
        if done {
            self.note("failover", Duration::ZERO);
            self.failovers += 1;
            for node in &self.nodes {
                node.point(Link::Database, &self.backends.store_ports());
                node.point(Link::Registry, &self.backends.registry_ports());
            }
        }
        format!("failover to a replica that is {stale:?} behind: {done}")
    }

    pub(crate) fn crash_registry(&mut self) -> String {
        let done = self.registry_until.is_none() && self.backends.crash_registry();
        if done {
            self.note("registry crashed", Duration::ZERO);
        }
        format!("the registry crashed and is back: {done}")
    }

    pub(crate) fn stop_registry(&mut self, length: Duration) -> String {
        let done = self.registry_until.is_none() && self.backends.stop_registry();
        if done {
            self.note("registry away", length);
            self.registry_until = Some(Instant::now() + length);
        }
        format!("the registry, or its majority, is away for {length:?}: {done}")
    }
}

const TAGS: [(&str, Space); 2] = [("a", Space::A), ("b", Space::B)];

/// What the processors of this machine did until a moment, in ticks.
#[derive(Debug, Clone, Copy)]
struct Processors {
    busy: u64,
    stolen: u64,
}

impl Processors {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = stat.lines().next().unwrap_or_default();
        let ticks = line.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0));
        let ticks: Vec<u64> = ticks.collect();
        // user, nice, system, idle, iowait, irq, softirq, steal: proc(5).
        let of = |places: &[usize]| places.iter().filter_map(|at| ticks.get(*at)).sum();
        Self { busy: of(&[0, 1, 2, 5, 6]), stolen: of(&[7]) }
    }

    /// The share of the wanted processor time since then that other virtual machines got, from 0 to
    /// 1.
    fn stolen(self) -> f64 {
        let now = Self::now();
        let (busy, stolen) = (now.busy - self.busy, now.stolen - self.stolen);
        stolen as f64 / (busy + stolen).max(1) as f64
    }
}
