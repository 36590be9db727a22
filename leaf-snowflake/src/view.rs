//! A snapshot of a generator, for dashboards, metrics and the command line.

use leaf_core::{Health, UnixMillis, WorkerId};

use crate::ClockSteps;

/// A snapshot of a [`SnowflakeGenerator`](crate::SnowflakeGenerator). Taking one costs callers of
/// `next` nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnowflakeView {
    /// Whether ids can be issued now, and if not why.
    pub health: Health,
    /// The worker id; `None` while none is held.
    pub worker: Option<WorkerId>,
    /// The term of the lease, incremented by every claim of the worker id; 0 while none is held.
    pub term: u64,
    /// Whether the registry confirmed the lease: `false` on a node that started from its state file
    /// while the registry was away, until the registry answers.
    pub confirmed: bool,
    /// The local ceiling, written in the state file: no id is issued at or above it. Without a
    /// state file it equals the registry ceiling.
    pub local_ceiling: UnixMillis,
    /// The ceiling in the registry's record: no id is issued at or above it.
    pub registry_ceiling: UnixMillis,
    /// The first instant above all ids issued under this lease.
    pub next_free: UnixMillis,
    /// By how many milliseconds the ids' clock is ahead of the wall clock; `None` while ids are
    /// stopped because the wall clock went back.
    pub ahead_of_wall: Option<i64>,
    /// How often the wall clock was set.
    pub clock_steps: ClockSteps,
    /// How many leases this process has lost since it started: taken over, in doubt after a
    /// failover, or replaced by a lease with which ids cannot go on (of another worker id, of a
    /// term that is not the next one, or with a floor above the ids issued so far).
    pub leases_lost: u64,
    /// Whole days until the layout's timestamp is used up.
    pub days_left: u64,
}
