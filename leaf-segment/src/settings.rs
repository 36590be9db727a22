//! The settings of a tag, and the text in which every store keeps them.
//!
//! Invariant: nothing of a text that a later version of Leaf wrote is lost. Fields that this
//! version does not know are kept when other fields change; a greater version number is an error,
//! never replaced by defaults.
//!
//! Slice, template and time zone are chosen when the tag is made, and kept by every change. The
//! generation changes only when the tag is made or repaired.

use leaf_core::{Step, UnknownFields, record_version};
use leaf_shape::{MOST_PARTS, Meaning, Order, Template, Zone, parts};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::admin::{EndedTag, EndedText};
use crate::family::Family;
use crate::store::{SEALED, TagGeneration};

/// The version of the text.
const FORMAT_VERSION: u32 = 1;
/// The upper bound of a tag's own failover margin.
const OWN_MARGIN: i64 = 10_000_000;

/// The settings of a tag, which hold on every node. Where a value is unset, each node's own
/// configuration holds.
///
/// ```
/// use leaf_core::Step;
/// use leaf_segment::store::TagSettings;
///
/// let settings = TagSettings { max_step: Some(Step::new(5000)?), ..TagSettings::default() };
/// let text = settings.encode();
/// assert_eq!(text, r#"{"version":1,"enabled":true,"max_step":5000}"#);
/// assert_eq!(TagSettings::decode(&text)?, settings);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagSettings {
    /// Whether ids are handed out. Default true.
    pub enabled: bool,
    /// The dynamic step never falls below this.
    pub min_step: Option<Step>,
    /// The dynamic step grows up to this.
    pub max_step: Option<Step>,
    /// The most ids that one call takes.
    pub max_take: Option<Step>,
    /// The part of all ids that this tag may issue, where each of several stores has a part of its
    /// own.
    pub slice: Option<Slice>,
    /// The template by which ids are written as texts; `None` if the tag has no texts.
    pub text: Option<Template>,
    /// The time zone of the date in texts; default UTC. In a tag with periods the time zone is part
    /// of the meaning instead.
    pub time_zone: Option<Zone>,
    /// The record's generation; `None` if the record was made without Leaf, for example by plain
    /// SQL, and never repaired.
    pub generation: Option<TagGeneration>,
    /// For a tag that was imported from another store: the generation of its record there, or `-`
    /// if that had none. `None` in a tag that was made in this store.
    pub imported: Option<String>,
    /// What the tag had granted when it was sealed. After a deletion, the settings consist of this.
    pub ended: Option<EndedTag>,
    /// What a family allows; `None` in a tag.
    pub family: Option<Family>,
    /// Whether a family made the tag. The family's settings hold where the tag has none of its own.
    pub member: bool,
    /// The fields that a later version of Leaf added.
    pub unknown: UnknownFields,
}

/// One of several equal parts of all ids, for example one per data centre's store. The parts have
/// no id in common.
///
/// ```
/// use leaf_segment::store::Slice;
///
/// let slice = Slice::new(2, 8, 63).ok_or("a slice")?;
/// assert_eq!(slice.first(), 2 << 60);
/// assert_eq!(slice.end(), 3 << 60);
/// assert_eq!(Slice::new(0, 8, 53).map(|slice| (slice.first(), slice.end())), Some((1, 1 << 50)));
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    index: u32,
    of: u32,
    bits: u8,
}

/// The text holds no settings that this version of Leaf can follow.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TagSettingsError {
    /// A later version of Leaf wrote it.
    #[error("its settings are of a later version of Leaf ({0}): upgrade this program")]
    Newer(String),
    /// The text is damaged or badly written by hand. It had no slice and no template, so that an
    /// operator can set the settings again.
    #[error("its settings cannot be read ({0}): set them again")]
    Damaged(String),
    /// The text is damaged, and had a slice or a template, which only a backup can restore.
    #[error(
        "its settings cannot be read ({0}), and had a slice or a template: put the text back from a backup; set again it \
         would lose them"
    )]
    Lost(String),
}

