//! The ports behind which segments are kept.
//!
//! Contract of every adapter: a range that `allocate` returned is durable and belongs to the caller
//! alone, for ever. A caller that got no clear answer must treat the range as lost; an adapter
//! never repeats a write by itself. Dropping a returned future half-way leaves an ambiguous write,
//! which can only make a gap.

use std::fmt;
use std::str::FromStr;

use futures_core::future::BoxFuture;
use jiff::Timestamp;
use leaf_core::{IdRange, Step, StepError, Tag, UnixMillis};

use crate::admin::EndedTag;
use crate::meaning::{Beyond, Meaning, MeaningError};
use crate::store::{Member, TagGeneration, TagSettings, TagSettingsError};
use crate::{StoreError, StoreErrorKind};

/// The `max_id` of a tag that nobody may allocate from any more, because it was moved to another
/// store or is about to be deleted. No allocation reaches it: the last id that can be granted is
/// two below. A Java Leaf cannot allocate from it either, since the database refuses the overflow.
pub const SEALED: i64 = i64::MAX;

/// An answer of a store. Boxed, since the configuration picks the store at run time.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Where a double buffer gets its ranges from.
pub trait RangeSource: fmt::Debug + Send + Sync + 'static {
    /// Reserves `amount` numbers of the tag, if the record is still as `expected`: the first free
    /// ones from
    /// [`Expected::least`] on. Durable before it returns.
    ///
    /// # Errors
    /// `UnknownTag`, `StepChanged` with the new step, `MeaningChanged`, `BadRecord`, `Moved`,
    /// `Exhausted` where the range would pass [`Expected::end`]: then nothing was changed; else a
    /// retryable or permanent failure of the store.
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        expected: Expected,
    ) -> StoreFuture<'a, IdRange>;

    /// Takes an allocation back: sets `max_id` from the end of `unused` to its start, if nobody
    /// allocated from the tag since, its record is of this generation and, where a database can
    /// fail over, the server is the one that allocated last; tells whether it did. The caller hands
    /// none of these ids out.
    ///
    /// # Errors
    /// Failures of the store.
    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        unused: IdRange,
    ) -> StoreFuture<'a, bool>;

    /// Finds out, by a request that changes nothing, whether [`Self::allocate`] would fail whatever
    /// the record is: the store does not answer, only reads, or misses a right. `None` where only an
    /// allocation tells.
    ///
    /// # Errors
    /// What `allocate` would fail with.
    fn try_allocating(&self) -> Option<StoreFuture<'_, ()>> {
        None
    }

    /// What the clock of the store's server shows; `None` where the store has no server with a clock
    /// of its own.
    ///
    /// # Errors
    /// Failures of the store.
    fn clock(&self) -> Option<StoreFuture<'_, UnixMillis>> {
        None
    }

    /// Ends the connections, after the last call.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// What the caller of [`RangeSource::allocate`] knows of the record, and which numbers it can use.
/// Nothing is allocated from a record that differs. A step alone stands for a plain tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// The record's step.
    pub step: Step,
    /// What its numbers mean.
    pub meaning: Meaning,
    /// Where numbers begin: a lower `max_id` is raised to it first. 0 in a plain tag.
    pub least: i64,
    /// One past the last number that the caller can use, at most [`SEALED`] - 1.
    pub end: i64,
}

impl Expected {
    /// A record of which every number can be used.
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

/// How many tags [`TagCatalog::records`] is asked for at a time, and a page of
/// [`TagCatalog::page`] has, at most.
pub const MOST_RECORDS: usize = 256;

/// Which tags there are. A store may hold millions: nothing reads all of them at once.
pub trait TagCatalog: fmt::Debug + Send + Sync + 'static {
    /// Reads one record; `None` when there is none.
    ///
    /// # Errors
    /// Failures of the store.
    fn tag<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<TagRecord>> {
        Box::pin(async move { Ok(self.look_up(std::slice::from_ref(tag)).await?.pop()) })
    }

    /// Reads the records of these tags, at most [`MOST_RECORDS`], in any order. A tag without a
    /// record is missing from the answer. A record that cannot be read, or only by a later version,
    /// is in the answer as one whose meaning or settings are an error, so that it costs the others
    /// nothing.
    ///
    /// # Errors
    /// Failures of the store.
    fn records<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>>;

