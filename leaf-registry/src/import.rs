//! Moving tags from one store to another.
//!
//! Invariant: at no moment may both stores grant ids of a tag, and the new store grants no id that
//! the old one ever granted. First, the tag is made *sealed* in the new store, which then grants
//! none of its ids. Second, it is sealed in the old store, in one step that also returns the end of
//! the granted ids. Only then is it opened in the new store, from that number on. No id of a sealed
//! tag is granted, whatever a node's step or rate is, and whichever version of Leaf or Java program
//! asks. The new store starts at the *next* id, so that the last granted block is not granted again
//! (Kafka's bug KAFKA-15552).
//!
//! An import that is broken off leaves the tag sealed in one store or in both: it may yield no ids,
//! but never an id twice.

use leaf_core::{Step, Tag};
use leaf_segment::admin::EndedTag;
use leaf_segment::store::{
    SEALED, SealError, TagGeneration, TagSettings, TagSettingsError, TagUpdate,
};
use leaf_segment::{NewTag, StoreError, StoreErrorKind, TagRecord, TagStore};

/// Error text for a store that refused to replace a `max_id` although it was the expected value.
pub(crate) const AFTER_FAILOVER: &str = "its database has failed over and no node has allocated since from the table that \
                              keeps such tags (leaf_alloc the plain ones, leaf_sequence all others): let one do so, \
                              then try again";

/// Error text: a family cannot be moved. Whether the family or its members were moved first, a node
/// could make a member in one store while the other store uses a tag of the same name.
const FAMILY: &str = "a family is not moved: delete it in the old store, where its members stay; move these; then make \
                      the family in the new store, and they are its members there";

/// Moves `tag` from one store to another, and returns the first id that the new store will grant,
/// `gap` ids above what the old store granted. Nodes that still ask the old store use up the ids in
/// their memory; then the old store tells them that the tag was moved.
///
/// A second import changes nothing and returns the `max_id` in the new store: the settings of the
/// tag there name the record that it was imported from.
///
/// # Errors
/// - `UnknownTag` if the old store does not have the tag
/// - `TagExists` if the new store has granted ids of a tag of this name, or has it with another
///   meaning
/// - `UsedBefore` if a tag of this name was deleted in the new store, and the moved tag could issue
///   its ids again
/// - `Exhausted` if there is no id that is `gap` above the granted ones
/// - `BadRecord` for a family; if step, meaning or settings of the old record cannot be read; if
///   somebody else moves the tag at the same time; if an import was broken off after the old store
///   was sealed; if the old tag is sealed and the new one was not imported from it
/// - failures of the stores
///
/// ```
/// use leaf_core::{Step, Tag};
/// use leaf_registry::import;
/// use leaf_segment::{MemoryStore, NewTag, RangeSource};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (old, new) = (MemoryStore::with_tags([NewTag::sample()]), MemoryStore::default());
/// let (stock, step) = (Tag::parse("leaf-segment-test")?, Step::new(2000)?);
/// let last = old.allocate(&stock, step, step.into()).await?;
///
/// assert_eq!(import(&stock, &old, &new, 0).await?, last.end());
/// assert!(old.allocate(&stock, step, step.into()).await.is_err(), "it is sealed");
/// # Ok(())
/// # }
/// ```
pub async fn import(
    tag: &Tag,
    from: &dyn TagStore,
    to: &dyn TagStore,
    gap: u32,
) -> Result<i64, StoreError> {
    let gap = i64::from(gap);
    let operation = format!("import tag {:?}", tag.as_str());
    let refuse = |kind| StoreError::new(kind, operation.clone());
    let bad = |why: String| refuse(StoreErrorKind::BadRecord(why));
    let old = from.tag(tag).await?.ok_or_else(|| refuse(StoreErrorKind::UnknownTag))?;
    if old.is_family() {
        return Err(bad(FAMILY.into()));
    }
    let new = to.tag(tag).await?;
    if old.is_sealed() {
        return imported_before(&old, new.as_ref()).map_err(|why| bad(why.into()));
    }
    let first_above = |max_id: i64| max_id.max(1).checked_add(gap).filter(|first| *first < SEALED);
    let first = first_above(old.max_id).ok_or_else(|| refuse(StoreErrorKind::Exhausted))?;
    let ended = to.ended(tag).await?;
    if let (Some(ended), Ok(meaning)) = (ended, old.meaning.clone()) {
        let here = NewTag { max_id: first, meaning, ..NewTag::new(tag.clone(), Step::MIN) };
        ended.check(&here).map_err(|why| refuse(StoreErrorKind::UsedBefore(why)))?;
    }
    let sealed = make_sealed(&old, new, ended, to, &refuse).await?;
    let granted_below = from.seal(tag, old.generation()).await.map_err(|SealError { error, max_id }| match max_id {
        None => error,
        Some(max_id) => {
            let first = first_above(max_id).unwrap_or(max_id);
            bad(format!(
                "{error}; it may be sealed in the old store now, which granted ids below {max_id}: import it \
                 again. Only if that says that it is sealed in the old store and not open in the new one, delete it in the \
                 new store and make it anew there with {first} as its first id"
            ))
        }
    })?;
    if granted_below == SEALED {
        return Err(bad("somebody else moves or deletes it at the same time".into()));
    }
    // Logged, since no record has the number until the new store is opened.
    tracing::info!(
        "tag {:?} is sealed in the old store: it granted ids below {granted_below}",
        tag.as_str()
    );
    let first = first_above(granted_below).ok_or_else(|| {
        bad(format!(
            "it is sealed in the old store, which had granted ids below {granted_below} by then: there \
             is no id {gap} above"
        ))
    })?;
    let moved = Moved { tag, to, granted_below, first, refuse: &refuse };
    moved.follow_key(from, &old, &sealed).await?;
    moved.open(&sealed).await
}

