//! The meaning of a tag's numbers, and the text in which every store keeps it.
//!
//! Invariant: the meaning is stored beside the counter, in one record, and each allocation compares
//! it. It never changes while the record exists, with two exceptions: the key of scrambled ids can
//! change to a greater version, and the number of times that a tag with periods was reopened can
//! grow. A program that does not understand a part of the meaning issues nothing: its ids would
//! differ from those of programs that do.
//!
//! A plain tag has no such text, and a Java Leaf understands its record. The records of all other
//! tags are stored where a Java Leaf does not look.

use std::fmt;
use std::str::FromStr;

use leaf_core::{UnknownName, record_version};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::keys::{KeyId, ScrambleDomain};
use crate::{Period, Reopened, Reset, Taken, Zone};

/// The version of the text.
const FORMAT_VERSION: u32 = 1;
/// The most residues of an interleaved tag, and the most slices.
pub const MOST_PARTS: u32 = 1024;

/// What the numbers of a tag mean; fixed when the tag is made.
///
/// ```
/// use leaf_shape::{Meaning, Order};
///
/// let strict = Meaning { order: Order::Strict, ..Meaning::PLAIN };
/// assert_eq!(strict.encode(), r#"{"version":1,"order":"strict"}"#);
/// assert_eq!(Meaning::decode(&strict.encode())?, strict);
/// assert!(Meaning::PLAIN.is_plain());
/// # Ok::<(), leaf_shape::MeaningError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// How the ids that different nodes issue follow each other.
    pub order: Order,
    /// Which ids the numbers stand for.
    pub shape: Shape,
    /// When the numbers begin at 1 again; `None` if they never do.
    pub reset: Option<Reset>,
}

/// How the ids of a tag follow each other when several nodes issue them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Each node issues ids from its own ranges, in memory: the ids increase on each node, but only
    /// roughly across all nodes.
    #[default]
    Relaxed,
    /// A request that is sent after another one was answered gets a greater id, whichever nodes
    /// they asked. Each id waits for the store.
    Strict,
}

/// Which ids the numbers of a tag stand for. Two numbers never stand for the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The numbers are the ids.
    Plain,
    /// The ids are shared among several stores: each issues the ids of one remainder.
    Interleave(Interleave),
    /// The ids are a permutation of the numbers by a secret key. They show neither how many there
    /// are, nor their order.
    Scramble {
        /// Which ids the permutation yields.
        domain: ScrambleDomain,
        /// The key that ids are made with now.
        key: KeyId,
    },
}

/// The ids that leave the remainder `index` when divided by `of`: number `n` stands for `n * of +
/// index`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interleave {
    index: u32,
    of: u32,
}

/// Why the meaning in a record cannot be used; it is never guessed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MeaningError {
    /// A later version of Leaf wrote it.
    #[error("its meaning is of a later version of Leaf ({0}): upgrade this program")]
    Newer(String),
    /// The record is damaged, or was written by hand.
    #[error(
        "its meaning cannot be read ({0}): put the text back that was written when the tag was made, from a backup; no other \
         text can replace it"
    )]
    Damaged(String),
    /// Two records have the tag's name, one of them plain.
    #[error(
        "two records have its name, a plain one (in table leaf_alloc, in etcd below segment/) and another (in \
         table leaf_sequence, in etcd below sequence/): delete the one that was made by mistake by hand, and \
         advance the other above both"
    )]
    Twice,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    order: Order,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reset: Option<Period>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digits: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reopened: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    taken: Option<Vec<(i64, i64)>>,
}

impl Interleave {
    /// The ids that leave the remainder `index` when divided by `of`; `None` unless `of` is 2 to
    /// 1024 and `index` is less than `of`.
    #[must_use]
    pub fn new(index: u32, of: u32) -> Option<Self> {
        ((2..=MOST_PARTS).contains(&of) && index < of).then_some(Self { index, of })
    }

    /// The remainder that the ids leave when divided by [`Self::of`].
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How many stores share the ids.
    #[must_use]
    pub const fn of(self) -> u32 {
        self.of
    }

    /// The id of a number; `None` where it would be above `i64::MAX`.
    #[must_use]
    pub fn id(self, number: i64) -> Option<i64> {
        number.checked_mul(self.of.into())?.checked_add(self.index.into())
    }

