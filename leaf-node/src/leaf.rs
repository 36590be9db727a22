//! Leaf inside a program, in one object.

use std::path::PathBuf;

use leaf_core::Health;
use leaf_segment::{SegmentError, TagHandle};
use leaf_snowflake::SnowflakeGenerator;

use crate::config::{Config, ConfigError, Span};
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

/// Opens a [`Leaf`] with the defaults and the settings that programs change most. [`Leaf::open`]
/// takes a whole configuration.
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
#[derive(Debug, Clone, Default)]
pub struct LeafBuilder {
    config: Config,
    /// The first error: which text could not be parsed, and why.
    wrong: Option<String>,
}

impl Leaf {
    /// A builder with the defaults of `leaf-server`: segments in an SQLite file, worker id 0, both
    /// in the directory `leaf-data`.
    #[must_use]
    pub fn builder() -> LeafBuilder {
        LeafBuilder::default()
    }

    /// Opens the stores, claims a worker id and starts both modes. Call it in a tokio runtime,
    /// which must live as long as the [`Leaf`].
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let directory = tempfile::tempdir()?;
    /// use leaf_node::{Leaf, config::Config};
    ///
    /// let mut config = Config { data_dir: directory.path().into(), ..Config::default() };
    /// config.segment.max_step = 100_000;
    /// let leaf = Leaf::open(config).await?;
    /// leaf.close().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The configuration or a file is wrong, or the registry yields no worker id now (`Snowflake`).
    /// A segment store that does not answer is no error here: [`Self::segment`] then fails.
    pub async fn open(mut config: Config) -> Result<Self, OpenError> {
        config.check()?;
        // A handle that is kept serves its tag for as long as the program runs.
        config.segment.idle = Span::from_secs(0);
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
        Ok(Self(node))
    }

    /// The handle of a tag, which must exist. Keep it: it yields ids without a look-up.
    ///
    /// # Errors
    /// `UnknownTag`, `Disabled`, a failure of the store, or `BadTag` if the text is not a valid
    /// tag.
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

    /// Whether the node can issue ids now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.0.health()
    }

    /// The node itself, with its generators, stores and registry.
    #[must_use]
    pub const fn node(&self) -> &Node {
        &self.0
    }

    /// Gives the worker id and the unused ids back. Without a close the next start may have to wait
    /// for the worker id, and the unused ids are never issued. Another process can use the data
    /// directory once all handles of tags are dropped, too.
    pub async fn close(self) {
        self.0.close().await;
    }
}

impl LeafBuilder {
    /// Sets the directory of the node's state. It is made if it does not exist. No other process
    /// may use it at the same time.
    #[must_use]
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.config.data_dir = path.into();
        self
    }

    /// Sets the segment store: `sqlite:PATH`, `mysql://…`, `postgres://…` or `etcd://…`.
    #[must_use]
    pub fn store(mut self, url: &str) -> Self {
        match url.parse() {
            Ok(store) => self.config.segment.store = store,
            Err(error) => self.refuse(format!("segment.store: {error}")),
        }
        self
    }

    /// Sets the registry of worker ids: `zk-normal://host:2181,host:2181/chroot`, `zk-recycle://…`,
    /// `mysql://…`, `postgres://…`, `sqlite:/PATH`, `etcd://…`, `store` (the segment store) or
    /// `local`.
    #[must_use]
    pub fn registry(mut self, url: &str) -> Self {
        match url.parse() {
            Ok(registry) => self.config.snowflake.registry = registry,
            Err(error) => self.refuse(format!("snowflake.registry: {error}")),
        }
        self
    }

    /// Sets this node's identity in the registry, `host:port`. No other node may have the same.
    /// Default: one of the host's addresses.
    #[must_use]
    pub fn advertise(mut self, name: impl Into<String>) -> Self {
        self.config.advertise = Some(name.into());
        self
    }

    /// Switches snowflake mode off, so that no worker id is claimed.
    #[must_use]
    pub fn without_snowflake(mut self) -> Self {
        self.config.snowflake.enabled = false;
        self
    }

    /// Switches segment mode off, so that no segment store is opened.
    #[must_use]
    pub fn without_segments(mut self) -> Self {
        self.config.segment.enabled = false;
        self
    }

    /// Opens the node, see [`Leaf::open`].
    ///
    /// # Errors
    /// The errors of [`Leaf::open`], and `Config` if a URL cannot be parsed.
    pub async fn open(self) -> Result<Leaf, OpenError> {
        match self.wrong {
            Some(text) => Err(ConfigError::new(text).into()),
            None => Leaf::open(self.config).await,
        }
    }

    /// Remembers the first error, for [`Self::open`].
    fn refuse(&mut self, text: String) {
        self.wrong.get_or_insert(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_wrong_is_named_without_its_value() {
        async fn wrong(builder: LeafBuilder) -> String {
            assert!(!format!("{builder:?}").contains("canary"));
            builder.open().await.unwrap_err().to_string()
        }
        let unknown = wrong(Leaf::builder().registry("mysql://u:canary@")).await;
        assert!(unknown.contains("snowflake.registry") && !unknown.contains("canary"), "{unknown}");
        let store = wrong(Leaf::builder().store("canary")).await;
        assert!(store.contains("segment.store") && !store.contains("canary"), "{store}");
        let nothing = wrong(Leaf::builder().without_segments().without_snowflake()).await;
        assert!(nothing.contains("nothing to serve"), "{nothing}");
        let mut config = Config::default();
        config.http.max_count = 0;
        let bounds = Leaf::open(config).await.unwrap_err().to_string();
        assert!(bounds.contains("http.max_count: give 1"), "{bounds}");
    }

    /// Two nodes that use one data directory would issue the same ids.
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

        // A program may do both in tasks of its own.
        let second = tokio::spawn(open()).await.unwrap().unwrap();
        let next = second.segment("leaf-segment-test").await.unwrap().next().await.unwrap();
        assert_eq!(next.get(), last.get() + 1, "unused ids went back");
        assert!(second.snowflake().next().await.unwrap() > event);
        tokio::spawn(second.close()).await.unwrap();
    }
}
