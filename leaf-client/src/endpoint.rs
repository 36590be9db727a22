//! One server: where it is, and whether it answers.
//!
//! After three errors in a row a server is ejected: others are asked instead. At the end of the
//! ejection a probe asks for its health: the server is used again if it is ready, else it is
//! ejected for longer.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::wire::usual_weight;

/// How many errors in a row eject a server.
const ERRORS: u32 = 3;
/// How long a server is ejected the first time. If the probe at the end finds that it does not
/// answer or is not ready, the next ejection is twice as long.
const FIRST_EJECTION: Duration = Duration::from_secs(1);
/// The longest ejection of a server.
const LONGEST_EJECTION: Duration = Duration::from_secs(30);
/// After this time a server is asked for its zone, weight and modes again: another server may have
/// its address by then.
const BELIEVED: Duration = Duration::from_secs(60);

/// One of the two modes; a server may have either of them switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Segment,
    Snowflake,
}

/// The protocol of the requests to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    /// HTTP/1.1, in JSON.
    Http,
    /// gRPC, in protocol buffers over HTTP/2.
    #[cfg(feature = "grpc")]
    Grpc,
}

/// A server's URL, as it was configured: `http://`, `https://`, `grpc://` or `grpcs://`, and a name
/// or an address with a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// How requests are sent to this server.
    pub(crate) protocol: Protocol,
    /// Whether connections are encrypted.
    pub(crate) encrypted: bool,
    /// Like `leaf.example.com:8080`.
    pub(crate) authority: String,
}

impl Place {
    /// Parses `http://host:port`, and the other schemes if this build supports them.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let refuse =
            |why: &str| Err(format!("{why}: give a URL like http://leaf.example.com:8080"));
        if url.len() > 300 {
            return refuse("the URL is longer than 300 characters");
        }
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (protocol, encrypted) = match scheme {
            "http" => (Protocol::Http, false),
            "https" => (Protocol::Http, true),
            #[cfg(feature = "grpc")]
            "grpc" => (Protocol::Grpc, false),
            #[cfg(feature = "grpc")]
            "grpcs" => (Protocol::Grpc, true),
            #[cfg(not(feature = "grpc"))]
            "grpc" | "grpcs" => {
                return refuse("this client was built without the feature `grpc` of leaf-client");
            }
            _ => {
                return refuse(
                    "the URL begins with none of http://, https://, grpc:// and grpcs://",
                );
            }
        };
        if encrypted && cfg!(not(feature = "tls")) {
            return refuse("this client was built without the feature `tls` of leaf-client");
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        // Nothing that was meant for another part of a URL, a secret least of all.
        if authority.contains(['/', '?', '#', '@']) {
            return refuse("the URL has more than a host and a port");
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
        let port = authority.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok()).filter(|port| *port > 0);
        if port.is_none() || !authority.bytes().all(plain) {
            return refuse("the URL has no host with a port");
        }
        Ok(Self { protocol, encrypted, authority: authority.to_owned() })
    }

    /// The host, without the port and without brackets.
    #[cfg(feature = "tls")]
    pub(crate) fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// A server at one address.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// The configured URL that led to it.
    pub(crate) place: Place,
    /// One of the addresses of the server's name.
    pub(crate) address: SocketAddr,
    /// What is known of the server. Locked only briefly, never during a request.
    state: Mutex<State>,
}

/// What is known of a server. An answer clears all of it but zone, weight and modes.
#[derive(Debug, Default)]
struct State {
    /// How many requests in a row it did not answer.
    errors: u32,
    /// How often the server was ejected since its last answer; `ejected_until` is the end of the
    /// current ejection.
    ejections: u32,
    ejected_until: Option<Instant>,
    /// The zone and weight that it has reported, and when to ask for them again.
    told: Option<(Option<String>, u32, Instant)>,
    /// By [`Mode`]: until this time, requests for it go to other servers, because this one has
    /// reported that it lacks the mode.
    without: [Option<Instant>; 2],
    /// The server had no ids although it answered: a probe must ask for its health.
    doubtful: bool,
}

