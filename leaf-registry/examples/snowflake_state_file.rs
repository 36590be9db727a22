//! Snowflake ids on one machine: a worker id of one's own choice, and a state file that survives
//! crashes and clocks that go back.
//!
//!     cargo run -p leaf-registry --example snowflake_state_file

use leaf_registry::local::{self, LocalWorkers};
use leaf_snowflake::{Identity, SnowflakeConfig, SnowflakeGenerator, WorkerId};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("leaf-snowflake-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    // No other process on any machine may use this worker id: shared registries give each its own.
    let registry = local::registry(LocalWorkers::Fixed(WorkerId::new(7)), None);
    let mut config = SnowflakeConfig::new(Identity::parse("10.0.0.7:8080")?);
    config.state_file = Some(directory.join("snowflake.state"));

    let generator = SnowflakeGenerator::open(registry, config).await?;
    let first = generator.next().await?;
    let second = generator.next().await?;
    assert!(first < second);
    println!("{first} {second}");
    generator.close().await;
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
