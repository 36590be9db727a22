//! What the numbers of a tag mean, and the text in which every store keeps it.
//!
//! Invariant: the meaning stands beside the counter, in one record; an allocation compares it, and it never changes
//! while the record lives. A program that does not understand a part of it issues nothing: it would
//! issue other ids than those that do.
//!
//! A plain tag has no such text. Its record is what a Java Leaf understands; every other tag stands where a Java Leaf
//! finds nothing.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version of the text.
const FORMAT_VERSION: u32 = 1;

/// What the numbers of a tag mean; fixed when the tag is made.
///
/// ```
/// use leaf_segment::{Meaning, Order};
///
/// let strict = Meaning { order: Order::Strict };
/// assert_eq!(strict.encode(), r#"{"version":1,"order":"strict"}"#);
/// assert_eq!(Meaning::decode(&strict.encode())?, strict);
/// assert!(Meaning::PLAIN.is_plain());
/// # Ok::<(), leaf_segment::MeaningError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// How the ids that different nodes issue follow each other.
    pub order: Order,
}

/// How the ids of a tag follow each other when several nodes issue them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Each node issues from ranges of its own, in memory: increasing per node, and roughly over all of them.
    #[default]
    Relaxed,
    /// A request that is sent after another one was answered gets a greater id, whichever nodes they asked. Each
    /// id waits for the store.
    Strict,
}

/// A record whose meaning this version of Leaf must not guess.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MeaningError {
    /// A later version of Leaf wrote it.
    #[error("its meaning is of a later version of Leaf ({0}): upgrade this program")]
    Newer(String),
    /// It is damaged, or was written by hand.
    #[error(
        "its meaning cannot be read ({0}): put the text back that `leaf tag create` wrote, from a backup; no other \
         text can replace it"
    )]
    Damaged(String),
    /// Two records have the tag's name, one of them plain.
    #[error(
        "two records have its name, one plain (leaf_alloc) and one not (leaf_sequence): delete the one that was \
         made by mistake by hand, and advance the other above both"
    )]
    Twice,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    order: Order,
}

impl Meaning {
    /// Relaxed order and nothing else: what a Java Leaf issues, too.
    pub const PLAIN: Self = Self { order: Order::Relaxed };

    /// Whether a Java Leaf may share the tag.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self == Self::PLAIN
    }

    /// The meaning as a store keeps it: one line of JSON. The same meaning has the same text for ever, since stores
    /// compare it.
    #[must_use]
    pub fn encode(self) -> String {
        let text = Text { version: FORMAT_VERSION, order: self.order };
        serde_json::to_string(&text).expect("numbers and texts serialize")
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// A later version wrote it, or it is not exactly such a text.
    pub fn decode(text: &str) -> Result<Self, MeaningError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let damaged = |error: serde_json::Error| MeaningError::Damaged(error.to_string());
        let Version { version } = serde_json::from_str(text).map_err(damaged)?;
        if version > FORMAT_VERSION {
            return Err(MeaningError::Newer(format!("version {version}")));
        }
        // A field or a value more is a meaning that a later version added.
        let read: Text =
            serde_json::from_str(text).map_err(|error| MeaningError::Newer(error.to_string()))?;
        let meaning = Self { order: read.order };
        match meaning.encode() == text {
            true if meaning.is_plain() => {
                Err(MeaningError::Damaged("a plain tag has no such record".into()))
            }
            true => Ok(meaning),
            false => Err(MeaningError::Damaged(format!("it should read {}", meaning.encode()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of version 1. They must be read for ever, and written the same: stores compare them.
    #[test]
    fn version_1_is_read() {
        let text = r#"{"version":1,"order":"strict"}"#;
        let strict = Meaning { order: Order::Strict };
        assert_eq!(Meaning::decode(text), Ok(strict));
        assert_eq!(strict.encode(), text);
    }

    #[test]
    fn what_is_not_understood_is_never_guessed() {
        for newer in [
            r#"{"version":2}"#,
            r#"{"version":1,"order":"strict","shape":"scramble:63"}"#,
            r#"{"version":1,"order":"daily"}"#,
        ] {
            let refused = Meaning::decode(newer).unwrap_err();
            assert!(matches!(refused, MeaningError::Newer(_)), "{newer}: {refused}");
        }
        for damaged in [
            "",
            "{}",
            r#"{"order":"strict","version":1}"#,
            r#"{"version":1, "order":"strict"}"#,
            r#"{"version":0,"order":"strict"}"#,
            r#"{"version":1,"order":"relaxed"}"#,
        ] {
            let refused = Meaning::decode(damaged).unwrap_err();
            assert!(matches!(refused, MeaningError::Damaged(_)), "{damaged}: {refused}");
        }
    }
}
