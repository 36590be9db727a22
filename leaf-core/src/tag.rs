//! The tag: Leaf's `biz_tag`, the name of one sequence of ids.
//!
//! Invariant: 1 to 128 characters (the column is `varchar(128)`), no control character, no white
//! space at either end. Tags are compared as bytes: `order` and `Order` are two tags. A store whose
//! collation treats them as equal must compare in another way.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A valid tag. Cheap to clone.
///
/// ```
/// use leaf_core::{Tag, TagError};
///
/// let tag = Tag::parse("orders.eu")?;
/// assert_eq!(tag.as_str(), "orders.eu");
/// assert_eq!(Tag::parse(" orders"), Err(TagError::OuterSpace));
/// # Ok::<(), TagError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(Arc<str>);

impl Tag {
    /// The most characters (Unicode scalar values) a tag may have.
    pub const MAX_CHARS: usize = 128;

    /// Checks `text` and makes it a tag.
    ///
    /// # Errors
    /// One [`TagError`] per rule; its text says what to change and never repeats the input.
    pub fn parse(text: &str) -> Result<Self, TagError> {
        if text.is_empty() {
            return Err(TagError::Empty);
        }
        // A character is at most four bytes: a huge input is refused without a walk over it.
        if text.len() > Self::MAX_CHARS * 4 || text.chars().count() > Self::MAX_CHARS {
            return Err(TagError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(TagError::Control);
        }
        if text.trim().len() != text.len() {
            return Err(TagError::OuterSpace);
        }
        Ok(Self(text.into()))
    }

    /// The tag's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Tag {
    type Err = TagError;

    fn from_str(text: &str) -> Result<Self, TagError> {
        Self::parse(text)
    }
}

/// Allows look-ups by `&str` in a map with `Tag` keys: both hash and compare as the text.
impl Borrow<str> for Tag {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// No character at all.
    #[error("tag is empty: give 1 to 128 characters")]
    Empty,
    /// More than 128 characters.
    #[error("tag is longer than 128 characters")]
    TooLong,
    /// Holds a line break, a NUL or another control character.
    #[error("tag holds a control character")]
    Control,
    /// Begins or ends with white space.
    #[error("tag begins or ends with white space")]
    OuterSpace,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_the_column_takes() {
        for text in
            ["a", "leaf-segment-test", "order.v1", "two words", "订单", "a/b", &"é".repeat(128)]
        {
            assert_eq!(Tag::parse(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn names_the_broken_rule() {
        let cases = [
            (String::new(), TagError::Empty),
            ("x".repeat(129), TagError::TooLong),
            ("é".repeat(129), TagError::TooLong),
            ("x".repeat(1 << 20), TagError::TooLong),
            ("a\nb".into(), TagError::Control),
            ("a\0".into(), TagError::Control),
            ("\u{85}".into(), TagError::Control),
            (" a".into(), TagError::OuterSpace),
            ("a\u{a0}".into(), TagError::OuterSpace),
            ("\u{3000}".into(), TagError::OuterSpace),
        ];
        for (text, error) in cases {
            assert_eq!(Tag::parse(&text), Err(error), "{text:.20?}");
        }
    }

    #[test]
    fn compares_as_bytes() {
        assert_ne!(Tag::parse("order").unwrap(), Tag::parse("Order").unwrap());
    }
}