/// A tag that is sealed in the old store and must still be opened in the new one.
struct Moved<'a, R> {
    tag: &'a Tag,
    to: &'a dyn TagStore,
    /// The ids that the old store granted are below this.
    granted_below: i64,
    /// The first id of the new store.
    first: i64,
    refuse: &'a R,
}

impl<R: Fn(StoreErrorKind) -> StoreError> Moved<'_, R> {
    /// A `BadRecord` error with this text.
    fn bad(&self, why: String) -> StoreError {
        (self.refuse)(StoreErrorKind::BadRecord(why))
    }

    /// The error for a tag that is open in neither store.
    fn unopened(&self, why: String) -> StoreError {
        self.bad(format!(
            "it is sealed in the old store, and could not be opened in the new one{why}: delete it in the new \
             store, and make it anew there with {} as its first id",
            self.first
        ))
    }

    /// Copies the tag's current key to the new store: an operator may have given the tag a newer
    /// key since `make_sealed` copied its meaning, and the new store must continue with the key
    /// that the old store used last.
    async fn follow_key(
        &self,
        from: &dyn TagStore,
        old: &TagRecord,
        sealed: &TagRecord,
    ) -> Result<(), StoreError> {
        let failed = |error: StoreError| self.unopened(format!(" ({error})"));
        if let (Some(TagRecord { meaning: Ok(now), .. }), Ok(made)) =
            (from.tag(self.tag).await.map_err(failed)?, &old.meaning)
            && now != *made
        {
            let update = TagUpdate { meaning: Some(now), ..TagUpdate::of(sealed.clone()) };
            self.to.update(&update).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Opens the tag in the new store; returns its first id there.
    async fn open(&self, sealed: &TagRecord) -> Result<i64, StoreError> {
        let Self { tag, to, granted_below, first, .. } = self;
        let unclear = |error: StoreError| {
            self.bad(format!(
                "it is sealed in the old store, which granted ids below {granted_below}, and may or may not be open in the \
                 new one ({error}): import it again. Only if that says that it is not open in the new store, delete it there \
                 and make it anew with {first} as its first id"
            ))
        };
        let opened = to.replace_max_id(tag, sealed.generation(), SEALED, *first).await;
        if opened.map_err(unclear)? {
            return Ok(*first);
        }
        let now = to.tag(tag).await.map_err(unclear)?;
        Err(match now.filter(|now| !now.is_sealed()) {
            None => self.unopened(String::new()),
            Some(_) => self.bad(format!(
                "somebody else has opened it in the new store meanwhile: leave it as it is there, if its first id was \
                 {first} or more"
            )),
        })
    }
}

/// Error text: what to do after an import or a deletion was broken off.
const UNFINISHED: &str = "it is sealed in the old store and not open in the new one: either a third store has it, or an import or a \
     deletion was broken off. Only when no other store has it, delete it in the new store and make it anew there, with a \
     first id above every one that was handed out";

/// Returns the `max_id` in the new store of a tag that was moved there before and is sealed in the
/// old store.
fn imported_before(old: &TagRecord, new: Option<&TagRecord>) -> Result<i64, &'static str> {
    match new.filter(|new| !new.is_sealed()) {
        None => Err(UNFINISHED),
        Some(new) if is_import_of(old, new) => Ok(new.max_id),
        Some(_) => Err(
            "it is sealed in the old store, and the one in the new store was not imported from there by this version: an \
                 earlier version imported it (then nothing is to be done), or a deletion was broken off. Find out which ids the old one granted (the log or the answer of the deletion says \
                 so), advance the one in the new store above them, and delete the old one",
        ),
    }
}

