//! Segments and worker ids in PostgreSQL.

mod error;
mod guard;
mod store;
mod workers;

pub use store::PostgresStore;
pub(crate) use workers::PostgresWorkers;
