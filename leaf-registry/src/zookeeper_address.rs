//! Where ZooKeeper is, as one line of configuration.

use std::fmt;
use std::str::FromStr;

use crate::SettingError;

/// `[user:password@]host:2181[,host:2181 …][/chroot]`, as the Java programs write it, with a login
/// for the scheme `digest` before it where needed. The last `@` ends the login.
///
/// ```
/// use leaf_registry::ZookeeperAddress;
///
/// let address: ZookeeperAddress = "leaf:secret@a:2181,b:2181/ids".parse()?;
/// assert_eq!(address.to_string(), "leaf:***@a:2181,b:2181/ids");
/// # Ok::<(), leaf_registry::SettingError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ZookeeperAddress {
    /// `user:password`.
    login: Option<String>,
    /// Hosts and chroot, as the client takes them.
    cluster: String,
}

#[cfg(feature = "zookeeper")]
impl ZookeeperAddress {
    /// `user:password`, if the address has them.
    pub(crate) fn login(&self) -> Option<&str> {
        self.login.as_deref()
    }

    /// The address without the login.
    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }
}

impl FromStr for ZookeeperAddress {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let refuse = || {
            SettingError::new(
                "not a ZooKeeper address: write host:2181,host:2181/chroot, with user:password@ before \
                 it where a login is needed",
            )
        };
        let (login, cluster) = match text.rsplit_once('@') {
            None => (None, text),
            Some((login, cluster)) if login.contains(':') => (Some(login.to_owned()), cluster),
            Some(_) => return Err(refuse()),
        };
        let (hosts, chroot) = cluster.split_once('/').map_or((cluster, None), |(hosts, path)| {
            (hosts, Some(path.trim_end_matches('/')).filter(|path| !path.is_empty()))
        });
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:[]".contains(c);
        let host = |host: &str| {
            // A bare host has the default port.
            let port = host.rsplit_once(':').map_or("2181", |(_, port)| port);
            let port_is_valid =
                host.ends_with(']') || port.parse::<u16>().is_ok_and(|port| port > 0);
            !host.is_empty() && !host.starts_with(':') && host.chars().all(plain) && port_is_valid
        };
        let segment = |segment: &str| {
            !segment.is_empty()
                && !segment.starts_with('.')
                && segment.chars().all(|c| plain(c) && !"[]".contains(c))
        };
        if !hosts.split(',').all(host) || !chroot.is_none_or(|path| path.split('/').all(segment)) {
            return Err(refuse());
        }
        let cluster = match chroot {
            Some(chroot) => format!("{hosts}/{chroot}"),
            None => hosts.to_owned(),
        };
        Ok(Self { login, cluster })
    }
}

impl fmt::Display for ZookeeperAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((user, _)) = self.login.as_deref().and_then(|login| login.split_once(':')) {
            write!(f, "{user}:***@")?;
        }
        f.write_str(&self.cluster)
    }
}

impl fmt::Debug for ZookeeperAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZookeeperAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_meant_and_refuses_the_rest_without_repeating_it() {
        for (text, shown) in [
            ("a:2181", "a:2181"),
            ("a", "a"),
            ("a:2181,b-c.d:1/x/y", "a:2181,b-c.d:1/x/y"),
            ("[::1]:2181/", "[::1]:2181"),
            ("u:canary@a:1/x/", "u:***@a:1/x"),
        ] {
            let address: ZookeeperAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert!(!format!("{address:?}").contains("canary"));
        }
        for bad in
            ["", ",", "a:0", "a:1,", "a:99999", ":1", "canary@a:1", "a:1/../x", "a b", "a:1//x"]
        {
            let error = bad.parse::<ZookeeperAddress>().unwrap_err().to_string();
            assert!(error.contains("host:2181") && !error.contains("canary"), "{bad}: {error}");
        }
    }
}
