//! The segment store `etcd`.
//!
//! Invariant: a range counts only if the transaction that took it compared the record's revision
//! and its value, and succeeded. A key that is deleted and made again does not get a revision that
//! it had before. After a restore of the cluster from a snapshot it may: then the compared value
//! shows that the record has changed.
//!
//! `{name}` is the path of the store's URL, or `leaf`. The record of a plain tag is JSON under
//! `/leaf/{name}/segment/{tag}`, that of every other tag, with its meaning, under
//! `/leaf/{name}/sequence/{tag}`. A tag has a record at one of the two keys only: the transaction
//! that makes a tag checks that each key has no record, or still that of the deleted tag which was
//! read there. (The record of a deleted tag remembers what the tag had granted.)
//!
//! The store remembers each record as this process wrote it last. So an allocation costs one round
//! trip if no other process has changed the record since then; if one has, the failed transaction
//! returns the new record.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
};
use futures_core::future::BoxFuture;
use leaf_core::{IdRange, Step, Tag};
use leaf_segment::admin::EndedTag;
use leaf_segment::store::{
    Expected, MOST_RECORDS, Member, MembersPlan, SEALED, SealError, StoreFuture, TagCursor,
    TagGeneration, TagPage, TagUpdate,
};
use leaf_segment::{
    NewTag, RangeSource, StoreError, StoreErrorKind, TagCatalog, TagRecord, TagStore,
};
use leaf_shape::MeaningError;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::config::name_or;
use super::record::{Record, json, settings_json};
use crate::host_list::HostList;
use crate::record;

/// The most records that a store remembers as this process wrote them last. At this number it drops
/// them all: without a limit they would cost memory for every tag that was ever used, while a
/// dropped record costs one read.
const REMEMBERED: usize = 10_000;
/// How long a transaction that lost against another one is retried before the caller gets an error:
/// less than callers wait for an answer.
///
/// It is retried without a pause. Each lost try means that another writer has won, so the writers
/// of one record never block each other; and after a pause, the record that was read before it
/// would be out of date.
const TRYING: Duration = Duration::from_secs(1);

/// The most requests that a server takes in one transaction, unless it was set up otherwise
/// (`--max-txn-ops`).
pub(super) const KEYS_AT_ONCE: usize = 128;
/// How many members of a family one transaction makes: it compares up to three things for each
/// member, and two for the family.
const MEMBERS_AT_ONCE: usize = (KEYS_AT_ONCE - 2) / 3;

/// Segments in etcd.
#[derive(Debug)]
pub(crate) struct EtcdStore {
    pub(super) cluster: Cluster,
    /// The prefix of the keys of plain tags.
    pub(super) plain: String,
    /// The prefix of the keys of all other tags.
    pub(super) sequences: String,
    /// Each record as this process wrote it last.
    last_written: Mutex<HashMap<Tag, Seen>>,
    /// Whether a tag that is not plain was ever read.
    pub(super) sequences_seen: AtomicBool,
}

/// A record and the revision that it had.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    key: String,
    /// The cluster's revision at which the key was changed last (`mod_revision`).
    revision: i64,
    /// The value as it was read: compared byte by byte.
    value: Vec<u8>,
    pub(super) record: Record,
}

impl Seen {
    /// Conditions for a transaction: the record still has this revision and value.
    fn unchanged(&self) -> [Compare; 2] {
        [
            Compare::mod_revision(self.key.clone(), CompareOp::Equal, self.revision),
            Compare::value(self.key.clone(), CompareOp::Equal, self.value.clone()),
        ]
    }
}

impl EtcdStore {
    /// A store in this cluster. Connects when it is first used.
    pub(super) fn open(url: HostList) -> Self {
        let name = name_or(&url, "leaf");
        let (plain, sequences) =
            (format!("/leaf/{name}/segment/"), format!("/leaf/{name}/sequence/"));
        let sequences_seen = AtomicBool::new(false);
        Self {
            cluster: Cluster::new(url),
            plain,
            sequences,
            last_written: Mutex::default(),
            sequences_seen,
        }
    }

    /// The two keys at which a record of the tag can be: first the key of a plain tag, then that of
    /// any other tag.
    fn keys(&self, tag: &Tag) -> [String; 2] {
        [&self.plain, &self.sequences].map(|prefix| format!("{prefix}{}", tag.as_str()))
    }

