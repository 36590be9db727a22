//! The segment store `etcd`.
//!
//! Invariant: a range counts only when the transaction that took it compared the record's revision
//! and its value, and succeeded. Revisions do not come back when a key is deleted and made again; they
//! do when a cluster is restored from a snapshot, and then the value tells.
//!
//! The record of a tag is JSON under `/leaf/{name}/segment/{tag}`. What was last seen of it is
//! remembered, so that a tag that nobody else allocates from costs one round trip; whoever comes late
//! is told the new record by the same transaction.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag};
use leaf_segment::{NewTag, SegmentStore, StoreError, StoreErrorKind, TagRecord, TagSettings};
use serde::{Deserialize, Serialize};

use super::EtcdUrl;
use super::cluster::Cluster;
use super::error::classify;
use crate::{Administration, Table, record};

/// How often a transaction that lost against another is tried again before the caller hears of it.
const TRIES: u32 = 50;
/// The most that is waited before a try, once half of them were lost.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// How many keys one request reads.
const PAGE: i64 = 1000;

/// Segments in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    cluster: Cluster,
    prefix: String,
    seen: Mutex<HashMap<Tag, Seen>>,
}

/// A record and the revision that it had.
#[derive(Debug, Clone)]
struct Seen {
    revision: i64,
    value: Vec<u8>,
    record: Record,
}

/// A tag's record. What other versions may have added is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    max_id: i64,
    step: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_step: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_step: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_take: Option<i64>,
    #[serde(flatten)]
    other: serde_json::Map<String, serde_json::Value>,
}

const fn yes() -> bool {
    true
}

/// What became of a change.
enum Changed<T> {
    Done(T),
    /// Somebody else was faster: this is the record now, if it is still there.
    Late(Option<Seen>),
}

impl EtcdStore {
    /// A store in this cluster. Connects when it is first used.
    #[must_use]
    pub fn open(url: EtcdUrl) -> Self {
        let prefix = format!("/leaf/{}/segment/", url.name());
        Self { cluster: Cluster::new(url), prefix, seen: Mutex::default() }
    }

    async fn client(&self, operation: &str) -> Result<Client, StoreError> {
        self.cluster.client().await.map_err(|error| classify(operation.into(), error))
    }

    /// The answer, or its error, classified.
    async fn answer<T>(
        &self,
        operation: &str,
        answer: Result<T, etcd_client::Error>,
    ) -> Result<T, StoreError> {
        self.cluster.answer(answer).await.map_err(|error| classify(operation.into(), error))
    }

