//! Ids of tags from an SQLite file.
//!
//!     cargo run -p leaf-registry --features sqlite --example segment_sqlite
//!
//! Another store is another URL: `mysql://user:password@host/database`, `postgres://…`, `etcd://…`.

use leaf_registry::{StoreOptions, StoreUrl};
use leaf_segment::{SegmentConfig, SegmentGenerator};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("leaf-segment-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let url: StoreUrl = "sqlite:leaf.db".parse()?;
    let open = url.open(&directory, &StoreOptions::default()).await?;
    // Makes the tables, with one tag in them.
    open.admin.apply().await?;

    let generator = SegmentGenerator::open(open.store, SegmentConfig::default()).await;
    let orders = generator.tag("leaf-segment-test").await?;
    println!("first {}", orders.next().await?);
    for range in orders.take(500).await?.into_ranges().into_iter().flatten() {
        println!("{} more, {range}", range.len());
    }
    generator.close().await;
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