    /// The remembered records, locked for a moment.
    fn last_written(&self) -> MutexGuard<'_, HashMap<Tag, Seen>> {
        self.last_written.lock().expect("no holder of this lock panics")
    }

    /// The records at the two keys that a tag may have. A deleted tag has none.
    async fn read_both(&self, operation: &str, tag: &Tag) -> Result<Vec<Seen>, StoreError> {
        let mut found = self.read_keys(operation, tag).await?;
        found.retain(|seen| !seen.record.deleted);
        Ok(found)
    }

    /// The records at the two keys of a tag, also of a deleted one.
    async fn read_keys(&self, operation: &str, tag: &Tag) -> Result<Vec<Seen>, StoreError> {
        let found = self.read_values(operation, std::slice::from_ref(tag)).await?;
        found.iter().map(|kv| self.parse(kv, operation)).collect()
    }

    /// Reads the values at both keys of each of these tags, of which there are at most
    /// [`KEYS_AT_ONCE`] / 2.
    pub(super) async fn read_values(
        &self,
        operation: &str,
        tags: &[Tag],
    ) -> Result<Vec<KeyValue>, StoreError> {
        let get = |key: String| TxnOp::get(key, None::<GetOptions>);
        let both = tags.iter().flat_map(|tag| self.keys(tag)).map(get);
        let answer = match self
            .cluster
            .txn(operation, Txn::new().and_then(both.collect::<Vec<_>>()))
            .await
        {
            // A role without a right on the keys of sequences has plain tags only. But if
            // others were read before, the right was lost: that is an error.
            Err(error)
                if *error.kind() == StoreErrorKind::Refused
                    && !self.sequences_seen.load(Ordering::Relaxed) =>
            {
                let plain = tags.iter().map(|tag| self.keys(tag)[0].clone()).map(get);
                self.cluster.txn(operation, Txn::new().and_then(plain.collect::<Vec<_>>())).await?
            }
            answer => answer?,
        };
        let mut found = Vec::with_capacity(tags.len());
        for response in answer.op_responses() {
            let TxnOpResponse::Get(response) = response else { continue };
            for kv in response.kvs() {
                let is_sequence = kv.key().starts_with(self.sequences.as_bytes());
                self.sequences_seen.fetch_or(is_sequence, Ordering::Relaxed);
                found.push(kv.clone());
            }
        }
        Ok(found)
    }

    /// The record of a tag, if there is one.
    async fn read(&self, operation: &str, tag: &Tag) -> Result<Option<Seen>, StoreError> {
        let mut found = self.read_both(operation, tag).await?;
        match found.len() {
            2.. => {
                let why = StoreErrorKind::BadRecord(MeaningError::Twice.to_string());
                Err(StoreError::new(why, operation))
            }
            _ => Ok(found.pop()),
        }
    }

    /// Parses a key and its value.
    pub(super) fn parse(&self, kv: &KeyValue, operation: &str) -> Result<Seen, StoreError> {
        let bad = |why| StoreError::new(StoreErrorKind::BadRecord(why), operation);
        let record = Record::decode(kv.value()).map_err(bad)?;
        let key = String::from_utf8_lossy(kv.key()).into_owned();
        if record.meaning.is_some() == key.starts_with(&self.plain) {
            return Err(bad(format!("the value in etcd does not belong at its key {key}")));
        }
        Ok(Seen { key, revision: kv.mod_revision(), value: kv.value().into(), record })
    }

    /// Changes the record of a tag by `change`, for as long as [`TRYING`].
    ///
    /// The remembered record is tried first, so that a tag that only this node uses costs one round
    /// trip. `change` may then be called with an old record: if it refuses that, it is called again
    /// with a fresh one.
    async fn change<T>(
        &self,
        what: &str,
        tag: &Tag,
        change: impl Fn(&mut Record) -> Result<T, StoreErrorKind>,
    ) -> Result<T, StoreError> {
        let operation = format!("{what} tag {:?} in etcd", tag.as_str());
        // Taken out: after an unclear answer nothing is known of the record.
        let mut seen = self.last_written().remove(tag);
        let mut fresh = false;
        let begun = Instant::now();
        while begun.elapsed() < TRYING {
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
            match self.replace(&operation, tag, &now, record).await? {
                Ok(()) => return Ok(value),
                // If there is no record at this key any more, the tag may have been deleted and
                // made again at the other key: the next attempt reads both.
                Err(now) => {
                    fresh |= now.is_some();
                    seen = now;
                }
            }
        }
        let why = format!(
            "other writers were faster for {TRYING:?}; a greater step makes allocations rarer"
        );
        Err(StoreError::new(StoreErrorKind::Conflict, operation).because(why))
    }

    /// Makes the members of a family that do not exist yet; `members` has at most
    /// [`MEMBERS_AT_ONCE`] tags.
    async fn make_together(
        &self,
        family: &Tag,
        members: &[Tag],
    ) -> Result<Vec<Member>, StoreError> {
        let operation = format!("make members of {:?} in etcd", family.as_str());
        let refuse = |kind| StoreError::new(kind, operation.clone());
        let begun = Instant::now();
        while begun.elapsed() < TRYING {
            let read = self.read(&operation, family).await?;
            let seen = read.ok_or_else(|| refuse(StoreErrorKind::UnknownTag))?;
            let (mut found, mut rows) = (Vec::new(), Vec::new());
            let (mut texts, mut ended) = (HashMap::new(), HashMap::new());
            for kv in self.read_values(&operation, members).await? {
                let seen = self.parse(&kv, &operation)?;
                let tag = members.iter().find(|tag| self.keys(tag).contains(&seen.key));
                let Some(tag) = tag else { continue };
                if !seen.record.deleted {
                    rows.push(seen.record.row(tag));
                    texts.extend(seen.record.settings_text(tag));
                } else if let Some(end) = seen.record.settings().map(|it| it?.ended).transpose() {
                    ended.insert(tag.clone(), end);
                }
                found.push(seen);
            }
            let shown =
                seen.record.shown(family).ok_or_else(|| refuse(StoreErrorKind::UnknownTag))?;
            let plan = MembersPlan::of(&shown, members, record::read(rows, texts), &ended);
            let plan = plan.map_err(refuse)?;
            if plan.new.is_empty() {
                return Ok(plan.answer);
            }
            let (member, mut counted) = (seen.record.member(&plan.member), seen.record.clone());
            counted.settings = Some(settings_json(&plan.family));
            let mut unchanged = seen.unchanged().to_vec();
            let mut change = vec![TxnOp::put(seen.key, json(&counted), None::<PutOptions>)];
            for tag in &plan.new {
                self.add_new(tag, &member, &found, &mut unchanged, &mut change);
            }
            let transaction = Txn::new().when(unchanged).and_then(change);
            if self.cluster.txn(&operation, transaction).await?.succeeded() {
                return Ok(plan.answer);
            }
        }
        Err(refuse(StoreErrorKind::Conflict))
    }

    /// Adds the making of a tag to a transaction. It requires that the tag's keys still have only
    /// what was `found` there, the record of a deleted tag.
    fn add_new(
        &self,
        tag: &Tag,
        record: &Record,
        found: &[Seen],
        unchanged: &mut Vec<Compare>,
        change: &mut Vec<TxnOp>,
    ) {
        for (key, is_plain) in self.keys(tag).into_iter().zip([true, false]) {
            let deleted = found.iter().find(|seen| seen.key == key);
            match deleted {
                Some(deleted) => unchanged.extend(deleted.unchanged()),
                None => unchanged.push(Compare::version(key.clone(), CompareOp::Equal, 0)),
            }
            if is_plain == record.meaning.is_none() {
                change.push(TxnOp::put(key, json(record), None::<PutOptions>));
            } else if deleted.is_some() {
                change.push(TxnOp::delete(key, None::<DeleteOptions>));
            }
        }
    }

    /// Writes `record` if the stored one is still `before`: the transaction compares revision and
    /// value. If another writer was faster, the inner error is the current record, if there still
    /// is one, so that the next attempt needs no read.
    ///
    /// # Errors
    /// If the answer is missing, or the error is `WentBack`, the record may or may not have been
    /// written; after any other error it was not. After an error this process remembers nothing of
    /// the record: `change` and `seal` have removed it from `last_written`.
    async fn replace(
        &self,
        operation: &str,
        tag: &Tag,
        before: &Seen,
        record: Record,
    ) -> Result<Result<(), Option<Seen>>, StoreError> {
        let key = before.key.clone();
        let value = json(&record);
        let transaction = Txn::new()
            .when(before.unchanged())
            .and_then([TxnOp::put(key.clone(), value.clone(), None::<PutOptions>)])
            .or_else([TxnOp::get(key.clone(), None::<GetOptions>)]);
        let answer = self.cluster.txn(operation, transaction).await?;
        if answer.succeeded() {
            let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            let mut last_written = self.last_written();
            if last_written.len() >= REMEMBERED {
                last_written.clear();
            }
            last_written.insert(tag.clone(), Seen { key, revision, value, record });
            return Ok(Ok(()));
        }
        let now = answer.op_responses().into_iter().find_map(|answer| match answer {
            TxnOpResponse::Get(answer) => answer.kvs().first().map(|kv| self.parse(kv, operation)),
            _ => None,
        });
        let now = now.transpose()?;
        Ok(Err(now.filter(|seen| !seen.record.deleted)))
    }
}

