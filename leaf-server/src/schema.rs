//! The verb `schema`: the tables of the configured segment stores and worker registry.
//!
//! By default the statements that create them are printed, so that a database administrator can
//! review them, change storage options, and run them with rights that the server does not need.
//! `--apply` runs them unchanged.

use std::io::Write;

use anyhow::Result;
use leaf_registry::Administration;

use leaf_node::config::Config;

/// Prints the tables, or makes those that do not exist.
///
/// A table that exists is left alone, whatever its columns are: Leaf alters no table.
pub(crate) async fn run(config: &Config, apply: bool) -> Result<()> {
    if config.segment.enabled {
        segment(config, apply).await?;
    }
    let registry = config.registry();
    if config.snowflake.enabled && !registry.is_in_state_file() {
        if registry.file(&config.data_dir).is_some() {
            crate::server::make_data_dir(config)?;
        }
        let open = leaf_node::registry::open_to_administer(config).await?;
        if let Some(tables) = open.admin {
            show(&*tables, &registry.to_string(), apply).await?;
        }
    }
    Ok(())
}

/// Prints or makes the tables of every segment store.
async fn segment(config: &Config, apply: bool) -> Result<()> {
    let stores = config.segment.stores();
    for url in stores.iter() {
        if url.file(&config.data_dir).is_some() {
            crate::server::make_data_dir(config)?;
        }
        let open = url.open(&config.data_dir, &config.segment.store_options()).await?;
        show(&*open.admin, &url.to_string(), apply).await?;
    }
    Ok(())
}

/// Prints the tables of one place, or makes those that are missing and says which.
async fn show(admin: &dyn Administration, place: &str, apply: bool) -> Result<()> {
    let mut out = std::io::stdout();
    if apply {
        match admin.apply().await?.as_slice() {
            [] if admin.tables().is_empty() => writeln!(out, "{place} needs no tables")?,
            [] => writeln!(out, "nothing to make in {place}: all tables exist")?,
            made => writeln!(out, "made {} in {place}", made.join(", "))?,
        }
    } else {
        writeln!(out, "-- {place}")?;
        for table in admin.tables() {
            out.write_all(table.statements.as_bytes())?;
        }
    }
    Ok(())
}
