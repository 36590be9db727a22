//! `leaf doctor`: finds what could lose ids or make an id come twice.
//!
//! It looks for what no single request can notice: two stores that issue the same ids, records that
//! no server can use, and databases whose settings lose commits. It changes nothing.

mod clocks;
mod workers;

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, anyhow};
use comfy_table::CellAlignment::Left;
use leaf_core::{Clock as _, Tag};
use leaf_node::config::Config;
use leaf_node::hints;
use leaf_segment::store::{MOST_RECORDS, TagSettingsError};
use leaf_segment::{NewTag, StoreError, TagRecord};
use leaf_shape::Shape;
use leaf_shape::keys::KeyRing;
use leaf_snowflake::SystemClock;
use serde::Serialize;
use tokio::time::Instant;

use crate::cli::Output;
use crate::output::{self, Row};
use crate::stores::{Store, Stores};
use crate::{Done, overlap, shards};

/// Progress is reported each time that this many tags of a store were checked.
const TELL: usize = 10_000;

/// A store is reported if a read takes longer than this.
const SLOW: Duration = Duration::from_millis(50);

/// What was found in a store, in a registry or on this host.
#[derive(Debug, Serialize)]
struct Finding {
    /// The store, the registry, or this host.
    store: String,
    finding: String,
}

impl Row for Finding {
    const COLUMNS: &'static [(&'static str, comfy_table::CellAlignment)] =
        &[("store", Left), ("finding", Left)];

    fn cells(&self) -> Vec<String> {
        vec![self.store.clone(), self.finding.clone()]
    }
}

/// Checks every store, and compares those of several data centres. With the configuration of nodes
/// also checks their registry and clocks. If something was found, the result also has an error, for
/// scripts.
pub(crate) async fn run(
    centres: &[Stores],
    of_nodes: Option<&Config>,
    output: Output,
) -> Result<Done> {
    let mut findings = Vec::new();
    let mut marks = HashMap::new();
    if let [centre] = centres
        && centre.has_marks
    {
        match leaf_node::read_marks(&centre.data_dir) {
            Ok(read) => marks.extend(read),
            // Of the configured directory it is the server's to tell: its owner may be another user.
            Err(_) if of_nodes.is_some() => {}
            Err(error) => {
                let store = centre.data_dir.display().to_string();
                findings.push(Finding { store, finding: error.to_string() });
            }
        }
    }
    for (at, centre) in centres.iter().enumerate() {
        look(centre, &centres[..at], &marks, &mut findings).await;
    }
    if let Some(config) = of_nodes.filter(|config| config.snowflake.enabled) {
        let mut found = |place: String, finding: String| {
            findings.push(Finding { store: place, finding });
        };
        let registry = workers::look(config, &mut found).await;
        clocks::look(config, registry.as_ref(), &mut found).await;
    }
    if findings.is_empty() {
        return Ok(output::one(&findings, "nothing found".into(), output).into());
    }
    let trouble = Some(anyhow!("{} found", findings.len()));
    Ok(Done::but(output::rows(&findings, output), trouble))
}

/// Finds tags that can have the same id in two stores: those with the same name whose slices or
/// remainders overlap. Skips sealed tags, which issue no ids, and the sample tag, which every new
/// SQLite file has.
fn compare(
    (one, records): (&str, &[TagRecord]),
    (other, others): (&str, &[TagRecord]),
    findings: &mut Vec<Finding>,
) {
    let stock = NewTag::sample().tag;
    for record in records.iter().filter(|record| record.tag != stock && !record.is_sealed()) {
        let same = others.iter().find(|other| other.tag == record.tag && !other.is_sealed());
        if let Some(why) = same.and_then(|same| overlap::between(record, same)) {
            let tag = hints::quoted(record.tag.as_str());
            findings.push(Finding {
                store: other.into(),
                finding: format!("tag {tag} can have the same ids here as in {one}: {why}"),
            });
        }
    }
}

