//! The section `snowflake`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use leaf_core::{Layout, UnixMillis, WorkerId};
use serde::{Deserialize, Serialize};

use super::span::Span;
use super::{ConfigError, values};

/// Snowflake mode.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Snowflake {
    #[serde(deserialize_with = "values::boolean")]
    pub(crate) enabled: bool,
    /// Where worker ids come from: `local`.
    #[serde(with = "values::text")]
    pub(crate) registry: Registry,
    /// The worker id of `local`; with `datacenter_id`, the one within the datacenter.
    #[serde(deserialize_with = "values::whole_number")]
    pub(crate) worker_id: u32,
    /// The datacenter of `local`, in a layout that names one.
    #[serde(deserialize_with = "values::optional_whole_number")]
    pub(crate) datacenter_id: Option<u32>,
    /// Worker ids of `local` by identity; then `worker_id` is not used.
    #[serde(deserialize_with = "values::whole_numbers")]
    pub(crate) worker_ids: Option<BTreeMap<String, u32>>,
    /// How the bits are split: a preset's name, or a split like `t41-w10-s12/1ms`.
    #[serde(with = "values::text")]
    pub(crate) layout: Layout,
    /// What timestamps count from, Unix ms (Java: twepoch). Default: the layout's own.
    #[serde(deserialize_with = "values::optional_whole_number")]
    pub(crate) epoch: Option<u64>,
    /// How far the clock may fall back before ids stop.
    pub(crate) rollback_tolerance: Span,
    /// How far the clock may jump ahead and still be followed.
    pub(crate) max_step_forward: Span,
    /// How long ids flow without the registry.
    pub(crate) offline_for: Span,
    /// A quiet tick starts its sequence below this.
    #[serde(deserialize_with = "values::whole_number")]
    pub(crate) sequence_start: u64,
    /// Where a Java Leaf on this machine kept its cache file.
    pub(crate) java_cache: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registry {
    Local,
}

impl FromStr for Registry {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name == "local" { Ok(Self::Local) } else { Err("unknown registry: there is `local`") }
    }
}

impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("local")
    }
}

impl Default for Snowflake {
    fn default() -> Self {
        Self {
            enabled: true,
            registry: Registry::Local,
            worker_id: 0,
            datacenter_id: None,
            worker_ids: None,
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
    pub(crate) fn layout(&self) -> Layout {
        self.epoch.map_or(self.layout, |epoch| self.layout.with_epoch(UnixMillis::new(epoch)))
    }

    /// The worker id of `worker_id` and `datacenter_id`, which [`Self::check`] saw to fit.
    pub(crate) fn worker_id(&self) -> WorkerId {
        let within = |datacenter| self.layout.worker_in(datacenter, self.worker_id);
        self.datacenter_id.and_then(within).unwrap_or(WorkerId::new(self.worker_id))
    }

    pub(super) fn check(&self, advertise: Option<&str>) -> Result<(), ConfigError> {
        self.check_worker_ids()?;
        match &self.worker_ids {
            Some(map) => check_map(map, advertise),
            None => Ok(()),
        }
    }

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

fn check_map(map: &BTreeMap<String, u32>, advertise: Option<&str>) -> Result<(), ConfigError> {
    let refuse = |text: &str| Err(ConfigError::new(text));
    let Some(own) = advertise else {
        return refuse("snowflake.worker_ids needs `advertise`: which one is this node?");
    };
    if !map.contains_key(own) {
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
