//! The operations on tags for operators, and the rules that keep them from losing or repeating ids.
//!
//! Invariants: `max_id` never falls. A tag is sealed before it is deleted, so that it is known
//! exactly what it granted. What cannot be undone must be confirmed. A change is written only over
//! the record that it was decided on; a record that was repaired or made again meanwhile stays
//! unchanged.

use std::time::Duration;

use leaf_core::{Clock, RELEASED, Step, Tag};
use leaf_shape::keys::KeyRing;
use leaf_shape::{Meaning, Order, Shape};
use tokio::time::Instant;

use crate::admin::EndedTag;
use crate::store::{
    Family, MOST_RECORDS, SealError, TagCursor, TagGeneration, TagSettings, TagSettingsError,
    TagUpdate,
};
use crate::{NewTag, StoreError, StoreErrorKind, TagRecord, TagStore};

/// A raise of `max_id` by more than this must be confirmed: the skipped ids are lost for ever.
const FAR: i64 = 1_000_000_000_000;
/// In a tag with periods, a raise by more than this many periods must be confirmed. Periods are
/// counted by their codes (20261121): from the last day of a month to the next day that is about
/// 70, but from December to January it is 8870, which must be confirmed.
const PERIODS: i64 = 200;
pub(crate) const NO_STEP: &str =
    "a tag in strict order has no step, since every request goes to the store: leave it out";
/// How many times a change is tried if somebody else keeps changing the record first.
const TRIES: u32 = 8;
/// After this time a change is not tried again, even if [`TRIES`] are left: the store itself has
/// retried meanwhile.
const TRIES_WITHIN: Duration = Duration::from_secs(5);
/// The most characters that the column of descriptions holds.
const DESCRIPTION_CHARS: usize = 256;

/// Administers the tags of one store.
///
/// ```
/// use leaf_core::{Step, Tag};
/// use leaf_segment::{MemoryStore, NewTag};
/// use leaf_segment::admin::{Confirm, TagAdmin, TagChange};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::default();
/// let (admin, orders) = (TagAdmin::new(&store), Tag::parse("orders")?);
/// admin.create(&NewTag::new(orders.clone(), Step::new(2000)?)).await?;
///
/// let change = TagChange { step: Some(Step::new(5000)?), ..TagChange::default() };
/// assert_eq!(admin.change(&orders, change).await?.step, Step::new(5000));
/// assert!(admin.advance(&orders, i64::MAX - 1, Confirm::No).await.is_err(), "that far only when sure");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct TagAdmin<'a> {
    store: &'a dyn TagStore,
    failover_margin: Option<i64>,
    dry_run: bool,
}

/// Whether an operator confirmed what cannot be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirm {
    /// Not confirmed: an operation that needs a confirmation changes nothing, and its error says
    /// what it would do.
    No,
    /// Do it.
    Yes,
}

impl From<bool> for Confirm {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// The changes of a tag. `None` leaves a value as it is. `Some(None)` removes the tag's value, so
/// that each server's configured value holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TagChange {
    /// The record's step.
    pub step: Option<Step>,
    /// Whether ids are handed out.
    pub enabled: Option<bool>,
    /// The dynamic step never falls below this.
    pub min_step: Option<Option<Step>>,
    /// The dynamic step grows up to this.
    pub max_step: Option<Option<Step>>,
    /// The most ids that one call takes.
    pub max_take: Option<Option<Step>>,
    /// How many members a family may have.
    pub max_members: Option<u32>,
    /// How many members of a family each node makes in a second.
    pub members_per_second: Option<u32>,
}