/// How much a client prefers a server; the best rank sorts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// In the client's own zone. If the client has no zone, every server.
    Near,
    /// In another zone, or in one that is not known yet.
    Far,
    /// Ejected until this instant. Among these, the one whose ejection ends first is preferred.
    Ejected(Instant),
}

impl Endpoint {
    /// A server of which nothing is known yet.
    pub(crate) fn new(place: Place, address: SocketAddr) -> Self {
        Self { place, address, state: Mutex::default() }
    }

    /// The URL of a request: `path` at the server's address.
    pub(crate) fn url(&self, path: &str) -> String {
        let scheme = if self.place.encrypted { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// The rank of this server for a client of this zone.
    pub(crate) fn rank(&self, zone: Option<&str>) -> Rank {
        let state = self.state();
        if let Some(until) = state.ejected_until {
            return Rank::Ejected(until);
        }
        let own = state.told.as_ref().and_then(|(zone, ..)| zone.as_deref());
        if zone.is_none() || own == zone { Rank::Near } else { Rank::Far }
    }

    /// Notes that the server answered, with success or an error.
    pub(crate) fn succeeded(&self) {
        let mut state = self.state();
        if state.ejected_until.is_some() {
            tracing::info!("{self} answers again");
        }
        let State { told, without, .. } = std::mem::take(&mut *state);
        *state = State { told, without, ..State::default() };
    }

    /// Notes that the server did not answer, or not as a leaf-server does.
    pub(crate) fn failed(&self) {
        let mut state = self.state();
        match state.ejected_until {
            // Of requests that were under way when it was ejected.
            Some(until) if Instant::now() < until => {}
            Some(_) => self.eject(&mut state),
            None => {
                state.errors += 1;
                if state.errors >= ERRORS {
                    tracing::warn!("{self} failed {ERRORS} times: others are asked meanwhile");
                    self.eject(&mut state);
                }
            }
        }
    }

    /// Notes that the server reports that it is not ready, and ejects it.
    pub(crate) fn not_ready(&self) {
        let mut state = self.state();
        state.doubtful = false;
        match state.ejected_until {
            Some(until) if Instant::now() < until => {}
            before => {
                if before.is_none() {
                    tracing::warn!("{self} is not ready: others are asked meanwhile");
                }
                self.eject(&mut state);
            }
        }
    }

    /// Notes that the server answered but had no ids. Perhaps one tag is in trouble, perhaps the
    /// whole server: a probe will show which.
    pub(crate) fn refused(&self) {
        self.state().doubtful = true;
    }

    /// Ejects the server, for twice as long as the last time unless it has answered since.
    fn eject(&self, state: &mut State) {
        let pause = FIRST_EJECTION.saturating_mul(1 << state.ejections.min(10));
        state.ejections += 1;
        state.ejected_until = Some(Instant::now() + pause.min(LONGEST_EJECTION));
    }

    /// Notes the server's zone, or that it has none, and its weight.
    pub(crate) fn told(&self, zone: Option<String>, weight: u32) {
        self.state().told = Some((zone, weight, Instant::now() + BELIEVED));
    }

    /// The server's weight: its share of the requests among servers of the same rank.
    pub(crate) fn weight(&self) -> u32 {
        self.state().told.as_ref().map_or_else(usual_weight, |(_, weight, _)| *weight)
    }

    /// Notes that the server does not have this mode.
    pub(crate) fn has_not(&self, mode: Option<Mode>) {
        if let Some(mode) = mode {
            self.state().without[mode as usize] = Some(Instant::now() + BELIEVED);
        }
    }

    /// Whether the server reported within the last minute that it lacks this mode.
    pub(crate) fn is_without(&self, mode: Option<Mode>) -> bool {
        let until = mode.and_then(|mode| self.state().without[mode as usize]);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether a probe must ask for the server's health: its ejection is over, or it answered
    /// without ids; with `wants_told`, also if its zone and weight are unknown or old.
    pub(crate) fn probe_due(&self, wants_told: bool) -> bool {
        let state = self.state();
        match state.ejected_until {
            Some(until) => until <= Instant::now(),
            None => {
                let told = state.told.as_ref().is_some_and(|(.., until)| Instant::now() < *until);
                state.doubtful || wants_told && !told
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.to_string();
        let scheme = match self.place.protocol {
            Protocol::Http => "http",
            #[cfg(feature = "grpc")]
            Protocol::Grpc => "grpc",
        };
        let secure = if self.place.encrypted { "s" } else { "" };
        write!(f, "{scheme}{secure}://{}", self.place.authority)?;
        if address == self.place.authority { Ok(()) } else { write!(f, " ({address})") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        let address = SocketAddr::from(([127, 0, 0, 1], 8080));
        Endpoint::new(Place::parse("http://localhost:8080").unwrap(), address)
    }

    #[tokio::test(start_paused = true)]
    async fn three_errors_in_a_row_eject_a_server_longer_each_time() {
        let endpoint = endpoint();
        let is_ejected = || matches!(endpoint.rank(None), Rank::Ejected(_));
        for _ in 0..2 {
            endpoint.failed();
            endpoint.failed();
            assert!(!is_ejected());
            endpoint.succeeded();
        }
        let mut pauses = Vec::new();
        for _ in 0..3 {
            endpoint.failed();
        }
        // Others that were under way.
        (0..20).for_each(|_| endpoint.failed());
        for _ in 0..7 {
            let Rank::Ejected(until) = endpoint.rank(None) else { panic!("it is ejected") };
            pauses.push((until - Instant::now()).as_secs());
            assert!(!endpoint.probe_due(true));
            tokio::time::advance(until - Instant::now()).await;
            assert!(endpoint.probe_due(false));
            endpoint.failed();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        endpoint.succeeded();
        assert!(!is_ejected());
    }

    #[tokio::test(start_paused = true)]
    async fn servers_of_the_own_zone_come_first() {
        let [near, far, unknown] = [endpoint(), endpoint(), endpoint()];
        near.told(Some("a".into()), 100);
        far.told(Some("b".into()), 100);
        assert_eq!(near.rank(Some("a")), Rank::Near);
        assert_eq!((far.rank(Some("a")), unknown.rank(Some("a"))), (Rank::Far, Rank::Far));
        assert_eq!((far.rank(None), unknown.rank(None)), (Rank::Near, Rank::Near));
        assert!(unknown.probe_due(true) && !unknown.probe_due(false) && !near.probe_due(true));
        tokio::time::advance(BELIEVED).await;
        assert!(near.probe_due(true), "another server may be there by now");
        assert_eq!(near.rank(Some("a")), Rank::Near, "until it says otherwise");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_a_mode_is_known_for_a_while() {
        let endpoint = endpoint();
        endpoint.has_not(Some(Mode::Snowflake));
        // It answers what it can.
        endpoint.succeeded();
        assert!(endpoint.is_without(Some(Mode::Snowflake)));
        assert!(!endpoint.is_without(Some(Mode::Segment)) && !endpoint.is_without(None));
        tokio::time::advance(BELIEVED).await;
        assert!(!endpoint.is_without(Some(Mode::Snowflake)));
    }

    #[test]
    fn urls_are_checked() {
        for good in
            ["http://a:1", "http://a.b-c_d:65535/", "http://[::1]:8080", "http://10.0.0.1:80"]
        {
            assert!(Place::parse(good).is_ok(), "{good}");
        }
        let secret = "http://user:secret@a:1";
        for bad in [
            "",
            "a:1",
            "http://",
            "http://a",
            "http://:1",
            "http://a:0",
            "http://a:65536",
            "http://a:1/x",
            "http://a:1?x",
            "redis://a:1",
            "ftp://a:1",
            "http://a b:1",
            secret,
            "http://a\r\n:1",
        ] {
            let error = Place::parse(bad).unwrap_err();
            assert!(error.contains("http://leaf.example.com:8080") && !error.contains("secret"));
        }
        assert!(Place::parse(&format!("http://{}:1", "a".repeat(300))).is_err());
    }
}
