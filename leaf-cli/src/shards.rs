//! `leaf shards`: the place among the configured stores that each store has on record.
//!
//! Invariant: `--apply` writes nothing while a tag is open in a store to which the configuration
//! does not send it, since servers would look for the tag in another store.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use comfy_table::CellAlignment::{self, Left};
use leaf_node::config::ConfigError;
use leaf_node::hints;
use leaf_node::{ShardMemory, ShardMemoryError};
use leaf_registry::Note;
use leaf_segment::StoreError;
use leaf_segment::store::MOST_RECORDS;
use serde::Serialize;

use crate::Done;
use crate::cli::Output;
use crate::output::{self, Row};
use crate::stores::{Store, Stores};

/// A store and its place.
#[derive(Debug, Serialize)]
struct Shown {
    store: String,
    /// The place of the store by the configuration.
    configured: String,
    /// The places that the store has on record, the newest first, or why they cannot be read;
    /// `None` if the store has no place on record.
    remembered: Option<String>,
}

impl Row for Shown {
    const COLUMNS: &'static [(&'static str, CellAlignment)] =
        &[("store", Left), ("configured", Left), ("remembered", Left)];

    fn cells(&self) -> Vec<String> {
        let remembered = self.remembered.clone().unwrap_or_else(|| "-".into());
        vec![self.store.clone(), self.configured.clone(), remembered]
    }
}

/// Warnings about the place that a configured store remembers.
pub(crate) async fn doubts(store: &Store) -> Result<Vec<String>, StoreError> {
    let Some(place) = &store.place else { return Ok(Vec::new()) };
    let memory = leaf_node::check_place(&*store.open.admin, place).await?;
    Ok(match memory {
        None if !place.is_only() => vec![
            "the store does not remember its place among the shards, so that a wrong configuration is not noticed: \
             `leaf shards --apply`"
                .into(),
        ],
        Some(memory) if memory.is_changing() => vec![format!(
            "servers of two configurations may use the store ({memory}): once all have the newer one, repeat `leaf shards --apply`"
        )],
        _ => Vec::new(),
    })
}

/// Shows the places; with `apply`, writes those of the configuration.
pub(crate) async fn run(stores: &Stores, apply: bool, output: Output) -> Result<Done> {
    let mut before = Vec::new();
    for store in stores.shards.iter() {
        if store.place.is_none() {
            return Err(ConfigError::new(
                "`leaf shards` is about the stores of the configuration: leave --store out",
            )
            .into());
        }
        before.push(store.open.admin.note(Note::Shards).await?);
    }
    let mut told = String::new();
    if apply {
        refuse_strays(stores).await?;
        let end = ends_the_change(stores, &before)?;
        for (store, before) in stores.shards.iter().zip(&mut before) {
            writeln!(told, "{}: {}", store.url, remember(store, before, end).await?)?;
        }
    }
    let shown = |(store, remembered): (&Store, &Option<String>)| {
        let memory = remembered.as_deref().map(ShardMemory::decode);
        Shown {
            store: store.url.to_string(),
            configured: store.place.as_ref().map(ToString::to_string).unwrap_or_default(),
            remembered: memory.map(|memory| match memory {
                Ok(memory) => memory.to_string(),
                Err(error) => error.to_string(),
            }),
        }
    };
    let rows: Vec<_> = stores.shards.iter().zip(&before).map(shown).collect();
    let told = if output == Output::Table { told } else { String::new() };
    Ok((output::rows(&rows, output) + &told).into())
}

/// Reads what a store remembers. `None` if it remembers nothing, or if the text is damaged: then it
/// may be overwritten.
fn known(text: Option<&str>) -> Result<Option<ShardMemory>, ShardMemoryError> {
    match text.map(ShardMemory::decode).transpose() {
        Err(ShardMemoryError::Damaged(_)) => Ok(None),
        known => known,
    }
}

/// Whether every store remembers its configured place as the newest one: then the former places can
/// be removed. `false` after a run that reached only some of the stores, so that the next run
/// completes it first.
fn ends_the_change(stores: &Stores, before: &[Option<String>]) -> Result<bool> {
    for (store, before) in stores.shards.iter().zip(before) {
        let known = known(before.as_deref())?;
        if known.map(|known| known.newest().cloned()) != Some(store.place.clone()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes a store's place: beside the former one or, at the `end` of a change, alone. Returns a
/// text that says what this means.
async fn remember(store: &Store, before: &mut Option<String>, end: bool) -> Result<&'static str> {
    let Some(place) = store.place.clone() else { bail!("{} has no place", store.url) };
    let after = match known(before.as_deref())? {
        Some(known) if !end => known.with(place),
        _ => ShardMemory::new(place),
    };
    let told = match after.is_changing() {
        true => {
            "servers with this and with the former configuration may use it: once all have this one, repeat the command"
        }
        false => "only servers with this configuration may use it",
    };
    let after = after.encode();
    if before.as_ref() != Some(&after) {
        if !store.open.admin.write_note(Note::Shards, before.as_deref(), &after).await? {
            bail!("{}: somebody else has changed its place meanwhile: try again", store.url);
        }
        *before = Some(after);
    }
    Ok(told)
}

/// Fails if a tag is open in a store to which the configuration does not send it.
async fn refuse_strays(stores: &Stores) -> Result<()> {
    let (mut count, mut some) = (0_usize, Vec::new());
    for store in stores.shards.iter() {
        let mut place = None;
        loop {
            let page = store.open.store.page(place.as_ref(), "", MOST_RECORDS).await?;
            for record in page.records {
                if !stores.shards.is_of(record.tag.as_str(), store) && leaf_node::is_open(&record) {
                    count += 1;
                    if count <= 10 {
                        some.push(format!(
                            "{} in {}",
                            hints::quoted(record.tag.as_str()),
                            store.url
                        ));
                    }
                }
            }
            place = page.next;
            if place.is_none() {
                break;
            }
        }
    }
    if count == 0 {
        return Ok(());
    }
    bail!(
        "{count} tags are open in a store to which the configuration does not send them ({}): move them first with \
         `leaf tag import --from`",
        some.join(", ")
    )
}
