//! The arguments of `leaf tag`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use leaf_node::ListCursor;
use leaf_segment::admin::ShapeName;
use leaf_segment::meaning::Period;

use super::DryRun;

/// How the ids of a tag follow each other when several servers issue them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Each server issues from ranges in its memory
    Relaxed,
    /// As requests follow each other, whichever servers they ask
    Strict,
}

impl From<Order> for leaf_segment::meaning::Order {
    fn from(order: Order) -> Self {
        match order {
            Order::Relaxed => Self::Relaxed,
            Order::Strict => Self::Strict,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tag {
    /// The tags of all stores, up to 1,000 at a time.
    List {
        /// Where to go on, as the list before said
        #[arg(long, value_name = "PLACE", default_value = "0", hide_default_value = true)]
        after: ListCursor,
        /// The members of this family alone, like 'invoice/*'
        #[arg(long, value_name = "FAMILY")]
        family: Option<String>,
        /// How many tags to show at most
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
    },
    /// One tag.
    Show { tag: String },
    /// Make a tag. Its first id is --first.
    Create(Create),
    /// Change the step, which servers follow with their next fetch, and what holds for the tag on
    /// every server from its next refresh on (within a minute).
    Set(Set),
    /// Give the newest key of segment.keys_file to a tag whose ids are scrambled. Every live server
    /// of the registry is asked whether it has it.
    Rekey {
        tag: String,
        /// Yes, every server has the key: ask none
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Raise the next number, after a restore or a failover that went back. Never lowers it.
    Advance {
        tag: String,
        /// The next number to be granted, at least; in a plain tag the next id
        #[arg(long, value_name = "ID", allow_negative_numbers = true)]
        at_least: i64,
        /// Yes, by more than 10^12 or by more than half of the failover margin: what is skipped
        /// is lost for ever, and replicas must have it before a failover
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Remove a tag. Made again with a lower first id, it would repeat its ids. Of a family its
    /// members stay, as tags of their own.
    Delete {
        tag: String,
        /// The family and all its members
        #[arg(long)]
        family: bool,
        /// Yes, the tag is to go
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Move tags here from another store, which grants no ids of them any more.
    Import {
        /// Where they are now, like mysql://user:password@host:3306/database
        #[arg(long, value_name = "URL", required_unless_present = "from_file")]
        from: Option<String>,
        /// A file with that URL, so that no password is in the list of processes
        #[arg(long, value_name = "FILE", conflicts_with = "from")]
        from_file: Option<PathBuf>,
        /// How many ids to skip
        #[arg(long, default_value_t = 0, value_name = "IDS")]
        gap: u32,
        /// These alone; all where none is named
        tags: Vec<String>,
        #[command(flatten)]
        dry: DryRun,
    },
}

/// What is to be changed of a tag.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("settings").required(true).multiple(true))]
pub(crate) struct Set {
    pub(crate) tag: String,
    /// How many ids one trip to the store reserves. Not in strict order
    #[arg(long, group = "settings", allow_negative_numbers = true)]
    pub(crate) step: Option<i64>,
    /// Whether ids are handed out
    #[arg(long, group = "settings")]
    pub(crate) enabled: Option<bool>,
    /// The dynamic step never falls below this; `none` for the servers' own
    #[arg(long, group = "settings", value_name = "STEP|none")]
    pub(crate) min_step: Option<String>,
    /// The dynamic step grows up to this; `none` for the servers' own
    #[arg(long, group = "settings", value_name = "STEP|none")]
    pub(crate) max_step: Option<String>,
    /// The most ids that one request takes; `none` for the servers' own
    #[arg(long, group = "settings", value_name = "COUNT|none")]
    pub(crate) max_take: Option<String>,
    /// How many members the family may have, those included that were deleted
    #[arg(long, group = "settings", value_name = "COUNT")]
    pub(crate) max_members: Option<u32>,
    /// How many members of the family each server makes in a second
    #[arg(long, group = "settings", value_name = "COUNT")]
    pub(crate) members_per_second: Option<u32>,
    #[command(flatten)]
    pub(crate) dry: DryRun,
}

/// What a new tag is to be like.
#[derive(Debug, Args)]
pub(crate) struct Create {
    pub(crate) tag: String,
    /// How many ids one trip to the store reserves: those of about ten minutes. Not in strict
    /// order
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) step: Option<i64>,
    /// strict: a request that is sent after another one was answered gets a greater id,
    /// whichever servers they asked; each id waits for the store. Fixed when the tag is made,
    /// like every option below
    #[arg(long, value_enum)]
    pub(crate) order: Option<Order>,
    /// scramble:63, scramble:53 or scramble:d10 (ten digits): ids that show neither how many
    /// there are nor their order, by the newest key of segment.keys_file. interleave:0/2: every
    /// second id, for the first of two stores
    #[arg(long, value_name = "SHAPE", default_value_t)]
    pub(crate) shape: ShapeName,
    /// One of several equal parts of all ids, counted from 0, for one of several data centres
    #[arg(long, value_name = "INDEX/COUNT")]
    pub(crate) slice: Option<String>,
    /// 53: all slices together are the ids that JavaScript's numbers hold; else 63
    #[arg(long, value_name = "63|53")]
    pub(crate) slice_bits: Option<u8>,
    /// The numbers begin at 1 again: daily, monthly or yearly. In strict order
    #[arg(long, value_name = "PERIOD")]
    pub(crate) reset: Option<Period>,
    /// The time zone of midnight (--reset) and of the date (--text), like Europe/Berlin;
    /// default UTC
    #[arg(long, value_name = "ZONE")]
    pub(crate) time_zone: Option<String>,
    /// How ids are written where a text is asked for, like "ORD-{date:%y%m%d}{n:06}{luhn}"
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) text: Option<String>,
    /// The first number, which is the first id of a plain tag; default 1, or the first of the
    /// slice
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) first: Option<i64>,
    /// What it is for, at most 256 characters
    #[arg(long)]
    pub(crate) description: Option<String>,
    /// Make a family, named like 'invoice/*'. The first request for invoice/acme then makes the tag invoice/acme,
    /// with the other options given here
    #[arg(long)]
    pub(crate) family: bool,
    /// How many members the family may have; default 1000000
    #[arg(long, value_name = "COUNT", requires = "family")]
    pub(crate) max_members: Option<u32>,
    /// How many members each server makes in a second; default 1000
    #[arg(long, value_name = "COUNT", requires = "family")]
    pub(crate) members_per_second: Option<u32>,
    #[command(flatten)]
    pub(crate) dry: DryRun,
}
