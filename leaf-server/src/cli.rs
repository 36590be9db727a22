//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use leaf_node::config::Sources;

/// The Leaf id service: segment and snowflake ids over HTTP and the Redis protocol.
///
/// Without arguments it runs embedded: SQLite in ./leaf-data, worker id 0, ids on 127.0.0.1:8080
/// and, for Redis clients, 127.0.0.1:6380, health and administration on 127.0.0.1:8081.
///
/// Every key of the configuration can be given in leaf.toml, as an environment variable
/// (LEAF_SEGMENT__STORE) and, where it is common, as a flag. The leaf.properties of a Java Leaf
/// works as it is.
#[derive(Debug, Parser)]
#[command(name = "leaf-server", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
}

/// The verb of the command line. Every verb but `run` exits once its work is done.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Serve ids (the default).
    Run,
    /// Check the configuration, reach stores and registry, and exit: 0 when all is well.
    Check,
    /// Print the configuration that counts, and where each value comes from.
    Config,
    /// Print the tables of the configured segment stores and worker registry.
    Schema {
        /// Make the tables that do not exist yet.
        #[arg(long)]
        apply: bool,
    },
}

/// The flags, which override the environment and the configuration files.
#[derive(Debug, Default, Args)]
pub(crate) struct Settings {
    /// Configuration file, leaf.toml or leaf.properties, or both; default: those in the working
    /// directory
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Vec<PathBuf>,
    /// Where state is kept
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// This node's identity, like 10.0.0.7:8080
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) advertise: Option<String>,
    /// Address for ids
    #[arg(long, global = true, value_name = "ADDR:PORT")]
    pub(crate) http_listen: Option<SocketAddr>,
    /// Address for ids over the Redis protocol, or off
    #[arg(long, global = true, value_name = "ADDR:PORT")]
    pub(crate) redis_listen: Option<String>,
    /// Address for ids over gRPC, or off
    #[cfg(feature = "grpc")]
    #[arg(long, global = true, value_name = "ADDR:PORT")]
    pub(crate) grpc_listen: Option<String>,
    /// Address for health and administration
    #[arg(long, global = true, value_name = "ADDR:PORT")]
    pub(crate) ops_listen: Option<SocketAddr>,
    /// Segment store, like mysql://user:password@host:3306/database or sqlite:PATH
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) segment_store: Option<String>,
    /// Worker id of the local registry
    #[arg(long, global = true, value_name = "N")]
    pub(crate) worker_id: Option<u32>,
    /// What is logged: error, warn, info, debug, trace or off
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
}

impl Settings {
    /// Returns the sources of the configuration, in which the given flags override all others. A
    /// flag that was not given leaves its key to the other sources.
    pub(crate) fn sources(&self) -> Sources {
        let flags = [
            ("data_dir", self.data_dir.as_ref().map(|dir| dir.display().to_string())),
            ("advertise", self.advertise.clone()),
            ("http.listen", self.http_listen.map(|address| address.to_string())),
            ("redis.listen", self.redis_listen.clone()),
            #[cfg(feature = "grpc")]
            ("grpc.listen", self.grpc_listen.clone()),
            ("ops.listen", self.ops_listen.map(|address| address.to_string())),
            ("segment.store", self.segment_store.clone()),
            ("snowflake.worker_id", self.worker_id.map(|id| id.to_string())),
            ("log.level", self.log_level.clone()),
        ];
        let flags = flags.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        Sources { files: self.config.clone(), flags, stores_only: false }
    }
}

/// Parses the command line. If the program must exit (after an error, `--help` or `--version`),
/// prints the text and returns the exit code as `Err`.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        if error.use_stderr() {
            crate::log::write(format!("leaf-server: {}\n", explain(&error)));
            return ExitCode::from(2);
        }
        // Help and version; a closed standard output is nobody's problem.
        let _ = error.print();
        ExitCode::SUCCESS
    })
}

/// Describes an error of the command line in one line. Never repeats a value, since it may hold a
/// password.
fn explain(error: &clap::Error) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(ContextValue::Strings(texts)) => texts.first().map(String::as_str),
        _ => None,
    };
    let flag = context(ContextKind::InvalidArg).filter(|arg| arg.starts_with("--"));
    let what = match (error.kind(), flag) {
        (ErrorKind::UnknownArgument, Some(flag)) => {
            let flag = flag.split('=').next().unwrap_or_default();
            match context(ContextKind::SuggestedArg) {
                Some(near) => format!("unknown flag {flag}: did you mean {near}?"),
                None => format!("unknown flag {flag}"),
            }
        }
        (ErrorKind::InvalidValue | ErrorKind::ValueValidation, Some(flag)) => {
            format!("{flag}: the value is missing or wrong")
        }
        (ErrorKind::ArgumentConflict, Some(flag)) => format!("{flag} is given twice"),
        _ => {
            // It may be a URL with a password at a wrong place.
            let word = context(ContextKind::InvalidSubcommand);
            let word = word.or_else(|| context(ContextKind::InvalidArg)).unwrap_or_default();
            let secret = word.len() > 40 || word.contains("://") || word.contains('@');
            let word = if secret || word.is_empty() { String::new() } else { format!(" {word}") };
            format!("unknown argument{word}: the verbs are `run`, `check`, `config` and `schema`")
        }
    };
    format!("{what}; see leaf-server --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_command_line_is_one_line_without_values() {
        let cases = [
            (&["mysql://leaf:canary@h/d"][..], "unknown argument"),
            (&["--segment-stor", "mysql://leaf:canary@h/d"], "did you mean --segment-store?"),
            (&["--segment-stor=mysql://leaf:canary@h/d"], "did you mean --segment-store?"),
            (&["--worker-id", "canary"], "--worker-id <N>: the value is missing or wrong"),
            (&["--worker-id"], "--worker-id <N>: the value is missing or wrong"),
            (&["--http-listen=canary"], "--http-listen <ADDR:PORT>: the value"),
            (&["schema", "now"], "unknown argument now: the verbs are"),
            (&["chek"], "unknown argument chek: the verbs are"),
        ];
        for (args, expected) in cases {
            let error = Cli::try_parse_from([&["leaf-server"], args].concat()).unwrap_err();
            let text = explain(&error);
            assert!(text.contains(expected), "{args:?}: {text}");
            assert!(!text.contains("canary") && !text.contains('\n'), "{text}");
        }
    }
}
