//! Serving ids: the double buffer of each tag, how it is filled, and what is known of tags.
//!
//! The engine counts numbers; which ids they stand for is asked of `meaning`.

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
mod members;
mod rate;
mod records;
mod refill;
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
