//! The last state of a tag that was sealed or deleted. It is kept, so that no later tag of the same
//! name issues the same ids again.
//!
//! Invariant: an [`EndedTag`] is written in the transaction that seals the tag, and outlives the
//! deletion. Every id that the ended tag issued is either below [`EndedTag::ids_below`], or, in a
//! tag of the same shape and key, the id of a number below [`EndedTag::next`]. A new tag is made
//! only if it can issue none of these ids. So remembering the newest ended tag of a name is enough.

use std::fmt;

use leaf_shape::{Meaning, Reopened, Reset, Shape, Taken};
use serde::{Deserialize, Serialize};

use crate::NewTag;
use crate::store::SEALED;

/// The last state of a tag that was sealed or deleted, kept in the settings under its name.
///
/// ```
/// use leaf_core::{Step, Tag};
/// use leaf_segment::NewTag;
/// use leaf_segment::admin::EndedTag;
/// use leaf_shape::{Interleave, Meaning, Shape};
///
/// let part = Interleave::new(0, 8).ok_or("a part")?;
/// let meaning = Meaning { shape: Shape::Interleave(part), ..Meaning::PLAIN };
/// let ended = EndedTag { meaning, next: 1001 };
/// assert_eq!(ended.ids_below(), 8008);
///
/// let plain = NewTag::new(Tag::parse("orders")?, Step::new(100)?);
/// assert!(ended.check(&NewTag { max_id: 1001, ..plain.clone() }).is_err());
/// assert!(ended.check(&NewTag { max_id: 8008, ..plain.clone() }).is_ok());
/// assert!(ended.check(&NewTag { meaning, max_id: 1001, ..plain }).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedTag {
    /// The tag's meaning when it was sealed.
    pub meaning: Meaning,
    /// The tag's counter (`max_id`) when it was sealed: every number that it granted is below this.
    pub next: i64,
}

/// An [`EndedTag`] as the settings hold it. `meaning` is `None` for a plain tag, as in a record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Text {
    next: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    meaning: Option<String>,
}

impl Text {
    /// Returns the part of this that an error message shows: `meaning`, or `next` for a plain tag.
    pub(crate) fn shown(&self) -> String {
        self.meaning.clone().unwrap_or_else(|| self.next.to_string())
    }
}

impl EndedTag {
    /// All ids that the tag issued are below this.
    #[must_use]
    pub fn ids_below(self) -> i64 {
        match self.meaning.shape {
            Shape::Plain => {
                let before = self.taken().map(|taken| taken.ids_below).max().unwrap_or(0);
                Some(before.max(self.next - self.meaning.counter_offset()))
            }
            Shape::Interleave(part) => part.id(self.next),
            // They lie anywhere among those of their key.
            Shape::Scramble { domain, key } => {
                domain.capacity().checked_mul(i64::from(key.version) + 1)
            }
        }
        .unwrap_or(SEALED)
    }

    /// Returns the higher one of two ended tags of the same name, which must be remembered. Leaf
    /// never ends a tag below an earlier one of its name; plain SQL may.
    #[must_use]
    pub(crate) fn max(self, other: Self) -> Self {
        let of = |ended: Self| (ended.ids_below(), ended.next);
        if of(other) > of(self) { other } else { self }
    }

    /// Refuses a new tag of this name that could issue an id of the ended one.
    ///
    /// # Errors
    /// The text says from which first number on the tag is allowed, or that it is not allowed at
    /// all.
    pub fn check(self, new: &NewTag) -> Result<(), String> {
        let (shape, below) = (new.meaning.shape, self.ids_below());
        if new.meaning.counter_offset() < self.meaning.counter_offset() && new.max_id != SEALED {
            return Err(
                "a tag of this name was reopened after a wrong clock, and deleted: its numbers lie above all that a new tag \
                 can have, so choose another name"
                    .into(),
            );
        }
        // One that grants nothing, before it is opened.
        if new.max_id == SEALED {
            return Ok(());
        }
        if !self.is_spared_by(new) {
            return Err(format!(
                "a tag of this name was deleted, and had granted {self}: this tag, which was reopened, could issue some of \
                 them again, so choose another name"
            ));
        }
        let least = match shape {
            _ if shape == self.meaning.shape => Some(self.next),
            Shape::Plain | Shape::Interleave(_) => Some(shape.numbers_below(below)),
            Shape::Scramble { domain, key } => {
                let first = domain.capacity().checked_mul(key.version.into());
                first.filter(|first| *first >= below)
            }
        };
        // In any case the new tag's numbers begin above those of the ended tag: nodes that served
        // the ended tag compare numbers to detect a store that was reset to an older state.
        let least = least.map(|least| match shape {
            Shape::Scramble { .. } => self.next,
            Shape::Plain | Shape::Interleave(_) => least.max(self.next),
        });
        match least.filter(|least| *least < SEALED) {
            Some(least) if new.max_id >= least => Ok(()),
            Some(least) => Err(format!(
                "a tag of this name was deleted, and had granted {self}: let the first number be {least} or more, or choose \
                 another name"
            )),
            None => Err(format!(
                "a tag of this name was deleted, and had granted {self}: ids of {shape} could be among them, so choose \
                 another name"
            )),
        }
    }

