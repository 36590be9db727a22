//! Views of a tag's state, for dashboards, metrics and operators.
//!
//! A view is a snapshot. To take it needs no lock that callers take while ids are in memory.

use std::sync::Arc;
use std::time::Duration;

use leaf_core::{DurationCounts, IdRange, Step, Tag};
use leaf_shape::Meaning;
use tokio::time::Instant;

use super::tag_state::TagState;
use crate::store::TagSettings;
use crate::{SegmentErrorKind, StoreError};

/// One tag of a [`SegmentGenerator`](crate::SegmentGenerator) at a moment.
///
/// ```
/// # use std::sync::Arc;
/// # use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = Arc::new(MemoryStore::with_tags([NewTag::sample()]));
/// let segments = SegmentGenerator::open(store, SegmentConfig::default()).await;
/// segments.tag("leaf-segment-test").await?.next().await?;
///
/// let view = &segments.views(None, 100)[0];
/// assert_eq!(view.issued, 1);
/// assert_eq!(view.slots[view.current].unwrap().to_string(), "[1, 2001)");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TagView {
    /// The tag's name.
    pub tag: Tag,
    /// The two segments; `None` before the first use of a slot.
    pub slots: [Option<IdRange>; 2],
    /// Which slot ids are taken from, 0 or 1.
    pub current: usize,
    /// The next number; `None` while the current segment is used up.
    pub position: Option<i64>,
    /// How many ids can be taken without the store.
    pub stock: u64,
    /// The record's step; `None` if the number in the row is not a valid step.
    pub step: Option<Step>,
    /// The record's settings; the defaults while they cannot be read (the next fetch sets `error`
    /// to the reason).
    pub settings: TagSettings,
    /// The last fetches, the newest last, at most 16.
    pub fetches: Vec<FetchView>,
    /// Whether a refill task of the tag is running. It may be waiting before a retry.
    pub fetching: bool,
    /// The error of the last fetch, and how long ago it was; `None` after a success. Show it only
    /// to operators: it may contain names of hosts.
    pub error: Option<(Arc<StoreError>, Duration)>,
    /// Ids handed out since the tag came into memory, those included that were leased and given
    /// back.
    pub issued: u64,
    /// Numbers that the tag has left: to the end of 63 bits, of its slice, of its text, or of the
    /// period of its last numbers. `None` before the first fetch, and where the settings cannot be
    /// read.
    pub remaining: Option<u64>,
    /// The tag's meaning.
    pub meaning: Meaning,
    /// Ids handed out per second, over the last minute.
    pub rate: f64,
    /// The high-water mark: a range that starts below it is refused. `None` before the first grant.
    pub mark: Option<i64>,
    /// If the record went back: the number from which it must go on, at least, before the tag gets
    /// ids again.
    pub advance_to: Option<i64>,
    /// Why the tag has ended; `None` while it serves ids.
    pub ended: Option<SegmentErrorKind>,
}

/// The tags that a [`SegmentGenerator`](crate::SegmentGenerator) knows, together.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Totals {
    /// How many tags are known.
    pub tags: usize,
    /// How many ids can be taken without the store.
    pub stock: u128,
    /// How many ids were issued since the generator was opened, those of tags included that have
    /// left memory since. It never falls.
    pub issued: u64,
    /// How long the store took to answer.
    pub store_answers: DurationCounts,
    /// How many requests the store did not serve, because it was unavailable or refused them.
    pub store_failures: u64,
    /// The tags whose records went back, by name, and the number from which each must go on, at
    /// least.
    pub went_back: Vec<(Tag, i64)>,
    /// Whether there is a tag whose key this process does not have.
    pub lacks_key: bool,
}

impl Totals {
    /// Sums up the states. `departed` is how many ids were issued by handles that were replaced or
    /// removed.
    pub(crate) fn of<'a>(departed: u64, states: impl Iterator<Item = &'a TagState>) -> Self {
        let mut totals = Self { issued: departed, ..Self::default() };
        for state in states {
            totals.tags += 1;
            totals.issued += state.issued();
            totals.stock += u128::from(state.numbers().stock());
            let control = state.control();
            totals.lacks_key |= matches!(control.ended, Some(SegmentErrorKind::Key(_)));
            if let Some(least) = state.advance_to(&control) {
                totals.went_back.push((state.tag.clone(), least));
            }
        }
        totals.went_back.sort_unstable();
        totals
    }
}

/// A range that the store granted.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct FetchView {
    /// How many ids it had: the dynamic step at that time, or as many as a call (in strict order:
    /// calls) requested.
    pub amount: u64,
    /// How long ago it arrived.
    pub ago: Duration,
    /// How long the store took.
    pub took: Duration,
}

impl TagView {
    pub(crate) fn of(state: &TagState) -> Self {
        use std::sync::atomic::Ordering;

        let now = Instant::now();
        let issued = state.issued();
        let buffer = state.numbers().view();
        let control = state.control();
        let fetches = control.fetches.iter().map(|fetched| FetchView {
            amount: fetched.amount.into(),
            ago: now - fetched.at,
            took: fetched.took(),
        });
        let failure = control.failure.as_ref();
        Self {
            tag: state.tag.clone(),
            slots: buffer.slots,
            current: buffer.current,
            position: buffer.position,
            stock: state.numbers().stock(),
            step: control.policy.as_ref().ok().map(|policy| policy.record()),
            settings: control
                .settings()
                .map_or_else(|_| TagSettings::default(), Arc::unwrap_or_clone),
            fetches: fetches.collect(),
            fetching: state.fetching.load(Ordering::Relaxed),
            error: failure.map(|failure| (Arc::clone(&failure.error), failure.at.elapsed())),
            issued,
            remaining: state.remaining(&control),
            meaning: state.meaning(),
            rate: control.rate.per_second(now, issued),
            mark: state.store_client.config.marks.get(&state.tag),
            advance_to: state.advance_to(&control),
            ended: control.ended.clone(),
        }
    }
}
