//! `leaf context`: clusters by name, in the user's directory for configuration.
//!
//! Invariant: the token of a context is sent only to the servers of that context.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use comfy_table::CellAlignment::{self, Left};
use leaf_node::config::{Config, ConfigError, TlsMode};
use leaf_registry::RegistryOptions;
use serde::{Deserialize, Serialize};

use crate::cli::{Cli, Context, Output, Place};
use crate::output::{self, Row};
use crate::{Done, config, exit, remote};

/// The contents of the file of contexts.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Contexts {
    #[serde(rename = "use")]
    used: Option<String>,
    contexts: BTreeMap<String, Cluster>,
}

/// A cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Cluster {
    servers: Vec<String>,
    token_file: Option<PathBuf>,
    config: Vec<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    context: &'a str,
    used: bool,
    servers: String,
    token_file: Option<&'a Path>,
    config: String,
}

impl Row for Shown<'_> {
    const COLUMNS: &'static [(&'static str, CellAlignment)] =
        &[("context", Left), ("used", Left), ("servers", Left), ("config", Left)];

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: &str| if text.is_empty() { "-".into() } else { text.to_owned() };
        let used = if self.used { "*" } else { "" };
        vec![self.context.into(), used.into(), or_dash(&self.servers), or_dash(&self.config)]
    }
}

/// The path of the file of contexts; `None` if neither XDG_CONFIG_HOME nor HOME is an absolute
/// path.
fn file() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let directory = of("XDG_CONFIG_HOME").or_else(|| Some(of("HOME")?.join(".config")))?;
    Some(directory.join("leaf/contexts.json"))
}

impl Contexts {
    /// Reads the contexts from the user's file. Returns no contexts if the file does not exist or
    /// this user may not read it.
    fn read() -> Result<Self> {
        let Some(file) = file() else { return Ok(Self::default()) };
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            // HOME may belong to another user, whose contexts this user does not need.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied
                ) =>
            {
                return Ok(Self::default());
            }
            Err(error) => return Err(error).context(file.display().to_string()),
        };
        let read = serde_json::from_str(&text);
        Ok(read.map_err(|error| ConfigError::new(format!("{}: {error}", file.display())))?)
    }

    /// Replaces the file, in one step.
    fn write(&self) -> Result<()> {
        let file = file().ok_or_else(|| {
            ConfigError::new("set HOME or XDG_CONFIG_HOME: contexts are kept there")
        })?;
        let directory = file.parent().context("a directory")?;
        let write = || {
            std::fs::create_dir_all(directory)?;
            let mut draft = tempfile::NamedTempFile::new_in(directory)?;
            serde_json::to_writer_pretty(&mut draft, self)?;
            draft.persist(&file)?;
            std::io::Result::Ok(())
        };
        write().with_context(|| file.display().to_string())
    }

    fn get(&self, name: &str) -> Result<&Cluster> {
        self.contexts.get(name).ok_or_else(|| {
            let known = self.contexts.keys().cloned().collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none: leaf context add".into() } else { known };
            exit::with(exit::NOT_FOUND, anyhow!("no context {name:?}; there are {known}"))
        })
    }
}

/// Runs a command on the contexts.
///
/// # Errors
/// [`ConfigError`]; there is no such context; the file cannot be read or written.
pub(crate) fn run(command: Context, place: &Place, output: Output) -> Result<Done> {
    let mut all = Contexts::read()?;
    match command {
        Context::List => {
            let shown = all.contexts.iter().map(|(name, cluster)| Shown {
                context: name,
                used: all.used.as_ref() == Some(name),
                servers: cluster.servers.join(", "),
                token_file: cluster.token_file.as_deref(),
                config: cluster
                    .config
                    .iter()
                    .map(|it| it.display().to_string())
                    .collect::<Vec<_>>()
                    .join(", "),
            });
            return Ok(output::rows(&shown.collect::<Vec<_>>(), output).into());
        }
        Context::Add { name, servers } => {
            RegistryOptions::check_name(&name)
                .map_err(|error| ConfigError::new(format!("NAME: {error}")))?;
            if !place.store.is_empty() || place.data_dir.is_some() {
                let why = "a context names servers and a configuration: write the store into the file of --config";
                return Err(ConfigError::new(why).into());
            }
            if all.contexts.contains_key(&name) {
                let why = format!("context {name} exists: `leaf context remove {name}` first");
                return Err(ConfigError::new(why).into());
            }
            if servers.server.is_empty() && place.config.is_empty() {
                return Err(ConfigError::new("give --server, or --config, or both").into());
            }
            if !servers.server.is_empty() {
                remote::named(&servers, remote::OPS)?;
            }
            let absolute = |path: &PathBuf| std::path::absolute(path);
            let config = place.config.iter().map(absolute).collect::<std::io::Result<_>>()?;
            let token_file = servers.token_file.as_ref().map(absolute).transpose()?;
            all.contexts.insert(name, Cluster { servers: servers.server, token_file, config });
        }
        Context::Use { name } => {
            if let Some(name) = &name {
                all.get(name)?;
            }
            all.used = name;
        }
        Context::Remove { name } => {
            all.get(&name)?;
            all.contexts.remove(&name);
            all.used = all.used.filter(|used| *used != name);
        }
    }
    all.write()?;
    Ok(String::new().into())
}

