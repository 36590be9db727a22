//! The JSON in which the ops listener and `leaf` show tags and worker ids to programs.
//!
//! A number that may exceed 2^53 is a string, because JavaScript loses digits above that.

use std::borrow::Cow;

use leaf_core::{Step, UnixMillis};
use leaf_registry::StoreUrl;
use leaf_segment::TagRecord;
use leaf_segment::admin::{Deleted, EndedTag};
use leaf_segment::admin::{TagId, TagIdError};
use leaf_segment::store::{Family, Slice};
use leaf_shape::keys::KeyRing;
use leaf_shape::{Order, Period, Reset};
use leaf_snowflake::{Fence, FenceState, WorkerView};
use serde::{Deserialize, Serialize};

use crate::config::values;

/// A tag's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TagShown {
    /// The tag's name.
    pub tag: String,
    /// The next number that the store will grant; in a plain tag the number is the id. `null` if
    /// the tag is sealed.
    #[serde(with = "values::optional_text")]
    pub max_id: Option<i64>,
    /// Whether the store grants nothing more: the tag was moved, or is being moved or deleted.
    pub sealed: bool,
    /// `relaxed` or `strict`; `null` if this version of Leaf cannot read what the tag's numbers
    /// mean.
    pub order: Option<Order>,
    /// The shape, that is, how ids are computed from numbers: `plain`, `interleave:0/2`,
    /// `scramble:63`.
    pub shape: Option<String>,
    /// The version of the key that ids are made with now, where they are scrambled.
    pub key: Option<u8>,
    /// `daily`, `monthly` or `yearly` where the numbers begin again.
    pub reset: Option<Period>,
    /// The part of all ids that the tag has, like `2/8`.
    pub slice: Option<String>,
    /// The ids of all slices together are below 2 to the power of this: 63 or 53.
    pub slice_bits: Option<u8>,
    /// The template of its texts.
    pub text: Option<String>,
    /// How often the tag was reopened after a wrong clock had closed it. Each time adds 10^17 to
    /// `max_id`. Absent if the tag was never reopened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reopened: Option<u8>,
    /// Ids of later periods that may have been issued under a wrong clock; they are not issued
    /// again. Each entry begins with the first of its periods, like
    /// `20271121: ids below 20271121000018`. Absent if the tag was never reopened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<String>,
    /// The time zone of midnight or of the date in texts.
    pub time_zone: Option<Cow<'static, str>>,
    /// How many ids a fetch reserves. `null` in strict order, and if the record holds an invalid
    /// number.
    pub step: Option<u32>,
    /// Whether ids are handed out.
    pub enabled: bool,
    /// The dynamic step never falls below this. `null`: the servers' own setting applies.
    pub min_step: Option<u32>,
    /// The dynamic step grows up to this. `null`: the servers' own setting applies.
    pub max_step: Option<u32>,
    /// The most ids that one call takes. `null`: the servers' own setting applies.
    pub max_take: Option<u32>,
    /// What the tag is for.
    pub description: Option<String>,
    /// The family of which the tag is a member. Its settings apply where those of the tag are
    /// `null` here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member_of: Option<String>,
    /// The limits of a family. Absent in a tag that is no family.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// The store, without its password.
    pub store: String,
}

impl TagShown {
    /// Converts a record of the store at `url`.
    #[must_use]
    pub fn of(record: &TagRecord, url: &StoreUrl) -> Self {
        let settings = record.settings.clone().unwrap_or_default();
        let meaning = record.meaning.as_ref().ok();
        let order = meaning.map(|meaning| meaning.order);
        let reset = meaning.and_then(|meaning| meaning.reset);
        let reopened = reset.and_then(Reset::reopened);
        let zone = reset.map(|reset| reset.zone).or(settings.time_zone);
        let step = record.step.ok().filter(|_| order != Some(Order::Strict));
        Self {
            tag: record.tag.as_str().into(),
            max_id: Some(record.max_id).filter(|_| !record.is_sealed()),
            sealed: record.is_sealed(),
            order,
            shape: meaning.map(|meaning| meaning.shape.to_string()),
            key: meaning.and_then(|meaning| meaning.key()).map(|key| key.version),
            reset: reset.map(|reset| reset.period),
            reopened: reopened.map(|it| it.times),
            taken: reopened.map(|it| {
                let texts =
                    it.taken().map(|it| format!("{}: ids below {}", it.first, it.ids_below));
                texts.collect::<Vec<_>>().join(", ")
            }),
            slice: settings.slice.map(|slice| slice.to_string()),
            slice_bits: settings.slice.map(Slice::bits),
            text: settings.text.as_ref().map(ToString::to_string),
            time_zone: zone.map(|zone| zone.name().into()),
            step: step.map(Step::get),
            enabled: settings.enabled,
            min_step: settings.min_step.map(Step::get),
            max_step: settings.max_step.map(Step::get),
            max_take: settings.max_take.map(Step::get),
            description: record.description.clone(),
            member_of: record.made_by().map(|family| family.as_str().into()),
            family: settings.family,
            store: url.to_string(),
        }
    }
}

/// One part of the list of all tags.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TagsShown {
    /// The tags, sorted by name.
    pub tags: Vec<TagShown>,
    /// The position of the next part, for the next request. Absent in the last part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Stores that could not be read, whose tags are missing.
    pub failed: Vec<FailedStore>,
}

/// A store that could not be read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FailedStore {
    /// The store, without its password.
    pub store: String,
    /// Why the store could not be read.
    pub detail: String,
}