impl RangeSource for EtcdStore {
    fn allocate<'a>(
        &'a self,
        tag: &'a Tag,
        amount: Step,
        expected: Expected,
    ) -> StoreFuture<'a, IdRange> {
        Box::pin(self.change("allocate", tag, move |record| {
            let amount = i64::from(amount.get());
            if let Some(why) = record::why_not(Some(&record.row(tag)), expected, amount) {
                return Err(why);
            }
            let start = record.max_id.max(expected.least);
            let range = start.checked_add(amount).and_then(|end| IdRange::new(start, end));
            let range = range.ok_or(StoreErrorKind::Exhausted)?;
            record.max_id = range.end();
            Ok(range)
        }))
    }

    fn give_back<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        unused: IdRange,
    ) -> StoreFuture<'a, bool> {
        self.replace_max_id(tag, generation, unused.end(), unused.start())
    }

    fn try_allocating(&self) -> Option<StoreFuture<'_, ()>> {
        Some(Box::pin(async {
            let sample = NewTag::sample().tag;
            self.tag(&sample).await?;
            self.cluster.try_put("try to allocate in etcd", self.keys(&sample)).await
        }))
    }
}

impl TagCatalog for EtcdStore {
    fn tag<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<TagRecord>> {
        Box::pin(async move {
            let operation = format!("read tag {:?} in etcd", tag.as_str());
            let found = self.read_both(&operation, tag).await?;
            let settings = found.iter().filter_map(|seen| seen.record.settings_text(tag)).collect();
            let rows = found.iter().map(|seen| seen.record.row(tag)).collect();
            Ok(record::read(rows, settings).pop())
        })
    }

