//! Whether a generator can answer now.
//!
//! The distinction carries the service through an outage: a dead store with stock left is
//! *degraded*, not *not ready*; else one database would take every node out of the balancer at once.

use std::fmt;

/// Whether a generator can hand out ids now, and if something is wrong, what.
///
/// ```
/// use leaf_core::Health;
///
/// let both = Health::Ready.and(Health::Degraded("store unreachable".into()));
/// assert!(both.can_answer());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Ids flow and nothing is wrong.
    Ready,
    /// Ids flow, but what they depend on is in trouble; the text says what.
    Degraded(String),
    /// No id can be issued now; the text says why.
    NotReady(String),
}

impl Health {
    /// Whether ids can be issued now.
    #[must_use]
    pub const fn can_answer(&self) -> bool {
        !matches!(self, Self::NotReady(_))
    }

    /// The worse of two; reasons of equal weight are joined.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        use Health::{Degraded, NotReady, Ready};
        match (self, other) {
            (Ready, rest) | (rest, Ready) => rest,
            (NotReady(a), NotReady(b)) => NotReady(format!("{a}; {b}")),
            (NotReady(a), Degraded(_)) | (Degraded(_), NotReady(a)) => NotReady(a),
            (Degraded(a), Degraded(b)) => Degraded(format!("{a}; {b}")),
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Degraded(why) => write!(f, "degraded: {why}"),
            Self::NotReady(why) => write!(f, "not ready: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worse_wins() {
        let degraded = Health::Degraded("slow".into());
        let down = Health::NotReady("clock".into());

        assert_eq!(Health::Ready.and(Health::Ready), Health::Ready);
        assert_eq!(Health::Ready.and(degraded.clone()), degraded);
        assert_eq!(degraded.and(down.clone()), down);
        assert_eq!(down.clone().and(down), Health::NotReady("clock; clock".into()));
    }
}
