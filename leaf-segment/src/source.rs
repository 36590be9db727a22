//! The traits through which a generator uses a store.
//!
//! Contract of every implementation: a range that `allocate` returned is durable and belongs to the
//! caller alone, for ever. If no clear answer arrives, the caller must treat the range as lost; the
//! implementation never repeats a write on its own. If a returned future is dropped before it
//! completes, it is unknown whether the write took place; at worst this makes a gap.

use std::fmt;
use std::str::FromStr;

use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, StepError, Tag, UnixMillis};
use leaf_shape::{Beyond, Meaning, MeaningError};

use crate::admin::EndedTag;
use crate::store::{Member, TagGeneration, TagSettings, TagSettingsError};
use crate::{StoreError, StoreErrorKind};

/// The `max_id` of a tag that nobody may allocate from any more, because it was moved to another
/// store or is about to be deleted. No allocation reaches it: the last id that can be granted is
/// two below. A Java Leaf cannot allocate from it either, since the database refuses the overflow.
pub const SEALED: i64 = i64::MAX;

/// An answer of a store. Boxed, since the configuration picks the store at run time.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The part of a store that reserves ranges of numbers and takes unused ones back.
pub trait RangeSource: fmt::Debug + Send + Sync + 'static {
    /// Reserves the next `amount` consecutive numbers of the tag, none below [`Expected::least`],
    /// if the record is still as `expected` says. The reservation is durable before this returns.
    ///
    /// # Errors
    /// `UnknownTag`, `StepChanged` with the new step, `MeaningChanged`, `BadRecord`, `Moved`;
    /// `Exhausted`, with the record unchanged, if the range would pass [`Expected::end`]; otherwise
    /// a retryable or permanent failure of the store.
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        expected: Expected,
    ) -> StoreFuture<'a, IdRange>;

    /// Takes back unused ids of an allocation: sets `max_id` from the end of `unused` to its start.
    /// Does so only if nobody has allocated from the tag since, the record is of this generation
    /// and, in a database that can fail over, the same server made the last allocation. Returns
    /// whether the ids went back. The caller must not hand out any of them.
    ///
    /// # Errors
    /// Failures of the store.
    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        unused: IdRange,
    ) -> StoreFuture<'a, bool>;

    /// Checks, by a request that changes nothing, whether [`Self::allocate`] would fail for every
    /// tag: the store does not answer, is read-only, or denies a privilege. `None` if only a real
    /// allocation can show that.
    ///
    /// # Errors
    /// The error that `allocate` would fail with.
    fn try_allocating(&self) -> Option<StoreFuture<'_, ()>> {
        None
    }

    /// Requests the time of the store's server; `None` if the store has no server with a clock of
    /// its own.
    ///
    /// # Errors
    /// Failures of the store.
    fn clock(&self) -> Option<StoreFuture<'_, UnixMillis>> {
        None
    }

    /// Closes the connections; no other method is called afterwards.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// What the caller of [`RangeSource::allocate`] expects of the record, and which numbers it can
/// use. Nothing is allocated from a record that differs. `Expected::from(step)` describes a plain
/// tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// The record's step.
    pub step: Step,
    /// The record's meaning.
    pub meaning: Meaning,
    /// The lowest number to grant: a lower `max_id` is first raised to this. 0 in a tag without
    /// periods.
    pub least: i64,
    /// One past the last number that the caller can use, at most [`SEALED`] - 1.
    pub end: i64,
}

impl Expected {
    /// Expects a record with this step and meaning; the caller can use every number.
    #[must_use]
    pub const fn new(step: Step, meaning: Meaning) -> Self {
        Self { step, meaning, least: 0, end: SEALED - 1 }
    }
}

impl From<Step> for Expected {
    fn from(step: Step) -> Self {
        Self::new(step, Meaning::PLAIN)
    }
}

/// The most tags that one call of [`TagCatalog::records`] may ask for, and the most records on one
/// page of [`TagStore::page`].
pub const MOST_RECORDS: usize = 256;

