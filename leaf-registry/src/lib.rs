//! The segment stores and worker registries of Leaf: implementations of
//! [`TagStore`](leaf_segment::TagStore) and [`FenceStore`](leaf_snowflake::FenceStore) for
//! databases, etcd, ZooKeeper and the configuration.
//!
//! | backend | segment store | worker registry | feature |
//! |---|---|---|---|
//! | `sqlite` | one file, one host | several processes of one host | `sqlite` |
//! | `mysql` | MySQL, MariaDB; the Java Leaf's table | fences of its own, copied into the community fork's table | `mysql` |
//! | `postgres` | PostgreSQL | recycled worker ids | `postgres` |
//! | `etcd` | compare-and-swap, a majority of members | recycled worker ids | `etcd` (its build needs `protoc`) |
//! | `zk_normal` | | a worker id for each name, shared with the original Java Leaf | `zookeeper` |
//! | `zk_recycle` | | recycled worker ids, shared with the community fork | `zookeeper` |
//! | `local` | | worker ids from the configuration, the fence in the state file | |
//! | `ordinal` | | the number at the end of the host name; fences in a database, etcd, ZooKeeper or the state file | |
//!
//! A *fence* is the record of who holds a worker id and up to which timestamp. The *original* is
//! Meituan's Java Leaf, the *community fork* its best known successor.
//!
//! Every backend but `ordinal` has a folder; `zookeeper/` holds the code that both ZooKeeper
//! backends share. The folder of an SQL database mainly contains a dialect (`dialect.rs`,
//! `errors.rs`), on which the code in `sql/` builds. In the other folders `workers.rs` is the
//! worker registry; `etcd/store.rs` is the segment store of etcd. `mirror.rs` reads and writes the
//! record of a worker id that Java Leafs use. One conformance suite (`tests/`) tests every backend
//! on the real server.
#![cfg_attr(not(feature = "full"), allow(dead_code, reason = "each backend uses its part"))]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod administration;
mod backend;
#[cfg(feature = "etcd")]
mod etcd;
mod host_list;
mod import;
pub mod local;
#[cfg(feature = "mysql")]
mod mysql;
mod open;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "sql", feature = "etcd"))]
mod record;
mod registry_url;
mod setting;
#[cfg(feature = "sql")]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store_url;
mod worker_ids;
#[cfg(feature = "zookeeper")]
mod zk_normal;
#[cfg(feature = "zookeeper")]
mod zk_recycle;
#[cfg(feature = "zookeeper")]
mod zookeeper;

pub use administration::{Administration, Note, Table};
pub use import::import;
pub use open::{OpenRegistry, OpenStore};
pub use options::{RegistryKind, RegistryOptions, StoreOptions};
pub use registry_url::RegistryUrl;
pub use setting::{SettingError, read_file, read_secret};
pub use store_url::StoreUrl;
