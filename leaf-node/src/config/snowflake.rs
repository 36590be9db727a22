//! The section `snowflake`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use leaf_core::{Clock as _, Layout, UnixMillis, UnknownName, WorkerId};
use leaf_registry::{RegistryKind, RegistryUrl};
use leaf_snowflake::{NodeSettings, PeerRule, SystemClock, WorkerRange};
use serde::{Deserialize, Serialize};

use super::span::Span;
use super::{ConfigError, values};

/// Snowflake mode.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Snowflake {
    /// Whether it is on; default true.
    pub enabled: bool,
    /// The registry of worker ids; default `local`: for a single node, or for nodes whose worker
    /// ids the operator assigns. See [`Config::registry`](super::Config::registry).
    #[serde(with = "values::text")]
    pub registry: RegistryUrl,
    /// A file that holds `registry`.
    pub registry_file: Option<PathBuf>,
    /// How long ZooKeeper keeps the session of a node that sends nothing, 1 s to 10 min; default 10
    /// s. A ZooKeeper server may limit this further.
    pub session_timeout: Span,
    /// If a node stops without giving its worker id back, other nodes get that id only this long
    /// after its ceiling: 0 to 7 days; default 1 h. It should exceed the time that a node needs to
    /// restart, so that the node finds its own worker id still free.
    pub recycle_after: Span,
    /// Whether worker ids that a Java Leaf held are given out again. Set it only when no Java Leaf
    /// uses the registry any more; default false.
    pub adopt_java_ids: bool,
    /// For the registry `ordinal`: the host name, whose last digits give the worker id. Default:
    /// this host's name.
    pub host_name: Option<String>,
    /// For the registry `ordinal`: added to the number in the host name; default 0.
    pub ordinal_offset: u32,
    /// The rule by which this node's clock is compared with the other nodes' clocks: `majority`,
    /// `mean` or `off`.
    #[serde(with = "values::text")]
    pub clock_check: ClockCheck,
    /// By how much another node's clock may differ from this node's clock, 1 ms to 1 h; default
    /// 5 s. If too many clocks differ by more, the node claims no worker id, so that a wrong clock
    /// cannot push ids ahead.
    pub max_offset: Span,
    /// How often this node reports to the registry, 100 ms to 60 s; default 3 s.
    pub report_interval: Span,
    /// The longest time that a claim waits until the time of a former holder has passed, 0 to 1 h;
    /// default 15 s. A claim that would have to wait longer fails; the error has the time from
    /// which a claim would succeed.
    pub startup_wait: Span,
    /// The worker id with the registry `local`; if `datacenter_id` is set, the number in that
    /// datacenter.
    pub worker_id: u32,
    /// The datacenter with the registry `local`, if the layout has datacenter bits.
    pub datacenter_id: Option<u32>,
    /// Worker ids by identity, with the registry `local`. If set, `worker_id` is not used.
    pub worker_ids: Option<BTreeMap<String, u32>>,
    /// The worker ids of this registry, like `512..1023`, if another data centre uses the rest.
    /// Default: all.
    #[serde(with = "values::optional_text")]
    pub worker_range: Option<WorkerRange>,
    /// The layout of ids: a preset's name, or a split like `t41-w10-s12/1ms`. All nodes of a
    /// registry must have the same: the registry refuses another, since ids of two layouts can be
    /// equal.
    #[serde(with = "values::text")]
    pub layout: Layout,
    /// The epoch: the instant from which timestamps count, in Unix ms (Java: twepoch). Default: the
    /// epoch of the layout. A later epoch makes smaller ids: never change it under a running
    /// system.
    pub epoch: Option<u64>,
    /// How far the clock may fall back before ids stop; default 1 s. While it is back by less, ids
    /// go on from the last timestamp.
    pub rollback_tolerance: Span,
    /// The largest jump ahead of the clock that ids follow; default 1 h. A larger one must be
    /// confirmed, by the other nodes' clocks or by an operator: following a wrong clock cannot be
    /// undone, since timestamps never fall.
    pub max_step_forward: Span,
    /// How long ids flow while the registry does not answer; default 10 min. If a node vanishes,
    /// others wait for this long plus [`Self::recycle_after`] before they take its worker id.
    pub offline_for: Span,
    /// A tick starts its sequence at a varying number below this, unless the sequence of the tick
    /// before was used up; default 100, as in Java. So ids that are taken modulo a number of shards
    /// spread evenly.
    pub sequence_start: u64,
    /// The directory where a Java Leaf on this machine kept its cache file.
    pub java_cache: Option<PathBuf>,
}

