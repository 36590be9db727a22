//! The section `segment`.

use std::path::PathBuf;

use leaf_core::Step;
use leaf_registry::{StoreOptions, StoreUrl};
use leaf_segment::{Shards, TagPattern};
use serde::{Deserialize, Serialize};

use super::span::Span;
use super::{ConfigError, values};

/// Segment mode.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Segment {
    #[serde(deserialize_with = "values::boolean")]
    pub(crate) enabled: bool,
    /// The store of all tags that are in no shard.
    #[serde(with = "values::text")]
    pub(crate) store: StoreUrl,
    /// A file that holds `store`, for secrets that are mounted as files.
    pub(crate) store_file: Option<PathBuf>,
    /// Other stores, each for the tags that match its patterns.
    pub(crate) shard: Vec<Shard>,
    /// Between these the dynamic step moves.
    #[serde(deserialize_with = "values::whole_number")]
    pub(crate) min_step: u32,
    #[serde(deserialize_with = "values::whole_number")]
    pub(crate) max_step: u32,
    /// How long a request waits for a refill.
    pub(crate) wait: Span,
    /// How often the set of tags is read.
    pub(crate) refresh: Span,
    /// How many tags of a store fetch at the same time.
    #[serde(deserialize_with = "values::whole_number")]
    pub(crate) concurrent_fetches: u32,
    /// Whether unused ids go back at a clean stop.
    #[serde(deserialize_with = "values::boolean")]
    pub(crate) give_back: bool,
    /// Whether tags jump ahead when the database answers as another server.
    #[serde(deserialize_with = "values::boolean")]
    pub(crate) failover_guard: bool,
    /// By how much.
    #[serde(deserialize_with = "values::whole_number")]
    pub(crate) failover_margin: u32,
}

/// A store for some tags.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shard {
    #[serde(with = "values::text")]
    pub(crate) store: StoreUrl,
    #[serde(with = "values::texts")]
    pub(crate) tags: Vec<TagPattern>,
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            enabled: true,
            store: "sqlite:leaf.db".parse().expect("a valid store URL"),
            store_file: None,
            shard: Vec::new(),
            min_step: 1,
            max_step: 1_000_000,
            wait: Span::from_secs(2),
            refresh: Span::from_secs(60),
            concurrent_fetches: 64,
            give_back: true,
            failover_guard: true,
            failover_margin: 10_000_000,
        }
    }
}

impl Segment {
    /// All stores, each with the tags that live there.
    pub(crate) fn stores(&self) -> Shards<&StoreUrl> {
        let rest = Shards::new(&self.store);
        self.shard.iter().fold(rest, |all, shard| all.with(shard.tags.clone(), &shard.store))
    }

    pub(crate) fn store_options(&self) -> StoreOptions {
        let margin = self.failover_guard.then_some(i64::from(self.failover_margin));
        StoreOptions { failover_margin: margin }
    }

    /// The generator's settings, which [`Self::check`] saw to be in order; without the marks.
    pub(crate) fn generator(&self) -> leaf_segment::SegmentConfig {
        let step = |value: u32| Step::new(i64::from(value)).unwrap_or(Step::MAX);
        leaf_segment::SegmentConfig {
            min_step: step(self.min_step),
            max_step: step(self.max_step),
            wait: self.wait.duration(),
            refresh: self.refresh.duration(),
            concurrent_fetches: self.concurrent_fetches as usize,
            give_back: self.give_back,
            ..leaf_segment::SegmentConfig::default()
        }
    }

    /// Reads what is kept in files.
    pub(super) fn read_files(&mut self) -> Result<(), ConfigError> {
        if let Some(store) = values::from_file("segment.store_file", self.store_file.as_deref())? {
            self.store = store;
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |text: String| Err(ConfigError::new(text));
        let most = Step::MAX.get();
        for (key, step) in [("min_step", self.min_step), ("max_step", self.max_step)] {
            if !(1..=most).contains(&step) {
                return refuse(format!("segment.{key} is {step}: give 1 to {most}"));
            }
        }
        if self.min_step > self.max_step {
            return refuse(format!(
                "segment.min_step {} is above segment.max_step {}",
                self.min_step, self.max_step
            ));
        }
        let bounds = [("wait", self.wait, 10, 60_000), ("refresh", self.refresh, 1000, 3_600_000)];
        for (key, span, least, most) in bounds {
            span.check_bounds(&format!("segment.{key}"), least, most)?;
        }
        if !(1..=10_000).contains(&self.concurrent_fetches) {
            return refuse("segment.concurrent_fetches: give 1 to 10000".into());
        }
        if self.failover_margin < self.max_step {
            return refuse(format!(
                "segment.failover_margin {} is below segment.max_step {}: one lost allocation would \
                 already be more",
                self.failover_margin, self.max_step
            ));
        }
        match self.shard.iter().position(|shard| shard.tags.is_empty()) {
            Some(at) => refuse(format!("segment.shard {}: `tags` is empty", at + 1)),
            None => Ok(()),
        }
    }
}
