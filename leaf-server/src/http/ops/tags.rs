//! The records of the segment stores, and the JSON forms of `/v1/tags`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use hyper::header::HeaderValue;
use leaf_core::{Step, SystemClock, Tag};
use leaf_node::hints;
use leaf_node::records::{
    AdvancedShown, CutShown, DeletedShown, FailedStore, TagIdShown, TagShown, TagsShown,
};
use leaf_node::requests::{AdvanceTag, Number, ReopenTag};
use leaf_node::traffic::{self, ChangeError, Subject};
use leaf_segment::admin::TagIdError;
use leaf_segment::admin::{TagAdmin, TagAdminError, TagChange, TagSpec};
use leaf_segment::{MemoryStore, SegmentConfig, SegmentError, SegmentGenerator, TagRecord};
use serde::Serialize;

use super::super::problem::Problem;
use super::part::Part;
use crate::ids::IdError;
use crate::node::{Node, Store};
use crate::refusal::Reason;

/// How many ids a sample has.
const SAMPLES: usize = 3;

/// Parses the name of a tag, and finds the store to which it belongs.
fn find<'a>(node: &'a Node, text: &str) -> Result<(&'a Store, Tag), Problem> {
    let Some(stores) = node.ids.stores() else { return Err(Problem::disabled("segment")) };
    let tag = Tag::parse(text).map_err(|error| Problem::bad_request(error.to_string()))?;
    Ok((stores.of(text), tag))
}

/// A record in its JSON form.
fn shown(record: &TagRecord, store: &Store) -> TagShown {
    TagShown::of(record, &store.url)
}

/// Lists the tags of all stores. Tags of a store that cannot be read are missing; `failed` names
/// that store. It is an error if no store can be read.
pub(super) async fn list(node: &Node, part: &Part) -> Result<TagsShown, Problem> {
    let Some(stores) = node.ids.stores() else { return Err(Problem::disabled("segment")) };
    let (family, from) = (part.family.as_ref(), part.from()?);
    let list = leaf_node::list_tags(stores, Store::opened, family, from, part.limit).await;
    let failed = list
        .failed
        .iter()
        .map(|(url, error)| FailedStore { store: url.to_string(), detail: error.to_string() });
    let failed: Vec<FailedStore> = failed.collect();
    if failed.len() == stores.iter().count() {
        let FailedStore { store, detail } = &failed[0];
        return Err(Problem::unavailable(format!("{store}: {detail}")));
    }
    let tags = list.records.iter().map(|(url, record)| TagShown::of(record, url)).collect();
    Ok(TagsShown { tags, next: list.next.map(|next| next.to_string()), failed })
}

/// The version of those settings in a record that operators can change. It changes with each of
/// them, and stays while ids are handed out.
fn version(record: &TagRecord) -> HeaderValue {
    let settings = record.settings.clone().unwrap_or_default();
    let family = settings.family.map(|it| (it.max_members, it.members_per_second));
    let limits = [settings.min_step, settings.max_step, settings.max_take];
    let limits = limits.map(|limit| limit.map(Step::get));
    let step = record.step.ok().map(Step::get);
    let mut hasher = DefaultHasher::new();
    (step, settings.enabled, limits, family, record.is_sealed()).hash(&mut hasher);
    let text = format!("\"{:016x}\"", hasher.finish());
    HeaderValue::from_str(&text).expect("hexadecimal digits in quotes are a value")
}

/// One tag, as its store has it now, and its version.
pub(super) async fn show(node: &Node, tag: &str) -> Result<(TagShown, HeaderValue), Problem> {
    let (store, tag) = find(node, tag)?;
    let record = TagAdmin::new(&*store.open.store).read(&tag).await?;
    Ok((shown(&record, store), version(&record)))
}

/// Lets this node read a changed record at once; does nothing after a dry run.
async fn follow(store: &Store, tag: &Tag, dry_run: bool) {
    if !dry_run {
        store.generator.follow(tag).await;
    }
}

/// The administration of a store's tags, with the store's failover margin.
fn admin(store: &Store, dry_run: bool) -> TagAdmin<'_> {
    let margin = store.open.admin.failover_margin();
    TagAdmin::new(&*store.open.store).with_failover_margin(margin).with_dry_run(dry_run)
}

