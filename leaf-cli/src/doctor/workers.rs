//! What `leaf doctor` finds in the registry: records that nobody can use, times that a wrong clock
//! has claimed, worker ids that run out, and rights that nodes lack.

use std::time::Duration;

use leaf_core::WorkerId;
use leaf_node::config::Config;
use leaf_node::hints;
use leaf_snowflake::{FenceState, Registry, RegistryError, WorkerView};

/// A ceiling that is later than now plus `snowflake.offline_for` plus this comes from a wrong
/// clock.
const FAR: Duration = Duration::from_secs(3600);

/// Checks the configured registry. Returns it if nodes share it and it answers.
pub(super) async fn look(
    config: &Config,
    found: &mut impl FnMut(String, String),
) -> Option<Registry> {
    let url = config.registry();
    let is_absent = url.file(&config.data_dir).is_some_and(|file| !file.exists());
    if url.is_in_state_file() || is_absent {
        return None;
    }
    let mut found = |finding| found(url.to_string(), finding);
    let (registry, workers, claims) = match read(config).await {
        Ok(read) => read,
        Err(error) => {
            found(error.to_string());
            return None;
        }
    };
    if let Err(error) = claims {
        let told = hints::with(&error, hints::of_registry(error.kind()));
        found(format!("no node can claim a worker id: {told}"));
    }
    let settings = config.snowflake.node_settings();
    // Nothing that a right clock writes is further ahead.
    let latest = settings.now + settings.offline_for + FAR;
    let mut in_use = 0;
    for record in &workers {
        let worker = record.worker;
        if let (true, Some(remark)) = (record.needs_repair, &record.remark) {
            found(format!(
                "worker id {worker}: {remark}: `leaf worker repair {worker} --holder-is-dead`"
            ));
        }
        let Some(fence) = &record.fence else { continue };
        in_use += usize::from(fence.state != FenceState::Released);
        if fence.state != FenceState::Retired && fence.ceiling > latest {
            found(format!(
                "worker id {worker}: it is used up to {}: a clock was ahead. No node can have it before; `leaf worker retire \
                 {worker} --yes` takes it out of the list",
                fence.ceiling.utc()
            ));
        }
    }
    let range = config.snowflake.worker_range;
    let is_ours = |worker: &u32| range.is_none_or(|range| range.contains(WorkerId::new(*worker)));
    let all = (0..=config.snowflake.layout.max_worker().get()).filter(is_ours).count();
    if in_use * 10 > all * 9 {
        found(format!(
            "{in_use} of {all} worker ids are in use or retired: when none is left, a new node gets no snowflake ids; `leaf \
             worker list` shows by whom, `leaf worker release` frees those of dead nodes"
        ));
    }
    Some(registry)
}

/// The registry, its worker ids, and whether a node could claim one.
async fn read(
    config: &Config,
) -> anyhow::Result<(Registry, Vec<WorkerView>, Result<usize, RegistryError>)> {
    let read = async {
        let registry = crate::config::registry(config).await?;
        let workers = registry.workers().await?;
        // After that: its error is about rights alone.
        let claims = registry.try_claiming(config.snowflake.layout()).await;
        Ok((registry, workers, claims))
    };
    let late = |_| Err(anyhow::anyhow!("no answer within {:?}", crate::REGISTRY));
    tokio::time::timeout(crate::REGISTRY, read).await.unwrap_or_else(late)
}