/// Describes a tag that is in a store to which `segment.shard` does not send it, and what to do
/// about that. `owner` is the store to which `segment.shard` sends it.
async fn stray(record: &TagRecord, owner: &Store) -> String {
    let (tag, url) = (hints::quoted(record.tag.as_str()), &owner.url);
    let there = owner.open.store.tag(&record.tag).await;
    let what = match there {
        _ if record.is_sealed() => "it is sealed: delete it here with `leaf --store`".into(),
        // A generation is drawn for each record.
        Ok(Some(there)) if there.generation().is_some_and(|it| record.generation() == Some(it)) => {
            "it is the same record there. If both URLs lead to one database, name that once; if one is a copy of the other, \
             both may have granted the same ids"
                .into()
        }
        Ok(Some(there)) if leaf_node::is_open(&there) => format!(
            "it is open there, too, and both may have granted the same ids: stop its use, advance it there above all ids that \
             either granted (here below {}), then delete it here with `leaf --store`",
            record.max_id
        ),
        Ok(_) => "move it there with `leaf tag import --from`, or change the patterns".into(),
        Err(error) => format!("that store does not answer ({error})"),
    };
    format!("tag {tag} is kept here, but segment.shard sends it to {url}: {what}")
}

/// Describes a tag whose record is below the mark of this host's node: a backup was restored, or
/// somebody edited the record. Else `None`.
///
/// The mark is read before the record, since an allocation raises the record first. Ids that are
/// given back lower both, so a tag that seems wrong is checked again here.
async fn went_back(stores: &Stores, store: &Store, record: &TagRecord) -> Option<String> {
    let tag = &record.tag;
    let mark = || {
        let marks = leaf_node::read_marks(&stores.data_dir).unwrap_or_default();
        marks.into_iter().find(|(marked, _)| marked == tag).map(|(_, mark)| mark)
    };
    let mark = mark()?;
    let record = store.open.store.tag(tag).await.ok()??;
    let own = if store.place.is_some() {
        ""
    } else {
        "if the node of that data directory uses this store: "
    };
    (record.max_id < mark).then(|| {
        format!(
            "{own}tag {tag} went back to {}, and the node of {} was granted ids below {mark}: look at all nodes (`leaf doctor` with \
             the --data-dir of each, or their /readyz), then `leaf tag advance {tag} --at-least N` with the greatest number",
            record.max_id,
            stores.data_dir.display(),
            tag = hints::quoted(tag.as_str()),
        )
    })
}

/// Describes what is wrong with a tag in this store: it belongs to another store, is sealed, or
/// went back. Else `None`.
async fn misplaced(
    stores: &Stores,
    store: &Store,
    record: &TagRecord,
    marks: &HashMap<Tag, i64>,
) -> Option<String> {
    let tag = record.tag.as_str();
    let is_here = stores.shards.is_of(tag, store);
    if !is_here && (record.is_sealed() || leaf_node::is_open(record)) {
        return Some(stray(record, stores.shards.of(tag)).await);
    }
    if record.is_sealed() {
        return Some(format!(
            "tag {} is sealed: no server gets ids of it here; if it was moved, let segment.shard send it to its \
             new store, and delete it here; if an import or a deletion was broken off, repeat it",
            hints::quoted(tag)
        ));
    }
    let is_below = marks.get(&record.tag).is_some_and(|mark| record.max_id < *mark);
    match is_here && is_below {
        true => went_back(stores, store, record).await,
        false => None,
    }
}

/// Reports every reason why servers cannot use a record now. `keys` are the keys of this host,
/// if it has a file of keys.
fn unusable(record: &TagRecord, keys: Option<&KeyRing>, found: &mut impl FnMut(String)) {
    let tag = hints::quoted(record.tag.as_str());
    if let (Some(keys), Ok(Shape::Scramble { domain, key })) =
        (keys, record.meaning.as_ref().map(|meaning| meaning.shape))
        && let Err(why) = keys.scramble(domain, key, &record.tag)
    {
        found(format!("tag {tag}: {why} (segment.keys_file; SIGHUP loads it)"));
    }
    let now = SystemClock.wall_millis();
    if let Some(period) = record.closed_until(now) {
        found(format!(
            "tag {tag}: numbers of {period} were granted, which has not begun by this clock: it has no ids until then. If \
             this clock is right, one was ahead: `leaf tag reopen {tag} --first-taken PERIOD --above ID` opens it again, with \
             the first period that the wrong clock opened ({period} or an earlier one) and the greatest id of the present \
             period"
        ));
    }
    if let Err(error) = &record.meaning {
        found(format!("tag {tag}: {error}"));
    }
    if let (Some(ended), Ok(meaning)) = (record.ended(), &record.meaning) {
        let max_id = record.max_id;
        let new = NewTag { max_id, meaning: *meaning, ..NewTag::strict(record.tag.clone()) };
        if let Err(why) = ended.check(&new) {
            found(format!("tag {tag}: {why} (`leaf tag advance`)"));
        }
    }
    if let Err(error) = record.step {
        found(format!("tag {tag}: {error}; `leaf tag set {tag} --step STEP`"));
    }
    if let Err(error) = &record.settings {
        found(match error {
            TagSettingsError::Damaged(_) => {
                format!("tag {tag}: {error}; `leaf tag set {tag} --enabled true`")
            }
            _ => format!("tag {tag}: {error}"),
        });
    }
}

