//! What an operator does with tags, and the rules that keep ids from being lost or repeated by it.
//!
//! Invariant: `max_id` never falls, and a tag is deleted only once it is known exactly what it
//! granted: it is sealed first. What cannot be taken back is asked for twice. A change is written
//! only over the record that it was decided on: one that was repaired or made again meanwhile stays
//! as it is.

use std::time::Duration;

use leaf_core::{Step, Tag};
use tokio::time::Instant;

use crate::admin::EndedTag;
use crate::meaning::{KeyRing, Meaning, Order, Shape};
use crate::store::{
    Family, MOST_RECORDS, SealError, TagCursor, TagGeneration, TagSettings, TagSettingsError,
    TagUpdate,
};
use crate::{NewTag, StoreError, StoreErrorKind, TagRecord, TagStore};

/// A raise by more than this is asked about: nothing brings the ids back.
const FAR: i64 = 1_000_000_000_000;
/// In a tag whose numbers begin again: a raise by more than so many periods. Within a year a
/// month's end alone is 71 days.
const PERIODS: i64 = 200;
pub(crate) const NO_STEP: &str =
    "a tag in strict order has no step, since every request goes to the store: leave it out";
/// How often a change is decided anew because somebody else changed the record first.
const TRIES: u32 = 8;
/// For how long: a store has tried for some time itself.
const TRIES_WITHIN: Duration = Duration::from_secs(5);
/// What the column holds.
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
    /// Not yet: what it would mean is told, and nothing is done.
    No,
    /// Do it.
    Yes,
}

impl From<bool> for Confirm {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// What is to be changed of a tag; `None` leaves it as it is, `Some(None)` means the servers' own.
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

/// Why nothing was done.
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
    /// The key that it needs is not in the key ring of this node.
    #[error("{0}")]
    NoKey(String),
    /// The change cannot be undone, and was not confirmed; the text says what it means.
    #[error("{0}")]
    Unconfirmed(String),
    /// A tag may be sealed now, and was not deleted. Nothing but this error knows how far it
    /// had granted ids.
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
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A tag that is no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// The tag's record, as it was before the deletion.
    pub record: TagRecord,
    /// What the tag granted, which no new tag of its name may grant. If the tag was sealed before,
    /// then only until it was sealed: the store that it may have moved to knows what it granted
    /// there. `None` where nobody wrote it down: an earlier version of Leaf sealed it, or the
    /// database has no table of settings.
    pub ended: Option<EndedTag>,
}

impl<'a> TagAdmin<'a> {
    /// For the tags of this store.
    #[must_use]
    pub const fn new(store: &'a dyn TagStore) -> Self {
        Self { store, failover_margin: None, dry_run: false }
    }

    /// For a store whose failover guard jumps by `margin`: a raise by much of that is asked about,
    /// since a failover that loses it would land below the ids that were granted since.
    #[must_use]
    pub const fn with_failover_margin(self, margin: Option<i64>) -> Self {
        Self { failover_margin: margin, ..self }
    }

    /// With `dry_run` every method checks what it would do, and returns the record as it would be, but
    /// writes nothing. What the store itself refuses, like a right that is missing, shows only when it is done.
    #[must_use]
    pub const fn with_dry_run(self, dry_run: bool) -> Self {
        Self { dry_run, ..self }
    }

    /// The record.
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
    /// `Refused` for a first id that is none or a long description; `TagExists`; failures of the
    /// store.
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

    /// Refuses what the store would refuse to make.
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

    /// Writes the change that `decide` makes of the record. If somebody else changes the record
    /// first, or all the time, it is read and decided on again, for some seconds, unless it was
    /// repaired or made again.
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

    /// Writes a change, or works out what it would come to.
    async fn write(&self, update: &TagUpdate) -> Result<TagRecord, StoreError> {
        if !self.dry_run {
            return self.store.update(update).await;
        }
        let operation = || format!("change tag {:?}", update.seen.tag.as_str());
        update.apply(&update.seen).map_err(|kind| StoreError::new(kind, operation()))
    }

    /// Changes step and settings. Of two operators who change different settings at once, both
    /// changes stand.
    ///
    /// # Errors
    /// `Conflict` where `min_step` would be above `max_step`, and in a tag that is sealed; `UnknownTag`; failures of the
    /// store.
    pub async fn change(&self, tag: &Tag, change: TagChange) -> Result<TagRecord, TagAdminError> {
        self.change_if(tag, change, |_| true).await
    }