    /// True if `new` was not reopened (in another store), or can issue no id that this ended tag
    /// may have issued: `new` goes on above these ids, or its [`Taken`] entries cover them. To
    /// compare the counters is not enough: that of a reopened tag is above all ids.
    fn is_spared_by(self, new: &NewTag) -> bool {
        let Some(reset) = new.meaning.reset else { return true };
        let Some(reopened) = reset.reopened() else { return true };
        let is_spared = |below: i64| {
            let last_period = (below - 1) / reset.capacity();
            let remembers = |taken: Taken| taken.first <= last_period && below <= taken.ids_below;
            below <= new.max_id - reset.counter_offset() || reopened.taken().any(remembers)
        };
        match self.meaning.shape {
            Shape::Plain => {
                is_spared(self.next - self.meaning.counter_offset())
                    && self.taken().all(|taken| is_spared(taken.ids_below))
            }
            Shape::Interleave(_) | Shape::Scramble { .. } => is_spared(self.ids_below()),
        }
    }

    /// The ids that wrong clocks may have issued; empty if the tag was never reopened.
    fn taken(self) -> impl Iterator<Item = Taken> {
        let reopened = self.meaning.reset.and_then(Reset::reopened);
        reopened.into_iter().flat_map(Reopened::taken)
    }

    /// Returns the form in which the settings hold this.
    pub(crate) fn text(self) -> Text {
        let meaning = (!self.meaning.is_plain()).then(|| self.meaning.encode());
        Text { next: self.next, meaning }
    }

    /// Reads what [`Self::text`] returned; `None` if this version of Leaf cannot read the meaning
    /// in it.
    pub(crate) fn read(text: &Text) -> Option<Self> {
        let meaning = text.meaning.as_deref().map_or(Ok(Meaning::PLAIN), Meaning::decode);
        Some(Self { meaning: meaning.ok()?, next: text.next })
    }
}