    fn key(&self, tag: &Tag) -> String {
        format!("{}{}", self.prefix, tag.as_str())
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<Tag, Seen>> {
        self.seen.lock().expect("no holder of this lock panics")
    }

    async fn read(&self, operation: &str, tag: &Tag) -> Result<Option<Seen>, StoreError> {
        let mut client = self.client(operation).await?;
        let answer = client.get(self.key(tag), None).await;
        let answer = self.answer(operation, answer).await?;
        answer.kvs().first().map(|kv| Seen::parse(kv, operation)).transpose()
    }

    /// Changes the record of a tag by `change`, in as many tries as it takes.
    async fn change<T>(
        &self,
        what: &str,
        tag: &Tag,
        change: impl Fn(&mut Record) -> Result<T, StoreErrorKind>,
    ) -> Result<T, StoreError> {
        let operation = format!("{what} tag {:?} in etcd", tag.as_str());
        // Taken out: after an unclear answer nothing is known of the record.
        let mut seen = self.seen().remove(tag);
        let mut fresh = false;
        for lost in 0..TRIES {
            let now = match seen.take() {
                Some(seen) => seen,
                None => {
                    fresh = true;
                    let read = self.read(&operation, tag).await?;
                    read.ok_or_else(|| {
                        StoreError::new(StoreErrorKind::UnknownTag, operation.clone())
                    })?
                }
            };
            let mut record = now.record.clone();
            let value = match change(&mut record) {
                Ok(value) => value,
                // What was remembered may be old.
                Err(_) if !fresh => continue,
                Err(kind) => return Err(StoreError::new(kind, operation)),
            };
            match self.put(&operation, tag, Some(&now), record, value).await? {
                Changed::Done(value) => return Ok(value),
                Changed::Late(now) => {
                    fresh = true;
                    seen = Some(now.ok_or_else(|| {
                        StoreError::new(StoreErrorKind::UnknownTag, operation.clone())
                    })?);
                }
            }
            // Many allocate from this tag: spread them.
            let pause = LONGEST_PAUSE.mul_f64(f64::from(lost) / f64::from(TRIES));
            tokio::time::sleep(pause.mul_f64(fastrand::f64())).await;
        }
        let why = format!("others changed the record {TRIES} times meanwhile: raise its step");
        Err(StoreError::new(StoreErrorKind::Unavailable, operation).because(why))
    }

    /// Writes the record if it still has this revision.
    async fn put<T>(
        &self,
        operation: &str,
        tag: &Tag,
        before: Option<&Seen>,
        record: Record,
        outcome: T,
    ) -> Result<Changed<T>, StoreError> {
        let key = self.key(tag);
        let mut client = self.client(operation).await?;
        // A key that does not exist has revision 0.
        let revision = before.map_or(0, |seen| seen.revision);
        let revision = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
        let value =
            before.map(|seen| Compare::value(key.clone(), CompareOp::Equal, seen.value.clone()));
        let unchanged: Vec<Compare> = [revision].into_iter().chain(value).collect();
        let value = json(&record);
        let transaction = Txn::new()
            .when(unchanged)
            .and_then([TxnOp::put(key.clone(), value.clone(), None::<PutOptions>)])
            .or_else([TxnOp::get(key, None::<GetOptions>)]);
        let answer = client.txn(transaction).await;
        let answer = self.answer(operation, answer).await?;
        if answer.succeeded() {
            let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            self.seen().insert(tag.clone(), Seen { revision, value, record });
            return Ok(Changed::Done(outcome));
        }
        let now = answer.op_responses().into_iter().find_map(|answer| match answer {
            TxnOpResponse::Get(answer) => {
                Some(answer.kvs().first().map(|kv| Seen::parse(kv, operation)))
            }
            _ => None,
        });
        Ok(Changed::Late(now.flatten().transpose()?))
    }
}

impl Seen {
    fn parse(kv: &etcd_client::KeyValue, operation: &str) -> Result<Self, StoreError> {
        match serde_json::from_slice(kv.value()) {
            Ok(record) => {
                Ok(Self { revision: kv.mod_revision(), value: kv.value().into(), record })
            }
            Err(error) => {
                let why = format!("the value in etcd is no record: {error}");
                Err(StoreError::new(StoreErrorKind::BadRecord(why), operation))
            }
        }
    }
}

impl Record {
    fn of(new: &NewTag) -> Self {
        Self {
            max_id: new.max_id,
            step: i64::from(new.step.get()),
            description: new.description.clone(),
            enabled: true,
            min_step: None,
            max_step: None,
            max_take: None,
            other: serde_json::Map::new(),
        }
    }

