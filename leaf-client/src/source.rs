//! The servers as the store of a double buffer: each segment is a leased range.
//!
//! A background task asks for the properties of the tags in use, one tag after the other, each
//! about once per refresh. The generator reads these stored answers, so its regular reading of all
//! tags sends no request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leaf_core::{IdRange, Step, Tag};
use leaf_segment::store::{Expected, StoreFuture, TagGeneration, TagSettings};
use leaf_segment::{NewTag, RangeSource, StoreError, StoreErrorKind, TagCatalog, TagRecord};
use leaf_shape::Meaning;
use tokio::time::Instant;

use crate::api::Api;
use crate::calls::{AskLease, AskReturn, AskTag, Leased};
use crate::endpoint::Endpoint;
use crate::error::ClientErrorKind;
use crate::failure::AskError;
use crate::wire::TagShown;

/// How many leased ranges of a tag are remembered: a double buffer holds two.
const REMEMBERED: usize = 4;

#[derive(Debug)]
pub(crate) struct ServerSource {
    pub(crate) api: Arc<Api>,
    /// How long a request may take, with all servers that it goes to.
    pub(crate) deadline: Duration,
    /// The most ids of a lease.
    pub(crate) max_lease: Step,
    /// The tags with leases that this client uses.
    used: Mutex<BTreeMap<Tag, Used>>,
}

/// A tag in use.
#[derive(Debug, Default)]
struct Used {
    /// The record as a server last showed it; `None` if the tag does not exist any more.
    record: Option<TagRecord>,
    /// The ranges that were leased last.
    held: Vec<Held>,
}

/// A leased range, and the server that leased it.
struct Held {
    leased: Leased,
    from: Arc<Endpoint>,
}

/// Without the ticket.
impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.leased.range, self.from)
    }
}

impl ServerSource {
    pub(crate) fn new(api: Arc<Api>, deadline: Duration, max_lease: Step) -> Self {
        Self { api, deadline, max_lease, used: Mutex::default() }
    }

