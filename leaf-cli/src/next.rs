//! `leaf next`: ids from a server, as its clients get them.

use anyhow::Result;
use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cli::{NextIds, Output, Servers};
use crate::remote::{self, Asking, encoded};
use crate::{Done, output};

/// The ids, as a server sends them and as JSON shows them.
#[derive(Serialize, Deserialize)]
struct Ids {
    ids: Vec<String>,
}

/// Takes ids from a server, and returns them with one on each line.
///
/// # Errors
/// No server hands out ids.
pub(crate) async fn run(servers: &Servers, next: &NextIds, output: Output) -> Result<Done> {
    let path = match &next.of.tag {
        Some(tag) => {
            let tag = encoded(tag);
            format!("/v1/segments/{tag}/ids?count={}", next.count)
        }
        None => format!("/v1/snowflake/ids?count={}", next.count),
    };
    let form = next.form.as_ref().map(|form| {
        let form = encoded(form);
        format!("&as={form}")
    });
    let path = path + &form.unwrap_or_default();
    let asking = Asking::new(servers)?;
    let servers = remote::named(servers, remote::IDS)?;
    let ids: Ids = asking.first(&servers, Method::GET, &path, None).await?;
    Ok(match output {
        Output::Csv => {
            output::csv(&ids.ids.iter().map(|id| json!({ "id": id })).collect::<Vec<_>>())
        }
        _ => output::one(&ids, ids.ids.join("\n"), output),
    }
    .into())
}
