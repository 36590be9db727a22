//! Reads the records of tags that are looked up, and regularly those of the tags in memory.
//!
//! Invariant: readings of records never overlap, so that the record that is applied last is the
//! newest.
//!
//! The record of each known tag is read once in every
//! [`SegmentConfig::refresh`](crate::SegmentConfig::refresh), page by page, so that the load is
//! spread. A store may have any number of tags that nobody asks this node for: they cost nothing.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use leaf_core::{IdRange, Tag};
use leaf_shape::keys::KeyRing;
use leaf_shape::{Mapping, Meaning};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::handle::TagHandle;
use super::look_ups::{self, Answer, Asked, LookUp, PAGE};
use super::members::Reading;
use super::shared::Shared;
use super::tag_state::TagState;
use crate::store::Family;
use crate::{SegmentError, SegmentErrorKind, StoreError, TagRecord};

/// How soon a reading that failed is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Records are not read again sooner than this, however often somebody asks for it.
const GAP: Duration = Duration::from_millis(500);

/// Returns the mapping from a record's numbers to ids (`None` if the numbers are the ids), or why
/// no id may be issued.
fn usable(record: &TagRecord, keys: &KeyRing) -> Result<Option<Mapping>, SegmentErrorKind> {
    let meaning = record.meaning.as_ref().map_err(|_| SegmentErrorKind::Record)?;
    if record.is_family() {
        return Err(SegmentErrorKind::Family);
    }
    if !record.is_enabled() {
        return Err(SegmentErrorKind::Disabled);
    }
    Mapping::of(*meaning, &record.tag, keys).map_err(SegmentErrorKind::Key)
}

/// The task that keeps the records up to date.
pub(crate) struct Refresh {
    /// When the store was last found to be readable.
    tried_at: Option<Instant>,
    /// When the last page was read.
    read_at: Instant,
    /// How long to wait before the next turn.
    pause: Duration,
}

impl Refresh {
    /// The first turn comes at once.
    pub(crate) fn new() -> Self {
        Self { tried_at: None, read_at: Instant::now(), pause: Duration::ZERO }
    }

    /// Reads what is due, until the generator is dropped.
    pub(crate) async fn run(mut self, wake: Arc<Notify>, task: Weak<Shared>) {
        loop {
            let since = Instant::now();
            // Woken, it reads soon.
            let _ = tokio::time::timeout(self.pause, wake.notified()).await;
            tokio::time::sleep_until(since + GAP.min(self.pause)).await;
            // A generator that was dropped needs no refresh.
            let Some(shared) = task.upgrade() else { return };
            self.turn(&shared).await;
        }
    }

    /// Reads what is due.
    pub(crate) async fn turn(&mut self, shared: &Shared) {
        self.pause = match self.read_due(shared).await {
            true => self.next_turn(shared),
            false => {
                self.tried_at = None;
                RETRY
            }
        };
    }

    /// Reads what is due; `false` where the store did not answer.
    async fn read_due(&mut self, shared: &Shared) -> bool {
        let refresh = Duration::from_millis(shared.refresh_millis.load(Ordering::Relaxed));
        let soon = shared.store_client.soon.take();
        let tried = self.tried_at.filter(|at| at.elapsed() < refresh && !soon.store);
        if tried.is_none() && !self.try_reading(shared).await {
            shared.store_client.soon.put_back(soon);
            return false;
        }
        // The next page may have all of them anyway.
        if !soon.all || shared.tags.len() > PAGE {
            let named = soon.tags.iter().filter_map(|tag| shared.tags.find(tag.as_str()));
            for named in named.collect::<Vec<_>>().chunks(PAGE) {
                if shared.read_again(named).await.is_err() {
                    shared.store_client.soon.put_back(soon);
                    return false;
                }
            }
        }
        if soon.all || Instant::now() >= self.read_at + Self::between_pages(shared, refresh) {
            let page = shared.tags.take_from_queue(PAGE);
            let read = shared.read_again(&page).await;
            shared.tags.queue_again(page);
            if read.is_err() {
                shared.store_client.soon.put_back(soon);
                return false;
            }
            self.read_at = Instant::now();
        }
        true
    }

