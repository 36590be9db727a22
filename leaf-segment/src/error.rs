//! The errors of a store, and those that a generator returns to its callers.

use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Step, Tag, TagError, UnixMillis};

use leaf_shape::keys::KeyProblem;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A failure of a [`TagStore`](crate::TagStore), for the log and the operator.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {kind}{}", cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default())]
pub struct StoreError {
    kind: StoreErrorKind,
    operation: String,
    /// Printed in this error's text, and not its `source()`: so a log line shows the cause only
    /// once.
    cause: Option<Cause>,
}

/// The kind of a [`StoreError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No record of this name.
    #[error("no such tag: create it first")]
    UnknownTag,
    /// The record exists already.
    #[error("the tag exists already")]
    TagExists,
    /// A tag of this name was deleted, and the new one would issue ids of it again.
    #[error("{0}")]
    UsedBefore(String),
    /// The record's step is not the one that the caller saw.
    #[error("the record's step is now {0}")]
    StepChanged(Step),
    /// The record has another meaning than the caller knew: it was deleted and made again,
    /// reopened, or got another key.
    #[error("the tag was made again or reopened, or got another key")]
    MeaningChanged,
    /// The family has as many members as it may have.
    #[error("the family has as many members as it may have: raise its max_members")]
    FamilyFull,
    /// The record cannot be used until an operator corrects it; the text says why.
    #[error("{0}")]
    BadRecord(String),
    /// `max_id` cannot grow by the requested amount: no ids are left below 2^63, or in the tag's
    /// slice, shape, template or period.
    #[error(
        "the ids are used up: there are none left below 2^63, or in the tag's slice, shape, template or period"
    )]
    Exhausted,
    /// Numbers of a later period than this host's clock shows were granted already.
    #[error(
        "numbers of {opened} were granted already, and this host's clock says {own}: this tag has ids again when {opened} begins. \
         Compare the clocks of all hosts (after a failover it may be the guard's jump); where one was ahead, an operator can reopen the tag"
    )]
    ClockBehind {
        /// The period that is open, like 20261121.
        opened: i64,
        /// The period by this host's clock.
        own: i64,
    },
    /// The period that this host's clock shows has not begun by the clock of the store's server.
    #[error(
        "this host's clock says {own}, and that of the store's server {theirs}: no number of a later period is granted on \
         the word of one clock, since it could not be taken back: correct the one that is wrong"
    )]
    ClockAhead {
        /// The period by this host's clock, like 20261121.
        own: i64,
        /// The period by the clock of the store's server.
        theirs: i64,
    },
    /// This host's clock shows a time before [`RELEASED`](leaf_core::RELEASED).
    #[error("the clock shows {}, which no right one does: numbers that begin again wait until it is set", .now.utc())]
    ClockUnset {
        /// The time that this host's clock shows.
        now: UnixMillis,
    },
    /// The range starts below the tag's mark, up to which this node was already granted ids.
    #[error(
        "the store granted ids from {start} on although ids below {mark} were granted before: \
         find out whether the store went back, then advance the tag to at least {mark}"
    )]
    Regression {
        /// Where the refused range starts.
        start: i64,
        /// One past the last id granted before.
        mark: i64,
    },
    /// The record was changed, repaired or made again after the change was decided. Nothing was
    /// changed.
    #[error("the tag was changed, repaired or made again meanwhile: look at it again, then repeat")]
    RecordChanged,
    /// Another change of the record came first, and this one was rolled back: try again at once.
    #[error("others changed the record at the same time")]
    Conflict,
    /// The store cannot be reached or is busy; another attempt may succeed.
    #[error("store unavailable")]
    Unavailable,
    /// The store is full: it answers reads but refuses writes until somebody frees space.
    #[error("the store is full")]
    Full,
    /// The store refused the request, and will do so again until somebody changes something.
    #[error("store refused")]
    Refused,
    /// The store's file is not the one that was opened: it was removed, or another was put in its
    /// place.
    #[error(
        "the file was removed or replaced while in use: restart this process, and advance the tags if an \
         older copy was put back"
    )]
    Replaced,
    /// The store is another one than this process used before, or an earlier state of it.
    #[error(
        "the store went back, or is another one (a restored snapshot, perhaps): stop all nodes, advance every tag above all \
         ids that were granted, then start the nodes again"
    )]
    WentBack,
    /// The SQLite file has a second name: a hard link, or a mount of the file alone. SQLite would
    /// keep a log for each name, and ids would come twice.
    #[error(
        "the file has a second name (a hard link, or a mount of the file alone): SQLite keeps a log for each name, and ids \
         would repeat; remove the other name, or share the directory instead of the file"
    )]
    SecondName,
    /// The position among the shards that is recorded in the store is not the one in the
    /// configuration.
    #[error("the configuration gives the store another place among the shards than it had")]
    OtherPlace,
    /// The tag is sealed here: it was moved to another store, or is being moved or deleted.
    #[error(
        "the tag is sealed here: it was moved to another store (ask that one), or an import or a deletion was \
         broken off (repeat it)"
    )]
    Moved,
}

