//! The fence of a worker id, and the record that a store keeps of it.
//!
//! Invariant: no holder of term `n` issues a timestamp at or above the ceiling that stood in the
//! record when term `n + 1` was written, and the holder of `n + 1` issues none below it. (A clean
//! stop lowers the ceiling to one past the last timestamp used.) There are two exceptions: a holder
//! that returns with its own saved lease, whose next term starts where it stopped, and an operator
//! who frees the worker id of a dead holder.
//!
//! Durable format, version 1: a JSON object `{version, holder, address, fence}`. A reader ignores
//! fields that it does not know and keeps them when it rewrites the record, so that a cluster can
//! be upgraded node by node. It refuses a greater version.

use leaf_core::UnixMillis;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Identity, UnknownFields};

/// The version of the durable formats that this library writes: worker records and the state file.
pub const FORMAT_VERSION: u32 = 1;

/// The part of a worker id's record that says who may use which timestamps. Written only by
/// compare-and-set, never deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// Incremented by every new claim. A holder whose term is lower can no longer write.
    pub term: u64,
    /// The holder of this term issues no timestamp below this.
    pub floor: UnixMillis,
    /// The holder of this term issues no timestamp at or above this.
    pub ceiling: UnixMillis,
    /// The writer's clock at the last claim, report or command of an operator: the wall clock, or
    /// the ids' clock of a holder that issues ids. A report never lowers it; a release does not
    /// change it.
    pub reported_at: UnixMillis,
    /// The id of the holder's state file, or of its process if it has no state file.
    pub instance: Uuid,
    /// New for every change, but the same for all attempts at one change, so that a writer
    /// recognizes its own write if the answer was lost.
    pub nonce: Uuid,
    /// How the layout splits the bits ([`Layout::shape`](leaf_core::Layout::shape)). A claim with
    /// another layout is refused: ids of two layouts may be equal numbers.
    pub layout: String,
    /// The layout's epoch. A claim with another epoch is refused: ids of two epochs may be equal
    /// numbers.
    pub epoch_ms: UnixMillis,
    /// The [`WorkerRange`](super::WorkerRange) of the registry; `None`: all worker ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<String>,
    /// Whether a node holds the worker id.
    pub state: FenceState,
    /// Fields that a later version wrote, kept when the record is rewritten.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// Whether a worker id is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FenceState {
    /// A node holds the worker id, or crashed while it held the worker id.
    Held,
    /// Given back by a clean stop (the ceiling is then one past the last timestamp used), or freed
    /// or repaired by an operator (the ceiling is then an upper bound).
    Released,
    /// Taken out of service by an operator, for good.
    Retired,
}

/// The record of one worker id in a store.
///
/// ```
/// use leaf_snowflake::{RecordState, WorkerRecord};
///
/// let text = r#"{"version":1,"holder":"10.0.0.7:8080","address":"10.0.0.7:8080","fence":{
///     "term":3,"floor":1700000000000,"ceiling":1700000600000,"reported_at":1700000000000,
///     "instance":"67e55044-10b1-426f-9247-bb680e5fe0c8",
///     "nonce":"936da01f-9abd-4d9d-80c7-02af85c822a8",
///     "layout":"t41-w10-s12/1ms","epoch_ms":1288834974657,"state":"held"}}"#;
/// let RecordState::Written(record) = RecordState::decode(text.as_bytes()) else { panic!() };
/// assert_eq!(record.fence.ceiling.get(), 1_700_000_600_000);
/// assert_eq!(RecordState::decode(record.encode().as_bytes()), RecordState::Written(record));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRecord {
    /// The node that holds the worker id, or held it last.
    pub holder: Identity,
    /// The address where the holder answers HTTP.
    pub address: Identity,
    /// The fence.
    pub fence: Fence,
    /// Fields beside the fence that a later version wrote, kept when the record is rewritten.
    pub unknown: UnknownFields,
}

/// The content of a store at the place of a worker id's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordState {
    /// There is no record.
    Absent,
    /// A record of this format.
    Written(WorkerRecord),
    /// A record of a later format version, which this library must not touch.
    Newer(u32),
    /// The content is no valid record; the text says why.
    Damaged(String),
}

/// The format version of a durable document. It is read before the other fields.
#[derive(Deserialize)]
pub(crate) struct Versioned {
    version: Option<u32>,
}

/// Why a durable document cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The document has a later format version.
    Newer(u32),
    /// The document has no valid format version.
    Unversioned,
    /// The document is no JSON object, or its version has a wrong type.
    Damaged(String),
}

impl Versioned {
    /// Checks the version of a durable document.
    ///
    /// # Errors
    /// `Newer`, `Unversioned` or `Damaged`.
    pub(crate) fn check(text: &[u8]) -> Result<(), Unreadable> {
        let version = serde_json::from_slice::<Self>(text);
        match version.map_err(|error| Unreadable::Damaged(error.to_string()))?.version {
            Some(FORMAT_VERSION) => Ok(()),
            Some(newer @ FORMAT_VERSION..) => Err(Unreadable::Newer(newer)),
            Some(_) | None => Err(Unreadable::Unversioned),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    holder: String,
    address: String,
    fence: Fence,
    #[serde(flatten)]
    unknown: UnknownFields,
}

impl WorkerRecord {
    /// The record as JSON text.
    #[must_use]
    pub fn encode(&self) -> String {
        let text = Text {
            version: FORMAT_VERSION,
            holder: self.holder.to_string(),
            address: self.address.to_string(),
            fence: self.fence.clone(),
            unknown: self.unknown.clone(),
        };
        serde_json::to_string(&text).expect("texts, numbers and JSON values serialize")
    }
}

impl RecordState {
    /// Reads what [`WorkerRecord::encode`] wrote, in this version of Leaf or a later one.
    #[must_use]
    pub fn decode(text: &[u8]) -> Self {
        match Versioned::check(text) {
            Ok(()) => Self::decode_known(text).unwrap_or_else(Self::Damaged),
            Err(Unreadable::Newer(version)) => Self::Newer(version),
            Err(Unreadable::Unversioned) => {
                Self::Damaged("it has no format version: a version before 0.1.0 wrote it".into())
            }
            Err(Unreadable::Damaged(why)) => Self::Damaged(why),
        }
    }

    fn decode_known(text: &[u8]) -> Result<Self, String> {
        let Text { holder, address, fence, unknown, .. } =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
        // The next term is this one plus 1, which must not overflow.
        if fence.term > u64::MAX / 2 {
            return Err("its term is out of range".into());
        }
        let name = |text: &str| Identity::parse(text).map_err(|error| error.to_string());
        let (holder, address) = (name(&holder)?, name(&address)?);
        Ok(Self::Written(WorkerRecord { holder, address, fence, unknown }))
    }

    /// The record, if there is one that this version of Leaf can read.
    #[must_use]
    pub const fn written(&self) -> Option<&WorkerRecord> {
        match self {
            Self::Written(record) => Some(record),
            Self::Absent | Self::Newer(_) | Self::Damaged(_) => None,
        }
    }
}
