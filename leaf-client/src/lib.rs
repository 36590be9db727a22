//! A client of `leaf-server`: ids from leased ranges, most of them without a network call.
//!
//! A tag of a [`LeafClient`] has the double buffer of `leaf-segment`: the client leases a range of
//! ids from a server, hands them out from memory, and leases the next range before the last one is
//! used up. While the stock lasts, callers do not notice that servers are away.
//!
//! ```no_run
//! use leaf_client::LeafClient;
//!
//! # async fn run() -> Result<(), leaf_client::ClientError> {
//! let client = LeafClient::builder()
//!     .endpoint("http://leaf-1:8080")
//!     .endpoint("http://leaf-2:8080")
//!     .build()?;
//! let orders = client.tag("orders").await?; // once; keep it
//! let id = orders.next().await?;
//! let another = orders.try_next(); // never waits
//! let snowflake = client.snowflake().next().await?;
//! client.close().await; // unused ids go back
//! # Ok(())
//! # }
//! ```
//!
//! Tags that cannot be leased have the same methods, but their ids are fetched in other ways.
//! Scrambled and interleaved ids come in lists, ahead of callers. Ids in strict order are fetched
//! only when callers want them, in one list for all callers that wait.
//! [`blocking`] is for callers without a tokio runtime. With the feature `grpc`, requests to
//! endpoints like `grpc://leaf-1:50051` use gRPC; with the feature `tls`, connections to
//! `https://leaf-1:8080` or `grpcs://leaf-1:50051` are encrypted.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod api;
pub mod blocking;
mod budget;
mod builder;
mod calls;
mod client;
mod endpoint;
mod error;
mod failure;
mod in_turn;
mod local;
mod pool;
mod snowflake;
mod source;
mod stock;
mod tag;
mod transport;
mod wire;

pub use builder::LeafClientBuilder;
pub use client::LeafClient;
pub use error::{ClientError, ClientErrorKind};
pub use leaf_core::{Id, IdRange, Step, Tag};
pub use local::LocalIds;
pub use snowflake::Snowflake;
pub use tag::TagHandle;
