//! Why a node cannot be opened.
//!
//! `Node::open` contacts no server, so that the operator can correct each of its errors.
//! `LeafBuilder::open` also fails if the registry yields no worker id.

use leaf_registry::SettingError;
use leaf_segment::{HighWaterMarksError, StoreError};
use leaf_snowflake::SnowflakeError;

use crate::config::ConfigError;

/// Why a node cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration is wrong; the text names the key.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory cannot be made.
    #[error("make the data directory {path}: {error}")]
    DataDir {
        /// The directory.
        path: String,
        /// The error of the attempt to make the directory.
        error: std::io::Error,
    },
    /// The system gave no thread.
    #[error("start the background thread: {0}")]
    Thread(std::io::Error),
    /// The file of high-water marks cannot be used.
    #[error("the file of the regression guard's marks: {0}")]
    HighWaterMarks(HighWaterMarksError),
    /// A segment store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The worker registry cannot be opened.
    #[error("snowflake.registry: {0}")]
    Registry(StoreError),
    /// The generator of snowflake ids cannot start.
    #[error("snowflake: {0}")]
    Snowflake(SnowflakeError),
}

impl From<SettingError> for OpenError {
    fn from(error: SettingError) -> Self {
        Self::Config(ConfigError::new(error.to_string()))
    }
}
