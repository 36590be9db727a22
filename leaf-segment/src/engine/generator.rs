//! The tags of one store, and the tasks that keep them up to date.
//!
//! Readers look a tag up in an immutable map that is swapped whole; nobody waits for a lock there.
//!
//! A tag that is not in the map is looked up in the store. Names that do not exist must cost the
//! store little, however many there are: each is remembered for a second, only so many look-ups a
//! second have a query of their own, and beyond that callers wait for the next reading of the whole
//! set of tags, at most one in half a second for all of them together. A new tag is found within a
//! second all the same.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use leaf_core::{Health, Tag};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::handle::TagHandle;
use super::known_tags::{KnownTags, TagMap};
use super::store_client::StoreClient;
use super::tag_state::{Leftovers, TagState};
use super::unknown_tags::UnknownTags;
use super::view::TagView;
use crate::engine::{health, rate};
use crate::meaning::{KeyRing, Mapping, Meaning};
use crate::{SegmentConfig, SegmentError, SegmentErrorKind, SegmentSource, StoreError, TagRecord};

/// While a tag waits for an operator, the tags are read at least this often.
const REFRESH_IF_REFUSED: Duration = Duration::from_secs(10);

/// How soon a refresh that failed is tried again.
const REFRESH_RETRY: Duration = Duration::from_millis(500);
/// A store that was asked nothing for so long is asked whether it is still there: so an outage is
/// known within twice that. In an outage it is asked four times as often.
const IDLE: Duration = Duration::from_secs(4);
/// The set of tags is not read more often than this, however many unknown tags are asked for.
const READ_GAP: Duration = Duration::from_millis(500);
/// How long a close gives ids back.
const GIVE_BACK: Duration = Duration::from_secs(5);

/// Hands out ids of the tags of one [`SegmentSource`]. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SegmentGenerator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store_client: Arc<StoreClient>,
    tags: Arc<ArcSwap<TagMap>>,
    /// Whoever holds it may change the map. The tags that were read by themselves since the last
    /// reading of all of them began: it may have older records.
    changing: Mutex<HashSet<Tag>>,
    /// Whoever holds it reads the record of one tag to follow it.
    following: tokio::sync::Mutex<()>,
    /// How often that was done.
    followed: AtomicU64,
    unknown: Mutex<UnknownTags>,
    /// How many readings of the whole set have begun, and what became of the last that ended.
    reads_begun: AtomicU64,
    read: watch::Sender<Read>,
    /// Whether the set of tags was ever read.
    loaded: AtomicBool,
    /// How often it is read, in milliseconds.
    refresh_millis: AtomicU64,
    /// Whether the log knows that the set of tags cannot be read.
    refresh_fails: AtomicBool,
}

/// A reading of the whole set of tags that has ended.
#[derive(Debug, Clone, Default)]
struct Read {
    /// The generator's number, from 1 on.
    number: u64,
    failure: Option<Arc<StoreError>>,
}

impl SegmentGenerator {
    /// Reads the set of tags and starts to keep it up to date. Call it in a tokio runtime.
    ///
    /// A store that does not answer is no error: the generator goes on asking, and
    /// [`Self::health`] says so.
    pub async fn open(store: Arc<dyn SegmentSource>, config: SegmentConfig) -> Self {
        let shared = Shared::new(store, config);
        let first = shared.refresh().await;
        Self::keep(shared, first)
    }

    /// Starts to read the set of tags and to keep it up to date, without waiting for the first
    /// answer of the store.
    #[must_use]
    pub fn start(store: Arc<dyn SegmentSource>, config: SegmentConfig) -> Self {
        Self::keep(Shared::new(store, config), Duration::ZERO)
    }