#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_step: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_step: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_take: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slice: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slice_bits: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    imported: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<EndedText>,
    /// Set only in a family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    members: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_members: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    members_per_second: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    member: bool,
    #[serde(flatten)]
    unknown: UnknownFields,
}

const fn yes() -> bool {
    true
}

impl Default for TagSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            min_step: None,
            max_step: None,
            max_take: None,
            slice: None,
            text: None,
            time_zone: None,
            generation: None,
            imported: None,
            ended: None,
            family: None,
            member: false,
            unknown: UnknownFields::default(),
        }
    }
}

impl TagSettings {
    /// Returns these settings for a new tag: with a newly drawn generation, unless they have one.
    #[must_use]
    pub fn of_new_tag(&self) -> Self {
        let generation = self.generation.or_else(|| Some(TagGeneration::draw()));
        Self { generation, ..self.clone() }
    }

    /// Returns the settings of a new member of the family that has these settings. The member's
    /// limits stay unset, so that those of the family hold.
    pub(crate) fn of_member(&self) -> Self {
        Self {
            enabled: true,
            min_step: None,
            max_step: None,
            max_take: None,
            family: None,
            member: true,
            generation: Some(TagGeneration::draw()),
            imported: None,
            ended: None,
            ..self.clone()
        }
    }

    /// Returns the settings that are kept for a deleted tag: they have only `ended`.
    #[must_use]
    pub fn of_deleted_tag(ended: EndedTag) -> Self {
        Self { ended: Some(ended), ..Self::default() }
    }

    /// One past the last number that a tag with this meaning may issue, in a tag without periods.
    pub(crate) fn number_end(&self, meaning: Meaning) -> i64 {
        let slice = self.slice.map_or(SEALED - 1, Slice::end);
        let text = self.text.as_ref().map_or(i64::MAX, Template::capacity);
        meaning.shape.numbers_below(slice.min(text))
    }

    /// How many numbers a tag of this meaning has in each period, or in total without periods;
    /// `None` from 2^40 on, which is practically endless.
    fn capacity(&self, meaning: Meaning) -> Option<i64> {
        let end = match meaning.reset {
            Some(reset) => reset.capacity(),
            None => self.number_end(meaning),
        };
        (end < 1 << 40).then_some(end)
    }

    /// The margin by which the failover guard advances a tag of this meaning; `None` for the
    /// configured margin. A tag in strict order with few numbers is advanced by a tenth of them,
    /// since the configured margin could use up the tag, or a whole period of it. A tag in relaxed
    /// order needs the configured one, because its nodes hold whole segments.
    pub(crate) fn own_failover_margin(&self, meaning: Meaning) -> Option<i64> {
        let most = self.capacity(meaning).filter(|_| meaning.order == Order::Strict)?;
        Some(OWN_MARGIN.min(most / 10 + 1))
    }

    /// The settings as a store keeps them: one line of JSON.
    #[must_use]
    pub fn encode(&self) -> String {
        let number = |step: Option<Step>| step.map(|step| i64::from(step.get()));
        let text = Text {
            version: FORMAT_VERSION,
            enabled: self.enabled,
            min_step: number(self.min_step),
            max_step: number(self.max_step),
            max_take: number(self.max_take),
            slice: self.slice.map(|slice| slice.to_string()),
            slice_bits: self.slice.map(Slice::bits).filter(|bits| *bits != 63),
            text: self.text.as_ref().map(ToString::to_string),
            time_zone: self.time_zone.map(|zone| zone.name().into()),
            generation: self.generation.map(|generation| generation.to_string()),
            imported: self.imported.clone(),
            ended: self.ended.map(EndedTag::text),
            members: self.family.map(|family| family.members),
            max_members: self.family.map(|family| family.max_members),
            members_per_second: self.family.map(|family| family.members_per_second),
            member: self.member,
            unknown: self.unknown.clone(),
        };
        serde_json::to_string(&text).expect("numbers and texts serialize")
    }

