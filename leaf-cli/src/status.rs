//! `leaf status`: all servers of a cluster in one table, once or again and again.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Result, anyhow};
use comfy_table::CellAlignment;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cli::{Output, Servers};
use crate::output::{self, Row};
use crate::remote::{self, Asking};
use crate::{Done, exit};

/// The time between two requests to a server, from which rates are calculated.
const BETWEEN: Duration = Duration::from_secs(1);

/// The part of a server's status that the commands of `leaf` use.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Status {
    version: String,
    name: String,
    state: String,
    reason: Option<String>,
    segment: Option<Segment>,
    pub(crate) snowflake: Option<Flakes>,
}

#[derive(Debug, Clone, Deserialize)]
struct Segment {
    stores: Vec<Store>,
}

#[derive(Debug, Clone, Deserialize)]
struct Store {
    stock: String,
    issued: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Flakes {
    identity: String,
    worker: Option<u32>,
    pub(crate) clock_ahead_ms: Option<i64>,
    local_ceiling_ms: String,
    registry_ceiling_ms: String,
    issued: String,
    pub(crate) peers: Vec<Peer>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Peer {
    pub(crate) address: String,
    pub(crate) clock_offset_ms: i64,
}

/// A server in the table.
#[derive(Debug, Default, Serialize)]
struct Shown {
    server: String,
    name: String,
    version: String,
    /// `ready`, `degraded`, `not ready`, or `no answer`.
    state: String,
    reason: Option<String>,
    /// Ids of segments in a second.
    segment_rate: Option<f64>,
    /// How many seconds the stock of segment ids lasts at `segment_rate`; `null` if no ids are
    /// taken, or if the rate is unknown.
    stock_s: Option<f64>,
    /// Snowflake ids in a second.
    snowflake_rate: Option<f64>,
    worker: Option<u32>,
    /// Seconds until the local ceiling: how long snowflake ids last if the state file cannot be
    /// written any more. `registry_ceiling_s`: the same for the registry ceiling, if the registry
    /// does not answer any more.
    local_ceiling_s: Option<f64>,
    registry_ceiling_s: Option<f64>,
    /// Its clock minus that of another node, in ms: the median over all other nodes.
    clock_ms: Option<i64>,
}

impl Row for Shown {
    const COLUMNS: &'static [(&'static str, CellAlignment)] = &[
        ("server", CellAlignment::Left),
        ("name", CellAlignment::Left),
        ("state", CellAlignment::Left),
        ("ids/s", CellAlignment::Right),
        ("stock lasts", CellAlignment::Right),
        ("flakes/s", CellAlignment::Right),
        ("worker", CellAlignment::Right),
        ("registry lasts", CellAlignment::Right),
        ("clock off", CellAlignment::Right),
        ("version", CellAlignment::Left),
    ];

    fn cells(&self) -> Vec<String> {
        fn or_dash<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
            value.map_or("-".to_owned(), text)
        }
        vec![
            self.server.clone(),
            self.name.clone(),
            self.state.clone(),
            or_dash(self.segment_rate, |rate| format!("{rate:.0}")),
            or_dash(self.stock_s, span),
            or_dash(self.snowflake_rate, |rate| format!("{rate:.0}")),
            or_dash(self.worker, |worker| worker.to_string()),
            or_dash(self.registry_ceiling_s, span),
            or_dash(self.clock_ms, |offset| format!("{offset} ms")),
            self.version.clone(),
        ]
    }
}

/// Formats a number of seconds for people, like `5 min`.
fn span(seconds: f64) -> String {
    match seconds.abs() {
        all if all < 120.0 => format!("{seconds:.0} s"),
        all if all < 7200.0 => format!("{:.0} min", seconds / 60.0),
        all if all < 172_800.0 => format!("{:.0} h", seconds / 3600.0),
        _ => format!("{:.0} d", seconds / 86_400.0),
    }
}

/// The answers of all servers, each with the time when it came.
type Look = Vec<(hyper::Uri, Result<Status>, Instant)>;

/// Shows all servers; with `watch` every second, until it is interrupted.
///
/// # Errors
/// A server cannot be reached, or refuses, or is not ready. The others are shown.
pub(crate) async fn run(servers: &Servers, watch: bool, output: Output) -> Result<Done> {
    let asking = std::sync::Arc::new(Asking::new(servers)?);
    let named = remote::named(servers, remote::OPS)?;
    let mut before = look(&asking, &named).await;
    loop {
        tokio::time::sleep(BETWEEN).await;
        let now = look(&asking, &named).await;
        let rows = shown(&before, &now);
        let text = output::rows(&rows, output) + &notes(&rows, &now, output);
        if !watch {
            return Ok(Done::but(text, trouble(now)));
        }
        // From the top of the screen, whose rest is cleared.
        let clear = if std::io::stdout().is_terminal() { "\u{1b}[H\u{1b}[J" } else { "" };
        let mut out = std::io::stdout();
        if write!(out, "{clear}{text}").and_then(|()| out.flush()).is_err() {
            // Nobody looks any more.
            return Ok(String::new().into());
        }
        before = now;
    }
}

