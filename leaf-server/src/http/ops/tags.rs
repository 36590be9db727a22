//! `/v1/tags`: the records of the segment stores.

use hyper::StatusCode;
use leaf_core::{Step, Tag};
use leaf_node::records::TagShown;
use leaf_segment::{Order, Period, ShapeName, TagAdmin, TagChange, TagIdError, TagRecord, TagSpec};
use serde::{Deserialize, Deserializer, Serialize};

use super::super::id_routes::decode_key;
use super::super::problem::Problem;
use super::super::reply::{self, Reply};
use crate::node::{Node, Store};

#[derive(Serialize)]
struct Tags {
    tags: Vec<TagShown>,
    /// Stores that could not be read.
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    store: String,
    detail: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    tag: String,
    /// Not in strict order.
    #[serde(default, deserialize_with = "given")]
    step: Option<Whole>,
    order: Option<Order>,
    #[serde(default)]
    shape: ShapeName,
    slice: Option<String>,
    slice_bits: Option<u8>,
    reset: Option<Period>,
    time_zone: Option<String>,
    text: Option<String>,
    first: Option<Id>,
    description: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    #[serde(default, deserialize_with = "given")]
    step: Option<Whole>,
    #[serde(default, deserialize_with = "given")]
    enabled: Option<bool>,
    #[serde(default, deserialize_with = "given")]
    min_step: Option<Option<Whole>>,
    #[serde(default, deserialize_with = "given")]
    max_step: Option<Option<Whole>>,
    #[serde(default, deserialize_with = "given")]
    max_take: Option<Option<Whole>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Advance {
    at_least: Id,
    /// Yes, by more than 10^12.
    #[serde(default)]
    far: bool,
}

#[derive(Serialize)]
struct Advanced {
    #[serde(flatten)]
    tag: TagShown,
    /// Whether `max_id` was lower before.
    raised: bool,
}

#[derive(Serialize)]
struct Gone {
    deleted: TagShown,
    /// Made again, it must not start below. Not there for a tag that had moved to another store.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_first: Option<String>,
}

/// What is not given differs from `null`, which is no value here but where it means something.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A whole number, also one that is written `5.0`, as JSON Schema has it.
#[derive(Debug, Clone, Copy)]
struct Whole(i64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = serde_json::Number::deserialize(from)?;
        let exact = |value: f64| value.fract() == 0.0 && value.abs() <= (1i64 << 53) as f64;
        let whole = number.as_i64();
        let whole =
            whole.or(number.as_f64().filter(|value| exact(*value)).map(|value| value as i64));
        whole.map(Self).ok_or_else(|| serde::de::Error::custom("expected a whole number"))
    }
}

/// An id: a string of digits, or a number.
#[derive(Debug, Clone, Copy)]
struct Id(i64);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "an id: a string of digits, or a number")]
        enum Written {
            Text(String),
            Number(Whole),
        }
        match Written::deserialize(from)? {
            Written::Number(Whole(number)) => Ok(Self(number)),
            Written::Text(text) => text.parse().map(Self).map_err(serde::de::Error::custom),
        }
    }
}

fn step(name: &str, Whole(value): Whole) -> Result<Step, Problem> {
    let step = Step::new(value);
    step.map_err(|_| Problem::bad_request(format!("{name}: give 1 to {}", Step::MAX)))
}

/// The store of a tag, and the tag itself.
fn find<'a>(node: &'a Node, text: &str) -> Result<(&'a Store, Tag), Problem> {
    let Some(stores) = node.stores() else { return Err(Problem::disabled("segment")) };
    let tag = Tag::parse(text).map_err(|error| Problem::bad_request(error.to_string()))?;
    Ok((stores.of(text), tag))
}

fn shown(status: StatusCode, record: &TagRecord, store: &Store) -> Reply {
    reply::json(status, &TagShown::of(record, &store.url))
}

/// Tags of stores that cannot be read are missing; the others are there.
pub(super) async fn list(node: &Node) -> Result<Reply, Problem> {
    let Some(stores) = node.stores() else { return Err(Problem::disabled("segment")) };
    let mut all = Tags { tags: Vec::new(), failed: Vec::new() };
    let mut answered = false;
    for store in stores.iter() {
        match store.open.store.tags().await {
            Ok(records) => {
                answered = true;
                let own = records.iter().filter(|record| stores.is_of(record.tag.as_str(), store));
                all.tags.extend(own.map(|record| TagShown::of(record, &store.url)));
            }
            Err(error) => {
                let failed = Failed { store: store.url.to_string(), detail: error.to_string() };
                all.failed.push(failed);
            }
        }
    }
    if let (false, Some(failed)) = (answered, all.failed.first()) {
        return Err(Problem::unavailable(format!("{}: {}", failed.store, failed.detail)));
    }
    all.tags.sort_by(|a, b| a.tag.cmp(&b.tag));
    Ok(reply::json(StatusCode::OK, &all))
}

