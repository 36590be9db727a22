//! The URL of a store of segments or worker ids, one line of configuration.
//!
//! A URL may hold a password, which `Display` and `Debug` of [`StoreUrl`] do not show.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use leaf_segment::store::StoreFuture;

use crate::backend::Backend;
use crate::open::{OpenRegistry, OpenStore};
use crate::options::{RegistryKind, RegistryOptions, StoreOptions};
use crate::setting::SettingError;

/// All kinds of stores of this build.
const BACKENDS: &[&Backend] = &[
    #[cfg(feature = "sqlite")]
    &crate::sqlite::BACKEND,
    #[cfg(feature = "mysql")]
    &crate::mysql::BACKEND,
    #[cfg(feature = "postgres")]
    &crate::postgres::BACKEND,
    #[cfg(feature = "etcd")]
    &crate::etcd::BACKEND,
];

/// The schemes of all kinds of stores, also of those that this build lacks.
const SCHEMES: [&str; 5] = ["sqlite", "mysql", "postgres", "postgresql", "etcd"];

/// How to write a store's URL, for error texts.
pub(crate) const FORMS: &str = "sqlite:/PATH, mysql://user:password@host:3306/database, \
                                postgres://user:password@host:5432/database, etcd://host:2379,host:2379";

/// The URL of a store: `sqlite:PATH`, `mysql://user:password@host:3306/database`,
/// `postgres://user:password@host:5432/database` or `etcd://host:2379,host:2379/name`.
///
/// ```
/// use leaf_registry::StoreUrl;
///
/// let url: StoreUrl = "mysql://leaf:secret@db:3306/leaf".parse()?;
/// assert_eq!(url.to_string(), "mysql://leaf:***@db:3306/leaf");
/// # Ok::<(), leaf_registry::SettingError>(())
/// ```
#[derive(Clone)]
pub struct StoreUrl {
    backend: &'static Backend,
    /// The whole URL, password included: never shown.
    url: String,
}

impl PartialEq for StoreUrl {
    fn eq(&self, other: &Self) -> bool {
        self.url == other.url
    }
}

impl Eq for StoreUrl {}

impl StoreUrl {
    /// The file of an embedded store; `None` for a server. No administrator makes the tables of
    /// such a file beforehand: call [`Administration::apply`](crate::Administration::apply) once it
    /// is open.
    #[must_use]
    pub fn file(&self, data_dir: &Path) -> Option<PathBuf> {
        (self.backend.path)(&self.url).map(|path| data_dir.join(path))
    }

    /// Opens the store. Relative paths count from `data_dir`. A server is not contacted yet.
    ///
    /// # Errors
    /// The URL or the file cannot be used.
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
        (self.backend.open)(&self.url, data_dir, options)
    }

    /// Whether a text begins with the scheme of a store, also of one that this build lacks.
    pub(crate) fn has_scheme_of(text: &str) -> bool {
        text.split_once(':').is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
    }

    /// The kind of worker registry that this store can hold, besides `Ordinal`.
    pub(crate) fn registry_kind(&self) -> RegistryKind {
        self.backend.registry
    }

    /// Opens the worker registry in this store; `kind` is [`Self::registry_kind`] or `Ordinal`.
    pub(crate) fn open_workers<'a>(
        &'a self,
        kind: RegistryKind,
        data_dir: &'a Path,
        options: &'a RegistryOptions,
    ) -> StoreFuture<'a, OpenRegistry> {
        (self.backend.open_workers)(&self.url, kind, data_dir, options)
    }

    /// See [`RegistryUrl::hosts`](crate::RegistryUrl::hosts).
    pub(crate) fn hosts(&self) -> Vec<String> {
        (self.backend.hosts)(&self.url)
    }
}

impl FromStr for StoreUrl {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        if text.contains(":***@") {
            let why = "the URL has *** in place of the password: write the password";
            return Err(SettingError::new(why));
        }
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        let of_scheme = |backend: &&&Backend| backend.schemes.contains(&scheme);
        match BACKENDS.iter().find(of_scheme) {
            Some(backend) => Ok(Self { backend, url: (backend.check)(text)? }),
            None if Self::has_scheme_of(text) => Err(SettingError::new(format!(
                "this program was built without the feature for {scheme}: build it with that feature"
            ))),
            None => Err(SettingError::new(format!("unknown kind of store: write one of {FORMS}"))),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&(self.backend.show)(&self.url))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
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
        let url = StoreUrl {
            backend: &crate::mysql::BACKEND,
            url: "mysql://db/leaf?password=canary".into(),
        };
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
