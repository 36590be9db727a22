//! The arguments of `leaf tag`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use leaf_node::ListCursor;
use leaf_segment::admin::ShapeName;
use leaf_shape::Period;

use super::DryRun;

/// How the ids of a tag follow each other when several servers issue them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// Each server issues ids from ranges in its memory
    Relaxed,
    /// Ids rise in the order of the requests, whichever servers they go to
    Strict,
}

impl From<Order> for leaf_shape::Order {
    fn from(order: Order) -> Self {
        match order {
            Order::Relaxed => Self::Relaxed,
            Order::Strict => Self::Strict,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tag {
    /// List the tags of all stores, up to 1,000 at a time.
    List {
        /// Continue after this tag, as the previous list says at its end
        #[arg(long, value_name = "PLACE", default_value = "0", hide_default_value = true)]
        after: ListCursor,
        /// List only the members of this family, like 'invoice/*'
        #[arg(long, value_name = "FAMILY")]
        family: Option<String>,
        /// How many tags to show at most
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
    },
    /// Show one tag.
    Show { tag: String },
    /// Create a tag.
    Create(Create),
    /// Change the settings of a tag. Servers use a new step with their next fetch, and the other
    /// settings from their next refresh on (within a minute).
    Set(Set),
    /// Give the newest key of segment.keys_file to a tag whose ids are scrambled. Asks every live
    /// server of the registry whether it has this key.
    Rekey {
        tag: String,
        /// Confirm that every server has the key, and ask none
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Raise the next number of a tag, after a restore or a failover that lost numbers. Never
    /// lowers it.
    Advance {
        tag: String,
        /// The least value of the next number; in a plain tag, this is the next id
        #[arg(long, value_name = "ID", allow_negative_numbers = true)]
        at_least: i64,
        /// Confirm a raise by more than 10^12 or 200 periods, or by more than half of the failover
        /// margin: the skipped numbers are lost for ever, and replicas must have received the raise
        /// before a failover
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Reopen a tag with periods that a wrong clock has closed: it continues in the present period.
    /// Ids that were issued for later periods are not issued again.
    Reopen(Reopen),
    /// Delete a tag. If it is created again with a lower first id, its ids come again. The members
    /// of a deleted family stay, as tags of their own.
    Delete {
        tag: String,
        /// Delete the family with all its members
        #[arg(long)]
        family: bool,
        /// Confirm that the tag is to be deleted
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Move tags from another store into the configured one. The other store grants no ids of these
    /// tags any more.
    Import {
        /// The store with the tags, like mysql://user:password@host:3306/database
        #[arg(long, value_name = "URL", required_unless_present = "from_file")]
        from: Option<String>,
        /// A file that contains this URL, so that the list of processes shows no password
        #[arg(long, value_name = "FILE", conflicts_with = "from")]
        from_file: Option<PathBuf>,
        /// How many ids to skip
        #[arg(long, default_value_t = 0, value_name = "IDS")]
        gap: u32,
        /// Move only these tags; without names, all
        tags: Vec<String>,
        #[command(flatten)]
        dry: DryRun,
    },
}

/// The arguments of `leaf tag set`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("settings").required(true).multiple(true))]
pub(crate) struct Set {
    pub(crate) tag: String,
    /// How many ids one fetch from the store reserves. Not for tags in strict order
    #[arg(long, group = "settings", allow_negative_numbers = true)]
    pub(crate) step: Option<i64>,
    /// Whether servers hand out ids of the tag
    #[arg(long, group = "settings")]
    pub(crate) enabled: Option<bool>,
    /// The least dynamic step; `none` for the servers' own least
    #[arg(long, group = "settings", value_name = "STEP|none")]
    pub(crate) min_step: Option<String>,
    /// The greatest dynamic step; `none` for the servers' own greatest
    #[arg(long, group = "settings", value_name = "STEP|none")]
    pub(crate) max_step: Option<String>,
    /// The most ids that one request may take; `none` for the servers' own limit
    #[arg(long, group = "settings", value_name = "COUNT|none")]
    pub(crate) max_take: Option<String>,
    /// How many members the family may have, including deleted ones
    #[arg(long, group = "settings", value_name = "COUNT")]
    pub(crate) max_members: Option<u32>,
    /// How many members of the family each server may create in a second
    #[arg(long, group = "settings", value_name = "COUNT")]
    pub(crate) members_per_second: Option<u32>,
    #[command(flatten)]
    pub(crate) dry: DryRun,
}

/// The arguments of `leaf tag create`.
#[derive(Debug, Args)]
pub(crate) struct Create {
    pub(crate) tag: String,
    /// How many ids one fetch from the store reserves: as many as are needed in about ten minutes.
    /// Not for tags in strict order
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) step: Option<i64>,
    /// strict: a request that is sent after another one was answered gets a greater id, whichever
    /// servers they go to; each request waits for the store. Cannot be changed later, like all
    /// options below
    #[arg(long, value_enum)]
    pub(crate) order: Option<Order>,
    /// scramble:63, scramble:53 or scramble:d10 (ten digits): ids that reveal neither their count
    /// nor their order; uses the newest key of segment.keys_file. interleave:0/2: every second id,
    /// for the first of two stores
    #[arg(long, value_name = "SHAPE", default_value_t)]
    pub(crate) shape: ShapeName,
    /// The slice of all ids that this data centre has: its number, counted from 0, and the number
    /// of slices, like 2/8
    #[arg(long, value_name = "INDEX/COUNT")]
    pub(crate) slice: Option<String>,
    /// How many bits the ids of all slices have: 63, or 53, so that JavaScript's numbers hold them
    #[arg(long, value_name = "63|53")]
    pub(crate) slice_bits: Option<u8>,
    /// When the numbers begin at 1 again: daily, monthly or yearly. Only in strict order
    #[arg(long, value_name = "PERIOD")]
    pub(crate) reset: Option<Period>,
    /// The time zone of midnight (--reset) and of the date (--text), like Europe/Berlin;
    /// default UTC
    #[arg(long, value_name = "ZONE")]
    pub(crate) time_zone: Option<String>,
    /// The template for ids as texts, like "ORD-{date:%y%m%d}{n:06}{luhn}"
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) text: Option<String>,
    /// The first number; in a plain tag, this is the first id. Default: 1, or the first of the
    /// slice
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) first: Option<i64>,
    /// What the tag is for, at most 256 characters
    #[arg(long)]
    pub(crate) description: Option<String>,
    /// Create a family, named like 'invoice/*': the first request for invoice/acme then creates the
    /// tag invoice/acme, with the other options given here
    #[arg(long)]
    pub(crate) family: bool,
    /// How many members the family may have; default 1000000
    #[arg(long, value_name = "COUNT", requires = "family")]
    pub(crate) max_members: Option<u32>,
    /// How many members each server may create in a second; default 1000
    #[arg(long, value_name = "COUNT", requires = "family")]
    pub(crate) members_per_second: Option<u32>,
    #[command(flatten)]
    pub(crate) dry: DryRun,
}

#[derive(Debug, Args)]
pub(crate) struct Reopen {
    pub(crate) tag: String,
    /// The greatest id of the present period that may have been issued, including ids that callers
    /// have not stored yet; 0 if there is none. Without this option, the tag has ids only from the
    /// next period on
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    pub(crate) above: Option<i64>,
    /// The first period that the wrong clock opened, like 20271121: the period that is open now, or
    /// an earlier one if the wrong clock went on into a later period. Not needed if the next period
    /// is open
    #[arg(long, value_name = "PERIOD", allow_negative_numbers = true)]
    pub(crate) first_taken: Option<i64>,
    /// Confirm what the command says it would do without this option
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) dry: DryRun,
}
