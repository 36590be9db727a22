//! The stores that the server is configured with.
//!
//! Which store a tag belongs to is decided by the same patterns (`segment.shard`) as in a server. A
//! command on a tag that opened another store would change a record that no server reads.

use std::path::{Path, PathBuf};

use anyhow::Result;
use leaf_node::config::{Config, ConfigError};
use leaf_node::{ShardPlace, Shards};
use leaf_registry::{OpenStore, SettingError, StoreOptions, StoreUrl};
use leaf_segment::admin::TagAdmin;
use leaf_shape::keys::KeyRing;

use crate::cli::{DryRun, Place};
use crate::config;

/// The stores, each with its URL, found by tag.
///
/// `data_dir` is where relative SQLite files are.
#[derive(Debug)]
pub(crate) struct Stores {
    /// The stores, each with the patterns of its tags.
    pub(crate) shards: Shards<Store>,
    /// The data directory of this host's node, if there is one.
    pub(crate) data_dir: PathBuf,
    /// Whether that node's high-water marks are those of these stores: they are configured, or the
    /// command line names both a store and the directory.
    pub(crate) has_marks: bool,
    /// The whole configuration.
    pub(crate) config: Config,
}

/// One store that was opened.
///
/// `open` has the store itself and the administration of its tables.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) url: StoreUrl,
    pub(crate) open: OpenStore,
    /// Which of the configured stores it is; `None` for one that the command line names.
    pub(crate) place: Option<ShardPlace>,
}

impl Stores {
    /// Opens the configured stores. Servers are not contacted yet.
    pub(crate) async fn open(place: &Place) -> Result<Self> {
        let config = config::read(place)?;
        let (data_dir, options) = (&config.data_dir, config.segment.store_options());
        let is_named = !place.store.is_empty();
        let open = async |(place, url): (ShardPlace, &StoreUrl)| {
            let place = Some(place).filter(|_| !is_named);
            Ok::<_, anyhow::Error>(Store {
                place,
                ..Store::open(url.clone(), data_dir, &options).await?
            })
        };
        let shards = config.segment.stores().placed().try_map(open).await?;
        let has_marks = !is_named || place.data_dir.is_some();
        Ok(Self { shards, data_dir: config.data_dir.clone(), has_marks, config })
    }

    /// The keys of scrambled ids, from `segment.keys_file`. Read where they are needed only: few
    /// users may read that file.
    pub(crate) fn keys(&self) -> Result<KeyRing> {
        Ok(KeyRing::new(self.config.segment.read_keys()?))
    }

    /// Opens a store that is not configured, the source of an import: `--from`, or the URL in the
    /// file `--from-file`. The store gets the default options: the configured ones are for the
    /// servers' stores.
    pub(crate) async fn source(
        &self,
        from: Option<String>,
        from_file: Option<PathBuf>,
    ) -> Result<Store> {
        let (flag, from) = match from_file {
            Some(file) => ("--from-file", leaf_registry::read_secret(&file)),
            None => ("--from", Ok(from.unwrap_or_default())),
        };
        let why = |error: String| ConfigError::new(format!("{flag}: {error}"));
        let from = from.map_err(|error| why(error.to_string()))?;
        let url = from.parse().map_err(|error: SettingError| why(error.to_string()))?;
        Store::open(url, &self.data_dir, &StoreOptions::default()).await
    }

    /// Ends all connections.
    pub(crate) async fn close(&self) {
        for store in self.shards.iter() {
            store.open.store.close().await;
        }
    }
}

impl Store {
    /// The URL of the store, and the opened store itself.
    pub(crate) const fn opened(&self) -> (&StoreUrl, &OpenStore) {
        (&self.url, &self.open)
    }

    /// The administration of the store's tags, with the failover margin of this database: how far a
    /// failover may set a tag back.
    pub(crate) fn tags(&self, dry: DryRun) -> TagAdmin<'_> {
        let margin = self.open.admin.failover_margin();
        let tags = TagAdmin::new(&*self.open.store).with_failover_margin(margin);
        tags.with_dry_run(dry.dry_run)
    }

    /// Opens a store; a database server is not contacted yet. An SQLite file must exist: a mistyped
    /// `--data-dir` would else create an empty file, and the command would report that there are no
    /// tags.
    async fn open(url: StoreUrl, data_dir: &Path, options: &StoreOptions) -> Result<Self> {
        if let Some(file) = url.file(data_dir)
            && !file.exists()
        {
            let text = format!(
                "{url} does not exist in {}: start leaf-server once, or say --data-dir or --store",
                data_dir.display()
            );
            return Err(ConfigError::new(text).into());
        }
        let open = url.open(data_dir, options).await?;
        Ok(Self { url, open, place: None })
    }
}
