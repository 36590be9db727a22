//! `leaf doctor`: what could cost ids or their uniqueness.

use anyhow::{Result, bail};
use comfy_table::CellAlignment::Left;
use serde::Serialize;

use crate::cli::Output;
use crate::output::{self, Row};
use crate::stores::Stores;

/// What was found in a store.
#[derive(Debug, Serialize)]
struct Finding {
    store: String,
    finding: String,
}

impl Row for Finding {
    const COLUMNS: &'static [(&'static str, comfy_table::CellAlignment)] =
        &[("store", Left), ("finding", Left)];

    fn cells(&self) -> Vec<String> {
        vec![self.store.clone(), self.finding.clone()]
    }
}

/// Looks at every store. Ends with an error where something was found, for scripts.
pub(crate) async fn run(stores: &Stores, output: Output) -> Result<String> {
    let mut findings = Vec::new();
    for store in stores.iter() {
        let mut found = |finding: String| {
            findings.push(Finding { store: store.url.to_string(), finding });
        };
        match store.open.store.tags().await {
            Ok(records) => {
                for record in &records {
                    let tag = record.tag.as_str();
                    if !stores.is_of(tag, store) {
                        found(format!(
                            "tag {tag:?} is kept here, but segment.shard sends it to another store: \
                             delete it here, or change the patterns"
                        ));
                    }
                    if let Err(error) = record.step {
                        found(format!("tag {tag:?}: {error}; `leaf tag set-step {tag} STEP`"));
                    }
                }
            }
            Err(error) => {
                found(error.to_string());
                continue;
            }
        }
        match store.open.admin.risks().await {
            Ok(risks) => risks.into_iter().for_each(found),
            Err(error) => found(error.to_string()),
        }
    }
    if findings.is_empty() {
        return Ok(output::one(&findings, "nothing found".into(), output));
    }
    let text = output::rows(&findings, output);
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    bail!("{} found", findings.len());
}
