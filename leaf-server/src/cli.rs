//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

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
    /// Print the tables of the configured segment store.
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
    /// Segment store: sqlite:PATH or mysql://user:password@host:3306/database
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) segment_store: Option<String>,
    /// Worker id of the local registry
    #[arg(long, global = true, value_name = "N")]
    pub(crate) worker_id: Option<u32>,
}
