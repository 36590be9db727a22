//! The server's configuration, read as the server reads it, and the registry that it names.
//!
//! Invariant: a command acts on the stores and the registry of the servers. So the configuration is
//! read by the same code, from the same files and variables; `--store` replaces all stores, and
//! nothing else.

use std::path::Path;

use anyhow::Result;
use leaf_node::config::{Config, ConfigError, Sources};
use leaf_snowflake::Registry;

use crate::cli::Place;

/// The directory of the packaged server's configuration files; [`PACKAGED_DATA`] is its data
/// directory.
const PACKAGED_CONFIG: &str = "/etc/leaf";
const PACKAGED_DATA: &str = "/var/lib/leaf";

/// Reads the configuration from files, environment and flags. If no file is named or found, reads
/// those of the packaged server. All sections are checked, but the server's secret files are not
/// read: this user may lack the right.
///
/// `--store` also drops `segment.shard`, since the patterns would send tags to stores that the
/// caller did not name.
///
/// # Errors
/// [`ConfigError`] for a file, variable or flag that is wrong, and for more than one `--store`.
pub(crate) fn read(place: &Place) -> Result<Config> {
    let directory = place.data_dir.as_ref().map(|dir| dir.display().to_string());
    let store = match place.store.as_slice() {
        [] => None,
        [store] => Some(store.clone()),
        _ => {
            return Err(
                ConfigError::new("several --store: `leaf doctor` alone compares stores").into()
            );
        }
    };
    let flags = [("data_dir", directory), ("segment.store", store)];
    let flags = flags.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    let sources = Sources { files: place.config.clone(), flags, stores_only: true };
    let sources = sources.with_default_files();
    let is_packaged = sources.files.is_empty();
    let sources =
        if is_packaged { sources.with_files_in(Path::new(PACKAGED_CONFIG)) } else { sources };
    let is_packaged = is_packaged && !sources.files.is_empty();
    let loaded = sources.load()?;
    for warning in &loaded.warnings {
        tracing::info!("{warning}");
    }
    let mut config = loaded.config;
    if is_packaged && loaded.origins.get("data_dir").is_some_and(|origin| origin == "default") {
        // Its unit says so by a flag.
        config.data_dir = PACKAGED_DATA.into();
    }
    if !place.store.is_empty() {
        config.segment.shard.clear();
    }
    Ok(config)
}

/// Opens the configured registry. A server is not contacted yet.
///
/// # Errors
/// [`ConfigError`] where there is nothing to administer: the registry keeps its record in
/// each node's data directory, or the records are in a file that does not exist yet. A file is
/// never made here; an empty one would look like a registry in which every worker id is free.
pub(crate) async fn registry(config: &Config) -> Result<Registry> {
    let url = config.registry();
    if url.is_in_state_file() {
        let text = format!(
            "the registry `{url}` keeps its fence in each node's data directory: there is nothing to \
             administer here; set snowflake.registry where the nodes use another"
        );
        return Err(ConfigError::new(text).into());
    }
    if let Some(file) = url.file(&config.data_dir)
        && !file.exists()
    {
        let text = format!(
            "{url} does not exist: start leaf-server once, or, where the path is relative, say --data-dir (now {})",
            config.data_dir.display()
        );
        return Err(ConfigError::new(text).into());
    }
    let open = leaf_node::registry::open_to_administer(config).await?;
    Ok(open.registry)
}
