//! `leaf tag`: the records of the segment stores.

use anyhow::{Result, anyhow, bail};
use comfy_table::CellAlignment::{self, Left, Right};
use leaf_core::{Step, Tag as TagName};
use leaf_segment::{NewTag, SegmentStore, StoreError, StoreErrorKind, TagRecord};
use serde::Serialize;

use crate::Done;
use crate::cli::{Output, Tag};
use crate::config::BadConfig;
use crate::output::{self, Row, quoted};
use crate::stores::{Store, Stores};

/// A raise by more than this is asked about: nothing brings the ids back.
const FAR: i64 = 1_000_000_000_000;
/// How many ids servers may have been granted while their tag was being deleted.
const AFTER_DELETE: i64 = 10_000_000;

/// A tag as it is printed.
#[derive(Debug, Serialize)]
struct Shown {
    tag: String,
    /// The next id that the store will grant; a string, see [`Output::Json`].
    max_id: String,
    /// `null` when the row holds a number that is none.
    step: Option<u32>,
    enabled: bool,
    min_step: Option<u32>,
    max_step: Option<u32>,
    max_take: Option<u32>,
    description: Option<String>,
    store: String,
}

impl Shown {
    fn of(record: &TagRecord, store: &Store) -> Self {
        let settings = &record.settings;
        Self {
            tag: record.tag.as_str().into(),
            max_id: record.max_id.to_string(),
            step: record.step.ok().map(Step::get),
            enabled: settings.enabled,
            min_step: settings.min_step.map(Step::get),
            max_step: settings.max_step.map(Step::get),
            max_take: settings.max_take.map(Step::get),
            description: record.description.clone(),
            store: store.url.to_string(),
        }
    }
}

impl Row for Shown {
    const COLUMNS: &'static [(&'static str, CellAlignment)] = &[
        ("tag", Left),
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
            self.max_id.clone(),
            self.step.map_or("bad".into(), |step| step.to_string()),
            if self.enabled { "yes" } else { "no" }.into(),
            number(self.min_step),
            number(self.max_step),
            number(self.max_take),
            self.description.clone().unwrap_or_default(),
        ]
    }
}

/// Runs a command and returns what is to be printed.
pub(crate) async fn run(stores: &Stores, command: Tag, output: Output) -> Result<Done> {
    match command {
        Tag::List => Ok(list(stores, output).await),
        Tag::Show { tag } => show(stores, &tag, output).await,
        Tag::Create { tag, step, first, description } => {
            check_id("--first", first)?;
            if description.as_ref().is_some_and(|text| text.chars().count() > 256) {
                return Err(BadConfig::new("--description has more than 256 characters").into());
            }
            let new =
                NewTag { max_id: first, description, ..NewTag::new(name(&tag)?, size(step)?) };
            stores.of(&tag).open.store.create(&new).await?;
            show(stores, &tag, output).await
        }
        Tag::SetStep { tag, step } => {
            stores.of(&tag).open.store.set_step(&name(&tag)?, size(step)?).await?;
            show(stores, &tag, output).await
        }
        Tag::Set { tag, enabled, min_step, max_step, max_take } => {
            let (store, parsed) = (stores.of(&tag), name(&tag)?);
            let mut settings = read(&*store.open.store, &parsed).await?.settings;
            if let Some(enabled) = enabled {
                settings.enabled = enabled;
            }
            let changes = [
                (&mut settings.min_step, min_step),
                (&mut settings.max_step, max_step),
                (&mut settings.max_take, max_take),
            ];
            for (setting, change) in changes {
                match change.as_deref() {
                    None => {}
                    Some("none") => *setting = None,
                    Some(number) => *setting = Some(size(number.parse().unwrap_or(0))?),
                }
            }
            if settings.min_step.zip(settings.max_step).is_some_and(|(min, max)| min > max) {
                return Err(BadConfig::new("min_step would be above max_step").into());
            }
            store.open.store.set_settings(&parsed, &settings).await?;
            show(stores, &tag, output).await
        }
        Tag::Advance { tag, at_least, yes } => advance(stores, &tag, at_least, yes, output).await,
        Tag::Delete { tag, yes } => delete(stores, &tag, yes, output).await,
        Tag::Import { from, gap, tags } => import(stores, &from, gap, &tags, output).await,
    }
}

/// Tags of stores that cannot be read are missing; the others are there.
async fn list(stores: &Stores, output: Output) -> Done {
    let mut all = Vec::new();
    let mut trouble = None;
    for store in stores.iter() {
        match store.open.store.tags().await {
            Ok(records) => {
                let own = records.iter().filter(|record| stores.is_of(record.tag.as_str(), store));
                all.extend(own.map(|record| Shown::of(record, store)));
            }
            Err(error) => trouble = Some(anyhow!(error).context(store.url.to_string())),
        }
    }
    all.sort_by(|a, b| a.tag.cmp(&b.tag));
    Done { text: output::rows(&all, output), trouble }
}

