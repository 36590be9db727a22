//! `leaf import`: makes tags that continue above the ids that another system has issued.
//!
//! Invariant: the first id of a tag is above every id that the source names, and nothing is made
//! without `--apply`. A tag that exists is left alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use comfy_table::CellAlignment::{self, Left, Right};
use leaf_core::Tag as TagName;
use leaf_node::config::ConfigError;
use leaf_segment::StoreErrorKind;
use leaf_segment::admin::{TagAdminError, TagSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::cli::{DryRun, HowImported, Import, Output};
use crate::output::{self, Row};
use crate::stores::Stores;
use crate::{Done, bench, tag};

/// The largest file that is read, in bytes.
const LARGEST: u64 = 64 * 1024 * 1024;
/// How many ids are skipped by default if rows may still be added until the tag is made.
const GAP: u32 = 1000;
/// Fields of `leaf tag list` and of a Java Leaf's table that say nothing about a new tag.
const IGNORED: [&str; 5] = ["store", "key", "update_time", "member_of", "sealed"];
/// Fields that are refused here, because `leaf tag set` or `leaf tag create` sets them.
const NOT_HERE: [&str; 5] = ["enabled", "min_step", "max_step", "max_take", "family"];

/// The result for one tag; without `--apply`, what it would be.
#[derive(Debug, Serialize)]
struct Imported {
    tag: String,
    /// A string, see [`Output::Json`].
    first: Option<String>,
    step: Option<u32>,
    store: Option<String>,
    /// `new`, `made`, `exists`, or why it cannot be made.
    state: String,
}

impl Row for Imported {
    const COLUMNS: &'static [(&'static str, CellAlignment)] =
        &[("tag", Left), ("first id", Right), ("step", Right), ("store", Left), ("state", Left)];

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        vec![
            self.tag.clone(),
            or_dash(self.first.clone()),
            or_dash(self.step.map(|step| step.to_string())),
            or_dash(self.store.clone()),
            self.state.clone(),
        ]
    }
}

/// A tag to be made, or why it cannot be.
struct Wanted {
    tag: String,
    spec: Result<TagSpec>,
}

/// Reads the source, and makes its tags if `--apply` is given.
///
/// # Errors
/// [`ConfigError`]; the source cannot be read. An error of one tag is in the row of that tag.
pub(crate) async fn run(stores: &Stores, from: Import, output: Output) -> Result<Done> {
    let (wanted, apply) = match from {
        Import::File { file, how } => (of_file(&file, &how)?, how.apply),
        Import::Column { from, from_file, column, tag, how } => {
            let greatest = greatest(stores, from, from_file, &column).await?;
            (vec![above(tag, greatest, &how)], how.apply)
        }
        Import::Redis { url, key, tag, token_file, how } => {
            let number = bench::redis_number(&url, &key, token_file.as_deref()).await?;
            let number = i64::try_from(number).context("the key holds more than 2^63")?;
            (vec![above(tag, number, &how)], how.apply)
        }
    };
    let mut imported = Vec::new();
    let mut failed = 0_usize;
    for (at, wanted) in wanted.into_iter().enumerate() {
        if at > 0 && at % 1000 == 0 {
            crate::complain(&format_args!("{at} tags"));
        }
        let tag = wanted.tag.clone();
        imported.push(one(stores, wanted, apply).await.unwrap_or_else(|error| {
            failed += 1;
            let state = format!("{error:#}");
            Imported { tag, first: None, step: None, store: None, state }
        }));
    }
    let new = imported.iter().filter(|tag| tag.state == "new").count();
    let trouble = match failed {
        0 => None,
        _ => Some(anyhow!("{failed} of {} tags cannot be made", imported.len())),
    };
    if new > 0 {
        crate::complain(&format_args!("{new} new: --apply makes them"));
    }
    Ok(Done::but(output::rows(&imported, output), trouble))
}