    /// Reads the records of tags of which the generator knows no good record: it looks them up, or
    /// one of them was just changed. What a source has kept of them does not count here.
    ///
    /// # Errors
    /// Failures of the store.
    fn look_up<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        self.records(tags)
    }

    /// Makes those members of a family that are not there, all in one transaction, and returns
    /// what became of each of these, at most [`MOST_RECORDS`]. See [`MembersPlan`](crate::store::MembersPlan). A source
    /// without families, as here, makes none.
    ///
    /// # Errors
    /// `UnknownTag` where there is no such family; `Conflict`; failures of the store, after which
    /// the members may have been made or not.
    fn make_members<'a>(
        &'a self,
        family: &'a Tag,
        members: &'a [Tag],
    ) -> StoreFuture<'a, Vec<Member>> {
        let none = move |tag: &Tag| (tag.clone(), Err(StoreErrorKind::UnknownTag));
        let _ = family;
        Box::pin(async move { Ok(members.iter().map(none).collect()) })
    }

    /// Reads the next records in the store's own order, at most `most` of them and [`MOST_RECORDS`],
    /// behind `after`: from the beginning, or where the page before ended. Only names that begin
    /// with `prefix` count. Rows whose name is no valid [`Tag`] are left out with a
    /// warning. What is made or deleted while somebody reads page by page may be missing.
    ///
    /// # Errors
    /// Failures of the store.
    fn page<'a>(
        &'a self,
        after: Option<&'a TagCursor>,
        prefix: &'a str,
        most: usize,
    ) -> StoreFuture<'a, TagPage>;

    /// Finds out whether records can be read. A generator calls it before its first look-up, and
    /// once in each [`SegmentConfig::refresh`](crate::SegmentConfig::refresh): a store does here
    /// what it has to do regularly.
    ///
    /// # Errors
    /// Failures of the store.
    fn try_reading(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.records(&[]).await.map(drop) })
    }
}

/// Records that were read by [`TagCatalog::page`].
#[derive(Debug, Clone, Default)]
pub struct TagPage {
    /// The records, in the store's own order; perhaps none, also where more come.
    pub records: Vec<TagRecord>,
    /// Where the next page begins; `None` behind the last one.
    pub next: Option<TagCursor>,
}

/// A place in the order in which a store lists its tags, see [`TagCatalog::page`].
///
/// Plain tags come first, then all others: databases keep them in two tables. The order within a
/// table is the database's, which need not be that of the bytes.
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
    /// Whether it is among the plain tags.
    pub plain: bool,
    /// The name behind which it goes on, which need not be a valid [`Tag`].
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

/// What a [`SegmentGenerator`](crate::SegmentGenerator) needs: ranges, and the tags that they are
/// of. Every type that implements both traits implements it.
pub trait SegmentSource: RangeSource + TagCatalog {}

impl<T: RangeSource + TagCatalog + ?Sized> SegmentSource for T {}

/// Keeps the records of tags, and lets an operator change them. `leaf-registry` implements it for
/// databases.
pub trait TagStore: SegmentSource {
    /// Makes a new record, of a generation of its own unless `new` names one.
    ///
    /// # Errors
    /// `TagExists`; `UsedBefore` where [`EndedTag::check`] refuses it; failures of the store.
    fn create<'a>(&'a self, new: &'a NewTag) -> StoreFuture<'a, ()>;

    /// Changes a record if it is still the one that the change was decided on, see
    /// [`TagUpdate::apply`], and returns it as it is then. Running generators follow with their
    /// next refresh.
    ///
    /// # Errors
    /// `UnknownTag`; those of [`TagUpdate::apply`]; failures of the store.
    fn update<'a>(&'a self, update: &'a TagUpdate) -> StoreFuture<'a, TagRecord>;

    /// Sets `max_id` to `to` if it is `from` and the record is of this generation; tells whether it
    /// did. A store that has failed over may say no until the next allocation. Opens a tag that is
    /// sealed, say.
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