/// Checks every store of one configuration, and compares it with those of `before`. A store that
/// cannot be read is itself a finding; the others are still checked.
async fn look(
    stores: &Stores,
    before: &[Stores],
    marks: &HashMap<Tag, i64>,
    findings: &mut Vec<Finding>,
) {
    for store in stores.shards.iter() {
        let mut found = |finding: String| {
            findings.push(Finding { store: store.url.to_string(), finding });
        };
        match shards::doubts(store).await {
            Ok(doubts) => doubts.into_iter().for_each(&mut found),
            Err(error) => found(hints::with(&error, hints::of_store(error.kind()))),
        }
        if let Err(error) = look_at_tags(stores, store, before, marks, findings).await {
            let store = store.url.to_string();
            findings.push(Finding { store, finding: error.to_string() });
            continue;
        }
        let mut found = |finding: String| {
            findings.push(Finding { store: store.url.to_string(), finding });
        };
        if let Some(tried) = store.open.store.try_allocating()
            && let Err(error) = tried.await
        {
            found(hints::with(&error, hints::of_store(error.kind())));
        }
        if let Some(slow) = latency(store).await.filter(|latency| *latency > SLOW) {
            found(format!(
                "a read takes {slow:.0?}: each allocation waits longer than that, and so does each id of a tag in strict \
                 order; look at the network and the load of the database (docs/stores.md)"
            ));
        }
        match store.open.admin.risks().await {
            Ok(risks) => risks.into_iter().for_each(found),
            Err(error) => found(error.to_string()),
        }
    }
}

/// How long a read takes: the median of three. `None` if the store does not answer.
async fn latency(store: &Store) -> Option<Duration> {
    let tag = NewTag::sample().tag;
    let mut taken = [Duration::ZERO; 3];
    for taken in &mut taken {
        let begun = Instant::now();
        store.open.store.tag(&tag).await.ok()?;
        *taken = begun.elapsed();
    }
    taken.sort_unstable();
    Some(taken[1])
}

/// Looks at the tags of a store page by page, and says on standard error how far it is.
async fn look_at_tags(
    stores: &Stores,
    store: &Store,
    before: &[Stores],
    marks: &HashMap<Tag, i64>,
    findings: &mut Vec<Finding>,
) -> Result<(), StoreError> {
    let url = store.url.to_string();
    let (mut place, mut seen) = (None, 0_usize);
    // A host without a file of keys runs no server that needs one; a file that this user may not read says nothing.
    let has_keys = stores.config.segment.keys_file.is_some();
    let keys = if has_keys { stores.keys().ok() } else { None };
    loop {
        let page = store.open.store.page(place.as_ref(), "", MOST_RECORDS).await?;
        let mut found = |finding| findings.push(Finding { store: url.clone(), finding });
        for record in &page.records {
            if let Some(finding) = misplaced(stores, store, record, marks).await {
                found(finding);
            }
            unusable(record, keys.as_ref(), &mut found);
        }
        let tags: Vec<Tag> = page.records.iter().map(|record| record.tag.clone()).collect();
        for other in before.iter().flat_map(|centre| centre.shards.iter()) {
            // One that cannot be read was told of before.
            if let Ok(others) = other.open.store.records(&tags).await {
                let other = other.url.to_string();
                compare((&other, &others), (&url, &page.records), findings);
            }
        }
        let told = seen / TELL;
        seen += page.records.len();
        if seen / TELL > told {
            crate::complain(&format_args!("{url}: {seen} tags looked at"));
        }
        place = page.next;
        if place.is_none() {
            return Ok(());
        }
    }
}
