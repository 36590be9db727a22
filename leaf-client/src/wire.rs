//! What servers answer. Fields that this version does not know are left out: a later server may have more.

use leaf_core::{Id, IdRange};
use leaf_segment::Order;
use serde::Deserialize;

/// `GET /v1/server`
#[derive(Debug, Deserialize)]
pub(crate) struct Server {
    #[serde(default)]
    pub(crate) zone: Option<String>,
    #[serde(default = "yes")]
    pub(crate) ready: bool,
}

const fn yes() -> bool {
    true
}

/// `GET /v1/segments/{tag}`
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TagShown {
    pub(crate) order: Order,
    pub(crate) leases: bool,
    pub(crate) step: Option<i64>,
    pub(crate) max_take: i64,
    pub(crate) max_count: usize,
}

/// `POST /v1/segments/{tag}/lease`
#[derive(Debug, Deserialize)]
pub(crate) struct Lease {
    start: String,
    end: String,
    pub(crate) ticket: String,
}

impl Lease {
    /// The range; `None` where it is none.
    pub(crate) fn range(&self) -> Option<IdRange> {
        IdRange::new(self.start.parse().ok()?, self.end.parse().ok()?)
    }
}

/// `POST /v1/segments/{tag}/return`
#[derive(Debug, Deserialize)]
pub(crate) struct Returned {
    pub(crate) returned: bool,
}

/// A list of ids.
#[derive(Debug, Deserialize)]
pub(crate) struct Ids {
    ids: Vec<String>,
}

impl Ids {
    /// The ids; `None` where one is none.
    pub(crate) fn parse(&self) -> Option<Vec<Id>> {
        self.ids.iter().map(|id| Id::new(id.parse().ok()?)).collect()
    }
}

/// RFC 9457, section 3.1.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Problem {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    detail: String,
}

impl Problem {
    /// Whether a leaf-server said it, and no gateway.
    pub(crate) fn is_of_leaf(&self) -> bool {
        self.r#type.starts_with("urn:leaf:problem:")
    }

    /// What it says, as far as it can stand in a line.
    pub(crate) fn text(&self) -> String {
        self.detail.chars().filter(|character| !character.is_control()).take(200).collect()
    }

    /// The last part of its type, like `unknown-tag`.
    pub(crate) fn kind(&self) -> &str {
        self.r#type.rsplit(':').next().unwrap_or_default()
    }
}
