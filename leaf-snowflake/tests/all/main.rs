//! The generator and its leases, over a registry in memory. One program, because each costs a link;
//! what must be alone in its process is beside it.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod clocks;
mod doubt;
mod generator;
mod java;
mod lease;
mod simulation;
mod state_file;
mod support;
mod versions;
