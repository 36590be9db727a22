//! Where etcd is, as one line of configuration.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use etcd_client::ConnectOptions;
use percent_encoding::percent_decode_str;

/// The `{name}` in `/leaf/{name}/…` where the URL has none.
const NAME: &str = "leaf";
/// How long connecting to one member may take.
const CONNECT: Duration = Duration::from_secs(1);
/// Below the generator's own deadline: another member may answer the next attempt.
const REQUEST: Duration = Duration::from_millis(1500);
/// How often a member is pinged, and how long its answer may take: then it counts as gone.
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
pub struct EtcdUrl {
    /// User and password, decoded.
    login: Option<(String, String)>,
    /// Each `host:port`.
    members: Vec<String>,
    /// What is behind the hosts.
    name: Option<String>,
}

impl EtcdUrl {
    /// The name in the URL, else `leaf`; keys of segments start with `/leaf/{name}/`. Worker ids
    /// use
    /// [`RegistryOptions::name`](crate::RegistryOptions) instead where the URL has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name_or(NAME)
    }

    /// The name in the URL, else this one.
    pub(super) fn name_or<'a>(&'a self, default: &'a str) -> &'a str {
        self.name.as_deref().unwrap_or(default)
    }

    /// The members, each `host:port`.
    pub(crate) fn members(&self) -> &[String] {
        &self.members
    }

    /// What the client connects with. `require_leader` makes a member that lost its quorum refuse
    /// reads: it would answer from the past.
    pub(super) fn options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .with_connect_timeout(CONNECT)
            .with_timeout(REQUEST)
            .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        match &self.login {
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
        let refuse = || {
            crate::SettingError::new(
                "not an etcd URL: write etcd://host:2379,host:2379, with user:password@ before the \
                 hosts and /name behind them where needed",
            )
        };
        let rest = text.strip_prefix("etcd://").ok_or_else(refuse)?;
        let (login, rest) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((login, rest)) => {
                let (user, password) = login.split_once(':').ok_or_else(refuse)?;
                let decode = |text: &str| {
                    percent_decode_str(text).decode_utf8().map(|text| text.into_owned())
                };
                let user = decode(user).map_err(|_| refuse())?;
                (Some((user, decode(password).map_err(|_| refuse())?)), rest)
            }
        };
        let (members, name) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let member = |member: &str| {
            let (host, port) = member.rsplit_once(':')?;
            let host_is_plain = |host: &str| {
                !host.is_empty() && host.chars().all(|c| plain(c) || "[]:".contains(c))
            };
            let port: u16 = port.parse().ok()?;
            host_is_plain(host).then(|| format!("{host}:{port}"))
        };
        let members: Option<Vec<String>> = members.split(',').map(member).collect();
        match members {
            Some(members) if name.chars().all(plain) => {
                let name = (!name.is_empty()).then(|| name.to_owned());
                Ok(Self { login, members, name })
            }
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("etcd://")?;
        if let Some((user, _)) = &self.login {
            write!(f, "{user}:***@")?;
        }
        f.write_str(&self.members.join(","))?;
        self.name.iter().try_for_each(|name| write!(f, "/{name}"))
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
        let url: EtcdUrl = "etcd://u:c%40n%2Fry@a:1".parse().unwrap();
        assert_eq!(url.login, Some(("u".into(), "c@n/ry".into())));
        assert!(!format!("{url} {url:?}").contains("ry"), "{url:?}");

        for bad in
            ["a:1", "", "canary", ":1", "a:1,", "a:99999", "u:canary@", "canary@a:1", "a:1/x/y"]
        {
            let error = format!("etcd://{bad}").parse::<EtcdUrl>().map(|_| ());
            if bad == "a:1" {
                error.unwrap();
                continue;
            }
            let error = error.unwrap_err().to_string();
            assert!(error.contains("etcd://host:2379") && !error.contains("canary"), "{error}");
        }
    }
}
