//! The errors of registries, and those that callers of a generator get.

use std::sync::Arc;
use std::time::Duration;

use leaf_core::{HealthCode, UnixMillis, WorkerId};

use crate::StateFileError;
use crate::id_clock::Doubt;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A failure of a [`Registry`](crate::Registry), for the log and the operator.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {kind}{}", cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default())]
pub struct RegistryError {
    kind: RegistryErrorKind,
    operation: String,
    /// Printed in this error's text and not part of the error chain, so that a log line contains it
    /// only once.
    cause: Option<Cause>,
}

/// The kind of a [`RegistryError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryErrorKind {
    /// The registry cannot be reached or is busy; another attempt may succeed.
    #[error("registry unavailable")]
    Unavailable,
    /// Another holder has written the fence, or the record no longer exists. The lease has ended.
    #[error("this node no longer holds the worker id")]
    Lost,
    /// This node may claim the worker id from `at` on, which is soon enough to wait for.
    #[error("the worker id can be claimed from {} on", .at.utc())]
    NotYet {
        /// When to claim again.
        at: UnixMillis,
    },
    /// The worker id can be claimed only at a time that is too far away to wait for.
    #[error(
        "the worker id cannot be claimed before {}; this clock shows {}, which is {} earlier: the \
         last holder of the worker id may have issued ids up to that time, or it is kept back for that holder. Wait; correct the clock if it is wrong",
        .floor.utc(), .now.utc(), seconds(*.floor - *.now)
    )]
    FloorAhead {
        /// The earliest time at which the worker id can be claimed: the floor of the next holder,
        /// or the end of `recycle_after`.
        floor: UnixMillis,
        /// The wall clock.
        now: UnixMillis,
    },
    /// Another process reported under this worker id a moment ago, or while this node waited.
    #[error(
        "the worker id is in use: another process, or one that crashed, reported {} and may issue \
         ids up to {}: stop it, wait, or give this node another worker id",
        last_report.map_or_else(
            || "while this node waited".into(),
            |ago| format!("{} ago", seconds(ago))
        ),
        .until.utc()
    )]
    InUse {
        /// The holder's ceiling, or when this worker id can be claimed.
        until: UnixMillis,
        /// How long ago the holder last reported; `None` if it reported while this node waited for
        /// the worker id.
        last_report: Option<Duration>,
    },
    /// The node must first see that the record stays unchanged for `during`. Only then does the
    /// record count as this node's own, or the Java Leaf that wrote it as stopped.
    #[error("watching for {during:?} whether somebody else reports under the worker id")]
    Watch {
        /// The worker id.
        worker: WorkerId,
        /// The fingerprint of the record as it was read. Claim again after `during` with it in
        /// [`ClaimRequest::watched`](crate::ClaimRequest::watched).
        fingerprint: uuid::Uuid,
        /// How long to watch the record.
        during: Duration,
    },
    /// A Java Leaf reports under this worker id.
    #[error(
        "a Java Leaf is alive as {holder}: it reported while it was watched, and would repeat the ids: \
         stop it first"
    )]
    JavaAlive {
        /// The name of the Java Leaf in the record, or the directory of its cache file.
        holder: String,
    },
    /// The record was made with another layout or epoch.
    #[error(
        "ids were made with layout {recorded}, the configuration says {configured}; ids would \
         repeat: restore the setting. Only if it does no harm that new ids equal old ones, use an empty registry"
    )]
    OtherLayout {
        /// Shape and epoch in the record.
        recorded: String,
        /// Shape and epoch in the configuration.
        configured: String,
    },
    /// The registry's database has failed over to another server, which may lack the latest claims.
    #[error(
        "the database of the worker ids has failed over and may have lost claims: new claims are accepted \
         from {} on, when every claim that may have been lost has expired",
        .until.utc()
    )]
    FailedOver {
        /// The time by which every ceiling that was granted before the failover has passed.
        until: UnixMillis,
    },
    /// The registry's database failed over after the ceiling of this lease had passed, or shortly
    /// before it passed. Another node may have claimed the worker id before the failover, which may
    /// have lost that claim. The lease has ended: claim again.
    #[error(
        "the database of the worker ids has failed over, and another node's claim of this worker id may have \
         been lost there: this lease has ended"
    )]
    LeaseInDoubt,
    /// An operator took the worker id out of service.
    #[error("the worker id is retired: use another one")]
    Retired,
    /// A Java Leaf has the worker id, and worker ids of Java Leafs are not given out again.
    #[error("a Java Leaf has the worker id, and what Java Leafs had is not given out again")]
    JavaHolds,
    /// The worker id that belongs to this node does not fit the layout.
    #[error(
        "worker id {worker} of this node is above {greatest}, the layout's greatest: use a registry that \
         recycles worker ids, or a layout with more worker bits"
    )]
    BeyondLayout {
        /// The worker id.
        worker: WorkerId,
        /// The greatest worker id of the layout.
        greatest: WorkerId,
    },
    /// The worker id that belongs to this node is outside the worker ids of this registry.
    #[error("worker id {worker} of this node is outside {range}, the worker ids of this registry")]
    OutsideRange {
        /// The worker id.
        worker: WorkerId,
        /// The worker ids of this registry.
        range: crate::WorkerRange,
    },
    /// Another node of the registry is configured with a different range of worker ids.
    #[error(
        "a node of this registry is configured with the worker ids {recorded}, and this one with {configured}: \
         configure all alike; to change them, stop all nodes first, and release the worker ids of dead ones"
    )]
    OtherRange {
        /// The worker ids that the other node is configured with.
        recorded: String,
        /// The worker ids that this node is configured with.
        configured: String,
    },
    /// The configuration assigns no worker id to this node.
    #[error("no worker id is assigned to {identity}")]
    NotAssigned {
        /// This node's name.
        identity: crate::Identity,
    },
    /// This node gets no worker id; the text says why.
    #[error("{0}")]
    NoWorkerId(String),
    /// The registry does not accept this node's identity; the text says why.
    #[error("{0}")]
    BadIdentity(String),
    /// The record, or the Java mirror beside it, is damaged.
    #[error("the record is damaged: correct it, or repair the worker id")]
    Damaged,
    /// A later version of Leaf wrote the record in a format that this version cannot read.
    #[error(
        "the record has format version {version}, this program reads up to {}: update this program",
        crate::FORMAT_VERSION
    )]
    NewerFormat {
        /// The version of the record.
        version: u32,
    },
    /// The registry refuses: missing rights or tables, a setting that makes no sense.
    #[error("the registry refuses")]
    Refused,
}

