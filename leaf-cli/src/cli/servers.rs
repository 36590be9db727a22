//! The arguments that name servers, and those of the commands that ask them for ids; `--dry-run`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::Span;

/// A load and what it is sent to.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// http://HOST:8080 or https://, with the prefix of a proxy if need be; redis://HOST:6379 or rediss://, where TAG can be a key of Redis itself;
    /// grpc://HOST:8082
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) of: Source,
    /// A file with the token, or with a password of Redis; default LEAF_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// How many connections, each with one request at a time
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Requests a second, due at fixed moments; without it each connection sends the next one when it has its
    /// answer. With --ramp the first rate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) rate: Option<u32>,
    /// Find the highest rate at which 99 % are answered within 10 ms
    #[arg(long)]
    pub(crate) ramp: bool,
    /// How long; with --ramp each rate. Default 10s, and 3s
    #[arg(long, value_name = "SPAN")]
    pub(crate) duration: Option<Span>,
    /// Write the report into this file, too, as a page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Which ids.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").required(true))]
pub(crate) struct Source {
    /// The tag
    #[arg(group = "source")]
    pub(crate) tag: Option<String>,
    /// Snowflake ids
    #[arg(long, group = "source")]
    pub(crate) snowflake: bool,
}

/// Which servers are asked, and with which token.
#[derive(Debug, Args)]
pub(crate) struct Servers {
    /// A server, several times if need be, like `https://id-1.internal`; without a port 8080 for ids, 8081 for
    /// all else. Default: LEAF_SERVER, separated by commas, else the one of the configuration
    #[arg(long, value_name = "URL")]
    pub(crate) server: Vec<String>,
    /// A file with the token; default LEAF_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// A server that runs the command in place of this program.
#[derive(Debug, Default, Args)]
pub(crate) struct Through {
    /// Let this server do it, like `https://id-1.internal`; without a port 8081. Of several the first that can be
    /// reached. Default: LEAF_SERVER, else the servers of a context without --config
    #[arg(long, global = true, value_name = "URL", help_heading = THROUGH)]
    pub(crate) server: Vec<String>,
    /// A file with the token; default LEAF_TOKEN
    #[arg(long, global = true, value_name = "FILE", help_heading = THROUGH)]
    pub(crate) token_file: Option<PathBuf>,
}

const THROUGH: &str = "Through a server";

impl Through {
    /// The servers, if one is to do it.
    pub(crate) fn servers(self) -> Option<Servers> {
        let Self { server, token_file } = self;
        (!server.is_empty()).then_some(Servers { server, token_file })
    }
}

/// Whether anything is changed.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct DryRun {
    /// Check everything and show what would be, and change nothing
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
}

impl DryRun {
    /// Says so, where it is one.
    pub(crate) fn tell(self) {
        if self.dry_run {
            crate::complain(&"dry run: nothing was changed");
        }
    }
}

/// Which ids are taken.
#[derive(Debug, Args)]
pub(crate) struct NextIds {
    #[command(flatten)]
    pub(crate) of: Source,
    /// How many
    #[arg(short = 'n', long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// How they are written: `text` by the tag's template; of snowflake ids uuid, ulid, tsid or objectid
    #[arg(long = "as", value_name = "FORM")]
    pub(crate) form: Option<String>,
}
