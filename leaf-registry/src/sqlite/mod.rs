//! Segments in one SQLite file: the embedded default of `leaf-server`.
//!
//! Several processes of one host may share the file.

mod error;
mod store;

pub use store::SqliteStore;
