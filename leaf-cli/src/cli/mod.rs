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
use leaf_core::TextForm;
pub(crate) use leaf_node::config::Span;
use leaf_node::tokens::Role;
pub(crate) use servers::{Bench, DryRun, NextIds, Servers, Through};
pub(crate) use tag::{Create, Order, Set, Tag};

/// Administers Leaf: the tags of its segment stores, the worker ids of its snowflake registry.
///
/// Both are those that the server uses: `segment.store`, `segment.shard` and `snowflake.registry`
/// with its place, of leaf.toml or the environment (LEAF_SEGMENT__STORE), or --store.
#[derive(Debug, Parser)]
#[command(name = "leaf", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// How results are printed
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    /// The cluster of this name, of `leaf context`, instead of the one that is used
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    // Last, since its heading is for all that follows.
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the stores are.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Stores and registry")]
pub(crate) struct Place {
    /// The server's configuration file, leaf.toml or leaf.properties, or both; default: LEAF_CONFIG,
    /// else those in the working directory, else those in /etc/leaf
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Vec<PathBuf>,
    /// Use this store instead of the configured ones, like mysql://user:password@host:3306/database; only `doctor`
    /// takes several
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Vec<String>,
    /// The server's data directory, which relative paths of SQLite files count from
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

impl Place {
    /// Whether the command line names one.
    pub(crate) fn is_named(&self) -> bool {
        !self.store.is_empty() || !self.config.is_empty() || self.data_dir.is_some()
    }

