//! Rows of `leaf_alloc`, whatever the database.

use leaf_core::{Step, Tag};
use leaf_segment::{StoreErrorKind, TagRecord};

/// The columns that every backend reads, in this order. Foreign tables may hold NULL in any.
pub(crate) type Row = (String, Option<i64>, Option<i64>, Option<String>);

/// The row as a record; `None`, with a warning, when it is none.
pub(crate) fn read((biz_tag, max_id, step, description): Row) -> Option<TagRecord> {
    let (Ok(tag), Some(max_id)) = (Tag::parse(&biz_tag), max_id) else {
        tracing::warn!(?biz_tag, "a row of leaf_alloc is left out: no valid tag, or no max_id");
        return None;
    };
    Some(TagRecord { tag, max_id, step: Step::new(step.unwrap_or(0)), description })
}

/// Why an allocation that expected the step `seen` changed no row, given the row.
pub(crate) fn why_not(row: Option<Row>, seen: Step) -> StoreErrorKind {
    let Some((_, max_id, step, _)) = row else { return StoreErrorKind::UnknownTag };
    let bad = |text: String| StoreErrorKind::BadRecord(text);
    match (Step::new(step.unwrap_or(0)), max_id) {
        (Err(error), _) => bad(format!("{error}; correct the row in leaf_alloc")),
        (_, None) => bad("max_id is NULL; correct the row in leaf_alloc".into()),
        (_, Some(max_id @ ..0)) => {
            bad(format!("max_id {max_id} is negative; correct the row in leaf_alloc"))
        }
        (Ok(step), _) if step != seen => StoreErrorKind::StepChanged(step),
        _ => StoreErrorKind::Exhausted,
    }
}

/// An administration statement met its row.
pub(crate) fn at_least_one(rows_affected: u64) -> Result<(), StoreErrorKind> {
    if rows_affected == 0 { Err(StoreErrorKind::UnknownTag) } else { Ok(()) }
}
