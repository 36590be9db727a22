//! The basis of Leaf's tests: real servers on demand, a fault proxy and the uniqueness ledger.
//!
//! Servers are started from installed binaries, each with its own ports and data directory. They
//! are killed at the end of the test, also after a panic or a kill of the test process. If a binary
//! is missing, the test fails with a text that says how to install it; it is never skipped.
//!
//! A function here panics with a text when it fails, because that makes the test fail.
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
