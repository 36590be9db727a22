//! The section `segment`.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use crate::{Shards, TagPattern};
use leaf_core::Step;
use leaf_registry::{StoreOptions, StoreUrl};
use leaf_shape::keys::Keys;
use serde::{Deserialize, Serialize};

use super::span::Span;
use super::{ConfigError, values};

/// Segment mode.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Segment {
    /// Whether it is on; default true.
    pub enabled: bool,
    /// The store of all tags that are in no shard; default `sqlite:leaf.db`, a file in the data
    /// directory.
    #[serde(with = "values::text")]
    pub store: StoreUrl,
    /// A file that holds `store`, for secrets that are mounted as files.
    pub store_file: Option<PathBuf>,
    /// Other stores, each for the tags that match its patterns.
    pub shard: Vec<Shard>,
    /// The dynamic step starts at, and never falls below, the greater of this and the record's
    /// step; 1 to [`Step::MAX`], default 1. A tag's own setting outranks it.
    pub min_step: u32,
    /// The dynamic step grows up to this, or to the record's step where that is larger; 1 to
    /// [`Step::MAX`], default 1,000,000. A tag's own setting outranks it.
    pub max_step: u32,
    /// How long a request waits for a refill, 10 ms to 60 s; default 2 s. Then it is refused.
    pub wait: Span,
    /// How often the record of each tag in use is read, 1 s to 1 h; default 60 s. A tag that is not
    /// in memory is read at once when a request needs it.
    pub refresh: Span,
    /// If no id of a tag was taken for this long, the tag is removed from memory, and its unused
    /// ids go back to the store if the store allows it; the next request reads the tag again. 1 s
    /// to 7 days, default 1 h; 0: never. [`Leaf`](crate::Leaf) removes no tag, because programs
    /// keep handles.
    pub idle: Span,
    /// How many fetches of one store run at the same time, 1 to 10,000; default 64. Each uses a
    /// connection for the length of one statement.
    pub concurrent_fetches: u32,
    /// Whether tags jump ahead when another database server answers than before, because a promoted
    /// replica may lack the latest allocations; default true.
    pub failover_guard: bool,
    /// The least number of ids by which a tag jumps; must exceed the number of its granted ids that
    /// a failover can lose. Default 10,000,000, not less than `max_step`. Tags in strict order with
    /// few numbers jump by less.
    pub failover_margin: u32,
    /// A file with the secret keys of scrambled ids, which only its owner may read. If a key is
    /// lost, its ids cannot be decoded and its tags cannot be served.
    pub keys_file: Option<PathBuf>,
}

/// A store for the tags that match its patterns.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// The store.
    #[serde(default, with = "values::optional_text")]
    pub store: Option<StoreUrl>,
    /// A file that holds `store`.
    pub store_file: Option<PathBuf>,
    /// The patterns of its tags.
    pub tags: Vec<TagPattern>,
}

/// Whether a file with this owner and mode is open to others than its owner: a key that others can
/// read protects nothing. Group read access to a file of root is allowed, since systemd gives a
/// credential in this way to a service with its own user.
const fn others_may_read(owner: u32, mode: u32) -> bool {
    const GROUP_MAY_READ: u32 = 0o040;
    let refused = if owner == 0 { 0o077 & !GROUP_MAY_READ } else { 0o077 };
    mode & refused != 0
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
            idle: Span::from_secs(3600),
            concurrent_fetches: 64,
            failover_guard: true,
            failover_margin: 10_000_000,
            keys_file: None,
        }
    }
}

impl Segment {
    /// The keys of this section whose changes need no restart. For `segment.keys_file` this
    /// includes a change of the file's contents.
    pub const LIVE: &[&str] = &["segment.keys_file", "segment.refresh"];

    /// All stores, each with the patterns of its tags.
    #[must_use]
    pub fn stores(&self) -> Shards<&StoreUrl> {
        let rest = Shards::new(&self.store);
        self.shard.iter().fold(rest, |all, shard| {
            let store = shard.store.as_ref().unwrap_or(&self.store);
            all.with(shard.tags.clone(), store)
        })
    }

    /// The options with which the stores are opened.
    #[must_use]
    pub fn store_options(&self) -> StoreOptions {
        let margin = self.failover_guard.then_some(i64::from(self.failover_margin));
        StoreOptions { failover_margin: margin }
    }

    /// The settings of a generator. The caller adds the marks and the keys.
    #[must_use]
    pub fn generator(&self) -> leaf_segment::SegmentConfig {
        let step = |value: u32| Step::new(i64::from(value)).unwrap_or(Step::MAX);
        leaf_segment::SegmentConfig {
            min_step: step(self.min_step),
            max_step: step(self.max_step),
            wait: self.wait.duration(),
            refresh: self.refresh.duration(),
            idle: Some(self.idle.duration()).filter(|idle| !idle.is_zero()),
            concurrent_fetches: self.concurrent_fetches as usize,
            ..leaf_segment::SegmentConfig::default()
        }
    }

    /// Reads the keys of scrambled ids; none where no file is named.
    ///
    /// # Errors
    /// The file cannot be read, others than its owner may read it, or a line of it is no key. The
    /// text never repeats what the file holds.
    pub fn read_keys(&self) -> Result<Keys, ConfigError> {
        let file = self.keys_file.as_deref().filter(|file| !file.as_os_str().is_empty());
        let Some(file) = file else { return Ok(Keys::default()) };
        let refuse = |why: String| ConfigError::new(format!("segment.keys_file: {why}"));
        let text = leaf_registry::read_secret(file).map_err(|error| refuse(error.to_string()))?;
        let found = std::fs::metadata(file).map_err(|error| refuse(error.to_string()))?;
        if others_may_read(found.uid(), found.mode()) {
            return Err(refuse(
                "others than its owner can read the file: say `chmod 600` to it, and draw other keys if anybody has \
                 read these"
                    .into(),
            ));
        }
        text.parse().map_err(|error: leaf_shape::keys::KeysError| refuse(error.to_string()))
    }

    /// Refuses bounds that contradict each other, and shards that name no tags or no store.
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
        if !self.idle.duration().is_zero() {
            self.idle.check_bounds("segment.idle", 1000, 604_800_000)?;
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
        for (at, shard) in self.shard.iter().enumerate() {
            if shard.tags.is_empty() {
                return refuse(format!("segment.shard {}: `tags` is empty", at + 1));
            }
            if shard.store.is_none() {
                return refuse(format!("segment.shard {}: `store` is missing", at + 1));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::others_may_read;

    #[test]
    fn keys_are_for_their_owner_and_for_a_service_that_root_gives_them_to() {
        for (owner, mode, open) in [
            (0, 0o100_600, false),
            (0, 0o100_440, false),
            (0, 0o100_660, true),
            (0, 0o100_604, true),
            (1000, 0o100_400, false),
            (1000, 0o100_640, true),
        ] {
            assert_eq!(others_may_read(owner, mode), open, "{owner} {mode:o}");
        }
    }
}
