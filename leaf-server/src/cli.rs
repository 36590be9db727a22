//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};

/// The Leaf id service: segment and snowflake ids over HTTP.
///
/// Without arguments it runs embedded: SQLite in ./leaf-data, worker id 0, ids on 127.0.0.1:8080
/// and health on 127.0.0.1:8081.
#[derive(Debug, Parser)]
#[command(name = "leaf-server", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Serve ids (the default).
    Run,
    /// Print the tables of the configured segment stores.
    Schema {
        /// Make the tables that do not exist yet.
        #[arg(long)]
        apply: bool,
    },
}

/// What outranks the environment and the file.
#[derive(Debug, Default, Args)]
pub(crate) struct Settings {
    /// Configuration file; ./leaf.toml where it exists
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where state is kept
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// This node's identity, like 10.0.0.7:8080
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) advertise: Option<String>,
    /// Address for ids
    #[arg(long, global = true, value_name = "ADDR:PORT")]
    pub(crate) http_listen: Option<SocketAddr>,
    /// Address for health
    #[arg(long, global = true, value_name = "ADDR:PORT")]
    pub(crate) ops_listen: Option<SocketAddr>,
    /// Segment store, like mysql://user:password@host:3306/database or sqlite:PATH
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) segment_store: Option<String>,
    /// Worker id of the local registry
    #[arg(long, global = true, value_name = "N")]
    pub(crate) worker_id: Option<u32>,
}

/// Reads the command line; `Err` holds the exit code after the text was printed.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        if error.use_stderr() {
            crate::complain(&explain(&error));
            return ExitCode::from(2);
        }
        // Help and version; a closed standard output is nobody's problem.
        let _ = error.print();
        ExitCode::SUCCESS
    })
}

/// One line that never repeats a value: it may hold a password.
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
        _ => "unknown argument: the verbs are `run` and `schema`".into(),
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
            (&["schema", "canary"], "unknown argument"),
        ];
        for (args, expected) in cases {
            let error = Cli::try_parse_from([&["leaf-server"], args].concat()).unwrap_err();
            let text = explain(&error);
            assert!(text.contains(expected), "{args:?}: {text}");
            assert!(!text.contains("canary") && !text.contains('\n'), "{text}");
        }
    }
}