/// The value of `imported` in the settings of the new record: the generation of the old record, or
/// `-` if that has none.
fn origin(old: &TagRecord) -> String {
    old.generation().map_or_else(|| "-".into(), |generation| generation.to_string())
}

/// Whether `new` was imported from the record `old` of another store.
fn is_import_of(old: &TagRecord, new: &TagRecord) -> bool {
    let imported = new.settings.as_ref().ok().and_then(|settings| settings.imported.as_ref());
    imported == Some(&origin(old))
}

/// Creates the tag sealed in the new store, or seals and updates an unused tag there, and returns
/// its record. Everything that the new store may refuse is tried here, before the tag is sealed in
/// the old store.
async fn make_sealed(
    old: &TagRecord,
    new: Option<TagRecord>,
    ended: Option<EndedTag>,
    to: &dyn TagStore,
    refuse: &impl Fn(StoreErrorKind) -> StoreError,
) -> Result<TagRecord, StoreError> {
    let tag = &old.tag;
    let not_writable =
        || refuse(StoreErrorKind::Unavailable).because(format!("the new store: {AFTER_FAILOVER}"));
    let bad = |why: String| refuse(StoreErrorKind::BadRecord(why));
    let step = old.step.map_err(|error| bad(error.to_string()))?;
    let meaning = old.meaning.clone().map_err(|error| bad(error.to_string()))?;
    if new.as_ref().is_some_and(|new| new.meaning != Ok(meaning)) {
        return Err(refuse(StoreErrorKind::TagExists));
    }
    let old_settings = old.settings.as_ref().map_err(|error| bad(error.to_string()))?;
    if let Some(Err(unreadable @ (TagSettingsError::Newer(_) | TagSettingsError::Lost(_)))) =
        new.as_ref().map(|new| &new.settings)
    {
        return Err(bad(format!("in the new store {unreadable}")));
    }
    let settings = TagSettings {
        generation: Some(TagGeneration::draw()),
        imported: Some(origin(old)),
        // It is not opened yet, and may never be.
        ended,
        ..old_settings.clone()
    };
    let sealed = match new {
        None => {
            let (tag, description) = (tag.clone(), old.description.clone());
            let new = NewTag { tag, max_id: SEALED, step, meaning, settings, description };
            to.create(&new).await?;
            new.into()
        }
        // The new store has the tag but has granted no id of it (say, made by `schema --apply`); or
        // the tag is sealed because it was moved out of the new store earlier.
        Some(new) if new.max_id <= 1 || new.is_sealed() => {
            let seal = to.replace_max_id(tag, new.generation(), new.max_id, SEALED);
            if !new.is_sealed() && !seal.await? {
                let now = to.tag(tag).await?.map(|now| now.max_id);
                return Err(match now == Some(new.max_id) {
                    true => not_writable(),
                    false => refuse(StoreErrorKind::TagExists),
                });
            }
            let (step, settings) = (Some(step), Some(settings));
            let seen = TagRecord { max_id: SEALED, ..new };
            to.update(&TagUpdate { step, settings, ..TagUpdate::of(seen) }).await?
        }
        Some(_) => return Err(refuse(StoreErrorKind::TagExists)),
    };
    // Writes back the same value. Before the old store is sealed, this shows whether the failover
    // guard of the new store allows writes.
    if !to.replace_max_id(tag, sealed.generation(), SEALED, SEALED).await? {
        return Err(not_writable());
    }
    Ok(sealed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaf_core::IdRange;
    use leaf_segment::{MemoryStore, RangeSource as _, TagCatalog as _};
    use proptest::prelude::*;

    fn orders() -> Tag {
        Tag::parse("orders").unwrap()
    }

    fn at(max_id: i64) -> NewTag {
        NewTag { max_id, ..NewTag::new(orders(), Step::new(10).unwrap()) }
    }

    async fn grant(store: &MemoryStore, amount: i64) -> Result<IdRange, StoreError> {
        store.allocate(&orders(), Step::new(amount).unwrap(), Step::new(10).unwrap().into()).await
    }

    async fn max_id(store: &MemoryStore) -> i64 {
        store.tag(&orders()).await.unwrap().unwrap().max_id
    }

    proptest! {
        /// G-16: no two ranges that the stores granted overlap, whichever store a node asks, and
        /// however often the tag is moved between them.
        #[test]
        fn what_is_granted_after_an_import_is_new(
            first in 0i64..1000,
            acts in prop::collection::vec((0u8..4, 1i64..2_000_000), 1..40),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let stores = [MemoryStore::with_tags([at(first)]), MemoryStore::default()];
                let mut granted: Vec<IdRange> = Vec::new();
                let mut moved = 0;
                for (act, amount) in acts {
                    if act < 2 {
                        // A node that may not have heard of the move.
                        if let Ok(range) = grant(&stores[usize::from(act)], amount).await {
                            assert!(granted.iter().all(|before| !before.overlaps(range)), "{range}");
                            granted.push(range);
                        }
                        continue;
                    }
                    let (from, to) = (&stores[moved % 2], &stores[(moved + 1) % 2]);
                    let next = max_id(from).await.max(1);
                    assert_eq!(import(&orders(), from, to, 0).await.unwrap(), next);
                    assert_eq!(import(&orders(), from, to, 0).await.unwrap(), next, "once more");
                    moved += 1;
                }
            });
        }
    }

    #[tokio::test]
    async fn a_tag_that_is_in_use_in_the_new_store_stays_there() {
        let (old, new) = (MemoryStore::with_tags([at(500)]), MemoryStore::with_tags([at(1)]));
        grant(&new, 10).await.unwrap();

        let refused = import(&orders(), &old, &new, 0).await.unwrap_err();

        assert_eq!(*refused.kind(), StoreErrorKind::TagExists);
        assert_eq!(max_id(&old).await, 500, "and goes on in the old one");
    }

    /// An import that was broken off before it sealed the old store is completed by the next
    /// import. If both stores are sealed, neither grants an id until an operator makes the tag
    /// anew.
    #[tokio::test]
    async fn an_import_that_was_broken_off_repeats_nothing() {
        let (old, new) = (MemoryStore::with_tags([at(500)]), MemoryStore::with_tags([at(SEALED)]));
        assert_eq!(
            import(&orders(), &old, &new, 7).await.unwrap(),
            507,
            "only the new one was made"
        );

        let new = MemoryStore::with_tags([at(SEALED)]);
        let again = import(&orders(), &old, &new, 0).await;
        let error = again.expect_err("nobody knows what the sealed store granted").to_string();
        assert!(error.contains("above every one that was handed out"), "{error}");
        assert!(grant(&old, 1).await.is_err() && grant(&new, 1).await.is_err());
    }

    /// A deletion was broken off in the old store, and the new store has a tag of this name that
    /// was made without regard to the ids that the old store granted.
    #[tokio::test]
    async fn a_half_deleted_tag_is_not_taken_for_an_imported_one() {
        for used in [false, true] {
            let (old, new) = (MemoryStore::with_tags([at(500)]), MemoryStore::with_tags([at(1)]));
            let generation = old.tag(&orders()).await.unwrap().unwrap().generation();
            assert_eq!(old.seal(&orders(), generation).await.unwrap(), 500);
            if used {
                grant(&new, 10).await.unwrap();
            }
            let imported = import(&orders(), &old, &new, 0).await;
            let refused = imported.expect_err("the new store knows nothing of the old one's ids");
            assert!(refused.to_string().contains("was not imported from there"), "{refused}");
        }
    }

    #[tokio::test]
    async fn the_end_of_the_ids_is_refused_before_the_old_store_is_sealed() {
        let (old, new) = (MemoryStore::with_tags([at(SEALED - 10)]), MemoryStore::default());

        let refused = import(&orders(), &old, &new, 100).await.unwrap_err();

        assert_eq!(*refused.kind(), StoreErrorKind::Exhausted);
        grant(&old, 1).await.unwrap();
    }
}