pub(super) async fn show(node: &Node, key: &str) -> Result<Reply, Problem> {
    let (store, tag) = find(node, &decode_key(key)?)?;
    let record = TagAdmin::new(&*store.open.store).read(&tag).await?;
    Ok(shown(StatusCode::OK, &record, store))
}

pub(super) async fn create(node: &Node, new: Create) -> Result<Reply, Problem> {
    let (store, tag) = find(node, &new.tag)?;
    let spec = TagSpec {
        step: new.step.map(|value| step("step", value)).transpose()?,
        order: new.order,
        shape: new.shape,
        slice: new.slice,
        slice_bits: new.slice_bits,
        reset: new.reset,
        time_zone: new.time_zone,
        text: new.text,
        first: new.first.map(|Id(first)| first),
        description: new.description,
    };
    let new = spec.record(tag, &node.keys())?;
    let record = TagAdmin::new(&*store.open.store).create(&new).await?;
    Ok(shown(StatusCode::CREATED, &record, store))
}

pub(super) async fn change(node: &Node, key: &str, change: Change) -> Result<Reply, Problem> {
    let (store, tag) = find(node, &decode_key(key)?)?;
    let limit = |name: &str, value: Option<Option<Whole>>| match value {
        None => Ok(None),
        Some(None) => Ok(Some(None)),
        Some(Some(value)) => step(name, value).map(|step| Some(Some(step))),
    };
    let change = TagChange {
        step: change.step.map(|value| step("step", value)).transpose()?,
        enabled: change.enabled,
        min_step: limit("min_step", change.min_step)?,
        max_step: limit("max_step", change.max_step)?,
        max_take: limit("max_take", change.max_take)?,
    };
    if change == TagChange::default() {
        return Err(Problem::bad_request(
            "nothing to change: give step, enabled, min_step, max_step or max_take",
        ));
    }
    let record = TagAdmin::new(&*store.open.store).change(&tag, change).await?;
    Ok(shown(StatusCode::OK, &record, store))
}

pub(super) async fn advance(node: &Node, key: &str, advance: Advance) -> Result<Reply, Problem> {
    let (store, tag) = find(node, &decode_key(key)?)?;
    let admin =
        TagAdmin::new(&*store.open.store).with_failover_margin(store.open.admin.failover_margin());
    let (record, raised) = admin.advance(&tag, advance.at_least.0, advance.far.into()).await?;
    let advanced = Advanced { tag: TagShown::of(&record, &store.url), raised };
    Ok(reply::json(StatusCode::OK, &advanced))
}

/// Gives the newest key of this node to a tag whose ids are scrambled.
pub(super) async fn rekey(node: &Node, key: &str) -> Result<Reply, Problem> {
    let (store, tag) = find(node, &decode_key(key)?)?;
    let record = TagAdmin::new(&*store.open.store).rekey(&tag, &node.keys()).await?;
    Ok(shown(StatusCode::OK, &record, store))
}

/// Takes an id of a tag apart, in digits or in the tag's texts.
pub(super) async fn decode(node: &Node, key: &str, id: &str) -> Result<Reply, Problem> {
    let (store, tag) = find(node, &decode_key(key)?)?;
    let record = TagAdmin::new(&*store.open.store).read(&tag).await?;
    let told = leaf_node::records::decode(&record, &node.keys(), &decode_key(id)?);
    let told = told.map_err(|error| match error {
        TagIdError::Text(_) | TagIdError::NotOfTag => {
            Problem::new(StatusCode::NOT_FOUND, "no-such-id", error.to_string())
        }
        error => Problem::unavailable(error.to_string()),
    })?;
    Ok(reply::json(StatusCode::OK, &told))
}

/// `?confirm=` repeats the tag.
pub(super) async fn delete(node: &Node, key: &str, query: &str) -> Result<Reply, Problem> {
    let (store, tag) = find(node, &decode_key(key)?)?;
    let confirm = match query.split_once('=') {
        Some(("confirm", value)) => Some(decode_key(value)?),
        _ if query.is_empty() => None,
        _ => return Err(Problem::bad_request("unknown parameter: there is `confirm`")),
    };
    let confirmed = confirm.is_some_and(|name| name == tag.as_str());
    let deleted = TagAdmin::new(&*store.open.store).delete(&tag, confirmed.into()).await;
    let deleted = deleted.map_err(|error| match error {
        leaf_segment::TagAdminError::Unconfirmed(why) => {
            let text = format!("{why}: repeat its name, ?confirm={key}, or disable it");
            Problem::new(StatusCode::CONFLICT, "unconfirmed", text)
        }
        error => error.into(),
    })?;
    let gone = Gone {
        deleted: TagShown::of(&deleted.record, &store.url),
        next_first: deleted.next_first.map(|first| first.to_string()),
    };
    Ok(reply::json(StatusCode::OK, &gone))
}
