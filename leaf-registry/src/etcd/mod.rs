//! Segments and worker ids in etcd: no failover loses a write, for each is agreed on by a majority.

mod administration;
mod cluster;
mod config;
mod error;
mod liveness;
mod reading;
mod record;
mod store;
mod workers;

pub use config::EtcdUrl;
pub use store::EtcdStore;
pub(crate) use workers::EtcdWorkers;
