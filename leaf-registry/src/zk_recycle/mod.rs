//! Worker ids from pools in ZooKeeper, given out again: a registry of the community fork.

mod mirror;
mod workers;

pub(crate) use workers::ZkRecycle;