    /// One place for each store that is named.
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
    /// For programs; ids are strings, since JavaScript loses digits above 2^53. Errors, too.
    Json,
    /// For programs: a line for each result, behind one with the names that it has in JSON.
    Csv,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The tags: who gets ids, and in which steps.
    Tag {
        #[command(flatten)]
        through: Through,
        #[command(subcommand)]
        command: Tag,
    },
    /// The worker ids of the snowflake registry: who holds them.
    Worker {
        /// Those of the instances of this program, instead of the servers'. In etcd, without a name in its URL, and in
        /// ZooKeeper; else each database is one pool
        #[arg(long, global = true, value_name = "NAME")]
        namespace: Option<String>,
        #[command(flatten)]
        through: Through,
        #[command(subcommand)]
        command: Worker,
    },
    /// Tokens for the callers of servers: who may ask for what.
    Token {
        #[command(subcommand)]
        command: Token,
    },
    /// List the rules of traffic: the tags and callers that are cut, or limited to a rate.
    Traffic {
        /// Take all rules away, also those that cannot be read
        #[arg(long)]
        clear: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Refuse all ids of a tag, or to a caller, until `leaf allow`. All servers follow within 5 s.
    Cut {
        #[command(flatten)]
        through: Through,
        #[command(flatten)]
        dry: DryRun,
        #[command(subcommand)]
        of: Ruled,
    },
    /// Limit a tag or a caller to a number of ids per second on each server. All servers follow within 5 s.
    Limit {
        #[command(flatten)]
        dry: DryRun,
        #[command(subcommand)]
        of: Rated,
    },
    /// Take the rule of a tag or of a caller away.
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
        /// In decimal digits, or written as a UUID, a ULID, an ObjectId or a TSID, or by the tag's
        /// template
        id: String,
        /// An id of this tag: its number, its period, the key that made it. Reads the tag's record
        #[arg(long, conflicts_with = "form")]
        tag: Option<String>,
        /// How it is written, where that is not to be guessed: uuid, ulid, tsid or objectid
        #[arg(long = "as", value_name = "FORM")]
        form: Option<TextForm>,
        #[command(flatten)]
        through: Through,
    },
    /// Make tags that go on above ids that something else has handed out: tables, Redis, another list of tags. Tells
    /// what it would make; --apply makes it. Stop what hands ids out now before that.
    Import {
        #[command(subcommand)]
        from: Import,
    },
    /// Which of the configured stores each of them believes to be. A store remembers its place, and
    /// refuses servers whose segment.store or segment.shard say otherwise.
    Shards {
        /// Tell the stores their places by this configuration, after a change of segment.shard.
        /// Servers of the former configuration may go on until the command is repeated
        #[arg(long)]
        apply: bool,
    },
    /// How the servers of a cluster are: state and why, rates, how long stocks and worker ids last, clocks. Asks their
    /// ops listeners. Exit code 1 where one is not ready, 4 where one does not answer.
    Status {
        #[command(flatten)]
        servers: Servers,
        /// Again every second, until it is interrupted
        #[arg(long)]
        watch: bool,
    },
    /// Take ids from a server, one a line. Of several servers the first that can be reached.
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
    /// Measure how many ids a server hands out, and how fast: Leaf, a Java Leaf, or Redis. Compares all ids; exit
    /// code 1 where one comes twice. Ctrl-C ends it early, with a report.
    ///
    /// A response time counts from when the request was due, a service time from when it was sent.
    #[command(override_usage = "leaf bench [OPTIONS] <URL> <TAG|--snowflake>")]
    Bench(Bench),
    /// Clusters by name: their servers, and their configuration.
    Context {
        #[command(subcommand)]
        command: Context,
    },
    /// Print the completions of a shell, like `leaf completions bash > /etc/bash_completion.d/leaf`.
    Completions { shell: Shell },
    /// Write the manual pages into a directory: leaf.1, and one for each command.
    Man {
        /// It must exist
        directory: PathBuf,
    },
    /// Look for what could cost ids or their uniqueness, as the stores are set up now. Several
    /// --store, of several data centres, are also compared: which tags can have the same id in two
    /// of them.
    Doctor,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Clock {
    /// Let the ids of a server follow its clock, which has jumped ahead by more than snowflake.max_step_forward.
    /// They never go back: with a wrong clock its worker id could not be used before the time that it shows.
    Accept {
        #[command(flatten)]
        servers: Servers,
        /// Yes, it was compared with other clocks. Without this it is only told how they differ
        #[arg(long)]
        clock_is_right: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// The tags of a file, CSV or JSON: as `leaf tag list -o csv` or `-o json` writes them, or as a dump of a Java
    /// Leaf's table. Those that exist stay as they are.
    File {
        /// Its name ends in .csv or .json
        file: PathBuf,
        #[command(flatten)]
        how: HowImported,
    },
    /// A tag whose first id is above the greatest one in a column of a table.
    Column {
        /// The database, like mysql://user:password@host:3306/database
        #[arg(long, value_name = "URL", required_unless_present = "from_file")]
        from: Option<String>,
        /// A file with that URL, so that no password is in the list of processes
        #[arg(long, value_name = "FILE", conflicts_with = "from")]
        from_file: Option<PathBuf>,
        /// Like orders.id, or shop.orders.id with a schema
        #[arg(value_name = "TABLE.COLUMN")]
        column: String,
        /// The tag to be made
        tag: String,
        #[command(flatten)]
        how: HowImported,
    },
    /// A tag whose first id is above the number that a key of Redis holds (INCR).
    Redis {
        /// Like redis://127.0.0.1:6379
        url: String,
        /// The key
        key: String,
        /// The tag to be made
        tag: String,
        /// A file with the password; default LEAF_TOKEN
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
        #[command(flatten)]
        how: HowImported,
    },
}

/// How tags are imported.
#[derive(Debug, Args)]
pub(crate) struct HowImported {
    /// How many ids to skip, for those that are handed out until this is applied, and those above the maximum whose
    /// rows were deleted. Default 1000; of a file 0
    #[arg(long, value_name = "IDS")]
    pub(crate) gap: Option<u32>,
    /// The step of tags that bring none
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub(crate) step: u32,
    /// Make them
    #[arg(long)]
    pub(crate) apply: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Context {
    /// Name a cluster, or name it anew: its servers, and with --config its stores and its registry.
    Add {
        /// 1 to 64 letters, digits, `-`, `_` and `.`
        name: String,
        #[command(flatten)]
        servers: Servers,
    },
    /// Use a context from now on; none without a name.
    Use { name: Option<String> },
    /// All contexts.
    List,
    /// Forget a context.
    Remove { name: String },
}

impl Command {
    /// Which servers it asks, if it asks some that a context or the configuration may name, and whether
    /// for ids.
    pub(crate) fn servers(&mut self) -> Option<(&mut Servers, bool)> {
        match self {
            Self::Next { servers, .. } => Some((servers, true)),
            Self::Status { servers, .. }
            | Self::Clock { command: Clock::Accept { servers, .. } } => Some((servers, false)),
            _ => None,
        }
    }

    /// Whether it changes stores, and no server can do it.
    pub(crate) const fn changes_stores(&self) -> bool {
        matches!(
            self,
            Self::Limit { .. }
                | Self::Traffic { .. }
                | Self::Import { .. }
                | Self::Shards { apply: true }
        )
    }

    /// Which server may do it.
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

/// What a rule of traffic is about.
#[derive(Debug, Subcommand)]
pub(crate) enum Ruled {
    /// A tag.
    Tag {
        /// Its name, or the beginning of several and `*`
        tag: String,
    },
    /// A caller.
    Client {
        /// Its name in the server's tokens_file; `anonymous` is who shows no token
        name: String,
    },
}

/// What a rate is about.
#[derive(Debug, Subcommand)]
pub(crate) enum Rated {
    /// A tag.
    Tag {
        /// Its name, or the beginning of several, which share the rate, and `*`
        tag: String,
        /// Ids a second; as many are given at once
        rate: u32,
    },
    /// A caller.
    Client {
        /// Its name in the server's tokens_file; `anonymous` is who shows no token
        name: String,
        /// Ids a second; as many are given at once
        rate: u32,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Draw a token; prints it, and the line for the server's tokens_file. Nothing is stored.
    New {
        /// Who will show it: 1 to 64 letters, digits, `-`, `_` and `.`
        name: String,
        /// What that caller may do, several times if need be: ids, ids:TAG, ids:PREFIX*, read (what the
        /// ops listener shows) or admin (also what it changes)
        #[arg(long, required = true, value_name = "ROLE")]
        role: Vec<Role>,
    },
}

/// A command that runs with a worker id.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Who holds the worker id, in the list; needed, and a lasting one, where the registry binds worker ids to
    /// names for good. Default: one of the host's and the process's
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// When the lease cannot be extended, the command gets TERM, and KILL after this time
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    pub(crate) grace: Span,
    /// The command and its arguments, after `--`
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Worker {
    /// Run a command with a worker id that no other one of the namespace has: in LEAF_WORKER_ID, and in two
    /// parts of five bits in LEAF_DATACENTER_ID and LEAF_MACHINE_ID. The exit code is the command's.
    ///
    /// The command is ended before another one can get the worker id: where the registry cannot be reached for
    /// snowflake.offline_for, it is asked to end, and killed in time. Signals are passed on to it.
    Run(Run),
    /// Becomes a command; for `run`.
    #[command(hide = true)]
    Exec {
        #[arg(long)]
        parent: i32,
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    /// Ends a command whose `run` cannot; for `run`.
    #[command(hide = true)]
    Guard,
    #[command(flatten)]
    Of(OfRegistry),
}

/// A command on the records of the registry.
#[derive(Debug, Subcommand)]
pub(crate) enum OfRegistry {
    /// All worker ids that were ever used.
    List,
    /// Free what a dead node holds, before its time is over.
    Release {
        /// Its number, as in the list
        worker: u32,
        /// Yes, no process goes on with it, nor will one be started again on its data directory
        #[arg(long)]
        holder_is_dead: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Take a worker id out of service for good. A node that holds it loses it at its next report.
    Retire {
        /// Its number
        worker: u32,
        /// Yes, for good
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Write a damaged record anew, or put a worker id that a Java Leaf has lost back into its
    /// pool.
    Repair {
        /// Its number, as in the list
        worker: u32,
        /// Yes, no process goes on with it
        #[arg(long)]
        holder_is_dead: bool,
        #[command(flatten)]
        dry: DryRun,
    },
}

/// Reads the command line; `Err` holds the exit code after the text was printed.
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