/// What an operator knows about the ids of a tag that is to be reopened, see [`TagAdmin::reopen`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reopening {
    /// The greatest id of the present period that may have been issued. If the present period had
    /// none: an id of an earlier period, or 0. `None` if nobody knows it: the tag then has no ids
    /// until the next period.
    pub above: Option<i64>,
    /// The first period that a wrong clock opened, like 20271121: the open period, or an earlier
    /// one if that clock went on into another period before it was corrected. Required unless the
    /// open period is the next one.
    pub first_taken: Option<i64>,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TagAdminError {
    /// What was asked for makes no sense; the text says why.
    #[error("{0}")]
    Refused(String),
    /// The request contradicts the tag's record.
    #[error("{0}")]
    Conflict(String),
    /// Somebody else changed the record since the caller read it.
    #[error("somebody else has changed the tag meanwhile: look at it again")]
    Stale,
    /// The key that the tag needs is not in the key ring.
    #[error("{0}")]
    NoKey(String),
    /// The change cannot be undone, and was not confirmed; the text says what it means.
    #[error("{0}")]
    Unconfirmed(String),
    /// A deletion failed half-way: the tag may be sealed, and was not deleted. What it had granted
    /// may be recorded only in this error.
    #[error(
        "{error}; the tag may be sealed now: delete it again, and remember that it granted {ended}: made again, it must \
         start no lower"
    )]
    HalfDeleted {
        /// What failed.
        error: StoreError,
        /// What the tag granted.
        ended: Box<EndedTag>,
    },
    /// A failure of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// The tag's record, as it was before the deletion.
    pub record: TagRecord,
    /// What the tag granted, which no new tag of its name may grant. If the tag was sealed before,
    /// this ends at that moment: what it granted since, in a store that it was moved to, is
    /// recorded there. `None` if it was not recorded: an earlier version of Leaf sealed the tag, or
    /// the database has no table of settings.
    pub ended: Option<EndedTag>,
}

impl<'a> TagAdmin<'a> {
    /// Administers the tags of this store.
    #[must_use]
    pub const fn new(store: &'a dyn TagStore) -> Self {
        Self { store, failover_margin: None, dry_run: false }
    }

    /// Sets the margin by which the store's failover guard advances tags. A raise by more than half
    /// of it must be confirmed: if a failover loses that raise, the guard advances the tag only to
    /// a number below the ids that were granted since. `None` if the store has no failover guard.
    #[must_use]
    pub const fn with_failover_margin(self, margin: Option<i64>) -> Self {
        Self { failover_margin: margin, ..self }
    }

    /// With `dry_run` every method checks what it would do, and returns the record as it would be,
    /// but writes nothing. What the store itself refuses, like a right that is missing, shows only
    /// when it is done.
    #[must_use]
    pub const fn with_dry_run(self, dry_run: bool) -> Self {
        Self { dry_run, ..self }
    }

    /// Returns the tag's record.
    ///
    /// # Errors
    /// `UnknownTag`, or failures of the store.
    pub async fn read(&self, tag: &Tag) -> Result<TagRecord, TagAdminError> {
        if let Some(record) = self.store.tag(tag).await? {
            return Ok(record);
        }
        let operation = format!("read tag {:?}", tag.as_str());
        let unknown = StoreError::new(StoreErrorKind::UnknownTag, operation);
        Err(match self.store.ended(tag).await? {
            Some(ended) => {
                unknown.because(format!("one of this name was deleted, and had granted {ended}"))
            }
            None => unknown,
        }
        .into())
    }

    /// Makes a tag.
    ///
    /// # Errors
    /// `Refused` for an invalid first id or a description that is too long; `TagExists`;
    /// `UsedBefore`; failures of the store.
    pub async fn create(&self, new: &NewTag) -> Result<TagRecord, TagAdminError> {
        check_id("the first id", new.max_id)?;
        let length = new.description.as_ref().map_or(0, |text| text.chars().count());
        if length > DESCRIPTION_CHARS {
            return Err(TagAdminError::Refused(format!(
                "the description has {length} characters: give at most {DESCRIPTION_CHARS}"
            )));
        }
        let new = NewTag { settings: new.settings.of_new_tag(), ..new.clone() };
        match self.dry_run {
            true => self.check_name_is_free(&new).await?,
            false => self.store.create(&new).await?,
        }
        Ok(new.into())
    }

