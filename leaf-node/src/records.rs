//! How tags and worker ids are told to programs: the same JSON from the ops listener and from
//! `leaf`.
//!
//! What may be larger than 2^53 is a string, since JavaScript loses digits there.

use std::borrow::Cow;

use leaf_core::{Step, UnixMillis};
use leaf_registry::StoreUrl;
use leaf_segment::TagRecord;
use leaf_segment::admin::{Deleted, EndedTag};
use leaf_segment::meaning::{KeyRing, Order, Period, TagId, TagIdError};
use leaf_segment::store::{Family, Slice};
use leaf_snowflake::{Fence, FenceState, WorkerView};
use serde::{Deserialize, Serialize};

/// A number as a string.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<N: Display, S: Serializer>(
        number: &N,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(number)
    }

    pub(super) fn deserialize<'de, N: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<N, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// A number as a string, or `null`.
mod text_or_null {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<N: ToString, S: Serializer>(
        number: &Option<N>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        number.as_ref().map(ToString::to_string).serialize(to)
    }

    pub(super) fn deserialize<'de, N: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<N>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// A tag's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TagShown {
    /// Its name.
    pub tag: String,
    /// The next number that the store will grant; in a plain tag the number is the id. `null` if the tag is sealed.
    #[serde(with = "text_or_null")]
    pub max_id: Option<i64>,
    /// Whether the store grants nothing more: the tag was moved, or is being moved or deleted.
    pub sealed: bool,
    /// `relaxed` or `strict`; `null` when this version of Leaf may not guess it.
    pub order: Option<Order>,
    /// Which ids the numbers stand for: `plain`, `interleave:0/2`, `scramble:63`.
    pub shape: Option<String>,
    /// The version of the key that ids are made with now, where they are scrambled.
    pub key: Option<u8>,
    /// `daily`, `monthly` or `yearly` where the numbers begin again.
    pub reset: Option<Period>,
    /// The part of all ids that the tag has, like `2/8`.
    pub slice: Option<String>,
    /// Below which power of two all slices are, 63 or 53.
    pub slice_bits: Option<u8>,
    /// The template of its texts.
    pub text: Option<String>,
    /// The time zone of midnight or of the date in texts.
    pub time_zone: Option<Cow<'static, str>>,
    /// `null` in strict order, and when the row holds a number that is none.
    pub step: Option<u32>,
    /// Whether ids are handed out.
    pub enabled: bool,
    /// The dynamic step never falls below this; `null` is the servers' own.
    pub min_step: Option<u32>,
    /// The dynamic step grows up to this; `null` is the servers' own.
    pub max_step: Option<u32>,
    /// The most ids that one call takes; `null` is the servers' own.
    pub max_take: Option<u32>,
    /// What it is for.
    pub description: Option<String>,
    /// The family that made it. Where that is there, its settings hold for those that are `null`
    /// here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member_of: Option<String>,
    /// What a family allows. Not there in a tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<FamilyShown>,
    /// The store, without its password.
    pub store: String,
}

/// What a family allows, and how many members it has.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct FamilyShown {
    /// How many members were made, those included that were deleted since.
    pub members: u32,
    /// No more than this are made.
    pub max_members: u32,
    /// How many each node makes in a second at most.
    pub members_per_second: u32,
}

impl From<Family> for FamilyShown {
    fn from(family: Family) -> Self {
        let Family { members, max_members, members_per_second } = family;
        Self { members, max_members, members_per_second }
    }
}

impl TagShown {
    /// A record of the store at `url`.
    #[must_use]
    pub fn of(record: &TagRecord, url: &StoreUrl) -> Self {
        let settings = record.settings.clone().unwrap_or_default();
        let meaning = record.meaning.as_ref().ok();
        let order = meaning.map(|meaning| meaning.order);
        let reset = meaning.and_then(|meaning| meaning.reset);
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
            family: settings.family.map(FamilyShown::from),
            store: url.to_string(),
        }
    }
}

/// Some tags of all stores.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TagsShown {
    /// By name.
    pub tags: Vec<TagShown>,
    /// Where the next tags begin. Not there behind the last one.
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
    /// Why.
    pub detail: String,
}

/// A tag that was raised.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AdvancedShown {
    /// As it is now.
    #[serde(flatten)]
    pub tag: TagShown,
    /// Whether `max_id` was lower before.
    pub raised: bool,
    /// Whether nodes learn of it from the record, and drop what they have in memory. Not where the store
    /// has no table of settings, like one of a Java Leaf: they must be restarted.
    #[serde(default)]
    pub nodes_follow: bool,
}

impl AdvancedShown {
    /// A record of the store at `url`, after it was raised.
    #[must_use]
    pub fn of(record: &TagRecord, raised: bool, url: &StoreUrl) -> Self {
        let nodes_follow = record.generation().is_some();
        Self { tag: TagShown::of(record, url), raised, nodes_follow }
    }
}

/// A tag that was deleted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeletedShown {
    /// As it was.
    pub deleted: TagShown,
    /// Made again in the same shape, it must not start below this number. Not there where nobody
    /// wrote it down.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text_or_null")]
    pub next_first: Option<i64>,
    /// Made again in any other shape, it must not issue ids below this one.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text_or_null")]
    pub ids_below: Option<i64>,
}

impl DeletedShown {
    /// A tag that was deleted from the store at `url`.
    #[must_use]
    pub fn of(deleted: &Deleted, url: &StoreUrl) -> Self {
        Self {
            deleted: TagShown::of(&deleted.record, url),
            next_first: deleted.ended.map(|ended| ended.next),
            ids_below: deleted.ended.map(EndedTag::ids_below),
        }
    }
}

/// Whether a tag is cut.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CutShown {
    /// Whether it is.
    pub cut: bool,
    /// The rule by which it is: the tag, or the beginning of several and `*`.
    pub by: Option<String>,
}

/// An id of a tag, taken apart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TagIdShown {
    /// The tag.
    pub tag: String,
    /// The id.
    #[serde(with = "text")]
    pub id: i64,
    /// Its number.
    #[serde(with = "text")]
    pub number: i64,
    /// The version of the key that made it, where ids are scrambled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<u8>,
    /// The first day of its period, where numbers begin again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// Whether the store has granted its number to a node, which may not have issued it; `null`
    /// where the counter does not tell: in a tag that is sealed, of an earlier key or period.
    pub granted: Option<bool>,
}

/// Takes an id of the tag of this record apart: digits are the id where the tag can issue it,
/// everything else is a text.
///
/// # Errors
/// It is neither, the tag does not issue such ids, or its key is not in `keys`.
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
    /// Its number.
    pub worker: u32,
    /// `held`, `released`, `retired`; `-` where there is no fence.
    pub state: Cow<'static, str>,
    /// The node that holds it, or held it last.
    pub holder: Option<String>,
    /// When whoever holds it last reported, Unix milliseconds.
    #[serde(with = "text_or_null")]
    pub last_report_ms: Option<u64>,
    /// From when on others may have it, Unix milliseconds.
    #[serde(with = "text_or_null")]
    pub ceiling_ms: Option<u64>,
    /// The fence's term, incremented by every claim.
    pub term: Option<u64>,
    /// What an operator should know.
    pub remark: Option<String>,
}

impl WorkerShown {
    /// A worker id of the registry.
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
    /// By number.
    pub workers: Vec<WorkerShown>,
}

/// A worker id that was made free.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FreedShown {
    /// Its number.
    pub worker: u32,
    /// From when on others may have it, Unix milliseconds.
    #[serde(with = "text")]
    pub free_from_ms: u64,
}
