//! Segments in PostgreSQL.

mod error;
mod guard;
mod store;

pub use store::PostgresStore;