    /// Reads what [`Self::encode`] wrote, in this or a later version of Leaf.
    ///
    /// # Errors
    /// The text has a greater version number, or does not hold valid settings.
    pub fn decode(text: &str) -> Result<Self, TagSettingsError> {
        let fixed = ["\"slice\"", "\"text\""].iter().any(|name| text.contains(name));
        let damaged = |error: String| match fixed {
            true => TagSettingsError::Lost(error),
            false => TagSettingsError::Damaged(error),
        };
        let json = |error: serde_json::Error| damaged(error.to_string());
        // First of all: what a later version wrote may not be readable otherwise.
        let version = record_version(text.as_bytes()).map_err(json)?;
        match version {
            0 => return Err(damaged("version 0".into())),
            FORMAT_VERSION => {}
            newer => return Err(TagSettingsError::Newer(format!("version {newer}"))),
        }
        let text: Text = serde_json::from_str(text).map_err(json)?;
        let step = |name: &str, value: Option<i64>| {
            let step = value.map(Step::new).transpose();
            step.map_err(|error| damaged(format!("{name}: {error}")))
        };
        // What this version cannot read of these, a later one may have written.
        let newer = |what: &str, value: &str| TagSettingsError::Newer(format!("{what} {value:?}"));
        let slice = text.slice.map(|slice| {
            let found = parts(&slice)
                .and_then(|(index, of)| Slice::new(index, of, text.slice_bits.unwrap_or(63)));
            found.ok_or_else(|| newer("slice", &slice))
        });
        let template = text.text.map(|text| text.parse().map_err(|_| newer("text", &text)));
        let zone =
            text.time_zone.map(|name| Zone::find(&name).ok_or_else(|| newer("time zone", &name)));
        let generation =
            text.generation.map(|text| text.parse().map_err(|_| newer("generation", &text)));
        let ended =
            text.ended.map(|text| EndedTag::read(&text).ok_or_else(|| newer("end", &text.shown())));
        let allowed = Family::default();
        let family = text.members.map(|members| Family {
            members,
            max_members: text.max_members.unwrap_or(allowed.max_members),
            members_per_second: text.members_per_second.unwrap_or(allowed.members_per_second),
        });
        Ok(Self {
            enabled: text.enabled,
            min_step: step("min_step", text.min_step)?,
            max_step: step("max_step", text.max_step)?,
            max_take: step("max_take", text.max_take)?,
            slice: slice.transpose()?,
            text: template.transpose()?,
            time_zone: zone.transpose()?,
            generation: generation.transpose()?,
            imported: text.imported,
            ended: ended.transpose()?,
            family,
            member: text.member,
            unknown: text.unknown,
        })
    }
}

impl Slice {
    /// Returns part `index`, counted from 0, of `of` equal parts of the ids below 2^`bits`. `None`
    /// unless `of` is 2 to 1024, `index` is less than `of`, and `bits` is 53 or 63.
    #[must_use]
    pub fn new(index: u32, of: u32, bits: u8) -> Option<Self> {
        let fits = (2..=MOST_PARTS).contains(&of) && index < of && matches!(bits, 53 | 63);
        fits.then_some(Self { index, of, bits })
    }

    /// All parts together hold the ids below 2 to the power of this: 63, or 53 for JavaScript's
    /// numbers.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.bits
    }

    fn size(self) -> i64 {
        ((1u64 << self.bits) / u64::from(self.of)).cast_signed()
    }

    /// The slice's first id.
    #[must_use]
    pub fn first(self) -> i64 {
        (self.size() * i64::from(self.index)).max(1)
    }

    /// One past its last id.
    #[must_use]
    pub fn end(self) -> i64 {
        let last = self.index + 1 == self.of;
        // The last part of all ids ends where they do.
        let end = self.size().saturating_mul(i64::from(self.index) + 1);
        if last { end.min(i64::MAX - 1) } else { end }
    }

    /// Whether two parts have an id in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.first() < other.end() && other.first() < self.end()
    }
}