    /// As [`Self::change`], where the record is as `is_expected` says: an operator changes what was shown
    /// and nothing else. It is asked of the very record that is changed.
    ///
    /// # Errors
    /// `Stale` where it is not; those of [`Self::change`].
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
            let meaning = usable(record)?;
            if record.is_sealed() {
                return Err(TagAdminError::Conflict(StoreErrorKind::Moved.to_string()));
            }
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

    /// Gives the newest key to a tag whose ids are scrambled: ids from now on are made with it, and
    /// those of the keys before stay what they are. Every node must have the key, or it stops to
    /// serve the tag.
    ///
    /// # Errors
    /// `Conflict` where the tag's ids are not scrambled, where `keys` has none that is newer, and
    /// in a tag that is sealed; `UnknownTag`; failures of the store.
    pub async fn rekey(&self, tag: &Tag, keys: &KeyRing) -> Result<TagRecord, TagAdminError> {
        self.update(tag, |record| {
            let meaning = usable(record)?;
            if record.is_sealed() {
                return Err(TagAdminError::Conflict(StoreErrorKind::Moved.to_string()));
            }
            let newer = newer_meaning(keys, meaning, tag)?;
            Ok(TagUpdate { meaning: Some(newer), ..TagUpdate::of(record.clone()) })
        })
        .await
    }

    /// Repairs a tag: raises the next number to be granted to `at_least`, and in any case by one,
    /// and gives the record a new generation. So every node that reads the record drops the ids of
    /// this tag that it has in memory, which a database may have granted twice, and nothing that
    /// was granted before can be given back. `far` confirms a raise by more than 10^12, or by more
    /// than half of the failover margin.
    ///
    /// Returns the record, and whether `max_id` was lower than `at_least` before.
    ///
    /// # Errors
    /// `Refused` for what is no id, `Conflict` for a tag that is sealed, `Unconfirmed`,
    /// `UnknownTag`, failures of the store.
    pub async fn advance(
        &self,
        tag: &Tag,
        at_least: i64,
        far: Confirm,
    ) -> Result<(TagRecord, bool), TagAdminError> {
        check_id("the next id", at_least)?;
        let generation = Some(TagGeneration::draw());
        let repaired = self.update(tag, |record| {
            let meaning = usable(record)?;
            if record.is_sealed() {
                return Err(TagAdminError::Conflict(StoreErrorKind::Moved.to_string()));
            }
            let settings = readable_settings(record)?;
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

    /// Refuses a raise that loses many ids, or that a failover may lose.
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
        let own = record.settings.as_ref().ok().and_then(|it| meaning.own_failover_margin(it));
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

    /// Removes a tag.
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

    /// Removes up to a page of the members of a family, behind `after`, and returns how many they
    /// were, and where the next page begins. Whether the family is still there does not matter; as
    /// long as it is, members that were not yet made may be.
    ///
    /// # Errors
    /// `Refused` for a name that is no family's; those of [`Self::delete`], after which the members
    /// that come earlier are gone.
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

    /// Closes a tag for allocations, and returns its record as it was then, and what it granted.
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

/// What the record's numbers mean; an error where that is not known: then nothing may be changed of
/// it.
fn usable(record: &TagRecord) -> Result<Meaning, TagAdminError> {
    record.meaning.clone().map_err(|error| {
        let kind = StoreErrorKind::BadRecord(error.to_string());
        StoreError::new(kind, format!("change tag {:?}", record.tag.as_str())).into()
    })
}

/// The record's settings; an error with the way out where they cannot be read.
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

/// What a family allows after a change.
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

/// An id that somebody wrote. The greatest would use the tag up.
fn check_id(what: &str, id: i64) -> Result<(), TagAdminError> {
    if (0..i64::MAX).contains(&id) {
        return Ok(());
    }
    Err(TagAdminError::Refused(format!("{what} is 0 to {}", i64::MAX - 1)))
}

/// The meaning of a tag with its newest key.
///
/// # Errors
/// `Conflict` for a tag without keys, `NoKey` where there is no newer one.
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
