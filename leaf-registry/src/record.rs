//! Rows of `leaf_alloc` and `leaf_tag_settings`, whatever the database.

use std::collections::HashMap;

use leaf_core::{Step, Tag};
use leaf_segment::{SEALED, StoreErrorKind, TagRecord, TagSettings};

/// The columns of `leaf_alloc` that every backend reads, in this order. Foreign tables may hold NULL
/// in any.
pub(crate) type Row = (String, Option<i64>, Option<i64>, Option<String>);

/// The rows as records, each with its settings, of which the texts are given by tag. Invalid rows are skipped
/// with a warning.
pub(crate) fn read(rows: Vec<Row>, settings: HashMap<String, String>) -> Vec<TagRecord> {
    let record = |(biz_tag, max_id, step, description): Row| {
        let (Ok(tag), Some(max_id)) = (Tag::parse(&biz_tag), max_id) else {
            tracing::warn!(?biz_tag, "a row of leaf_alloc is left out: no valid tag, or no max_id");
            return None;
        };
        let settings = settings.get(tag.as_str());
        let settings =
            settings.map_or_else(|| Ok(TagSettings::default()), |text| TagSettings::decode(text));
        Some(TagRecord { tag, max_id, step: Step::new(step.unwrap_or(0)), description, settings })
    };
    rows.into_iter().filter_map(record).collect()
}

/// The greatest `max_id` from which `amount` ids can be allocated: it must stay below [`SEALED`].
pub(crate) const fn most(amount: i64) -> i64 {
    SEALED - 1 - amount
}

/// Why an allocation of `amount` ids that expected the step `seen` changed no row, given the row;
/// `None` when nothing in it is wrong: then somebody has changed it meanwhile, or the failover guard
/// has refused.
pub(crate) fn why_not(row: Option<Row>, seen: Step, amount: i64) -> Option<StoreErrorKind> {
    let Some((_, max_id, step, _)) = row else { return Some(StoreErrorKind::UnknownTag) };
    let bad = |text: String| Some(StoreErrorKind::BadRecord(text));
    match (Step::new(step.unwrap_or(0)), max_id) {
        (Err(error), _) => bad(format!("{error}; correct its step")),
        (_, None) => bad("max_id is NULL; correct the row in leaf_alloc".into()),
        (_, Some(max_id @ ..0)) => bad(format!("max_id {max_id} is negative; advance the tag")),
        (_, Some(SEALED)) => Some(StoreErrorKind::Moved),
        (Ok(step), _) if step != seen => Some(StoreErrorKind::StepChanged(step)),
        (_, Some(max_id)) if max_id > most(amount) => Some(StoreErrorKind::Exhausted),
        _ => None,
    }
}

/// An administration statement met its row.
pub(crate) fn at_least_one(rows_affected: u64) -> Result<(), StoreErrorKind> {
    if rows_affected == 0 { Err(StoreErrorKind::UnknownTag) } else { Ok(()) }
}