/// The URL of this host's server: where, by the configuration, it listens for requests for ids or
/// for administration.
fn of_this_host(config: &Config, is_for_ids: bool) -> String {
    let (mut listen, tls) = match is_for_ids {
        true => (config.http.listen, config.http.tls),
        false => (config.ops.listen, config.ops.tls),
    };
    if listen.ip().is_unspecified() {
        listen.set_ip(match listen {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let scheme = if tls == TlsMode::Required { "https" } else { "http" };
    format!("{scheme}://{listen}")
}

/// Variables that name stores or a registry.
const OF_STORES: [&str; 4] =
    ["LEAF_CONFIG", "LEAF_SEGMENT__STORE", "LEAF_SEGMENT__SHARD", "LEAF_SNOWFLAKE__REGISTRY"];

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

/// Fills in from the context what neither the command line nor the environment gives. Without a
/// context, the server is the one of the configuration.
///
/// # Errors
/// There is no such context; the file cannot be read; it is ambiguous whether the command is for a
/// server or for a store.
pub(crate) fn fill_in(cli: &mut Cli) -> Result<()> {
    let all = Contexts::read()?;
    let name = cli.context.as_ref().or(all.used.as_ref());
    let cluster = name.map(|name| all.get(name)).transpose()?;
    choose_server(cli, cluster)?;
    name_servers(cli, cluster);
    if let Some(cluster) = cluster
        && cli.place.config.is_empty()
        && cli.place.store.is_empty()
        && !is_set("LEAF_CONFIG")
    {
        cli.place.config.clone_from(&cluster.config);
    }
    Ok(())
}

/// Fills in the servers of a command that asks servers, such as `leaf status`.
fn name_servers(cli: &mut Cli, cluster: Option<&Cluster>) {
    let Some((servers, is_for_ids)) = cli.command.servers() else { return };
    if !servers.server.is_empty() || is_set("LEAF_SERVER") {
        return;
    }
    match cluster {
        None => {
            // What is wrong with it is told by who needs more of it.
            if let Ok(config) = config::read(&cli.place) {
                servers.server.push(of_this_host(&config, is_for_ids));
            }
        }
        Some(cluster) if !cluster.servers.is_empty() => {
            servers.server.clone_from(&cluster.servers);
            if servers.token_file.is_none() && !is_set("LEAF_TOKEN") {
                servers.token_file.clone_from(&cluster.token_file);
            }
        }
        Some(_) => {}
    }
}

/// Decides whether a server runs the command in place of this program, and which server. A store or
/// a context on the command line outranks LEAF_SERVER, which may have been set only for
/// `leaf status`.
///
/// # Errors
/// [`ConfigError`]: both a server and a store are named; a token without a server; a command that needs the store
/// while only a server is known.
fn choose_server(cli: &mut Cli, cluster: Option<&Cluster>) -> Result<()> {
    let refuse = |why: &str| Err(ConfigError::new(why).into());
    let (is_named, has_context) = (cli.place.is_named(), cli.context.is_some());
    let is_direct = is_named || (!has_context && OF_STORES.into_iter().any(is_set));
    let of_environment = if has_context { Vec::new() } else { remote::of_environment() };
    let of_context = cluster.filter(|cluster| cluster.config.is_empty());
    let (servers, token_file) = match of_context {
        _ if is_direct => (Vec::new(), None),
        Some(cluster) if of_environment.is_empty() => {
            (cluster.servers.clone(), cluster.token_file.clone())
        }
        _ => (of_environment, None),
    };
    let Some(through) = cli.command.through() else {
        // Else `leaf cut` would be about one cluster, and `leaf limit` about another.
        if cli.command.changes_stores() && !servers.is_empty() {
            return refuse(
                "a server is named (LEAF_SERVER, or by the context), and this command needs the store itself: name it by \
                 --config or --store",
            );
        }
        return Ok(());
    };
    if !through.server.is_empty() {
        return if is_named {
            refuse("either --server, or --store, --config and --data-dir")
        } else {
            Ok(())
        };
    }
    if servers.is_empty() && through.token_file.is_some() {
        return refuse("--token-file is for a server: give --server, too");
    }
    through.server = servers;
    if through.token_file.is_none() && !is_set("LEAF_TOKEN") {
        through.token_file = token_file;
    }
    Ok(())
}
