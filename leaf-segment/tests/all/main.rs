//! The generator of segments, over a store in memory. One program, because each costs a link.
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
