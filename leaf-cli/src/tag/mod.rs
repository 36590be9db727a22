//! `leaf tag`: the records of the segment stores.
//!
//! Every rule about tags is in leaf-segment (`TagAdmin`, `TagSpec`), where the server's
//! administration uses it, too. This file turns flags into its types, and its results into rows.

mod import;

use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use comfy_table::CellAlignment::{self, Left, Right};
use leaf_core::{Step, SystemClock, Tag as TagName};
use leaf_node::ListCursor;
use leaf_node::config::ConfigError;
use leaf_node::hints;
use leaf_node::records::{AdvancedShown, DeletedShown, TagIdShown, TagShown};
use leaf_node::requests::{ChangeTag, CreateTag, Number};
use leaf_segment::StoreErrorKind;
use leaf_segment::admin::{Reopening, ShapeName, TagAdminError, TagSpec};
use leaf_segment::store::Family;
use leaf_shape::keys::KeyRing;
use leaf_shape::{Order, Shape};
use serde::Serialize;

use crate::cli::{Create, DryRun, Output, Reopen, Set, Tag};
use crate::output::{self, Row};
use crate::stores::{Store, Stores};
use crate::{Done, ask, exit, nodes};

/// Describes the ids of a tag, except for their order.
///
/// The text is one cell of the table, like `scramble:63, key 1` or `slice 0/2, {date}-{n:06}`.
fn ids(tag: &TagShown) -> String {
    let key = tag.key.map(|key| format!("key {key}"));
    let shape = tag.shape.clone().filter(|shape| shape != "plain");
    let slice = tag.slice.as_ref().map(|slice| match tag.slice_bits {
        Some(53) => format!("slice {slice} of 2^53"),
        _ => format!("slice {slice}"),
    });
    let reset = tag.reset.map(|reset| reset.name().into());
    let zone = tag.time_zone.as_ref().map(ToString::to_string);
    let family = tag.family.map(|family| format!("family of {}", family.members));
    let parts = [family, shape, key, slice, reset, zone, tag.text.clone()];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "plain".into() } else { parts.join(", ") }
}

impl Row for TagShown {
    const COLUMNS: &'static [(&'static str, CellAlignment)] = &[
        ("tag", Left),
        ("order", Left),
        ("ids", Left),
        ("max_id", Right),
        ("step", Right),
        ("enabled", Left),
        ("min_step", Right),
        ("max_step", Right),
        ("max_take", Right),
        ("description", Left),
    ];

    fn cells(&self) -> Vec<String> {
        let number = |step: Option<u32>| step.map_or("-".into(), |step| step.to_string());
        vec![
            self.tag.clone(),
            match self.order {
                Some(Order::Relaxed) => "relaxed".into(),
                Some(Order::Strict) => "strict".into(),
                None => "unknown".into(),
            },
            ids(self),
            self.max_id.map_or_else(|| "sealed".into(), |max_id| max_id.to_string()),
            match (self.step, self.order) {
                (Some(step), _) => step.to_string(),
                (None, Some(Order::Strict)) => "-".into(),
                (None, _) => "bad".into(),
            },
            if self.enabled { "yes" } else { "no" }.into(),
            number(self.min_step),
            number(self.max_step),
            number(self.max_take),
            self.description.clone().unwrap_or_default(),
        ]
    }
}

/// Runs a command and returns what is to be printed.
///
/// # Errors
/// [`ConfigError`] for a request that makes no sense in any store, or that can lose ids and is not
/// confirmed; else errors of the store.
pub(crate) async fn run(stores: &Stores, command: Tag, output: Output) -> Result<Done> {
    match command {
        Tag::List { after, family, limit } => {
            list(stores, after, family, limit.into(), output).await
        }
        Tag::Show { tag } => show(stores, &tag, output).await,
        Tag::Create(new) => create(stores, new, output).await,
        Tag::Set(set) => set_tag(stores, set, output).await,
        Tag::Rekey { tag, yes, dry } => rekey(stores, &tag, yes, dry, output).await,
        Tag::Advance { tag, at_least, yes, dry } => {
            let store = stores.shards.of(&tag);
            let (tag, tags) = (name(&tag)?, store.tags(dry));
            let advance = async |yes: bool| {
                let (record, raised) =
                    tags.advance(&tag, at_least, yes.into()).await.map_err(refused)?;
                Ok(AdvancedShown::of(&record, raised, &store.url))
            };
            advanced(
                ask::confirmed(yes || dry.dry_run, ADVANCE, THEN_YES, advance).await?,
                dry,
                output,
            )
        }
        Tag::Reopen(of) => reopen(stores, of, output).await,
        Tag::Delete { tag, family: false, yes, dry } => {
            let store = stores.shards.of(&tag);
            let (name, tags) = (name(&tag)?, store.tags(dry));
            let delete = async |yes: bool| {
                let deleted = tags.delete(&name, (yes || dry.dry_run).into()).await;
                Ok(DeletedShown::of(&deleted.map_err(refused)?, &store.url))
            };
            let how = how_to_delete(&tag);
            Ok(gone(ask::confirmed(yes, DELETE, &how, delete).await?, dry, "", output))
        }
        Tag::Delete { tag, family: true, yes, dry } => delete_family(stores, &tag, yes, dry).await,
        Tag::Import { from, from_file, gap, tags, dry } => {
            import::run(stores, stores.source(from, from_file).await?, gap, &tags, dry, output)
                .await
        }
    }
}

