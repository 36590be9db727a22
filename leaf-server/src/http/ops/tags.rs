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

/// A tag that an operator asks about or changes, and the store to which it belongs.
pub(super) struct Target<'a> {
    node: &'a Node,
    store: &'a Store,
    tag: Tag,
    /// Whether a change is only checked.
    dry_run: bool,
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

impl<'a> Target<'a> {
    /// Parses the name of a tag, and finds its store.
    pub(super) fn of(node: &'a Node, name: &str, dry_run: bool) -> Result<Self, Problem> {
        let Some(stores) = node.ids.stores() else { return Err(Problem::disabled("segment")) };
        let tag = Tag::parse(name).map_err(|error| Problem::bad_request(error.to_string()))?;
        Ok(Self { node, store: stores.of(name), tag, dry_run })
    }

    /// A record in its JSON form.
    fn shown(&self, record: &TagRecord) -> TagShown {
        TagShown::of(record, &self.store.url)
    }

    /// The tag, as its store has it now.
    async fn read(&self) -> Result<TagRecord, Problem> {
        Ok(TagAdmin::new(&*self.store.open.store).read(&self.tag).await?)
    }

    /// One tag, as its store has it now, and its version.
    pub(super) async fn show(&self) -> Result<(TagShown, HeaderValue), Problem> {
        let record = self.read().await?;
        Ok((self.shown(&record), version(&record)))
    }

    /// Lets this node read a changed record at once; does nothing after a dry run.
    async fn follow(&self) {
        if !self.dry_run {
            self.store.generator.follow(&self.tag).await;
        }
    }

    /// The administration of the store's tags, with the store's failover margin.
    fn admin(&self) -> TagAdmin<'a> {
        let margin = self.store.open.admin.failover_margin();
        let admin = TagAdmin::new(&*self.store.open.store);
        admin.with_failover_margin(margin).with_dry_run(self.dry_run)
    }

    /// Creates the tag. This node has read its record when this returns.
    pub(super) async fn create(&self, spec: TagSpec) -> Result<TagShown, Problem> {
        let new = spec.record(self.tag.clone(), &self.node.ids.keys())?;
        leaf_node::check_creator(&*self.store.open.admin, &self.store.place).await?;
        if let Some(stores) = self.node.ids.stores() {
            leaf_node::check_new_tag(stores, &new, Store::opened).await?;
        }
        let record = self.admin().create(&new).await?;
        self.follow().await;
        Ok(self.shown(&record))
    }

    /// Changes the step or the settings of the tag. If `expected` is not empty, the record must
    /// have one of these versions. This node follows at once, other nodes at their next refresh.
    pub(super) async fn change(
        &self,
        change: TagChange,
        expected: &[String],
    ) -> Result<(TagShown, HeaderValue), Problem> {
        if change == TagChange::default() {
            return Err(Problem::bad_request(
                "nothing to change: give step, enabled, min_step, max_step or max_take, and of a family max_members or \
                 members_per_second",
            ));
        }
        let is_expected = |record: &TagRecord| {
            expected.is_empty() || expected.iter().any(|it| version(record) == it.as_str())
        };
        let record = self.admin().change_if(&self.tag, change, is_expected).await?;
        self.follow().await;
        Ok((self.shown(&record), version(&record)))
    }

    /// Repairs the tag. This node drops the tag's ids from its memory before this returns, other
    /// nodes do so at their next refresh.
    pub(super) async fn advance(&self, advance: &AdvanceTag) -> Result<AdvancedShown, Problem> {
        let AdvanceTag { at_least: Number(at_least), far } = *advance;
        let (record, raised) = self.admin().advance(&self.tag, at_least, far.into()).await?;
        self.follow().await;
        Ok(AdvancedShown::of(&record, raised, &self.store.url))
    }

    /// Reopens the tag, which a wrong clock has closed.
    pub(super) async fn reopen(&self, reopen: ReopenTag) -> Result<TagShown, Problem> {
        // This node would open the later period again, as long as it does not follow the clock.
        let segments = self.node.ids.segments();
        if segments.is_some_and(|all| all.iter().any(SegmentGenerator::is_clock_in_doubt)) {
            let why = "the clock of this host was set a moment ago, and periods follow it only in a minute: repeat this then";
            return Err(Problem::new(Reason::Conflict, why));
        }
        let sure = reopen.sure || self.dry_run;
        let admin = self.admin();
        let reopened = admin.reopen(&self.tag, reopen.into(), &SystemClock, sure.into()).await;
        let record = reopened.map_err(|error| match error {
            TagAdminError::Unconfirmed(why) => {
                Problem::new(Reason::Unconfirmed, format!("{why}; set `sure` where that is meant"))
            }
            error => error.into(),
        })?;
        self.follow().await;
        Ok(self.shown(&record))
    }

    /// Gives the newest key of this node to the tag, whose ids are scrambled.
    pub(super) async fn rekey(&self) -> Result<TagShown, Problem> {
        let record = self.admin().rekey(&self.tag, &self.node.ids.keys()).await?;
        self.follow().await;
        Ok(self.shown(&record))
    }

    /// Takes an id of the tag apart. `id` is in digits, or a text of the tag's template.
    pub(super) async fn decode(&self, id: &str) -> Result<TagIdShown, Problem> {
        let record = self.read().await?;
        leaf_node::records::decode(&record, &self.node.ids.keys(), id).map_err(
            |error| match error {
                TagIdError::Text(_) | TagIdError::NotOfTag => {
                    Problem::new(Reason::NoSuchId, error.to_string())
                }
                error => Problem::unavailable(hints::with(&error, hints::of(&error))),
            },
        )
    }

    /// Cuts the tag on all servers, or (without `cut`) removes the rule of traffic for exactly this
    /// tag. A rule for several tags stays.
    pub(super) async fn cut(&self, cut: bool) -> Result<CutShown, Problem> {
        let Self { node, tag, .. } = self;
        if cut {
            self.read().await?;
        }
        let Some(stores) = node.ids.stores() else { return Err(Problem::disabled("segment")) };
        let subject = Subject::tag(tag.as_str()).map_err(Problem::bad_request)?;
        let changed =
            traffic::change(&*stores.rest().open.admin, self.dry_run, |rules| match cut {
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

    /// Deletes the tag. `confirm` must repeat its name, unless this is a dry run. `encoded` is the
    /// name as it is encoded in the path.
    pub(super) async fn delete(
        &self,
        confirm: Option<&str>,
        encoded: &str,
    ) -> Result<DeletedShown, Problem> {
        let confirmed = self.dry_run || confirm == Some(self.tag.as_str());
        let deleted = self.admin().delete(&self.tag, confirmed.into()).await;
        let deleted = deleted.map_err(|error| match error {
            TagAdminError::Unconfirmed(why) => {
                let text = format!(
                    "{why}. To delete it, repeat its name, ?confirm={encoded}; or disable it instead"
                );
                Problem::new(Reason::Unconfirmed, text)
            }
            error => error.into(),
        })?;
        self.follow().await;
        Ok(DeletedShown::of(&deleted, &self.store.url))
    }
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
    let Target { tag, .. } = Target::of(node, tag, true)?;
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
