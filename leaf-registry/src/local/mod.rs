//! Worker ids from the configuration; the fence in the state file.
//!
//! For one node, or for a fleet whose worker ids somebody assigns by hand (the fork's
//! `leaf.snowflake.local.workIdMap`). Nothing but the configuration keeps two hosts from the same
//! id; what the state file protects is one host's past.

mod workers;

pub use workers::{LocalRegistry, LocalWorkers};
