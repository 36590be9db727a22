//! Worker ids from the configuration; the fence in the state file.
//!
//! For one node, or for a fleet whose worker ids an operator assigns by hand (the community fork's
//! `leaf.snowflake.local.workIdMap`). Nothing but the configuration keeps two hosts from using one
//! worker id; the state file only keeps one host from repeating its own ids.

mod workers;

pub use workers::{LocalWorkers, registry};
