//! The segment store and the worker registry in SQL databases. Each is written once, over a
//! [`Dialect`](dialect::Dialect): the statements, connections and errors of one database.
//!
//! To add a database that sqlx speaks to, write a dialect beside those in `mysql/`, `postgres/` and
//! `sqlite/`; CONTRIBUTING.md names all places.

pub(crate) mod administration;
pub(crate) mod connections;
pub(crate) mod dialect;
pub(crate) mod failover_guard;
pub(crate) mod fences;
mod locked;
mod making;
mod members;
pub(crate) mod pool;
pub(crate) mod store;
mod together;
pub(crate) mod url;
pub(crate) mod values;