    /// Refuses a new tag that the store would refuse, for a dry run.
    async fn check_name_is_free(&self, new: &NewTag) -> Result<(), StoreError> {
        let refused = match self.store.tag(&new.tag).await? {
            Some(_) => Some(StoreErrorKind::TagExists),
            None => {
                let ended = self.store.ended(&new.tag).await?;
                ended.and_then(|it| it.check(new).err()).map(StoreErrorKind::UsedBefore)
            }
        };
        let operation = || format!("create tag {:?}", new.tag.as_str());
        refused.map_or(Ok(()), |kind| Err(StoreError::new(kind, operation())))
    }

    /// Reads the record, and writes the change that `decide` makes of it. If somebody else changes
    /// the record first, reads and decides again, for some seconds, unless the tag was repaired or
    /// made again.
    async fn update(
        &self,
        tag: &Tag,
        decide: impl Fn(&TagRecord) -> Result<TagUpdate, TagAdminError>,
    ) -> Result<TagRecord, TagAdminError> {
        let mut record = self.read(tag).await?;
        let (generation, begun) = (record.generation(), Instant::now());
        let overtaken = |error: &StoreError| {
            matches!(error.kind(), StoreErrorKind::RecordChanged | StoreErrorKind::Conflict)
        };
        for _ in 1..TRIES {
            match self.write(&decide(&record)?).await {
                Err(error) if overtaken(&error) && begun.elapsed() < TRIES_WITHIN => {
                    record = self.read(tag).await?;
                    if record.generation() != generation {
                        return Err(error.into());
                    }
                }
                updated => return Ok(updated?),
            }
        }
        Ok(self.write(&decide(&record)?).await?)
    }

    /// Writes a change and returns the new record; in a dry run only computes it.
    async fn write(&self, update: &TagUpdate) -> Result<TagRecord, StoreError> {
        if !self.dry_run {
            return self.store.update(update).await;
        }
        let operation = || format!("change tag {:?}", update.seen.tag.as_str());
        update.apply(&update.seen).map_err(|kind| StoreError::new(kind, operation()))
    }

    /// Changes step and settings. If two operators change different settings at the same time, both
    /// changes take effect.
    ///
    /// # Errors
    /// `Conflict` where `min_step` would be above `max_step`, and in a tag that is sealed;
    /// `UnknownTag`; failures of the store.
    pub async fn change(&self, tag: &Tag, change: TagChange) -> Result<TagRecord, TagAdminError> {
        self.change_if(tag, change, |_| true).await
    }

    /// Does what [`Self::change`] does, but only if `is_expected` is true of the record, so that an
    /// operator changes only what was shown to them. `is_expected` is called with the very record
    /// that is then changed.
    ///
    /// # Errors
    /// `Stale` if `is_expected` is false; the errors of [`Self::change`].
    pub async fn change_if(
        &self,
        tag: &Tag,
        change: TagChange,
        is_expected: impl Fn(&TagRecord) -> bool,
    ) -> Result<TagRecord, TagAdminError> {
        self.update(tag, |record| {
            if !is_expected(record) {
                return Err(TagAdminError::Stale);
            }
            let meaning = usable_and_open(record)?;
            let steps = [change.min_step.flatten(), change.max_step.flatten(), change.step];
            if meaning.order == Order::Strict && steps.iter().any(Option::is_some) {
                return Err(TagAdminError::Conflict(NO_STEP.into()));
            }
            let before = match &record.settings {
                // Setting them again repairs them. Whether it was enabled is not known.
                Err(TagSettingsError::Damaged(_)) if change.enabled.is_some() => {
                    TagSettings::default().of_new_tag()
                }
                _ => readable_settings(record)?.clone(),
            };
            let family = changed_family(before.family, change)?;
            let settings = TagSettings {
                enabled: change.enabled.unwrap_or(before.enabled),
                min_step: change.min_step.unwrap_or(before.min_step),
                max_step: change.max_step.unwrap_or(before.max_step),
                max_take: change.max_take.unwrap_or(before.max_take),
                family,
                ..before
            };
            if settings.min_step.zip(settings.max_step).is_some_and(|(min, max)| min > max) {
                return Err(TagAdminError::Conflict("min_step would be above max_step".into()));
            }
            let settings = Some(settings).filter(|it| record.settings.as_ref() != Ok(it));
            Ok(TagUpdate { step: change.step, settings, ..TagUpdate::of(record.clone()) })
        })
        .await
    }

