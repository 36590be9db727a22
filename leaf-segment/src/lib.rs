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

mod buffer;
mod config;
mod ended_tag;
mod error;
mod generator;
mod group_commit;
mod handle;
mod health;
mod keys;
mod known_tags;
mod leased;
mod local;
mod marks;
mod meaning;
mod memory;
mod new_tag;
mod period;
mod period_clock;
mod rate;
mod refill;
mod settings;
mod shape;
mod shard_place;
mod shards;
mod step_policy;
mod store;
mod store_client;
mod sync;
mod tag_admin;
mod tag_generation;
mod tag_id;
mod tag_state;
mod texts;
mod unknown_tags;
mod view;

pub use config::SegmentConfig;
pub use ended_tag::EndedTag;
pub use error::{SegmentError, SegmentErrorKind, StoreError, StoreErrorKind};
pub use generator::SegmentGenerator;
pub use handle::TagHandle;
pub use keys::{KeyProblem, KeyRing, Keys, KeysError};
pub use known_tags::KnownTags;
pub use leaf_core::{Id, IdRange, Step, Tag};
pub use leased::LeasedRange;
pub use local::LocalIds;
pub use marks::{HighWaterMarks, HighWaterMarksError};
pub use meaning::{Interleave, Meaning, MeaningError, Order, Shape};
pub use memory::MemoryStore;
pub use new_tag::{ShapeName, TagSpec};
pub use period::{Period, Reset, Zone};
pub use settings::{Slice, TagSettings, TagSettingsError};
pub use shape::Ids;
pub use shard_place::{ShardMemory, ShardMemoryError, ShardPlace};
pub use shards::{Shards, TagPattern, TagPatternError};
pub use store::{
    Expected, NewTag, RangeSource, SEALED, SealError, SegmentSource, StoreFuture, TagCatalog,
    TagRecord, TagStore, TagUpdate,
};
pub use tag_admin::{Confirm, Deleted, TagAdmin, TagAdminError, TagChange};
pub use tag_generation::{TagGeneration, TagGenerationError};
pub use tag_id::{TagId, TagIdError};
pub use texts::{TextError, Texts};
pub use view::{FetchView, TagView};