    /// Starts the tasks; the set of tags is read after `first`.
    fn keep(shared: Arc<Shared>, first: Duration) -> Self {
        let (task, changed) = (Arc::downgrade(&shared), Arc::clone(&shared.store_client.read_soon));
        shared.store_client.spawn(async move {
            let mut pause = first;
            loop {
                let since = Instant::now();
                // Told of a new interval, or that tags are waited for, it reads soon.
                let _ = tokio::time::timeout(pause, changed.notified()).await;
                tokio::time::sleep_until(since + READ_GAP.min(pause)).await;
                // A generator that was dropped needs no refresh.
                let Some(shared) = task.upgrade() else { return };
                pause = shared.refresh().await;
            }
        });
        let task = Arc::downgrade(&shared);
        shared.store_client.spawn(async move {
            loop {
                tokio::time::sleep(IDLE / 4).await;
                let Some(shared) = task.upgrade() else { return };
                shared.store_client.period_clock.now();
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

    /// The handle of a tag that is already known; never waits.
    #[must_use]
    pub fn known(&self, tag: &str) -> Option<TagHandle> {
        let tags = self.shared.tags.load();
        tags.get(tag).filter(|handle| !handle.state.has_ended()).cloned()
    }

    /// A look-up of one's own, faster than [`Self::known`]: keep one per thread.
    #[must_use]
    pub fn known_tags(&self) -> KnownTags {
        KnownTags::of(&self.shared.tags)
    }

    /// The handle of a tag. One that is not known yet is looked up in the store.
    ///
    /// # Errors
    /// `BadTag`, `UnknownTag`, `Disabled`; `Record` or `Key` where its ids cannot be made here;
    /// `StoreDown`, `StoreRefused` or `Deadline` when the look-up got no answer; `Closed`.
    pub async fn tag(&self, tag: &str) -> Result<TagHandle, SegmentError> {
        if let Some(handle) = self.known(tag) {
            return Ok(handle);
        }
        let parsed = Tag::parse(tag)
            .map_err(|error| SegmentError::new(SegmentErrorKind::BadTag(error), ""))?;
        let wait = self.shared.store_client.config.wait;
        tokio::time::timeout(wait, Shared::look_up(&self.shared, parsed))
            .await
            .unwrap_or_else(|_| Err(SegmentError::new(SegmentErrorKind::Deadline(wait), tag)))
    }

    /// Changes how often the set of tags is read, from now on: it is read at once, too.
    pub fn set_refresh(&self, refresh: Duration) {
        let millis = u64::try_from(refresh.as_millis()).unwrap_or(u64::MAX);
        if self.shared.refresh_millis.swap(millis, Ordering::Relaxed) != millis {
            self.read_soon();
        }
    }

    /// Reads the set of tags soon, within half a second.
    pub fn read_soon(&self) {
        self.shared.store_client.read_soon.notify_one();
    }

    /// Reads the record of one tag and follows it: what was changed in the store before holds here
    /// when this returns. A store that does not answer is asked again with the next reading of all
    /// tags.
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
        self.shared.end_all(&SegmentErrorKind::Changed);
    }

    /// Whether ids can be handed out now.
    #[must_use]
    pub fn health(&self) -> Health {
        let loaded = self.shared.loaded.load(Ordering::Acquire);
        health::of(&self.shared.store_client, loaded, &self.shared.tags.load())
    }

    /// A look at every tag, in the order of their names.
    #[must_use]
    pub fn views(&self) -> Vec<TagView> {
        let tags = self.shared.tags.load();
        let mut views: Vec<TagView> =
            tags.values().map(|handle| TagView::of(&handle.state)).collect();
        views.sort_by(|a, b| a.tag.cmp(&b.tag));
        views
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

/// What makes ids of a record's numbers, or why none may be issued.
fn usable(record: &TagRecord, keys: &KeyRing) -> Result<Option<Mapping>, SegmentErrorKind> {
    let meaning = record.meaning.as_ref().map_err(|_| SegmentErrorKind::Record)?;
    if !record.is_enabled() {
        return Err(SegmentErrorKind::Disabled);
    }
    Mapping::of(meaning.shape, &record.tag, keys).map_err(SegmentErrorKind::Key)
}

impl Shared {
    fn new(store: Arc<dyn SegmentSource>, config: SegmentConfig) -> Arc<Self> {
        let refresh = u64::try_from(config.refresh.as_millis()).unwrap_or(u64::MAX);
        Arc::new(Self {
            store_client: Arc::new(StoreClient::new(store, config)),
            tags: Arc::default(),
            changing: Mutex::default(),
            following: tokio::sync::Mutex::default(),
            followed: AtomicU64::new(0),
            unknown: Mutex::default(),
            reads_begun: AtomicU64::new(0),
            read: watch::Sender::default(),
            loaded: AtomicBool::new(false),
            refresh_millis: AtomicU64::new(refresh),
            refresh_fails: AtomicBool::new(false),
        })
    }

    fn end_all(&self, why: &SegmentErrorKind) {
        for handle in self.tags.load().values() {
            handle.state.end(why.clone());
        }
    }

    /// Lets the marks sink and gives the unused ids back: they are nobody's, no handle yields them
    /// any more, and no task fetches others. The mark first: in the other order a crash in between
    /// would leave one that the store does not reach.
    async fn return_unused(&self) {
        let mut requests = JoinSet::new();
        for handle in self.tags.load().values() {
            let Some(leftovers) = handle.state.take_leftovers() else { continue };
            let (store_client, tag) = (Arc::clone(&self.store_client), handle.tag().clone());
            let generation = handle.state.generation();
            requests.spawn(async move {
                let Ok(_permit) = store_client.permits.acquire().await else { return };
                let Leftovers { unused, granted_end, issued_end } = leftovers;
                let lowered = store_client.config.marks.lower(&tag, granted_end, issued_end).await;
                if let Err(error) = lowered {
                    tracing::warn!(tag = ?tag.as_str(), "{error}; unused ids stay taken");
                    return;
                }
                let Some(unused) = unused else { return };
                let request = store_client.store.give_back(&tag, generation, unused);
                match store_client.ask("give back unused ids", request).await {
                    Ok(true) => tracing::debug!(tag = ?tag.as_str(), "gave {unused} back"),
                    // Somebody allocated since.
                    Ok(false) => {}
                    Err(error) => tracing::warn!(tag = ?tag.as_str(), "{error}"),
                }
            });
        }
        requests.join_all().await;
    }

    fn unknown(&self) -> MutexGuard<'_, UnknownTags> {
        self.unknown.lock().expect("no holder of this lock panics")
    }

    /// Reads all records: new tags appear, changed steps count, deleted tags end. Returns how long
    /// to wait before the next time.
    async fn refresh(&self) -> Duration {
        let number = self.reads_begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.changing.lock().expect("no holder of this lock panics").clear();
        let records =
            match self.store_client.read("read the tags", self.store_client.store.tags()).await {
                Ok(records) => records,
                Err(error) => {
                    self.refresh_fails.store(true, Ordering::Relaxed);
                    self.store_client.tell_failure(&error);
                    if error.is_another_store() {
                        self.end_all(&SegmentErrorKind::StoreRefused);
                    }
                    self.read.send_replace(Read { number, failure: Some(Arc::new(error)) });
                    return REFRESH_RETRY;
                }
            };
        if self.refresh_fails.swap(false, Ordering::Relaxed) {
            tracing::info!("the store answers again");
        }
        {
            let newer = self.changing.lock().expect("no holder of this lock panics");
            let mut tags = TagMap::clone(&self.tags.load());
            let names: HashSet<&Tag> =
                records.iter().map(|record| &record.tag).chain(newer.iter()).collect();
            for handle in tags.values().filter(|handle| !names.contains(handle.tag())) {
                handle.state.end(SegmentErrorKind::UnknownTag);
            }
            // What was granted of those that are gone, the marks remember.
            tags.retain(|tag, handle| names.contains(tag) || !handle.state.has_ended());
            for record in &records {
                if !newer.contains(&record.tag) {
                    self.apply_record(&mut tags, record);
                } else if tags
                    .get(&record.tag)
                    .is_none_or(|handle| !handle.state.is_made_as(record))
                {
                    // Which of the two is newer nobody knows. A repair must not wait for long.
                    self.store_client.read_soon.notify_one();
                }
            }
            self.tags.store(Arc::new(tags));
        }
        if !self.loaded.load(Ordering::Acquire) {
            // Before the first caller asks for ids: a missing right would leave it without.
            self.store_client.try_allocating().await;
        }
        self.loaded.store(true, Ordering::Release);
        self.read.send_replace(Read { number, failure: None });
        let refresh = Duration::from_millis(self.refresh_millis.load(Ordering::Relaxed));
        // Somebody repairs it, and wants to see that.
        let waits = self.tags.load().values().any(|handle| {
            let control = handle.state.control();
            control.refused || control.went_back
        });
        if waits { refresh.min(REFRESH_IF_REFUSED) } else { refresh }
    }

    /// Brings `tags` up to date with one record.
    fn apply_record(&self, tags: &mut TagMap, record: &TagRecord) -> TagHandle {
        let usable = usable(record, &self.store_client.config.keys);
        let before = tags.get(&record.tag);
        match (before, &usable) {
            (Some(handle), _)
                if !handle.state.has_ended()
                    && record.meaning == Ok(handle.meaning())
                    && handle.state.is_made_as(record) =>
            {
                let suspect = handle.state.control().suspect();
                handle.state.record_seen(record);
                handle.state.compare_with_mark(record.max_id);
                if !suspect {
                    handle.state.tell_if_suspect(record);
                }
                // Its key it has, whatever became of the file of keys since.
                if !record.is_enabled() {
                    handle.state.end(SegmentErrorKind::Disabled);
                }
                return handle.clone();
            }
            (Some(ended), Err(why)) if ended.state.control().ended.as_ref() == Some(why) => {
                return ended.clone();
            }
            // New, or made or enabled again, or with another key: what was granted before, the
            // marks remember.
            (Some(before), _) => before.state.end(SegmentErrorKind::Changed),
            (None, _) => {}
        }
        if let Err(error) = &record.meaning {
            tracing::error!(tag = ?record.tag.as_str(), "no ids: {error}");
        }
        if let Err(error @ SegmentErrorKind::Key(_)) = &usable {
            tracing::error!(tag = ?record.tag.as_str(), "no ids: {error}");
        }
        let meaning = record.meaning.as_ref().copied().unwrap_or(Meaning::PLAIN);
        let (mapping, refusal) = match usable {
            Ok(mapping) => (mapping, None),
            Err(why) => (None, Some(why)),
        };
        let state = TagState::new(record, meaning, mapping, Arc::clone(&self.store_client));
        let handle = TagHandle { state: Arc::new(state) };
        match refusal {
            Some(why) => handle.state.end(why),
            None => handle.state.tell_if_suspect(record),
        }
        tags.insert(record.tag.clone(), handle.clone());
        handle
    }

    fn sample_rates(&self) {
        let now = Instant::now();
        for handle in self.tags.load().values() {
            let issued = handle.state.issued();
            handle.state.control().rate.sample(now, issued);
        }
    }

    async fn look_up(shared: &Arc<Self>, tag: Tag) -> Result<TagHandle, SegmentError> {
        let alone = {
            let mut unknown = shared.unknown();
            if let Some(why) = unknown.holds(&tag) {
                return Err(SegmentError::new(why, tag.as_str()));
            }
            unknown.may_look_up()
        };
        if !alone {
            return shared.wait_for_read(&tag).await;
        }
        // A task of its own: a caller that leaves must not take the store's answer with it.
        let (answer, received) = tokio::sync::oneshot::channel();
        let task = Arc::clone(shared);
        let name = tag.clone();
        shared.store_client.spawn(async move {
            let _ = answer.send(task.ask_store(&name).await);
        });
        let closed = |_| Err(SegmentError::new(SegmentErrorKind::Closed, tag.as_str()));
        received.await.unwrap_or_else(closed)
    }

    async fn follow(&self, tag: &Tag) {
        // One after the other: the answer that was read last must be the one that holds.
        let _turn = self.following.lock().await;
        let what = format!("read tag {:?}", tag.as_str());
        match self.store_client.read(&what, self.store_client.store.tag(tag)).await {
            Ok(record) => {
                self.apply_one(tag, record.as_ref());
                self.unknown().forget(tag);
                self.followed.fetch_add(1, Ordering::SeqCst);
            }
            Err(_) => self.store_client.read_soon.notify_one(),
        }
    }

    async fn ask_store(&self, tag: &Tag) -> Result<TagHandle, SegmentError> {
        let what = format!("look up tag {:?}", tag.as_str());
        let record = loop {
            let followed = self.followed.load(Ordering::SeqCst);
            let record = self.store_client.read(&what, self.store_client.store.tag(tag)).await;
            // Else somebody has changed a tag meanwhile, perhaps this one, and read it later.
            if followed == self.followed.load(Ordering::SeqCst) {
                break record;
            }
        };
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                let why = SegmentErrorKind::Record;
                let error = SegmentError::of_store(tag, Arc::new(error));
                // Told once: it may be asked for again and again.
                if *error.kind() == why
                    && self.unknown().remember(tag.clone(), why.clone()) != Some(why)
                    && let Some(store_error) = error.store_error()
                {
                    tracing::error!("{store_error}");
                }
                return Err(error);
            }
        };
        let mut why = SegmentErrorKind::UnknownTag;
        if let Some(record) = record
            && let Some(handle) = self.apply_one(tag, Some(&record))
        {
            match usable(&record, &self.store_client.config.keys) {
                Ok(_) => return Ok(handle),
                Err(refusal) => why = refusal,
            }
        }
        self.unknown().remember(tag.clone(), why.clone());
        Err(SegmentError::new(why, tag.as_str()))
    }

    /// Brings what is known up to date with the record of one tag, which may be newer than one of all
    /// tags that is being read.
    fn apply_one(&self, tag: &Tag, record: Option<&TagRecord>) -> Option<TagHandle> {
        let mut newer = self.changing.lock().expect("no holder of this lock panics");
        newer.insert(tag.clone());
        if record.is_none() && !self.tags.load().contains_key(tag) {
            return None;
        }
        let mut tags = TagMap::clone(&self.tags.load());
        let handle = record.map(|record| self.apply_record(&mut tags, record));
        if handle.is_none() {
            let gone = tags.remove(tag)?;
            gone.state.end(SegmentErrorKind::UnknownTag);
        }
        self.tags.store(Arc::new(tags));
        handle
    }

    /// The handle of a tag, from a reading of the whole set that begins after this call.
    async fn wait_for_read(&self, tag: &Tag) -> Result<TagHandle, SegmentError> {
        let mut reads = self.read.subscribe();
        let number = self.reads_begun.load(Ordering::SeqCst) + 1;
        self.store_client.read_soon.notify_one();
        let read = tokio::select! {
            () = self.store_client.stop.cancelled() => None,
            read = reads.wait_for(|read| read.number >= number) => read.ok().map(|read| read.clone()),
        };
        let Some(read) = read else {
            return Err(SegmentError::new(SegmentErrorKind::Closed, tag.as_str()));
        };
        if let Some(failure) = read.failure {
            return Err(SegmentError::of_store(tag, failure));
        }
        let tags = self.tags.load();
        match tags.get(tag.as_str()) {
            Some(handle) if !handle.state.has_ended() => Ok(handle.clone()),
            ended => {
                let why = ended.and_then(|handle| handle.state.control().ended.clone());
                // One that has changed, and is not there now, is gone.
                let why = why.filter(|why| *why != SegmentErrorKind::Changed);
                let why = why.unwrap_or(SegmentErrorKind::UnknownTag);
                self.unknown().remember(tag.clone(), why.clone());
                Err(SegmentError::new(why, tag.as_str()))
            }
        }
    }
}
