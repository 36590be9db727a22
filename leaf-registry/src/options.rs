//! Options of stores and registries, besides their location.

use std::fmt;
use std::time::Duration;

use leaf_snowflake::{ClaimPolicy, Identity, WorkerRange};

use crate::local::LocalWorkers;
use crate::setting::SettingError;

/// Options of a store, besides its location.
///
/// ```
/// use leaf_registry::StoreOptions;
///
/// assert_eq!(StoreOptions::default().failover_margin, Some(10_000_000));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// The least number of ids by which the failover guard advances every tag when another server
    /// of MySQL, MariaDB or PostgreSQL answers than before; it must be more than a failover can
    /// lose. A tag in strict order with fewer than 2^40 numbers has its own margin instead: a tenth
    /// of them plus one, at most 10,000,000. `None` turns the guard off. Default 10,000,000, ten
    /// times the greatest dynamic step.
    pub failover_margin: Option<i64>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { failover_margin: Some(10_000_000) }
    }
}

/// A kind of worker registry.
///
/// In `local`, `ordinal`, `zk_normal` and `mysql` a worker id is bound to one node. In the other
/// kinds any node may claim a free worker id, and another node may get it later.
/// See [`ClaimPolicy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryKind {
    /// Worker ids from the configuration.
    Local,
    /// The worker id is the number at the end of the host name.
    Ordinal,
    /// One worker id for each name, for ever, in ZooKeeper; shared with the original Java Leaf.
    ZkNormal,
    /// Worker ids from pools in ZooKeeper, shared with the community fork.
    ZkRecycle,
    /// In MySQL or MariaDB, with a mirror in the community fork's table.
    Mysql,
    /// In a store of another kind, by the name of that kind, like `postgres`.
    Store(&'static str),
    /// In the segment store, of whichever kind it is; see
    /// [`RegistryUrl::in_store`](crate::RegistryUrl::in_store).
    SegmentStore,
}

/// Writes the name of the kind as the documentation spells it, like `zk_normal`.
impl fmt::Display for RegistryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Ordinal => "ordinal",
            Self::ZkNormal => "zk_normal",
            Self::ZkRecycle => "zk_recycle",
            Self::Mysql => "mysql",
            Self::Store(name) => name,
            Self::SegmentStore => "store",
        })
    }
}

/// Options of a registry, besides its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryOptions {
    /// The name of the cluster of Leaf nodes (Java: `leaf.name`), part of the paths in ZooKeeper
    /// and etcd. Letters, digits and `-_.`.
    pub name: String,
    /// How often a holder reports. In SQL databases and etcd, a node that has not reported for
    /// three of these intervals no longer counts as alive: other nodes do not compare their clocks
    /// with it.
    pub report_interval: Duration,
    /// How long ZooKeeper keeps this node's session without a message from the node.
    pub session_timeout: Duration,
    /// The time that must pass after the ceiling of a worker id that was not released, before
    /// another node may get it. In `mysql`, where worker ids belong to identities, this also
    /// applies to a released worker id.
    pub recycle_after: Duration,
    /// Whether worker ids that Java Leafs held are given out again. Only for a registry that no
    /// Java Leaf uses any more.
    pub adopt_java_ids: bool,
    /// The worker ids that this registry gives out, so that another registry can give out the
    /// others; `None`: all.
    pub worker_range: Option<WorkerRange>,
    /// The configured worker ids, used only in `local` and `ordinal`; in `ordinal` the number of
    /// this node's host. With `None`, `ordinal` can be opened for administration only, and `local`
    /// not at all.
    pub workers: Option<LocalWorkers>,
    /// The address at which this node answers HTTP. `None`: the node's identity is that address.
    pub address: Option<Identity>,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        Self {
            name: "leaf".into(),
            report_interval: Duration::from_secs(3),
            session_timeout: Duration::from_secs(10),
            recycle_after: Duration::from_secs(3600),
            adopt_java_ids: false,
            worker_range: None,
            workers: None,
            address: None,
        }
    }
}

impl RegistryOptions {
    /// Checks that the name can be part of a path.
    ///
    /// # Errors
    /// The text tells the operator which names are valid.
    ///
    /// ```
    /// use leaf_registry::RegistryOptions;
    ///
    /// assert!(RegistryOptions::check_name("shop-eu.1").is_ok());
    /// assert!(RegistryOptions::check_name("shop/eu").is_err(), "it would be two folders in ZooKeeper");
    /// ```
    pub fn check_name(name: &str) -> Result<(), SettingError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(SettingError::new(
                "give 1 to 64 letters, digits, '-', '_' or '.', not starting with '.'",
            ));
        }
        Ok(())
    }

    /// Which nodes may claim which worker ids in a registry of this kind.
    pub(crate) fn policy(&self, kind: RegistryKind) -> ClaimPolicy {
        let bound =
            matches!(kind, RegistryKind::ZkNormal | RegistryKind::Mysql | RegistryKind::Ordinal);
        let fixed = match self.workers {
            Some(LocalWorkers::Fixed(worker)) if kind == RegistryKind::Ordinal => Some(worker),
            _ => None,
        };
        ClaimPolicy {
            bound,
            fixed,
            range: self.worker_range,
            recycle_after: self.recycle_after,
            adopt_java_ids: self.adopt_java_ids,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_a_part_of_a_path() {
        assert!(RegistryOptions::check_name("my-leaf.1").is_ok());
        for bad in ["", "a/b", "..", "a b"] {
            assert!(RegistryOptions::check_name(bad).is_err(), "{bad}");
        }
    }
}
