//! Snowflake ids: time, worker id and sequence in 63 bits, without a trip to anybody per id.
//!
//! What keeps two nodes apart is not a clock check but data. The time of a worker id is cut into
//! slices: a holder issues only timestamps from its *floor* up to a *ceiling* that was written down
//! durably before, and whoever comes next starts at or above that ceiling. Whatever a clock, a
//! pause or a crash does, a slice has one owner.
//!
//! A [`WorkerRegistry`] hands out worker ids; its adapters live in `leaf-registry`. A state file
//! keeps a second, near ceiling, so that a restart on the same machine is immediate.
//!
//! ```
//! use std::sync::Arc;
//! use leaf_snowflake::{Identity, MemoryRegistry, SnowflakeConfig, SnowflakeGenerator};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let registry = Arc::new(MemoryRegistry::default());
//! let config = SnowflakeConfig::new(Identity::parse("10.0.0.7:8080")?);
//! let flakes = SnowflakeGenerator::open(registry, config).await?;
//!
//! let first = flakes.next().await?;
//! assert!(flakes.next().await? > first);
//! let parts = flakes.layout().decode(first).expect("an id of this layout");
//! assert_eq!(parts.worker.get(), 0);
//! flakes.close().await;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

pub mod blocking;
mod config;
mod error;
mod fence;
mod fork;
mod generator;
mod id_clock;
mod java_cache;
mod keeper;
mod memory;
mod peers;
mod registry;
mod run;
mod sequencer;
mod shared;
mod state_file;
mod sync;
mod system_clock;
mod view;

pub use config::SnowflakeConfig;
pub use error::{RegistryError, RegistryErrorKind, SnowflakeError, SnowflakeErrorKind};
pub use fence::{Fence, FenceState};
pub use generator::SnowflakeGenerator;
pub use id_clock::ClockSteps;
pub use memory::{MemoryRegistry, RegistryFault};
pub use peers::{PeerRule, Peers};
pub use registry::{
    ClaimRequest, Identity, IdentityError, Lease, Memory, Origin, Peer, Report, WorkerRecord,
    WorkerRegistry,
};
pub use run::IdRun;
pub use state_file::StateFileError;
pub use system_clock::SystemClock;
pub use view::SnowflakeView;