    /// How long it is until something is due.
    fn next_turn(&self, shared: &Shared) -> Duration {
        let refresh = Duration::from_millis(shared.refresh_millis.load(Ordering::Relaxed));
        let tried = self.tried_at.map_or(Duration::ZERO, |at| refresh.saturating_sub(at.elapsed()));
        let page = Self::between_pages(shared, refresh).saturating_sub(self.read_at.elapsed());
        tried.min(page)
    }

    /// The pause between two pages. Up to [`PAGE`] tags fit on one page, which is read once in
    /// every `refresh`. Of more tags, all are read within half of `refresh`, so that a tag that
    /// came at any moment, at the end of the queue, is still read in time.
    fn between_pages(shared: &Shared, refresh: Duration) -> Duration {
        match shared.tags.len() {
            ..=PAGE => refresh,
            known => (refresh / 2).mul_f64(PAGE as f64 / known as f64),
        }
    }

    /// Checks whether the store can be read, and records the outcome.
    pub(crate) async fn try_reading(&mut self, shared: &Shared) -> bool {
        let client = &shared.store_client;
        let tried = client.read("read the tags", client.store.try_reading()).await;
        let tried = tried.inspect_err(|error| shared.reading_failed(error));
        self.tried_at = tried.is_ok().then(Instant::now);
        if tried.is_err() {
            return false;
        }
        if shared.reading_fails.swap(false, Ordering::Relaxed) {
            tracing::info!("the store answers again");
        }
        if !shared.loaded.load(Ordering::Acquire) {
            // Before the first caller asks for ids: a missing right would leave it without.
            client.try_allocating().await;
        }
        shared.loaded.store(true, Ordering::Release);
        true
    }
}

impl Shared {
    fn reading_failed(&self, error: &StoreError) {
        self.reading_fails.store(true, Ordering::Relaxed);
        self.store_client.tell_failure(error);
        if error.is_another_store() {
            self.end_all(&SegmentErrorKind::StoreRefused);
        }
    }

    /// Reads the records of these tags again: applies changes, ends tags without a record, and
    /// drops those that nobody uses.
    async fn read_again(&self, handles: &[TagHandle]) -> Result<(), StoreError> {
        if handles.is_empty() {
            return Ok(());
        }
        let _alone = self.reading.lock().await;
        let tags: Vec<Tag> = handles.iter().map(|handle| handle.tag().clone()).collect();
        // They are most likely to need the families that they needed before.
        let families = handles.iter().filter_map(|handle| handle.state.made_by()).collect();
        let records = self.read_records("read the tags", Reading::Again, &tags, families).await;
        let mut records = records.inspect_err(|error| self.reading_failed(error))?;
        let mut gone = Vec::new();
        for handle in handles {
            match records.remove(handle.tag()) {
                Some(record) => _ = self.apply(&record),
                None => {
                    handle.state.end_without_record();
                    gone.push(handle.clone());
                }
            }
        }
        if let Some(idle) = self.store_client.config.idle {
            let leave = handles.iter().filter(|handle| handle.state.leave_if_idle(idle));
            for handle in leave {
                gone.push(handle.clone());
                self.give_back_idle(handle);
            }
        }
        self.tags.remove(&gone);
        Ok(())
    }

    /// Gives back the unused ids of a tag that was dropped. Its mark is lowered before this
    /// returns: a new handle of the tag may be granted these ids at once.
    fn give_back_idle(&self, handle: &TagHandle) {
        tracing::debug!(tag = ?handle.tag().as_str(), "nobody has used the tag: it leaves");
        let Some(unused) = handle.state.take_unused() else { return };
        let state = Arc::clone(&handle.state);
        let beginning = self.store_client.beginning();
        self.store_client.spawn(async move { give_back(&state, unused, beginning).await });
    }