/// The comparison of this node's clock with the clocks of the other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockCheck {
    /// The clocks are compared by this rule.
    By(PeerRule),
    /// The clocks are not compared.
    Off,
}

impl FromStr for ClockCheck {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "majority" => Ok(Self::By(PeerRule::Majority)),
            "mean" => Ok(Self::By(PeerRule::Mean)),
            "off" => Ok(Self::Off),
            _ => Err(UnknownName::new("give majority, mean or off")),
        }
    }
}

impl fmt::Display for ClockCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::By(PeerRule::Majority) => "majority",
            Self::By(PeerRule::Mean) => "mean",
            Self::Off => "off",
        })
    }
}

impl Default for Snowflake {
    fn default() -> Self {
        Self {
            enabled: true,
            registry: RegistryUrl::LOCAL,
            registry_file: None,
            session_timeout: Span::from_secs(10),
            recycle_after: Span::from_secs(3600),
            adopt_java_ids: false,
            host_name: None,
            ordinal_offset: 0,
            clock_check: ClockCheck::By(PeerRule::Majority),
            max_offset: Span::from_secs(5),
            report_interval: Span::from_secs(3),
            startup_wait: Span::from_secs(15),
            worker_id: 0,
            datacenter_id: None,
            worker_ids: None,
            worker_range: None,
            layout: Layout::LEAF,
            epoch: None,
            rollback_tolerance: Span::from_secs(1),
            max_step_forward: Span::from_secs(3600),
            offline_for: Span::from_secs(600),
            sequence_start: 100,
            java_cache: None,
        }
    }
}