/// Makes one tag, or finds out whether it could be made.
async fn one(stores: &Stores, wanted: Wanted, apply: bool) -> Result<Imported> {
    let spec = wanted.spec?;
    let name = TagName::parse(&wanted.tag).map_err(|error| ConfigError::new(error.to_string()))?;
    let shown = |first: Option<i64>, step: Option<u32>, store: String, state: &str| Imported {
        tag: wanted.tag.clone(),
        first: first.map(|first| first.to_string()),
        step,
        store: Some(store),
        state: state.into(),
    };
    let store = stores.shards.of(&wanted.tag);
    match store.tags(DryRun::default()).read(&name).await {
        Ok(record) => {
            let next = Some(record.max_id).filter(|_| !record.is_sealed());
            let first = spec.first.unwrap_or(1);
            // It may have handed out ids of its own since it was imported.
            let behind = next.is_some_and(|next| next < first);
            let url = store.url.to_string();
            if behind {
                return Err(anyhow!(
                    "exists, and its next number is below {first}: leaf tag advance {} --at-least {first}",
                    wanted.tag
                ));
            }
            return Ok(shown(next, record.step.ok().map(leaf_core::Step::get), url, "exists"));
        }
        Err(TagAdminError::Store(error)) if *error.kind() == StoreErrorKind::UnknownTag => {}
        Err(error) => return Err(tag::refused(error)),
    }
    let step = spec.step.map(leaf_core::Step::get);
    let (store, record) = tag::plan(stores, &wanted.tag, spec).await?;
    let first = Some(record.max_id);
    if apply {
        store.tags(DryRun::default()).create(&record).await.map_err(tag::refused)?;
    }
    Ok(shown(first, step, store.url.to_string(), if apply { "made" } else { "new" }))
}

/// A tag that begins above a number.
fn above(tag: String, number: i64, how: &HowImported) -> Wanted {
    let spec = || {
        let first = number.max(0).checked_add(1 + i64::from(how.gap.unwrap_or(GAP)));
        let first = Some(first.context("there is no id above that")?);
        Ok(TagSpec { first, step: Some(tag::size(how.step.into())?), ..TagSpec::default() })
    };
    Wanted { tag, spec: spec() }
}

/// The greatest number of a column; 0 where its table is empty.
async fn greatest(
    stores: &Stores,
    from: Option<String>,
    from_file: Option<PathBuf>,
    column: &str,
) -> Result<i64> {
    let (table, column) = column
        .rsplit_once('.')
        .ok_or_else(|| ConfigError::new("give TABLE.COLUMN, like orders.id"))?;
    let source = stores.source(from, from_file).await?;
    if source.url.to_string().starts_with("etcd") {
        return Err(
            ConfigError::new("give the URL of an SQL database (--from or --from-file)").into()
        );
    }
    let greatest = source.open.admin.greatest(table, column).await;
    source.open.store.close().await;
    Ok(greatest?.unwrap_or(0))
}

/// The tags of a file.
fn of_file(file: &Path, how: &HowImported) -> Result<Vec<Wanted>> {
    let refuse =
        |why: &dyn std::fmt::Display| ConfigError::new(format!("{}: {why}", file.display()));
    let size = std::fs::metadata(file).map_err(|error| refuse(&error))?.len();
    if size > LARGEST {
        return Err(refuse(&format_args!("more than {LARGEST} bytes: split it")).into());
    }
    let text = std::fs::read_to_string(file).map_err(|error| refuse(&error))?;
    let rows: Vec<Map<String, Value>> = match file.extension().and_then(|it| it.to_str()) {
        Some("json") => serde_json::from_str(&text).map_err(|error| refuse(&error))?,
        Some("csv") => read_csv(&text).map_err(|error| refuse(&error))?,
        _ => return Err(refuse(&"its name must end in .csv or .json").into()),
    };
    if rows.is_empty() {
        return Err(refuse(&"no tags").into());
    }
    Ok(rows.into_iter().map(|row| wanted(row, how)).collect())
}

