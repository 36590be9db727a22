//! The state that all listeners of a server share.
//!
//! `leaf_node::Node` issues ids. [`Node`] adds what a server needs besides: limits that a reload
//! may change, counts of waiting requests, the time zone of answers, and whether the server is
//! stopping.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use anyhow::Result;
use jiff::tz::TimeZone;
use leaf_core::{Health, HealthCode, HealthReason, Layout};
use leaf_node::config::{Config, ConfigError};
pub(crate) use leaf_node::{Snowflake, Store};
use leaf_node::{Surroundings, hints, tokens};
use leaf_registry::Note;
use leaf_segment::SegmentGenerator;
use leaf_snowflake::{Identity, PeerClock, Peers, Registry};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::access::Access;
use crate::audit::Audit;
use crate::http::Feed;
use crate::live::Live;
use crate::metrics::{Requests, TagMemory, data_thread};
use crate::peers::HttpPeers;
use crate::serve::{DataPlane, Keeping, Pressure, Share, Tls};
use crate::traffic::Traffic;

/// How long a store may take to show the rules of traffic.
const RULES: Duration = Duration::from_secs(1);
/// How long a store may take to tell whether it may lose what it has acknowledged.
const LOOK: Duration = Duration::from_secs(10);

/// A node with listeners.
///
/// There is one for each server, shared by all its listeners.
pub(crate) struct Node {
    pub(crate) config: Config,
    /// The configuration in force, whose live keys a reload may change.
    pub(crate) live: Arc<Live>,
    /// The callers that this node knows, and their roles.
    pub(crate) access: Access,
    /// The audit log: which changes operators have asked for.
    pub(crate) audit: Arc<Audit>,
    /// Changes by operators that are under way, also those whose clients no longer wait.
    pub(crate) changes: TaskTracker,
    /// The rules of traffic: how many ids a second tags and callers get.
    pub(crate) traffic: Traffic,
    /// How many listeners for ids there are.
    listeners: u32,
    /// The address of the ops listener.
    pub(crate) ops: SocketAddr,
    pub(crate) layout: Layout,
    /// The time zone of the times in answers.
    pub(crate) time_zone: TimeZone,
    /// The part of the node that issues ids.
    pub(crate) ids: leaf_node::Node,
    pub(crate) started: Instant,
    /// Whether an operator has drained this node.
    drained: AtomicBool,
    /// Whether the server has begun to stop: it reports that it is not ready, but still serves.
    leaving: AtomicBool,
    /// Whether connections are being ended: each answer announces that its connection closes.
    stopping: AtomicBool,
    /// How many requests are waiting for ids.
    pub(crate) waiting: AtomicUsize,
    /// How many requests are waiting until it is known whether their tag exists.
    pub(crate) looking_up: AtomicUsize,
    /// The measured load of each thread of the data plane.
    pub(crate) pressures: Arc<[Pressure]>,
    /// Counts of requests: how many were answered and how long that took, how many were refused and
    /// why.
    pub(crate) requests: Requests,
    /// The certificates of the listeners; `None` if no listener uses TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// The stream of lines for viewers of the dashboard.
    pub(crate) feed: Feed,
    /// The counts of tags that the page of metrics showed last, so that the next page shows no
    /// lower ones.
    pub(crate) tag_memory: TagMemory,
    /// Why stores may lose what they have acknowledged, as they last reported: a text for each
    /// store and reason.
    store_losses: Mutex<Vec<String>>,
    /// The clocks of other nodes, as last read; empty if no node was asked or none answered.
    peer_clocks: Mutex<Vec<PeerClock>>,
    /// The other nodes of the registry; `None` if this node does not read their clocks.
    pub(crate) peers: Option<Arc<HttpPeers>>,
    /// The health that [`Node::health_lately`] last found, and when.
    seen_health: Mutex<Option<(Instant, Health)>>,
}

