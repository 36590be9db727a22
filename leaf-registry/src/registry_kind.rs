//! Where worker ids come from, as a configuration names it.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use leaf_core::WorkerId;
use leaf_segment::{StoreError, StoreErrorKind, StoreFuture};
use leaf_snowflake::{ClaimPolicy, Identity, WorkerRange};

use crate::{OpenRegistry, SettingError, StoreUrl, ZookeeperAddress};

/// A kind of worker registry.
///
/// Worker ids of `local`, `ordinal`, `zk_normal` and `mysql` belong to names, or to whoever is
/// configured with them; those of the others go to whoever claims them, and are given out again.
/// See [`ClaimPolicy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryKind {
    /// From the configuration.
    Local,
    /// The number at the end of the host name.
    Ordinal,
    /// By name, for ever, in ZooKeeper: as the original Java Leaf.
    ZkNormal,
    /// From pools in ZooKeeper: as the community fork.
    ZkRecycle,
    /// In MySQL or MariaDB, copied into the community fork's table.
    Mysql,
    /// In PostgreSQL.
    Postgres,
    /// In a file that several processes of one host share.
    Sqlite,
    /// In etcd.
    Etcd,
}

/// What a configuration calls each kind.
const NAMES: [(RegistryKind, &str); 8] = [
    (RegistryKind::Local, "local"),
    (RegistryKind::Ordinal, "ordinal"),
    (RegistryKind::ZkNormal, "zk_normal"),
    (RegistryKind::ZkRecycle, "zk_recycle"),
    (RegistryKind::Mysql, "mysql"),
    (RegistryKind::Postgres, "postgres"),
    (RegistryKind::Sqlite, "sqlite"),
    (RegistryKind::Etcd, "etcd"),
];

impl FromStr for RegistryKind {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let found = NAMES.into_iter().find(|(_, name)| *name == text);
        found.map(|(kind, _)| kind).ok_or_else(|| {
            let names = NAMES.map(|(_, name)| name).join(", ");
            SettingError::new(format!("unknown registry: there are {names}"))
        })
    }
}

impl fmt::Display for RegistryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// A registry's records: where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryPlace {
    /// In ZooKeeper.
    Zookeeper(ZookeeperAddress),
    /// In a database or etcd.
    Store(StoreUrl),
}

impl RegistryPlace {
    /// The hosts that have the records, each with its port where one is given; none where they are
    /// on this host for certain, in a file or behind a socket.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        match self {
            Self::Zookeeper(address) => {
                let shown = address.to_string();
                let hosts = shown.rsplit_once('@').map_or(&*shown, |(_, hosts)| hosts);
                let hosts = hosts.split('/').next().unwrap_or_default();
                hosts.split(',').map(str::to_owned).collect()
            }
            Self::Store(url) => url.hosts(),
        }
    }
}

impl fmt::Display for RegistryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zookeeper(address) => address.fmt(f),
            Self::Store(url) => url.fmt(f),
        }
    }
}

/// What a configuration says of where worker ids may be kept.
///
/// ```
/// use leaf_registry::{RegistryKind, RegistryPlaces};
///
/// let store = "mysql://leaf:secret@db:3306/leaf".parse()?;
/// let places = RegistryPlaces { segment_store: Some(store), ..RegistryPlaces::default() };
///
/// let place = places.of(RegistryKind::Mysql)?.expect("it needs a place");
/// assert_eq!(place.to_string(), "mysql://leaf:***@db:3306/leaf");
/// assert!(places.of(RegistryKind::Etcd).is_err(), "the segment store is of another kind");
/// assert_eq!(places.of(RegistryKind::Local)?, None);
/// # Ok::<(), leaf_registry::SettingError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistryPlaces {
    /// Where ZooKeeper is (in leaf-server: `snowflake.zookeeper`).
    pub zookeeper: Option<ZookeeperAddress>,
    /// Where the database of the registry is (`snowflake.database`).
    pub database: Option<StoreUrl>,
    /// Where etcd is (`snowflake.etcd`).
    pub etcd: Option<StoreUrl>,
    /// The segment store (`segment.store`). It also holds the registry's records, if no place is
    /// given for the registry and the store is a database of the registry's kind.
    pub segment_store: Option<StoreUrl>,
}

