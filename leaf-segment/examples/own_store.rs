//! Ids of tags from a store of one's own: here a number in memory, in a program a row, a key or a file.
//!
//!     cargo run -p leaf-segment --example own_store
//!
//! What a store must promise: a range that `allocate` returned is durable and nobody else's, for ever.

use std::sync::Arc;

use leaf_core::{Step, Tag};
use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let orders = NewTag::new(Tag::parse("orders")?, Step::new(1000)?);
    // In place of it: anything that implements `leaf_segment::SegmentStore`.
    let store = Arc::new(MemoryStore::with_tags([orders]));
    let generator = SegmentGenerator::open(store, SegmentConfig::default()).await;

    let orders = generator.tag("orders").await?;
    assert_eq!(orders.next().await?.get(), 1);
    let many = orders.take_contiguous(100).await?;
    println!("ids {many}");
    generator.close().await;
    Ok(())
}
