//! Segments and worker ids in one SQLite file: the embedded default of `leaf-server`.
//!
//! Several processes of one host may share the file.

mod error;
mod file;
mod store;
mod workers;

pub use store::SqliteStore;
pub(crate) use workers::SqliteWorkers;