    /// The number of an id; `None` for one with another remainder.
    #[must_use]
    pub fn number(self, id: i64) -> Option<i64> {
        let of = i64::from(self.of);
        (id % of == i64::from(self.index)).then_some(id / of)
    }
}

impl fmt::Display for Interleave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl FromStr for Interleave {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let part = parts(text).and_then(|(index, of)| Self::new(index, of));
        part.ok_or(UnknownName::new(
            "give INDEX/COUNT like 0/2, with 2 to 1024 parts counted from 0",
        ))
    }
}

/// Reads a text like `2/8`: the index of a part, and the number of parts. `None` if the text is not
/// two decimal numbers with a `/` between them.
#[must_use]
pub fn parts(text: &str) -> Option<(u32, u32)> {
    let (index, of) = text.split_once('/')?;
    let number = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits)
    };
    Some((number(index)?, number(of)?))
}

impl Shape {
    /// The first number whose id is not below `ids`. For scrambled ids, the end of the domain.
    #[must_use]
    pub fn numbers_below(self, ids: i64) -> i64 {
        match self {
            Self::Plain => ids,
            Self::Interleave(Interleave { index, of }) => {
                let (index, of) = (i64::from(index), i64::from(of));
                let room = ids.saturating_sub(index).max(0);
                room / of + i64::from(room % of > 0)
            }
            // Scrambled ids lie anywhere in the domain. A tag whose text cannot hold them all is
            // refused.
            Self::Scramble { domain, .. } => domain.capacity(),
        }
    }
}

/// `plain`, `interleave:2/8`, `scramble:63`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Interleave(part) => write!(f, "interleave:{part}"),
            Self::Scramble { domain, .. } => write!(f, "scramble:{domain}"),
        }
    }
}

impl Meaning {
    /// Relaxed order and nothing else: what a Java Leaf issues, too.
    pub const PLAIN: Self = Self { order: Order::Relaxed, shape: Shape::Plain, reset: None };
    /// Strict order and nothing else.
    pub const STRICT: Self = Self { order: Order::Strict, ..Self::PLAIN };