    /// Reads the record of one tag and applies it, even if the tag is not in memory yet.
    pub(crate) async fn follow(&self, tag: &Tag) {
        let _alone = self.reading.lock().await;
        let what = format!("read tag {:?}", tag.as_str());
        let tags = std::slice::from_ref(tag);
        match self.read_looked_up(&what, tags).await {
            Ok(records) => {
                match records.get(tag) {
                    Some(record) => _ = self.apply(record),
                    None => self.has_gone(tag),
                }
                self.look_ups.forget(tag);
            }
            Err(_) => self.store_client.soon.read_tag(tag),
        }
    }

    fn has_gone(&self, tag: &Tag) {
        if let Some(handle) = self.tags.find(tag.as_str()) {
            handle.state.end_without_record();
            self.tags.remove(&[handle]);
        }
    }

    /// Looks up a tag that is not in memory, together with others that are asked for at the same
    /// time.
    pub(crate) async fn look_up(shared: &Arc<Self>, tag: &Tag) -> Answer {
        let answer = match shared.look_ups.ask(tag) {
            Asked::Refused(why) => return Err(SegmentError::new(why, tag.as_str())),
            Asked::Waits(answer) => answer,
            Asked::IsFirst(answer) => {
                // Made here: a generator that closes may drop the task before it began.
                let mut serving = Serving(Some(Arc::clone(shared)));
                shared.store_client.spawn(async move {
                    let Some(shared) = serving.0.clone() else { return };
                    shared.look_up_all().await;
                    // The next caller starts a task: there is nothing to clear.
                    drop(serving.0.take());
                });
                answer
            }
        };
        let closed = |_| Err(SegmentError::new(SegmentErrorKind::Closed, tag.as_str()));
        answer.await.unwrap_or_else(closed)
    }

    /// Looks names up until none waits any more.
    async fn look_up_all(&self) {
        while let Some(batch) = self.look_ups.next() {
            let refused = self.look_up_batch(batch).await;
            if refused > 0 {
                tokio::time::sleep(look_ups::PAUSE * refused).await;
            }
        }
    }

    /// Looks up these names; returns how many of them yielded no tag.
    async fn look_up_batch(&self, batch: Vec<LookUp>) -> u32 {
        let _alone = self.reading.lock().await;
        self.look_up_together(batch).await
    }

