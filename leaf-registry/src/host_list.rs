//! The servers of a cluster, as a URL of ZooKeeper or etcd names them.

use std::fmt;

use percent_encoding::percent_decode_str;

/// A list of hosts, with login and path if given: `[user:password@]host:2379,host:2379[/path]`.
/// User and password are percent-encoded.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HostList {
    /// User and password, decoded.
    login: Option<(String, String)>,
    /// The hosts, each `host:port`, or `host` if no port was given.
    hosts: Vec<String>,
    /// The path behind the hosts, without slashes at its ends; empty if there is none.
    path: String,
}

impl HostList {
    /// Parses what follows `scheme://` in a URL; `None` if it is not a valid list of hosts. With
    /// `has_default_port`, a host may lack its port.
    pub(crate) fn parse(text: &str, has_default_port: bool) -> Option<Self> {
        let (login, rest) = match text.rsplit_once('@') {
            None => (None, text),
            Some((login, rest)) => {
                let (user, password) = login.split_once(':')?;
                let decode = |text| Some(percent_decode_str(text).decode_utf8().ok()?.into_owned());
                (Some((decode(user)?, decode(password)?)), rest)
            }
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_end_matches('/');
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        let segment =
            |name: &str| !name.is_empty() && !name.starts_with('.') && name.chars().all(plain);
        let host = |host: &str| {
            let (name, port) = match host.rsplit_once(':') {
                // The colons of a bare address of IPv6 in brackets end no host.
                Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
                _ => (host, None),
            };
            let port_is_valid = match port {
                None => has_default_port,
                Some(port) => port.parse::<u16>().is_ok_and(|port| port > 0),
            };
            let is_plain = |c: char| plain(c) || "[]".contains(c);
            let is_name = !name.is_empty() && !name.starts_with(':') && name.chars().all(is_plain);
            is_name && port_is_valid
        };
        let is_valid =
            hosts.split(',').all(host) && (path.is_empty() || path.split('/').all(segment));
        let hosts = hosts.split(',').map(str::to_owned).collect();
        is_valid.then(|| Self { login, hosts, path: path.to_owned() })
    }

    /// User and password.
    pub(crate) fn login(&self) -> Option<(&str, &str)> {
        self.login.as_ref().map(|(user, password)| (&**user, &**password))
    }

    /// The servers, each with its port where one was given.
    pub(crate) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The path behind the hosts; empty if there is none.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Hosts and path, without the login.
    pub(crate) fn without_login(&self) -> String {
        let hosts = self.hosts.join(",");
        if self.path.is_empty() { hosts } else { format!("{hosts}/{}", self.path) }
    }
}

/// Writes the list with `***` in place of the password.
impl fmt::Display for HostList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((user, _)) = &self.login {
            write!(f, "{user}:***@")?;
        }
        f.write_str(&self.without_login())
    }
}

impl fmt::Debug for HostList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostList({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_meant_and_refuses_the_rest() {
        for (text, shown) in [
            ("a:2181", "a:2181"),
            ("a", "a"),
            ("a:2181,b-c.d:1/x/y", "a:2181,b-c.d:1/x/y"),
            ("[::1]:2181/", "[::1]:2181"),
            ("[::1]", "[::1]"),
            ("u:c%40nary@a:1/x/", "u:***@a:1/x"),
        ] {
            let list = HostList::parse(text, true).unwrap();
            assert_eq!(list.to_string(), shown);
            assert!(!format!("{list:?}").contains("nary"));
        }
        let list = HostList::parse("u:c%40n%2Fry@a:1", false).unwrap();
        assert_eq!(list.login(), Some(("u", "c@n/ry")));
        for bad in [
            "",
            ",",
            "a:0",
            "a:1,",
            "a:99999",
            ":1",
            "::1",
            "canary@a:1",
            "a:1/../x",
            "a b",
            "a:1//x",
        ] {
            assert_eq!(HostList::parse(bad, true), None, "{bad}");
        }
        for bare in ["a", "[::1]", "a:1,b"] {
            assert_eq!(HostList::parse(bare, false), None, "{bare}");
        }
    }
}
