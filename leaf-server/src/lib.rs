//! What `leaf-server` shares with `leaf`, the command line: both read the same configuration in the same way,
//! and show tags and worker ids in the same form.
//!
//! Everything else of the server is in its binary.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

pub mod config;
pub mod hints;
pub mod records;