impl RegistryPlaces {
    /// Where a registry of this kind has its records; `None` where it needs no place.
    ///
    /// # Errors
    /// Names the key that is missing or wrong.
    pub fn of(&self, kind: RegistryKind) -> Result<Option<RegistryPlace>, SettingError> {
        let zookeeper = || self.zookeeper.clone().map(RegistryPlace::Zookeeper);
        let store = |url: &StoreUrl| RegistryPlace::Store(url.clone());
        let refuse = |text: String| Err(SettingError::new(text));
        let fits = |url: &&StoreUrl| url.holds_workers_of(kind);
        let shared = || self.segment_store.as_ref().filter(fits).map(store);
        match kind {
            RegistryKind::Local => Ok(None),
            RegistryKind::Ordinal => {
                let stores = [&self.database, &self.etcd].into_iter().flatten().map(store);
                let mut places = zookeeper().into_iter().chain(stores);
                match (places.next(), places.next()) {
                    (place, None) => Ok(place),
                    _ => refuse(
                        "give one of snowflake.zookeeper, snowflake.database and snowflake.etcd, or none \
                         of them, to keep the record in the state file"
                            .into(),
                    ),
                }
            }
            RegistryKind::ZkNormal | RegistryKind::ZkRecycle => match zookeeper() {
                Some(place) => Ok(Some(place)),
                None => refuse(
                    "snowflake.zookeeper is missing: write host:2181,host:2181/chroot".into(),
                ),
            },
            RegistryKind::Mysql | RegistryKind::Postgres | RegistryKind::Sqlite => {
                match &self.database {
                    Some(url) if fits(&url) => Ok(Some(store(url))),
                    Some(url) => refuse(format!("snowflake.database {url} is not of the kind {kind}")),
                    None => shared().map(Some).ok_or_else(|| {
                        let instead = match &self.segment_store {
                            Some(_) => ": segment.store cannot be used instead, it is of another kind",
                            None => "",
                        };
                        SettingError::new(format!("set snowflake.database to a {kind} URL{instead}"))
                    }),
                }
            }
            RegistryKind::Etcd => match &self.etcd {
                Some(url) if fits(&url) => Ok(Some(store(url))),
                Some(url) => refuse(format!("snowflake.etcd {url} is no etcd URL")),
                None => shared().map(Some).ok_or_else(|| {
                    SettingError::new(
                        "snowflake.etcd is missing: write etcd://host:2379,host:2379,host:2379/name",
                    )
                }),
            },
        }
    }
}

/// The most that a file with one setting holds.
const LARGEST_SETTING: u64 = 64 * 1024;

/// Reads a URL or an address from a file: for deployments that mount secrets as files. White space
/// around it does not count.
///
/// # Errors
/// A text that names the file and never repeats what it holds.
pub fn read_setting<T>(file: &Path) -> Result<T, SettingError>
where
    T: FromStr<Err = SettingError>,
{
    let parsed = read_secret(file)?.parse();
    parsed.map_err(|error| SettingError::new(format!("{}: {error}", shown(file))))
}

/// A file's name for an error. It is hidden where it looks like the secret itself (a URL, or a
/// key), which somebody gave in place of the file.
fn shown(file: &Path) -> String {
    let name = file.display().to_string();
    let is_key = name.split(|c: char| !c.is_ascii_hexdigit()).any(|digits| digits.len() >= 32);
    match is_key || name.contains("://") || name.contains(['@', '=']) {
        true => "(this is no file name)".into(),
        // Without line breaks, so that the error stays on one line.
        false => name.replace(char::is_control, "?"),
    }
}