    /// Sets `max_id` to [`SEALED`] if the record is of this generation, and returns what it was:
    /// every allocation was below, and none comes after. The settings remember it, where they can be
    /// read and written. A store that locks rows lets it wait its
    /// turn among those who allocate; one that does not tries many times.
    ///
    /// # Errors
    /// [`SealError`]: `UnknownTag`; `RecordChanged` where it is of another generation; failures of
    /// the store.
    fn seal<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
    ) -> BoxFuture<'a, Result<i64, SealError>>;

    /// Removes a record that is sealed and of this generation. What its settings remember of the
    /// seal stays ([`Self::ended`]).
    ///
    /// # Errors
    /// `UnknownTag`; `RecordChanged` where it is open, or of another generation; failures of the
    /// store.
    fn delete<'a>(&'a self, tag: &'a Tag, generation: Option<TagGeneration>)
    -> StoreFuture<'a, ()>;

    /// What is remembered of the tag's last seal, whether the record is still there or was deleted.
    ///
    /// # Errors
    /// Failures of the store.
    fn ended<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<EndedTag>>;
}

/// A change of a record, and the record that it was decided on.
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
    /// `max_id` is raised to this, and in any case by one.
    pub at_least: Option<i64>,
    /// What the tag's numbers shall mean: with another key of scrambled ids, say.
    pub meaning: Option<Meaning>,
    /// The tag's new settings.
    pub settings: Option<TagSettings>,
}

impl TagUpdate {
    /// A change of nothing, to be filled in.
    #[must_use]
    pub const fn of(seen: TagRecord) -> Self {
        Self { seen, step: None, at_least: None, meaning: None, settings: None }
    }

    /// The record that `now` becomes. Every store calls this while nobody else can change the
    /// record.
    ///
    /// `max_id` always moves when it is raised: what was granted before the change then cannot be
    /// given back after it, since that names the `max_id` that it was granted up to.
    ///
    /// # Errors
    /// `RecordChanged` where step, meaning, settings or generation of `now` are not those that were seen;
    /// `Moved` where a sealed tag was to be raised; `Exhausted` where there is no greater `max_id`.
    pub fn apply(&self, now: &TagRecord) -> Result<TagRecord, StoreErrorKind> {
        if now.meaning != self.seen.meaning
            || now.settings != self.seen.settings
            || now.step != self.seen.step
        {
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

/// Sealing failed, or what became of it is not known. Keep `max_id`: it cannot be read again.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct SealError {
    /// What failed.
    pub error: StoreError,
    /// If the tag may be sealed all the same: what `max_id` was. Nothing but this error knows it
    /// then.
    pub max_id: Option<i64>,
}

impl From<StoreError> for SealError {
    /// The tag is not sealed.
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
    /// What its numbers mean; an error when this version may not guess it: then no id of the tag is
    /// issued.
    pub meaning: Result<Meaning, MeaningError>,
    /// What holds for it on every node; an error when this version may not follow them: then
    /// nothing is allocated from the tag.
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
    /// What holds for it on every node. Written with the record, in one transaction.
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

    /// Which making or repair of the tag it is of; `None` where it has none, or the settings cannot
    /// be read.
    #[must_use]
    pub fn generation(&self) -> Option<TagGeneration> {
        self.settings.as_ref().ok().and_then(|settings| settings.generation)
    }

    /// The period of its numbers, like 20261121, if that period has not begun by this clock: then some clock was ahead
    /// when it was opened, and the tag has no ids until it begins.
    #[must_use]
    pub fn closed_until(&self, now: UnixMillis) -> Option<i64> {
        let reset = self.meaning.as_ref().ok()?.reset?;
        let now =
            i64::try_from(now.get()).ok().and_then(|at| Timestamp::from_millisecond(at).ok())?;
        match reset.beyond(reset.window_at(now), self.max_id, now) {
            Beyond::Later(period) => Some(period),
            Beyond::Full | Beyond::Next(_) => None,
        }
    }

    /// What the record becomes when it is sealed: its settings, if they can be read, remember what
    /// it had granted.
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

    /// What the record's settings remember of its last seal.
    #[must_use]
    pub fn ended(&self) -> Option<EndedTag> {
        self.settings.as_ref().ok().and_then(|settings| settings.ended)
    }

    /// Whether ids may be handed out. Also if the settings cannot be read: that does not end a tag that is in use.
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

    /// The margin of a failover guard for this tag, if it is not the guard's own: a tag in strict
    /// order with few numbers jumps by a tenth of them.
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
        self.meaning.own_failover_margin(&self.settings)
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
