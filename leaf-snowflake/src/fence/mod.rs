//! Worker ids and the timestamps that go with them: every rule by which a node claims, extends and
//! releases a worker id, and by which an operator administers one.
//!
//! The timestamps of a worker id are divided into slices. Each slice belongs to one *term*, that
//! is, to one claim: its holder issues timestamps from the *floor* up to, not including, the
//! *ceiling*, and the next term starts at or above that ceiling. Floor and ceiling are stored in
//! one record per worker id, in its *fence*, which is replaced only by compare-and-set. So a slice
//! has one owner, whatever a clock, a pause or a crash does.
//!
//! | file | what it decides |
//! |---|---|
//! | `record.rs` | nothing: it defines the fence and its durable format |
//! | `floor.rs` | the first timestamp that a node may use; no other file decides it |
//! | `claim.rs` | which worker id a node takes |
//! | `candidates.rs` | in which order worker ids are tried, and what a refusal says |
//! | `lease.rs` | whether a lease wrote a record, even if the answer to that write was lost |
//! | `registry.rs` | how a lease is extended and released |
//! | `rules.rs` | how a record is changed: by compare-and-set, again where another writer was faster |
//! | `admin.rs` | what an operator may change |
//!
//! To make a rule stricter, start in `floor.rs`; CONTRIBUTING.md says what else must change with
//! it.
//!
//! A [`FenceStore`] reads and replaces records and decides nothing. The stores for real servers are
//! in `leaf-registry`; [`MemoryFenceStore`] is for tests and examples.

mod admin;
mod candidates;
mod claim;
mod floor;
mod identity;
mod lease;
mod memory;
mod record;
mod registry;
mod request;
mod rules;
mod store;
#[cfg(test)]
mod tests;
mod worker_range;

pub use leaf_core::UnknownFields;

pub use admin::NodeSettings;
pub use identity::{Identity, IdentityError};
pub use lease::Lease;
pub use memory::{MemoryFenceStore, StoreFault};
pub use record::{FORMAT_VERSION, Fence, FenceState, RecordState, WorkerRecord};
pub use registry::{Registry, WorkerView};
pub use request::{ClaimRequest, Provenance, Report, SavedLease};
pub use rules::ClaimPolicy;
pub use store::{FenceStore, JavaMirror, JavaReport, Peer, Purpose, Stored, StoredWorker};
pub use worker_range::{WorkerRange, WorkerRangeError};

pub(crate) use floor::{Evidence, first_timestamp};
pub(crate) use record::{Unreadable, Versioned};
pub(crate) use request::check_range;