/// Reads a text from a file, without the white space around it.
///
/// # Errors
/// A text that names the file and never repeats what it holds.
pub fn read_secret(file: &Path) -> Result<String, SettingError> {
    let refuse = |why: String| SettingError::new(format!("{}: {why}", shown(file)));
    // A pipe would be waited for.
    match std::fs::metadata(file) {
        Ok(found) if !found.is_file() => return Err(refuse("not a regular file".into())),
        Ok(_) => {}
        Err(error) => return Err(refuse(error.to_string())),
    }
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(|error| refuse(error.to_string()))?;
    let read = opened.take(LARGEST_SETTING + 1).read_to_string(&mut text);
    let length = read.map_err(|error| refuse(error.to_string()))?;
    if length as u64 > LARGEST_SETTING {
        return Err(refuse("too large for one setting".into()));
    }
    Ok(text.trim().to_owned())
}

/// What may be chosen about a registry, besides where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryOptions {
    /// The name of the cluster of Leaf nodes (Java: `leaf.name`), part of the paths in ZooKeeper
    /// and etcd. Letters, digits and `-_.`.
    pub name: String,
    /// How often a holder reports. In SQL databases and etcd a node that was silent for three of
    /// these is no longer asked for its clock.
    pub report_interval: Duration,
    /// How long ZooKeeper keeps a session without hearing of it.
    pub session_timeout: Duration,
    /// A worker id that was not released is given out again this long after its ceiling has passed.
    /// In `mysql`, where worker ids belong to identities, a released one waits as long, too.
    pub recycle_after: Duration,
    /// Whether worker ids that Java Leafs held are given out again. Only for a registry that no
    /// Java Leaf uses any more.
    pub adopt_java_ids: bool,
    /// The worker ids that this registry gives out, so that another registry can give out the
    /// others; `None`: all.
    pub worker_range: Option<WorkerRange>,
    /// The address at which this node answers HTTP. `None`: the node's identity is that address.
    pub address: Option<Identity>,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        Self {
            name: "leaf".into(),
            report_interval: Duration::from_secs(3),
            session_timeout: Duration::from_secs(10),
            recycle_after: Duration::from_secs(3600),
            adopt_java_ids: false,
            worker_range: None,
            address: None,
        }
    }
}

impl RegistryOptions {
    /// Whether the name can be part of a path.
    ///
    /// # Errors
    /// A text for the operator.
    ///
    /// ```
    /// use leaf_registry::RegistryOptions;
    ///
    /// assert!(RegistryOptions::check_name("shop-eu.1").is_ok());
    /// assert!(RegistryOptions::check_name("shop/eu").is_err(), "it would be two folders in ZooKeeper");
    /// ```
    pub fn check_name(name: &str) -> Result<(), SettingError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(SettingError::new(
                "give 1 to 64 letters, digits, '-', '_' or '.', not starting with '.'",
            ));
        }
        Ok(())
    }

    /// Who may take what in a registry of this kind.
    pub(crate) fn policy(&self, kind: RegistryKind, fixed: Option<WorkerId>) -> ClaimPolicy {
        let bound =
            matches!(kind, RegistryKind::ZkNormal | RegistryKind::Mysql | RegistryKind::Ordinal);
        ClaimPolicy {
            bound,
            fixed,
            range: self.worker_range,
            recycle_after: self.recycle_after,
            adopt_java_ids: self.adopt_java_ids,
        }
    }
}

impl RegistryPlace {
    /// The file of an embedded registry; `None` for a server. Nobody prepares such a file
    /// beforehand: call [`Administration::apply`](crate::Administration::apply) once it is open.
    #[must_use]
    pub fn file(&self, data_dir: &Path) -> Option<PathBuf> {
        match self {
            Self::Zookeeper(_) => None,
            Self::Store(url) => url.file(data_dir),
        }
    }

