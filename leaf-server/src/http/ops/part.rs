//! The query parameters that select a part of a long list: `?after=…&limit=…&family=…`.

use hyper::header::{HeaderMap, HeaderValue, LINK};
use leaf_core::Tag;
use leaf_node::ListCursor;
use leaf_segment::store::Family;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::super::problem::Problem;
use super::super::v1::parameters;
use super::decode;

/// The most rows of an answer, and the `limit` if the client gives none.
const MOST: usize = 1000;

/// A part of a list.
#[derive(Debug)]
pub(super) struct Part {
    /// The place after which the part begins; `None` at the beginning of the list.
    pub(super) after: Option<String>,
    /// How many rows it has at most.
    pub(super) limit: usize,
    /// The family whose members are asked for; `None` for all tags.
    pub(super) family: Option<Tag>,
}

impl Part {
    /// Parses the query of a URL.
    pub(super) fn of(query: &str) -> Result<Self, Problem> {
        let unknown = "unknown parameter: there are `after`, `limit` and `family`";
        let [after, limit, family] =
            parameters(Some(query), ["after", "limit", "family"], unknown)?;
        let after = after.filter(|place| !place.is_empty()).map(decode).transpose()?;
        let limit = limit.map_or(Some(MOST), |limit| limit.parse().ok());
        let limit = limit.filter(|limit| (1..=MOST).contains(limit));
        let limit =
            limit.ok_or_else(|| Problem::bad_request(format!("limit: give 1 to {MOST}")))?;
        let family = family.map(family_of).transpose()?;
        Ok(Self { after, limit, family })
    }

    /// The cursor at which the part begins, for a list of the tags of all stores.
    pub(super) fn from(&self) -> Result<ListCursor, Problem> {
        let from = self.after.as_ref().map_or(Ok(ListCursor::default()), |after| after.parse());
        from.map_err(|error| Problem::bad_request(format!("after: {error}")))
    }

    /// The URL of the next part, relative to this one.
    pub(super) fn next_url(&self, next: &str) -> String {
        let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let family = self.family.as_ref().map(|family| encoded(family.as_str()));
        let family = family.map_or_else(String::new, |family| format!("&family={family}"));
        format!("?after={}&limit={}{family}", encoded(next), self.limit)
    }
}

/// The family of this name, which is percent-encoded.
fn family_of(name: &str) -> Result<Tag, Problem> {
    let family = Tag::parse(&decode(name)?).ok().filter(|name| Family::prefix(name).is_some());
    family
        .ok_or_else(|| Problem::bad_request("family: give a name that ends in /*, like invoice/*"))
}

/// Adds a `Link` header with the URL of the next part.
pub(super) fn link(headers: &mut HeaderMap, next_url: &str) {
    if let Ok(link) = HeaderValue::try_from(format!("<{next_url}>; rel=\"next\"")) {
        headers.insert(LINK, link);
    }
}