impl Shown {
    /// A server that did not answer.
    fn without_answer(server: String, reason: String) -> Self {
        Self { server, state: "no answer".into(), reason: Some(reason), ..Self::default() }
    }
}

/// Asks all servers at the same time. The answers are in the order in which the servers were named.
async fn look(asking: &std::sync::Arc<Asking>, servers: &[hyper::Uri]) -> Look {
    let mut asked = JoinSet::new();
    for (at, server) in servers.iter().enumerate() {
        let (asking, server) = (std::sync::Arc::clone(asking), server.clone());
        asked.spawn(async move {
            let status = asking.get::<Status>(&server, "/v1/status").await;
            (at, (server, status, Instant::now()))
        });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn shown(before: &Look, now: &Look) -> Vec<Shown> {
    now.iter().zip(before).map(|(now, before)| row(before, now)).collect()
}

fn row(
    (_, before, before_at): &(hyper::Uri, Result<Status>, Instant),
    (server, now, at): &(hyper::Uri, Result<Status>, Instant),
) -> Shown {
    let address = server.authority().map_or_else(String::new, ToString::to_string);
    let status = match now {
        Ok(status) => status,
        Err(error) => return Shown::without_answer(address, format!("{error:#}")),
    };
    let seconds = at.duration_since(*before_at).as_secs_f64().max(0.001);
    // A process that was started meanwhile counts from 0 again.
    let rate = |before: u128, now: u128| now.checked_sub(before).map(|ids| ids as f64 / seconds);
    let issued =
        |status: &Status| status.segment.as_ref().map(|it| sum(&it.stores, |it| &it.issued));
    let flakes = |status: &Status| status.snowflake.as_ref().map(|it| number(&it.issued));
    let earlier = before.as_ref().ok();
    let segment_rate =
        earlier.and_then(issued).zip(issued(status)).and_then(|(before, now)| rate(before, now));
    let snowflake_rate =
        earlier.and_then(flakes).zip(flakes(status)).and_then(|(before, now)| rate(before, now));
    let stock = status.segment.as_ref().map(|it| sum(&it.stores, |it| &it.stock));
    let flake = status.snowflake.as_ref();
    let mut offsets: Vec<i64> =
        flake.iter().flat_map(|it| &it.peers).map(|peer| peer.clock_offset_ms).collect();
    offsets.sort_unstable();
    let wall = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as f64;
    let until = |ceiling: &str| (number(ceiling) as f64 - wall) / 1000.0;
    let holds = flake.filter(|it| it.worker.is_some());
    Shown {
        server: address,
        name: status.name.clone(),
        version: status.version.clone(),
        state: status.state.clone(),
        reason: status.reason.clone(),
        segment_rate,
        stock_s: stock
            .zip(segment_rate.filter(|rate| *rate > 0.0))
            .map(|(stock, rate)| stock as f64 / rate),
        snowflake_rate,
        worker: flake.and_then(|it| it.worker),
        local_ceiling_s: holds.map(|it| until(&it.local_ceiling_ms)),
        registry_ceiling_s: holds.map(|it| until(&it.registry_ceiling_ms)),
        clock_ms: offsets.get(offsets.len() / 2).copied(),
    }
}

fn number(text: &str) -> u128 {
    text.parse().unwrap_or_default()
}

fn sum(stores: &[Store], of: impl Fn(&Store) -> &String) -> u128 {
    stores.iter().map(|store| number(of(store))).sum()
}

/// The lines below the table: the reason of each server's state, and the nodes that were not asked.
fn notes(rows: &[Shown], now: &Look, output: Output) -> String {
    if output != Output::Table {
        return String::new();
    }
    let mut text = String::new();
    for row in rows {
        if let Some(reason) = &row.reason {
            text += &format!("{}: {}\n", row.server, output::printable(reason));
        }
    }
    let hosts = |at: &str| at.rsplit_once(':').map_or(at, |(host, _)| host).to_owned();
    let asked: BTreeSet<_> = rows.iter().map(|row| hosts(&row.server)).collect();
    let flakes: Vec<&Flakes> =
        now.iter().filter_map(|(_, status, _)| status.as_ref().ok()?.snowflake.as_ref()).collect();
    // A node that was asked by another address of its host is known by its identity.
    let was_asked = |address: &String| {
        asked.contains(&hosts(address)) || flakes.iter().any(|it| it.identity == *address)
    };
    let others: BTreeSet<_> = flakes
        .iter()
        .flat_map(|it| &it.peers)
        .map(|peer| peer.address.clone())
        .filter(|address| !was_asked(address))
        .collect();
    if !others.is_empty() {
        let others = others.into_iter().collect::<Vec<_>>().join(", ");
        text += &format!("not asked, and in the registry: {}\n", output::printable(&others));
    }
    text
}

/// The worst problem: a server that did not answer, else one that is not ready.
fn trouble(now: Look) -> Option<anyhow::Error> {
    let mut not_ready = None;
    for (server, status, _) in now {
        match status {
            Err(error) => return Some(error),
            Ok(status) if status.state == "not ready" => {
                let error = anyhow!("{server} is not ready");
                not_ready.get_or_insert(exit::with(exit::FAILED, error));
            }
            Ok(_) => {}
        }
    }
    not_ready
}
