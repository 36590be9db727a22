//! The registry `zk_normal`: worker ids in ZooKeeper that belong to names for ever, shared with the
//! original Java Leaf.

mod mirror;
mod workers;

pub(crate) use workers::ZkNormal;
