//! The health of a generator: whether it can answer now, and what is wrong.
//!
//! A node whose store does not answer, but which still has ids in memory, is *degraded*, not *not
//! ready*. Otherwise the outage of one database would take every node out of the load balancer at
//! once.

use std::fmt;

/// The health of a generator: whether it can hand out ids now, and what is wrong.
///
/// ```
/// use leaf_core::{Health, HealthCode};
///
/// let store = Health::degraded(HealthCode::StoreUnavailable, "the database does not answer");
/// let both = Health::Ready.and(store);
/// assert!(both.can_answer());
/// assert_eq!(both.reasons()[0].code.as_str(), "store_unavailable");
/// assert_eq!(both.to_string(), "degraded: the database does not answer");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Ids flow and nothing is wrong.
    Ready,
    /// Ids flow, but what they depend on is in trouble.
    Degraded(Vec<HealthReason>),
    /// No id can be issued now.
    NotReady(Vec<HealthReason>),
}

/// One reason why a [`Health`] is not `Ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthReason {
    /// The reason as a code, for programs.
    pub code: HealthCode,
    /// The reason as a text, for people. The text may change from version to version.
    pub text: String,
}

/// Defines [`HealthCode`] from a list of codes and names, so that each is written in one place.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident => $name:literal,)*) => {
        /// The code of a [`HealthReason`], for programs. The names of codes stay the same in later
        /// versions, which may add codes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum HealthCode {
            $($(#[$doc])* $code,)*
        }

        impl HealthCode {
            /// Every code of this version.
            pub const ALL: &[Self] = &[$(Self::$code,)*];

            /// The name, like `store_unavailable`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$code => $name,)*
                }
            }
        }
    };
}

codes! {
    /// No worker id yet, or the store of tags was not read yet.
    Starting => "starting",
    /// The generator or the process is being stopped, or was.
    Stopping => "stopping",
    /// An operator has taken the process out of service for a while.
    Drained => "drained",
    /// The store of segments does not answer.
    StoreUnavailable => "store_unavailable",
    /// The store of segments acknowledges allocations that it may lose, at a crash or a failover.
    StoreMayLose => "store_may_lose",
    /// A tag that is in use has no ids left, and its store does not answer.
    OutOfIds => "out_of_ids",
    /// A tag gets no new ids until an operator has repaired its record.
    TagRefused => "tag_refused",
    /// The high-water marks of the regression guard cannot be written.
    MarksNotWritten => "marks_not_written",
    /// The registry of worker ids does not answer or refuses.
    Registry => "registry",
    /// The lease was lost: another node may have the worker id.
    LeaseLost => "lease_lost",
    /// The clock went back or jumped, or differs from the clocks of other nodes.
    Clock => "clock",
    /// The state file cannot be written.
    StateFile => "state_file",
    /// Ids have reached the ceiling that the registry or the state file holds.
    CeilingReached => "ceiling_reached",
    /// The timestamps of the layout are used up.
    EndOfTime => "end_of_time",
    /// The timestamps of the layout will be used up within some months.
    EndOfTimeNear => "end_of_time_near",
    /// This process is a forked child of the one that opened the generator.
    Forked => "forked",
}

impl fmt::Display for HealthCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl HealthReason {
    /// Makes a reason from its code and its text.
    #[must_use]
    pub fn new(code: HealthCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl Health {
    /// Makes [`Self::Degraded`] with one reason: ids flow in spite of it.
    #[must_use]
    pub fn degraded(code: HealthCode, text: impl Into<String>) -> Self {
        Self::Degraded(vec![HealthReason::new(code, text)])
    }

    /// Makes [`Self::NotReady`] with one reason: no id can be issued because of it.
    #[must_use]
    pub fn not_ready(code: HealthCode, text: impl Into<String>) -> Self {
        Self::NotReady(vec![HealthReason::new(code, text)])
    }

    /// `ready`, `degraded` or `not ready`.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded(_) => "degraded",
            Self::NotReady(_) => "not ready",
        }
    }

    /// Whether ids can be issued now.
    #[must_use]
    pub const fn can_answer(&self) -> bool {
        !matches!(self, Self::NotReady(_))
    }

    /// The reasons why the generator is degraded or not ready; empty if it is ready.
    #[must_use]
    pub fn reasons(&self) -> &[HealthReason] {
        match self {
            Self::Ready => &[],
            Self::Degraded(reasons) | Self::NotReady(reasons) => reasons,
        }
    }

    /// Returns the worse of two states, with the reasons of both. The reasons of the worse state
    /// come first.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        use Health::{Degraded, NotReady, Ready};
        match (self, other) {
            (Ready, rest) | (rest, Ready) => rest,
            (NotReady(a), NotReady(b)) => NotReady([a, b].concat()),
            (NotReady(a), Degraded(b)) | (Degraded(b), NotReady(a)) => NotReady([a, b].concat()),
            (Degraded(a), Degraded(b)) => Degraded([a, b].concat()),
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.state())?;
        let mut before = ": ";
        for reason in self.reasons() {
            write!(f, "{before}{}", reason.text)?;
            before = "; ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worse_wins() {
        let degraded = Health::degraded(HealthCode::StoreUnavailable, "slow");
        let down = Health::not_ready(HealthCode::Clock, "clock");

        assert_eq!(Health::Ready.and(Health::Ready), Health::Ready);
        assert_eq!(Health::Ready.and(degraded.clone()), degraded);
        assert_eq!(degraded.and(down.clone()).to_string(), "not ready: clock; slow");
        let both = down.clone().and(down);
        assert_eq!(both.to_string(), "not ready: clock; clock");
        assert_eq!(both.reasons().len(), 2);
    }
}
