//! The command line.

mod servers;
mod tag;
mod wrong;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
pub(crate) use leaf_node::config::Span;
use leaf_node::tokens::Role;
use leaf_shape::TextForm;
pub(crate) use servers::{Bench, DryRun, NextIds, Servers, Through};
pub(crate) use tag::{Create, Order, Reopen, Set, Tag};

/// Administers Leaf: the tags of its segment stores, the worker ids of its snowflake registry.
///
/// Uses the same stores and the same registry as the server: `segment.store`, `segment.shard` and
/// `snowflake.registry` from leaf.toml or the environment (LEAF_SEGMENT__STORE); or the store given
/// by --store.
#[derive(Debug, Parser)]
#[command(name = "leaf", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// How results are printed
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    /// Use the cluster of this name instead of the current one, see `leaf context`
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    // Last, since its heading is for all that follows.
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The options that name the stores and the registry.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Stores and registry")]
pub(crate) struct Place {
    /// The server's configuration files: leaf.toml, leaf.properties, or both. Default: LEAF_CONFIG,
    /// else the files in the working directory, else the files in /etc/leaf
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Vec<PathBuf>,
    /// Use this store instead of the configured ones, like
    /// mysql://user:password@host:3306/database; only `doctor` takes several
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Vec<String>,
    /// The server's data directory; relative paths of SQLite files begin there
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

impl Place {
    /// Whether the command line names a store, a configuration file or a data directory.
    pub(crate) fn is_named(&self) -> bool {
        !self.store.is_empty() || !self.config.is_empty() || self.data_dir.is_some()
    }

