//! Code that the ZooKeeper registries share (the session, the fences, the liveness of nodes), and
//! the store of `ordinal` in ZooKeeper.
//!
//! Leaf's own znodes are under `/snowflake/{name}`, where the Java programs keep their trees:
//! `fence/{N}`, PERSISTENT and never deleted, and `temporary/{identity}`, EPHEMERAL.

mod error;
mod fences;
mod liveness;
mod session;
mod workers;

pub(crate) use fences::{Fences, Znode, recorded, version};
pub(crate) use session::{Connected, Session};
use workers::ZkWorkers;

use crate::host_list::HostList;
use crate::zk_normal::ZkNormal;
use crate::zk_recycle::ZkRecycle;
use crate::{OpenRegistry, RegistryKind, RegistryOptions};

/// Opens a registry of this kind on these servers. They are not contacted yet.
pub(crate) fn open(
    servers: &HostList,
    kind: RegistryKind,
    options: &RegistryOptions,
) -> OpenRegistry {
    let session = Session::new(servers.clone(), options.session_timeout);
    let (name, interval) = (options.name.as_str(), options.report_interval);
    match kind {
        RegistryKind::ZkNormal => {
            OpenRegistry::new(ZkNormal::new(session, name, interval), kind, options)
        }
        RegistryKind::ZkRecycle => {
            OpenRegistry::new(ZkRecycle::new(session, name, interval), kind, options)
        }
        _ => OpenRegistry::new(ZkWorkers::new(session, name, interval), kind, options),
    }
}
