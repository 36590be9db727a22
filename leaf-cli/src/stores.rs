//! The stores that the server is configured with.
//!
//! Of the server's configuration this program reads the keys that say where the stores are, from the
//! same sources in the same order: file, environment, flags.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use leaf_registry::{OpenStore, StoreOptions, StoreUrl};
use leaf_segment::{Shards, TagPattern};
use serde::Deserialize;

use crate::cli::Place;

/// The stores, each with its URL, found by tag.
#[derive(Debug)]
pub(crate) struct Stores {
    shards: Shards<Store>,
    data_dir: PathBuf,
}

/// One store that was opened.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) url: StoreUrl,
    pub(crate) open: OpenStore,
}

/// The configuration is wrong: exit code 2.
#[derive(Debug)]
pub(crate) struct BadConfig(String);

impl BadConfig {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadConfig {}

/// What is read of the server's configuration, and its defaults.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Config {
    data_dir: PathBuf,
    segment: Segment,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Segment {
    store: String,
    shard: Vec<Shard>,
    failover_guard: bool,
}

#[derive(Debug, Deserialize)]
struct Shard {
    store: String,
    tags: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self { data_dir: "leaf-data".into(), segment: Segment::default() }
    }
}

impl Default for Segment {
    fn default() -> Self {
        Self { store: "sqlite:leaf.db".into(), shard: Vec::new(), failover_guard: true }
    }
}

impl Stores {
    /// Opens the configured stores. Servers are not contacted yet.
    pub(crate) async fn open(place: &Place) -> Result<Self> {
        let mut config = read(place)?;
        if let Some(directory) = &place.data_dir {
            config.data_dir.clone_from(directory);
        }
        if let Some(store) = &place.store {
            config.segment.store.clone_from(store);
            config.segment.shard.clear();
        }
        let mut urls = Shards::new(parse_url("segment.store", &config.segment.store)?);
        for shard in &config.segment.shard {
            let patterns: Result<Vec<TagPattern>, _> =
                shard.tags.iter().map(|pattern| pattern.parse()).collect();
            let patterns =
                patterns.map_err(|error| BadConfig(format!("segment.shard: {error}")))?;
            urls = urls.with(patterns, parse_url("segment.shard", &shard.store)?);
        }
        let data_dir = config.data_dir;
        let mut options = StoreOptions::default();
        if !config.segment.failover_guard {
            options.failover_margin = None;
        }
        let shards = urls.try_map(async |url| Store::open(url, &data_dir, &options).await).await?;
        Ok(Self { shards, data_dir })
    }

    /// The store of a tag.
    pub(crate) fn of(&self, tag: &str) -> &Store {
        self.shards.of(tag)
    }

    /// Whether a tag of this name belongs into `store`.
    pub(crate) fn is_of(&self, tag: &str, store: &Store) -> bool {
        std::ptr::eq(self.of(tag), store)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Store> {
        self.shards.iter()
    }

    /// A store that is not configured.
    pub(crate) async fn other(&self, key: &str, url: &str) -> Result<Store> {
        Store::open(parse_url(key, url)?, &self.data_dir, &StoreOptions::default()).await
    }

    pub(crate) async fn close(&self) {
        for store in self.iter() {
            store.open.store.close().await;
        }
    }
}

impl Store {
    async fn open(url: StoreUrl, data_dir: &Path, options: &StoreOptions) -> Result<Self> {
        if let Some(file) = url.file(data_dir)
            && !file.exists()
        {
            let text = format!(
                "{url} does not exist in {}: start leaf-server once, or say --data-dir or --store",
                data_dir.display()
            );
            return Err(BadConfig(text).into());
        }
        let open = url.open(data_dir, options).await?;
        Ok(Self { url, open })
    }
}

fn read(place: &Place) -> Result<Config> {
    let default_file = Path::new("leaf.toml");
    let file = match &place.config {
        Some(file) => Some(file.as_path()),
        None => default_file.exists().then_some(default_file),
    };
    let mut builder = config::Config::builder();
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("read {}", path.display()))
            .map_err(|error| BadConfig(format!("{error:#}")))?;
        builder = builder.add_source(config::File::from_str(&text, config::FileFormat::Toml));
    }
    let environment =
        config::Environment::with_prefix("LEAF").prefix_separator("_").separator("__");
    let config = builder.add_source(environment).build().and_then(config::Config::try_deserialize);
    // The error's own text may quote a line that holds a password.
    config.map_err(|_| {
        let place = file.map_or("the environment".into(), |file| file.display().to_string());
        let text = format!(
            "{place}: its data_dir or its segment section cannot be read; `leaf-server` says why"
        );
        BadConfig(text).into()
    })
}

fn parse_url(key: &str, url: &str) -> Result<StoreUrl> {
    url.parse().map_err(|error| BadConfig(format!("{key}: {error}")).into())
}
