//! The verb `check`: reaches what the configuration names, changes nothing, and tells what it
//! found. It may run beside the server.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use anyhow::{Result, bail};
use leaf_node::config::Config;
use leaf_node::hints;
use leaf_registry::OpenRegistry;

/// How long one place may take to answer.
///
/// A store that is away must not keep a deployment waiting.
const ANSWER: Duration = Duration::from_secs(5);

/// The result so far; each line is printed as soon as it is known.
struct Report {
    failures: usize,
}

impl Report {
    /// Prints one line: what was looked at, and what was found or what failed, with the hint for
    /// operators.
    fn tell(&mut self, what: &dyn Display, found: Result<String>) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match found {
            Ok(found) => writeln!(out, "ok    {what}: {found}")?,
            Err(error) => {
                self.failures += 1;
                let error = hints::with(format_args!("{error:#}"), hints::of(error.as_ref()));
                writeln!(out, "FAIL  {what}: {error}")?;
            }
        }
        Ok(())
    }
}

/// Looks at everything that the configuration names: data directory, keys, stores, identity and
/// registry. All of it, even after a failure: an operator wants the whole list at once.
///
/// # Errors
/// Where at least one look failed.
pub(crate) async fn run(config: &Config) -> Result<()> {
    let mut report = Report { failures: 0 };
    report.tell(&"configuration", Ok("every key and value is known".into()))?;
    report.tell(&format!("data directory {}", config.data_dir.display()), data_dir(config))?;
    if config.segment.enabled {
        if config.segment.keys_file.is_some() {
            let keys = config.segment.read_keys().map(|keys| format!("{keys}"));
            report.tell(&"segment.keys_file", keys.map_err(Into::into))?;
        }
        for url in config.segment.stores().iter() {
            let found = in_time(store(config, url)).await;
            report.tell(&format!("segment store {url}"), found)?;
        }
    }
    if config.snowflake.enabled {
        let identity = leaf_node::find_identity(config);
        let warned = identity.map(|(identity, warning)| warning.unwrap_or(identity.to_string()));
        report.tell(&"identity", warned.map_err(Into::into))?;
        let place = config.registry_place()?.map(|place| format!(" {place}")).unwrap_or_default();
        let what = format!("{} registry{place}", config.snowflake.registry);
        report.tell(&what, in_time(workers(config)).await)?;
    }
    match report.failures {
        0 => Ok(()),
        1 => bail!("one check failed"),
        failures => bail!("{failures} checks failed"),
    }
}

/// Bounds one look at a server.
async fn in_time(check: impl Future<Output = Result<String>>) -> Result<String> {
    match tokio::time::timeout(ANSWER, check).await {
        Ok(found) => found,
        Err(_) => bail!("no answer within {ANSWER:?}"),
    }
}

/// Whether files can be written there: missing rights and a read-only mount are found by trying.
fn data_dir(config: &Config) -> Result<String> {
    let directory = &config.data_dir;
    match directory.metadata() {
        Ok(found) if !found.is_dir() => bail!("is no directory"),
        Ok(_) => {
            let probe = directory.join(format!(".check-{}", std::process::id()));
            std::fs::write(&probe, "")?;
            std::fs::remove_file(&probe)?;
            Ok("can be written".into())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok("does not exist: the server makes it".into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the tags of a store can be read, and which settings of its server put ids at risk.
async fn store(config: &Config, url: &leaf_registry::StoreUrl) -> Result<String> {
    if let Some(file) = url.file(&config.data_dir)
        && !file.exists()
    {
        return Ok("does not exist: the server makes it".into());
    }
    let open = url.open(&config.data_dir, &config.segment.store_options()).await?;
    let tags = open.store.tags().await?.len();
    let risks = open.admin.risks().await?;
    open.store.close().await;
    Ok(match risks.len() {
        0 => format!("{tags} tags"),
        _ => format!("{tags} tags; {}", risks.join("; ")),
    })
}

/// Whether the records of the registry can be read. Nothing is claimed.
async fn workers(config: &Config) -> Result<String> {
    if let Some(place) = config.registry_place()?
        && let Some(file) = place.file(&config.data_dir)
        && !file.exists()
    {
        return Ok("does not exist: the server makes it".into());
    }
    let OpenRegistry { registry, .. } = leaf_node::registry::open(config, None).await?;
    Ok(format!("{} worker ids in use or used before", registry.workers().await?.len()))
}
