//! Rows of `leaf_alloc`, whatever the database.

use leaf_core::{Step, Tag};
use leaf_segment::{StoreErrorKind, TagRecord};

/// The columns that every backend reads, in this order.
pub(crate) type Row = (String, i64, i64, Option<String>);

/// The row as a record; `None`, with a warning, when its name is no tag.
pub(crate) fn read((biz_tag, max_id, step, description): Row) -> Option<TagRecord> {
    match Tag::parse(&biz_tag) {
        Ok(tag) => Some(TagRecord { tag, max_id, step: Step::new(step), description }),
        Err(error) => {
            tracing::warn!(?biz_tag, "a row of leaf_alloc is left out: {error}");
            None
        }
    }
}

/// Why an allocation that expected the step `seen` changed no row, given the row's `max_id` and
/// step.
pub(crate) fn why_not(row: Option<(i64, i64)>, seen: Step) -> StoreErrorKind {
    let Some((max_id, step)) = row else { return StoreErrorKind::UnknownTag };
    match Step::new(step) {
        Err(error) => {
            StoreErrorKind::BadRecord(format!("{error}; set it with `leaf tag set-step`"))
        }
        Ok(step) if step != seen => StoreErrorKind::StepChanged(step),
        Ok(_) if max_id < 0 => StoreErrorKind::BadRecord(format!(
            "max_id {max_id} is negative; repair it with `leaf tag advance`"
        )),
        Ok(_) => StoreErrorKind::Exhausted,
    }
}

/// An administration statement met its row.
pub(crate) fn at_least_one(rows_affected: u64) -> Result<(), StoreErrorKind> {
    if rows_affected == 0 { Err(StoreErrorKind::UnknownTag) } else { Ok(()) }
}