impl Snowflake {
    /// The layout with its epoch.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.epoch.map_or(self.layout, |epoch| self.layout.with_epoch(UnixMillis::new(epoch)))
    }

    /// The worker id of `worker_id` and `datacenter_id`.
    #[must_use]
    pub fn worker_id(&self) -> WorkerId {
        let within = |datacenter| self.layout.worker_in(datacenter, self.worker_id);
        self.datacenter_id.and_then(within).unwrap_or(WorkerId::new(self.worker_id))
    }

    /// The nodes' settings and the current time, which commands of administration need. All nodes
    /// are assumed to be configured alike. Make a new value for each command.
    #[must_use]
    pub fn node_settings(&self) -> NodeSettings {
        NodeSettings {
            now: SystemClock.wall_millis(),
            layout: self.layout(),
            offline_for: self.offline_for.duration(),
            report_interval: self.report_interval.duration(),
            tolerance: self.rollback_tolerance.duration(),
            dry_run: false,
        }
    }

    /// The number at the end of the host name, with the offset. A StatefulSet of Kubernetes names
    /// its pods `leaf-0`, `leaf-1` and so on, and never runs two of one name at a time.
    ///
    /// # Errors
    /// The host name ends with no number, or the worker id is above the layout's greatest.
    pub fn ordinal(&self, host_name: &str) -> Result<WorkerId, ConfigError> {
        let host = host_name.split('.').next().unwrap_or_default();
        let digits = host.len() - host.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let number = host[host.len() - digits..].parse::<u32>().ok();
        let worker = number.and_then(|number| number.checked_add(self.ordinal_offset));
        let greatest = self.layout.max_worker();
        match worker.map(WorkerId::new) {
            Some(worker) if worker <= greatest => Ok(worker),
            Some(worker) => Err(ConfigError::new(format!(
                "snowflake: worker id {worker} of host {host} is above {greatest}, the layout's greatest"
            ))),
            None => Err(ConfigError::new(format!(
                "snowflake.registry is ordinal, but the host name {host} ends with no number: run as a \
                 StatefulSet, or set snowflake.host_name"
            ))),
        }
    }

    /// Refuses times out of bounds and worker ids that do not fit the layout. `advertise` is the
    /// node's name where it is configured.
    pub(super) fn check(&self, advertise: Option<&str>) -> Result<(), ConfigError> {
        self.check_worker_ids()?;
        let bounds = [
            ("session_timeout", self.session_timeout, 1000, 600_000),
            ("recycle_after", self.recycle_after, 0, 604_800_000),
            ("max_offset", self.max_offset, 1, 3_600_000),
            ("report_interval", self.report_interval, 100, 60_000),
            ("startup_wait", self.startup_wait, 0, 3_600_000),
        ];
        for (key, span, least, most) in bounds {
            span.check_bounds(&format!("snowflake.{key}"), least, most)?;
        }
        match &self.worker_ids {
            Some(map) => check_map(map, advertise),
            None => Ok(()),
        }
    }

    /// Refuses worker ids and datacenters that the layout has no bits for, and worker ids of the
    /// registry `local` outside of `worker_range`.
    fn check_worker_ids(&self) -> Result<(), ConfigError> {
        let refuse = |text: String| Err(ConfigError::new(text));
        let (mut datacenters, mut greatest) = (0, self.layout.max_worker().get());
        if let Some(datacenter) = self.datacenter_id {
            (datacenters, greatest) = self.layout.datacenter_of(self.layout.max_worker());
            if self.layout.datacenter_bits() == 0 {
                return refuse(format!(
                    "snowflake.datacenter_id is {datacenter}, but the layout names no datacenter: \
                     use layout twitter, or one with a d field"
                ));
            }
        }
        if let Some(datacenter) = self.datacenter_id.filter(|given| *given > datacenters) {
            return refuse(format!(
                "snowflake: datacenter {datacenter} is above {datacenters}, the layout's greatest"
            ));
        }
        if let Some(range) = self.worker_range {
            let greatest = self.layout.max_worker();
            if range.last() > greatest {
                return refuse(format!(
                    "snowflake.worker_range ends at {}, above {greatest}, the layout's greatest worker id",
                    range.last()
                ));
            }
            let local = self.registry.kind() == RegistryKind::Local;
            let own = match &self.worker_ids {
                Some(map) => map.values().map(|id| WorkerId::new(*id)).collect(),
                None => vec![self.worker_id()],
            };
            if let Some(outside) = own.iter().find(|id| local && !range.contains(**id)) {
                return refuse(format!(
                    "snowflake: worker id {outside} is outside snowflake.worker_range {range}"
                ));
            }
        }
        let named = self.worker_ids.iter().flatten().map(|(who, id)| (who.as_str(), *id));
        for (who, id) in named.chain([("worker_id", self.worker_id)]) {
            if id > greatest {
                return refuse(format!(
                    "snowflake: worker id {id} of {who} is above {greatest}, the layout's greatest"
                ));
            }
        }
        Ok(())
    }
}

/// Refuses a map without the name in `advertise`, or in which two names have one worker id: their
/// ids would repeat.
fn check_map(map: &BTreeMap<String, u32>, advertise: Option<&str>) -> Result<(), ConfigError> {
    let refuse = |text: &str| Err(ConfigError::new(text));
    // Without it the name is found later, and looked up then.
    if advertise.is_some_and(|own| !map.contains_key(own)) {
        return refuse("advertise: this name is not in snowflake.worker_ids");
    }
    let mut holders = BTreeMap::new();
    for (who, id) in map {
        if let Some(other) = holders.insert(id, who) {
            return refuse(&format!(
                "snowflake.worker_ids: {other} and {who} both have {id}; ids would repeat"
            ));
        }
    }
    Ok(())
}
