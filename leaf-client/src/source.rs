//! Servers as the store of a double buffer: a segment is a leased range.
//!
//! What tags are like is asked for one after the other, each about once in a refresh; the generator reads what was
//! learnt, so that its reading of all tags costs no request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::Method;
use leaf_core::{IdRange, Step, Tag};
use leaf_segment::{
    Expected, Meaning, NewTag, RangeSource, StoreError, StoreErrorKind, StoreFuture, TagCatalog,
    TagRecord, TagSettings,
};
use tokio::time::Instant;

use crate::api::{Api, AskError, path_of};
use crate::endpoint::Endpoint;
use crate::error::ClientErrorKind;
use crate::wire::{Lease, Returned, TagShown};

/// So many leased ranges of a tag are remembered: a double buffer holds two.
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
    /// What it was like when it was last asked for; `None` where it is gone, or has no leases any more.
    record: Option<TagRecord>,
    /// The ranges that were leased last.
    leased: Vec<Leased>,
}

struct Leased {
    range: IdRange,
    /// A secret: whoever shows it gives the range back.
    ticket: String,
    from: Arc<Endpoint>,
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.range, self.from)
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

    /// Asks what a tag is like.
    pub(crate) async fn shown(&self, tag: &Tag) -> Result<TagShown, AskError> {
        let deadline = Instant::now() + self.deadline;
        Ok(self.api.ask_on(Method::GET, &path_of(tag.as_str(), ""), 0, deadline, |_| true).await?.0)
    }

    /// The record that a double buffer needs; one of another meaning for a tag that has no leases, so that a handle that
    /// had some ends.
    fn record(&self, tag: &Tag, shown: &TagShown) -> TagRecord {
        let meaning = if shown.leases { Meaning::PLAIN } else { Meaning::STRICT };
        let most = Step::new(shown.max_take).unwrap_or(Step::MIN).min(self.max_lease);
        let step = Step::new(shown.step.unwrap_or(1)).map(|step| step.min(most));
        let settings = TagSettings {
            max_step: Some(most),
            max_take: Some(Step::new(shown.max_take).unwrap_or(Step::MIN)),
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

    /// Keeps what a tag with leases is like.
    pub(crate) fn keep(&self, tag: &Tag, shown: &TagShown) {
        let record = self.record(tag, shown);
        self.used().entry(tag.clone()).or_default().record = Some(record);
    }

    /// Asks what a tag is like, and keeps that.
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
                let known = Used { record: record.clone(), leased: Vec::new() };
                used.insert(tag.clone(), known);
            }
            (None, None) => {}
        }
        Ok(record)
    }

    async fn lease(&self, tag: &Tag, amount: Step) -> Result<IdRange, StoreError> {
        let operation = || format!("lease ids of tag {:?}", tag.as_str());
        let path = path_of(tag.as_str(), &format!("/lease?count={}", amount.get()));
        let deadline = Instant::now() + self.deadline;
        let sound = |lease: &Lease| {
            lease.range().is_some_and(|range| range.len() == u64::from(amount.get()))
        };
        let asked = self.api.ask(Method::POST, &path, 0, deadline, sound).await;
        let (lease, from) = match asked {
            Ok(leased) => leased,
            Err(error) => {
                if let AskError::Refused { .. } = &error {
                    // It is not what it was: the next look-up must not find that.
                    let _ = self.read(tag).await;
                }
                return Err(store_error(operation(), error));
            }
        };
        let refuse = || StoreError::new(StoreErrorKind::Unavailable, operation());
        let range = lease.range().ok_or_else(refuse)?;
        let mut used = self.used();
        let leased = &mut used.entry(tag.clone()).or_default().leased;
        if leased.len() == REMEMBERED {
            leased.remove(0);
        }
        leased.push(Leased { range, ticket: lease.ticket, from });
        Ok(range)
    }

    /// Gives the end of what was leased back, range by range from the last on.
    async fn return_tail(&self, tag: &Tag, unused: IdRange) -> Result<bool, StoreError> {
        let (mut returned, mut end) = (false, unused.end());
        while end > unused.start() {
            let leased = {
                let mut used = self.used();
                let Some(Used { leased, .. }) = used.get_mut(tag) else { break };
                let at = leased.iter().position(|leased| leased.range.end() == end);
                let Some(at) = at else { break };
                leased.remove(at)
            };
            let start = unused.start().max(leased.range.start());
            let rest = format!("/return?ticket={}&start={start}&end={end}", leased.ticket);
            let path = path_of(tag.as_str(), &rest);
            // Once, to the one that leased it: whether a request that was lost came through cannot be told.
            let answer = self.api.ask_only::<Returned>(&leased.from, Method::POST, &path).await;
            let answer = answer.map_err(|error| {
                store_error(format!("return ids of tag {:?}", tag.as_str()), error)
            })?;
            if !answer.returned {
                break;
            }
            (returned, end) = (true, start);
        }
        Ok(returned)
    }
}

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

    fn give_back<'a>(&'a self, tag: &'a Tag, unused: IdRange) -> StoreFuture<'a, bool> {
        Box::pin(self.return_tail(tag, unused))
    }
}

impl TagCatalog for ServerSource {
    fn tag<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<TagRecord>> {
        Box::pin(self.read(tag))
    }

    /// What was learnt of the tags that this client uses.
    fn tags(&self) -> StoreFuture<'_, Vec<TagRecord>> {
        let records = self.used().values().filter_map(|used| used.record.clone()).collect();
        Box::pin(async { Ok(records) })
    }
}
