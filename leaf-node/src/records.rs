//! How tags and worker ids are told to programs: the same JSON from the ops listener and from
//! `leaf`.
//!
//! What may be larger than 2^53 is a string, since JavaScript loses digits there.

use leaf_core::{Step, UnixMillis};
use leaf_registry::StoreUrl;
use leaf_segment::TagRecord;
use leaf_segment::meaning::{KeyRing, Order, Period, TagId, TagIdError};
use leaf_segment::store::{Family, Slice};
use leaf_snowflake::{Fence, FenceState, WorkerView};
use serde::{Serialize, Serializer};

fn as_text<S: Serializer>(number: &i64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(number)
}

fn as_text_or_null<N: ToString, S: Serializer>(
    number: &Option<N>,
    to: S,
) -> Result<S::Ok, S::Error> {
    number.as_ref().map(ToString::to_string).serialize(to)
}

/// A tag's record.
#[derive(Debug, Clone, Serialize)]
pub struct TagShown {
    /// Its name.
    pub tag: String,
    /// The next number that the store will grant, in a plain tag the next id; `null` in a tag that
    /// is sealed.
    #[serde(serialize_with = "as_text_or_null")]
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
    pub time_zone: Option<&'static str>,
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
#[derive(Debug, Clone, Copy, Serialize)]
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
            time_zone: zone.map(|zone| zone.name()),
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

/// An id of a tag, taken apart.
#[derive(Debug, Clone, Serialize)]
pub struct TagIdShown {
    /// The tag.
    pub tag: String,
    /// The id.
    #[serde(serialize_with = "as_text")]
    pub id: i64,
    /// Its number.
    #[serde(serialize_with = "as_text")]
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
#[derive(Debug, Clone, Serialize)]
pub struct WorkerShown {
    /// Its number.
    pub worker: u32,
    /// `held`, `released`, `retired`; `-` where there is no fence.
    pub state: &'static str,
    /// The node that holds it, or held it last.
    pub holder: Option<String>,
    /// When whoever holds it last reported, Unix milliseconds.
    #[serde(serialize_with = "as_text_or_null")]
    pub last_report_ms: Option<u64>,
    /// From when on others may have it, Unix milliseconds.
    #[serde(serialize_with = "as_text_or_null")]
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
            state: fence.map_or("-", state),
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