/// `2/8`.
impl std::fmt::Display for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of version 1. They must be read for ever.
    #[test]
    fn version_1_is_read() {
        let all = r#"{"version":1,"enabled":false,"min_step":10,"max_step":5000,"max_take":64}"#;
        let read = TagSettings::decode(all).unwrap();
        assert_eq!((read.enabled, read.max_take.map(Step::get)), (false, Some(64)));
        assert_eq!(read.encode(), all);
        assert_eq!(TagSettings::decode(r#"{"version":1}"#).unwrap(), TagSettings::default());
        let made = r#"{"version":1,"enabled":true,"slice":"2/8","slice_bits":53,"text":"O-{n}","time_zone":"UTC"}"#;
        let read = TagSettings::decode(made).unwrap();
        assert_eq!(read.slice, Slice::new(2, 8, 53));
        assert_eq!(read.encode(), made);
        let made = r#"{"version":1,"enabled":true,"generation":"00c0ffee00c0ffee"}"#;
        let read = TagSettings::decode(made).unwrap();
        assert_eq!(read.generation.map(|it| it.to_string()), Some("00c0ffee00c0ffee".into()));
        assert_eq!(read.encode(), made);
    }

    #[test]
    fn what_a_later_version_added_outlives_a_change() {
        let text = r#"{"version":1,"enabled":true,"order":"strict"}"#;
        let changed = TagSettings { enabled: false, ..TagSettings::decode(text).unwrap() };
        assert_eq!(changed.encode(), r#"{"version":1,"enabled":false,"order":"strict"}"#);
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let newer = TagSettings::decode(r#"{"version":2,"enabled":{"from":"monday"}}"#);
        assert_eq!(newer, Err(TagSettingsError::Newer("version 2".into())));
        for newer in [
            r#"{"version":1,"slice":"8/8"}"#,
            r#"{"version":1,"slice":"1/2","slice_bits":52}"#,
            r#"{"version":1,"text":"no number"}"#,
            r#"{"version":1,"time_zone":"Moon/Tycho"}"#,
            r#"{"version":1,"generation":"7"}"#,
        ] {
            let refused = TagSettings::decode(newer).unwrap_err();
            assert!(matches!(refused, TagSettingsError::Newer(_)), "{newer}: {refused}");
        }
        // Set again it would lose what only a backup can tell.
        for lost in [r#"{"version":1,"slice":"1/2","#, r#"{"version":1,"text":"{n}","min_step":0}"#]
        {
            let refused = TagSettings::decode(lost).unwrap_err();
            assert!(matches!(refused, TagSettingsError::Lost(_)), "{lost}: {refused}");
        }
        for damaged in ["", "{}", "null", r#"{"version":0}"#, r#"{"version":1,"min_step":0}"#] {
            let refused = TagSettings::decode(damaged).unwrap_err();
            assert!(matches!(refused, TagSettingsError::Damaged(_)), "{damaged}: {refused}");
        }
    }

    #[test]
    fn slices_touch_and_never_overlap() {
        for (of, bits) in [(2, 63), (3, 63), (8, 63), (1024, 63), (8, 53), (7, 53)] {
            let slices: Vec<_> =
                (0..of).map(|index| Slice::new(index, of, bits).unwrap()).collect();
            for pair in slices.windows(2) {
                assert!(pair[0].end() == pair[1].first() && !pair[0].overlaps(pair[1]), "{pair:?}");
            }
            let last = slices.last().unwrap();
            assert!(last.end().cast_unsigned() <= 1 << bits && slices[0].overlaps(slices[0]));
        }
        assert!(Slice::new(0, 2, 63).unwrap().overlaps(Slice::new(1, 4, 63).unwrap()));
        for (index, of, bits) in [(0, 1, 63), (2, 2, 63), (0, 1025, 63), (0, 2, 62)] {
            assert!(Slice::new(index, of, bits).is_none());
        }
    }
}
