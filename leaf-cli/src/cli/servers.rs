//! The arguments that name servers, and those of the commands that ask them for ids; `--dry-run`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::Span;

/// The arguments of `leaf bench`.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// The server: http://HOST:8080 or https://HOST:8080, also with the path prefix of a proxy;
    /// redis://HOST:6379 or rediss://HOST:6379 (for a Redis, TAG is the key); grpc://HOST:8082
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) of: Source,
    /// A file with the token or with the password of Redis; default LEAF_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The number of connections; each sends one request at a time
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Requests a second, due at fixed moments. Without this option, each connection sends its next
    /// request as soon as it has the answer. With --ramp: the first rate
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) rate: Option<u32>,
    /// Find the highest rate at which 99 % of the requests are answered within 10 ms
    #[arg(long)]
    pub(crate) ramp: bool,
    /// How long to measure, default 10s; with --ramp for each rate, default 3s
    #[arg(long, value_name = "SPAN")]
    pub(crate) duration: Option<Span>,
    /// Also write the report into this file, as an HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// The arguments that choose between the ids of a tag and snowflake ids.
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

/// The options that name the servers to ask, and the token for them.
#[derive(Debug, Args)]
pub(crate) struct Servers {
    /// A server, like `https://id-1.internal`; may be given several times. Default port: 8080 for
    /// ids, 8081 for everything else. Default: LEAF_SERVER, separated by commas, else the server of
    /// the configuration
    #[arg(long, value_name = "URL")]
    pub(crate) server: Vec<String>,
    /// A file with the token; default LEAF_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// A server that runs the command in place of this program.
#[derive(Debug, Default, Args)]
pub(crate) struct Through {
    /// Run the command through this server, like `https://id-1.internal`; default port 8081. Of
    /// several servers, uses the first that can be reached. Default: LEAF_SERVER, else the servers
    /// of a context without --config
    #[arg(long, global = true, value_name = "URL", help_heading = THROUGH)]
    pub(crate) server: Vec<String>,
    /// A file with the token; default LEAF_TOKEN
    #[arg(long, global = true, value_name = "FILE", help_heading = THROUGH)]
    pub(crate) token_file: Option<PathBuf>,
}

const THROUGH: &str = "Through a server";

impl Through {
    /// The servers through which the command runs; `None` if it runs here.
    pub(crate) fn servers(self) -> Option<Servers> {
        let Self { server, token_file } = self;
        (!server.is_empty()).then_some(Servers { server, token_file })
    }
}

/// The option `--dry-run`: nothing is changed.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct DryRun {
    /// Check everything and show what would change, but change nothing
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
}

impl DryRun {
    /// Says on standard error that nothing was changed, if this is a dry run.
    pub(crate) fn tell(self) {
        if self.dry_run {
            crate::complain(&"dry run: nothing was changed");
        }
    }
}

/// The ids to take: their source, number and form.
#[derive(Debug, Args)]
pub(crate) struct NextIds {
    #[command(flatten)]
    pub(crate) of: Source,
    /// How many ids to take
    #[arg(short = 'n', long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// The form of the ids: `text` by the tag's template; for snowflake ids uuid, ulid, tsid or
    /// objectid
    #[arg(long = "as", value_name = "FORM")]
    pub(crate) form: Option<String>,
}