    fn records<'a>(&'a self, tags: &'a [Tag]) -> StoreFuture<'a, Vec<TagRecord>> {
        Box::pin(self.read_records(tags))
    }

    fn make_members<'a>(
        &'a self,
        family: &'a Tag,
        members: &'a [Tag],
    ) -> StoreFuture<'a, Vec<Member>> {
        Box::pin(async move {
            let mut made = Vec::with_capacity(members.len());
            for members in members.chunks(MEMBERS_AT_ONCE) {
                made.extend(self.make_together(family, members).await?);
            }
            Ok(made)
        })
    }

    fn try_reading(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            self.records(&[NewTag::sample().tag]).await?;
            Ok(())
        })
    }
}

impl TagStore for EtcdStore {
    fn page<'a>(
        &'a self,
        after: Option<&'a TagCursor>,
        prefix: &'a str,
        most: usize,
    ) -> StoreFuture<'a, TagPage> {
        Box::pin(self.read_page(after, prefix, most.min(MOST_RECORDS)))
    }

    fn create<'a>(&'a self, new: &'a NewTag) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let operation = format!("create tag {:?} in etcd", new.tag.as_str());
            let refuse = |kind| Err(StoreError::new(kind, operation.clone()));
            let record = Record::of(new);
            let begun = Instant::now();
            while begun.elapsed() < TRYING {
                let found = self.read_keys(&operation, &new.tag).await?;
                if found.iter().any(|seen| !seen.record.deleted) {
                    return refuse(StoreErrorKind::TagExists);
                }
                if let Err(kind) = found.iter().try_for_each(|seen| seen.record.allows(new)) {
                    return refuse(kind);
                }
                let (mut unchanged, mut change) = (Vec::new(), Vec::new());
                self.add_new(&new.tag, &record, &found, &mut unchanged, &mut change);
                let transaction = Txn::new().when(unchanged).and_then(change);
                if self.cluster.txn(&operation, transaction).await?.succeeded() {
                    return Ok(());
                }
            }
            refuse(StoreErrorKind::Conflict)
        })
    }

    fn update<'a>(&'a self, update: &'a TagUpdate) -> StoreFuture<'a, TagRecord> {
        let tag = &update.seen.tag;
        Box::pin(self.change("change", tag, move |record| {
            let now = record.shown(tag).ok_or(StoreErrorKind::UnknownTag)?;
            let now = update.apply(&now)?;
            record.max_id = now.max_id;
            if let Some(step) = update.step {
                record.step = i64::from(step.get());
            }
            if let Some(meaning) = update.meaning {
                record.meaning = Some(meaning.encode());
            }
            if let Some(settings) = &update.settings {
                record.settings = Some(settings_json(settings));
            }
            Ok(now)
        }))
    }

    fn replace_max_id<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
        from: i64,
        to: i64,
    ) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let replaced = self.change("replace max_id of", tag, move |record| {
                if record.max_id != from || record.generation() != generation {
                    return Err(StoreErrorKind::RecordChanged);
                }
                record.max_id = to;
                Ok(())
            });
            match replaced.await {
                Ok(()) => Ok(true),
                Err(error)
                    if matches!(
                        error.kind(),
                        StoreErrorKind::RecordChanged | StoreErrorKind::UnknownTag
                    ) =>
                {
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        })
    }

    fn seal<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
    ) -> BoxFuture<'a, Result<i64, SealError>> {
        Box::pin(async move {
            let operation = format!("seal tag {:?} in etcd", tag.as_str());
            let (begun, mut late) = (Instant::now(), None);
            while begun.elapsed() < TRYING {
                // What is told in an error must not be old: what was remembered is not used.
                self.last_written().remove(tag);
                let read = match late.take() {
                    Some(now) => Some(now),
                    None => self.read(&operation, tag).await?,
                };
                let Some(now) = read else {
                    return Err(StoreError::new(StoreErrorKind::UnknownTag, operation).into());
                };
                if now.record.generation() != generation {
                    return Err(StoreError::new(StoreErrorKind::RecordChanged, operation).into());
                }
                let before = now.record.max_id;
                let mut sealed = now.record.clone();
                sealed.max_id = SEALED;
                if let Some(shown) = now.record.shown(tag)
                    && let Ok(settings) = shown.sealed().settings
                {
                    sealed.settings = Some(settings_json(&settings));
                }
                match self.replace(&operation, tag, &now, sealed).await {
                    Ok(Ok(())) => return Ok(before),
                    Ok(Err(now)) => late = now,
                    Err(error) => {
                        // If the answer is missing, or shows another state of the cluster, the tag
                        // may have been sealed nevertheless; after any other error it was not.
                        let went_back = *error.kind() == StoreErrorKind::WentBack;
                        let unclear = (error.retryable() || went_back) && before != SEALED;
                        return Err(SealError { error, max_id: unclear.then_some(before) });
                    }
                }
            }
            let error = StoreError::new(StoreErrorKind::Conflict, operation);
            Err(error.because("others allocate from it all the time: try again").into())
        })
    }

    fn delete<'a>(
        &'a self,
        tag: &'a Tag,
        generation: Option<TagGeneration>,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let operation = format!("delete tag {:?} in etcd", tag.as_str());
            self.last_written().remove(tag);
            let refuse = |kind| Err(StoreError::new(kind, operation.clone()));
            let Some(now) = self.read(&operation, tag).await? else {
                return refuse(StoreErrorKind::UnknownTag);
            };
            if now.record.max_id != SEALED || now.record.generation() != generation {
                return refuse(StoreErrorKind::RecordChanged);
            }
            let delete = match now.record.of_deleted() {
                Some(end) => TxnOp::put(now.key.clone(), json(&end), None::<PutOptions>),
                None => TxnOp::delete(now.key.clone(), None::<DeleteOptions>),
            };
            let transaction = Txn::new().when(now.unchanged()).and_then([delete]);
            match self.cluster.txn(&operation, transaction).await?.succeeded() {
                true => Ok(()),
                false => refuse(StoreErrorKind::RecordChanged),
            }
        })
    }

    fn ended<'a>(&'a self, tag: &'a Tag) -> StoreFuture<'a, Option<EndedTag>> {
        Box::pin(async move {
            let operation = format!("read the end of tag {:?} in etcd", tag.as_str());
            for seen in self.read_keys(&operation, tag).await? {
                let ended = seen.record.ended();
                if let Some(ended) = ended.map_err(|kind| StoreError::new(kind, &operation))? {
                    return Ok(Some(ended));
                }
            }
            Ok(None)
        })
    }
}
