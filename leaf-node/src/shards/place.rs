//! The place of a store among the shards, as the store itself remembers it.
//!
//! Invariant: two places are equal only if the patterns of all shards are the same, in the same
//! order, and both are the same shard among these. (The patterns are compared by a checksum of 32
//! bits, since the place must fit into a column.) So, if the configuration of a program has
//! swapped, removed, added or changed a shard, a store that remembers its place refuses the program
//! before it looks for a tag in the wrong store.
//!
//! A store remembers two places at most: while servers are restarted one by one with other shards,
//! servers of the old and of the new configuration use the store.

use std::fmt;

use leaf_core::record_version;
use serde::{Deserialize, Serialize};

use super::set::{Shards, TagPattern};

/// The version of the text.
const FORMAT_VERSION: u32 = 1;
/// How many characters of the patterns are stored, to show them to people.
const SHOWN_CHARS: usize = 200;
/// The most places that a store remembers: the old and the new one.
const MOST: usize = 2;

/// The place of a store: which shard it is, and of which set of shards.
///
/// ```
/// use leaf_node::Shards;
///
/// let shards = Shards::new("main").with(vec!["order*".parse()?], "orders").placed();
/// let (place, url) = shards.of("users");
/// assert_eq!(*url, "main");
/// assert_eq!(place.to_string(), "the store of all other tags, of 2 stores");
/// assert_ne!(*place, Shards::new("main").placed().of("users").0);
/// # Ok::<(), leaf_node::TagPatternError>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ShardPlace {
    /// The checksum (CRC-32) of the patterns of all shards, in the order of the shards.
    set: String,
    /// The index of this shard, from 0 on. The last shard has all other tags.
    shard: usize,
    /// The number of shards.
    of: usize,
    /// The shard's patterns, or their beginning, to show them to people.
    #[serde(default)]
    tags: String,
}

/// The places that a store remembers, the newest first. A node may use the store if its
/// configuration gives the store one of these.
///
/// ```
/// use leaf_node::{ShardMemory, Shards};
///
/// let (one, _) = Shards::new(()).placed().of("").clone();
/// let (two, _) = Shards::new(()).with(vec!["order*".parse()?], ()).placed().of("").clone();
/// let memory = ShardMemory::new(one.clone());
/// assert!(memory.allows(&one) && !memory.allows(&two));
/// let both = ShardMemory::decode(&memory.with(two.clone()).encode())?;
/// assert!(both.allows(&one) && both.allows(&two));
/// assert!(!ShardMemory::new(two).allows(&one));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardMemory {
    places: Vec<ShardPlace>,
}

/// Why the places of a store cannot be read from their text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardMemoryError {
    /// A later version of Leaf wrote the text.
    #[error(
        "what the store remembers of its place is of a later version of Leaf ({0}): upgrade this program"
    )]
    Newer(u32),
    /// The text is damaged: somebody changed it by hand.
    #[error("what the store remembers of its place cannot be read ({0})")]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    places: Vec<ShardPlace>,
}

impl PartialEq for ShardPlace {
    fn eq(&self, other: &Self) -> bool {
        (&self.set, self.shard, self.of) == (&other.set, other.shard, other.of)
    }
}

impl Eq for ShardPlace {}

impl<T> Shards<T> {
    /// Returns each shard with its place.
    ///
    /// # Panics
    /// Never: texts serialize.
    #[must_use]
    pub fn placed(self) -> Shards<(ShardPlace, T)> {
        let texts = |patterns: &[TagPattern]| -> Vec<String> {
            patterns.iter().map(TagPattern::to_string).collect()
        };
        let sorted = |(patterns, _): &(Vec<TagPattern>, T)| {
            let mut texts = texts(patterns);
            // Within a shard their order means nothing.
            texts.sort();
            texts
        };
        let sets: Vec<Vec<String>> = self.shards.iter().map(sorted).collect();
        let sets = serde_json::to_vec(&sets).expect("texts serialize");
        let set = format!("{:08x}", crc32fast::hash(&sets));
        let of = self.shards.len() + 1;
        let place = |shard, patterns: &[TagPattern]| {
            let tags = texts(patterns).join(", ").chars().take(SHOWN_CHARS).collect();
            ShardPlace { set: set.clone(), shard, of, tags }
        };
        let rest = (place(of - 1, &[]), self.rest);
        let shards = self.shards.into_iter().enumerate().map(|(at, (patterns, store))| {
            let place = place(at, &patterns);
            (patterns, (place, store))
        });
        Shards { shards: shards.collect(), rest }
    }
}

impl ShardPlace {
    /// Whether the store is the only one.
    #[must_use]
    pub const fn is_only(&self) -> bool {
        self.of == 1
    }
}