    /// Switches a tag with scrambled ids to the newest key: ids are made with it from now on, and
    /// ids of earlier keys stay valid. A node without the key stops serving the tag.
    ///
    /// # Errors
    /// `Conflict` if the tag's ids are not scrambled, if its key has the greatest version already,
    /// or if the tag is sealed; `NoKey` if `keys` has no newer key; `UnknownTag`; failures of the
    /// store.
    pub async fn rekey(&self, tag: &Tag, keys: &KeyRing) -> Result<TagRecord, TagAdminError> {
        self.update(tag, |record| {
            let meaning = usable_and_open(record)?;
            let newer = newer_meaning(keys, meaning, tag)?;
            Ok(TagUpdate { meaning: Some(newer), ..TagUpdate::of(record.clone()) })
        })
        .await
    }

    /// Repairs a tag: raises the next number to be granted to `at_least`, or by one if that is
    /// more, and gives the record a new generation. So every node that reads the record drops the
    /// tag's ids from memory, because the database may have granted them twice, and nothing that
    /// was granted before can be given back. `far` confirms a raise by more than 10^12, by more
    /// than 200 periods, or by more than half of the failover margin.
    ///
    /// Returns the record, and whether `max_id` was lower than `at_least` before.
    ///
    /// # Errors
    /// `Refused` if `at_least` is not a valid id; `Conflict` for a sealed tag, and for a number
    /// that the counter of this tag with periods cannot have; `Unconfirmed`; `UnknownTag`; failures
    /// of the store.
    pub async fn advance(
        &self,
        tag: &Tag,
        at_least: i64,
        far: Confirm,
    ) -> Result<(TagRecord, bool), TagAdminError> {
        check_id("the next id", at_least)?;
        let generation = Some(TagGeneration::draw());
        let repaired = self.update(tag, |record| {
            let meaning = usable_and_open(record)?;
            let settings = readable_settings(record)?;
            if let Some(reset) = meaning.reset {
                reset.check_next(at_least).map_err(TagAdminError::Conflict)?;
            }
            if far == Confirm::No {
                self.confirm_jump(record, meaning, at_least)?;
            }
            let settings = TagSettings { generation, ..settings.clone() };
            let (at_least, settings) = (Some(at_least), Some(settings));
            Ok(TagUpdate { at_least, settings, ..TagUpdate::of(record.clone()) })
        });
        let record = repaired.await?;
        let raised = record.max_id == at_least;
        Ok((record, raised))
    }