/// The question before an advance that loses ids; [`REOPEN`] and [`DELETE`]: before a reopening and
/// a deletion.
pub(crate) const ADVANCE: &str = "Advance it that far?";
pub(crate) const REOPEN: &str = "Reopen it?";
pub(crate) const DELETE: &str = "Delete it?";
/// The end of the error if an advance that loses ids, or a reopening, is not confirmed.
pub(crate) const THEN_YES: &str = ", then say --yes";

/// The end of the error if a deletion is not confirmed: how to confirm it, or what to do instead.
pub(crate) fn how_to_delete(tag: &str) -> String {
    let tag = hints::quoted(tag);
    format!("; say --yes to delete it, or `leaf tag set {tag} --enabled false`")
}

/// Makes a tag.
async fn create(stores: &Stores, new: Create, output: Output) -> Result<Done> {
    let dry = new.dry;
    let (tag, spec) = asked(new)?.read().map_err(refused)?;
    let (store, record) = plan(stores, &tag, spec).await?;
    let record = store.tags(dry).create(&record).await.map_err(refused)?;
    Ok(shown(TagShown::of(&record, &store.url), dry, output))
}

/// Converts the command line into the request to make a tag.
///
/// # Errors
/// [`ConfigError`] where a step is missing.
pub(crate) fn asked(new: Create) -> Result<CreateTag> {
    if new.step.is_none() && new.order != Some(crate::cli::Order::Strict) && new.reset.is_none() {
        return Err(ConfigError::new(format!(
            "a tag in relaxed order needs a step: how many ids one trip to the store reserves, those of about ten \
             minutes, like `leaf tag create {} --step 1000`",
            hints::quoted(&new.tag)
        ))
        .into());
    }
    Ok(CreateTag {
        tag: new.tag,
        step: new.step,
        order: new.order.map(Into::into),
        shape: new.shape,
        slice: new.slice,
        slice_bits: new.slice_bits,
        reset: new.reset,
        time_zone: new.time_zone,
        text: new.text,
        first: new.first.map(Number),
        description: new.description,
        family: new.family,
        max_members: new.max_members,
        members_per_second: new.members_per_second,
    })
}

/// The record of a new tag, and the store that it belongs to. Nothing is made yet.
///
/// # Errors
/// [`ConfigError`]: what is asked for makes no sense, or would repeat ids.
pub(crate) async fn plan<'a>(
    stores: &'a Stores,
    tag: &str,
    spec: TagSpec,
) -> Result<(&'a Store, leaf_segment::NewTag)> {
    let keys = match spec.shape {
        ShapeName::Scramble(_) => stores.keys()?,
        _ => KeyRing::default(),
    };
    let record = spec.record(name(tag)?, &keys).map_err(refused)?;
    let store = stores.shards.of(tag);
    if let Some(place) = &store.place {
        let checked = leaf_node::check_creator(&*store.open.admin, place).await;
        checked.map_err(refused)?;
    }
    let all = &stores.shards;
    let checked = leaf_node::check_new_tag(all, &record, |store| (&store.url, &store.open));
    checked.await.map_err(refused)?;
    Ok((store, record))
}

/// Reopens a tag that a wrong clock has closed.
async fn reopen(stores: &Stores, of: Reopen, output: Output) -> Result<Done> {
    let Reopen { tag, above, first_taken, yes, dry } = of;
    let store = stores.shards.of(&tag);
    let (tag, tags) = (name(&tag)?, store.tags(dry));
    let reopening = Reopening { above, first_taken };
    let reopen = async |yes: bool| {
        let record = tags.reopen(&tag, reopening, &SystemClock, yes.into()).await;
        Ok(TagShown::of(&record.map_err(refused)?, &store.url))
    };
    let reopened = ask::confirmed(yes || dry.dry_run, REOPEN, THEN_YES, reopen).await?;
    Ok(shown(reopened, dry, output))
}

