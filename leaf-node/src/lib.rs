//! A Leaf node as a library.
//!
//! [`Leaf`] is the whole service inside a program: ids of tags and snowflake ids, from the same
//! stores and registries as `leaf-server`, without a network call to it.
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let directory = tempfile::tempdir()?;
//! use leaf_node::Leaf;
//!
//! let leaf = Leaf::builder().data_dir(directory.path()).open().await?;
//! let order = leaf.segment("leaf-segment-test").await?.next().await?;
//! let event = leaf.snowflake().next().await?;
//! println!("{order} {event}");
//! leaf.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The other items are shared by `leaf-server` and the command line `leaf`: the
//! [configuration](config), the node that a configuration describes ([`Node`]), hints about errors
//! for operators ([`hints`]), and the JSON that shows tags and worker ids ([`records`]).
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

pub mod blocking;
pub mod config;
mod error;
pub mod hints;
mod identity;
mod leaf;
mod node;
pub mod records;
pub mod registry;
pub mod requests;
mod shards;
mod tag_list;
#[cfg(feature = "server-config")]
pub mod tls;
#[cfg(feature = "server-config")]
pub mod tokens;
#[cfg(feature = "server-config")]
pub mod traffic;

pub use error::OpenError;
pub use identity::find_identity;
pub use leaf::{Leaf, LeafBuilder};
pub use node::{
    Node, Snowflake, Store, Surroundings, check_marks, check_snowflake, compare_clocks,
    prepare_lease, read_marks,
};
pub use shards::{
    ShardMemory, ShardMemoryError, ShardPlace, Shards, TagPattern, TagPatternError, check_creator,
    check_new_tag, check_place, is_open,
};
pub use tag_list::{ListCursor, TagList, list_tags};