    /// Reopens a tag with periods that a wrong clock has closed: that clock opened a later period,
    /// and the tag has no ids until that period begins. The tag goes on in the present period,
    /// above the greatest id of this period that may have been issued ([`Reopening::above`]). Ids
    /// of later periods that were issued are not issued again: when such a period begins, its
    /// numbers start after them.
    ///
    /// The record gets a new generation, and its counter is raised far above the old value, so that
    /// no node takes the record for one that was reset to an older state.
    ///
    /// # Errors
    /// `Conflict` for a tag without periods, a family, a sealed tag and a tag that is not closed,
    /// and if this program's clock is not set or shows another period than the store's clock;
    /// `Refused` for numbers that do not fit, and in the last ten minutes of a period;
    /// `Unconfirmed`; `UnknownTag`; failures of the store.
    pub async fn reopen(
        &self,
        tag: &Tag,
        reopening: Reopening,
        clock: &dyn Clock,
        confirmed: Confirm,
    ) -> Result<TagRecord, TagAdminError> {
        let ours = clock.wall_millis();
        let theirs = match self.store.clock() {
            Some(request) => request.await?,
            None => ours,
        };
        let generation = Some(TagGeneration::draw());
        self.update(tag, |record| {
            let meaning = usable_and_open(record)?;
            let conflict = |why: String| TagAdminError::Conflict(why);
            if ours < RELEASED {
                let unset = StoreErrorKind::ClockUnset { now: ours };
                return Err(conflict(unset.to_string()));
            }
            if record.is_family() {
                let why = "a family has no ids of its own: reopen its members, one by one";
                return Err(conflict(why.into()));
            }
            let Some(reset) = meaning.reset else {
                return Err(conflict("the tag's numbers never begin again: no clock closes it".into()));
            };
            if reset.first_number(ours, theirs).is_none() {
                return Err(conflict(format!(
                    "this host's clock shows {}, and that of the store {}, which are different periods: set the clock that \
                     is wrong",
                    ours.utc(),
                    theirs.utc()
                )));
            }
            if record.closed_until(ours).is_none() {
                return Err(conflict("the tag is open: there is nothing to reopen".into()));
            }
            let reopened = reset.reopen(record.max_id, ours.max(theirs), reopening.above, reopening.first_taken);
            let (reset, next) = reopened.map_err(TagAdminError::Refused)?;
            if confirmed == Confirm::No {
                return Err(TagAdminError::Unconfirmed(reset.what_reopening_means(next, reopening.above)));
            }
            let settings = TagSettings { generation, ..readable_settings(record)?.clone() };
            Ok(TagUpdate {
                meaning: Some(Meaning { reset: Some(reset), ..meaning }),
                at_least: Some(next),
                settings: Some(settings),
                ..TagUpdate::of(record.clone())
            })
        })
        .await
    }

    /// Refuses a raise that skips very many ids, or after which a failover could repeat ids.
    fn confirm_jump(
        &self,
        record: &TagRecord,
        meaning: Meaning,
        at_least: i64,
    ) -> Result<(), TagAdminError> {
        let skips = at_least.saturating_sub(record.max_id);
        // A year ahead in the digits of a period would end the tag for a year.
        let most = meaning.reset.map_or(FAR, |reset| FAR.min(reset.capacity() * PERIODS));
        if skips > most {
            return Err(TagAdminError::Unconfirmed(format!(
                "that skips {skips} ids, which are lost for ever: look at the number again"
            )));
        }
        let own = record.settings.as_ref().ok().and_then(|it| it.own_failover_margin(meaning));
        let margin = self.failover_margin.map(|margin| own.unwrap_or(margin));
        match margin.filter(|margin| skips > margin / 2) {
            Some(margin) => Err(TagAdminError::Unconfirmed(format!(
                "that skips {skips} ids, and after a failover that loses it the tag goes on only {margin} \
                 ids (the failover margin) above where it is now, which may repeat ids: make sure that every \
                 replica gets it"
            ))),
            None => Ok(()),
        }
    }

