//! The adapters of Leaf's two ports.
//!
//! | backend | segment store | worker registry | feature |
//! |---|---|---|---|
//! | `sqlite` | one file, one host | | `sqlite` |
//! | `mysql` | MySQL, MariaDB; the Java Leaf's table | | `mysql` |
//! | `local` | | worker ids from the configuration, the fence in the state file | |
//!
//! Every backend is a folder with the same file names: `store.rs` for the segment store,
//! `workers.rs` for the worker registry, `error.rs` for what the server's answers mean. All pass one
//! conformance suite on the real server (`tests/`).
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod checkout;
pub mod local;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod record;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod schema;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod store_url;

#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub use schema::Schema;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub use store_url::{OpenStore, StoreUrl, StoreUrlError};
