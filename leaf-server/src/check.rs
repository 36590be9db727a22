//! The verb `check`: reaches what the configuration names, changes nothing, and tells what it
//! found. It may run beside the server.

use std::fmt::Display;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leaf_node::config::Config;
use leaf_node::{hints, tokens};
use leaf_registry::OpenRegistry;
use leaf_segment::TagStore;
use leaf_segment::shards::ShardPlace;
use leaf_segment::store::MOST_RECORDS;
use leaf_snowflake::Identity;

use crate::node::peers;
use crate::serve::Tls;

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

/// Looks at everything that the configuration names: addresses, files, keys, stores, identity and
/// registry. All of it, even after a failure: an operator wants the whole list at once. Only what
/// takes an identity is left out where there is none.
///
/// # Errors
/// Where at least one look failed.
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

/// Looks at identity, state file and registry.
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

/// Whether the other nodes' clocks agree with this one, as at a start.
async fn clocks(config: &Config, identity: &Identity) -> Result<String> {
    let OpenRegistry { registry, .. } = leaf_node::registry::open(config, None).await?;
    let compared =
        leaf_node::compare_clocks(config, identity, || peers(config, registry, identity.clone()));
    Ok(match compared.await? {
        Some((agreeing, reached)) => format!("{agreeing} of {reached} agree with this one"),
        None => "none was compared".into(),
    })
}

/// Bounds one look at a server.
async fn in_time(check: impl Future<Output = Result<String>>) -> Result<String> {
    match tokio::time::timeout(ANSWER, check).await {
        Ok(found) => found,
        Err(_) => bail!("no answer within {ANSWER:?}"),
    }
}

/// Whether files can be written there, or the server can make it.
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

/// Whether the server can make a file that does not exist, or fill one that is empty; `None` where
/// it has content, at which the caller looks.
///
/// The server makes no directory for it but the data directory, with those above it, at which
/// [`data_dir`] has looked.
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

/// An absolute path without `.` and `..`. Nothing needs to exist there.
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

/// Whether this host has the addresses to listen at. Their ports may be in use, by this server.
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

/// Whether the tags of a store can be read, and which settings of its server put ids at risk.
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

/// How many tags a store has, up to so many that counting them would take its time.
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

/// Whether the records of the registry can be read, and whether this node may claim at all. Nothing
/// is claimed.
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