    /// Returns one place for each store that `--store` names; without `--store`, a copy of `self`.
    pub(crate) fn each(&self) -> Vec<Self> {
        let of = |store: &String| Self { store: vec![store.clone()], ..self.clone() };
        match self.store.as_slice() {
            [] => vec![self.clone()],
            stores => stores.iter().map(of).collect(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For programs. Errors are JSON, too. Ids are strings, since JavaScript loses digits above
    /// 2^53.
    Json,
    /// For programs: a line with the names of the columns, as in JSON, and a line for each result.
    Csv,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The tags of the stores: list, create, change, repair, move and delete them.
    Tag {
        #[command(flatten)]
        through: Through,
        #[command(subcommand)]
        command: Tag,
    },
    /// The worker ids of the snowflake registry: list, release, retire and repair them; run a
    /// command with one.
    Worker {
        /// Use the worker ids of the program NAME instead of the servers'. Only in ZooKeeper, and
        /// in etcd if its URL names no cluster: elsewhere all programs that use the database share
        /// its worker ids
        #[arg(long, global = true, value_name = "NAME")]
        namespace: Option<String>,
        #[command(flatten)]
        through: Through,
        #[command(subcommand)]
        command: Worker,
    },
    /// Make tokens, by which servers identify callers and their roles.
    Token {
        #[command(subcommand)]
        command: Token,
    },
    /// List the rules of traffic: the tags and callers that are cut, or limited to a rate.
    Traffic {
        /// Remove all rules, even if they cannot be read
        #[arg(long)]
        clear: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Cut a tag or a caller: servers refuse its requests for ids until `leaf allow`. All servers
    /// follow within 5 s.
    Cut {
        #[command(flatten)]
        through: Through,
        #[command(flatten)]
        dry: DryRun,
        #[command(subcommand)]
        of: Ruled,
    },
    /// Limit a tag or a caller to a number of ids per second on each server. All servers follow
    /// within 5 s.
    Limit {
        #[command(flatten)]
        dry: DryRun,
        #[command(subcommand)]
        of: Rated,
    },
    /// Remove the rule of a tag or of a caller, whether it is cut or limited.
    Allow {
        #[command(flatten)]
        through: Through,
        #[command(flatten)]
        dry: DryRun,
        #[command(subcommand)]
        of: Ruled,
    },
    /// Take an id apart: a snowflake id, offline, by the layout of the configuration, or an id of a
    /// tag.
    Decode {
        /// The id: decimal digits, a UUID, a ULID, an ObjectId, a TSID, or a text by the tag's
        /// template
        id: String,
        /// The tag of the id. Shows the number behind the id, its period, and the key that
        /// scrambled it. Reads the tag's record
        #[arg(long, conflicts_with = "form")]
        tag: Option<String>,
        /// The form of the id, if it cannot be guessed: uuid, ulid, tsid or objectid
        #[arg(long = "as", value_name = "FORM")]
        form: Option<TextForm>,
        #[command(flatten)]
        through: Through,
    },
    /// Create tags that continue above ids that something else has handed out: a table, Redis, a
    /// Java Leaf. Only shows what it would create; --apply creates it. Before that, stop what hands
    /// out these ids now.
    Import {
        #[command(subcommand)]
        from: Import,
    },
    /// Show the place that each of several stores has recorded for itself. A store refuses servers
    /// whose segment.store or segment.shard give it another place.
    Shards {
        /// Record the places of this configuration in the stores, after a change of segment.shard.
        /// Servers with the previous configuration may continue until the command is repeated
        #[arg(long)]
        apply: bool,
    },
    /// Show the servers of a cluster: their states with the reasons, rates, how long ids and worker
    /// ids will last, clocks. Asks the servers' ops listeners. Exit code 1 if a server is not
    /// ready, 4 if one does not answer.
    Status {
        #[command(flatten)]
        servers: Servers,
        /// Repeat every second until interrupted
        #[arg(long)]
        watch: bool,
    },
    /// Take ids from a server, and print one on each line. Of several servers, asks the first that
    /// can be reached.
    Next {
        #[command(flatten)]
        servers: Servers,
        #[command(flatten)]
        next: NextIds,
    },
    /// The clock by which a server makes snowflake ids.
    Clock {
        #[command(subcommand)]
        command: Clock,
    },
    /// Measure how many ids a second a server hands out, and its response times: Leaf, a Java Leaf,
    /// or Redis. Compares all ids: exit code 1 if an id comes twice. Ctrl-C ends it early, with a
    /// report.
    ///
    /// A response time begins when the request was due, a service time when it was sent.
    #[command(override_usage = "leaf bench [OPTIONS] <URL> <TAG|--snowflake>")]
    Bench(Bench),
    /// Clusters by name: their servers, and their configuration.
    Context {
        #[command(subcommand)]
        command: Context,
    },
    /// Print the completions of a shell, like `leaf completions bash >
    /// /etc/bash_completion.d/leaf`.
    Completions { shell: Shell },
    /// Write the manual pages into a directory: leaf.1, and a page for each command.
    Man {
        /// The directory; it must exist
        directory: PathBuf,
    },
    /// Check stores, registry and servers for anything that could cost ids or make an id come
    /// twice. If several --store are given, of several data centres, also shows which tags can have
    /// the same id in two of them.
    Doctor,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Clock {
    /// Let the snowflake ids of a server follow its clock, which has jumped ahead by more than
    /// snowflake.max_step_forward. This cannot be undone: if the clock is wrong, the server's
    /// worker id cannot be used until the right time has reached the time that the clock shows now.
    Accept {
        #[command(flatten)]
        servers: Servers,
        /// Confirm that the clock is right: you have compared it with other clocks. Without this
        /// option, the command only shows how the clocks differ
        #[arg(long)]
        clock_is_right: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// Create the tags that a CSV or JSON file lists: the output of `leaf tag list -o csv` or `-o
    /// json`, or a dump of a Java Leaf's table. Tags that exist are not changed.
    File {
        /// The file; its name ends in .csv or .json
        file: PathBuf,
        #[command(flatten)]
        how: HowImported,
    },
    /// Create a tag whose first id is above the greatest value in a column of a table.
    Column {
        /// The database, like mysql://user:password@host:3306/database
        #[arg(long, value_name = "URL", required_unless_present = "from_file")]
        from: Option<String>,
        /// A file that contains this URL, so that the list of processes shows no password
        #[arg(long, value_name = "FILE", conflicts_with = "from")]
        from_file: Option<PathBuf>,
        /// The column, like orders.id, or shop.orders.id with a schema
        #[arg(value_name = "TABLE.COLUMN")]
        column: String,
        /// The tag to create
        tag: String,
        #[command(flatten)]
        how: HowImported,
    },
    /// Create a tag whose first id is above the number in a key of Redis (INCR).
    Redis {
        /// The URL of Redis, like redis://127.0.0.1:6379
        url: String,
        /// The key
        key: String,
        /// The tag to create
        tag: String,
        /// A file with the password; default LEAF_TOKEN
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
        #[command(flatten)]
        how: HowImported,
    },
}

/// The options that all imports share.
#[derive(Debug, Args)]
pub(crate) struct HowImported {
    /// How many ids to skip: for ids that are handed out before this is applied, and for ids above
    /// the maximum whose rows were deleted. Default 1000; 0 for a file
    #[arg(long, value_name = "IDS")]
    pub(crate) gap: Option<u32>,
    /// The step of tags for which none is given
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub(crate) step: u32,
    /// Create the tags
    #[arg(long)]
    pub(crate) apply: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Context {
    /// Add or replace a context: the name of a cluster with its servers and, with --config, its
    /// stores and its registry.
    Add {
        /// The name: 1 to 64 letters, digits, `-`, `_` and `.`
        name: String,
        #[command(flatten)]
        servers: Servers,
    },
    /// Make a context the current one; without a name, use none.
    Use { name: Option<String> },
    /// List the contexts.
    List,
    /// Remove a context.
    Remove { name: String },
}

impl Command {
    /// Whether the command uses the current context. Other commands must not depend on a file of
    /// this user.
    pub(crate) const fn follows_context(&self) -> bool {
        !matches!(
            self,
            Self::Context { .. }
                | Self::Completions { .. }
                | Self::Man { .. }
                | Self::Worker { command: Worker::Exec { .. } | Worker::Guard, .. }
        )
    }

    /// For a command whose servers a context or the configuration may fill in: its options that
    /// name servers, and whether it requests ids from them. `None` for all other commands.
    pub(crate) fn servers(&mut self) -> Option<(&mut Servers, bool)> {
        match self {
            Self::Next { servers, .. } => Some((servers, true)),
            Self::Status { servers, .. }
            | Self::Clock { command: Clock::Accept { servers, .. } } => Some((servers, false)),
            _ => None,
        }
    }

    /// Whether the command is refused where a server is named: no server can run it, and it changes
    /// the stores or lists their rules of traffic.
    pub(crate) const fn changes_stores(&self) -> bool {
        matches!(
            self,
            Self::Limit { .. }
                | Self::Traffic { .. }
                | Self::Import { .. }
                | Self::Shards { apply: true }
        )
    }

    /// The options that name a server to run the command; `None` if no server can.
    pub(crate) fn through(&mut self) -> Option<&mut Through> {
        match self {
            Self::Worker { command: Worker::Of(_), through, .. }
            | Self::Decode { tag: Some(_), through, .. }
            | Self::Tag { through, .. }
            | Self::Cut { through, .. }
            | Self::Allow { through, .. } => Some(through),
            _ => None,
        }
    }
}

/// The subject of a rule of traffic: a tag or a caller.
#[derive(Debug, Subcommand)]
pub(crate) enum Ruled {
    /// A tag.
    Tag {
        /// The name; or a prefix followed by `*`, for all tags whose names begin with it
        tag: String,
    },
    /// A caller.
    Client {
        /// The caller's name in the server's tokens_file; `anonymous` for callers without a token
        name: String,
    },
}

/// The subject of a limit, with its rate.
#[derive(Debug, Subcommand)]
pub(crate) enum Rated {
    /// A tag.
    Tag {
        /// The name; or a prefix followed by `*`, for all tags whose names begin with it: they
        /// share the rate
        tag: String,
        /// Ids a second; as many may also be taken in one burst
        rate: u32,
    },
    /// A caller.
    Client {
        /// The caller's name in the server's tokens_file; `anonymous` for callers without a token
        name: String,
        /// Ids a second; as many may also be taken in one burst
        rate: u32,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a random token: prints it, and the line for the server's tokens_file. Stores nothing.
    New {
        /// The name of the caller: 1 to 64 letters, digits, `-`, `_` and `.`
        name: String,
        /// What the caller may do: ids, ids:TAG, ids:PREFIX*, read (what the ops listener shows) or
        /// admin (also what it changes). May be given several times
        #[arg(long, required = true, value_name = "ROLE")]
        role: Vec<Role>,
    },
}

/// A command that runs with a worker id.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The name of the holder, as the list shows it. Required where the registry binds worker ids
    /// to names for good: then a name that never changes. Default: made of the host and the process
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// When the lease cannot be extended, the command gets SIGTERM, and SIGKILL after this time
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    pub(crate) grace: Span,
    /// The command and its arguments, after `--`
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Worker {
    /// Run a command with a worker id that no other command of the namespace has meanwhile. The
    /// command finds it in LEAF_WORKER_ID, and as two parts of five bits in LEAF_DATACENTER_ID and
    /// LEAF_MACHINE_ID. The exit code is the command's.
    ///
    /// The command ends before another one can get the worker id: if the registry cannot be reached
    /// for snowflake.offline_for, the command gets SIGTERM, and SIGKILL in time. Signals are passed
    /// on to it.
    Run(Run),
    /// Replaces this process by a command; used by `run`.
    #[command(hide = true)]
    Exec {
        #[arg(long)]
        parent: i32,
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    /// Runs the command guard; used by `run`.
    #[command(hide = true)]
    Guard,
    #[command(flatten)]
    Of(OfRegistry),
}

/// A command on the records of the registry.
#[derive(Debug, Subcommand)]
pub(crate) enum OfRegistry {
    /// List all worker ids that were ever used.
    List,
    /// Free the worker id of a dead node before its lease ends.
    Release {
        /// The worker id, as in the list
        worker: u32,
        /// Confirm that no process uses the worker id any more, and that none will be started again
        /// on its data directory
        #[arg(long)]
        holder_is_dead: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Take a worker id out of service for good. A node that holds it loses it at its next report.
    Retire {
        /// The worker id
        worker: u32,
        /// Confirm that the worker id is never to be used again
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Write a new record in place of a damaged one, or put a worker id that a Java Leaf has lost
    /// back into its pool.
    Repair {
        /// The worker id, as in the list
        worker: u32,
        /// Confirm that no process uses the worker id any more
        #[arg(long)]
        holder_is_dead: bool,
        #[command(flatten)]
        dry: DryRun,
    },
}

/// Parses the command line. If that fails, or help was asked for, prints a text, and `Err` holds
/// the exit code.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        if error.use_stderr() {
            return crate::tell(
                &wrong::explain(&error),
                None,
                crate::exit::USAGE,
                wrong::asked_for_json(),
            );
        }
        // Help and version; a closed standard output is nobody's problem.
        let _ = error.print();
        ExitCode::SUCCESS
    })
}

/// The completions of a shell.
pub(crate) fn completions(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leaf", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes the manual pages.
///
/// # Errors
/// The directory cannot be written.
pub(crate) fn man(directory: &Path) -> anyhow::Result<crate::Done> {
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| directory.display().to_string())?;
    Ok(format!("the manual pages are in {}\n", directory.display()).into())
}
