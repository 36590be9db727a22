//! Reading every tag of a small store.

use leaf_segment::store::MOST_RECORDS;
use leaf_segment::{StoreError, TagRecord, TagStore};

/// Returns the records of all tags. Like the refresh of a generator, it first calls `try_reading`,
/// then reads page by page.
///
/// # Errors
/// Failures of the store.
pub async fn all_tags(store: &(impl TagStore + ?Sized)) -> Result<Vec<TagRecord>, StoreError> {
    store.try_reading().await?;
    let (mut all, mut place) = (Vec::new(), None);
    loop {
        let page = store.page(place.as_ref(), "", MOST_RECORDS).await?;
        all.extend(page.records);
        place = page.next;
        if place.is_none() {
            return Ok(all);
        }
    }
}