    /// Seals and deletes a tag.
    ///
    /// # Errors
    /// `Unconfirmed` unless `confirmed`, `UnknownTag`, `HalfDeleted`, failures of the store.
    pub async fn delete(&self, tag: &Tag, confirmed: Confirm) -> Result<Deleted, TagAdminError> {
        let record = self.read(tag).await?;
        let meaning = usable(&record)?;
        if confirmed == Confirm::No {
            if record.is_family() {
                return Err(TagAdminError::Unconfirmed(format!(
                    "family {:?}: no new members will be made; those that are there stay, as tags of their own",
                    tag.as_str()
                )));
            }
            // What a sealed tag has granted, the store knows that it moved to.
            let now = match record.is_sealed() {
                true => String::new(),
                false => format!(" (at {} now; the deletion tells the last number)", record.max_id),
            };
            return Err(TagAdminError::Unconfirmed(format!(
                "tag {:?}: a new tag of this name must start where this one ended{now}, or it repeats ids",
                tag.as_str()
            )));
        }
        if self.dry_run {
            let next = EndedTag { meaning, next: record.max_id };
            let ended = if record.is_sealed() { record.ended() } else { Some(next) };
            return Ok(Deleted { record, ended });
        }
        if !record.is_sealed() {
            // The seal writes into them what the tag granted.
            readable_settings(&record)?;
            self.store.try_deleting(tag).await?;
        }
        let generation = record.generation();
        let (record, ended) = self.seal(record, meaning).await?;
        match (self.store.delete(tag, generation).await, ended) {
            (Ok(()), ended) => Ok(Deleted { record, ended }),
            // Somebody else removed what was sealed here.
            (Err(error), ended @ Some(_)) if *error.kind() == StoreErrorKind::UnknownTag => {
                Ok(Deleted { record, ended })
            }
            // Somebody else has deleted it meanwhile, and made it again: that one is not to be deleted.
            (Err(error), Some(ended)) if *error.kind() == StoreErrorKind::RecordChanged => {
                Err(TagAdminError::Conflict(format!(
                    "{error}. The one that was deleted granted {ended}: the one that is there now must not start lower"
                )))
            }
            // It stays sealed: a deletion whose answer was lost may still come.
            (Err(error), Some(ended)) => {
                Err(TagAdminError::HalfDeleted { error, ended: Box::new(ended) })
            }
            (Err(error), None) => Err(error.into()),
        }
    }

    /// Deletes at most one page of the members of a family, from `after` on. Returns how many were
    /// deleted, and where the next page begins. The family itself need not exist any more; as long
    /// as it exists, new members may be made meanwhile.
    ///
    /// # Errors
    /// `Refused` if `family` is not a family's name; the errors of [`Self::delete`], after which
    /// the members before the failed one are deleted.
    pub async fn delete_members(
        &self,
        family: &Tag,
        after: Option<&TagCursor>,
    ) -> Result<(usize, Option<TagCursor>), TagAdminError> {
        let Some(prefix) = Family::prefix(family) else {
            return Err(TagAdminError::Refused(
                "a family's name ends in /*, like invoice/*".into(),
            ));
        };
        let page = self.store.page(after, prefix, MOST_RECORDS).await?;
        let mut deleted = 0;
        for record in page.records {
            if record.made_by().as_ref() == Some(family) {
                self.delete(&record.tag, Confirm::Yes).await?;
                deleted += 1;
            }
        }
        Ok((deleted, page.next))
    }

    /// Seals a tag if it is not sealed yet. Returns its record with the last `max_id`, and what the
    /// tag granted. For a tag that was sealed before, returns `record` and what that seal recorded
    /// (`None` if nothing).
    async fn seal(
        &self,
        record: TagRecord,
        meaning: Meaning,
    ) -> Result<(TagRecord, Option<EndedTag>), TagAdminError> {
        if record.is_sealed() {
            let ended = record.ended();
            return Ok((record, ended));
        }
        let ended = |next| EndedTag { meaning, next };
        match self.store.seal(&record.tag, record.generation()).await {
            Ok(max_id) => {
                // Whoever asked may be gone.
                let (tag, ended) = (record.tag.as_str(), ended(max_id));
                tracing::info!("tag {tag:?} is sealed: it granted {ended}");
                Ok((TagRecord { max_id, ..record }, Some(ended)))
            }
            Err(SealError { error, max_id: Some(next) }) => {
                Err(TagAdminError::HalfDeleted { error, ended: Box::new(ended(next)) })
            }
            Err(SealError { error, max_id: None }) => Err(error.into()),
        }
    }
}

