//! Leaf inside a program, in one object.

use std::fmt;
use std::path::{Path, PathBuf};

use leaf_core::Health;
use leaf_segment::{SegmentError, TagHandle};
use leaf_snowflake::SnowflakeGenerator;

use crate::config::{Config, Loaded, Sources};
use crate::{Node, OpenError, Surroundings};

/// A node of Leaf inside a program: ids of tags and snowflake ids.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let directory = tempfile::tempdir()?;
/// use leaf_node::Leaf;
///
/// let leaf = Leaf::builder().data_dir(directory.path()).without_snowflake().open().await?;
/// let orders = leaf.segment("leaf-segment-test").await?;
/// assert_eq!(orders.next().await?.get(), 1);
/// leaf.close().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Leaf(Node);

/// What a [`Leaf`] is opened with. Every key of the configuration can be set, by its name.
///
/// ```no_run
/// # async fn several_nodes() -> Result<(), Box<dyn std::error::Error>> {
/// use leaf_node::Leaf;
///
/// let leaf = Leaf::builder()
///     .data_dir("leaf-data")
///     .store("mysql://leaf:secret@db/leaf")
///     .registry("zk-normal://a:2181,b:2181")
///     .open()
///     .await?;
/// let order = leaf.segment("orders").await?.next().await?;
/// let event = leaf.snowflake().next().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct LeafBuilder {
    /// The configuration files.
    files: Vec<PathBuf>,
    /// Keys and their values, which outrank the files.
    values: Vec<(&'static str, String)>,
}

/// Without the values, which may hold passwords.
impl fmt::Debug for LeafBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.values.iter().map(|(key, _)| key).collect();
        f.debug_struct("LeafBuilder").field("files", &self.files).field("keys", &keys).finish()
    }
}

impl Leaf {
    /// A builder with the defaults of `leaf-server`: segments in an SQLite file, worker id 0, both
    /// in the directory `leaf-data`.
    #[must_use]
    pub fn builder() -> LeafBuilder {
        LeafBuilder::default()
    }

    /// The handle of a tag, which must exist. Keep it: it yields ids without a look-up.
    ///
    /// # Errors
    /// `UnknownTag`, `Disabled`, or what the store refuses. `BadTag` for a text that is none.
    ///
    /// # Panics
    /// When segment mode was switched off.
    pub async fn segment(&self, tag: &str) -> Result<TagHandle, SegmentError> {
        let segments = self.0.segments().expect("segment mode is on");
        segments.tag(tag).await
    }

    /// The generator of snowflake ids.
    ///
    /// # Panics
    /// When snowflake mode was switched off.
    #[must_use]
    pub fn snowflake(&self) -> &SnowflakeGenerator {
        &self.0.snowflake().expect("snowflake mode is on").generator
    }

    /// Whether ids can be had now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.0.health()
    }

    /// What is behind the ids: generators, stores and the registry.
    #[must_use]
    pub const fn node(&self) -> &Node {
        &self.0
    }

    /// Gives the worker id and the unused ids back. Without it the next start waits for the worker
    /// id, and the ids are a gap. The data directory is free for another process once the handles
    /// of tags are dropped, too.
    pub async fn close(self) {
        self.0.close().await;
    }
}

