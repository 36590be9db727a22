//! The record of a worker id as text: the fence, who holds it and where that one answers.

use leaf_snowflake::{Fence, Identity};
use serde::{Deserialize, Serialize};

/// What a store keeps for a worker id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) holder: Identity,
    /// Where the holder answers HTTP.
    pub(crate) address: Identity,
    pub(crate) fence: Fence,
}

/// What was found where a record should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Recorded {
    Absent,
    Written(Record),
    /// Nothing that Leaf wrote, and why.
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    holder: String,
    address: String,
    fence: Fence,
}

impl Record {
    pub(crate) fn encode(&self) -> String {
        let text = Text {
            holder: self.holder.to_string(),
            address: self.address.to_string(),
            fence: self.fence.clone(),
        };
        serde_json::to_string(&text).expect("texts and numbers serialize")
    }
}

impl Recorded {
    /// Reads what [`Record::encode`] wrote.
    pub(crate) fn decode(text: &[u8]) -> Self {
        let parsed = serde_json::from_slice(text).map_err(|error| error.to_string());
        let record = parsed.and_then(|Text { holder, address, fence }| {
            // The next one must have a number, too.
            if fence.epoch > u64::MAX / 2 {
                return Err("its epoch is out of range".into());
            }
            let name = |text: &str| Identity::parse(text).map_err(|error| error.to_string());
            Ok(Record { holder: name(&holder)?, address: name(&address)?, fence })
        });
        record.map_or_else(Self::Damaged, Self::Written)
    }

    pub(crate) const fn written(&self) -> Option<&Record> {
        match self {
            Self::Written(record) => Some(record),
            Self::Absent | Self::Damaged(_) => None,
        }
    }
}
