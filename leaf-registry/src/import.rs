//! Moving tags from one store to another.
//!
//! Invariant: no id that the old store granted, or may still grant to nodes that have not heard of the
//! move, is granted by the new one: a tag starts there at the old `max_id` and a gap, or at its own
//! `max_id` where that is greater. Doing it again advances it only by what the old store granted since. What counts is the next id, never the last (Kafka's importer of producer ids took the current
//! block, KAFKA-15552).

use leaf_segment::{NewTag, SegmentStore, StoreError, StoreErrorKind, TagRecord, TagSettings};

/// Makes `record`, as it was read from the old store, in the new one, and returns the first id that
/// it will grant there. A tag that the new store has already is advanced.
///
/// `gap` is how many ids the old store may still grant before its last node has stopped.
///
/// # Errors
/// `Exhausted` when the ids end before the gap; `BadRecord` when the old row holds no step; failures
/// of the store.
///
/// ```
/// use leaf_core::{Step, Tag};
/// use leaf_registry::import;
/// use leaf_segment::{MemoryStore, NewTag, SegmentStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (old, new) = (MemoryStore::with_tags([NewTag::stock()]), MemoryStore::default());
/// let (stock, step) = (Tag::parse("leaf-segment-test")?, Step::new(2000)?);
/// let last = old.allocate(&stock, step, step).await?;
///
/// let record = old.tag(&stock).await?.ok_or("no such tag")?;
/// assert_eq!(import(&record, &new, 1_000_000).await?, last.end() + 1_000_000);
/// # Ok(())
/// # }
/// ```
pub async fn import(
    record: &TagRecord,
    to: &dyn SegmentStore,
    gap: i64,
) -> Result<i64, StoreError> {
    let operation = format!("import tag {:?}", record.tag.as_str());
    let refuse = |kind| StoreError::new(kind, operation.clone());
    let step = record.step.map_err(|error| refuse(StoreErrorKind::BadRecord(error.to_string())))?;
    let first = record.max_id.max(1).checked_add(gap);
    let first = first.ok_or_else(|| refuse(StoreErrorKind::Exhausted))?;
    if to.tag(&record.tag).await?.is_none() {
        let description = record.description.clone();
        let new = NewTag { tag: record.tag.clone(), max_id: first, step, description };
        to.create(&new).await?;
        if record.settings != TagSettings::default() {
            to.set_settings(&record.tag, &record.settings).await?;
        }
    }
    to.advance(&record.tag, first).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaf_core::{Step, Tag};
    use leaf_segment::MemoryStore;
    use proptest::prelude::*;

    proptest! {
        /// G-16: whatever either store granted before, and the old one grants within the gap after, is
        /// never granted by the new one.
        #[test]
        fn what_is_granted_after_an_import_is_new(
            old_max in 0i64..1000,
            new_max in prop::option::of(0i64..1000),
            before in prop::collection::vec(1i64..50, 0..5),
            after in prop::collection::vec(1i64..50, 0..5),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let orders = Tag::parse("orders").unwrap();
                let step = Step::new(10).unwrap();
                let at = |max_id| NewTag { max_id, ..NewTag::new(orders.clone(), step) };
                let old = MemoryStore::with_tags([at(old_max)]);
                let new = MemoryStore::with_tags(new_max.map(at));
                let mut granted = Vec::new();
                let grant = async |store: &MemoryStore, amount: i64| {
                    store.allocate(&orders, Step::new(amount).unwrap(), step).await.unwrap()
                };
                for amount in &before {
                    granted.push(grant(&old, *amount).await);
                    if new_max.is_some() {
                        granted.push(grant(&new, *amount).await);
                    }
                }
                let record = old.tag(&orders).await.unwrap().unwrap();
                let first = import(&record, &new, 250).await.unwrap();
                for amount in &after {
                    granted.push(grant(&old, *amount).await);
                    let range = grant(&new, *amount).await;
                    assert!(range.start() >= first);
                    assert!(granted.iter().all(|before| !before.overlaps(range)), "{range}");
                }
            });
        }
    }
}
