//! The registry `zk_recycle`: worker ids from pools in ZooKeeper, shared with the community fork.

mod mirror;
mod workers;

pub(crate) use workers::ZkRecycle;
