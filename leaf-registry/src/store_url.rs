//! Where segments or worker ids are kept, as one line of configuration.
//!
//! A URL may hold a password: it is shown by [`StoreUrl`]'s `Display` and `Debug` without one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use leaf_core::WorkerId;
use leaf_segment::{StoreError, StoreFuture, TagStore};

use crate::{Administration, OpenRegistry, RegistryKind, RegistryOptions};

/// The schemes that a URL may begin with.
const KINDS: [&str; 5] = ["sqlite", "mysql", "postgres", "postgresql", "etcd"];

/// How to write one, for error texts.
const HOW: &str = "write sqlite:PATH, mysql://user:password@host:3306/database, \
                   postgres://user:password@host:5432/database or etcd://host:2379,host:2379";

/// `sqlite:PATH`, `mysql://user:password@host:3306/database`,
/// `postgres://user:password@host:5432/database` or `etcd://host:2379,host:2379/name`.
///
/// ```
/// use leaf_registry::StoreUrl;
///
/// let url: StoreUrl = "mysql://leaf:secret@db:3306/leaf".parse()?;
/// assert_eq!(url.to_string(), "mysql://leaf:***@db:3306/leaf");
/// # Ok::<(), leaf_registry::SettingError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(Kind);

/// What is behind a URL. Which variants there are depends on the features of this build: there may
/// be none. So the code matches on `self.0` with `ref` patterns: a `match` without arms compiles on
/// an empty enum, but not on a reference to one.
#[derive(Clone, PartialEq, Eq)]
enum Kind {
    /// A file, relative to the data directory.
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf),
    /// The whole URL, password included: never shown.
    #[cfg(feature = "mysql")]
    Mysql(String),
    /// The whole URL, password included: never shown.
    #[cfg(feature = "postgres")]
    Postgres(String),
    /// The members of a cluster.
    #[cfg(feature = "etcd")]
    Etcd(crate::etcd::EtcdUrl),
}

/// What may be chosen about a store, besides where it is.
///
/// ```
/// use leaf_registry::StoreOptions;
///
/// assert_eq!(StoreOptions::default().failover_margin, Some(10_000_000));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// By how many ids every tag is advanced at least when MySQL, MariaDB or PostgreSQL answers as
    /// another server than before: more than a failover can lose. A tag in strict order with fewer
    /// than 2^40 numbers has a margin of its own instead: a tenth of them, at most 10,000,000.
    /// `None` turns that guard off. Default 10,000,000, ten times the greatest dynamic step.
    pub failover_margin: Option<i64>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { failover_margin: Some(10_000_000) }
    }
}

/// A store that was opened.
#[derive(Debug, Clone)]
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn TagStore>,
    /// Its tables and risks.
    pub admin: Arc<dyn Administration>,
}

/// A setting is invalid or cannot be read. The text holds no password, and nothing of a setting
/// that could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(String);

impl StoreUrl {
    /// The file of an embedded store; `None` for a server. Nobody prepares such a file beforehand:
    /// call [`Administration::apply`] once it is open.
    #[must_use]
    pub fn file(&self, data_dir: &Path) -> Option<PathBuf> {
        match &self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(path) => Some(data_dir.join(path)),
            #[allow(unreachable_patterns, reason = "depends on the features")]
            _ => {
                let _ = data_dir;
                None
            }
        }
    }

    /// Opens the store. Relative paths count from `data_dir`. A server is not contacted yet.
    ///
    /// # Errors
    /// Where the URL or the file cannot be used.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let directory = tempfile::tempdir()?;
    /// use leaf_core::{Step, Tag};
    /// use leaf_registry::{StoreOptions, StoreUrl};
    /// use leaf_segment::NewTag;
    ///
    /// let url: StoreUrl = "sqlite:leaf.db".parse()?;
    /// let open = url.open(directory.path(), &StoreOptions::default()).await?;
    /// open.admin.apply().await?;
    /// let (orders, step) = (Tag::parse("orders")?, Step::new(1000)?);
    /// open.store.create(&NewTag::new(orders.clone(), step)).await?;
    ///
    /// let range = open.store.allocate(&orders, step, step.into()).await?;
    /// assert_eq!((range.start(), range.end()), (1, 1001));
    /// open.store.close().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open<'a>(
        &'a self,
        data_dir: &'a Path,
        options: &'a StoreOptions,
    ) -> StoreFuture<'a, OpenStore> {
        // Which of them counts depends on the kind of store.
        let _ = (data_dir, options);
        // A box, because an `async fn` would be compiled, drivers and all, in every crate that
        // calls it.
        Box::pin(async move {
            Ok(match self.0 {
                #[cfg(feature = "sqlite")]
                Kind::Sqlite(ref path) => {
                    OpenStore::of(crate::sqlite::store(&data_dir.join(path)).await?)
                }
                #[cfg(feature = "mysql")]
                Kind::Mysql(ref url) => OpenStore::of(crate::mysql::store(url, options)?),
                #[cfg(feature = "postgres")]
                Kind::Postgres(ref url) => OpenStore::of(crate::postgres::store(url, options)?),
                #[cfg(feature = "etcd")]
                Kind::Etcd(ref url) => OpenStore::of(crate::etcd::EtcdStore::open(url.clone())),
            })
        })
    }
}

