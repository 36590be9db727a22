//! The generator and its leases, with a registry in memory. Most tests are in one program, because
//! every program must be linked; tests that need a process for themselves are beside it.
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
