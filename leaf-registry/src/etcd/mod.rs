//! Segments in etcd: no failover loses a range, for every write is agreed on by a majority.

mod config;
mod error;
mod store;

pub use config::EtcdUrl;
pub use store::EtcdStore;