impl Node {
    /// Opens the stores, the registry and the files that the configuration names. `ids` is the
    /// address of the listener for ids over HTTP, `ops` that of the ops listener; `listeners` is
    /// the number of listeners for ids.
    pub(crate) async fn open(
        config: &Config,
        live: Arc<Live>,
        ids: SocketAddr,
        ops: SocketAddr,
        listeners: u32,
    ) -> Result<Self> {
        let access = Access::new(config, &tokens::read(config)?);
        let found = OnceLock::new();
        let peers = |registry, own| -> Arc<dyn Peers> {
            let peers = || Arc::new(HttpPeers::new(config.clone(), registry, own));
            Arc::clone(found.get_or_init(peers)) as _
        };
        let around = Surroundings { http: Some(ids), peers: Some(&peers) };
        let ids = leaf_node::Node::open(config, around).await?;
        let time_zone = time_zone(config)?;
        let threads = DataPlane::threads(config.http.threads);
        Ok(Self {
            config: config.clone(),
            live,
            access,
            audit: Audit::new(&config.data_dir),
            changes: TaskTracker::new(),
            traffic: Traffic::new(config.segment.enabled),
            listeners,
            ops,
            layout: config.snowflake.layout(),
            time_zone,
            ids,
            started: Instant::now(),
            drained: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            looking_up: AtomicUsize::new(0),
            pressures: (0..threads).map(|_| Pressure::default()).collect(),
            requests: Requests::new(threads),
            tls: Tls::open(config)?,
            feed: Feed::default(),
            tag_memory: TagMemory::default(),
            store_losses: Mutex::default(),
            peer_clocks: Mutex::default(),
            peers: found.into_inner(),
            seen_health: Mutex::default(),
        })
    }

    /// The rules by which a listener for ids keeps its connections. A silent connection ends after
    /// 45 to 90 s, unless idle ones may stay.
    pub(crate) const fn keeping(&self, listener: &'static str, idle_stays: bool) -> Keeping {
        Keeping {
            listener,
            sweep_every: Duration::from_secs(15),
            evict_after: 1,
            evict_at_once: false,
            idle_stays,
            files: Share::Large(self.listeners),
        }
    }

    /// Sets whether an operator has drained this node. While it is drained, it reports that it is
    /// not ready, so that balancers send it no new requests; everything else goes on.
    pub(crate) fn drain(&self, drained: bool) {
        self.drained.store(drained, Ordering::Relaxed);
    }