/// Describes the place for people: `the only store`, `the store of order*, payment*, of 2 stores`.
impl fmt::Display for ShardPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { set, shard, of, tags } = self;
        match of {
            1 => f.write_str("the only store"),
            _ if shard + 1 == *of => write!(f, "the store of all other tags, of {of} stores"),
            _ if tags.is_empty() => write!(f, "shard {shard} of the {of} stores {set}"),
            _ => write!(f, "the store of {tags}, of {of} stores"),
        }
    }
}

impl ShardMemory {
    /// The memory of a store that was used at this place only.
    #[must_use]
    pub fn new(place: ShardPlace) -> Self {
        Self { places: vec![place] }
    }

    /// Whether a node whose configuration gives the store this place may use it.
    #[must_use]
    pub fn allows(&self, place: &ShardPlace) -> bool {
        self.places.contains(place)
    }

    /// The newest place.
    #[must_use]
    pub fn newest(&self) -> Option<&ShardPlace> {
        self.places.first()
    }

    /// Whether the store remembers two places, as during a change of the shards.
    #[must_use]
    pub const fn is_changing(&self) -> bool {
        self.places.len() > 1
    }

    /// Returns a memory with `place` as the newest place, and the newest of the other places as the
    /// second.
    #[must_use]
    pub fn with(&self, place: ShardPlace) -> Self {
        let others = self.places.iter().filter(|other| **other != place);
        let mut places: Vec<_> = others.take(MOST - 1).cloned().collect();
        places.insert(0, place);
        Self { places }
    }

    /// The text that a store keeps. It can also be read as the settings of a tag, so that versions
    /// of Leaf without places can read it.
    ///
    /// # Panics
    /// Never: numbers and texts serialize.
    #[must_use]
    pub fn encode(&self) -> String {
        let text = Text { version: FORMAT_VERSION, places: self.places.clone() };
        serde_json::to_string(&text).expect("numbers and texts serialize")
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// The text is damaged, or of a later version of Leaf.
    pub fn decode(text: &str) -> Result<Self, ShardMemoryError> {
        let damaged = |error: serde_json::Error| ShardMemoryError::Damaged(error.to_string());
        match record_version(text.as_bytes()).map_err(damaged)? {
            FORMAT_VERSION => {}
            version => return Err(ShardMemoryError::Newer(version)),
        }
        let Text { places, .. } = serde_json::from_str(text).map_err(damaged)?;
        Ok(Self { places })
    }
}

/// The places, the newest first.
impl fmt::Display for ShardMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<_> = self.places.iter().map(ShardPlace::to_string).collect();
        f.write_str(&places.join("; before that "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaf_segment::store::TagSettings;

    fn places(shards: &[&[&str]]) -> Vec<ShardPlace> {
        let all = shards.iter().fold(Shards::new(()), |all, patterns| {
            all.with(patterns.iter().map(|pattern| pattern.parse().unwrap()).collect(), ())
        });
        all.placed().iter().map(|(place, ())| place.clone()).collect()
    }

    #[test]
    fn every_change_of_the_shards_is_another_place() {
        let sets: [&[&[&str]]; 8] = [
            &[],
            &[&["a*"]],
            &[&["a"], &["b"]],
            &[&["b"], &["a"]],
            &[&["a", "b"]],
            &[&["ab"]],
            &[&["a"], &["b"], &["c"]],
            &[&["a"], &[]],
        ];
        let all: Vec<_> = sets.iter().flat_map(|set| places(set)).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{one:?}");
        }
        assert_eq!(places(sets[2]), places(sets[2]));
    }

    /// The text of version 1. It must be read for ever.
    #[test]
    fn version_1_is_read_and_fits_the_column() {
        let long = "x".repeat(128);
        let [place, _] = &places(&[&[&long, &long]])[..] else { unreachable!() };
        let both = ShardMemory::new(place.clone()).with(places(&[])[0].clone());
        assert!(both.is_changing() && both.encode().len() < 1000);
        assert_eq!(ShardMemory::decode(&both.encode()), Ok(both.clone()));
        assert!(TagSettings::decode(&both.encode()).is_ok(), "an older version reads all settings");
        let text = r#"{"version":1,"places":[{"set":"0d4cbb29","shard":0,"of":1,"tags":""}]}"#;
        let memory = ShardMemory::decode(text).unwrap();
        assert!(memory.allows(&places(&[])[0]));
        assert_eq!((memory.encode(), memory.to_string()), (text.into(), "the only store".into()));
        let newer = ShardMemory::decode(r#"{"version":2,"places":1}"#);
        assert_eq!(newer, Err(ShardMemoryError::Newer(2)));
        assert!(matches!(ShardMemory::decode("{}"), Err(ShardMemoryError::Damaged(_))));
    }
}
