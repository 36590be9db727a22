//! Assigns each tag to one of several stores, by patterns of its name.
//!
//! Invariant: a tag belongs to exactly one shard: the first shard with a pattern that it matches,
//! else the rest. Each shard has its own generator, so that a store that fails affects no other
//! shard.

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use leaf_core::Health;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::task::JoinSet;

use leaf_segment::view::TagView;
use leaf_segment::{KnownTags, SegmentError, SegmentGenerator, TagHandle};

/// One value per store. The name of a tag selects the value.
///
/// ```
/// use leaf_node::Shards;
///
/// let shards = Shards::new("main").with(vec!["order*".parse()?], "orders");
/// assert_eq!(shards.of("order-items"), &"orders");
/// assert_eq!(shards.of("users"), &"main");
/// # Ok::<(), leaf_node::TagPatternError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Shards<T> {
    pub(super) shards: Vec<(Vec<TagPattern>, T)>,
    pub(super) rest: T,
}

/// A tag's name in which `*` stands for any characters, also none.
///
/// ```
/// use leaf_node::TagPattern;
///
/// let pattern: TagPattern = "order*.v1".parse()?;
/// assert!(pattern.matches("orders.v1"));
/// assert!(!pattern.matches("orders.v2"));
/// # Ok::<(), leaf_node::TagPatternError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TagPattern(String);

/// The text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a pattern of tags has 1 to 128 characters, `*` stands for any")]
pub struct TagPatternError;

impl TagPattern {
    /// Whether the name matches as a whole. Takes time in proportion to the product of both lengths
    /// at worst.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            match rest.split_once(part) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl FromStr for TagPattern {
    type Err = TagPatternError;

    fn from_str(text: &str) -> Result<Self, TagPatternError> {
        match text.chars().count() {
            1..=128 => Ok(Self(text.into())),
            _ => Err(TagPatternError),
        }
    }
}

impl<'de> Deserialize<'de> for TagPattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for TagPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn any_matches(patterns: &[TagPattern], tag: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(tag))
}

impl<T> Shards<T> {
    /// One shard, `rest`, for all tags.
    #[must_use]
    pub const fn new(rest: T) -> Self {
        Self { shards: Vec::new(), rest }
    }

    /// Adds a shard for the tags that match one of `patterns` and no pattern of a shard that was
    /// added before.
    #[must_use]
    pub fn with(mut self, patterns: Vec<TagPattern>, shard: T) -> Self {
        self.shards.push((patterns, shard));
        self
    }

    /// The shard that the tag belongs to.
    #[must_use]
    pub fn of(&self, tag: &str) -> &T {
        let shard = self.shards.iter().find(|(patterns, _)| any_matches(patterns, tag));
        shard.map_or(&self.rest, |(_, shard)| shard)
    }

    /// The shard for all tags that match no pattern.
    #[must_use]
    pub const fn rest(&self) -> &T {
        &self.rest
    }

    /// Whether the tag belongs to `shard`, which must be one of these shards. A store may also hold
    /// tags of other shards, from before its tags were spread over several stores.
    pub fn is_of(&self, tag: &str, shard: &T) -> bool {
        std::ptr::eq(self.of(tag), shard)
    }

    fn of_mut(&mut self, tag: &str) -> &mut T {
        let shard = self.shards.iter_mut().find(|(patterns, _)| any_matches(patterns, tag));
        shard.map_or(&mut self.rest, |(_, shard)| shard)
    }

    /// Applies `make` to each shard. The results have the same patterns.
    pub fn map<U>(&self, mut make: impl FnMut(&T) -> U) -> Shards<U> {
        let mut shards = Vec::with_capacity(self.shards.len());
        for (patterns, shard) in &self.shards {
            shards.push((patterns.clone(), make(shard)));
        }
        Shards { shards, rest: make(&self.rest) }
    }

    /// Applies `make` to each shard, one after the other. The results have the same patterns.
    ///
    /// # Errors
    /// The first error that `make` returns.
    pub async fn try_map<U, E, F>(self, mut make: impl FnMut(T) -> F) -> Result<Shards<U>, E>
    where
        F: Future<Output = Result<U, E>>,
    {
        let mut shards = Vec::with_capacity(self.shards.len());
        for (patterns, shard) in self.shards {
            shards.push((patterns, make(shard).await?));
        }
        Ok(Shards { shards, rest: make(self.rest).await? })
    }

