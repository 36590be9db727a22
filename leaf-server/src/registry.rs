//! Opens the configured worker registry.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use leaf_core::WorkerId;
use leaf_registry::local::{self, LocalWorkers};
use leaf_registry::{Administration, OpenRegistry, RegistryKind, RegistryOptions};
use leaf_snowflake::Identity;

use leaf_server::config::Config;

/// The registry; `address` is where the others reach this node's HTTP.
pub(crate) async fn open(config: &Config, address: Option<Identity>) -> Result<OpenRegistry> {
    let snowflake = &config.snowflake;
    let fixed = match snowflake.registry {
        RegistryKind::Ordinal => {
            let own = rustix::system::uname();
            let own = own.nodename().to_string_lossy();
            Some(snowflake.ordinal(snowflake.host_name.as_deref().unwrap_or(&own))?)
        }
        _ => None,
    };
    let Some(place) = config.registry_place()? else {
        let workers = match (fixed, &snowflake.worker_ids) {
            (Some(worker), _) => LocalWorkers::Fixed(worker),
            (None, None) => LocalWorkers::Fixed(snowflake.worker_id()),
            (None, Some(map)) => LocalWorkers::ByIdentity(
                map.iter().map(|(who, id)| (who.clone(), WorkerId::new(*id))).collect(),
            ),
        };
        return Ok(OpenRegistry { registry: local::registry(workers), tables: None });
    };
    let options = RegistryOptions {
        name: config.name.clone(),
        report_interval: snowflake.report_interval.duration(),
        session_timeout: snowflake.session_timeout.duration(),
        recycle_after: snowflake.recycle_after.duration(),
        adopt_java_ids: snowflake.adopt_java_ids,
        on_foreign_holder: snowflake.on_foreign_holder,
        address,
    };
    let open = place.open(snowflake.registry, fixed, &config.data_dir, &options).await;
    open.context("snowflake.registry")
}

/// The tables of the registry; `None` where it has none. They do not depend on this node.
pub(crate) async fn tables(config: &Config) -> Result<Option<Arc<dyn Administration>>> {
    let Some(place) = config.registry_place()? else { return Ok(None) };
    let (kind, options) = (config.snowflake.registry, RegistryOptions::default());
    let open = place.open(kind, None, &config.data_dir, &options).await;
    Ok(open.context("snowflake.registry")?.tables)
}