/// Creates a tag. This node has read its record when this returns.
pub(super) async fn create(
    node: &Node,
    tag: &str,
    spec: TagSpec,
    dry_run: bool,
) -> Result<TagShown, Problem> {
    let (store, tag) = find(node, tag)?;
    let new = spec.record(tag, &node.ids.keys())?;
    leaf_node::check_creator(&*store.open.admin, &store.place).await?;
    if let Some(stores) = node.ids.stores() {
        leaf_node::check_new_tag(stores, &new, Store::opened).await?;
    }
    let record = admin(store, dry_run).create(&new).await?;
    follow(store, &record.tag, dry_run).await;
    Ok(shown(&record, store))
}

/// Changes the step or the settings of a tag. If `expected` is not empty, the record must have one
/// of these versions. This node follows at once, other nodes at their next refresh.
pub(super) async fn change(
    node: &Node,
    tag: &str,
    change: TagChange,
    expected: &[String],
    dry_run: bool,
) -> Result<(TagShown, HeaderValue), Problem> {
    let (store, tag) = find(node, tag)?;
    if change == TagChange::default() {
        return Err(Problem::bad_request(
            "nothing to change: give step, enabled, min_step, max_step or max_take, and of a family max_members or \
             members_per_second",
        ));
    }
    let is_expected = |record: &TagRecord| {
        expected.is_empty() || expected.iter().any(|it| version(record) == it.as_str())
    };
    let record = admin(store, dry_run).change_if(&tag, change, is_expected).await?;
    follow(store, &tag, dry_run).await;
    Ok((shown(&record, store), version(&record)))
}

/// Repairs a tag. This node drops the tag's ids from its memory before this returns, other nodes do
/// so at their next refresh.
pub(super) async fn advance(
    node: &Node,
    tag: &str,
    advance: &AdvanceTag,
    dry_run: bool,
) -> Result<AdvancedShown, Problem> {
    let (store, tag) = find(node, tag)?;
    let AdvanceTag { at_least: Number(at_least), far } = *advance;
    let (record, raised) = admin(store, dry_run).advance(&tag, at_least, far.into()).await?;
    follow(store, &tag, dry_run).await;
    Ok(AdvancedShown::of(&record, raised, &store.url))
}

/// Reopens a tag that a wrong clock has closed.
pub(super) async fn reopen(
    node: &Node,
    tag: &str,
    reopen: ReopenTag,
    dry_run: bool,
) -> Result<TagShown, Problem> {
    let (store, tag) = find(node, tag)?;
    // This node would open the later period again, as long as it does not follow the clock.
    let segments = node.ids.segments();
    if segments.is_some_and(|all| all.iter().any(SegmentGenerator::is_clock_in_doubt)) {
        let why = "the clock of this host was set a moment ago, and periods follow it only in a minute: repeat this then";
        return Err(Problem::new(Reason::Conflict, why));
    }
    let admin = admin(store, dry_run);
    let sure = reopen.sure || dry_run;
    let reopened = admin.reopen(&tag, reopen.into(), &SystemClock, sure.into()).await;
    let record = reopened.map_err(|error| match error {
        TagAdminError::Unconfirmed(why) => {
            Problem::new(Reason::Unconfirmed, format!("{why}; set `sure` where that is meant"))
        }
        error => error.into(),
    })?;
    follow(store, &tag, dry_run).await;
    Ok(shown(&record, store))
}

/// Gives the newest key of this node to a tag whose ids are scrambled.
pub(super) async fn rekey(node: &Node, tag: &str, dry_run: bool) -> Result<TagShown, Problem> {
    let (store, tag) = find(node, tag)?;
    let record = admin(store, dry_run).rekey(&tag, &node.ids.keys()).await?;
    follow(store, &tag, dry_run).await;
    Ok(shown(&record, store))
}

/// Decodes an id of a tag. `id` is in digits, or a text of the tag's template.
pub(super) async fn decode(node: &Node, tag: &str, id: &str) -> Result<TagIdShown, Problem> {
    let (store, tag) = find(node, tag)?;
    let record = TagAdmin::new(&*store.open.store).read(&tag).await?;
    leaf_node::records::decode(&record, &node.ids.keys(), id).map_err(|error| match error {
        TagIdError::Text(_) | TagIdError::NotOfTag => {
            Problem::new(Reason::NoSuchId, error.to_string())
        }
        error => Problem::unavailable(hints::with(&error, hints::of(&error))),
    })
}

