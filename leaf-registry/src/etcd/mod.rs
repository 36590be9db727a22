//! Segments and worker ids in etcd: a majority agrees on each write, so that no failover loses one.

mod administration;
mod cluster;
mod config;
mod error;
mod liveness;
mod reading;
mod record;
mod store;
mod workers;

use leaf_segment::{StoreError, StoreErrorKind};

use self::store::EtcdStore;
use self::workers::EtcdWorkers;
use crate::backend::Backend;
use crate::host_list::HostList;
use crate::{OpenRegistry, OpenStore, RegistryKind, SettingError};

/// Describes etcd as a store of segments and worker ids.
pub(crate) const BACKEND: Backend = Backend {
    schemes: &["etcd"],
    registry: RegistryKind::Store("etcd"),
    check: |url| config::read(url).map(|_| url.to_owned()),
    show: |url| config::read(url).map_or("***".into(), |list| format!("etcd://{list}")),
    hosts: |url| config::read(url).map_or(Vec::new(), |list| list.hosts().to_vec()),
    path: |_| None,
    open: |url, _, _| Box::pin(async move { Ok(OpenStore::of(EtcdStore::open(read(url)?))) }),
    open_workers: |url, kind, _, options| {
        Box::pin(async move {
            let workers = EtcdWorkers::open(read(url)?, &options.name, options.report_interval);
            Ok(OpenRegistry::new(workers, kind, options))
        })
    },
};

/// Parses a URL that `check` has accepted.
fn read(url: &str) -> Result<HostList, StoreError> {
    let refused = |why: SettingError| {
        StoreError::new(StoreErrorKind::Refused, "read the etcd URL").because(why)
    };
    config::read(url).map_err(refused)
}