/// The meaning of the record's numbers; an error if this version cannot read it: then no change of
/// the record is allowed.
fn usable(record: &TagRecord) -> Result<Meaning, TagAdminError> {
    record.meaning.clone().map_err(|error| {
        let kind = StoreErrorKind::BadRecord(error.to_string());
        StoreError::new(kind, format!("change tag {:?}", record.tag.as_str())).into()
    })
}

/// [`usable`], and refuses a sealed tag.
fn usable_and_open(record: &TagRecord) -> Result<Meaning, TagAdminError> {
    let meaning = usable(record)?;
    match record.is_sealed() {
        true => Err(TagAdminError::Conflict(StoreErrorKind::Moved.to_string())),
        false => Ok(meaning),
    }
}

/// Returns the record's settings, or why they cannot be read; for damaged ones the error says how
/// to set them again.
fn readable_settings(record: &TagRecord) -> Result<&TagSettings, TagAdminError> {
    record.settings.as_ref().map_err(|error| {
        let way_out = match error {
            TagSettingsError::Damaged(_) => ", and say whether the tag is enabled",
            TagSettingsError::Newer(_) | TagSettingsError::Lost(_) => "",
        };
        let why = StoreErrorKind::BadRecord(format!("{error}{way_out}"));
        let operation = format!("change the settings of tag {:?}", record.tag.as_str());
        StoreError::new(why, operation).into()
    })
}

/// Returns the limits of a family after the change; `None` if the tag is not a family.
fn changed_family(
    before: Option<Family>,
    change: TagChange,
) -> Result<Option<Family>, TagAdminError> {
    let TagChange { max_members, members_per_second, .. } = change;
    let Some(family) = before else {
        return match max_members.or(members_per_second) {
            Some(_) => {
                Err(TagAdminError::Conflict("the tag is no family: it has no members".into()))
            }
            None => Ok(None),
        };
    };
    if max_members == Some(0) || members_per_second == Some(0) {
        return Err(TagAdminError::Refused(Family::AT_LEAST_ONE.into()));
    }
    Ok(Some(Family {
        max_members: max_members.unwrap_or(family.max_members),
        members_per_second: members_per_second.unwrap_or(family.members_per_second),
        ..family
    }))
}

/// Refuses a number that is no id, and `i64::MAX`, after which the tag would have no ids left.
fn check_id(what: &str, id: i64) -> Result<(), TagAdminError> {
    if (0..i64::MAX).contains(&id) {
        return Ok(());
    }
    Err(TagAdminError::Refused(format!("{what} is 0 to {}", i64::MAX - 1)))
}

/// The meaning of the tag with the newest key in `keys`, which must be newer than the tag's own.
///
/// # Errors
/// If `keys` has no newer key: `NoKey`; or `Conflict` if the tag's key has the last version that
/// the tag's domain can have. `Conflict` also for a tag whose ids are not scrambled.
fn newer_meaning(keys: &KeyRing, meaning: Meaning, tag: &Tag) -> Result<Meaning, TagAdminError> {
    let Shape::Scramble { domain, key } = meaning.shape else {
        let why = "the tag's ids are not scrambled: it has no key";
        return Err(TagAdminError::Conflict(why.into()));
    };
    let newer = keys.newest(domain, tag).filter(|newest| newest.key().version > key.version);
    let Some(newer) = newer else {
        let (now, most) = (key.version, domain.max_version());
        let why = format!("the tag has key {now}, and there is no newer one");
        return Err(match now < most {
            true => TagAdminError::NoKey(format!(
                "{why}: add a line `{} = KEY` to the key file of every node first, KEY as `openssl rand -hex 32` \
                 draws it",
                now + 1
            )),
            false => TagAdminError::Conflict(format!(
                "{why}: scramble:{domain} has no version above: make a new tag"
            )),
        });
    };
    Ok(Meaning { shape: Shape::Scramble { domain, key: newer.key() }, ..meaning })
}

#[cfg(test)]
mod tests;