impl StoreUrl {
    /// Whether worker ids of this kind may be kept there.
    pub(crate) fn holds_workers_of(&self, kind: RegistryKind) -> bool {
        let own = match self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => RegistryKind::Sqlite,
            #[cfg(feature = "mysql")]
            Kind::Mysql(_) => RegistryKind::Mysql,
            #[cfg(feature = "postgres")]
            Kind::Postgres(_) => RegistryKind::Postgres,
            #[cfg(feature = "etcd")]
            Kind::Etcd(_) => RegistryKind::Etcd,
        };
        kind == own || kind == RegistryKind::Ordinal
    }

    /// Opens the worker ids of this kind.
    pub(crate) async fn open_workers(
        &self,
        kind: RegistryKind,
        fixed: Option<WorkerId>,
        data_dir: &Path,
        options: &RegistryOptions,
    ) -> Result<OpenRegistry, StoreError> {
        let _ = data_dir;
        let (policy, address) = (options.policy(kind, fixed), options.address.clone());
        let interval = options.report_interval;
        Ok(match self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(ref path) => {
                let path = data_dir.join(path);
                let workers = crate::sqlite::fences(&path, interval).await?;
                OpenRegistry::with_tables(workers, policy, address)
            }
            #[cfg(feature = "mysql")]
            Kind::Mysql(ref url) => {
                let mirrored = kind == RegistryKind::Mysql;
                let workers = crate::mysql::fences(url, mirrored, interval)?;
                OpenRegistry::with_tables(workers, policy, address)
            }
            #[cfg(feature = "postgres")]
            Kind::Postgres(ref url) => {
                let workers = crate::postgres::fences(url, interval)?;
                OpenRegistry::with_tables(workers, policy, address)
            }
            #[cfg(feature = "etcd")]
            Kind::Etcd(ref url) => {
                let workers = crate::etcd::EtcdWorkers::open(url.clone(), &options.name, interval);
                OpenRegistry::new(workers, policy, address)
            }
        })
    }
}

impl OpenStore {
    /// A store, as its users see it and as an operator does.
    fn of(store: impl TagStore + Administration) -> Self {
        let store = Arc::new(store);
        Self { admin: Arc::clone(&store) as _, store }
    }
}

