//! Segment ids: blocks reserved in a store, served from memory.
//!
//! A [`TagStore`] keeps one number per [`Tag`]: the next one to reserve. A [`SegmentGenerator`]
//! raises it by a step, which reserves the ids in between, and hands them out from a double buffer:
//! while one segment is used, the next one is fetched ahead. So a caller waits for the store only
//! when the store is unavailable for longer than the ids in memory last.
//!
//! This crate contains no database driver: the stores for databases are in `leaf-registry`.
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
mod memory;
mod settings;
mod source;
mod tag_generation;

pub use config::SegmentConfig;
pub use engine::{
    HighWaterMarks, HighWaterMarksError, KnownTags, LeasedRange, LocalIds, SegmentGenerator,
    TagHandle,
};
pub use error::{SegmentError, SegmentErrorKind, StoreError, StoreErrorKind};
pub use leaf_core::{Id, IdRange, Step, Tag};
pub use leaf_shape::Ids;
pub use memory::MemoryStore;
pub use source::{NewTag, RangeSource, SegmentSource, TagCatalog, TagRecord, TagStore};

/// The types of a store's interface: a tag's settings and generation, families, changes, pages.
pub mod store {
    pub use crate::family::{Family, Member, MembersPlan};
    pub use crate::settings::{Slice, TagSettings, TagSettingsError};
    pub use crate::source::{
        Expected, MOST_RECORDS, SEALED, SealError, StoreFuture, TagCursor, TagCursorError, TagPage,
        TagUpdate,
    };
    pub use crate::tag_generation::{TagGeneration, TagGenerationError};
}

/// Snapshots of a generator's state, per tag and in total, for dashboards.
pub mod view {
    pub use crate::engine::{FetchView, TagView, Totals};
}
