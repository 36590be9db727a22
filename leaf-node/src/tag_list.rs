//! Lists the tags of all stores, part by part.

use std::fmt;
use std::str::FromStr;

use crate::Shards;
use leaf_core::Tag;
use leaf_registry::{OpenStore, StoreUrl};
use leaf_segment::store::{Family, MOST_RECORDS, TagCursor, TagCursorError};
use leaf_segment::{StoreError, TagRecord};

/// One part of the list of all tags.
#[derive(Debug)]
pub struct TagList<'a> {
    /// The records of this part, each with its store, sorted by name. The whole list is not sorted:
    /// each store lists its tags in its own order.
    pub records: Vec<(&'a StoreUrl, TagRecord)>,
    /// The position at which the next part begins; `None` in the last part.
    pub next: Option<ListCursor>,
    /// Stores that could not be read, and why. Their tags are missing.
    pub failed: Vec<(&'a StoreUrl, StoreError)>,
}

/// The position at which a part of the list of tags begins. The default is the first part.
///
/// ```
/// use leaf_node::ListCursor;
///
/// let cursor: ListCursor = "1:plain:orders".parse()?;
/// assert_eq!(cursor.to_string(), "1:plain:orders");
/// assert!("orders".parse::<ListCursor>().is_err());
/// # Ok::<(), leaf_segment::store::TagCursorError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListCursor {
    /// The index of the store, in the order of the configuration.
    store: usize,
    /// The position within the store; `None` is its beginning.
    place: Option<TagCursor>,
}

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.store)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, ":{place}"))
    }
}

impl FromStr for ListCursor {
    type Err = TagCursorError;

    fn from_str(text: &str) -> Result<Self, TagCursorError> {
        let (store, place) = match text.split_once(':') {
            Some((store, place)) => (store, Some(place.parse()?)),
            None => (text, None),
        };
        Ok(Self { store: store.parse().map_err(|_| TagCursorError)?, place })
    }
}

/// Lists up to `most` tags of all stores, or of one family, beginning at `from`. A tag is left out
/// if `segment.shard` assigns it to another store than the one that has it: no node serves it
/// there. `open` returns the URL and the store of a shard.
pub async fn list_tags<'a, T>(
    stores: &'a Shards<T>,
    open: impl Fn(&'a T) -> (&'a StoreUrl, &'a OpenStore),
    family: Option<&Tag>,
    from: ListCursor,
    most: usize,
) -> TagList<'a> {
    let prefix = family.and_then(Family::prefix).unwrap_or_default();
    let mut list = TagList { records: Vec::new(), next: None, failed: Vec::new() };
    let ListCursor { store: first, mut place } = from;
    'stores: for (at, shard) in stores.iter().enumerate().skip(first) {
        let (url, store) = open(shard);
        loop {
            let wanted = most.saturating_sub(list.records.len()).min(MOST_RECORDS);
            if wanted == 0 {
                list.next = Some(ListCursor { store: at, place });
                break 'stores;
            }
            match store.store.page(place.as_ref(), prefix, wanted).await {
                Ok(page) => {
                    let is_own = |record: &TagRecord| {
                        let is_member = || record.made_by().as_ref() == family;
                        stores.is_of(record.tag.as_str(), shard)
                            && (family.is_none() || is_member())
                    };
                    let own = page.records.into_iter().filter(is_own);
                    list.records.extend(own.map(|record| (url, record)));
                    place = page.next;
                }
                Err(error) => {
                    list.failed.push((url, error));
                    place = None;
                }
            }
            if place.is_none() {
                break;
            }
        }
    }
    list.records.sort_by(|(_, a), (_, b)| a.tag.cmp(&b.tag));
    list
}
