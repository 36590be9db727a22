//! The URL of an etcd cluster, one line of configuration.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use etcd_client::ConnectOptions;

use crate::host_list::HostList;

/// The `{name}` in `/leaf/{name}/…` where the URL has none.
const NAME: &str = "leaf";
/// How long connecting to one member may take.
const CONNECT: Duration = Duration::from_secs(1);
/// Deadline of one request. Below the generator's own deadline, so that another member may answer
/// the next attempt.
const REQUEST: Duration = Duration::from_millis(1500);
/// The interval of pings to a member, and how long its answer may take before it counts as gone.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));

/// `etcd://[user:password@]host:2379[,host:2379 …][/name]`; the password is percent-encoded.
///
/// ```
/// use leaf_registry::etcd::EtcdUrl;
///
/// let url: EtcdUrl = "etcd://leaf:secret@a:2379,b:2379/shop".parse()?;
/// assert_eq!(url.to_string(), "etcd://leaf:***@a:2379,b:2379/shop");
/// assert_eq!(url.name(), "shop");
/// # Ok::<(), leaf_registry::SettingError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUrl(HostList);

impl EtcdUrl {
    /// The name in the URL, else `leaf`; keys of segments start with `/leaf/{name}/`. If the URL
    /// has no name, worker ids use [`RegistryOptions::name`](crate::RegistryOptions) instead of
    /// `leaf`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name_or(NAME)
    }

    /// The name in the URL, else `default`.
    pub(super) fn name_or<'a>(&'a self, default: &'a str) -> &'a str {
        if self.0.path().is_empty() { default } else { self.0.path() }
    }

    /// The members, each `host:port`.
    pub(crate) fn members(&self) -> &[String] {
        self.0.hosts()
    }

    /// The client's connect options. `require_leader` makes a member that lost its quorum refuse
    /// reads, which it would answer from an old state.
    pub(super) fn options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .with_connect_timeout(CONNECT)
            .with_timeout(REQUEST)
            .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        match self.0.login() {
            None => options,
            Some((user, password)) => {
                options.with_user(user, password).with_auto_token_refresh(true)
            }
        }
    }
}

impl FromStr for EtcdUrl {
    type Err = crate::SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let list = text.strip_prefix("etcd://").and_then(|rest| HostList::parse(rest, false));
        list.filter(|list| !list.path().contains('/')).map(Self).ok_or_else(|| {
            crate::SettingError::new(
                "not an etcd URL: write etcd://host:2379,host:2379, with user:password@ before the \
                 hosts and /name behind them where needed",
            )
        })
    }
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}", self.0)
    }
}

impl fmt::Debug for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_meant_and_refuses_the_rest_without_repeating_it() {
        let url: EtcdUrl = "etcd://[::1]:2379,a-b.c:1".parse().unwrap();
        assert_eq!(url.to_string(), "etcd://[::1]:2379,a-b.c:1");
        for bad in ["", "canary", "u:canary@", "canary@a:1", "a:1/x/y"] {
            let error = format!("etcd://{bad}").parse::<EtcdUrl>().unwrap_err().to_string();
            assert!(error.contains("etcd://host:2379") && !error.contains("canary"), "{error}");
        }
    }
}
