//! Segment ids: blocks reserved in a store, served from memory.
//!
//! A [`TagStore`] keeps one number per [`Tag`]. A [`SegmentGenerator`] adds a
//! step to it, owns the ids in between and hands them out from a double buffer: while one segment
//! is served the next is already there, so a caller waits for the store only when the store has
//! been away longer than the stock lasts.
//!
//! This crate knows no database: the adapters live in `leaf-registry`.
//!
//! ```
//! use std::sync::Arc;
//! use leaf_core::{Step, Tag};
//! use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator, TagStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(MemoryStore::default());
//! store.create(&NewTag::new(Tag::parse("orders")?, Step::new(2000)?)).await?;
//!
//! let segments = SegmentGenerator::open(store, SegmentConfig::default()).await;
//! let orders = segments.tag("orders").await?; // a handle: no map look-up afterwards
//! assert_eq!(orders.next().await?.get(), 1);
//! assert_eq!(orders.try_next().map(|id| id.get()), Some(2));
//! segments.close().await;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

pub mod admin;
mod config;
mod engine;
mod error;
mod family;
pub mod meaning;
mod memory;
mod settings;
mod shard_place;
mod shard_set;
mod source;
mod tag_generation;

pub use config::SegmentConfig;
pub use engine::{
    HighWaterMarks, HighWaterMarksError, LeasedRange, LocalIds, SegmentGenerator, TagHandle,
};
pub use error::{SegmentError, SegmentErrorKind, StoreError, StoreErrorKind};
pub use leaf_core::{Id, IdRange, Step, Tag};
pub use meaning::Ids;
pub use memory::MemoryStore;
pub use source::{NewTag, RangeSource, SegmentSource, TagCatalog, TagRecord, TagStore};

/// What stores keep of a tag besides its number, and how they change it.
pub mod store {
    pub use crate::family::{Family, Member, MembersPlan};
    pub use crate::settings::{Slice, TagSettings, TagSettingsError};
    pub use crate::source::{
        Expected, MOST_RECORDS, SEALED, SealError, StoreFuture, TagCursor, TagCursorError, TagPage,
        TagUpdate,
    };
    pub use crate::tag_generation::{TagGeneration, TagGenerationError};
}

/// Tags in several stores: which store has a tag, and how each store remembers its place.
pub mod shards {
    pub use crate::engine::KnownTags;
    pub use crate::shard_place::{ShardMemory, ShardMemoryError, ShardPlace};
    pub use crate::shard_set::{Shards, TagPattern, TagPatternError};
}

/// What is going on inside, tag by tag, for dashboards.
pub mod view {
    pub use crate::engine::{FetchView, TagView, Totals};
}