/// The part of a store that reads the records of tags. A store may hold millions: nothing reads all
/// of them at once.
pub trait TagCatalog: fmt::Debug + Send + Sync + 'static {
    /// Reads one record; `None` when there is none.
    ///
    /// # Errors
    /// Failures of the store.
    fn tag<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<TagRecord>> {
        Box::pin(async move { Ok(self.look_up(std::slice::from_ref(tag)).await?.pop()) })
    }

    /// Reads the records of these tags, at most [`MOST_RECORDS`], in any order. A tag without a
    /// record is missing from the answer. A record that this version cannot read is returned with
    /// an error for its meaning or settings, so that the other records are not affected.
    ///
    /// # Errors
    /// Failures of the store.
    fn records<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>>;

    /// Reads the records of these tags from the store itself, even where [`Self::records`] may
    /// answer from a copy. Called for tags that the generator looks up, and for a tag whose record
    /// was just changed.
    ///
    /// # Errors
    /// Failures of the store.
    fn look_up<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        self.records(tags)
    }

    /// Makes those of `members` (at most [`MOST_RECORDS`]) that do not exist yet, all in one
    /// transaction. Returns the outcome for each of `members`, see
    /// [`MembersPlan`](crate::store::MembersPlan). The default implementation is for a source
    /// without families: it makes none.
    ///
    /// # Errors
    /// `UnknownTag` if the family does not exist; `Conflict`; failures of the store, after which it
    /// is unknown whether the members were made.
    fn make_members<'a>(
        &'a self,
        family: &'a Tag,
        members: &'a [Tag],
    ) -> StoreFuture<'a, Vec<Member>> {
        let none = move |tag: &Tag| (tag.clone(), Err(StoreErrorKind::UnknownTag));
        let _ = family;
        Box::pin(async move { Ok(members.iter().map(none).collect()) })
    }

    /// Checks whether records can be read. A generator calls this before its first look-up, and
    /// then once in every [`SegmentConfig::refresh`](crate::SegmentConfig::refresh). A store can
    /// also do its regular housekeeping here.
    ///
    /// # Errors
    /// Failures of the store.
    fn try_reading(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.records(&[]).await.map(drop) })
    }
}

/// Records that were read by [`TagStore::page`].
#[derive(Debug, Clone, Default)]
pub struct TagPage {
    /// The records, in the store's own order. May be empty although more pages follow.
    pub records: Vec<TagRecord>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<TagCursor>,
}

/// A place in the order in which a store lists its tags, see [`TagStore::page`].
///
/// Plain tags come first, then all others: databases keep them in two tables. The order within a
/// table is the database's, which need not be the byte order of the names.
///
/// ```
/// use leaf_segment::store::TagCursor;
///
/// let cursor: TagCursor = "plain:orders".parse()?;
/// assert_eq!(cursor, TagCursor { plain: true, name: "orders".into() });
/// assert_eq!(cursor.to_string(), "plain:orders");
/// assert!("orders".parse::<TagCursor>().is_err());
/// # Ok::<(), leaf_segment::store::TagCursorError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagCursor {
    /// Whether the place is among the plain tags.
    pub plain: bool,
    /// The name after which the list continues. It need not be a valid [`Tag`].
    pub name: String,
}

/// A text is no [`TagCursor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("give the place that the page before named, as it stood there")]
pub struct TagCursorError;

impl fmt::Display for TagCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", if self.plain { "plain" } else { "other" }, self.name)
    }
}

impl FromStr for TagCursor {
    type Err = TagCursorError;

    fn from_str(text: &str) -> Result<Self, TagCursorError> {
        let plain = |name| (true, name);
        let other = |name| (false, name);
        let (plain, name) = (text.strip_prefix("plain:").map(plain))
            .or_else(|| text.strip_prefix("other:").map(other))
            .filter(|(_, name)| name.len() <= Tag::MAX_CHARS * 4)
            .ok_or(TagCursorError)?;
        Ok(Self { plain, name: name.into() })
    }
}

/// Everything that a [`SegmentGenerator`](crate::SegmentGenerator) needs of a store: ranges and the
/// records of tags. Implemented for every type that implements both traits.
pub trait SegmentSource: RangeSource + TagCatalog {}

