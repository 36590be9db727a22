//! The verb `schema`: the tables of the configured segment store.

use std::io::Write;

use anyhow::Result;

use crate::config::Config;

/// Prints the tables, or makes those that do not exist.
pub(crate) async fn run(config: &Config, apply: bool) -> Result<()> {
    if config.segment.store.is_embedded() {
        crate::service::make_data_dir(config)?;
    }
    let open = config.segment.store.open(&config.data_dir).await?;
    if !apply {
        std::io::stdout().write_all(open.schema.statements().as_bytes())?;
        return Ok(());
    }
    let made = open.schema.apply().await?;
    let what = if made {
        "made leaf_alloc and the row leaf-segment-test in"
    } else {
        "leaf_alloc exists already in"
    };
    writeln!(std::io::stdout(), "{what} {}", config.segment.store)?;
    Ok(())
}
