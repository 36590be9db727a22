//! What Leaf's tests stand on: real servers on demand, a fault proxy and the uniqueness ledger.
//!
//! Servers are started from installed binaries, each with its own ports and data directory, and are
//! gone at the end of the test, also after a panic or a kill of the test process. A missing binary
//! is a failure that says how to install it, never a skipped test.
//!
//! A failure here is a panic with a text: that is how a test fails.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod all_tags;
mod certificates;
mod edit;
mod etcd;
mod fake_clock;
mod galera;
mod http;
mod ledger;
mod load;
mod mariadb;
mod postgres;
mod power_loss;
mod process;
mod prometheus;
mod proxy;
mod real_time;
mod redis;
mod server;
mod slices;
mod wait;
mod zookeeper;

pub use all_tags::all_tags;
pub use certificates::Certificates;
pub use edit::Edit;
pub use etcd::Etcd;
pub use fake_clock::FakeClock;
pub use galera::Galera;
pub use http::{HttpClient, Response, http2_frame};
pub use ledger::Ledger;
pub use load::{Address, Load, Plan, Report};
pub use mariadb::MariaDb;
pub use postgres::Postgres;
pub use power_loss::PowerLoss;
pub use process::{Process, free_port, require};
pub use prometheus::Prometheus;
pub use proxy::{Fault, FaultProxy};
pub use real_time::{Call, CallLog, OutOfOrder, out_of_order};
pub use redis::{RedisClient, RedisReply};
pub use server::LeafServer;
pub use slices::Slices;
pub use wait::{patiently, wait_until};
pub use zookeeper::ZooKeeper;
