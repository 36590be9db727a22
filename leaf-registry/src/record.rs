//! The record of a tag as a store keeps it: a row of a table, or a value in etcd.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use leaf_core::{Step, Tag};
use leaf_segment::store::{Expected, SEALED, TagSettings};
use leaf_segment::{StoreErrorKind, TagRecord};
use leaf_shape::{Meaning, MeaningError};

/// A tag's row, as every backend reads it. In a table that Leaf did not make, any column may hold
/// NULL.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Every number less than this is granted.
    pub(crate) max_id: Option<i64>,
    /// The stored step, the least count of numbers per refill. Not validated yet: [`Step::new`]
    /// does that.
    pub(crate) step: Option<i64>,
    pub(crate) description: Option<String>,
    /// The encoded [`Meaning`]. `None` for a plain tag, whose table has no such column.
    pub(crate) meaning: Option<String>,
}

impl Row {
    /// Decodes what the numbers mean; an absent value is the plain meaning.
    fn meaning(&self) -> Result<Meaning, MeaningError> {
        self.meaning.as_deref().map_or(Ok(Meaning::PLAIN), Meaning::decode)
    }
}

/// Converts rows to records; `settings` maps each tag to the text of its settings. Invalid rows are
/// skipped with a warning. A name that is in both places (`leaf_alloc` and `leaf_sequence`, or both
/// prefixes of etcd) gets [`MeaningError::Twice`]: no id of it is issued.
pub(crate) fn read(rows: Vec<Row>, settings: HashMap<String, String>) -> Vec<TagRecord> {
    let mut records = HashMap::with_capacity(rows.len());
    for row in rows {
        let meaning = row.meaning();
        let Row { name, max_id, step, description, .. } = row;
        let (Ok(tag), Some(max_id)) = (Tag::parse(&name), max_id) else {
            tracing::warn!(?name, "a row is left out: no valid tag, or no max_id");
            continue;
        };
        let settings = settings.get(tag.as_str());
        let settings =
            settings.map_or_else(|| Ok(TagSettings::default()), |text| TagSettings::decode(text));
        let step = Step::new(step.unwrap_or(0));
        let record = TagRecord { tag: tag.clone(), max_id, step, description, meaning, settings };
        match records.entry(tag) {
            Entry::Vacant(free) => {
                free.insert(record);
            }
            Entry::Occupied(mut first) => first.get_mut().meaning = Err(MeaningError::Twice),
        }
    }
    records.into_values().collect()
}

/// The greatest `max_id` to which `amount` can be added so that the sum is not above what the
/// caller can use, and stays below [`SEALED`].
pub(crate) fn greatest_start(amount: i64, expected: Expected) -> i64 {
    expected.end.min(SEALED - 1) - amount
}

/// Returns why this row does not allow an allocation of `amount` ids; `None` if it does. After an
/// SQL statement that changed no row, `None` means that another writer has changed the row since,
/// or that the failover guard has refused.
pub(crate) fn why_not(
    row: Option<&Row>,
    expected: Expected,
    amount: i64,
) -> Option<StoreErrorKind> {
    let Some(row) = row else { return Some(StoreErrorKind::UnknownTag) };
    let bad = |text: String| Some(StoreErrorKind::BadRecord(text));
    if row.meaning() != Ok(expected.meaning) {
        return Some(StoreErrorKind::MeaningChanged);
    }
    match (Step::new(row.step.unwrap_or(0)), row.max_id) {
        (Err(error), _) => bad(format!("{error}; correct its step")),
        (_, None) => bad("max_id is NULL; correct the row".into()),
        (_, Some(max_id @ ..0)) => bad(format!("max_id {max_id} is negative; advance the tag")),
        (_, Some(SEALED)) => Some(StoreErrorKind::Moved),
        (Ok(step), _) if step != expected.step => Some(StoreErrorKind::StepChanged(step)),
        (_, Some(max_id)) if max_id.max(expected.least) > greatest_start(amount, expected) => {
            Some(StoreErrorKind::Exhausted)
        }
        _ => None,
    }
}