impl StoreError {
    /// An error of this kind in `operation`, which reads like "allocate tag \"orders\" in mysql".
    #[must_use]
    pub fn new(kind: StoreErrorKind, operation: impl Into<String>) -> Self {
        Self { kind, operation: operation.into(), cause: None }
    }

    /// Adds what caused it.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Cause>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> &StoreErrorKind {
        &self.kind
    }

    /// What was done, like "read the tags in mysql".
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// What caused it, where that is known.
    #[must_use]
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.cause.as_deref()
    }

    /// Whether the same call may succeed later without anybody's help.
    #[must_use]
    pub const fn retryable(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Unavailable | StoreErrorKind::Conflict | StoreErrorKind::StepChanged(_)
        )
    }

    /// Whether the store may have lost what it granted to this process. Then none of those ids may
    /// be issued any more, since the store may grant them again.
    pub(crate) const fn is_another_store(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Replaced | StoreErrorKind::WentBack)
    }

    /// Whether the store itself is in trouble, so that requests for other tags fail as well.
    pub(crate) const fn is_outage(&self) -> bool {
        use StoreErrorKind::{
            Full, OtherPlace, Refused, Replaced, SecondName, Unavailable, WentBack,
        };
        matches!(
            self.kind,
            Unavailable | Full | Refused | Replaced | SecondName | WentBack | OtherPlace
        )
    }
}

/// Why a caller got no id. The text is fit for clients: it names no host and no statement.
#[derive(Debug, Clone, thiserror::Error)]
#[error("tag {tag:?}: {kind}")]
pub struct SegmentError {
    kind: SegmentErrorKind,
    tag: String,
    /// The store's own error, if there was one. Clients must not see it: it is neither in the text
    /// nor the `source()` of this error.
    store_error: Option<Arc<StoreError>>,
}

/// The kind of a [`SegmentError`]: why the caller got no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentErrorKind {
    /// The text is no tag.
    #[error("{0}")]
    BadTag(TagError),
    /// No record of this name.
    #[error("no such tag: create it first")]
    UnknownTag,
    /// Both segments are used up and the store does not answer.
    #[error("out of ids while the store is unavailable")]
    StoreDown,
    /// Both segments are used up and the store refuses: an operator must see to it.
    #[error("out of ids: the store refuses; the server's health and log say why")]
    StoreRefused,
    /// Both segments are used up and the refill did not arrive in time.
    #[error("out of ids: the next segment did not arrive within {0:?}")]
    Deadline(Duration),
    /// Too many names that are not in memory are requested at the same time, or too many new
    /// members of a family.
    #[error("too many names that are not known here are asked for at once: ask again")]
    TooManyNames,
    /// The tag was made again, repaired or reopened, or its ids have another key: this handle has
    /// ended, and the generator returns a new one.
    #[error("the tag was made again, repaired, reopened or got another key: ask for it anew")]
    Changed,
    /// The tag is disabled, or its family is.
    #[error("the tag is disabled")]
    Disabled,
    /// The name is that of a family of tags, which has no ids itself.
    #[error(
        "this is a family of tags: ask for one of its members, whose names have something else for the `*`"
    )]
    Family,
    /// The tag would be a new member of a family that has as many as it may have.
    #[error("the family has as many members as it may have: raise its max_members")]
    FamilyFull,
    /// The tag has no ids left below 2^63, or in its slice, shape, template or period.
    #[error("the tag's ids are used up, or, where its numbers begin again, those of this period")]
    Exhausted,
    /// Numbers of a later period were granted already: this host's clock is behind, or another one
    /// is ahead.
    #[error(
        "numbers of a later period were granted already, and by this node's clock it has not begun: a clock is wrong, or \
         the tag jumped after a failover; the health of this node says which period"
    )]
    ClockBehind,
    /// This host's clock is not set yet, or is ahead of that of the store's server.
    #[error(
        "this node's clock is not set yet, or ahead of the store's, and a number of a period that has not begun cannot be taken \
         back; the health of this node says more"
    )]
    ClockInDoubt,
    /// The ids of the tag are scrambled with a key that this process does not have.
    #[error("{0}")]
    Key(KeyProblem),
    /// The tag's ids are interleaved or scrambled, so that they form no ranges.
    #[error("the ids of this tag are no ranges: ask for them one by one, or for a list of them")]
    NoRanges,
    /// The tag is in strict order, which a leased range would break: its ids are handed out
    /// elsewhere.
    #[error(
        "the tag is in strict order, which ids of a leased range would break: ask for its ids one by one, or for a list of \
         them"
    )]
    StrictOrder,
    /// The tag is sealed in this generator's store: it was moved to another store, or is being
    /// deleted.
    #[error(
        "the tag is being deleted, or was moved to another store; the health of this node says what to do"
    )]
    Moved,
    /// The store offers ids that were granted before, because it was reset to an older state. The
    /// tag gets no ids until somebody raises its record.
    #[error(
        "the store offers ids that were granted before; the server's health and log say what to do"
    )]
    Guard,
    /// An operator must correct the record: its step, `max_id`, meaning or settings cannot be used.
    #[error("the tag's record needs an operator; the server's health and log say why")]
    Record,
    /// The requested count is 0, or more than one call may take.
    #[error("{count} ids at once: give 1 to {most}")]
    BadCount {
        /// The requested count.
        count: usize,
        /// The most that one call may take.
        most: usize,
    },
    /// The generator was closed.
    #[error("the generator is closed")]
    Closed,
}

