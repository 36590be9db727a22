//! The commands that list and change the rules of traffic: which tags and callers are cut, or
//! limited to a rate.

use std::num::NonZeroU32;

use anyhow::{Result, anyhow, bail};
use comfy_table::CellAlignment;
use leaf_core::Tag;
use leaf_node::ShardMemory;
use leaf_node::config::ConfigError;
use leaf_node::traffic::{self, ChangeError, Rate, Rules, RulesError, Subject};
use leaf_registry::Note;
use serde::Serialize;

use crate::cli::{DryRun, Output, Rated, Ruled};
use crate::output::{self, Row};
use crate::stores::Stores;
use crate::{Done, cli, exit};

/// A command on the rules of traffic.
pub(crate) enum Act {
    /// Shows all rules.
    List,
    /// Removes all rules, also those that cannot be read.
    Clear,
    Cut(Ruled),
    Limit(Rated),
    Allow(Ruled),
}

/// A rule as it is shown.
#[derive(Serialize)]
struct Shown {
    /// `tag` or `client`.
    of: &'static str,
    name: String,
    /// Ids per second on each node; 0 if it is cut.
    rate: u32,
}

impl Row for Shown {
    const COLUMNS: &'static [(&'static str, CellAlignment)] = &[
        ("of", CellAlignment::Left),
        ("name", CellAlignment::Left),
        ("ids a second and node", CellAlignment::Right),
    ];

    fn cells(&self) -> Vec<String> {
        let rate = if self.rate == 0 { "none: cut".to_owned() } else { self.rate.to_string() };
        vec![self.of.to_owned(), self.name.clone(), rate]
    }
}

/// Runs a command.
///
/// # Errors
/// The name is invalid or the tag unknown; the store cannot be read or written, or has no room for
/// more rules.
pub(crate) async fn run(stores: &Stores, act: Act, dry: DryRun, output: Output) -> Result<Done> {
    let clears = matches!(act, Act::Clear);
    let change: Option<(Subject, Option<Rate>)> = match act {
        Act::List | Act::Clear => None,
        Act::Cut(of) => Some((subject(of)?, Some(None))),
        Act::Allow(of) => Some((subject(of)?, None)),
        Act::Limit(of) => {
            let (of, rate) = match of {
                Rated::Tag { tag, rate } => (Ruled::Tag { tag }, rate),
                Rated::Client { name, rate } => (Ruled::Client { name }, rate),
            };
            let rate = NonZeroU32::new(rate)
                .ok_or_else(|| ConfigError::new("a rate of 0 is a cut: say `leaf cut`"))?;
            Some((subject(of)?, Some(Some(rate))))
        }
    };
    check_place(stores).await?;
    if let Some((Subject::Tag(pattern), Some(_))) = &change {
        check_exists(stores, pattern).await?;
    }
    let admin = &stores.shards.rest().open.admin;
    let read = async || admin.note(Note::Traffic).await;
    let there = |text: Option<String>| Rules::decode(text.as_deref().unwrap_or_default());
    let rules = match change {
        None if clears => {
            let before = read().await?;
            let none = Rules::default();
            if !dry.dry_run
                && !admin.write_note(Note::Traffic, before.as_deref(), &none.encode()?).await?
            {
                return Err(ChangeError::Overtaken.into());
            }
            none
        }
        None => there(read().await?).map_err(explained)?,
        Some((subject, rate)) => {
            let now = there(read().await?).map_err(explained)?;
            if rate.is_none() && !now.rates.contains_key(&subject) {
                bail!("{subject} has no rule; `leaf traffic` lists those that there are");
            }
            let change = |rules: &mut Rules| match rate {
                Some(rate) => drop(rules.rates.insert(subject.clone(), rate)),
                None => drop(rules.rates.remove(&subject)),
            };
            traffic::change(&**admin, dry.dry_run, change).await?
        }
    };
    dry.tell();
    Ok(output::rows(&shown(&rules), output).into())
}

/// Adds to the error for damaged rules how to remove them.
fn explained(error: RulesError) -> anyhow::Error {
    match error {
        RulesError::Damaged(_) => {
            anyhow!(
                "{error}: `leaf traffic --clear` takes them away; servers keep those that they had"
            )
        }
        error => error.into(),
    }
}

/// Refuses a store of the command line that is one of several: servers read the rules from only one
/// of these, and only the configuration says from which.
async fn check_place(stores: &Stores) -> Result<()> {
    let store = stores.shards.rest();
    if store.place.is_some() {
        return Ok(());
    }
    let text = store.open.admin.note(Note::Shards).await?.unwrap_or_default();
    let memory = ShardMemory::decode(&text).ok();
    if memory.is_some_and(|memory| memory.newest().is_some_and(|place| !place.is_only())) {
        let why = "this store is one of several: leave --store out, so that the configuration tells which has the rules";
        return Err(ConfigError::new(why).into());
    }
    Ok(())
}

/// Refuses a tag that does not exist: otherwise a mistyped name would seem to be cut.
async fn check_exists(stores: &Stores, pattern: &str) -> Result<()> {
    if pattern.ends_with('*') {
        return Ok(());
    }
    let tag = Tag::parse(pattern).map_err(|error| ConfigError::new(error.to_string()))?;
    let store = stores.shards.of(pattern);
    if store.open.store.records(std::slice::from_ref(&tag)).await?.is_empty() {
        let text = format!(
            "no such tag: {pattern}; for tags that are to come, give their beginning and *"
        );
        return Err(exit::with(exit::NOT_FOUND, anyhow!(text)));
    }
    Ok(())
}

fn subject(of: cli::Ruled) -> Result<Subject, ConfigError> {
    let subject = match of {
        Ruled::Tag { tag } => Subject::tag(&tag),
        Ruled::Client { name } => Subject::client(&name),
    };
    subject.map_err(ConfigError::new)
}

fn shown(rules: &Rules) -> Vec<Shown> {
    let rule = |(subject, rate): (&Subject, &Rate)| {
        let (of, name) = match subject {
            Subject::Tag(pattern) => ("tag", pattern.clone()),
            Subject::Client(name) => ("client", name.clone()),
        };
        Shown { of, name, rate: rate.map_or(0, NonZeroU32::get) }
    };
    rules.rates.iter().map(rule).collect()
}
