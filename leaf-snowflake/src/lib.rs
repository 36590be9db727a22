//! Snowflake ids: timestamp, worker id and sequence in 63 bits, without a round trip per id.
//!
//! Two nodes never issue the same id. What ensures this is durable data, not a check of the clocks.
//! The timestamps of each worker id are divided into slices: a holder issues only timestamps from
//! its *floor* up to a *ceiling* that was written down durably before, and the next holder starts
//! at or above that ceiling. Whatever a clock, a pause or a crash does, a slice has one owner.
//!
//! A [`Registry`] gives out worker ids; the stores behind it are in `leaf-registry`. A state file
//! holds a second, lower ceiling: a node that restarts on the same machine continues from there,
//! without a wait.
//!
//! ```
//! use leaf_snowflake::{Identity, MemoryFenceStore, SnowflakeConfig, SnowflakeGenerator};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = SnowflakeConfig::new(Identity::parse("10.0.0.7:8080")?);
//! let flakes = SnowflakeGenerator::open(MemoryFenceStore::default(), config).await?;
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

mod config;
mod error;
mod fence;
mod fork;
mod generator;
mod id_clock;
mod java_cache;
mod keeper;
mod lease_chain;
mod peers;
mod shared;
mod state_file;
mod ticker;
mod view;

pub use config::SnowflakeConfig;
pub use error::{RegistryError, RegistryErrorKind, SnowflakeError, SnowflakeErrorKind};
pub use fence::{
    ClaimPolicy, ClaimRequest, FORMAT_VERSION, Fence, FenceState, FenceStore, Identity,
    IdentityError, JavaMirror, JavaReport, Lease, MemoryFenceStore, NodeSettings, Peer, Provenance,
    Purpose, RecordState, Registry, Report, SavedLease, StoreFault, Stored, StoredWorker,
    UnknownFields, WorkerRange, WorkerRangeError, WorkerRecord, WorkerView,
};
pub use generator::SnowflakeGenerator;
pub use id_clock::ClockSteps;
pub use leaf_core::sequencer::IdRun;
pub use leaf_core::{Id, Layout, SystemClock, UnixMillis, WorkerId};
pub use peers::{PeerClock, PeerRule, Peers};
pub use state_file::StateFileError;
pub use view::SnowflakeView;
