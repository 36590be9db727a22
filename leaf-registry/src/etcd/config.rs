//! The URL of an etcd cluster, one line of configuration.

use std::time::Duration;

use etcd_client::ConnectOptions;

use crate::SettingError;
use crate::host_list::HostList;

/// How long connecting to one member may take.
const CONNECT: Duration = Duration::from_secs(1);
/// Deadline of one request. Below the generator's own deadline, so that another member may answer
/// the next attempt.
const REQUEST: Duration = Duration::from_millis(1500);
/// The interval of pings to a member, and how long its answer may take before it counts as gone.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));

/// Reads `etcd://[user:password@]host:2379[,host:2379 …][/name]`; the password is percent-encoded.
/// The name is the `{name}` in `/leaf/{name}/…`.
pub(super) fn read(url: &str) -> Result<HostList, SettingError> {
    let list = url.strip_prefix("etcd://").and_then(|rest| HostList::parse(rest, false));
    list.filter(|list| !list.path().contains('/')).ok_or_else(|| {
        SettingError::new(
            "not an etcd URL: write etcd://host:2379,host:2379, with user:password@ before the \
             hosts and /name behind them where needed",
        )
    })
}

/// The name in the URL, else `default`.
pub(super) fn name_or<'a>(list: &'a HostList, default: &'a str) -> &'a str {
    if list.path().is_empty() { default } else { list.path() }
}

/// The client's connect options. `require_leader` makes a member that lost its quorum refuse reads,
/// which it would answer from an old state.
pub(super) fn options(list: &HostList) -> ConnectOptions {
    let options = ConnectOptions::new()
        .with_connect_timeout(CONNECT)
        .with_timeout(REQUEST)
        .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
        .with_keep_alive_while_idle(true)
        .with_require_leader(true);
    match list.login() {
        None => options,
        Some((user, password)) => options.with_user(user, password).with_auto_token_refresh(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_meant_and_refuses_the_rest_without_repeating_it() {
        let list = read("etcd://[::1]:2379,a-b.c:1").unwrap();
        assert_eq!(list.to_string(), "[::1]:2379,a-b.c:1");
        for bad in ["", "canary", "u:canary@", "canary@a:1", "a:1/x/y"] {
            let error = read(&format!("etcd://{bad}")).unwrap_err().to_string();
            assert!(error.contains("etcd://host:2379") && !error.contains("canary"), "{error}");
        }
    }
}
