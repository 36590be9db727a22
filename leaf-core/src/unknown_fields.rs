//! Fields of a durable record that this version of Leaf does not know.

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
