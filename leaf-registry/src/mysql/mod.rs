//! Segments in MySQL or MariaDB, in the Java Leaf's own table.

mod error;
mod store;

pub use store::MysqlStore;