/// The result of advancing a tag.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AdvancedShown {
    /// The tag as it is now.
    #[serde(flatten)]
    pub tag: TagShown,
    /// Whether `max_id` was lower than requested, and was raised to that number.
    pub raised: bool,
    /// Whether nodes notice the change in the record and drop the ids that they have in memory.
    /// `false` if the store has no table of settings, as in a Java Leaf's database: the nodes must
    /// be restarted.
    #[serde(default)]
    pub nodes_follow: bool,
}

impl AdvancedShown {
    /// Converts a record of the store at `url` after the tag was advanced.
    #[must_use]
    pub fn of(record: &TagRecord, raised: bool, url: &StoreUrl) -> Self {
        let nodes_follow = record.generation().is_some();
        Self { tag: TagShown::of(record, url), raised, nodes_follow }
    }
}

/// A tag that was deleted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeletedShown {
    /// The tag as it was.
    pub deleted: TagShown,
    /// If the tag is made again in the same shape, its first number must be at least this. Absent
    /// if the store has no record of what the tag granted.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "values::optional_text")]
    pub next_first: Option<i64>,
    /// If the tag is made again in another shape, all its ids must be at least this. Absent if the
    /// store has no record of what the tag granted.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "values::optional_text")]
    pub ids_below: Option<i64>,
}

impl DeletedShown {
    /// Converts a tag that was deleted from the store at `url`.
    #[must_use]
    pub fn of(deleted: &Deleted, url: &StoreUrl) -> Self {
        Self {
            deleted: TagShown::of(&deleted.record, url),
            next_first: deleted.ended.map(|ended| ended.next),
            ids_below: deleted.ended.map(EndedTag::ids_below),
        }
    }
}

/// Whether a tag is cut, and the rule that cuts it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CutShown {
    /// Whether the tag is cut.
    pub cut: bool,
    /// The rule that cuts the tag: the tag itself, or a prefix and `*`. `null` if the tag is not
    /// cut.
    pub by: Option<String>,
}

/// An id of a tag, taken apart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TagIdShown {
    /// The tag.
    pub tag: String,
    /// The id.
    #[serde(with = "values::text")]
    pub id: i64,
    /// The number from which the id is made.
    #[serde(with = "values::text")]
    pub number: i64,
    /// The version of the key with which the id was made, if ids are scrambled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<u8>,
    /// The first day of the id's period, if numbers begin again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// Whether the store has granted the id's number to a node; the node may not have issued it.
    /// `null` if the counter cannot show this: the tag is sealed, the key or the period is an
    /// earlier one, or the id may be of a later period that was open before the tag was reopened.
    pub granted: Option<bool>,
}

/// Decodes an id of the tag of `record`. `text` is the id in digits, or the id as the tag's
/// template writes it. If digits are no id of the tag, they are tried as a text of the template.
///
/// # Errors
/// `text` is no id of the tag, or the key of the id is not in `keys`.
pub fn decode(record: &TagRecord, keys: &KeyRing, text: &str) -> Result<TagIdShown, TagIdError> {
    let by_number = text.parse().ok().map(|id| TagId::of(record, keys, id));
    let told = match by_number {
        Some(Ok(told)) => told,
        // Digits that are no id of the tag may be a text of it.
        Some(Err(error)) => TagId::of_text(record, keys, text).map_err(|_| error)?,
        None => TagId::of_text(record, keys, text)?,
    };
    Ok(TagIdShown {
        tag: record.tag.as_str().into(),
        id: told.id.get(),
        number: told.number,
        key: told.key,
        period: told.period.map(|day| format!("{:04}-{:02}-{:02}", day.year, day.month, day.day)),
        granted: told.granted,
    })
}

/// A worker id.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerShown {
    /// The worker id.
    pub worker: u32,
    /// `held`, `released` or `retired`; `-` if the worker id has no fence that can be read.
    pub state: Cow<'static, str>,
    /// The node that holds it, or held it last.
    pub holder: Option<String>,
    /// When the holder last reported, in Unix milliseconds. `null` unless the worker id is held.
    #[serde(with = "values::optional_text")]
    pub last_report_ms: Option<u64>,
    /// The ceiling, in Unix milliseconds: the first timestamp that the holder must not use.
    #[serde(with = "values::optional_text")]
    pub ceiling_ms: Option<u64>,
    /// The fence's term, incremented by every claim.
    pub term: Option<u64>,
    /// What is wrong with the record or notable about it, for an operator.
    pub remark: Option<String>,
}

impl WorkerShown {
    /// Converts a worker id of the registry.
    #[must_use]
    pub fn of(record: &WorkerView) -> Self {
        let fence = record.fence.as_ref();
        let held = fence.filter(|fence| fence.state == FenceState::Held);
        let reported = held.map(|fence| fence.reported_at);
        let state = |fence: &Fence| match fence.state {
            FenceState::Held => "held",
            FenceState::Released => "released",
            FenceState::Retired => "retired",
        };
        Self {
            worker: record.worker.get(),
            state: fence.map_or("-", state).into(),
            holder: record.holder.as_ref().map(ToString::to_string),
            last_report_ms: reported.map(UnixMillis::get),
            ceiling_ms: fence.map(|fence| fence.ceiling.get()),
            term: fence.map(|fence| fence.term),
            remark: record.remark.as_ref().map(|remark| match record.needs_repair {
                true => {
                    format!("{remark}: `leaf worker repair {} --holder-is-dead`", record.worker)
                }
                false => remark.clone(),
            }),
        }
    }
}

/// The worker ids of a registry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkersShown {
    /// The worker ids, sorted by number.
    pub workers: Vec<WorkerShown>,
}

/// A worker id that was released or repaired.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FreedShown {
    /// The worker id.
    pub worker: u32,
    /// The time from which other nodes may claim the worker id, in Unix milliseconds.
    #[serde(with = "values::text")]
    pub free_from_ms: u64,
}
