//! The JSON answers of servers. Unknown fields are ignored: a later version of the server may send
//! more.

use leaf_segment::store::TagGeneration;
use leaf_shape::Order;
use serde::{Deserialize, Deserializer};

/// The JSON answer to `GET /v1/server`.
#[derive(Debug, Deserialize)]
pub(crate) struct Server {
    #[serde(default)]
    pub(crate) zone: Option<String>,
    /// The usual weight if the server is of an earlier version, which sends none.
    #[serde(default = "usual_weight")]
    pub(crate) weight: u32,
    #[serde(default = "yes")]
    pub(crate) ready: bool,
}

const fn yes() -> bool {
    true
}

/// The default of the servers' key `weight`.
pub(crate) const fn usual_weight() -> u32 {
    100
}

/// The JSON answer to `GET /v1/segments/{tag}`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TagShown {
    pub(crate) order: Order,
    pub(crate) leases: bool,
    pub(crate) step: Option<i64>,
    pub(crate) max_take: i64,
    pub(crate) max_count: usize,
    /// `None` if the tag has none, or the server is of an earlier version.
    #[serde(default, deserialize_with = "generation")]
    pub(crate) generation: Option<TagGeneration>,
}

/// Parses a tag's generation; `None` if the text is not one.
fn generation<'de, D: Deserializer<'de>>(from: D) -> Result<Option<TagGeneration>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

/// The JSON answer to `POST /v1/segments/{tag}/lease`.
#[derive(Debug, Deserialize)]
pub(crate) struct Lease {
    pub(crate) start: String,
    pub(crate) end: String,
    pub(crate) ticket: String,
}

/// The JSON answer to `POST /v1/segments/{tag}/return`.
#[derive(Debug, Deserialize)]
pub(crate) struct Returned {
    pub(crate) returned: bool,
}

/// A list of ids.
#[derive(Debug, Deserialize)]
pub(crate) struct Ids {
    pub(crate) ids: Vec<String>,
}

/// An error response: problem details of RFC 9457, section 3.1.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Problem {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    detail: String,
}

impl Problem {
    /// Whether a leaf-server sent the response, rather than a gateway in front of it.
    pub(crate) fn is_of_leaf(&self) -> bool {
        self.r#type.starts_with("urn:leaf:problem:")
    }

    /// The text of the error, shortened to one line.
    pub(crate) fn text(&self) -> String {
        one_line(&self.detail)
    }

    /// The last part of the problem's type, like `unknown-tag`.
    pub(crate) fn kind(&self) -> &str {
        self.r#type.rsplit(':').next().unwrap_or_default()
    }
}

/// The text of a server in one line: without control characters, at most 200 characters.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(200).collect()
}