impl<T: RangeSource + TagCatalog + ?Sized> SegmentSource for T {}

/// Keeps the records of tags, and lets an operator change them. `leaf-registry` implements it for
/// databases.
pub trait TagStore: SegmentSource {
    /// Reads one page of records in the store's own order: those after `after`, or the first ones
    /// if it is `None`; at most `most` and never more than [`MOST_RECORDS`]. Only names that begin
    /// with `prefix` are listed. Rows whose name is not a valid [`Tag`] are left out with a
    /// warning. Tags that are made or deleted between two pages may or may not be listed.
    ///
    /// # Errors
    /// Failures of the store.
    fn page<'a>(
        &'a self,
        after: Option<&'a TagCursor>,
        prefix: &'a str,
        most: usize,
    ) -> StoreFuture<'a, TagPage>;

    /// Makes a new record, with a newly drawn generation unless `new` has one.
    ///
    /// # Errors
    /// `TagExists`; `UsedBefore` where [`EndedTag::check`] refuses it; failures of the store.
    fn create<'a>(&'a self, new: &'a NewTag) -> StoreFuture<'a, ()>;

    /// Changes a record if it is still as it was when the change was decided, see
    /// [`TagUpdate::apply`], and returns the new record. Running generators apply the change at
    /// their next refresh.
    ///
    /// # Errors
    /// `UnknownTag`; those of [`TagUpdate::apply`]; failures of the store.
    fn update<'a>(&'a self, update: &'a TagUpdate) -> StoreFuture<'a, TagRecord>;

    /// Sets `max_id` to `to` if it is `from` and the record is of this generation; returns whether
    /// it did. After a failover, a store may return `false` until the next allocation. Used, for
    /// example, to open a tag that is sealed.
    ///
    /// # Errors
    /// Failures of the store.
    fn replace_max_id<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        from: i64,
        to: i64,
    ) -> StoreFuture<'a, bool>;

    /// Sets `max_id` to [`SEALED`] if the record is of this generation, and returns the value at
    /// which the tag can go on elsewhere: the previous `max_id`, or, after a failover, a greater
    /// one. All numbers ever granted are below this value, and no allocation succeeds afterwards.
    /// The record's settings keep the value ([`Self::ended`]), if they can be read and written. A
    /// store with row locks queues this request among the allocations; one without them retries it
    /// many times.
    ///
    /// # Errors
    /// [`SealError`]: `UnknownTag`; `RecordChanged` if the record is of another generation;
    /// failures of the store.
    fn seal<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
    ) -> BoxFuture<'a, Result<i64, SealError>>;

    /// Checks, before the tag is sealed, that [`Self::delete`] would be allowed, and that the store has
    /// a place for what the tag granted. A seal cannot be undone: a tag that is sealed and cannot be
    /// deleted gives no ids. The default checks nothing: it is for stores without such rights.
    ///
    /// # Errors
    /// What [`Self::delete`] would end with; failures of the store.
    fn try_deleting<'a>(&'a self, _tag: &'a Tag) -> StoreFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Removes a record that is sealed and of this generation. What its settings recorded at the
    /// sealing is kept ([`Self::ended`]).
    ///
    /// # Errors
    /// `UnknownTag`; `RecordChanged` if the record is not sealed or is of another generation;
    /// failures of the store.
    fn delete<'a>(&'a self, tag: &'a Tag, generation: Option<TagGeneration>)
    -> StoreFuture<'a, ()>;

    /// Returns what was recorded when the tag was last sealed, also after its record was deleted;
    /// `None` if nothing was.
    ///
    /// # Errors
    /// Failures of the store.
    fn ended<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<EndedTag>>;
}

