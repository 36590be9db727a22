//! `leaf clock accept`: lets ids follow a clock that jumped ahead.

use anyhow::{Context as _, Result};
use leaf_node::config::ConfigError;
use leaf_node::requests::AcceptClock;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Done;
use crate::cli::{Output, Servers};
use crate::output;
use crate::remote::{self, Asking};
use crate::status::{Flakes, Status};

/// How many milliseconds the ids' clock is behind the wall clock, before the request and after it.
/// Negative if the wall clock is behind by less than the tolerance; `None` while ids are stopped
/// because the wall clock went back.
#[derive(Serialize, Deserialize)]
struct Followed {
    behind_ms_before: Option<i64>,
    behind_ms: Option<i64>,
}

/// Lets the ids of one server follow its clock. Unless `is_right`, changes nothing, and the error
/// says by how much the clocks differ.
///
/// # Errors
/// [`ConfigError`] unless `is_right`, or if several servers are named; the server refuses, or does
/// not answer.
pub(crate) async fn accept(servers: &Servers, is_right: bool, output: Output) -> Result<Done> {
    let named = remote::named(servers, remote::OPS)?;
    let [server] = named.as_slice() else {
        return Err(ConfigError::new("--server: name one: each has a clock of its own").into());
    };
    let asking = Asking::new(servers)?;
    if !is_right {
        let status: Status = asking.get(server, "/v1/status").await?;
        let flakes = status.snowflake.context("this server makes no snowflake ids")?;
        return Err(ConfigError::new(format!(
            "say --clock-is-right to be sure that the clock of this server is: ids never go back. {}",
            describe(&flakes)
        ))
        .into());
    }
    let right = json!(AcceptClock { clock_is_right: true });
    let followed: Followed = asking.post(server, "/v1/clock/accept", &right).await?;
    let text = match (followed.behind_ms_before, followed.behind_ms) {
        (Some(before), Some(now)) => {
            format!(
                "the ids' time was {before} ms behind the clock of {server}, and is {now} ms behind it now"
            )
        }
        _ => {
            format!("the clock of {server} is behind its ids, which wait for it: nothing to accept")
        }
    };
    Ok(output::one(&followed, text, output).into())
}

fn describe(flakes: &Flakes) -> String {
    let ids = flakes.clock_ahead_ms.map_or_else(
        || "It is behind the ids, which wait for it".into(),
        |ahead| format!("The ids' time is {} ms behind it", ahead.saturating_neg()),
    );
    let peers: Vec<_> = flakes
        .peers
        .iter()
        .map(|peer| format!("{} {:+} ms", peer.address, peer.clock_offset_ms.saturating_neg()))
        .collect();
    let peers = if peers.is_empty() { "none answers".into() } else { peers.join(", ") };
    format!("{ids}; the clocks of other nodes against it: {peers}")
}