impl RegistryErrorKind {
    /// Whether the lease ends if the registry answers its report, or the claim that confirms a
    /// saved lease, with this error.
    pub(crate) const fn ends_lease(&self) -> bool {
        matches!(
            self,
            Self::Lost
                | Self::LeaseInDoubt
                | Self::FloorAhead { .. }
                | Self::InUse { .. }
                | Self::JavaAlive { .. }
                | Self::JavaHolds
                | Self::BeyondLayout { .. }
                | Self::OutsideRange { .. }
                | Self::OtherRange { .. }
                | Self::NotAssigned { .. }
                | Self::NoWorkerId(_)
                | Self::BadIdentity(_)
                | Self::Retired
        )
    }
}

impl RegistryError {
    /// Creates an error of this kind. `operation` is a phrase like "claim a worker id".
    #[must_use]
    pub fn new(kind: RegistryErrorKind, operation: impl Into<String>) -> Self {
        Self { kind, operation: operation.into(), cause: None }
    }

    /// Adds the cause of this error.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Cause>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// The kind of this error.
    #[must_use]
    pub const fn kind(&self) -> &RegistryErrorKind {
        &self.kind
    }

    /// Whether it makes sense to repeat the call without a change. Even if `false`, the same call
    /// may succeed later.
    #[must_use]
    pub const fn retryable(&self) -> bool {
        matches!(
            self.kind,
            RegistryErrorKind::Unavailable
                | RegistryErrorKind::FailedOver { .. }
                | RegistryErrorKind::NotYet { .. }
                | RegistryErrorKind::Watch { .. }
        )
    }
}

/// Why a caller got no id, or a generator did not start. Cheap to clone.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{kind}")]
pub struct SnowflakeError {
    kind: SnowflakeErrorKind,
}