impl LeafBuilder {
    /// Reads this file (`leaf.toml`, or `leaf.properties` of a Java Leaf) first.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.files.push(path.into());
        self
    }

    /// Sets a key of the configuration, like `segment.max_step`, to a text.
    #[must_use]
    pub fn set(mut self, key: &'static str, value: impl ToString) -> Self {
        self.values.push((key, value.to_string()));
        self
    }

    /// Where state is kept; made where it does not exist. No other process may use it at the same
    /// time.
    #[must_use]
    pub fn data_dir(self, path: impl AsRef<Path>) -> Self {
        self.set("data_dir", path.as_ref().display())
    }

    /// Where segments are kept: `sqlite:PATH`, `mysql://…`, `postgres://…` or `etcd://…`.
    #[must_use]
    pub fn store(self, url: &str) -> Self {
        self.set("segment.store", url)
    }

    /// Where worker ids come from: `zk-normal://host:2181,host:2181/chroot`, `zk-recycle://…`,
    /// `mysql://…`, `postgres://…`, `sqlite:/PATH`, `etcd://…`, or `local`.
    #[must_use]
    pub fn registry(self, place: &str) -> Self {
        let (scheme, rest) = place.split_once(':').unwrap_or((place, ""));
        let kind = match scheme {
            "postgresql" => "postgres".to_owned(),
            scheme => scheme.replace('-', "_"),
        };
        let (key, value) = match kind.as_str() {
            "zk_normal" | "zk_recycle" => {
                ("snowflake.zookeeper", rest.trim_start_matches('/').to_owned())
            }
            "etcd" => ("snowflake.etcd", place.to_owned()),
            "mysql" | "postgres" | "sqlite" => ("snowflake.database", place.to_owned()),
            // `local`, or what the check of the configuration refuses.
            _ => return self.set("snowflake.registry", kind),
        };
        self.set("snowflake.registry", kind).set(key, value)
    }

    /// What this node calls itself to the registry, `host:port`, which no other node may. Default:
    /// one of the host's addresses.
    #[must_use]
    pub fn advertise(self, name: &str) -> Self {
        self.set("advertise", name)
    }

    /// Without snowflake ids, and so without a worker id.
    #[must_use]
    pub fn without_snowflake(self) -> Self {
        self.set("snowflake.enabled", false)
    }

    /// Without ids of tags, and so without a segment store.
    #[must_use]
    pub fn without_segments(self) -> Self {
        self.set("segment.enabled", false)
    }

    /// The configuration as it will be used. The environment is not read.
    ///
    /// # Errors
    /// One line that names the key that is wrong.
    pub fn config(&self) -> Result<Config, OpenError> {
        let sources =
            Sources { files: self.files.clone(), flags: self.values.clone(), stores_only: false };
        let Loaded { config, warnings, .. } = sources.load_without_environment()?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(config)
    }

    /// Opens the stores, claims a worker id and starts both modes. Call it in a tokio runtime,
    /// which must live as long as the [`Leaf`].
    ///
    /// # Errors
    /// What is wrong with the configuration or with a file; `Snowflake` when the registry yields no
    /// worker id now. A segment store that is away is no error: its tags are when they are asked
    /// for.
    pub async fn open(self) -> Result<Leaf, OpenError> {
        let config = self.config()?;
        let directory = &config.data_dir;
        std::fs::create_dir_all(directory)
            .map_err(|error| OpenError::DataDir { path: directory.display().to_string(), error })?;
        let node = Node::open(&config, Surroundings::default()).await?;
        if let Some(snowflake) = node.snowflake() {
            let claimed = snowflake.generator.claim().await;
            if let Err(error) = claimed {
                node.close().await;
                return Err(OpenError::Snowflake(error));
            }
        }
        Ok(Leaf(node))
    }
}

#[cfg(test)]
mod tests {
    use leaf_registry::RegistryKind;

    use super::*;

    #[test]
    fn a_registry_is_one_text() {
        for (place, kind, shown) in [
            ("zk-normal://a:2181,b:2181", RegistryKind::ZkNormal, "a:2181,b:2181"),
            ("zk-recycle://a:2181/leaf", RegistryKind::ZkRecycle, "a:2181/leaf"),
            ("mysql://leaf:canary@db/leaf", RegistryKind::Mysql, "mysql://leaf:***@db/leaf"),
            ("postgresql://db/leaf", RegistryKind::Postgres, "postgresql://db/leaf"),
            ("sqlite:/leaf/workers.db", RegistryKind::Sqlite, "sqlite:/leaf/workers.db"),
        ] {
            let builder = Leaf::builder().registry(place);
            assert!(!format!("{builder:?}").contains("canary"), "{builder:?}");
            let config = builder.config().unwrap();
            assert_eq!(config.snowflake.registry, kind);
            let found = config.registry_place().unwrap().unwrap().to_string();
            assert!(found.contains(shown), "{place}: {found}");
        }
        let local = Leaf::builder().registry("local").config().unwrap();
        assert_eq!(local.snowflake.registry, RegistryKind::Local);
    }

    #[test]
    fn what_is_wrong_is_named_without_its_value() {
        let wrong = |builder: LeafBuilder| builder.config().unwrap_err().to_string();
        let unknown = wrong(Leaf::builder().registry("mysql://u:canary@"));
        assert!(unknown.contains("snowflake.database") && !unknown.contains("canary"), "{unknown}");
        let store = wrong(Leaf::builder().store("canary"));
        assert!(store.contains("segment.store") && !store.contains("canary"), "{store}");
        let key = wrong(Leaf::builder().set("segment.canary", 1));
        assert!(key.contains("unknown key `segment.canary`"), "{key}");
        let nothing = wrong(Leaf::builder().without_segments().without_snowflake());
        assert!(nothing.contains("nothing to serve"), "{nothing}");
    }

    /// Two of one data directory would issue the same ids.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_data_directory_is_used_by_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Leaf::builder().data_dir(directory.path()).open();
        let first = open().await.unwrap();
        let last = first.segment("leaf-segment-test").await.unwrap().next().await.unwrap();
        let event = first.snowflake().next().await.unwrap();
        let refused = open().await.unwrap_err().to_string();
        assert!(refused.contains("another process") || refused.contains("in use"), "{refused}");
        first.close().await;

        let second = open().await.unwrap();
        let next = second.segment("leaf-segment-test").await.unwrap().next().await.unwrap();
        assert_eq!(next.get(), last.get() + 1, "unused ids went back");
        assert!(second.snowflake().next().await.unwrap() > event);
        second.close().await;
    }
}
