//! The segment generator with a store in memory. All tests are in one program, because every
//! program must be linked.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod close;
mod families;
mod generations;
mod guard;
mod idle;
mod kinds;
mod leased;
mod local;
mod refill;
mod schedules;
mod settings;
mod strict;
mod support;
mod tags;
mod take;
mod view;
