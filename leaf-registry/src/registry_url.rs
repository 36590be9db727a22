//! The URL of a worker registry, one line of configuration.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use leaf_segment::store::StoreFuture;
use leaf_segment::{StoreError, StoreErrorKind};

use crate::host_list::HostList;
use crate::local;
use crate::open::OpenRegistry;
use crate::options::{RegistryKind, RegistryOptions};
use crate::setting::SettingError;
use crate::store_url::{FORMS, StoreUrl};

/// A worker registry: its kind, and where its records are.
///
/// | text | worker ids |
/// |---|---|
/// | `local` | from the configuration; the record is in the state file |
/// | `ordinal` | the number at the end of the host name; the record is in the state file |
/// | `ordinal+zk://…`, `ordinal+mysql://…`, `ordinal+etcd://…` | the same number; the record is in that store |
/// | `zk-normal://user:password@host:2181,host:2181/chroot` | shared with the original Java Leaf |
/// | `zk-recycle://…` | shared with the community fork |
/// | `mysql://…`, `postgres://…`, `sqlite:/PATH`, `etcd://…` | from that store; written like a [`StoreUrl`] |
/// | `store`, `ordinal+store` | in the segment store, see [`Self::in_store`] |
///
/// ```
/// use leaf_registry::{RegistryKind, RegistryUrl};
///
/// let url: RegistryUrl = "zk-normal://leaf:secret@a:2181,b:2181/ids".parse()?;
/// assert_eq!(url.kind(), RegistryKind::ZkNormal);
/// assert_eq!(url.to_string(), "zk-normal://leaf:***@a:2181,b:2181/ids");
///
/// let url: RegistryUrl = "ordinal+store".parse()?;
/// let url = url.in_store(&"mysql://leaf:secret@db/leaf".parse()?);
/// assert_eq!(url.to_string(), "ordinal+mysql://leaf:***@db/leaf");
/// # Ok::<(), leaf_registry::SettingError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryUrl {
    /// Whether the worker id is the number at the end of the host name.
    ordinal: bool,
    place: Place,
}

/// The place of a registry's records.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// In each node's state file.
    StateFile,
    /// In the segment store; [`RegistryUrl::in_store`] replaces this by the store's URL.
    SegmentStore,
    /// In ZooKeeper. `recycle` is true for the registry that is shared with the community fork, and
    /// false for the one that is shared with the original, and for ordinals.
    Zookeeper { recycle: bool, hosts: HostList },
    /// In a database or etcd.
    Store(StoreUrl),
}

impl RegistryUrl {
    /// The registry `local`.
    pub const LOCAL: Self = Self { ordinal: false, place: Place::StateFile };

    /// The kind of the registry.
    #[must_use]
    pub fn kind(&self) -> RegistryKind {
        match &self.place {
            _ if self.ordinal => RegistryKind::Ordinal,
            Place::StateFile => RegistryKind::Local,
            Place::SegmentStore => RegistryKind::SegmentStore,
            Place::Zookeeper { recycle: true, .. } => RegistryKind::ZkRecycle,
            Place::Zookeeper { recycle: false, .. } => RegistryKind::ZkNormal,
            Place::Store(url) => url.registry_kind(),
        }
    }

    /// Replaces the word `store` by the URL of the segment store; any other registry is unchanged.
    #[must_use]
    pub fn in_store(self, store: &StoreUrl) -> Self {
        match self.place {
            Place::SegmentStore => Self { place: Place::Store(store.clone()), ..self },
            _ => self,
        }
    }

    /// Whether each node's record is only in its own state file, so that nodes share no store.
    #[must_use]
    pub fn is_in_state_file(&self) -> bool {
        self.place == Place::StateFile
    }

    /// Whether clusters of different [names](crate::RegistryOptions::name) have separate worker ids
    /// in this registry. If not, all clusters that use this URL share one pool.
    ///
    /// ```
    /// use leaf_registry::RegistryUrl;
    ///
    /// # #[cfg(feature = "zookeeper")]
    /// assert!("zk-recycle://a:2181".parse::<RegistryUrl>()?.keeps_names_apart());
    /// assert!(!"sqlite:/var/lib/leaf/workers.db".parse::<RegistryUrl>()?.keeps_names_apart());
    /// # Ok::<(), leaf_registry::SettingError>(())
    /// ```
    #[must_use]
    pub fn keeps_names_apart(&self) -> bool {
        match &self.place {
            Place::Zookeeper { .. } => true,
            // An etcd URL with a path names the cluster itself.
            Place::Store(url) => {
                url.to_string().strip_prefix("etcd://").is_some_and(|list| !list.contains('/'))
            }
            Place::StateFile | Place::SegmentStore => false,
        }
    }