/// The first ids that a tag would have, and their texts.
#[derive(Serialize)]
pub(super) struct Sample {
    first_ids: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_texts: Option<Vec<String>>,
}

/// Shows what the ids of a tag would look like: creates the tag in a store in memory, with the keys
/// of this node, and takes its first ids.
pub(super) async fn sample(node: &Node, tag: &str, spec: TagSpec) -> Result<Sample, Problem> {
    let (_, tag) = find(node, tag)?;
    let keys = node.ids.keys();
    let family = spec.family.then(|| spec.clone().record(tag.clone(), &keys)).transpose()?;
    let new = match family {
        // Its ids are those of a member.
        Some(_) => {
            let member = tag.as_str().replace('*', "member");
            let tag =
                Tag::parse(&member).map_err(|error| Problem::bad_request(error.to_string()))?;
            let of_tags =
                TagSpec { family: false, max_members: None, members_per_second: None, ..spec };
            of_tags.record(tag, &keys)?
        }
        None => spec.record(tag, &keys)?,
    };
    let store = Arc::new(MemoryStore::default());
    TagAdmin::new(&*store).create(&new).await?;
    let config = SegmentConfig { keys, ..SegmentConfig::default() };
    let generator = SegmentGenerator::open(store, config).await;
    let ids = async {
        let handle = generator.tag(new.tag.as_str()).await?;
        let mut ids = Vec::new();
        for _ in 0..SAMPLES {
            ids.push(handle.next().await?);
        }
        Ok::<_, SegmentError>((ids, handle.texts()))
    };
    let ids = ids.await;
    generator.close().await;
    let (ids, texts) = ids.map_err(IdError::from)?;
    let first_texts = texts.map(|texts| {
        ids.iter().filter_map(|id| texts.write(*id)).map(|text| text.to_string()).collect()
    });
    Ok(Sample { first_ids: ids.iter().map(ToString::to_string).collect(), first_texts })
}

/// Cuts a tag on all servers, or (without `cut`) removes the rule of traffic for exactly this tag.
/// A rule for several tags stays.
pub(super) async fn cut(
    node: &Node,
    tag: &str,
    cut: bool,
    dry_run: bool,
) -> Result<CutShown, Problem> {
    let (store, tag) = find(node, tag)?;
    if cut {
        TagAdmin::new(&*store.open.store).read(&tag).await?;
    }
    let Some(stores) = node.ids.stores() else { return Err(Problem::disabled("segment")) };
    let subject = Subject::tag(tag.as_str()).map_err(Problem::bad_request)?;
    let changed = traffic::change(&*stores.rest().open.admin, dry_run, |rules| match cut {
        true => drop(rules.rates.insert(subject.clone(), None)),
        false => drop(rules.rates.remove(&subject)),
    });
    let rules = changed.await.map_err(|error| match error {
        ChangeError::Store(error) => error.into(),
        error => Problem::new(Reason::Conflict, error.to_string()),
    })?;
    // This node does not wait for its turn.
    node.read_traffic().await;
    let by = rules.rates.iter().find_map(|(subject, rate)| match subject {
        Subject::Tag(pattern) if rate.is_none() => {
            let is_of = match pattern.strip_suffix('*') {
                Some(beginning) => tag.as_str().starts_with(beginning),
                None => tag.as_str() == pattern,
            };
            is_of.then(|| pattern.clone())
        }
        _ => None,
    });
    Ok(CutShown { cut: by.is_some(), by })
}

/// Deletes a tag. `confirm` must repeat its name, unless this is a dry run. `encoded` is the name
/// as it is encoded in the path.
pub(super) async fn delete(
    node: &Node,
    tag: &str,
    confirm: Option<&str>,
    dry_run: bool,
    encoded: &str,
) -> Result<DeletedShown, Problem> {
    let (store, tag) = find(node, tag)?;
    let confirmed = dry_run || confirm == Some(tag.as_str());
    let deleted = admin(store, dry_run).delete(&tag, confirmed.into()).await;
    let deleted = deleted.map_err(|error| match error {
        TagAdminError::Unconfirmed(why) => {
            let text = format!(
                "{why}. To delete it, repeat its name, ?confirm={encoded}; or disable it instead"
            );
            Problem::new(Reason::Unconfirmed, text)
        }
        error => error.into(),
    })?;
    follow(store, &tag, dry_run).await;
    Ok(DeletedShown::of(&deleted, &store.url))
}
