//! `leaf tag import`: tags that move here from another store. The rules are those of leaf-registry.

use anyhow::{Result, anyhow, bail};
use comfy_table::CellAlignment::{self, Left, Right};
use leaf_core::Tag as TagName;
use leaf_node::config::ConfigError;
use leaf_segment::store::MOST_RECORDS;
use leaf_segment::{MemoryStore, StoreError, TagStore};
use serde::Serialize;
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use super::name;
use crate::Done;
use crate::cli::{DryRun, Output};
use crate::output::{self, Row};
use crate::stores::{Store, Stores};

/// A tag that was imported.
#[derive(Debug, Serialize)]
struct Imported {
    tag: String,
    /// A string, see [`Output::Json`].
    first: String,
    store: String,
    /// The store that grants no ids of the tag any more.
    sealed_in: String,
}

impl Row for Imported {
    const COLUMNS: &'static [(&'static str, CellAlignment)] =
        &[("tag", Left), ("first id", Right), ("store", Left), ("sealed in", Left)];

    fn cells(&self) -> Vec<String> {
        vec![self.tag.clone(), self.first.clone(), self.store.clone(), self.sealed_in.clone()]
    }
}

/// Moves tags from another store into the configured ones, one by one. A tag is first sealed in the
/// source, so that nobody allocates there any more; then its copy starts above all granted ids.
/// What failed can be tried again: a tag that has already moved counts as done.
///
/// A progress line appears on standard error every 1,000 tags.
pub(super) async fn run(
    stores: &Stores,
    source: Store,
    gap: u32,
    tags: &[String],
    dry: DryRun,
    output: Output,
) -> Result<Done> {
    let named = tags.iter().map(|tag| name(tag)).collect::<Result<Vec<_>>>()?;
    let mut names = match named.is_empty() {
        true => all_names(&source).await?,
        false => named,
    };
    for names in names.chunks(MOST_RECORDS).filter(|_| !tags.is_empty()) {
        let found = source.open.store.records(names).await?;
        let is_missing = |name: &&TagName| !found.iter().any(|record| record.tag == **name);
        if let Some(missing) = names.iter().find(is_missing) {
            bail!("{} has no tag {:?}", source.url, missing.as_str());
        }
    }
    // The source may be one of the configured stores, after a change of `segment.shard`: tags that
    // belong to it stay there.
    let stays = |name: &TagName| stores.shards.of(name.as_str()).url == source.url;
    if names.iter().all(stays) && !names.is_empty() {
        return Err(ConfigError::new("--from is a store that the tags would go to").into());
    }
    names.retain(|name| !stays(name));
    names.sort();
    let mut imported = Vec::new();
    let mut failed = 0_usize;
    for (done, tag) in names.iter().enumerate() {
        let store = stores.shards.of(tag.as_str());
        let (from, to) = (&*source.open.store, &*store.open.store);
        let first = match dry.dry_run {
            true => would_be_first(tag, from, to, gap).await,
            false => leaf_registry::import(tag, from, to, gap).await,
        };
        match first {
            Ok(first) => imported.push(Imported {
                tag: tag.as_str().into(),
                first: first.to_string(),
                store: store.url.to_string(),
                sealed_in: source.url.to_string(),
            }),
            // Each at once: its text may hold a number that no record has any more.
            Err(error) => {
                crate::complain(&error);
                failed += 1;
            }
        }
        if done > 0 && done % 1000 == 0 {
            crate::complain(&format_args!("{done} of {} tags", names.len()));
        }
    }
    source.open.store.close().await;
    dry.tell();
    let trouble = (failed > 0).then(|| anyhow!("{failed} of {} tags failed", names.len()));
    Ok(Done::but(output::rows(&imported, output), trouble))
}

/// The first id that a tag would have in the new store, if the old store grants no more ids until
/// then. Moves copies of both records in memory, and logs nothing.
async fn would_be_first(
    tag: &TagName,
    from: &dyn TagStore,
    to: &dyn TagStore,
    gap: u32,
) -> Result<i64, StoreError> {
    let from = MemoryStore::copy_of(from, tag).await?;
    let to = MemoryStore::copy_of(to, tag).await?;
    let moved = leaf_registry::import(tag, &from, &to, gap);
    moved.with_subscriber(NoSubscriber::default()).await
}

/// The names of all tags of a store.
async fn all_names(source: &Store) -> Result<Vec<TagName>> {
    let (mut names, mut place) = (Vec::new(), None);
    loop {
        let page = source.open.store.page(place.as_ref(), "", MOST_RECORDS).await?;
        names.extend(page.records.into_iter().map(|record| record.tag));
        place = page.next;
        if place.is_none() {
            return Ok(names);
        }
    }
}
