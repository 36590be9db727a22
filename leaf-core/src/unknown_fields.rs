//! Reads durable records that another version of Leaf may have written.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Fields of a record that a later version of Leaf wrote. They are kept when this version rewrites
/// the record, so that two versions can work side by side during an upgrade.
///
/// A `Default` value has no fields. Put it in a `serde` structure with `#[serde(flatten)]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnknownFields(Map<String, Value>);

impl UnknownFields {
    /// The value of a field, if the record has it.
    #[must_use]
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }
}

/// Reads only the version of a durable record: the rest of what a later version of Leaf wrote may
/// not be readable.
///
/// # Errors
/// The text is not a JSON object with a `version` from 0 to `u32::MAX`.
pub fn record_version(json: &[u8]) -> Result<u32, serde_json::Error> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    serde_json::from_slice(json).map(|Version { version }| version)
}