/// The kind of a [`SnowflakeError`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SnowflakeErrorKind {
    /// No worker id is held yet.
    #[error("no worker id yet")]
    Starting,
    /// The sequence of this tick is used up, or ids run ahead of the clock: the next free tick is
    /// `after` away.
    #[error("the sequence of this tick is used up")]
    Exhausted {
        /// How long to wait.
        after: Duration,
    },
    /// Ids stop because the wall clock fell behind the ids' clock by more than
    /// `rollback_tolerance`.
    #[error("the clock went back: {}", behind(*.by))]
    ClockBehind {
        /// How far the wall clock is behind the last id; zero once it has caught up, a moment
        /// before ids flow again.
        by: Duration,
    },
    /// The ceiling could not be raised in time: the state file or the registry is in trouble.
    #[error("the timestamp ceiling is reached: the state file or the registry does not answer")]
    CeilingReached,
    /// The layout's timestamp is used up.
    #[error(
        "the clock shows {}, and the timestamp bits of the layout are used up at {}: \
         correct the clock if it is wrong. A later epoch or a layout with more timestamp bits gives ids that may equal old ones: \
         change them only where that does no harm",
        .now.utc(), .end.utc()
    )]
    EndOfTime {
        /// The clock.
        now: UnixMillis,
        /// The first instant that the layout cannot hold.
        end: UnixMillis,
    },
    /// The clock shows a time that cannot be right, because it is before `not_before`. Perhaps the
    /// clock was not set yet after a boot.
    #[error(
        "the clock shows {}, before {}, the earliest that can be right: it is not set yet, or wrong",
        .now.utc(), .not_before.utc()
    )]
    ClockUnset {
        /// The clock.
        now: UnixMillis,
        /// The earliest time that can be right.
        not_before: UnixMillis,
    },
    /// This node no longer holds its worker id, and its registry does not allow it to claim another
    /// one.
    #[error("this node no longer holds the worker id")]
    Lost,
    /// The generator was closed.
    #[error("the generator is closed")]
    Closed,
    /// This process is a fork of the one that opened the generator, and would repeat its ids.
    #[error("this process was forked after the generator was opened: open one of its own")]
    Forked,
    /// The wall clock was set ahead a moment ago, and no peer confirms the new time. For some
    /// seconds this node claims no worker id by this clock: a ceiling from a wrong clock could not
    /// be lowered again.
    #[error("the clock was set ahead by {} a moment ago: it is looked at again before a worker id is claimed by it", seconds(*.by))]
    ClockInDoubt {
        /// By how much the clock was set ahead.
        by: Duration,
    },
    /// The comparison with the peers' clocks shows that this node's clock is wrong.
    #[error(
        "the clock is {} {} its peers' and only {agreeing} of {reached} agree with it within {}: \
         correct the clock",
        seconds(Duration::from_millis(.offset.unsigned_abs())),
        if *.offset < 0 { "behind" } else { "ahead of" },
        seconds(*.max_offset)
    )]
    ClockRefused {
        /// By how many milliseconds this node's clock is ahead of the peers' clocks; negative if it
        /// is behind.
        offset: i64,
        /// How many peers agree with this node's clock.
        agreeing: usize,
        /// How many peers answered.
        reached: usize,
        /// The largest difference that counts as agreement.
        max_offset: Duration,
    },
    /// The count is 0, or more than can be handed out at once.
    #[error("{count} ids at once: give 1 to {most}")]
    BadCount {
        /// The count that was asked for.
        count: usize,
        /// The most ids that one call can take.
        most: usize,
    },
    /// A setting, the clock or the cache file of a Java Leaf does not allow a start; the text says
    /// which.
    #[error("{0}")]
    BadConfig(String),
    /// The state file cannot be used.
    #[error(transparent)]
    StateFile(Arc<StateFileError>),
    /// The registry failed, or refused the claim.
    #[error(transparent)]
    Registry(Arc<RegistryError>),
}

impl SnowflakeErrorKind {
    /// The health code of a generator that issues no ids for this reason.
    pub(crate) fn health_code(&self) -> HealthCode {
        match self {
            Self::Starting | Self::BadCount { .. } | Self::BadConfig(_) => HealthCode::Starting,
            Self::CeilingReached => HealthCode::CeilingReached,
            // Health reports an exhausted sequence only if it lasts longer than callers wait: then
            // the ids are ahead of the clock.
            Self::Exhausted { .. }
            | Self::ClockBehind { .. }
            | Self::ClockRefused { .. }
            | Self::ClockInDoubt { .. }
            | Self::ClockUnset { .. } => HealthCode::Clock,
            Self::EndOfTime { .. } => HealthCode::EndOfTime,
            Self::Lost => HealthCode::LeaseLost,
            Self::Closed => HealthCode::Stopping,
            Self::Forked => HealthCode::Forked,
            Self::StateFile(_) => HealthCode::StateFile,
            Self::Registry(_) => HealthCode::Registry,
        }
    }
}

impl SnowflakeError {
    /// The kind of this error.
    #[must_use]
    pub const fn kind(&self) -> &SnowflakeErrorKind {
        &self.kind
    }

    /// Whether it makes sense to repeat the call without a change. Even if `false`, the same call
    /// may succeed later.
    #[must_use]
    pub fn retryable(&self) -> bool {
        match &self.kind {
            SnowflakeErrorKind::Starting
            | SnowflakeErrorKind::Exhausted { .. }
            | SnowflakeErrorKind::ClockBehind { .. }
            | SnowflakeErrorKind::ClockInDoubt { .. }
            | SnowflakeErrorKind::CeilingReached => true,
            SnowflakeErrorKind::Registry(error) => error.retryable(),
            _ => false,
        }
    }
}

impl From<SnowflakeErrorKind> for SnowflakeError {
    fn from(kind: SnowflakeErrorKind) -> Self {
        Self { kind }
    }
}

impl From<Doubt> for SnowflakeError {
    fn from(doubt: Doubt) -> Self {
        SnowflakeErrorKind::ClockInDoubt { by: doubt.by }.into()
    }
}

impl From<StateFileError> for SnowflakeError {
    fn from(error: StateFileError) -> Self {
        SnowflakeErrorKind::StateFile(Arc::new(error)).into()
    }
}

impl From<RegistryError> for SnowflakeError {
    fn from(error: RegistryError) -> Self {
        SnowflakeErrorKind::Registry(Arc::new(error)).into()
    }
}

fn behind(by: Duration) -> String {
    match by {
        Duration::ZERO => "it has caught up, ids flow again in a moment".into(),
        by => format!("it is {} behind the last id", seconds(by)),
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}