    /// Opens the registry of this kind there; for `Ordinal` the worker id is `fixed`. Relative
    /// paths count from `data_dir`. A server is not contacted yet.
    ///
    /// # Errors
    /// Where kind and place do not go together, or the file cannot be used.
    pub fn open<'a>(
        &'a self,
        kind: RegistryKind,
        fixed: Option<WorkerId>,
        data_dir: &'a Path,
        options: &'a RegistryOptions,
    ) -> StoreFuture<'a, OpenRegistry> {
        // A box, because an `async fn` would be compiled, drivers and all, in every crate that
        // calls it.
        Box::pin(self.open_here(kind, fixed, data_dir, options))
    }

    async fn open_here(
        &self,
        kind: RegistryKind,
        fixed: Option<WorkerId>,
        data_dir: &Path,
        options: &RegistryOptions,
    ) -> Result<OpenRegistry, StoreError> {
        let refuse = |why: String| {
            Err(StoreError::new(StoreErrorKind::Refused, "open the worker registry").because(why))
        };
        if let Err(error) = RegistryOptions::check_name(&options.name) {
            return refuse(format!("name: {error}"));
        }
        match (self, kind) {
            #[cfg(feature = "zookeeper")]
            (
                Self::Zookeeper(address),
                RegistryKind::ZkNormal | RegistryKind::ZkRecycle | RegistryKind::Ordinal,
            ) => Ok(open_zookeeper(address, kind, fixed, options)),
            #[cfg(not(feature = "zookeeper"))]
            (Self::Zookeeper(_), _) => {
                refuse("this program was built without the feature for zookeeper".into())
            }
            (Self::Store(url), kind) if url.holds_workers_of(kind) => {
                url.open_workers(kind, fixed, data_dir, options).await
            }
            _ => refuse(format!("a registry of kind {kind} cannot be kept there")),
        }
    }
}

/// Opens a registry of this kind in ZooKeeper.
#[cfg(feature = "zookeeper")]
fn open_zookeeper(
    address: &ZookeeperAddress,
    kind: RegistryKind,
    fixed: Option<WorkerId>,
    options: &RegistryOptions,
) -> OpenRegistry {
    use crate::zk_normal::ZkNormal;
    use crate::zk_recycle::ZkRecycle;
    use crate::zookeeper::{Session, ZkWorkers};

    let session = Session::new(address.clone(), options.session_timeout);
    let (name, interval) = (options.name.as_str(), options.report_interval);
    let (policy, own) = (options.policy(kind, fixed), options.address.clone());
    match kind {
        RegistryKind::ZkNormal => {
            OpenRegistry::new(ZkNormal::new(session, name, interval), policy, own)
        }
        RegistryKind::ZkRecycle => {
            OpenRegistry::new(ZkRecycle::new(session, name, interval), policy, own)
        }
        _ => OpenRegistry::new(ZkWorkers::new(session, name, interval), policy, own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_from_a_file_and_never_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        std::fs::write(&file, "u:canary@a:2181/x\n").unwrap();
        let address: ZookeeperAddress = read_setting(&file).unwrap();
        assert_eq!(address.to_string(), "u:***@a:2181/x");

        std::fs::write(&file, "canary@\n").unwrap();
        let error = read_setting::<ZookeeperAddress>(&file).unwrap_err().to_string();
        assert!(error.contains("secret: ") && !error.contains("canary"), "{error}");
        std::fs::write(&file, "a".repeat(70_000)).unwrap();
        assert!(read_setting::<ZookeeperAddress>(&file).is_err());
    }

    #[test]
    fn every_kind_has_one_name() {
        for (kind, name) in NAMES {
            assert_eq!(name.parse::<RegistryKind>().unwrap(), kind);
            assert_eq!(kind.to_string(), name);
        }
        let error = "zookeeper".parse::<RegistryKind>().unwrap_err().to_string();
        assert!(error.contains("zk_normal, zk_recycle"), "{error}");
        assert!(RegistryOptions::check_name("my-leaf.1").is_ok());
        for bad in ["", "a/b", "..", "a b"] {
            assert!(RegistryOptions::check_name(bad).is_err(), "{bad}");
        }
    }
}