impl SegmentError {
    pub(crate) fn new(kind: SegmentErrorKind, tag: &str) -> Self {
        Self { kind, tag: tag.into(), store_error: None }
    }

    /// The error for a caller that gets no id because of this failure of the store.
    pub(crate) fn of_store(tag: &Tag, error: Arc<StoreError>) -> Self {
        let kind = match error.kind() {
            // A member of a family that was deleted is not made again.
            StoreErrorKind::UnknownTag | StoreErrorKind::UsedBefore(_) => {
                SegmentErrorKind::UnknownTag
            }
            StoreErrorKind::FamilyFull => SegmentErrorKind::FamilyFull,
            StoreErrorKind::MeaningChanged | StoreErrorKind::RecordChanged => {
                SegmentErrorKind::Changed
            }
            StoreErrorKind::BadRecord(_) => SegmentErrorKind::Record,
            StoreErrorKind::Exhausted => SegmentErrorKind::Exhausted,
            StoreErrorKind::ClockBehind { .. } => SegmentErrorKind::ClockBehind,
            StoreErrorKind::ClockAhead { .. } | StoreErrorKind::ClockUnset { .. } => {
                SegmentErrorKind::ClockInDoubt
            }
            StoreErrorKind::Regression { .. } => SegmentErrorKind::Guard,
            StoreErrorKind::Moved => SegmentErrorKind::Moved,
            StoreErrorKind::Full
            | StoreErrorKind::Refused
            | StoreErrorKind::Replaced
            | StoreErrorKind::SecondName
            | StoreErrorKind::OtherPlace
            | StoreErrorKind::WentBack => SegmentErrorKind::StoreRefused,
            StoreErrorKind::StepChanged(_)
            | StoreErrorKind::TagExists
            | StoreErrorKind::Conflict
            | StoreErrorKind::Unavailable => SegmentErrorKind::StoreDown,
        };
        Self { kind, tag: tag.as_str().into(), store_error: Some(error) }
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> &SegmentErrorKind {
        &self.kind
    }

    /// The store's own error, where one was seen. Not for clients.
    #[must_use]
    pub fn store_error(&self) -> Option<&StoreError> {
        self.store_error.as_deref()
    }

    /// Whether the same call may succeed later without anybody's help.
    #[must_use]
    pub const fn retryable(&self) -> bool {
        matches!(
            self.kind,
            SegmentErrorKind::StoreDown
                | SegmentErrorKind::StoreRefused
                | SegmentErrorKind::Deadline(_)
                | SegmentErrorKind::TooManyNames
        )
    }
}
