//! Worker ids by name in ZooKeeper, for ever: the registry of the original Java Leaf.

mod mirror;
mod workers;

pub(crate) use workers::ZkNormal;