    fn used(&self) -> MutexGuard<'_, BTreeMap<Tag, Used>> {
        self.used.lock().expect("no holder of this lock panics")
    }

    /// The tags in use.
    pub(crate) fn names(&self) -> Vec<Tag> {
        self.used().keys().cloned().collect()
    }

    /// Asks a server for the properties of a tag.
    pub(crate) async fn shown(&self, tag: &Tag) -> Result<TagShown, AskError> {
        let deadline = Instant::now() + self.deadline;
        self.api.ask_on(&AskTag(tag.as_str()), deadline).await
    }

    /// The record that a double buffer needs. For a tag that cannot be leased any more, the record
    /// has another meaning, which ends the tag's handle.
    ///
    /// If a server of an earlier version names no generation, the known one stays. Else handles
    /// would end whenever such a server answers among newer ones.
    fn record(&self, tag: &Tag, shown: &TagShown) -> TagRecord {
        let used = self.used();
        let known = used.get(tag).and_then(|used| used.record.as_ref());
        let generation = shown.generation.or_else(|| known.and_then(TagRecord::generation));
        drop(used);
        let meaning = if shown.leases { Meaning::PLAIN } else { Meaning::STRICT };
        let most = Step::new(shown.max_take).unwrap_or(Step::MIN).min(self.max_lease);
        let step = Step::new(shown.step.unwrap_or(1)).map(|step| step.min(most));
        let settings = TagSettings {
            max_step: Some(most),
            max_take: Some(Step::new(shown.max_take).unwrap_or(Step::MIN)),
            generation,
            ..TagSettings::default()
        };
        TagRecord {
            tag: tag.clone(),
            max_id: 0,
            step,
            description: None,
            meaning: Ok(meaning),
            settings: Ok(settings),
        }
    }

    /// Stores the record of a tag that can be leased.
    pub(crate) fn keep(&self, tag: &Tag, shown: &TagShown) {
        let record = self.record(tag, shown);
        self.used().entry(tag.clone()).or_default().record = Some(record);
    }

    /// Asks a server for the properties of a tag, and stores the record. `None` if the tag does not
    /// exist.
    pub(crate) async fn read(&self, tag: &Tag) -> Result<Option<TagRecord>, StoreError> {
        let record = match self.shown(tag).await {
            Ok(shown) => Some(self.record(tag, &shown)),
            Err(AskError::Refused { kind: ClientErrorKind::UnknownTag, .. }) => None,
            Err(AskError::Refused { kind: ClientErrorKind::Disabled, .. }) => {
                let mut new: TagRecord = NewTag::new(tag.clone(), Step::MIN).into();
                new.settings = Ok(TagSettings { enabled: false, ..TagSettings::default() });
                Some(new)
            }
            Err(error) => {
                return Err(store_error(format!("ask for tag {:?}", tag.as_str()), error));
            }
        };
        let mut used = self.used();
        match (used.get_mut(tag), &record) {
            (Some(known), _) => known.record.clone_from(&record),
            (None, Some(_)) => {
                let known = Used { record: record.clone(), held: Vec::new() };
                used.insert(tag.clone(), known);
            }
            (None, None) => {}
        }
        Ok(record)
    }

    /// Leases a range of `amount` ids, and stores its ticket and the server that leased it.
    async fn lease(&self, tag: &Tag, amount: Step) -> Result<IdRange, StoreError> {
        let operation = || format!("lease ids of tag {:?}", tag.as_str());
        let deadline = Instant::now() + self.deadline;
        let ask = AskLease { tag: tag.as_str(), count: amount };
        let (leased, from) = match self.api.ask(&ask, deadline).await {
            Ok(leased) => leased,
            Err(error) => {
                if let AskError::Refused { .. } = &error {
                    // It is not what it was: the next look-up must not find that.
                    let _ = self.read(tag).await;
                }
                return Err(store_error(operation(), error));
            }
        };
        let range = leased.range;
        let mut used = self.used();
        let held = &mut used.entry(tag.clone()).or_default().held;
        if held.len() == REMEMBERED {
            held.remove(0);
        }
        held.push(Held { leased, from });
        Ok(range)
    }

    /// Gives the ids of `unused` back to the servers that leased them: range by range, the last one
    /// first. Returns whether any were taken back.
    async fn return_tail(&self, tag: &Tag, unused: IdRange) -> Result<bool, StoreError> {
        let (mut returned, mut end) = (false, unused.end());
        while end > unused.start() {
            let Held { leased, from } = {
                let mut used = self.used();
                let Some(Used { held, .. }) = used.get_mut(tag) else { break };
                let at = held.iter().position(|held| held.leased.range.end() == end);
                let Some(at) = at else { break };
                held.remove(at)
            };
            let start = unused.start().max(leased.range.start());
            let Some(unused) = IdRange::new(start, end) else { break };
            let ask = AskReturn { tag: tag.as_str(), ticket: &leased.ticket, unused };
            // Sent once, to the server that leased the range: if the answer is lost, nobody can
            // tell whether the ids went back.
            let answer = self.api.ask_only(&from, &ask).await;
            let answer = answer.map_err(|error| {
                store_error(format!("return ids of tag {:?}", tag.as_str()), error)
            })?;
            if !answer {
                break;
            }
            (returned, end) = (true, start);
        }
        Ok(returned)
    }
}

/// Converts an error of a server into a store's error, which the generator of leaf-segment handles.
fn store_error(operation: String, error: AskError) -> StoreError {
    let kind = match &error {
        AskError::Failed(_) => StoreErrorKind::Unavailable,
        AskError::Refused { kind, .. } => match kind {
            ClientErrorKind::UnknownTag => StoreErrorKind::UnknownTag,
            // Fewer may be had.
            ClientErrorKind::Exhausted | ClientErrorKind::BadCount => StoreErrorKind::Exhausted,
            // It is another tag by now: the next look-up tells which.
            ClientErrorKind::NoRanges | ClientErrorKind::Disabled => StoreErrorKind::MeaningChanged,
            _ => StoreErrorKind::Refused,
        },
    };
    StoreError::new(kind, operation).because(error)
}

impl RangeSource for ServerSource {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        _expected: Expected,
    ) -> StoreFuture<'a, IdRange> {
        Box::pin(self.lease(tag, amount))
    }

    /// Does not send the generation: the server compares that of the leased range, which the ticket
    /// names.
    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        _: Option<TagGeneration>,
        unused: IdRange,
    ) -> StoreFuture<'a, bool> {
        Box::pin(self.return_tail(tag, unused))
    }
}

impl TagCatalog for ServerSource {
    /// Returns the records of these tags as last read from a server; sends no request. Tags that no
    /// longer exist are left out.
    fn records<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        let used = self.used();
        let records = tags.iter().filter_map(|tag| used.get(tag)?.record.clone()).collect();
        Box::pin(async { Ok(records) })
    }

    /// Asks the servers, one tag after the other.
    fn look_up<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        Box::pin(async move {
            let mut records = Vec::with_capacity(tags.len());
            for tag in tags {
                records.extend(self.read(tag).await?);
            }
            Ok(records)
        })
    }
}
