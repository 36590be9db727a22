//! Serving ids: the double buffer of each tag, how it is filled, and the tags in memory.
//!
//! The engine works with numbers; leaf-shape turns them into ids.

mod buffer;
mod generator;
mod group_commit;
mod handle;
mod health;
mod known_tags;
mod leased;
mod local;
mod look_ups;
mod marks;
mod member_rates;
mod members;
mod period_clock;
mod rate;
mod records;
mod refill;
mod shared;
mod step_policy;
mod store_client;
mod sync;
mod tag_set;
mod tag_state;
mod view;

pub use generator::SegmentGenerator;
pub use handle::TagHandle;
pub use known_tags::KnownTags;
pub use leased::LeasedRange;
pub use local::LocalIds;
pub use marks::{HighWaterMarks, HighWaterMarksError};
pub use view::{FetchView, TagView, Totals};
