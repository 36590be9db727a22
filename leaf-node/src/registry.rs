//! Opens the worker registry that the configuration names.

use leaf_core::WorkerId;
use leaf_registry::local::LocalWorkers;
use leaf_registry::{OpenRegistry, RegistryKind, RegistryOptions};
use leaf_snowflake::Identity;

use crate::OpenError;
use crate::config::Config;

/// Opens the registry. `address` is where other nodes reach this node over HTTP; `None`: at the
/// node's identity.
///
/// # Errors
/// `Config` and `Registry`. A server is not contacted yet.
pub async fn open(config: &Config, address: Option<Identity>) -> Result<OpenRegistry, OpenError> {
    let snowflake = &config.snowflake;
    let workers = match (snowflake.registry.kind(), &snowflake.worker_ids) {
        (RegistryKind::Ordinal, _) => {
            let own = rustix::system::uname();
            let own = own.nodename().to_string_lossy();
            let host = snowflake.host_name.as_deref().unwrap_or(&own);
            LocalWorkers::Fixed(snowflake.ordinal(host)?)
        }
        (_, None) => LocalWorkers::Fixed(snowflake.worker_id()),
        (_, Some(map)) => {
            let worker = |(who, id): (&String, &u32)| (who.clone(), WorkerId::new(*id));
            LocalWorkers::ByIdentity(map.iter().map(worker).collect())
        }
    };
    open_with(config, Some(workers), address).await
}

/// Opens the registry for administration, which claims no worker id.
///
/// # Errors
/// `Registry`. A server is not contacted yet.
pub async fn open_to_administer(config: &Config) -> Result<OpenRegistry, OpenError> {
    open_with(config, None, None).await
}

/// Opens the registry with the options of the configuration.
async fn open_with(
    config: &Config,
    workers: Option<LocalWorkers>,
    address: Option<Identity>,
) -> Result<OpenRegistry, OpenError> {
    let snowflake = &config.snowflake;
    let options = RegistryOptions {
        name: config.name.clone(),
        report_interval: snowflake.report_interval.duration(),
        session_timeout: snowflake.session_timeout.duration(),
        recycle_after: snowflake.recycle_after.duration(),
        adopt_java_ids: snowflake.adopt_java_ids,
        worker_range: snowflake.worker_range,
        workers,
        address,
    };
    config.registry().open(&config.data_dir, &options).await.map_err(OpenError::Registry)
}
