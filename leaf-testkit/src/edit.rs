//! Changes to a tag's record, for a test that is the only one to change it.
//!
//! A store changes a record only for a caller that presents the record as it last read it. The
//! methods here read the record just before they change it.

use leaf_core::{IdRange, Step, Tag};
use leaf_segment::store::{SealError, TagSettings, TagUpdate};
use leaf_segment::{StoreError, StoreErrorKind, TagRecord, TagStore};

/// Methods with which a test reads and changes the records of a store.
pub trait Edit: TagStore {
    /// Reads a record that must be there.
    ///
    /// # Errors
    /// `UnknownTag`, or failures of the store.
    fn record(&self, tag: &Tag) -> impl Future<Output = Result<TagRecord, StoreError>> + Send {
        async {
            let unknown = || StoreError::new(StoreErrorKind::UnknownTag, "read for an edit");
            self.tag(tag).await?.ok_or_else(unknown)
        }
    }

    /// Sets the step.
    ///
    /// # Errors
    /// The errors of [`TagStore::update`].
    fn set_step(
        &self,
        tag: &Tag,
        step: Step,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        async move {
            let seen = self.record(tag).await?;
            let update = TagUpdate { step: Some(step), ..TagUpdate::of(seen) };
            self.update(&update).await.map(|_| ())
        }
    }

    /// Sets the settings, all but the generation.
    ///
    /// # Errors
    /// The errors of [`TagStore::update`].
    fn set_settings(
        &self,
        tag: &Tag,
        settings: &TagSettings,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        async move {
            let seen = self.record(tag).await?;
            let generation = seen.generation();
            let settings = Some(TagSettings { generation, ..settings.clone() });
            let update = TagUpdate { settings, ..TagUpdate::of(seen) };
            self.update(&update).await.map(|_| ())
        }
    }

    /// Raises `max_id`, by at least 1 and to at least `at_least`, as an SQL statement would:
    /// without a new generation. Returns the new `max_id`.
    ///
    /// # Errors
    /// The errors of [`TagStore::update`].
    fn raise(
        &self,
        tag: &Tag,
        at_least: i64,
    ) -> impl Future<Output = Result<i64, StoreError>> + Send {
        async move {
            let seen = self.record(tag).await?;
            let update = TagUpdate { at_least: Some(at_least), ..TagUpdate::of(seen) };
            self.update(&update).await.map(|record| record.max_id)
        }
    }

    /// Gives ids back as if they were granted in the record's present generation. Returns whether
    /// the store took them back.
    ///
    /// # Errors
    /// Failures of the store.
    fn put_back(
        &self,
        tag: &Tag,
        unused: IdRange,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        async move {
            let generation = self.record(tag).await?.generation();
            self.give_back(tag, generation, unused).await
        }
    }

    /// Seals a tag.
    ///
    /// # Errors
    /// The errors of [`TagStore::seal`].
    fn seal_now(&self, tag: &Tag) -> impl Future<Output = Result<i64, SealError>> + Send {
        async move {
            let generation = self.record(tag).await?.generation();
            self.seal(tag, generation).await
        }
    }

    /// Deletes a tag as if it had granted nothing. A test can then make it again with a lower
    /// `max_id`, as after a restore of an old backup.
    ///
    /// # Errors
    /// The errors of [`TagStore::seal`] and [`TagStore::delete`].
    fn remove(&self, tag: &Tag) -> impl Future<Output = Result<(), StoreError>> + Send {
        async move {
            let record = self.record(tag).await?;
            let generation = record.generation();
            self.replace_max_id(tag, generation, record.max_id, 0).await?;
            self.seal(tag, generation).await.map_err(|sealing| sealing.error)?;
            self.delete(tag, generation).await
        }
    }
}

impl<T: TagStore + ?Sized> Edit for T {}
