//! Opens the worker registry that the configuration names.

use leaf_core::WorkerId;
use leaf_registry::local::{self, LocalWorkers};
use leaf_registry::{OpenRegistry, RegistryKind, RegistryOptions, RegistryPlace};
use leaf_snowflake::Identity;

use crate::OpenError;
use crate::config::Config;

/// Opens the registry. `address` is where the other nodes reach this one over HTTP; `None` where
/// they do not.
///
/// # Errors
/// `Config` and `Registry`. A server is not contacted yet.
pub async fn open(config: &Config, address: Option<Identity>) -> Result<OpenRegistry, OpenError> {
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
        return Ok(OpenRegistry {
            registry: local::registry(workers, snowflake.worker_range),
            admin: None,
        });
    };
    let options = options(config, address);
    let open = place.open(snowflake.registry, fixed, &config.data_dir, &options).await;
    open.map_err(OpenError::Registry)
}

/// What every registry is opened with, from the configuration.
fn options(config: &Config, address: Option<Identity>) -> RegistryOptions {
    let snowflake = &config.snowflake;
    RegistryOptions {
        name: config.name.clone(),
        report_interval: snowflake.report_interval.duration(),
        session_timeout: snowflake.session_timeout.duration(),
        recycle_after: snowflake.recycle_after.duration(),
        adopt_java_ids: snowflake.adopt_java_ids,
        worker_range: snowflake.worker_range,
        address,
    }
}

/// Opens the registry at `place`, that of the configuration, for an operator, who asks for no
/// worker id.
///
/// # Errors
/// `Registry`. A server is not contacted yet.
pub async fn open_to_administer(
    config: &Config,
    place: &RegistryPlace,
) -> Result<OpenRegistry, OpenError> {
    let options = options(config, None);
    let open = place.open(config.snowflake.registry, None, &config.data_dir, &options).await;
    open.map_err(OpenError::Registry)
}
