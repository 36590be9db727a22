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
use leaf_core::{IdRange, Step, Tag, UnknownFields};
use leaf_segment::{
    NewTag, RangeSource, StoreError, StoreErrorKind, StoreFuture, TagCatalog, TagRecord,
    TagSettings, TagSettingsError, TagStore,
};
use serde::{Deserialize, Serialize};

use super::EtcdUrl;
use super::cluster::Cluster;
use super::error::classify;
use crate::{Administration, Table, record};

/// How often a transaction that lost against another is tried again before the caller hears of it.
const TRIES: u32 = 50;
/// Upper bound of the random pause before a try; it grows linearly with the tries that were lost.
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

/// The version of a record.
const FORMAT_VERSION: u32 = 1;

/// A tag's record. What a later version of Leaf added is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    version: u32,
    max_id: i64,
    step: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// As [`TagSettings::encode`] writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settings: Option<serde_json::Value>,
    #[serde(flatten)]
    unknown: UnknownFields,
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

    /// Changes the record of a tag by `change`, in up to [`TRIES`] attempts.
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
        let record = Record::decode(kv.value());
        let record =
            record.map_err(|why| StoreError::new(StoreErrorKind::BadRecord(why), operation))?;
        Ok(Self { revision: kv.mod_revision(), value: kv.value().into(), record })
    }
}

impl Record {
    fn of(new: &NewTag) -> Self {
        Self {
            version: FORMAT_VERSION,
            max_id: new.max_id,
            step: i64::from(new.step.get()),
            description: new.description.clone(),
            settings: None,
            unknown: UnknownFields::default(),
        }
    }

    fn decode(value: &[u8]) -> Result<Self, String> {
        let damaged = |error| format!("the value in etcd is no record: {error}");
        match Self::version(value).map_err(damaged)? {
            FORMAT_VERSION => serde_json::from_slice(value).map_err(damaged),
            version => Err(format!(
                "the value in etcd has version {version}, and this program knows version \
                 {FORMAT_VERSION}: upgrade it"
            )),
        }
    }

    /// Read first of all: what a later version wrote may not be readable otherwise.
    fn version(value: &[u8]) -> Result<u32, serde_json::Error> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        serde_json::from_slice(value).map(|Version { version }| version)
    }

    fn row(&self, tag: &Tag) -> record::Row {
        (tag.as_str().into(), Some(self.max_id), Some(self.step), self.description.clone())
    }

    fn settings_text(&self, tag: &Tag) -> Option<(String, String)> {
        Some((tag.as_str().into(), self.settings.as_ref()?.to_string()))
    }
}

fn json(record: &Record) -> Vec<u8> {
    serde_json::to_vec(record).expect("numbers and texts serialize")
}

impl RangeSource for EtcdStore {
    fn allocate<'a>(&'a self, tag: &'a Tag, amount: Step, seen: Step) -> StoreFuture<'a, IdRange> {
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
                    let row = record.row(tag);
                    let why = record::why_not(Some(row), seen, amount);
                    Err(why.unwrap_or(StoreErrorKind::Exhausted))
                }
            }
        }))
    }

    fn give_back<'a>(&'a self, tag: &'a Tag, unused: IdRange) -> StoreFuture<'a, bool> {
        self.replace_max_id(tag, unused.end(), unused.start())
    }
}

impl TagCatalog for EtcdStore {
    fn tag<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<TagRecord>> {
        Box::pin(async move {
            let operation = format!("read tag {:?} in etcd", tag.as_str());
            let Some(Seen { record, .. }) = self.read(&operation, tag).await? else {
                return Ok(None);
            };
            let settings = record.settings_text(tag).into_iter().collect();
            Ok(record::read(vec![record.row(tag)], settings).pop())
        })
    }

    fn tags(&self) -> StoreFuture<'_, Vec<TagRecord>> {
        Box::pin(async {
            let operation = "read the tags in etcd";
            let mut client = self.client(operation).await?;
            let (mut rows, mut settings) = (Vec::new(), HashMap::new());
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
                            rows.push(seen.record.row(&tag));
                            settings.extend(seen.record.settings_text(&tag));
                        }
                        // It goes on with the ids that it has, and allocates no more.
                        (Some(Ok(tag)), Err(_))
                            if Record::version(kv.value()).is_ok_and(|it| it > FORMAT_VERSION) =>
                        {
                            let version = Record::version(kv.value()).unwrap_or_default();
                            let name = tag.as_str().to_owned();
                            settings.insert(name.clone(), format!("{{\"version\":{version}}}"));
                            rows.push((name, Some(0), None, None));
                        }
                        (Some(Ok(_)), Err(error)) => {
                            let key = String::from_utf8_lossy(kv.key());
                            tracing::warn!(%key, "a tag is left out: {error}");
                        }
                        _ => tracing::warn!(
                            key = %String::from_utf8_lossy(kv.key()),
                            "a key in etcd is left out: its name is no valid tag"
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
}

impl TagStore for EtcdStore {
    fn create<'a>(&'a self, new: &'a NewTag) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let operation = format!("create tag {:?} in etcd", new.tag.as_str());
            match self.put(&operation, &new.tag, None, Record::of(new), ()).await? {
                Changed::Done(()) => Ok(()),
                Changed::Late(_) => Err(StoreError::new(StoreErrorKind::TagExists, operation)),
            }
        })
    }

    fn set_step<'a>(&'a self, tag: &'a Tag, step: Step) -> StoreFuture<'a, ()> {
        Box::pin(self.change("set the step of", tag, move |record| {
            record.step = i64::from(step.get());
            Ok(())
        }))
    }

    fn set_settings<'a>(&'a self, tag: &'a Tag, settings: &'a TagSettings) -> StoreFuture<'a, ()> {
        Box::pin(self.change("change the settings of", tag, |record| {
            let before =
                record.settings.as_ref().map(|text| TagSettings::decode(&text.to_string()));
            if let Some(Err(newer @ TagSettingsError::Newer(_))) = before {
                return Err(StoreErrorKind::BadRecord(newer.to_string()));
            }
            let settings = serde_json::from_str(&settings.encode());
            record.settings = Some(settings.expect("it was serialized"));
            Ok(())
        }))
    }

    fn advance<'a>(&'a self, tag: &'a Tag, at_least: i64) -> StoreFuture<'a, i64> {
        Box::pin(self.change("advance", tag, move |record| {
            record.max_id = record.max_id.max(at_least);
            Ok(record.max_id)
        }))
    }

    fn replace_max_id<'a>(&'a self, tag: &'a Tag, from: i64, to: i64) -> StoreFuture<'a, bool> {
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

    fn delete<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, ()> {
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

    fn apply(&self) -> StoreFuture<'_, Vec<&'static str>> {
        Box::pin(async {
            if self.tags().await?.is_empty() {
                self.create(&NewTag::stock()).await?;
            }
            Ok(Vec::new())
        })
    }

    fn risks(&self) -> StoreFuture<'_, Vec<String>> {
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