    /// Whether an operator has drained this node.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Relaxed)
    }

    /// Makes this node report, from now on, that it is stopping, so that balancers send it no new
    /// requests. Everything else goes on.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Makes each answer announce, from now on, that its connection closes.
    pub(crate) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// The pressure of the calling thread; `None` if it is not a thread of the data plane.
    pub(crate) fn pressure_here(&self) -> Option<&Pressure> {
        self.pressures.get(data_thread()?)
    }

    /// Whether any thread of the data plane has been overloaded for a while.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.pressures.iter().any(Pressure::lasts)
    }

    /// Whether connections are being ended, see [`Self::begin_stop`].
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Reads the files of certificates again.
    pub(crate) async fn read_certificates(&self) {
        if let Some(tls) = &self.tls {
            tls.read_again().await;
        }
    }

    /// Asks the stores whether they may lose what they have acknowledged. If a store does not
    /// answer, its last report is kept.
    pub(crate) async fn look_for_losses(&self) {
        let Some(stores) = self.ids.stores() else { return };
        let mut found = Vec::new();
        for store in stores.iter() {
            let asked = tokio::time::timeout(LOOK, store.open.admin.losses()).await;
            let url = store.url.to_string();
            match asked {
                Ok(Ok(losses)) => {
                    found.extend(losses.iter().map(|why| format!("segment store {url}: {why}")));
                }
                Ok(Err(_)) | Err(_) => {
                    let before = self.losses();
                    let own = before.iter().filter(|text| text.contains(&format!("{url}: ")));
                    found.extend(own.cloned());
                }
            }
        }
        *self.losses() = found;
    }

    /// Reads the rules of traffic from the store; returns whether it answered. If it did not, the
    /// rules that were read before stay in force.
    pub(crate) async fn read_traffic(&self) -> bool {
        let Some(stores) = self.ids.stores() else { return true };
        let note = stores.rest().open.admin.note(Note::Traffic);
        match tokio::time::timeout(RULES, note).await {
            Ok(Ok(text)) => self.traffic.follow(text.as_deref()),
            // It will not show them later either: its user may not read that table, say.
            Ok(Err(error)) if !error.retryable() => self.traffic.has_none(),
            Ok(Err(_)) | Err(_) => return false,
        }
        true
    }

    fn losses(&self) -> MutexGuard<'_, Vec<String>> {
        self.store_losses.lock().expect("no holder of this lock panics")
    }

    /// Reads the clocks of the other nodes. Returns `false`, and reads none, while this node has no
    /// lease that the registry has confirmed.
    pub(crate) async fn read_peer_clocks(&self) -> bool {
        let Some(snowflake) = self.ids.snowflake().filter(|it| it.generator.view().confirmed)
        else {
            self.peer_clocks().clear();
            return false;
        };
        match snowflake.generator.peer_clocks().await {
            Ok(read) => *self.peer_clocks() = read,
            Err(error) => {
                tracing::debug!("{error}; the clocks of other nodes are not read");
                self.peer_clocks().clear();
            }
        }
        true
    }

    /// The clocks of other nodes, as they were read last.
    pub(crate) fn peer_clocks(&self) -> MutexGuard<'_, Vec<PeerClock>> {
        self.peer_clocks.lock().expect("no holder of this lock panics")
    }

    /// The health of this node, up to one second old. For the data plane, which must not look at
    /// all tags itself, as [`Self::health`] does.
    pub(crate) fn health_lately(&self) -> Health {
        let mut seen = self.seen_health.lock().expect("no holder of this lock panics");
        match &*seen {
            Some((at, health)) if at.elapsed() < Duration::from_secs(1) => health.clone(),
            _ => seen.insert((Instant::now(), self.health())).1.clone(),
        }
    }

    /// The health of this node now: whether it can issue ids, and what is wrong.
    pub(crate) fn health(&self) -> Health {
        let health = match self.ids.health() {
            Health::Ready => Health::Ready,
            Health::Degraded(reasons) => Health::Degraded(self.hinted(reasons)),
            Health::NotReady(reasons) => Health::NotReady(self.hinted(reasons)),
        };
        let losses = self.losses().clone();
        let losses = losses.into_iter().map(|why| Health::degraded(HealthCode::StoreMayLose, why));
        let health = losses.fold(health, Health::and);
        let out = |code, text| Health::not_ready(code, text);
        if self.leaving.load(Ordering::Relaxed) {
            out(HealthCode::Stopping, "stopping").and(health)
        } else if self.is_drained() {
            let text = "drained by an operator, until DELETE /v1/drain on the ops listener";
            out(HealthCode::Drained, text).and(health)
        } else {
            health
        }
    }

    /// Adds to each reason what an operator can do about it, where something can be done.
    fn hinted(&self, mut reasons: Vec<HealthReason>) -> Vec<HealthReason> {
        let refusal = self.ids.snowflake().and_then(|mode| mode.generator.claim_refusal());
        if let Some(refusal) = refusal {
            let told = format!("snowflake: {refusal}");
            for reason in reasons.iter_mut().filter(|reason| reason.text == told) {
                reason.text = hints::with(&told, hints::of(&refusal));
            }
        }
        for reason in reasons.iter_mut().filter(|reason| reason.code == HealthCode::Clock) {
            reason.text = hints::with(&reason.text, hints::of_clock(&reason.text));
        }
        let refused = reasons.iter_mut().rfind(|reason| reason.code == HealthCode::TagRefused);
        if let (Some(reason), Some(segments)) = (refused, self.ids.segments()) {
            let totals: Vec<_> = segments.iter().map(SegmentGenerator::totals).collect();
            let hint = hints::of_refused(&totals);
            reason.text = hints::with(&reason.text, hint.as_deref());
        }
        reasons
    }
}

/// The time zone of decoded timestamps: the configured one, else the host's, else UTC.
///
/// # Errors
/// The configured time zone, or the one that `TZ` names, is unknown.
pub(crate) fn time_zone(config: &Config) -> Result<TimeZone, ConfigError> {
    if let Some(name) = &config.time_zone {
        let zone = TimeZone::get(name);
        return zone.map_err(|error| ConfigError::new(format!("time_zone: {error}")));
    }
    match TimeZone::try_system() {
        Ok(zone) => Ok(zone),
        Err(_) if std::env::var_os("TZ").is_some_and(|zone| !zone.is_empty()) => {
            Err(ConfigError::new(
                "TZ names no time zone: correct it, or set time_zone, like Asia/Shanghai",
            ))
        }
        Err(_) => Ok(TimeZone::UTC),
    }
}

/// The other nodes of a registry, whose clocks this node reads over HTTP.
pub(crate) fn peers(config: &Config, registry: Registry, own: Identity) -> Arc<dyn Peers> {
    Arc::new(HttpPeers::new(config.clone(), registry, own))
}
