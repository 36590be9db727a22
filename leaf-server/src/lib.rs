//! The Leaf id service: ids over HTTP, the Redis protocol and gRPC, health and administration.
//!
//! [`run`] serves them inside another program; the program `leaf-server` is [`main`]. This crate
//! holds no id logic: it puts the other crates together.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod access;
mod audit;
mod caller;
mod check;
mod cli;
mod decoded;
#[cfg(feature = "grpc")]
mod grpc;
mod http;
mod ids;
mod live;
mod log;
mod metrics;
mod node;
mod peers;
mod program;
mod refusal;
mod reload;
mod request;
mod reread;
mod resp;
mod schema;
mod serve;
mod server;
mod show;
mod supervisor;
mod traffic;

pub use program::main;
pub use server::{Listeners, run};
