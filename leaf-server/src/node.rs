//! What this server serves from, and what its listeners share.
//!
//! `leaf_node::Node` issues ids; this one adds what a server needs around it: limits that a reload
//! may change, counts of waiting requests, the time zone of answers, and whether it is stopping.

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

use crate::access::{Access, read_alone};
use crate::audit::Audit;
use crate::http::Feed;
use crate::live::Live;
use crate::metrics::{Requests, TagMemory, data_thread};
use crate::peers::HttpPeers;
use crate::serve::{DataPlane, Keeping, Pressure, Share, Tls};
use crate::traffic::Traffic;

/// How long a store may take to show the rules of traffic.
const RULES: Duration = Duration::from_secs(1);
/// How long a store may take to say how it is set up.
const LOOK: Duration = Duration::from_secs(10);

/// A node with listeners.
///
/// One per process, shared by all listeners.
pub(crate) struct Node {
    pub(crate) config: Config,
    /// What a reload may change.
    pub(crate) live: Arc<Live>,
    /// Who may ask for what.
    pub(crate) access: Access,
    /// What operators have changed.
    pub(crate) audit: Arc<Audit>,
    /// Changes under way, whether their clients wait or not.
    pub(crate) changes: TaskTracker,
    /// How many ids tags and callers get.
    pub(crate) traffic: Traffic,
    /// How many listeners for ids there are.
    listeners: u32,
    /// Where the ops listener is.
    pub(crate) ops: SocketAddr,
    pub(crate) layout: Layout,
    /// Of the times in answers.
    pub(crate) time_zone: TimeZone,
    /// Where ids come from.
    pub(crate) ids: leaf_node::Node,
    pub(crate) started: Instant,
    /// Whether an operator has taken it out of service.
    drained: AtomicBool,
    /// Whether it was told to stop.
    leaving: AtomicBool,
    /// Whether connections end.
    stopping: AtomicBool,
    /// How many requests are waiting for ids.
    pub(crate) waiting: AtomicUsize,
    /// How many requests are waiting until it is known whether their tag exists.
    pub(crate) looking_up: AtomicUsize,
    /// How much each thread of the data plane has to do.
    pub(crate) pressures: Arc<[Pressure]>,
    /// How many requests were answered and refused, how long that took, and why.
    pub(crate) requests: Requests,
    /// The certificates of the listeners, where one of them encrypts.
    pub(crate) tls: Option<Arc<Tls>>,
    /// What viewers of the dashboard are sent.
    pub(crate) feed: Feed,
    /// What the page of metrics told of tags.
    pub(crate) tag_memory: TagMemory,
    /// Why stores may lose what they have acknowledged, as they said last: a text for each store and
    /// reason.
    store_losses: Mutex<Vec<String>>,
    /// The clocks of other nodes, as they were read last; empty where nobody is asked or answers.
    peer_clocks: Mutex<Vec<PeerClock>>,
    /// The other nodes of the registry, where there is one.
    pub(crate) peers: Option<Arc<HttpPeers>>,
    /// The health, and when it was looked at.
    seen_health: Mutex<Option<(Instant, Health)>>,
}

impl Node {
    /// Opens what the configuration names. `ids` and `ops` are the listeners' addresses,
    /// `listeners` tells how many there are for ids.
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

    /// How a listener for ids keeps its connections. Unless idle ones may stay, a silent one ends
    /// after 45 to 90 s.
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

    /// Sets whether an operator has drained this node. As long as it is drained it says that it is not ready, so that
    /// balancers send it nothing new; all else goes on.
    pub(crate) fn drain(&self, drained: bool) {
        self.drained.store(drained, Ordering::Relaxed);
    }

    /// Whether an operator has taken it out of service.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Relaxed)
    }

    /// From now on this node says that it stops, so that balancers send nothing new. Everything else
    /// goes on.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// From now on answers announce that their connection closes.
    pub(crate) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// How much the thread that asks has to do; `None` for one that is not of the data plane.
    pub(crate) fn pressure_here(&self) -> Option<&Pressure> {
        self.pressures.get(data_thread()?)
    }

    /// Whether any thread of the data plane has been overloaded for a while.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.pressures.iter().any(Pressure::lasts)
    }

    /// Whether connections end.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Reads the files of certificates again.
    pub(crate) async fn read_certificates(&self) {
        if let Some(tls) = &self.tls {
            let reading = Arc::clone(tls);
            // A disk that hangs must not hold up a reload.
            if read_alone(&tls.reading, move || reading.read_again()).await.is_none() {
                tls.not_read();
            }
        }
    }

    /// Asks the stores whether they may lose what they acknowledge. One that does not answer has not
    /// changed.
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

    /// Reads the rules of traffic; tells whether the store has answered. While it is away those of before
    /// stay in force.
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

    /// Reads the clocks of other nodes; tells whether this node is one that they would ask.
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

    /// Whether this node could answer within the last second. Looking at all tags is not for the
    /// data plane.
    pub(crate) fn health_lately(&self) -> Health {
        let mut seen = self.seen_health.lock().expect("no holder of this lock panics");
        match &*seen {
            Some((at, health)) if at.elapsed() < Duration::from_secs(1) => health.clone(),
            _ => seen.insert((Instant::now(), self.health())).1.clone(),
        }
    }

    /// Whether this node can answer now.
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
        let refused = reasons.iter_mut().rfind(|reason| reason.code == HealthCode::TagRefused);
        if let (Some(reason), Some(segments)) = (refused, self.ids.segments()) {
            let totals: Vec<_> = segments.iter().map(SegmentGenerator::totals).collect();
            let hint = hints::of_refused(&totals);
            reason.text = hints::with(&reason.text, hint.as_deref());
        }
        reasons
    }
}

/// The time zone of decoded timestamps.
///
/// # Errors
/// The configured one, or that of `TZ`, is unknown. A host without a zone has UTC.
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

/// How the clocks of the other nodes are asked for.
pub(crate) fn peers(config: &Config, registry: Registry, own: Identity) -> Arc<dyn Peers> {
    Arc::new(HttpPeers::new(config.clone(), registry, own))
}
