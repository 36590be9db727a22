//! Where the segments are kept, as one line of configuration.
//!
//! A URL may hold a password: it is shown by [`StoreUrl`]'s `Display` and `Debug` without one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use leaf_segment::{SegmentStore, StoreError};

use crate::Schema;

/// `sqlite:PATH` or `mysql://user:password@host:3306/database`.
///
/// ```
/// use leaf_registry::StoreUrl;
///
/// let url: StoreUrl = "mysql://leaf:secret@db:3306/leaf".parse()?;
/// assert_eq!(url.to_string(), "mysql://leaf:***@db:3306/leaf");
/// # Ok::<(), leaf_registry::StoreUrlError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(Kind);

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf),
    #[cfg(feature = "mysql")]
    Mysql(String),
}

/// A store that was opened.
#[derive(Debug, Clone)]
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn SegmentStore>,
    /// Its tables.
    pub schema: Arc<dyn Schema>,
}

/// The text is no store URL. It never repeats the text, which may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreUrlError(String);

impl StoreUrl {
    /// Whether the store is a file of this program's own, which makes its tables by itself.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        match &self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => true,
            #[cfg(feature = "mysql")]
            Kind::Mysql(_) => false,
        }
    }

    /// Opens the store. Relative paths count from `data_dir`. A server is not contacted yet.
    ///
    /// # Errors
    /// Where the URL or the file cannot be used.
    pub async fn open(&self, data_dir: &Path) -> Result<OpenStore, StoreError> {
        match &self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(path) => {
                let store = Arc::new(crate::sqlite::SqliteStore::open(&data_dir.join(path)).await?);
                Ok(OpenStore { schema: Arc::clone(&store) as _, store })
            }
            #[cfg(feature = "mysql")]
            Kind::Mysql(url) => {
                let store = Arc::new(crate::mysql::MysqlStore::open(url)?);
                Ok(OpenStore { schema: Arc::clone(&store) as _, store })
            }
        }
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let refuse = |why: &str| Err(StoreUrlError(why.into()));
        match text.split_once(':') {
            #[cfg(feature = "sqlite")]
            Some(("sqlite", path)) => match path.strip_prefix("//").unwrap_or(path) {
                "" => refuse("sqlite: needs a path, like sqlite:leaf.db"),
                path => Ok(Self(Kind::Sqlite(path.into()))),
            },
            #[cfg(feature = "mysql")]
            Some(("mysql", rest)) if rest.starts_with("//") => {
                let options = crate::mysql::MysqlStore::options(text);
                match options.map(|options| options.get_database().is_some()) {
                    Ok(true) => Ok(Self(Kind::Mysql(text.into()))),
                    _ => refuse("not a MySQL URL: write mysql://user:password@host:3306/database"),
                }
            }
            _ => refuse(
                "unknown kind of store: write sqlite:PATH or mysql://user:password@host:3306/database",
            ),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            #[cfg(feature = "mysql")]
            Kind::Mysql(url) => f.write_str(&redact(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// The URL with the password, and all parameters, left out.
#[cfg(feature = "mysql")]
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

#[cfg(all(test, feature = "mysql", feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let passwords =
            ["canary", "can:ary", "canary%40", "canary/x", "canary@x", "canary?x", "ca#nary"];
        for password in passwords {
            let text = format!("mysql://leaf:{password}@db:3306/leaf?ssl-mode=DISABLED");
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
        for bad in ["", "leaf.db", "sqlite:", "redis://x", "mysql://", "mysql://db", "mysql:db"] {
            let error = bad.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains("mysql://") || error.contains("sqlite:"), "{bad}: {error}");
        }
        assert_eq!("sqlite:leaf.db".parse::<StoreUrl>().unwrap().to_string(), "sqlite:leaf.db");
        let absolute = "sqlite:///var/lib/leaf.db".parse::<StoreUrl>().unwrap();
        assert_eq!(absolute.to_string(), "sqlite:/var/lib/leaf.db");
    }
}
