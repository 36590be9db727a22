//! The verb `check`: tests whether everything that the configuration names can be reached and used,
//! changes nothing, and prints the results. It may run while the server runs.

use std::fmt::Display;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leaf_node::ShardPlace;
use leaf_node::config::Config;
use leaf_node::{hints, tokens};
use leaf_registry::OpenRegistry;
use leaf_segment::TagStore;
use leaf_segment::store::MOST_RECORDS;
use leaf_snowflake::Identity;

use crate::node::peers;
use crate::serve::Tls;

/// How long a store or the registry may take to answer.
///
/// If it is down, a deployment must not wait for it.
const ANSWER: Duration = Duration::from_secs(5);

/// Prints the result of each check at once, and counts the failures.
struct Report {
    failures: usize,
}

impl Report {
    /// Prints one line: what was checked, and the result or the error, with the hint for operators.
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

/// Checks everything that the configuration names: addresses, files, keys, stores, identity and
/// registry. After a failure it goes on: an operator wants the whole list at once. If this node's
/// identity cannot be found, only the checks that need it are left out.
///
/// # Errors
/// At least one check failed.
pub(crate) async fn run(config: &Config) -> Result<()> {
    let mut report = Report { failures: 0 };
    report.tell(&"configuration", Ok("every key and value is known".into()))?;
    report.tell(&"addresses", listeners(config))?;
    if let Err(error) = crate::node::time_zone(config) {
        report.tell(&"time zone", Err(error.into()))?;
    }
    report.tell(&format!("data directory {}", config.data_dir.display()), data_dir(config))?;
    if let Some(opened) = Tls::open(config).transpose() {
        let told = opened.map(|tls| {
            let end = jiff::Timestamp::from_second(tls.end().as_secs().cast_signed());
            end.map_or_else(|_| "usable".into(), |end| format!("the certificate ends on {end}"))
        });
        report.tell(&"tls", told.map_err(Into::into))?;
    }
    if config.tokens_file().is_some() {
        let callers = tokens::read(config);
        let told = callers.map(|callers| format!("{} callers", callers.len()));
        report.tell(&"tokens_file", told.map_err(Into::into))?;
    }
    if config.segment.enabled {
        let marks = leaf_node::check_marks(config).map(|()| "usable".into());
        report.tell(&"segment.marks", marks.map_err(Into::into))?;
        if config.segment.keys_file.is_some() {
            let keys = config.segment.read_keys().map(|keys| format!("{keys}"));
            report.tell(&"segment.keys_file", keys.map_err(Into::into))?;
        }
        for (place, url) in config.segment.stores().placed().iter() {
            let found = in_time(store(config, place, url)).await;
            report.tell(&format!("segment store {url}"), found)?;
        }
    }
    if config.snowflake.enabled {
        snowflake(config, &mut report).await?;
    }
    match report.failures {
        0 => Ok(()),
        1 => bail!("one check failed"),
        failures => bail!("{failures} checks failed"),
    }
}

/// Checks the identity, the state file, the registry and the clocks of the other nodes.
async fn snowflake(config: &Config, report: &mut Report) -> Result<()> {
    let found = leaf_node::find_identity(config);
    let identity = found.as_ref().ok().map(|(identity, _)| identity.clone());
    let warned = found.map(|(identity, warning)| warning.unwrap_or(identity.to_string()));
    report.tell(&"identity", warned.map_err(Into::into))?;
    if let Some(identity) = &identity {
        let usable = leaf_node::check_snowflake(config, identity);
        report.tell(
            &"snowflake.state, clock",
            usable.map(|()| "usable".into()).map_err(Into::into),
        )?;
    }
    let registry = config.registry();
    let what = format!("registry {registry}");
    let found = in_time(workers(config, identity.as_ref())).await;
    let reached = found.is_ok();
    report.tell(&what, found)?;
    let Some(identity) = identity.filter(|_| reached) else { return Ok(()) };
    // A file that is made at the start has no nodes.
    let is_there = registry.file(&config.data_dir).is_none_or(|file| file.exists());
    if registry.is_in_state_file() || !is_there {
        return Ok(());
    }
    let compared = in_time(clocks(config, &identity)).await;
    report.tell(&"clocks of the other nodes", compared)
}

/// Compares the clocks of the other nodes with this node's, as the server does at its start.
async fn clocks(config: &Config, identity: &Identity) -> Result<String> {
    let OpenRegistry { registry, .. } = leaf_node::registry::open(config, None).await?;
    let compared =
        leaf_node::compare_clocks(config, identity, || peers(config, registry, identity.clone()));
    Ok(match compared.await? {
        Some((agreeing, reached)) => format!("{agreeing} of {reached} agree with this one"),
        None => "none was compared".into(),
    })
}

/// Runs one check, and fails if it takes longer than [`ANSWER`].
async fn in_time(check: impl Future<Output = Result<String>>) -> Result<String> {
    match tokio::time::timeout(ANSWER, check).await {
        Ok(found) => found,
        Err(_) => bail!("no answer within {ANSWER:?}"),
    }
}

/// Checks that the server can write files in the data directory or, if it does not exist, can make
/// it.
fn data_dir(config: &Config) -> Result<String> {
    let directory = &config.data_dir;
    // A link that leads nowhere is there, too, and cannot be written.
    if directory.symlink_metadata().is_ok() {
        writable(directory)?;
        return Ok("can be written".into());
    }
    let above = directory.ancestors().find(|above| above.symlink_metadata().is_ok());
    writable(above.unwrap_or(Path::new(".")))?;
    Ok("does not exist yet: the server makes it".into())
}

/// Checks that the server can make a file that does not exist, or can write to an empty one, and
/// returns a text that says so. Returns `None` for a file with content, which the caller checks
/// itself.
///
/// The server makes no directory for the file except the data directory and its parents, which
/// [`data_dir`] checks.
fn new_file(file: &Path, config: &Config) -> Result<Option<String>> {
    if let Ok(found) = file.metadata() {
        let empty = found.is_file() && found.len() == 0;
        if empty {
            let opened = std::fs::OpenOptions::new().append(true).open(file);
            opened.with_context(|| format!("{} cannot be written", file.display()))?;
        }
        return Ok(empty.then(|| "is empty: the server makes its tables".into()));
    }
    // The path may lead through the data directory, which may not exist.
    let file = resolved(file)?;
    if file.exists() {
        return Ok(Some("exists, and is looked at once the data directory does".into()));
    }
    let directory = file.parent().unwrap_or(Path::new("/"));
    if directory.exists() || !resolved(&config.data_dir)?.starts_with(directory) {
        writable(directory)?;
    }
    Ok(Some("does not exist yet: the server makes it".into()))
}

/// Makes a path absolute and removes `.` and `..`. The path need not exist.
fn resolved(path: &Path) -> Result<PathBuf> {
    let mut resolved = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        match part {
            Component::ParentDir => _ = resolved.pop(),
            part => resolved.push(part),
        }
    }
    Ok(resolved)
}