/// A change of a record, with the record as it was read before the change was decided.
///
/// ```
/// use leaf_core::{Step, Tag};
/// use leaf_segment::{NewTag, TagRecord};
/// use leaf_segment::store::TagUpdate;
///
/// let orders: TagRecord = NewTag::new(Tag::parse("orders")?, Step::new(100)?).into();
/// let update = TagUpdate { at_least: Some(5000), ..TagUpdate::of(orders.clone()) };
/// assert_eq!(update.apply(&orders)?.max_id, 5000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TagUpdate {
    /// The record as it was read.
    pub seen: TagRecord,
    /// The tag's new step.
    pub step: Option<Step>,
    /// Raises `max_id` to this or, if that is more, by one. `None` leaves it unchanged.
    pub at_least: Option<i64>,
    /// The new meaning of the tag's numbers, for example with another key for scrambled ids.
    pub meaning: Option<Meaning>,
    /// The tag's new settings.
    pub settings: Option<TagSettings>,
}

impl TagUpdate {
    /// An update that changes nothing until its fields are set.
    #[must_use]
    pub const fn of(seen: TagRecord) -> Self {
        Self { seen, step: None, at_least: None, meaning: None, settings: None }
    }

    /// Whether this change reopens the tag.
    #[must_use]
    pub fn reopens(&self) -> bool {
        let before = self.seen.meaning.as_ref().map_or(0, |meaning| meaning.counter_offset());
        self.meaning.is_some_and(|meaning| meaning.counter_offset() != before)
    }

    /// Returns the record that results from this change of `now`, the current record. Every store
    /// calls this while nobody else can change the record.
    ///
    /// A raise always changes `max_id`, by one at least. So what was granted before the raise
    /// cannot be given back after it: that succeeds only if `max_id` is still the end of the
    /// granted range.
    ///
    /// # Errors
    /// `RecordChanged` if step, meaning, settings or generation of `now` differ from those in
    /// `seen`, or if the change reopens the tag and `max_id` differs; `Moved` if a sealed tag would
    /// be raised; `Exhausted` if `max_id` cannot be raised further.
    pub fn apply(&self, now: &TagRecord) -> Result<TagRecord, StoreErrorKind> {
        if now.meaning != self.seen.meaning
            || now.settings != self.seen.settings
            || now.step != self.seen.step
        {
            return Err(StoreErrorKind::RecordChanged);
        }
        // What was granted up to `max_id` is in the new meaning.
        if self.reopens() && now.max_id != self.seen.max_id {
            return Err(StoreErrorKind::RecordChanged);
        }
        let max_id = match self.at_least {
            None => now.max_id,
            Some(_) if now.is_sealed() => return Err(StoreErrorKind::Moved),
            Some(at_least) => (now.max_id + 1).max(at_least),
        };
        if max_id == SEALED && !now.is_sealed() {
            return Err(StoreErrorKind::Exhausted);
        }
        Ok(TagRecord {
            max_id,
            step: self.step.map_or(now.step, Ok),
            meaning: self.meaning.map_or_else(|| now.meaning.clone(), Ok),
            settings: self.settings.clone().map_or_else(|| now.settings.clone(), Ok),
            ..now.clone()
        })
    }
}

/// Sealing failed, or its outcome is unknown. Keep `max_id`: it cannot be read from the store
/// again.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct SealError {
    /// What failed.
    pub error: StoreError,
    /// The last `max_id`, if the tag may be sealed in spite of the error. It may be recorded
    /// nowhere but in this error.
    pub max_id: Option<i64>,
}

impl From<StoreError> for SealError {
    /// Converts a failure after which the tag is not sealed.
    fn from(error: StoreError) -> Self {
        Self { error, max_id: None }
    }
}

/// A record as the store holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRecord {
    /// Its name.
    pub tag: Tag,
    /// The next number to be reserved, in a plain tag the next id; [`SEALED`] in a tag that is
    /// sealed.
    pub max_id: i64,
    /// The tag's step; an error if the number in the row is not a valid step.
    pub step: Result<Step, StepError>,
    /// What it is for.
    pub description: Option<String>,
    /// What the tag's numbers mean; an error if this version cannot read it: then no id of the tag
    /// is issued.
    pub meaning: Result<Meaning, MeaningError>,
    /// The tag's settings, which hold on every node; an error if this version cannot follow them:
    /// then nothing is allocated from the tag.
    pub settings: Result<TagSettings, TagSettingsError>,
}

