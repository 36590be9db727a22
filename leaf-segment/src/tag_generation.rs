//! The generation of a tag. It distinguishes the tag's record from an earlier record of the same
//! name, and from its own state before a repair.
//!
//! Invariant: a tag gets a different generation each time when it is made or repaired, even if a
//! backup was restored in between. That is why it is drawn at random, not counted.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::str::FromStr;

/// The generation of a tag's record: 64 random bits, drawn when the tag is made, and again when an
/// operator repairs it ([`TagAdmin::advance`](crate::admin::TagAdmin::advance)).
///
/// A node that holds ids of one generation drops them when it reads another one from the record. A
/// change that was decided on one generation is never applied to another.
///
/// ```
/// use leaf_segment::store::TagGeneration;
///
/// let drawn = TagGeneration::draw();
/// assert_ne!(drawn, TagGeneration::draw());
/// assert_eq!(drawn.to_string().parse(), Ok(drawn));
/// assert_eq!(drawn.to_string().len(), 16);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TagGeneration(u64);

/// The text is no generation, which is exactly 16 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a generation has 16 hexadecimal digits in lower case")]
pub struct TagGenerationError;

impl TagGeneration {
    /// Draws a new one.
    #[must_use]
    pub fn draw() -> Self {
        // Each `RandomState` has keys that no other one has, made of random numbers of the
        // operating system.
        Self(RandomState::new().hash_one(std::process::id()))
    }
}

/// 16 hexadecimal digits.
impl fmt::Display for TagGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for TagGeneration {
    type Err = TagGenerationError;

    fn from_str(text: &str) -> Result<Self, TagGenerationError> {
        let plain =
            text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = u64::from_str_radix(text, 16).ok().filter(|_| plain);
        number.map(Self).ok_or(TagGenerationError)
    }
}