/// Checks that this host has the addresses to listen at. Does not check the ports: they may be in
/// use, by this server.
fn listeners(config: &Config) -> Result<String> {
    let own = [
        ("http.listen", Some(config.http.listen)),
        ("redis.listen", config.redis.listen),
        ("grpc.listen", config.grpc.listen),
        ("ops.listen", Some(config.ops.listen)),
    ];
    let mut addresses = Vec::new();
    for (key, address) in own {
        if let Some(address) = address {
            let bound = std::net::TcpListener::bind((address.ip(), 0));
            bound.with_context(|| format!("{key} {address}"))?;
            addresses.push(address.to_string());
        }
    }
    Ok(addresses.join(", "))
}

/// Refuses a directory in which no file can be made: missing rights and a read-only mount are found
/// by trying.
fn writable(directory: &Path) -> Result<()> {
    let probe = directory.join(format!(".check-{}", std::process::id()));
    std::fs::write(&probe, "")
        .and_then(|()| std::fs::remove_file(&probe))
        .with_context(|| format!("{} cannot be written", directory.display()))
}

/// Checks that the tags of a store can be read and ids allocated. Returns the number of tags, and
/// the settings of the database server that put ids at risk.
async fn store(
    config: &Config,
    place: &ShardPlace,
    url: &leaf_registry::StoreUrl,
) -> Result<String> {
    if let Some(file) = url.file(&config.data_dir)
        && let Some(found) = new_file(&file, config)?
    {
        return Ok(found);
    }
    let open = url.open(&config.data_dir, &config.segment.store_options()).await?;
    leaf_node::check_place(&*open.admin, place).await?;
    let tags = count(&*open.store).await?;
    if let Some(tried) = open.store.try_allocating() {
        tried.await?;
    }
    let risks = open.admin.risks().await?;
    open.store.close().await;
    Ok(match risks.len() {
        0 => tags,
        _ => format!("{tags}; {}", risks.join("; ")),
    })
}

/// Counts the tags of a store, but stops after 1000: to count more could take long.
async fn count(store: &dyn TagStore) -> Result<String> {
    store.try_reading().await?;
    let (mut tags, mut place) = (0, None);
    loop {
        let page = store.page(place.as_ref(), "", MOST_RECORDS).await?;
        tags += page.records.len();
        match page.next {
            None => return Ok(format!("{tags} tags")),
            Some(_) if tags >= 1000 => return Ok("1000 tags or more".into()),
            next => place = next,
        }
    }
}

/// Checks that the records of the registry can be read and that this node could claim a worker id.
/// Claims nothing.
async fn workers(config: &Config, identity: Option<&Identity>) -> Result<String> {
    if let Some(file) = config.registry().file(&config.data_dir)
        && let Some(found) = new_file(&file, config)?
    {
        return Ok(found);
    }
    let OpenRegistry { registry, .. } = leaf_node::registry::open(config, None).await?;
    if let Some(identity) = identity {
        registry.check(identity, config.snowflake.layout())?;
    }
    if registry.lives_in_state_file() {
        return Ok("worker ids are configured".into());
    }
    let layout = config.snowflake.layout();
    let used = format!("{} worker ids in use or used before", registry.try_claiming(layout).await?);
    // Who may not look at others' keys is told nothing of them.
    Ok(match registry.warning_of_a_new_cluster().await.ok().flatten() {
        Some(warning) => format!("{used}. WARNING: {warning}"),
        None => used,
    })
}