impl SettingError {
    /// An error of this text, which must hold no secret.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl FromStr for StoreUrl {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let refuse = |why: &str| Err(SettingError::new(why));
        if text.contains(":***@") {
            return refuse("the URL has *** in place of the password: write the password");
        }
        match text.split_once(':') {
            #[cfg(feature = "sqlite")]
            Some(("sqlite", path)) => match path.strip_prefix("//").unwrap_or(path) {
                "" => refuse("sqlite: needs a path, like sqlite:leaf.db"),
                path if path.contains('?') => refuse("sqlite: takes a path without parameters"),
                path => Ok(Self(Kind::Sqlite(path.into()))),
            },
            #[cfg(feature = "mysql")]
            Some(("mysql", rest)) if rest.starts_with("//") => {
                crate::sql::url::MYSQL.check(text)?;
                let options = sqlx::mysql::MySqlConnectOptions::from_str(text);
                match options.map(|options| options.get_database().is_some()) {
                    Ok(true) => Ok(Self(Kind::Mysql(text.into()))),
                    _ => refuse("not a MySQL URL: write mysql://user:password@host:3306/database"),
                }
            }
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                crate::sql::url::POSTGRES.check(text)?;
                let options = sqlx::postgres::PgConnectOptions::from_str(text);
                match options.map(|options| options.get_database().is_some()) {
                    Ok(true) => Ok(Self(Kind::Postgres(text.into()))),
                    _ => refuse(
                        "not a PostgreSQL URL: write postgres://user:password@host:5432/database",
                    ),
                }
            }
            #[cfg(feature = "etcd")]
            Some(("etcd", _)) => Ok(Self(Kind::Etcd(text.parse()?))),
            Some((kind, _)) if KINDS.contains(&kind) => {
                refuse(&format!("this program was built without the feature for {kind}; {HOW}"))
            }
            _ => refuse(&format!("unknown kind of store: {HOW}")),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(ref path) => write!(f, "sqlite:{}", path.display()),
            #[cfg(feature = "mysql")]
            Kind::Mysql(ref url) => f.write_str(&redact(url)),
            #[cfg(feature = "postgres")]
            Kind::Postgres(ref url) => f.write_str(&redact(url)),
            #[cfg(feature = "etcd")]
            Kind::Etcd(ref url) => url.fmt(f),
        }
    }
}

impl StoreUrl {
    /// See [`RegistryPlace::hosts`](crate::RegistryPlace::hosts).
    pub(crate) fn hosts(&self) -> Vec<String> {
        match self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => Vec::new(),
            #[cfg(feature = "mysql")]
            Kind::Mysql(ref url) => database_host(url),
            #[cfg(feature = "postgres")]
            Kind::Postgres(ref url) => database_host(url),
            #[cfg(feature = "etcd")]
            Kind::Etcd(ref url) => url.members().to_vec(),
        }
    }
}

/// The host of a database, as its URL or a parameter names it; none for a socket.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn database_host(url: &str) -> Vec<String> {
    let Ok(url) = url::Url::parse(url) else { return Vec::new() };
    let given = |name: &str| url.query_pairs().filter(|(key, _)| key == name).last();
    if given("socket").is_some() {
        return Vec::new();
    }
    let named = given("host").map(|(_, host)| host.into_owned());
    let host = named.or_else(|| url.host_str().map(str::to_owned)).unwrap_or_default();
    let is_socket = host.is_empty() || host.starts_with('/') || host.starts_with("%2F");
    if is_socket { Vec::new() } else { vec![host] }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// The URL with the password, and all parameters, left out.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn redact(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return "***".into() };
    // A password may hold an '@': the last one ends it.
    match rest.rsplit_once('@') {
        None => format!("{scheme}://{rest}"),
        Some((login, place)) => {
            let user = login.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}:***@{place}")
        }
    }
}

#[cfg(all(test, feature = "mysql", feature = "sqlite", feature = "postgres", feature = "etcd"))]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let passwords =
            ["canary", "can:ary", "canary%40", "canary/x", "canary@x", "canary?x", "ca#nary"];
        let kinds = ["mysql://", "postgres://", "etcd://"];
        for (kind, password) in kinds.iter().flat_map(|kind| passwords.map(|word| (kind, word))) {
            let text = format!("{kind}leaf:{password}@db:3306/leaf?ssl-mode=DISABLED");
            let shown = match text.parse::<StoreUrl>() {
                Ok(url) => format!("{url} {url:?}"),
                Err(error) => error.to_string(),
            };

            assert!(!shown.contains("nary"), "{shown}");
        }
        let url = StoreUrl(Kind::Mysql("mysql://db/leaf?password=canary".into()));
        assert!(!url.to_string().contains("canary"), "{url}");
    }

    #[test]
    fn says_how_to_write_it() {
        let bad = ["", "leaf.db", "sqlite:", "redis://x", "mysql://", "mysql://db", "mysql:db"];
        for bad in bad.into_iter().chain(["postgres://", "postgres:db", "etcd:", "etcd://"]) {
            let error = bad.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains("://") || error.contains("sqlite:"), "{bad}: {error}");
        }
        assert_eq!("sqlite:leaf.db".parse::<StoreUrl>().unwrap().to_string(), "sqlite:leaf.db");
        let absolute = "sqlite:///var/lib/leaf.db".parse::<StoreUrl>().unwrap();
        assert_eq!(absolute.to_string(), "sqlite:/var/lib/leaf.db");
    }
}
