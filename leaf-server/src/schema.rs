//! The verb `schema`: the tables of the configured segment stores.

use std::io::Write;

use anyhow::Result;

use crate::config::Config;

/// Prints the tables, or makes those that do not exist.
pub(crate) async fn run(config: &Config, apply: bool) -> Result<()> {
    let stores = config.segment.stores();
    for url in stores.iter() {
        if url.file(&config.data_dir).is_some() {
            crate::service::make_data_dir(config)?;
        }
        let open = url.open(&config.data_dir, &config.segment.store_options()).await?;
        let mut out = std::io::stdout();
        if apply {
            let made = open.admin.apply().await?;
            match made.as_slice() {
                [] => writeln!(out, "nothing to make in {url}")?,
                made => writeln!(out, "made {} in {url}", made.join(", "))?,
            }
        } else {
            writeln!(out, "-- {url}")?;
            for table in open.admin.tables() {
                out.write_all(table.statements.as_bytes())?;
            }
        }
    }
    Ok(())
}