    /// Whether a Java Leaf may share the tag.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self == Self::PLAIN
    }

    /// Whether consecutive numbers stand for consecutive ids, so that ids can be given as ranges.
    #[must_use]
    pub fn has_ranges(self) -> bool {
        self.shape == Shape::Plain
    }

    /// By how much the counter is above the ids in a tag that was reopened; 0 in other tags.
    #[must_use]
    pub fn counter_offset(self) -> i64 {
        self.reset.map_or(0, Reset::counter_offset)
    }

    /// The key of scrambled ids.
    #[must_use]
    pub const fn key(self) -> Option<KeyId> {
        match self.shape {
            Shape::Scramble { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The meaning as a store keeps it: one line of JSON. The same meaning has the same text for
    /// ever, since stores compare it.
    #[must_use]
    pub fn encode(self) -> String {
        let reopened = self.reset.and_then(Reset::reopened);
        let text = Text {
            version: FORMAT_VERSION,
            order: self.order,
            shape: (self.shape != Shape::Plain).then(|| self.shape.to_string()),
            key: self.key().map(|key| key.version),
            check: self.key().map(|key| key.check.to_string()),
            reset: self.reset.map(|reset| reset.period),
            digits: self.reset.map(|reset| reset.digits()),
            time_zone: self.reset.map(|reset| reset.zone.name().into()),
            reopened: reopened.map(|it| it.times),
            taken: reopened.map(|it| it.taken().map(|it| (it.first, it.ids_below)).collect()),
        };
        serde_json::to_string(&text).expect("numbers and texts serialize")
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// `Newer` if a later version wrote it, `Damaged` if it is not exactly a text that `encode`
    /// writes.
    pub fn decode(text: &str) -> Result<Self, MeaningError> {
        let damaged = |error: serde_json::Error| MeaningError::Damaged(error.to_string());
        let version = record_version(text.as_bytes()).map_err(damaged)?;
        if version > FORMAT_VERSION {
            return Err(MeaningError::Newer(format!("version {version}")));
        }
        // An unknown field or value is from a later version.
        let read: Text =
            serde_json::from_str(text).map_err(|error| MeaningError::Newer(error.to_string()))?;
        let shape = read.shape()?;
        let meaning = Self { order: read.order, shape, reset: read.reset()? };
        match meaning.encode() == text {
            true if meaning.is_plain() => {
                Err(MeaningError::Damaged("a plain tag has no such record".into()))
            }
            true => meaning.check().map(|()| meaning).map_err(MeaningError::Newer),
            false => Err(MeaningError::Damaged(format!("it should read {}", meaning.encode()))),
        }
    }

    /// Refuses a meaning that no tag can have.
    ///
    /// # Errors
    /// The text says why there can be no such tag.
    pub fn check(self) -> Result<(), String> {
        let refuse = |why: &str| Err(why.into());
        match (self.order, self.shape, self.reset) {
            (_, Shape::Scramble { .. } | Shape::Interleave(_), Some(_)) => refuse(
                "numbers that begin again are issued as they are: leave the shape or the reset out",
            ),
            (Order::Strict, Shape::Scramble { .. }, _) => refuse(
                "scrambled ids have no order that could be strict: leave the order or the shape out",
            ),
            (Order::Relaxed, _, Some(_)) => refuse(
                "numbers that begin again are in strict order, or a period would not begin with 1, 2, 3: leave the \
                 order or the reset out",
            ),
            _ => Ok(()),
        }
    }
}

impl Text {
    fn shape(&self) -> Result<Shape, MeaningError> {
        let Some(text) = &self.shape else { return Ok(Shape::Plain) };
        let newer = || MeaningError::Newer(format!("shape {text:?}"));
        let damaged = |what: &str| MeaningError::Damaged(format!("{what} is missing or none"));
        match text.split_once(':').ok_or_else(newer)? {
            ("interleave", part) => part.parse().map(Shape::Interleave).map_err(|_| newer()),
            ("scramble", domain) => {
                let domain: ScrambleDomain = domain.parse().map_err(|_| newer())?;
                let version = self.key.filter(|key| (1..=domain.max_version()).contains(key));
                let version = version.ok_or_else(|| damaged("`key`"))?;
                let check = self.check.as_ref().and_then(|check| check.parse().ok());
                let check = check.ok_or_else(|| damaged("`check`"))?;
                Ok(Shape::Scramble { domain, key: KeyId { version, check } })
            }
            _ => Err(newer()),
        }
    }

    fn reset(&self) -> Result<Option<Reset>, MeaningError> {
        let Some(period) = self.reset else { return Ok(None) };
        let name = self.time_zone.as_deref().unwrap_or_default();
        let zone = Zone::find(name);
        let zone = zone.ok_or_else(|| MeaningError::Newer(format!("time zone {name:?}")))?;
        let damaged = |what: &str| MeaningError::Damaged(format!("{what} is missing or none"));
        let reset = self.digits.and_then(|digits| Reset::new(period, zone, digits));
        let reset = reset.ok_or_else(|| damaged("`digits`"))?;
        let Some(times) = self.reopened else { return Ok(Some(reset)) };
        let taken = self.taken.iter().flatten();
        let taken = taken.map(|(first, ids_below)| Taken { first: *first, ids_below: *ids_below });
        let reset = Reopened::new(times, taken).and_then(|reopened| reset.reopened_as(reopened));
        reset.map(Some).ok_or_else(|| damaged("what `reopened` stands for"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of version 1. They must be read for ever, and written the same: stores compare
    /// them.
    #[test]
    fn version_1_is_read() {
        let key = KeyId { version: 2, check: "00112233aabbccdd".parse().unwrap() };
        let zone = Zone::find("Europe/Berlin").unwrap();
        let reset = Reset::new(Period::Daily, zone, 6).unwrap();
        let taken = Taken { first: 20_271_121, ids_below: 20_271_122_000_017 };
        let reopened = Reopened::new(2, [taken]).unwrap();
        let part = Shape::Interleave(Interleave::new(1, 2).unwrap());
        let scrambled = Shape::Scramble { domain: ScrambleDomain::Digits10, key };
        for (text, meaning) in [
            (r#"{"version":1,"order":"strict"}"#, Meaning::STRICT),
            (
                r#"{"version":1,"order":"relaxed","shape":"interleave:1/2"}"#,
                Meaning { shape: part, ..Meaning::PLAIN },
            ),
            (
                r#"{"version":1,"order":"strict","shape":"interleave:1/2"}"#,
                Meaning { shape: part, ..Meaning::STRICT },
            ),
            (
                r#"{"version":1,"order":"relaxed","shape":"scramble:d10","key":2,"check":"00112233aabbccdd"}"#,
                Meaning { shape: scrambled, ..Meaning::PLAIN },
            ),
            (
                r#"{"version":1,"order":"strict","reset":"daily","digits":6,"time_zone":"Europe/Berlin"}"#,
                Meaning { reset: Some(reset), ..Meaning::STRICT },
            ),
            (
                r#"{"version":1,"order":"strict","reset":"daily","digits":6,"time_zone":"Europe/Berlin","reopened":2,"taken":[[20271121,20271122000017]]}"#,
                Meaning { reset: reset.reopened_as(reopened), ..Meaning::STRICT },
            ),
        ] {
            assert_eq!(Meaning::decode(text), Ok(meaning));
            assert_eq!(meaning.encode(), text);
        }
    }

    #[test]
    fn what_is_not_understood_is_never_guessed() {
        for newer in [
            r#"{"version":2}"#,
            r#"{"version":1,"order":"strict","slice":"1/2"}"#,
            r#"{"version":1,"order":"daily"}"#,
            r#"{"version":1,"order":"relaxed","shape":"scramble:64","key":1,"check":"00112233aabbccdd"}"#,
            r#"{"version":1,"order":"relaxed","shape":"scramble"}"#,
            r#"{"version":1,"order":"relaxed","shape":"interleave:2/2"}"#,
            r#"{"version":1,"order":"strict","shape":"scramble:63","key":1,"check":"00112233aabbccdd"}"#,
            r#"{"version":1,"order":"relaxed","reset":"daily","digits":6,"time_zone":"UTC"}"#,
            r#"{"version":1,"order":"strict","reset":"daily","digits":6,"time_zone":"Moon/Tycho"}"#,
            r#"{"version":1,"order":"strict","reset":"hourly","digits":6,"time_zone":"UTC"}"#,
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
            r#"{"version":1,"order":"strict","key":1}"#,
            r#"{"version":1,"order":"strict","reset":"daily","digits":0,"time_zone":"UTC"}"#,
            r#"{"version":1,"order":"strict","reset":"daily","digits":6,"time_zone":"utc"}"#,
            r#"{"version":1,"order":"strict","reset":"daily","digits":6,"time_zone":"UTC","reopened":1}"#,
            r#"{"version":1,"order":"strict","reset":"daily","digits":6,"time_zone":"UTC","reopened":92,"taken":[[20271121,20271121000017]]}"#,
            r#"{"version":1,"order":"strict","reset":"daily","digits":6,"time_zone":"UTC","reopened":1,"taken":[[20271131,20271131000017]]}"#,
            r#"{"version":1,"order":"strict","reset":"daily","digits":6,"time_zone":"UTC","taken":[[20271121,20271121000017]]}"#,
            r#"{"version":1,"order":"relaxed","shape":"interleave:01/2"}"#,
            r#"{"version":1,"order":"relaxed","shape":"scramble:d10","key":10,"check":"00112233aabbccdd"}"#,
            r#"{"version":1,"order":"relaxed","shape":"scramble:d10","key":1,"check":"0011"}"#,
            r#"{"version":1,"order":"relaxed","shape":"scramble:d10","key":1,"check":"00112233AABBCCDD"}"#,
        ] {
            let refused = Meaning::decode(damaged).unwrap_err();
            assert!(matches!(refused, MeaningError::Damaged(_)), "{damaged}: {refused}");
        }
    }

    #[test]
    fn numbers_end_where_their_ids_do() {
        let part = |index, of| Shape::Interleave(Interleave::new(index, of).unwrap());
        for (shape, ids, numbers) in [
            (part(1, 2), 10, 5),
            (part(0, 2), 10, 5),
            (part(1, 2), 11, 5),
            (part(0, 2), 11, 6),
            (part(7, 8), 7, 0),
        ] {
            assert_eq!(shape.numbers_below(ids), numbers, "{shape} below {ids}");
            let Shape::Interleave(part) = shape else { unreachable!() };
            let below = |number| part.id(number).is_some_and(|id| id < ids);
            assert!(!below(numbers) && (numbers == 0 || below(numbers - 1)), "{shape} below {ids}");
        }
        let end = part(1, 2).numbers_below(i64::MAX - 1);
        assert!(Interleave::new(1, 2).unwrap().id(end - 1).is_some());
    }
}
