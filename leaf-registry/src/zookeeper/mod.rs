//! What the ZooKeeper registries share (the session, the fences, who is alive), and the records of
//! `ordinal` where they are kept in ZooKeeper.
//!
//! Under `/snowflake/{name}`, where the Java programs keep their trees, ours are `fence/{N}`,
//! PERSISTENT and never deleted, and `temporary/{identity}`, EPHEMERAL.

mod error;
mod fences;
mod liveness;
mod session;
mod workers;

pub(crate) use fences::{Fences, Znode, recorded, version};
pub(crate) use session::{Connected, Session};
pub(crate) use workers::ZkWorkers;