fn read_csv(text: &str) -> Result<Vec<Map<String, Value>>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names = reader.headers()?.clone();
    let mut each = BTreeSet::new();
    if let Some(twice) = names.iter().find(|name| !each.insert(name.trim())) {
        return Err(anyhow!("the column {twice} is there twice"));
    }
    let row = |record: csv::StringRecord| {
        let cells = names.iter().map(|name| name.trim().to_owned()).zip(record.iter());
        let given = cells.filter(|(_, cell)| !cell.is_empty());
        given.map(|(name, cell)| (name, Value::String(cell.to_owned()))).collect()
    };
    Ok(reader.records().map(|record| record.map(row)).collect::<Result<_, _>>()?)
}

/// Reads a tag from a row of a file.
fn wanted(mut row: Map<String, Value>, how: &HowImported) -> Wanted {
    row.retain(|_, value| !value.is_null());
    let name = row.remove("tag").or_else(|| row.remove("biz_tag"));
    let tag = name.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    Wanted { tag, spec: spec(row, how) }
}

fn spec(mut row: Map<String, Value>, how: &HowImported) -> Result<TagSpec> {
    if row.get("sealed").is_some_and(|it| it == true || it == "true") {
        return Err(anyhow!(
            "sealed: it was moved, or is being moved, from where this file was written"
        ));
    }
    if row.contains_key("reopened") {
        return Err(anyhow!(
            "reopened: what a wrong clock issued of its later periods could come again; it goes on where it is, or make a \
             tag of another name"
        ));
    }
    for name in IGNORED {
        row.remove(name);
    }
    // What is not said here holds for a new tag.
    row.retain(|name, value| name != "enabled" || !(*value == true || *value == "true"));
    if let Some(name) = NOT_HERE.into_iter().find(|name| row.contains_key(*name)) {
        return Err(anyhow!("{name} is not imported: leave it out, and say it by `leaf tag set`"));
    }
    let first: Option<i64> = match field(&mut row, "first")? {
        Some(first) => Some(first),
        None => field(&mut row, "max_id")?,
    };
    let first = first.context("max_id or first is missing: where the tag begins")?;
    let first = first.checked_add(i64::from(how.gap.unwrap_or(0)));
    let order = field(&mut row, "order")?;
    let step: Option<i64> = field(&mut row, "step")?;
    let is_strict = order == Some(leaf_shape::Order::Strict);
    let step = step.or_else(|| (!is_strict).then_some(how.step.into()));
    let spec = TagSpec {
        step: step.map(tag::size).transpose()?,
        order,
        shape: field::<String>(&mut row, "shape")?
            .map_or(Ok(Default::default()), |shape| shape.parse())
            .map_err(|error| anyhow!("shape: {error}"))?,
        slice: field(&mut row, "slice")?,
        slice_bits: field(&mut row, "slice_bits")?,
        reset: field(&mut row, "reset")?,
        time_zone: field(&mut row, "time_zone")?,
        text: field(&mut row, "text")?,
        first: Some(first.context("there is no id above that")?),
        description: field(&mut row, "description")?,
        ..TagSpec::default()
    };
    match row.keys().next() {
        Some(name) => Err(anyhow!("{name}: no such field")),
        None => Ok(spec),
    }
}

/// A field of a row. Numbers may be texts, as in CSV.
fn field<T: DeserializeOwned>(row: &mut Map<String, Value>, name: &str) -> Result<Option<T>> {
    let Some(value) = row.remove(name) else { return Ok(None) };
    let number = value.as_str().and_then(|text| text.trim().parse::<i64>().ok()).map(Value::from);
    let parsed = serde_json::from_value(value)
        .or_else(|error| number.map_or(Err(error), serde_json::from_value));
    Ok(Some(parsed.map_err(|_| anyhow!("{name}: this is no value of it"))?))
}