async fn advance(
    stores: &Stores,
    tag: &str,
    at_least: i64,
    yes: bool,
    output: Output,
) -> Result<Done> {
    check_id("--at-least", at_least)?;
    let (store, parsed) = (stores.of(tag), name(tag)?);
    let now = read(&*store.open.store, &parsed).await?.max_id;
    if at_least <= now {
        let mut shown = show(stores, tag, output).await?;
        shown.trouble = Some(anyhow!("unchanged: max_id is {now} already"));
        return Ok(shown);
    }
    if at_least.saturating_sub(now) > FAR && !yes {
        bail!(
            "that skips {} ids, which are lost for ever: look at the number again, then say --yes",
            at_least.saturating_sub(now)
        );
    }
    store.open.store.advance(&parsed, at_least).await?;
    show(stores, tag, output).await
}

async fn show(stores: &Stores, tag: &str, output: Output) -> Result<Done> {
    let store = stores.of(tag);
    let record = read(&*store.open.store, &name(tag)?).await?;
    let shown = Shown::of(&record, store);
    Ok(match output {
        Output::Json => output::one(&shown, String::new(), output),
        Output::Table => output::rows(&[shown], output),
    }
    .into())
}

async fn delete(stores: &Stores, tag: &str, yes: bool, output: Output) -> Result<Done> {
    let store = stores.of(tag);
    let parsed = name(tag)?;
    let record = read(&*store.open.store, &parsed).await?;
    let shell = quoted(tag);
    if !yes {
        bail!(
            "tag {tag:?} has handed out ids below {}, which repeat if it is made again lower: say \
             --yes to delete it, or `leaf tag set {shell} --enabled false`",
            record.max_id
        );
    }
    store.open.store.delete(&parsed).await?;
    // Servers may have been granted more between the two statements.
    let first = record.max_id.saturating_add(AFTER_DELETE);
    let text = format!(
        "deleted tag {tag:?} of {}; made again, let it start higher: \
         leaf tag create {shell} --first {first} --step STEP",
        store.url
    );
    Ok(output::one(&Shown::of(&record, store), text, output).into())
}

/// A tag that was imported.
#[derive(Debug, Serialize)]
struct Imported {
    tag: String,
    /// A string, see [`Output::Json`].
    first: String,
    store: String,
}

impl Row for Imported {
    const COLUMNS: &'static [(&'static str, CellAlignment)] =
        &[("tag", Left), ("first id", Right), ("store", Left)];

    fn cells(&self) -> Vec<String> {
        vec![self.tag.clone(), self.first.clone(), self.store.clone()]
    }
}

async fn import(
    stores: &Stores,
    from: &str,
    gap: u32,
    tags: &[String],
    output: Output,
) -> Result<Done> {
    let source = stores.other("--from", from).await?;
    if stores.iter().any(|store| store.url == source.url) {
        return Err(BadConfig::new("--from is a store that the tags would go to").into());
    }
    let mut records = source.open.store.tags().await?;
    if let Some(missing) =
        tags.iter().find(|tag| !records.iter().any(|record| record.tag.as_str() == tag.as_str()))
    {
        bail!("{} has no tag {missing:?}", source.url);
    }
    records.retain(|record| tags.is_empty() || tags.iter().any(|tag| tag == record.tag.as_str()));
    records.sort_by(|a, b| a.tag.cmp(&b.tag));
    let mut imported = Vec::new();
    let mut failed = Vec::new();
    for (done, record) in records.iter().enumerate() {
        let store = stores.of(record.tag.as_str());
        match leaf_registry::import(record, &*store.open.store, gap.into()).await {
            Ok(first) => imported.push(Imported {
                tag: record.tag.as_str().into(),
                first: first.to_string(),
                store: store.url.to_string(),
            }),
            Err(error) => failed.push(error.to_string()),
        }
        if done > 0 && done % 1000 == 0 {
            crate::complain(&format_args!("{done} of {} tags", records.len()));
        }
    }
    source.open.store.close().await;
    let trouble = failed.first().map(|first| anyhow!("{} failed, at first {first}", failed.len()));
    Ok(Done { text: output::rows(&imported, output), trouble })
}

/// An id that somebody wrote. The greatest would use the tag up.
fn check_id(flag: &str, id: i64) -> Result<()> {
    if (0..i64::MAX).contains(&id) {
        return Ok(());
    }
    Err(BadConfig::new(format!("{flag}: an id is 0 to {}", i64::MAX - 1)).into())
}

async fn read(store: &dyn SegmentStore, tag: &TagName) -> Result<TagRecord, StoreError> {
    let operation = || format!("read tag {:?}", tag.as_str());
    let record = store.tag(tag).await?;
    record.ok_or_else(|| StoreError::new(StoreErrorKind::UnknownTag, operation()))
}

fn name(tag: &str) -> Result<TagName> {
    TagName::parse(tag).map_err(|error| BadConfig::new(format!("TAG: {error}")).into())
}

fn size(step: i64) -> Result<Step> {
    Step::new(step)
        .map_err(|_| BadConfig::new(format!("a step or count is 1 to {}", Step::MAX)).into())
}
