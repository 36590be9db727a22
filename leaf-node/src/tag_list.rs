//! The tags of all stores, a part at a time.

use std::fmt;
use std::str::FromStr;

use leaf_core::Tag;
use leaf_registry::{OpenStore, StoreUrl};
use leaf_segment::shards::Shards;
use leaf_segment::store::{Family, MOST_RECORDS, TagCursor, TagCursorError};
use leaf_segment::{StoreError, TagRecord};

/// Some of the tags of all stores.
#[derive(Debug)]
pub struct TagList<'a> {
    /// Their records, each with its store, by name. One part is in no order with the next: a store
    /// lists its tags in its own.
    pub records: Vec<(&'a StoreUrl, TagRecord)>,
    /// Where the next part begins; `None` behind the last one.
    pub next: Option<ListCursor>,
    /// Stores that could not be read, and why. Their tags are missing.
    pub failed: Vec<(&'a StoreUrl, StoreError)>,
}

/// Where a part of the tags of all stores begins: by default the first.
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
    /// Which of the stores it is, in the order of the configuration.
    store: usize,
    /// The place in it; `None` is its beginning.
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

/// Up to `most` tags of all stores, or those of one family, from `from` on. A tag that stands in a store to which
/// `segment.shard` does not send it is left out: no node serves it. `open` tells what a shard is.
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