/// Gives a tag the newest key. Unless `yes`, checks first that every live node has that key.
async fn rekey(stores: &Stores, tag: &str, yes: bool, dry: DryRun, output: Output) -> Result<Done> {
    let (store, tag, keys) = (stores.shards.of(tag), name(tag)?, stores.keys()?);
    let tags = store.tags(dry);
    let record = tags.read(&tag).await.map_err(refused)?;
    if let (Ok(Shape::Scramble { domain, .. }), false) = (record.meaning.map(|it| it.shape), yes)
        && let Some(newest) = keys.newest(domain, &tag)
    {
        nodes::have_key(&stores.config, &tag, newest.key()).await?;
    }
    let rekeyed = tags.rekey(&tag, &keys).await.map_err(refused)?;
    Ok(shown(TagShown::of(&rekeyed, &store.url), dry, output))
}

/// Lists the tags of all stores, a part at a time; standard error names the command that shows the
/// next part. A tag in a store to which `segment.shard` does not send it is left out: no server
/// serves it (`leaf doctor` reports it). If a store cannot be read, its tags are missing, and the
/// trouble of the result says so.
async fn list(
    stores: &Stores,
    after: ListCursor,
    family: Option<String>,
    limit: usize,
    output: Output,
) -> Result<Done> {
    let family = family.map(|family| family_name(&family)).transpose()?;
    let list =
        leaf_node::list_tags(&stores.shards, Store::opened, family.as_ref(), after, limit).await;
    let shown = list.records.iter().map(|(url, record)| TagShown::of(record, url));
    let failed = list.failed.into_iter().next_back();
    // Whatever it is: the tags of the other stores are there.
    let trouble = failed
        .map(|(url, error)| exit::with(exit::FAILED, anyhow!(error).context(url.to_string())));
    let next = list.next.map(|next| next.to_string());
    // A URL may have a password, which is not shown again.
    let is_named = stores.shards.iter().any(|store| store.place.is_none());
    let way = if is_named { " --store URL" } else { "" };
    let text = part(&shown.collect::<Vec<_>>(), next, family.as_ref(), limit, way, output);
    Ok(Done::but(text, trouble))
}

/// Formats one part of the list of tags. If there are more, standard error names the command that
/// shows the next ones; `way` is the option with which that command asks the same server or store,
/// like ` --server URL`. It is empty if the configured stores are read.
pub(crate) fn part(
    tags: &[TagShown],
    next: Option<String>,
    family: Option<&TagName>,
    limit: usize,
    way: &str,
    output: Output,
) -> String {
    if let Some(next) = next {
        let next = hints::quoted(&next);
        let family = family.map_or_else(String::new, |family| {
            format!(" --family {}", hints::quoted(family.as_str()))
        });
        crate::complain(&format_args!(
            "more tags: leaf tag list{family} --after {next} --limit {limit}{way}"
        ));
    }
    output::rows(tags, output)
}

/// Changes the step and the settings of a tag.
async fn set_tag(stores: &Stores, set: Set, output: Output) -> Result<Done> {
    let (store, dry) = (stores.shards.of(&set.tag), set.dry);
    let (tag, change) = change(set);
    let change = change.read().map_err(refused)?;
    let record = store.tags(dry).change(&name(&tag)?, change).await.map_err(refused)?;
    Ok(shown(TagShown::of(&record, &store.url), dry, output))
}

/// The tag of the command line, and the changes to it.
pub(crate) fn change(set: Set) -> (String, ChangeTag) {
    let change = ChangeTag {
        step: set.step,
        enabled: set.enabled,
        min_step: limit(set.min_step),
        max_step: limit(set.max_step),
        max_take: limit(set.max_take),
        max_members: set.max_members,
        members_per_second: set.members_per_second,
    };
    (set.tag, change)
}

/// Parses a limit of `leaf tag set`. `None`: not given, it stays unchanged. `Some(None)`: the word
/// `none`, the server's own limit applies again. A text that is not a number becomes 0, which is
/// refused like any invalid step.
fn limit(text: Option<String>) -> Option<Option<i64>> {
    let number = |text: &str| (text != "none").then(|| text.parse().unwrap_or(0));
    text.map(|text| number(&text))
}

