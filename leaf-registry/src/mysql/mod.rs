//! Segments in MySQL or MariaDB, in the Java Leaf's own table.

mod error;
mod guard;
mod store;

pub use store::MysqlStore;