/// A record to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTag {
    /// Its name.
    pub tag: Tag,
    /// Its first number, in a plain tag its first id. Default 1.
    pub max_id: i64,
    /// The tag's step. A tag in strict order does not use it.
    pub step: Step,
    /// What its numbers mean. Default plain.
    pub meaning: Meaning,
    /// The tag's settings, which hold on every node. Written with the record, in one transaction.
    pub settings: TagSettings,
    /// What it is for, at most 256 characters.
    pub description: Option<String>,
}

impl TagRecord {
    /// Whether the tag was sealed, see [`SEALED`].
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        self.max_id == SEALED
    }

    /// The record's generation, drawn when the tag was made or last repaired; `None` if the record
    /// has none, or its settings cannot be read.
    #[must_use]
    pub fn generation(&self) -> Option<TagGeneration> {
        self.settings.as_ref().ok().and_then(|settings| settings.generation)
    }

    /// Returns the open period of the tag, like 20261121, if that period has not begun at `now`.
    /// Then some clock was ahead when the period was opened, and the tag has no ids until it
    /// begins.
    #[must_use]
    pub fn closed_until(&self, now: UnixMillis) -> Option<i64> {
        let reset = self.meaning.as_ref().ok()?.reset?;
        match reset.beyond(reset.window_at(now), self.max_id, now) {
            Beyond::Later(period) => Some(period),
            Beyond::Full | Beyond::Next(_) => None,
        }
    }

    /// Returns the record as it is once sealed: its settings, if they can be read, record what the
    /// tag had granted.
    #[must_use]
    pub fn sealed(&self) -> Self {
        let mut sealed = Self { max_id: SEALED, ..self.clone() };
        if let (Ok(settings), Ok(meaning)) = (&mut sealed.settings, &self.meaning)
            && !self.is_sealed()
        {
            let ended = EndedTag { meaning: *meaning, next: self.max_id };
            settings.ended = Some(settings.ended.map_or(ended, |before| before.max(ended)));
        }
        sealed
    }

    /// What the tag had granted when it was last sealed, as the record's settings hold it.
    #[must_use]
    pub fn ended(&self) -> Option<EndedTag> {
        self.settings.as_ref().ok().and_then(|settings| settings.ended)
    }

    /// Whether ids may be handed out. `true` also if the settings cannot be read: that does not end
    /// a tag in use.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.settings.as_ref().map_or(true, |settings| settings.enabled)
    }
}

impl From<NewTag> for TagRecord {
    fn from(new: NewTag) -> Self {
        let NewTag { tag, max_id, step, meaning, settings, description } = new;
        Self {
            tag,
            max_id,
            step: Ok(step),
            description,
            meaning: Ok(meaning),
            settings: Ok(settings),
        }
    }
}

impl NewTag {
    /// A record that starts at 1.
    #[must_use]
    pub fn new(tag: Tag, step: Step) -> Self {
        let settings = TagSettings::default();
        Self { tag, max_id: 1, step, meaning: Meaning::PLAIN, settings, description: None }
    }

    /// A record in strict order that starts at 1.
    #[must_use]
    pub fn strict(tag: Tag) -> Self {
        Self { meaning: Meaning::STRICT, ..Self::new(tag, Step::MIN) }
    }

    /// The margin by which the failover guard advances this tag; `None` for the guard's own margin.
    /// A tag in strict order with few numbers is advanced by a tenth of them.
    ///
    /// ```
    /// use leaf_core::{Step, Tag};
    /// use leaf_segment::NewTag;
    ///
    /// let orders = NewTag::new(Tag::parse("orders").unwrap(), Step::MIN);
    /// assert_eq!(orders.own_failover_margin(), None);
    /// ```
    #[must_use]
    pub fn own_failover_margin(&self) -> Option<i64> {
        self.settings.own_failover_margin(self.meaning)
    }

    /// The sample row that the Java Leaf's schema comes with: `leaf-segment-test`, first id 1, step
    /// 2000.
    #[must_use]
    pub fn sample() -> Self {
        let tag = Tag::parse("leaf-segment-test").expect("a valid tag");
        Self {
            description: Some("Test leaf Segment Mode Get Id".into()),
            ..Self::new(tag, Step::new(2000).expect("a valid step"))
        }
    }
}
