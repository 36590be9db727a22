//! Leaf inside a program: order numbers and event ids without a server.
//!
//!     cargo run -p leaf-node --example embedded
//!
//! Other stores and registries are one line: `.store("mysql://leaf:secret@db/leaf")`,
//! `.registry("zk-normal://a:2181,b:2181")`.

use leaf_node::Leaf;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("leaf-embedded-{}", std::process::id()));
    let leaf = Leaf::builder().data_dir(&directory).open().await?;

    // Keep the handle: it yields ids from memory, without a look-up.
    let orders = leaf.segment("leaf-segment-test").await?;
    for _ in 0..3 {
        println!("order {}", orders.next().await?);
    }
    let snowflake = leaf.snowflake();
    let event = snowflake.next().await?;
    let parts = snowflake.layout().decode(event).ok_or("an id of this layout")?;
    println!("event {event}, issued at {} by worker id {}", parts.timestamp, parts.worker);

    // Gives the worker id and the unused ids back.
    leaf.close().await;
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
