//! The nouns of Leaf.
//!
//! Values that cannot hold a wrong state: an [`Id`] is never negative, a [`Tag`] never malformed, a
//! [`Layout`] never wider than 63 bits. This crate does no I/O, knows no runtime and reads no
//! clock: whoever needs the time is handed a [`Clock`].
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod clock;
mod health;
mod id;
mod layout;
mod millis;
mod range;
mod step;
mod tag;
mod worker;

pub use clock::{Clock, ManualClock};
pub use health::Health;
pub use id::{Id, ParseIdError};
pub use layout::{Composer, Field, Layout, LayoutError, Parts, Unit};
pub use millis::UnixMillis;
pub use range::IdRange;
pub use step::{Step, StepError};
pub use tag::{Tag, TagError};
pub use worker::WorkerId;