    fn into_rows(self, tag: &Tag) -> (record::Row, record::SettingsRow) {
        let name = tag.as_str().to_owned();
        let settings =
            (name.clone(), Some(self.enabled.into()), self.min_step, self.max_step, self.max_take);
        ((name, Some(self.max_id), Some(self.step), self.description), settings)
    }
}

fn json(record: &Record) -> Vec<u8> {
    serde_json::to_vec(record).expect("numbers and texts serialize")
}

impl SegmentStore for EtcdStore {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        seen: Step,
    ) -> BoxFuture<'a, Result<IdRange, StoreError>> {
        Box::pin(self.change("allocate", tag, move |record| {
            let start = record.max_id;
            let amount = i64::from(amount.get());
            let end = (start <= record::most(amount)).then_some(start.saturating_add(amount));
            let range = end.and_then(|end| IdRange::new(start, end));
            match range.filter(|_| record.step == i64::from(seen.get())) {
                Some(range) => {
                    record.max_id = range.end();
                    Ok(range)
                }
                None => {
                    let row = record.clone().into_rows(tag).0;
                    let why = record::why_not(Some(row), seen, amount);
                    Err(why.unwrap_or(StoreErrorKind::Exhausted))
                }
            }
        }))
    }

    fn tag<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<Option<TagRecord>, StoreError>> {
        Box::pin(async move {
            let operation = format!("read tag {:?} in etcd", tag.as_str());
            let Some(Seen { record, .. }) = self.read(&operation, tag).await? else {
                return Ok(None);
            };
            let (row, settings) = record.into_rows(tag);
            Ok(record::read(vec![row], vec![settings]).pop())
        })
    }

    fn tags(&self) -> BoxFuture<'_, Result<Vec<TagRecord>, StoreError>> {
        Box::pin(async {
            let operation = "read the tags in etcd";
            let mut client = self.client(operation).await?;
            let (mut rows, mut settings) = (Vec::new(), Vec::new());
            let mut from = self.prefix.clone().into_bytes();
            // The key behind all that start with the prefix.
            let mut end = self.prefix.clone().into_bytes();
            if let Some(last) = end.last_mut() {
                *last += 1;
            }
            loop {
                let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
                let answer = client.get(from, Some(options)).await;
                let answer = self.answer(operation, answer).await?;
                for kv in answer.kvs() {
                    let name = kv.key_str().ok().and_then(|key| key.strip_prefix(&self.prefix));
                    match (name.map(Tag::parse), Seen::parse(kv, operation)) {
                        (Some(Ok(tag)), Ok(seen)) => {
                            let (row, its) = seen.record.into_rows(&tag);
                            rows.push(row);
                            settings.push(its);
                        }
                        _ => tracing::warn!(
                            key = %String::from_utf8_lossy(kv.key()),
                            "a key in etcd is left out: no valid tag, or no record"
                        ),
                    }
                }
                match answer.kvs().last().filter(|_| answer.more()) {
                    Some(last) => from = [last.key(), &[0]].concat(),
                    None => return Ok(record::read(rows, settings)),
                }
            }
        })
    }

    fn create<'a>(&'a self, new: &'a NewTag) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let operation = format!("create tag {:?} in etcd", new.tag.as_str());
            match self.put(&operation, &new.tag, None, Record::of(new), ()).await? {
                Changed::Done(()) => Ok(()),
                Changed::Late(_) => Err(StoreError::new(StoreErrorKind::TagExists, operation)),
            }
        })
    }

    fn set_step<'a>(&'a self, tag: &'a Tag, step: Step) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.change("set the step of", tag, move |record| {
            record.step = i64::from(step.get());
            Ok(())
        }))
    }

    fn set_settings<'a>(
        &'a self,
        tag: &'a Tag,
        settings: &'a TagSettings,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.change("change the settings of", tag, |record| {
            record.enabled = settings.enabled;
            record.min_step = record::number(settings.min_step);
            record.max_step = record::number(settings.max_step);
            record.max_take = record::number(settings.max_take);
            Ok(())
        }))
    }

    fn advance<'a>(
        &'a self,
        tag: &'a Tag,
        at_least: i64,
    ) -> BoxFuture<'a, Result<i64, StoreError>> {
        Box::pin(self.change("advance", tag, move |record| {
            record.max_id = record.max_id.max(at_least);
            Ok(record.max_id)
        }))
    }

    fn replace_max_id<'a>(
        &'a self,
        tag: &'a Tag,
        from: i64,
        to: i64,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let replaced = self.change("replace max_id of", tag, move |record| {
                if record.max_id != from {
                    return Err(StoreErrorKind::UnknownTag);
                }
                record.max_id = to;
                Ok(())
            });
            match replaced.await {
                Ok(()) => Ok(true),
                Err(error) if *error.kind() == StoreErrorKind::UnknownTag => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn delete<'a>(&'a self, tag: &'a Tag) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let operation = format!("delete tag {:?} in etcd", tag.as_str());
            self.seen().remove(tag);
            let mut client = self.client(&operation).await?;
            let answer = client.delete(self.key(tag), None).await;
            let answer = self.answer(&operation, answer).await?;
            let met = record::at_least_one(answer.deleted().unsigned_abs());
            met.map_err(|kind| StoreError::new(kind, operation))
        })
    }
}

/// etcd has no tables; the stock tag is made where there is none yet.
impl Administration for EtcdStore {
    fn tables(&self) -> &'static [Table] {
        &[]
    }

    fn apply(&self) -> BoxFuture<'_, Result<Vec<&'static str>, StoreError>> {
        Box::pin(async {
            if self.tags().await?.is_empty() {
                self.create(&NewTag::stock()).await?;
            }
            Ok(Vec::new())
        })
    }

    fn risks(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        Box::pin(async {
            let operation = "look at the members of etcd";
            let mut client = self.client(operation).await?.cluster_client();
            let members = client.member_list().await;
            let members = self.answer(operation, members).await?;
            let count = members.members().len();
            Ok((count < 3)
                .then(|| {
                    format!(
                        "etcd has {count} members: no quorum outlives the loss of one; run three"
                    )
                })
                .into_iter()
                .collect())
        })
    }
}