    /// The hosts that hold the records, each with its port if the URL gives one. Empty if the
    /// records are certainly on this host, in a file or behind a socket; also empty for `store`
    /// before [`Self::in_store`].
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        match &self.place {
            Place::StateFile | Place::SegmentStore => Vec::new(),
            Place::Zookeeper { hosts, .. } => hosts.hosts().to_vec(),
            Place::Store(url) => url.hosts(),
        }
    }

    /// The file of an embedded registry; `None` for a server, and for the state file. No
    /// administrator makes the tables of such a file beforehand: call
    /// [`Administration::apply`](crate::Administration::apply) once it is open.
    #[must_use]
    pub fn file(&self, data_dir: &Path) -> Option<PathBuf> {
        match &self.place {
            Place::Store(url) => url.file(data_dir),
            _ => None,
        }
    }

    /// Opens the registry. Relative paths count from `data_dir`. A server is not contacted yet.
    ///
    /// # Errors
    /// The place or the options cannot be used.
    pub fn open<'a>(
        &'a self,
        data_dir: &'a Path,
        options: &'a RegistryOptions,
    ) -> StoreFuture<'a, OpenRegistry> {
        // A box, because an `async fn` would be compiled, drivers and all, in every crate that
        // calls it.
        Box::pin(async move {
            let refuse = |why: String| {
                let error = StoreError::new(StoreErrorKind::Refused, "open the worker registry");
                Err(error.because(why))
            };
            if let Err(error) = RegistryOptions::check_name(&options.name) {
                return refuse(format!("name: {error}"));
            }
            match (&self.place, &options.workers) {
                (Place::StateFile, Some(workers)) => {
                    let registry = local::registry(workers.clone(), options.worker_range);
                    Ok(OpenRegistry { registry, admin: None })
                }
                (Place::StateFile, None) => {
                    refuse("its records are in the state file of each node".into())
                }
                (Place::SegmentStore, _) => refuse("the segment store is not known here".into()),
                #[cfg(feature = "zookeeper")]
                (Place::Zookeeper { hosts, .. }, _) => {
                    Ok(crate::zookeeper::open(hosts, self.kind(), options))
                }
                #[cfg(not(feature = "zookeeper"))]
                (Place::Zookeeper { .. }, _) => {
                    refuse("this program was built without the feature for zookeeper".into())
                }
                (Place::Store(url), _) => url.open_workers(self.kind(), data_dir, options).await,
            }
        })
    }
}

impl FromStr for RegistryUrl {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let (ordinal, rest) = match text.strip_prefix("ordinal+") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if text.contains(":***@") {
            let why = "the URL has *** in place of the password: write the password";
            return Err(SettingError::new(why));
        }
        let of = |ordinal, place| Ok(Self { ordinal, place });
        let zookeeper = |recycle, hosts| match HostList::parse(hosts, true) {
            Some(hosts) => of(ordinal, Place::Zookeeper { recycle, hosts }),
            None => Err(SettingError::new(
                "not a list of ZooKeeper servers: write zk-normal://host:2181,host:2181/chroot, with user:password@ \
                 before the hosts where a login is needed",
            )),
        };
        match (rest, rest.split_once("://")) {
            ("local", _) if !ordinal => of(false, Place::StateFile),
            ("ordinal", _) if !ordinal => of(true, Place::StateFile),
            ("store", _) => of(ordinal, Place::SegmentStore),
            (_, Some(("zk-normal", hosts))) if !ordinal => zookeeper(false, hosts),
            (_, Some(("zk-recycle", hosts))) if !ordinal => zookeeper(true, hosts),
            (_, Some(("zk", hosts))) if ordinal => zookeeper(false, hosts),
            _ if StoreUrl::has_scheme_of(rest) => of(ordinal, Place::Store(rest.parse()?)),
            _ => Err(SettingError::new(format!(
                "unknown registry: write local, ordinal, store (that of the segments), \
                 zk-normal://host:2181,host:2181/chroot, zk-recycle://host:2181, {FORMS}, or ordinal+ before store, \
                 zk:// or the URL of a database"
            ))),
        }
    }
}

/// Writes the registry as the configuration has it, with `***` in place of the password.
impl fmt::Display for RegistryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.place, self.ordinal) {
            (Place::StateFile, false) => f.write_str("local"),
            (Place::StateFile, true) => f.write_str("ordinal"),
            (Place::SegmentStore, false) => f.write_str("store"),
            (Place::SegmentStore, true) => f.write_str("ordinal+store"),
            (Place::Zookeeper { hosts, .. }, true) => write!(f, "ordinal+zk://{hosts}"),
            (Place::Zookeeper { recycle: true, hosts }, _) => write!(f, "zk-recycle://{hosts}"),
            (Place::Zookeeper { recycle: false, hosts }, _) => write!(f, "zk-normal://{hosts}"),
            (Place::Store(url), false) => url.fmt(f),
            (Place::Store(url), true) => write!(f, "ordinal+{url}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_one_text() {
        for (text, kind) in [
            ("local", RegistryKind::Local),
            ("ordinal", RegistryKind::Ordinal),
            ("store", RegistryKind::SegmentStore),
            ("ordinal+store", RegistryKind::Ordinal),
            ("zk-normal://a:2181,b:2181", RegistryKind::ZkNormal),
            ("zk-recycle://a/leaf", RegistryKind::ZkRecycle),
            ("ordinal+zk://a:2181", RegistryKind::Ordinal),
        ] {
            let url: RegistryUrl = text.parse().unwrap();
            assert_eq!((url.kind(), url.to_string()), (kind, text.to_owned()));
        }
        for bad in [
            "",
            "zk_normal",
            "mysql",
            "zk://a",
            "ordinal+local",
            "ordinal+zk-normal://a",
            "redis://a",
        ] {
            let error = bad.parse::<RegistryUrl>().unwrap_err().to_string();
            assert!(error.starts_with("unknown registry: write local"), "{bad}: {error}");
        }
        let shown = "zk-normal://u:***@a".parse::<RegistryUrl>().unwrap_err().to_string();
        assert!(shown.contains("write the password"), "{shown}");
        let error = "zk-normal://canary@a".parse::<RegistryUrl>().unwrap_err().to_string();
        assert!(error.contains("host:2181") && !error.contains("canary"), "{error}");
    }
}
