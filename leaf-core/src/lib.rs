//! The types of Leaf that need no database, no network and no async runtime: ids, tags, ranges, bit
//! layouts and the sequence logic of snowflake ids.
//!
//! Values cannot hold a wrong state: an [`Id`] is never negative, a [`Tag`] never malformed, a
//! [`Layout`] never wider than 63 bits. This crate does no I/O: code that needs the time takes a
//! [`Clock`] or a tick as an argument. A program that brings its own clock and its own storage can
//! compose snowflake ids with [`Layout`] and [`sequencer`] alone, see `examples/own_clock.rs`.
//!
//! The feature `serde` makes the types readable and writable by serde; `system-clock` adds the
//! clocks of the machine.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod clock;
mod durations;
mod health;
mod id;
mod layout;
mod millis;
mod range;
pub mod sequencer;
#[cfg(feature = "serde")]
mod serde_impls;
mod step;
mod sync;
#[cfg(feature = "system-clock")]
mod system_clock;
mod tag;
#[cfg(feature = "records")]
mod unknown_fields;
mod unknown_name;
mod worker;

pub use clock::{Clock, ManualClock, RELEASED};
pub use durations::{DurationCounts, Durations};
pub use health::{Health, HealthCode, HealthReason};
pub use id::{Id, ParseIdError};
pub use layout::{Composer, Field, Layout, LayoutError, Parts, Unit};
pub use millis::UnixMillis;
pub use range::{IdRange, IdRangeIter};
pub use step::{Step, StepError};
#[cfg(feature = "system-clock")]
pub use system_clock::SystemClock;
pub use tag::{Tag, TagError};
#[cfg(feature = "records")]
pub use unknown_fields::{UnknownFields, record_version};
pub use unknown_name::UnknownName;
pub use worker::WorkerId;
