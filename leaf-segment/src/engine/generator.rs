//! Ids of the tags of one store: what a program opens, asks and closes.
//!
//! A generator knows the tags that it was asked for ([`TagSet`]). Another one is looked up in the
//! store ([`LookUps`]), and its record is read again now and then ([`Refresh`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leaf_core::{Health, Tag};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::handle::TagHandle;
use super::known_tags::KnownTags;
use super::look_ups::LookUps;
use super::members::MemberRates;
use super::records::{self, Refresh};
use super::store_client::StoreClient;
use super::tag_set::TagSet;
use super::view::{TagView, Totals};
use crate::engine::{health, rate};
use crate::{SegmentConfig, SegmentError, SegmentErrorKind, SegmentSource};

/// A store that was asked nothing for so long is asked whether it is still there: so an outage is
/// known within twice that. In an outage it is asked four times as often.
const IDLE: Duration = Duration::from_secs(4);
/// How long a close gives ids back.
const GIVE_BACK: Duration = Duration::from_secs(5);

/// Hands out ids of the tags of one [`SegmentSource`]. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SegmentGenerator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store_client: Arc<StoreClient>,
    pub(crate) tags: Arc<TagSet>,
    pub(crate) look_ups: LookUps,
    pub(crate) member_rates: MemberRates,
    /// Whoever holds it reads records and applies them.
    pub(crate) reading: tokio::sync::Mutex<()>,
    /// Whether the store could be read at least once.
    pub(crate) loaded: AtomicBool,
    /// How often the record of a known tag is read, in milliseconds.
    pub(crate) refresh_millis: AtomicU64,
    /// Whether the log knows that records cannot be read.
    pub(crate) reading_fails: AtomicBool,
}

impl SegmentGenerator {
    /// Finds out whether the store can be read, and starts to keep the tags up to date that are asked
    /// for. Call it in a tokio runtime.
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

    /// Asks the store whether it is there, unless it was asked anything within `lately`. The health shows the
    /// result. By itself the generator asks after four seconds.
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

    /// A look-up of one's own, faster than [`Self::known`]: keep one per thread.
    #[must_use]
    pub fn known_tags(&self) -> KnownTags {
        self.shared.tags.known_tags()
    }

    /// The handle of a tag. One that is not known yet is looked up in the store.
    ///
    /// # Errors
    /// `BadTag`, `UnknownTag`, `Disabled`; `Record` or `Key` where its ids cannot be made here;
    /// `StoreDown`, `StoreRefused` or `Deadline` when the look-up got no answer; `TooManyNames` where
    /// 10,000 names wait for one already; `Closed`.
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

    /// Reads the records of the known tags again, the first 256 within half a second, and the others
    /// within half of [`SegmentConfig::refresh`].
    pub fn read_soon(&self) {
        self.shared.store_client.soon.read_all();
    }

    /// Reads the record of one tag and follows it: what was changed in the store before holds here
    /// when this returns. A store that does not answer is asked again soon.
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

    /// Drops every id that is in memory. Each handle ends with `Changed`; [`Self::tag`] gives a new
    /// one, which fetches anew. For a process that goes on from a snapshot of its memory (AWS Lambda
    /// SnapStart, CRIU), from which other processes go on, too: call it there before an id is taken.
    /// Nothing is given back.
    pub fn begin_anew(&self) {
        self.shared.store_client.begin_anew();
        self.shared.end_all(&SegmentErrorKind::Changed);
    }

    /// Whether ids can be handed out now.
    #[must_use]
    pub fn health(&self) -> Health {
        let loaded = self.shared.loaded.load(Ordering::Acquire);
        health::of(&self.shared.store_client, loaded, &self.shared.tags.all())
    }

    /// A look at known tags, up to `most` of them, in the order of their names from the first one
    /// behind `after` on.
    #[must_use]
    pub fn views(&self, after: Option<&str>, most: usize) -> Vec<TagView> {
        let tags = self.shared.tags.all();
        let behind = |handle: &&TagHandle| after.is_none_or(|after| handle.tag().as_str() > after);
        let mut handles: Vec<&TagHandle> = tags.values().filter(behind).collect();
        handles.sort_unstable_by_key(|handle| handle.tag());
        handles.into_iter().take(most).map(|handle| TagView::of(&handle.state)).collect()
    }

    /// A look at all known tags together.
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

    /// A look at a tag that is known; never waits.
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
        if tokio::time::timeout(GIVE_BACK, self.shared.return_unused()).await.is_err() {
            tracing::warn!("not all unused ids could be given back within {GIVE_BACK:?}");
        }
        // Also of tags whose marks are written behind, and that have ended since.
        if let Err(error) = store_client.config.marks.flush().await {
            tracing::warn!("{error}");
        }
        store_client.store.close().await;
    }
}

impl Shared {
    fn new(store: Arc<dyn SegmentSource>, config: SegmentConfig) -> Arc<Self> {
        let refresh = u64::try_from(config.refresh.as_millis()).unwrap_or(u64::MAX);
        Arc::new(Self {
            store_client: Arc::new(StoreClient::new(store, config)),
            tags: Arc::default(),
            look_ups: LookUps::default(),
            member_rates: MemberRates::default(),
            reading: tokio::sync::Mutex::default(),
            loaded: AtomicBool::new(false),
            refresh_millis: AtomicU64::new(refresh),
            reading_fails: AtomicBool::new(false),
        })
    }

    pub(crate) fn end_all(&self, why: &SegmentErrorKind) {
        for handle in self.tags.all().values() {
            handle.state.end(why.clone());
        }
    }

    /// Gives the unused ids of all tags back.
    async fn return_unused(&self) {
        let mut requests = JoinSet::new();
        for handle in self.tags.all().values() {
            let Some(unused) = handle.state.take_unused() else { continue };
            let state = Arc::clone(&handle.state);
            let beginning = self.store_client.beginning();
            requests.spawn(async move { records::give_back(&state, unused, beginning).await });
        }
        requests.join_all().await;
    }

    fn sample_rates(&self) {
        let now = Instant::now();
        for handle in self.tags.all().values() {
            let issued = handle.state.issued();
            handle.state.control().rate.sample(now, issued);
        }
    }
}
