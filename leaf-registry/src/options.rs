//! What may be chosen about stores and registries, besides where they are.

use std::fmt;
use std::time::Duration;

use leaf_snowflake::{ClaimPolicy, Identity, WorkerRange};

use crate::local::LocalWorkers;
use crate::setting::SettingError;

/// What may be chosen about a store, besides where it is.
///
/// ```
/// use leaf_registry::StoreOptions;
///
/// assert_eq!(StoreOptions::default().failover_margin, Some(10_000_000));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// By how many ids every tag is advanced at least when MySQL, MariaDB or PostgreSQL answers as
    /// another server than before: more than a failover can lose. A tag in strict order with fewer
    /// than 2^40 numbers has a margin of its own instead: a tenth of them, at most 10,000,000.
    /// `None` turns that guard off. Default 10,000,000, ten times the greatest dynamic step.
    pub failover_margin: Option<i64>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { failover_margin: Some(10_000_000) }
    }
}

/// A kind of worker registry.
///
/// In `local`, `ordinal`, `zk_normal` and `mysql` a worker id is bound to one node. In the others any
/// node may take a free one, and another node gets it later.
/// See [`ClaimPolicy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryKind {
    /// From the configuration.
    Local,
    /// The number at the end of the host name.
    Ordinal,
    /// By name, for ever, in ZooKeeper: as the original Java Leaf.
    ZkNormal,
    /// From pools in ZooKeeper: as the community fork.
    ZkRecycle,
    /// In MySQL or MariaDB, copied into the community fork's table.
    Mysql,
    /// In PostgreSQL.
    Postgres,
    /// In a file that several processes of one host share.
    Sqlite,
    /// In etcd.
    Etcd,
    /// That of the segment store, see [`RegistryUrl::in_store`](crate::RegistryUrl::in_store).
    Store,
}

/// The name of the kind, as the documentation has it: `zk_normal`.
impl fmt::Display for RegistryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Ordinal => "ordinal",
            Self::ZkNormal => "zk_normal",
            Self::ZkRecycle => "zk_recycle",
            Self::Mysql => "mysql",
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
            Self::Etcd => "etcd",
            Self::Store => "store",
        })
    }
}

/// What may be chosen about a registry, besides where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryOptions {
    /// The name of the cluster of Leaf nodes (Java: `leaf.name`), part of the paths in ZooKeeper
    /// and etcd. Letters, digits and `-_.`.
    pub name: String,
    /// How often a holder reports. In SQL databases and etcd a node that was silent for three of
    /// these is no longer asked for its clock.
    pub report_interval: Duration,
    /// How long ZooKeeper keeps a session without hearing of it.
    pub session_timeout: Duration,
    /// A worker id that was not released is given out again this long after its ceiling has passed.
    /// In `mysql`, where worker ids belong to identities, a released one waits as long, too.
    pub recycle_after: Duration,
    /// Whether worker ids that Java Leafs held are given out again. Only for a registry that no
    /// Java Leaf uses any more.
    pub adopt_java_ids: bool,
    /// The worker ids that this registry gives out, so that another registry can give out the
    /// others; `None`: all.
    pub worker_range: Option<WorkerRange>,
    /// Which worker ids nodes have, in `local` by their identity, and in `ordinal` this node by the
    /// number of its host; `None`: worker ids are administered only.
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
    /// Whether the name can be part of a path.
    ///
    /// # Errors
    /// A text for the operator.
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

    /// Who may take what in a registry of this kind.
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