/// Formats the result of `leaf tag advance`: the store grants no lower ids any more, and every node
/// drops the ids that it has from before.
pub(crate) fn advanced(advanced: AdvancedShown, dry: DryRun, output: Output) -> Result<Done> {
    if output != Output::Table {
        dry.tell();
        return Ok(output::one(&advanced, String::new(), output).into());
    }
    let AdvancedShown { tag, raised, nodes_follow } = advanced;
    let was = if raised { "" } else { "max_id was that high already; " };
    let then = if nodes_follow {
        "within its segment.refresh (60 s by default) every node drops the ids that it has of this tag from before, and \
         within another minute so does leaf-client. A node that cannot read the store issues them still: restart it"
    } else {
        // The database of a Java Leaf.
        "there is no table leaf_tag_settings that could tell the nodes: restart all that may have ids of this tag from \
         before, or make the table with `leaf-server schema --apply` and repeat this"
    };
    let mut done = shown(tag, dry, output);
    if !dry.dry_run {
        writeln!(done.text, "{was}{then}")?;
    }
    Ok(done)
}

/// One tag, as a row or as JSON.
async fn show(stores: &Stores, tag: &str, output: Output) -> Result<Done> {
    let store = stores.shards.of(tag);
    let record = store.tags(DryRun::default()).read(&name(tag)?).await.map_err(refused)?;
    Ok(shown(TagShown::of(&record, &store.url), DryRun::default(), output))
}

/// Formats the record of a tag, as the result of any command on one tag.
pub(crate) fn shown(tag: TagShown, dry: DryRun, output: Output) -> Done {
    dry.tell();
    match output {
        Output::Json | Output::Csv => output::one(&tag, String::new(), output),
        Output::Table => output::rows(&[tag], output),
    }
    .into()
}

/// Formats the result of a deletion, with the command that makes the tag again without repeating an
/// id. Only the deletion shows how far ids were granted, so the command is not known earlier. `way`
/// is the option that selects the same server, or empty.
pub(crate) fn gone(gone: DeletedShown, dry: DryRun, way: &str, output: Output) -> Done {
    let DeletedShown { deleted: tag, next_first, ids_below } = gone;
    let (shell, url, name) = (hints::quoted(&tag.tag), &tag.store, &tag.tag);
    let text = match (next_first, ids_below) {
        (Some(_), Some(below)) if tag.sealed => format!(
            "deleted tag {name:?} of {url}. It was sealed, after it had granted ids below {below}: if it was moved to another \
             store, do not make it again here"
        ),
        (Some(_), _) if tag.reopened.is_some() => format!(
            "deleted tag {name:?} of {url}, which was reopened: no tag of this name can be made again"
        ),
        (Some(next), below) => {
            let other = match (tag.shape.as_deref(), below) {
                (Some("plain") | None, _) | (_, None) => String::new(),
                (Some(_), Some(below)) => {
                    format!("\nin any other shape let its ids be {below} or more")
                }
            };
            let kind = options(&tag);
            format!(
                "deleted tag {name:?} of {url}; made again, let it start no lower: \
                 leaf tag create {shell} --first {next} {kind}{way}{other}"
            )
        }
        (None, _) => format!(
            "deleted tag {name:?} of {url}, which was sealed: how far it granted ids is known to the store that it \
             moved to, or was told to whoever tried to delete it before"
        ),
    };
    dry.tell();
    let text = if dry.dry_run { text.replacen("deleted", "would delete", 1) } else { text };
    let number = |number: Option<i64>| number.map(|number| number.to_string());
    let (next_first, ids_below) = (number(next_first), number(ids_below));
    output::one(&Gone { tag, next_first, ids_below }, text, output).into()
}

/// Deletes a family, so that no more members are made, and then its members, a page at a time. If
/// it is interrupted, a repeated command continues.
async fn delete_family(stores: &Stores, family: &str, yes: bool, dry: DryRun) -> Result<Done> {
    let (store, name, shell) =
        (stores.shards.of(family), family_name(family)?, hints::quoted(family));
    let tags = store.tags(dry);
    let how = format!(
        ". --family deletes its members too, each for good: say --yes, or make no new ones with `leaf tag set {shell} \
         --enabled false`, which also stops all members"
    );
    let delete = async |yes: bool| match tags.delete(&name, (yes || dry.dry_run).into()).await {
        // It was deleted before its members.
        Err(TagAdminError::Store(error))
            if *error.kind() == StoreErrorKind::UnknownTag && (yes || dry.dry_run) =>
        {
            Ok(())
        }
        done => done.map(drop).map_err(refused),
    };
    ask::confirmed(yes, "Delete it and its members?", &how, delete).await?;
    let (mut deleted, mut place) = (0, None);
    loop {
        let (members, next) = tags.delete_members(&name, place.as_ref()).await.map_err(refused)?;
        deleted += members;
        let Some(next) = next else { break };
        if members > 0 && !dry.dry_run {
            crate::complain(&format_args!("{deleted} members are deleted"));
        }
        place = Some(next);
    }
    dry.tell();
    let done = if dry.dry_run { "would delete" } else { "deleted" };
    Ok(format!(
        "{done} family {family:?} of {} and {deleted} members; a family of this name does not make them again\n",
        store.url
    )
    .into())
}