    /// All shards; the one that has the rest of the tags is last.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().map(|(_, shard)| shard).chain([&self.rest])
    }
}

impl Shards<KnownTags> {
    /// The handle of a tag that is known and in use, see [`KnownTags::get`].
    pub fn get(&mut self, tag: &str) -> Option<&TagHandle> {
        self.of_mut(tag).get(tag)
    }

    /// Calls `using` with the handle of each of these tags in turn, until it returns `Break`.
    /// `using` gets `None` for a tag for which [`Self::get`] returns `None`. If there is only one
    /// store, memory is read for several tags at once, see [`KnownTags::each`].
    pub fn each(
        &mut self,
        tags: &[&str],
        mut using: impl FnMut(Option<&TagHandle>) -> ControlFlow<()>,
    ) {
        // Whether it broke off is for nobody here.
        let _ = match self.shards.is_empty() {
            true => self.rest.each(tags, using),
            false => tags.iter().try_for_each(|tag| using(self.get(tag))),
        };
    }
}

impl Shards<SegmentGenerator> {
    /// Returns the handle of a tag. A tag that is not in memory yet is read from its store.
    ///
    /// # Errors
    /// The errors of [`SegmentGenerator::tag`].
    pub async fn tag(&self, tag: &str) -> Result<TagHandle, SegmentError> {
        self.of(tag).tag(tag).await
    }

    /// Whether ids can be handed out now. If only some of several stores fail, this node is
    /// degraded: other nodes have the same trouble, and the tags of the other stores are served.
    #[must_use]
    pub fn health(&self) -> Health {
        if self.shards.is_empty() {
            return self.rest.health();
        }
        let states: Vec<Health> = self.iter().map(SegmentGenerator::health).collect();
        let some_serves = states.iter().any(Health::can_answer);
        states.into_iter().fold(Health::Ready, |all, state| match state {
            Health::NotReady(reasons) if some_serves => all.and(Health::Degraded(reasons)),
            state => all.and(state),
        })
    }

    /// A snapshot of up to `most` known tags of all shards, by name, after the tag `after`, see
    /// [`SegmentGenerator::views`].
    #[must_use]
    pub fn views(&self, after: Option<&str>, most: usize) -> Vec<TagView> {
        let mut views: Vec<TagView> =
            self.iter().flat_map(|shard| shard.views(after, most)).collect();
        views.sort_by(|a, b| a.tag.cmp(&b.tag));
        views.truncate(most);
        views
    }

    /// Closes the generators of all shards, see [`SegmentGenerator::close`].
    pub async fn close(&self) {
        let mut closing = JoinSet::new();
        for shard in self.iter().map(SegmentGenerator::clone) {
            closing.spawn(async move { shard.close().await });
        }
        closing.join_all().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, name: &str) -> bool {
        pattern.parse::<TagPattern>().unwrap().matches(name)
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        assert!(matches("*", "anything") && matches("*", ""));
        assert!(matches("order*", "order") && matches("order*", "orders"));
        assert!(!matches("order*", "my-order"));
        assert!(matches("a*b*c", "a-b-b-c") && !matches("a*b*c", "a-c-b"));
        assert!(!matches("aa*a", "aa"), "nothing counts twice");
        assert!(!matches("order", "orders"));
        assert!(
            "".parse::<TagPattern>().is_err() && "x".repeat(129).parse::<TagPattern>().is_err()
        );
    }

    #[test]
    fn the_first_that_matches_counts() {
        let pattern = |text: &str| vec![text.parse().unwrap()];
        let shards = Shards::new(0).with(pattern("order-eu*"), 1).with(pattern("order*"), 2);

        assert_eq!([*shards.of("order-eu-1"), *shards.of("order-us"), *shards.of("x")], [1, 2, 0]);
    }

    proptest! {
        #[test]
        fn agrees_with_the_slow_definition(pattern in "[ab*]{1,8}", name in "[ab]{0,10}") {
            fn slow(pattern: &[u8], name: &[u8]) -> bool {
                match pattern.split_first() {
                    None => name.is_empty(),
                    Some((b'*', rest)) => (0..=name.len()).any(|at| slow(rest, &name[at..])),
                    Some((c, rest)) => name.first() == Some(c) && slow(rest, &name[1..]),
                }
            }
            prop_assert_eq!(matches(&pattern, &name), slow(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
