//! The port behind which segments are kept.
//!
//! Contract of every adapter: a range that `allocate` returned is durable and belongs to the caller
//! alone, for ever. A caller that got no clear answer must treat the range as lost; an adapter never
//! repeats a write by itself.

use std::fmt;

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, StepError, Tag};

use crate::{StoreError, TagSettings, TagSettingsError};

/// The `max_id` of a tag that nobody may allocate from any more, because it was moved to another store or
/// is about to be deleted. No allocation reaches it: the last id that can be granted is two below. A Java
/// Leaf cannot allocate from it either, since the database refuses the overflow.
pub const SEALED: i64 = i64::MAX;

/// Keeps one number per tag. Implemented in `leaf-registry` for databases.
///
/// Dropping a returned future half-way leaves an ambiguous write, which can only make a gap.
pub trait SegmentStore: fmt::Debug + Send + Sync + 'static {
    /// Adds `amount` to the tag's `max_id` if the record's step is still `seen`, and returns
    /// `[max_id - amount, max_id)` of the new value. Durable before it returns.
    ///
    /// # Errors
    /// `UnknownTag`, `StepChanged` with the new step, `BadStep`, `Exhausted` at the end of `i64`;
    /// else a retryable or permanent failure of the store.
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        seen: Step,
    ) -> BoxFuture<'a, Result<IdRange, StoreError>>;

    /// Reads one record; `None` when there is none.
    ///
    /// # Errors
    /// Failures of the store.
    fn tag<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<Option<TagRecord>, StoreError>>;

    /// Reads all records. Rows whose name is no valid [`Tag`] are left out with a warning.
    ///
    /// # Errors
    /// Failures of the store.
    fn tags(&self) -> BoxFuture<'_, Result<Vec<TagRecord>, StoreError>>;

    /// Makes a new record.
    ///
    /// # Errors
    /// `TagExists`, or failures of the store.
    fn create<'a>(&'a self, new: &'a NewTag) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Changes the record's step. Running generators follow at their next fetch.
    ///
    /// # Errors
    /// `UnknownTag`, or failures of the store.
    fn set_step<'a>(&'a self, tag: &'a Tag, step: Step) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Changes the record's settings. Running generators follow with their next refresh.
    ///
    /// # Errors
    /// `UnknownTag`, or failures of the store.
    fn set_settings<'a>(
        &'a self,
        tag: &'a Tag,
        settings: &'a TagSettings,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Raises `max_id` to `at_least` and returns what it is then. Never lowers it.
    ///
    /// # Errors
    /// `UnknownTag`, or failures of the store.
    fn advance<'a>(&'a self, tag: &'a Tag, at_least: i64)
    -> BoxFuture<'a, Result<i64, StoreError>>;

    /// Sets `max_id` to `to` if it is `from`, and the server is the one that allocated last; tells whether
    /// it did. Gives unused ids back (the caller promises that none of them was or will be handed out), and
    /// closes a tag for allocations ([`SEALED`]).
    ///
    /// # Errors
    /// Failures of the store.
    fn replace_max_id<'a>(
        &'a self,
        tag: &'a Tag,
        from: i64,
        to: i64,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Ends the connections, after the last call.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Removes the record. Made again with a lower `max_id`, its ids would repeat.
    ///
    /// # Errors
    /// `UnknownTag`, or failures of the store.
    fn delete<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<(), StoreError>>;
}

/// A record as the store holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRecord {
    /// Its name.
    pub tag: Tag,
    /// One past the last id that was ever reserved.
    pub max_id: i64,
    /// Its step; an error when the row holds a number that is none.
    pub step: Result<Step, StepError>,
    /// What it is for.
    pub description: Option<String>,
    /// What holds for it on every node; an error when this version may not follow them: then nothing is
    /// allocated from the tag.
    pub settings: Result<TagSettings, TagSettingsError>,
}

/// A record to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTag {
    /// Its name.
    pub tag: Tag,
    /// The first id that it will hand out. Default 1.
    pub max_id: i64,
    /// Its step.
    pub step: Step,
    /// What it is for, at most 256 characters.
    pub description: Option<String>,
}

impl TagRecord {
    /// Whether the tag was closed for allocations, see [`SEALED`].
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.max_id == SEALED
    }

    /// Whether ids are handed out. Settings that cannot be read do not end a tag that is in use.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.settings.as_ref().map_or(true, |settings| settings.enabled)
    }
}

impl From<NewTag> for TagRecord {
    fn from(new: NewTag) -> Self {
        let NewTag { tag, max_id, step, description } = new;
        Self { tag, max_id, step: Ok(step), description, settings: Ok(TagSettings::default()) }
    }
}

impl NewTag {
    /// A record that starts at 1.
    #[must_use]
    pub const fn new(tag: Tag, step: Step) -> Self {
        Self { tag, max_id: 1, step, description: None }
    }

    /// Leaf's stock row: `leaf-segment-test`, first id 1, step 2000.
    #[must_use]
    pub fn stock() -> Self {
        Self {
            tag: Tag::parse("leaf-segment-test").expect("a valid tag"),
            max_id: 1,
            step: Step::new(2000).expect("a valid step"),
            description: Some("Test leaf Segment Mode Get Id".into()),
        }
    }
}
