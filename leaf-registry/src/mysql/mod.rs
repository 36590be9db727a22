//! Segments and worker ids in MySQL or MariaDB, in the Java Leaf's own tables.

mod error;
mod guard;
mod mirror;
mod store;
mod workers;

pub use store::MysqlStore;
pub(crate) use workers::MysqlWorkers;
