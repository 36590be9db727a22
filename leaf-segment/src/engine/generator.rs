//! The generator of segment ids: what a program opens, takes ids from and closes.
//!
//! A generator keeps the tags in memory that it was asked for ([`TagSet`]). Any other tag is looked
//! up in the store ([`LookUps`]) first. The records of the tags in memory are read again at
//! intervals ([`Refresh`]).
//!
//! [`TagSet`]: super::tag_set::TagSet
//! [`LookUps`]: super::look_ups::LookUps

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leaf_core::{Health, Tag};
use tokio::task::JoinSet;

use super::handle::TagHandle;
use super::known_tags::KnownTags;
use super::records::{self, Refresh};
use super::shared::Shared;
use super::view::{TagView, Totals};
use crate::engine::{health, rate};
use crate::{SegmentConfig, SegmentError, SegmentErrorKind, SegmentSource};

/// After this time without a request to the store, the generator checks that it is still available:
/// so an outage is noticed within twice this time. During an outage it checks four times as often.
const IDLE: Duration = Duration::from_secs(4);
/// How long [`SegmentGenerator::close`] may take to give unused ids back.
const GIVE_BACK: Duration = Duration::from_secs(5);

/// Hands out ids of the tags of one [`SegmentSource`]. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SegmentGenerator {
    shared: Arc<Shared>,
}

impl SegmentGenerator {
    /// Checks whether the store can be read, and starts the tasks that keep the requested tags up
    /// to date. Call it within a tokio runtime.
    ///
    /// A store that does not answer is no error: the generator goes on asking, and
    /// [`Self::health`] says so.
    pub async fn open(store: Arc<dyn SegmentSource>, config: SegmentConfig) -> Self {
        let (shared, mut refresh) = (Shared::new(store, config), Refresh::new());
        refresh.turn(&shared).await;
        Self::keep(shared, refresh)
    }

    /// Does what [`Self::open`] does, without waiting for the first answer of the store.
    #[must_use]
    pub fn start(store: Arc<dyn SegmentSource>, config: SegmentConfig) -> Self {
        Self::keep(Shared::new(store, config), Refresh::new())
    }

    /// Starts the tasks.
    fn keep(shared: Arc<Shared>, refresh: Refresh) -> Self {
        let wake = Arc::clone(&shared.store_client.soon.wake);
        shared.store_client.spawn(refresh.run(wake, Arc::downgrade(&shared)));
        let task = Arc::downgrade(&shared);
        shared.store_client.spawn(async move {
            loop {
                tokio::time::sleep(IDLE / 4).await;
                let Some(shared) = task.upgrade() else { return };
                shared.store_client.period_clock.now();
                // Threads find tags that came since without a lock.
                shared.tags.all();
                // A disk that was full has room again, perhaps. How it is, the health says.
                if shared.store_client.config.marks.trouble().is_some() {
                    let _ = shared.store_client.config.marks.flush().await;
                }
                let enough = if shared.store_client.trouble().is_none() { IDLE } else { IDLE / 4 };
                if shared.store_client.idle_for() >= enough {
                    shared.store_client.try_allocating().await;
                }
            }
        });
        let task = Arc::downgrade(&shared);
        shared.store_client.spawn(async move {
            loop {
                tokio::time::sleep(rate::EVERY).await;
                let Some(shared) = task.upgrade() else { return };
                shared.sample_rates();
            }
        });
        Self { shared }
    }

    /// Checks whether the store is available, unless a request was sent to it within `lately`;
    /// [`Self::health`] shows the result. Without this call, the generator checks after four
    /// seconds without a request.
    pub async fn look_at_store(&self, lately: Duration) {
        if self.shared.store_client.idle_for() >= lately {
            self.shared.store_client.try_allocating().await;
        }
    }

    /// The handle of a tag that is already known; never waits.
    #[must_use]
    pub fn known(&self, tag: &str) -> Option<TagHandle> {
        self.shared.tags.find(tag).filter(|handle| !handle.state.has_ended())
    }

    /// Returns a look-up of tags that is faster than [`Self::known`]: keep one per thread.
    #[must_use]
    pub fn known_tags(&self) -> KnownTags {
        self.shared.tags.known_tags()
    }

    /// Returns the handle of a tag. A tag that is not in memory yet is looked up in the store.
    ///
    /// # Errors
    /// `BadTag`, `UnknownTag`, `Disabled`; `Family` and `FamilyFull`; `Record` or `Key` if its ids
    /// cannot be made here; `StoreDown`, `StoreRefused` or `Deadline` if the look-up got no answer;
    /// `TooManyNames` if 10,000 names already wait for a look-up, or the family may make no more
    /// members in this second; `Closed`.
    pub async fn tag(&self, tag: &str) -> Result<TagHandle, SegmentError> {
        if let Some(handle) = self.known(tag) {
            return Ok(handle);
        }
        let parsed = Tag::parse(tag)
            .map_err(|error| SegmentError::new(SegmentErrorKind::BadTag(error), ""))?;
        let wait = self.shared.store_client.config.wait;
        tokio::time::timeout(wait, Shared::look_up(&self.shared, &parsed))
            .await
            .unwrap_or_else(|_| Err(SegmentError::new(SegmentErrorKind::Deadline(wait), tag)))
    }