/// A tag that was deleted.
#[derive(Debug, Serialize)]
struct Gone {
    #[serde(flatten)]
    tag: TagShown,
    /// The least first number if the tag is made again in the same shape. A string, see
    /// [`Output::Json`].
    next_first: Option<String>,
    /// The least id that the tag may issue if it is made again in any other shape.
    ids_below: Option<String>,
}

/// The options of `leaf tag create` that make a tag like this one.
///
/// A tag with periods or in strict order has no step.
fn options(tag: &TagShown) -> String {
    let family = tag.family.map(|family| {
        format!(
            "--family --max-members {} --members-per-second {}",
            family.max_members, family.members_per_second
        )
    });
    let mut options = match tag.order {
        _ if tag.reset.is_some() => Vec::new(),
        Some(Order::Strict) => vec!["--order strict".into()],
        _ => vec![format!("--step {}", tag.step.map_or("STEP".into(), |step| step.to_string()))],
    };
    let given = [
        ("--shape", tag.shape.clone().filter(|shape| shape != "plain")),
        ("--slice", tag.slice.clone()),
        ("--slice-bits", tag.slice_bits.filter(|bits| *bits != 63).map(|bits| bits.to_string())),
        ("--reset", tag.reset.map(|reset| reset.name().into())),
        ("--time-zone", tag.time_zone.as_ref().map(ToString::to_string)),
        ("--text", tag.text.as_deref().map(hints::quoted)),
    ];
    options
        .extend(given.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?))));
    options.extend(family);
    options.join(" ")
}

/// `leaf decode --tag`: what an id of a tag is made of.
///
/// The record is read because the meaning of the ids is in it: the shape, the key number and the
/// template. Needs the file of keys only for scrambled ids.
pub(crate) async fn decode(stores: &Stores, tag: &str, id: &str, output: Output) -> Result<Done> {
    let tags = stores.shards.of(tag).tags(DryRun::default());
    let record = tags.read(&name(tag)?).await.map_err(refused)?;
    let scrambled = record.meaning.as_ref().is_ok_and(|meaning| meaning.key().is_some());
    let keys = if scrambled { stores.keys()? } else { KeyRing::default() };
    Ok(decoded(&leaf_node::records::decode(&record, &keys, id)?, output))
}

/// An id of a tag, taken apart.
pub(crate) fn decoded(told: &TagIdShown, output: Output) -> Done {
    let mut lines = vec![("id", told.id.to_string()), ("number", told.number.to_string())];
    lines.extend(told.key.map(|key| ("key", key.to_string())));
    lines.extend(told.period.clone().map(|period| ("period", period)));
    let granted = match told.granted {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not known: the tag is sealed, or it is of an earlier key or period",
    };
    lines.push(("granted", granted.into()));
    let text: Vec<_> = lines.iter().map(|(name, value)| format!("{name:<11}{value}")).collect();
    output::one(told, text.join("\n"), output).into()
}

/// Converts an error: a request that makes no sense becomes a [`ConfigError`], since the command
/// line is wrong.
pub(crate) fn refused(error: TagAdminError) -> anyhow::Error {
    match error {
        TagAdminError::Refused(_) | TagAdminError::Conflict(_) | TagAdminError::NoKey(_) => {
            ConfigError::new(hints::with(&error, hints::of_admin(&error))).into()
        }
        error => error.into(),
    }
}

/// A tag's name from the command line.
pub(crate) fn name(tag: &str) -> Result<TagName> {
    TagName::parse(tag).map_err(|error| ConfigError::new(format!("TAG: {error}")).into())
}

/// A family's name from the command line.
pub(crate) fn family_name(family: &str) -> Result<TagName> {
    let name = name(family)?;
    match Family::prefix(&name) {
        Some(_) => Ok(name),
        None => Err(ConfigError::new("a family's name ends in /*, like 'invoice/*'").into()),
    }
}

/// A step or a limit from the command line.
pub(crate) fn size(step: i64) -> Result<Step> {
    Step::new(step)
        .map_err(|_| ConfigError::new(format!("a step or count is 1 to {}", Step::MAX)).into())
}
