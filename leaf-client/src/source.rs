//! Servers as the store of a double buffer: a segment is a leased range.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::Method;
use leaf_core::{IdRange, Step, Tag};
use leaf_segment::{
    Expected, Meaning, RangeSource, StoreError, StoreErrorKind, StoreFuture, TagCatalog, TagRecord,
    TagSettings,
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
    /// The tags that this client uses, and the ranges of each that were leased last.
    tags: Mutex<BTreeMap<Tag, Vec<Leased>>>,
}

#[derive(Debug, Clone)]
struct Leased {
    range: IdRange,
    ticket: String,
    from: Arc<Endpoint>,
}

impl ServerSource {
    pub(crate) fn new(api: Arc<Api>, deadline: Duration, max_lease: Step) -> Self {
        Self { api, deadline, max_lease, tags: Mutex::default() }
    }

    fn used(&self) -> MutexGuard<'_, BTreeMap<Tag, Vec<Leased>>> {
        self.tags.lock().expect("no holder of this lock panics")
    }

    /// Asks what a tag is like.
    pub(crate) async fn shown(&self, tag: &Tag) -> Result<TagShown, AskError> {
        let deadline = Instant::now() + self.deadline;
        Ok(self.api.ask_on(Method::GET, &path_of(tag.as_str(), ""), 0, deadline).await?.0)
    }

    /// The record that a double buffer needs; `None` for a tag that has no leases.
    fn record(&self, tag: &Tag, shown: &TagShown) -> Option<TagRecord> {
        if !shown.leases {
            return None;
        }
        let most = Step::new(shown.max_take).unwrap_or(Step::MIN).min(self.max_lease);
        self.used().entry(tag.clone()).or_default();
        let step = Step::new(shown.step.unwrap_or(1)).map(|step| step.min(most));
        let settings = TagSettings {
            max_step: Some(most),
            max_take: Some(Step::new(shown.max_take).unwrap_or(Step::MIN)),
            ..TagSettings::default()
        };
        Some(TagRecord {
            tag: tag.clone(),
            max_id: 0,
            step,
            description: None,
            meaning: Ok(Meaning::PLAIN),
            settings: Ok(settings),
        })
    }

    async fn read(&self, tag: &Tag) -> Result<Option<TagRecord>, StoreError> {
        let operation = || format!("ask for tag {:?}", tag.as_str());
        match self.shown(tag).await {
            Ok(shown) => Ok(self.record(tag, &shown)),
            Err(AskError::Refused { kind: ClientErrorKind::UnknownTag, .. }) => Ok(None),
            Err(AskError::Refused { kind: ClientErrorKind::Disabled, .. }) => {
                let shown = TagShown {
                    order: leaf_segment::Order::Relaxed,
                    leases: true,
                    step: Some(1),
                    max_take: 1,
                    max_count: 1,
                };
                let record = self.record(tag, &shown);
                Ok(record.map(|record| {
                    let settings = TagSettings { enabled: false, ..TagSettings::default() };
                    TagRecord { settings: Ok(settings), ..record }
                }))
            }
            Err(error) => Err(store_error(operation(), error)),
        }
    }

    async fn lease(&self, tag: &Tag, amount: Step) -> Result<IdRange, StoreError> {
        let operation = || format!("lease ids of tag {:?}", tag.as_str());
        let path = path_of(tag.as_str(), &format!("/lease?count={}", amount.get()));
        let deadline = Instant::now() + self.deadline;
        let asked = self.api.ask::<Lease>(Method::POST, &path, 0, deadline).await;
        let (lease, from) = asked.map_err(|error| store_error(operation(), error))?;
        let range = lease.range().filter(|range| range.len() == u64::from(amount.get()));
        let Some(range) = range else {
            from.failed();
            let text = format!("{from} leased another range than it was asked for");
            return Err(StoreError::new(StoreErrorKind::Unavailable, operation()).because(text));
        };
        let mut used = self.used();
        let leased = used.entry(tag.clone()).or_default();
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
                let Some(leased) = used.get_mut(tag) else { break };
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
            ClientErrorKind::Exhausted => StoreErrorKind::Exhausted,
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

    /// The tags that this client uses: what others there are is none of its business.
    fn tags(&self) -> StoreFuture<'_, Vec<TagRecord>> {
        Box::pin(async {
            let tags: Vec<Tag> = self.used().keys().cloned().collect();
            let mut records = Vec::with_capacity(tags.len());
            for tag in tags {
                records.extend(self.read(&tag).await?);
            }
            Ok(records)
        })
    }
}