    /// Changes how often the record of each known tag is read, from now on.
    pub fn set_refresh(&self, refresh: Duration) {
        let millis = u64::try_from(refresh.as_millis()).unwrap_or(u64::MAX);
        if self.shared.refresh_millis.swap(millis, Ordering::Relaxed) != millis {
            self.read_soon();
        }
    }

    /// Reads the records of the known tags again, the first 240 within half a second, and the
    /// others within half of [`SegmentConfig::refresh`].
    pub fn read_soon(&self) {
        self.shared.store_client.soon.read_all();
    }

    /// Reads the record of one tag and applies it: a change that was made in the store before this
    /// call is in effect here when this returns. If the store does not answer, it is asked again
    /// soon.
    pub async fn follow(&self, tag: &Tag) {
        // A task of its own: a caller that leaves must not leave the change to the next reading.
        let (done, followed) = tokio::sync::oneshot::channel();
        let (shared, tag) = (Arc::clone(&self.shared), tag.clone());
        self.shared.store_client.spawn(async move {
            shared.follow(&tag).await;
            let _ = done.send(());
        });
        // Else the generator was closed.
        let _ = followed.await;
    }

    /// Drops every id in memory, and gives none back. Each handle ends with `Changed`;
    /// [`Self::tag`] returns a new one, which fetches anew. For a process that was restored from a
    /// snapshot of its memory (AWS Lambda SnapStart, CRIU): other processes may be restored from
    /// the same snapshot and hold the same ids. Call it after the restore, before an id is taken.
    pub fn begin_anew(&self) {
        self.shared.store_client.begin_anew();
        self.shared.end_all(&SegmentErrorKind::Changed);
    }

    /// Whether the clock was set so lately that periods do not follow it yet.
    #[must_use]
    pub fn is_clock_in_doubt(&self) -> bool {
        let clock = &self.shared.store_client.period_clock;
        // A look: nobody may have needed the time since it was set.
        clock.now();
        clock.in_doubt().is_some()
    }

    /// Whether ids can be handed out now.
    #[must_use]
    pub fn health(&self) -> Health {
        let loaded = self.shared.loaded.load(Ordering::Acquire);
        health::of(&self.shared.store_client, loaded, &self.shared.tags.all())
    }

    /// Returns the state of tags in memory, in the order of their names: at most `most` tags,
    /// beginning with the first name after `after`.
    #[must_use]
    pub fn views(&self, after: Option<&str>, most: usize) -> Vec<TagView> {
        let tags = self.shared.tags.all();
        let behind = |handle: &&TagHandle| after.is_none_or(|after| handle.tag().as_str() > after);
        let mut handles: Vec<&TagHandle> = tags.values().filter(behind).collect();
        handles.sort_unstable_by_key(|handle| handle.tag());
        handles.into_iter().take(most).map(|handle| TagView::of(&handle.state)).collect()
    }

    /// Returns the totals of all known tags.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let (tags, departed) = self.shared.tags.all_and_departed();
        let store_client = &self.shared.store_client;
        Totals {
            store_answers: store_client.answers.counts(),
            store_failures: store_client.failures.load(Ordering::Relaxed),
            ..Totals::of(departed, tags.values().map(|handle| &*handle.state))
        }
    }

    /// Returns the state of a tag in memory; `None` if it is not there. Never waits.
    #[must_use]
    pub fn view(&self, tag: &str) -> Option<TagView> {
        self.shared.tags.find(tag).map(|handle| TagView::of(&handle.state))
    }

    /// Stops all tasks and ends every handle. Ids that were fetched and not handed out go back to
    /// the store, tag by tag, where nobody allocated since; else they are lost, which makes a gap.
    pub async fn close(&self) {
        let store_client = &self.shared.store_client;
        store_client.stop.cancel();
        self.shared.end_all(&SegmentErrorKind::Closed);
        store_client.tasks.close();
        store_client.tasks.wait().await;
        // A look-up that was under way may have added one.
        self.shared.end_all(&SegmentErrorKind::Closed);
        if tokio::time::timeout(GIVE_BACK, return_unused(&self.shared)).await.is_err() {
            tracing::warn!("not all unused ids could be given back within {GIVE_BACK:?}");
        }
        // Also of tags whose marks are written behind, and that have ended since.
        if let Err(error) = store_client.config.marks.flush().await {
            tracing::warn!("{error}");
        }
        store_client.store.close().await;
    }
}

/// Gives the unused ids of all tags back.
async fn return_unused(shared: &Shared) {
    let mut requests = JoinSet::new();
    for handle in shared.tags.all().values() {
        let Some(unused) = handle.state.take_unused() else { continue };
        let state = Arc::clone(&handle.state);
        let beginning = shared.store_client.beginning();
        requests.spawn(async move { records::give_back(&state, unused, beginning).await });
    }
    requests.join_all().await;
}