    async fn look_up_together(&self, batch: Vec<LookUp>) -> u32 {
        let tags: Vec<Tag> = batch.iter().map(|asked| asked.tag.clone()).collect();
        let what = match &*tags {
            [tag] => format!("look up tag {:?}", tag.as_str()),
            tags => format!("look up {} tags", tags.len()),
        };
        let mut refused = 0;
        let mut records = match self.read_looked_up(&what, &tags).await {
            Ok(records) => records,
            // It may be the fault of one of the names: each is asked for by itself.
            Err(error) if tags.len() > 1 && !error.is_outage() => {
                for asked in batch {
                    refused += Box::pin(self.look_up_together(vec![asked])).await;
                }
                return refused;
            }
            Err(error) => {
                let error = Arc::new(error);
                for LookUp { tag, callers } in batch {
                    let answer = Err(SegmentError::of_store(&tag, Arc::clone(&error)));
                    refused += tell(callers, &answer);
                }
                return refused;
            }
        };
        // Those that are there do not wait for those that are made.
        let (there, missing): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|asked| records.contains_key(&asked.tag));
        for LookUp { tag, callers } in there {
            refused += tell(callers, &self.looked_up(&tag, records.get(&tag)));
        }
        let tags: Vec<Tag> = missing.iter().map(|asked| asked.tag.clone()).collect();
        let mut not_made = self.make_missing(&tags, &mut records).await;
        for LookUp { tag, callers } in missing {
            let answer = match not_made.remove(&tag) {
                Some(why) => {
                    // A store that does not answer may do so at once.
                    if why.store_error().is_none_or(|error| !error.retryable()) {
                        self.look_ups.refuse(tag.clone(), why.kind().clone());
                    }
                    Err(why)
                }
                None => self.looked_up(&tag, records.get(&tag)),
            };
            refused += tell(callers, &answer);
        }
        refused
    }

    /// Reads the records of names that are looked up, with their families.
    async fn read_looked_up(
        &self,
        what: &str,
        tags: &[Tag],
    ) -> Result<HashMap<Tag, TagRecord>, StoreError> {
        let families = tags.iter().filter_map(Family::of).collect();
        self.read_records(what, Reading::LookUp, tags, families).await
    }

    /// The answer to callers that asked for a tag with this record, or without one.
    fn looked_up(&self, tag: &Tag, record: Option<&TagRecord>) -> Answer {
        let applied = match record {
            Some(record) => self.apply(record),
            None => {
                self.has_gone(tag);
                Err(SegmentErrorKind::UnknownTag)
            }
        };
        applied.map_err(|why| {
            self.look_ups.refuse(tag.clone(), why.clone());
            SegmentError::new(why, tag.as_str())
        })
    }

    /// Updates the tag in memory from its record, and returns the handle that serves it. The caller
    /// must hold the lock `reading`.
    ///
    /// # Errors
    /// Why no id may be issued.
    fn apply(&self, record: &TagRecord) -> Result<TagHandle, SegmentErrorKind> {
        let usable = usable(record, &self.store_client.config.keys);
        match (self.tags.find(record.tag.as_str()), &usable) {
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
                    return Err(SegmentErrorKind::Disabled);
                }
                return Ok(handle);
            }
            (Some(ended), Err(why)) if ended.state.control().ended.as_ref() == Some(why) => {
                return Err(why.clone());
            }
            // Made or enabled again, or with another key: make a new handle. The marks hold what
            // was granted before.
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
        match &refusal {
            Some(why) => handle.state.end(why.clone()),
            None => handle.state.tell_if_suspect(record),
        }
        self.tags.insert(handle.clone());
        refusal.map_or(Ok(handle), Err)
    }
}

/// Sends the answer to all callers of one name; returns 1 if the name was refused, else 0.
fn tell(callers: Vec<oneshot::Sender<Answer>>, answer: &Answer) -> u32 {
    for caller in callers {
        // One may have left.
        let _ = caller.send(answer.clone());
    }
    answer.is_err().into()
}

/// Gives back the unused ids of a tag that has ended: no handle issues them any more, and no task
/// fetches others. The lowered mark is written first: in the other order, a crash in between would
/// leave a mark above the store's `max_id`. Nothing is given back if the process was restored from
/// a snapshot after `beginning`: another copy of it may have given the same ids back.
pub(crate) async fn give_back(state: &TagState, unused: Option<IdRange>, beginning: u64) {
    let client = &state.store_client;
    let Ok(_permit) = client.permits.acquire().await else { return };
    if let Err(error) = client.config.marks.write(&state.tag).await {
        tracing::warn!(tag = ?state.tag.as_str(), "{error}; unused ids stay taken");
        return;
    }
    let Some(unused) = unused.filter(|_| client.beginning() == beginning) else { return };
    let request = client.store.give_back(&state.tag, state.generation(), unused);
    match client.ask("give back unused ids", request).await {
        Ok(true) => tracing::debug!(tag = ?state.tag.as_str(), "gave {unused} back"),
        // Somebody allocated since.
        Ok(false) => {}
        Err(error) => tracing::warn!(tag = ?state.tag.as_str(), "{error}"),
    }
}

/// Marks the look-up task as running. If it ends early, because the store panics or the generator
/// closes, its callers get no answer.
struct Serving(Option<Arc<Shared>>);

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.look_ups.clear();
        }
    }
}
