//! The adapters of Leaf's two ports.
//!
//! | backend | segment store | worker registry | feature |
//! |---|---|---|---|
//! | `sqlite` | one file, one host | | `sqlite` |
//! | `mysql` | MySQL, MariaDB; the Java Leaf's table | | `mysql` |
//! | `postgres` | PostgreSQL | | `postgres` |
//! | `etcd` | compare-and-swap, a majority of members | | `etcd` (its build needs `protoc`) |
//! | `local` | | worker ids from the configuration, the fence in the state file | |
//!
//! Every backend is a folder with the same file names: `store.rs` for the segment store,
//! `workers.rs` for the worker registry, `error.rs` for what the server's answers mean. All pass one
//! conformance suite on the real server (`tests/`).
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

#[cfg(feature = "store")]
mod administration;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod checkout;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod failover_guard;
#[cfg(feature = "store")]
mod import;
pub mod local;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "store")]
mod record;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql_pool;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "store")]
mod store_url;

#[cfg(feature = "store")]
pub use administration::{Administration, Table};
#[cfg(feature = "store")]
pub use import::import;
#[cfg(feature = "store")]
pub use store_url::{OpenStore, StoreOptions, StoreUrl, StoreUrlError};