/// Writes what the tag granted, for operators: `numbers below 1001 of interleave:0/8, which are ids
/// below 8008`.
impl fmt::Display for EndedTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning.shape {
            Shape::Plain => write!(f, "ids below {}", self.ids_below()),
            shape => {
                let (next, ids) = (self.next, self.ids_below());
                write!(f, "numbers below {next} of {shape}, which are ids below {ids}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use leaf_core::{Id, Step, Tag};
    use leaf_shape::keys::ScrambleDomain;
    use proptest::prelude::*;

    use super::*;
    use leaf_shape::keys::KeyRing;
    use leaf_shape::{Interleave, Mapping, Period, Zone};

    const KEYS: &str = "1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n\
                        2 = 101112131415161718191a1b1c1d1e1f000102030405060708090a0b0c0d0e0f\n";

    fn ring(keys: usize) -> KeyRing {
        let lines: Vec<_> = KEYS.lines().take(keys).collect();
        KeyRing::new(lines.join("\n").parse().unwrap())
    }

    fn shapes(tag: &Tag) -> Vec<Shape> {
        let mut shapes = vec![Shape::Plain];
        for (index, of) in [(0, 2), (1, 2), (0, 8), (7, 8)] {
            shapes.push(Shape::Interleave(Interleave::new(index, of).unwrap()));
        }
        for keys in 1..=2 {
            let domain = ScrambleDomain::Digits10;
            let key = ring(keys).newest(domain, tag).unwrap().key();
            shapes.push(Shape::Scramble { domain, key });
        }
        shapes
    }

    fn ids(shape: Shape, tag: &Tag, numbers: std::ops::Range<i64>) -> Vec<i64> {
        let meaning = Meaning { shape, ..Meaning::PLAIN };
        let mapping = Mapping::of(meaning, tag, &ring(2)).unwrap();
        let id = |number| Id::new(number).unwrap();
        let made = |number| mapping.as_ref().map_or(id(number), |mapping| mapping.id(id(number)));
        numbers.map(|number| made(number).get()).collect()
    }

    proptest! {
        /// G-33: tags of one name, of any shapes, are made and ended one after the other. No id is
        /// issued twice, and the least first number that a refusal names is accepted.
        #[test]
        fn no_tag_of_a_chain_issues_an_id_of_another(
            acts in prop::collection::vec((0usize..7, 0i64..300, 1i64..100), 1..12),
        ) {
            let tag = Tag::parse("orders").unwrap();
            let shapes = shapes(&tag);
            let mut ended: Option<EndedTag> = None;
            let mut issued = HashSet::new();
            for (shape, first, amount) in acts {
                let shape = shapes[shape];
                let meaning = Meaning { shape, ..Meaning::PLAIN };
                let plain = NewTag::new(tag.clone(), Step::MIN);
                let mut new = NewTag { meaning, max_id: first, ..plain };
                if let Some(Err(why)) = ended.map(|ended| ended.check(&new)) {
                    let named = why.split("first number be ").nth(1);
                    let Some(named) = named.and_then(|rest| rest.split(' ').next()) else { continue };
                    new.max_id = named.parse().unwrap();
                    let less = NewTag { max_id: new.max_id - 1, ..new.clone() };
                    prop_assert!(ended.unwrap().check(&less).is_err());
                    prop_assert!(ended.unwrap().check(&new).is_ok());
                }
                // Marks compare numbers, whatever the shape.
                prop_assert!(ended.is_none_or(|ended| new.max_id >= ended.next));
                if new.max_id + amount > ScrambleDomain::Digits10.capacity() {
                    // Above every number of the small domain.
                    continue;
                }
                for id in ids(shape, &tag, new.max_id..new.max_id + amount) {
                    prop_assert!(issued.insert(id), "{id} of {shape} was issued before");
                }
                ended = Some(EndedTag { meaning, next: new.max_id + amount });
            }
        }
    }

    /// The ended tag was closed by a wrong clock, which opened a later period. A tag of another
    /// store, which was reopened there, must not issue the ended tag's ids when that period begins.
    #[test]
    fn a_reopened_tag_remembers_what_the_ended_one_issued() {
        let daily = Reset::new(Period::Daily, Zone::utc(), 4).unwrap();
        let meaning = |reset| Meaning { reset: Some(reset), ..Meaning::STRICT };
        let ended = EndedTag { meaning: meaning(daily), next: 202_711_280_018 };
        let checks = |first, ids_below, id: i64| {
            let reopened = Reopened::new(1, [Taken { first, ids_below }]).unwrap();
            let reset = daily.reopened_as(reopened).unwrap();
            let max_id = reset.counter_offset() + id;
            let new = NewTag::strict(Tag::parse("receipts").unwrap());
            ended.check(&NewTag { max_id, meaning: meaning(reset), ..new }).is_ok()
        };
        let today = 202_611_290_001;
        assert!(!checks(20_280_301, 202_803_010_005, today), "another wrong clock");
        assert!(!checks(20_271_128, 202_711_280_017, today), "fewer ids");
        assert!(!checks(20_271_129, 202_711_290_005, today), "from the next day on");
        assert!(checks(20_271_128, 202_711_280_018, today));
        assert!(checks(20_271_101, 202_711_290_005, today));
        assert!(checks(20_280_301, 202_803_010_005, 202_711_280_018), "that period has come");
        // One that was reopened: also what it issued afterwards.
        let taken = Taken { first: 20_271_128, ids_below: 202_711_280_018 };
        let reset = daily.reopened_as(Reopened::new(1, [taken]).unwrap()).unwrap();
        let next = reset.counter_offset() + 202_611_300_501;
        let ended = EndedTag { meaning: meaning(reset), next };
        let twice = daily.reopened_as(Reopened::new(2, [taken]).unwrap()).unwrap();
        let checks = |id: i64| {
            let new = NewTag::strict(Tag::parse("receipts").unwrap());
            let max_id = twice.counter_offset() + id;
            ended.check(&NewTag { max_id, meaning: meaning(twice), ..new }).is_ok()
        };
        assert!(!checks(202_611_300_043));
        assert!(checks(202_611_300_501));
    }

    #[test]
    fn what_cannot_be_counted_further_is_refused() {
        let part = Interleave::new(1, 2).unwrap();
        let meaning = Meaning { shape: Shape::Interleave(part), ..Meaning::PLAIN };
        let ended = EndedTag { meaning, next: i64::MAX - 5 };
        assert_eq!(ended.ids_below(), SEALED);
        let new = NewTag::new(Tag::parse("orders").unwrap(), Step::MIN);
        assert!(ended.check(&NewTag { max_id: SEALED - 1, ..new.clone() }).is_err());
        assert!(ended.check(&NewTag { max_id: SEALED, ..new }).is_ok());
    }
}
