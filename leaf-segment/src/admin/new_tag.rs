//! What an operator can specify for a new tag, and which choices can be combined.

use std::fmt;
use std::str::FromStr;

use leaf_core::{Step, Tag, UnknownName};
use leaf_shape::Template;
use leaf_shape::keys::KeyRing;
use leaf_shape::keys::ScrambleDomain;
use leaf_shape::{Interleave, Meaning, Order, Period, Reset, Shape, Zone, parts};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::NewTag;
use crate::admin::TagAdminError;
use crate::store::{Family, SEALED, Slice, TagSettings};

/// How many digits the numbers of a period have where no template says it.
const DIGITS: u8 = 6;

/// The specification of a new tag. With only a step it is a plain tag.
///
/// ```
/// use leaf_core::Tag;
/// use leaf_segment::admin::TagSpec;
/// use leaf_shape::keys::KeyRing;
///
/// let spec = TagSpec {
///     reset: Some("daily".parse()?),
///     time_zone: Some("Europe/Berlin".into()),
///     text: Some("ORD-{date:%y%m%d}{n:04}".into()),
///     ..TagSpec::default()
/// };
/// let new = spec.record(Tag::parse("orders")?, &KeyRing::default())?;
/// assert_eq!(new.own_failover_margin(), Some(1001));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
#[cfg_attr(test, derive(Deserialize), serde(default, deny_unknown_fields))]
pub struct TagSpec {
    /// How many ids one request to the store reserves. Required in relaxed order, forbidden in
    /// strict.
    pub step: Option<Step>,
    /// In which order ids are handed out. `None`: strict if `reset` is set, else relaxed.
    pub order: Option<Order>,
    /// How the tag's ids are made of its numbers.
    pub shape: ShapeName,
    /// The slice of all ids that the tag gets, as `INDEX/COUNT` like `2/8`: INDEX counts from 0,
    /// COUNT is 2 to 1024.
    pub slice: Option<String>,
    /// The ids of all slices together are below 2 to the power of this: 63 (the default) or 53.
    pub slice_bits: Option<u8>,
    /// The period at whose start the numbers begin at 1 again; `None` if they never do.
    pub reset: Option<Period>,
    /// The time zone of midnight and of the date in texts, like `Europe/Berlin`. Default UTC.
    pub time_zone: Option<String>,
    /// The template of its texts.
    pub text: Option<String>,
    /// The first number, which is the first id of a plain tag. Default 1, or the first of the
    /// slice.
    pub first: Option<i64>,
    /// What the tag is for, at most 256 characters.
    pub description: Option<String>,
    /// Whether this specifies a family, named like `invoice/*`. Its members are then made by this
    /// specification when somebody asks for them.
    pub family: bool,
    /// How many members the family may have. Default 1,000,000.
    pub max_members: Option<u32>,
    /// How many members each node makes in a second at most. Default 1,000.
    pub members_per_second: Option<u32>,
}

/// How ids are made of numbers, as an operator writes it: `plain`, `interleave:2/8`, `scramble:63`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShapeName {
    /// The numbers are the ids.
    #[default]
    Plain,
    /// Store *i* of *k* has the ids that leave the remainder *i* when divided by *k*.
    Interleave(Interleave),
    /// The ids that a permutation makes of the numbers, with the newest key.
    Scramble(ScrambleDomain),
}

impl FromStr for ShapeName {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let shape = match text.split_once(':') {
            None if text == "plain" => Some(Self::Plain),
            Some(("interleave", part)) => part.parse().ok().map(Self::Interleave),
            Some(("scramble", domain)) => domain.parse().ok().map(Self::Scramble),
            _ => None,
        };
        shape.ok_or(UnknownName::new(
            "give plain, interleave:INDEX/COUNT like interleave:0/2, scramble:63, scramble:53 or scramble:d10",
        ))
    }
}

impl fmt::Display for ShapeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Interleave(part) => write!(f, "interleave:{part}"),
            Self::Scramble(domain) => write!(f, "scramble:{domain}"),
        }
    }
}

impl Serialize for ShapeName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ShapeName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, TagAdminError> {
    Err(TagAdminError::Refused(why.into()))
}

impl TagSpec {
    /// Returns the record of a new tag of this specification; `keys` has the key of scrambled ids.
    ///
    /// # Errors
    /// `Refused`, with what cannot be combined and what to do instead; `NoKey` if a key is missing.
    pub fn record(self, tag: Tag, keys: &KeyRing) -> Result<NewTag, TagAdminError> {
        let family = self.family(&tag)?;
        let unknown = "time_zone: give a name of the IANA database, like Europe/Berlin or UTC";
        let find = |name: &String| Zone::find(name).map_or_else(|| refuse(unknown), Ok);
        let zone = self.time_zone.as_ref().map(find).transpose()?;
        let template: Option<Template> = match self.text.as_deref().map(str::parse).transpose() {
            Ok(template) => template,
            Err(error) => return refuse(format!("text: {error}")),
        };
        let of = |period| reset(period, zone.unwrap_or_else(Zone::utc), template.as_ref());
        let reset = self.reset.map(of).transpose()?;
        let order = self.order.unwrap_or(match reset {
            Some(_) => Order::Strict,
            None => Order::Relaxed,
        });
        let meaning = Meaning { order, shape: self.shape(&tag, keys)?, reset };
        if let Err(why) = meaning.check() {
            return refuse(why);
        }
        let slice = self.slice()?;
        if slice.is_some() && !meaning.is_plain() {
            return refuse(
                "a slice is a part of the ids of a plain tag: leave the slice out, or order, shape and reset",
            );
        }
        let dated =
            template.as_ref().is_some_and(|text| text.date_parts() != (false, false, false));
        if zone.is_some() && reset.is_none() && !dated {
            return refuse("a time zone means nothing without a reset or a date in the text");
        }
        let zone = zone.filter(|_| reset.is_none());
        let settings = TagSettings {
            slice,
            text: template,
            time_zone: zone,
            family,
            ..TagSettings::default()
        };
        let first = self.first(meaning, &settings)?;
        let step = match (order, self.step) {
            (Order::Relaxed, Some(step)) => step,
            (Order::Strict, None) => Step::MIN,
            (Order::Relaxed, None) => {
                return refuse(
                    "a tag in relaxed order needs a step: how many ids one trip to the store reserves, like 1000",
                );
            }
            (Order::Strict, Some(_)) => return refuse(crate::admin::NO_STEP),
        };
        let description = self.description;
        Ok(NewTag { tag, max_id: first, step, meaning, settings, description })
    }

    fn shape(&self, tag: &Tag, keys: &KeyRing) -> Result<Shape, TagAdminError> {
        Ok(match self.shape {
            ShapeName::Plain => Shape::Plain,
            ShapeName::Interleave(part) => Shape::Interleave(part),
            ShapeName::Scramble(domain) => match keys.newest(domain, tag) {
                Some(scramble) => Shape::Scramble { domain, key: scramble.key() },
                None => {
                    return Err(TagAdminError::NoKey(format!(
                        "scrambled ids need a key: put a line `1 = KEY` into the key file of every node, KEY as \
                         `openssl rand -hex 32` draws it; {domain} takes versions 1 to {}",
                        domain.max_version()
                    )));
                }
            },
        })
    }

    fn family(&self, name: &Tag) -> Result<Option<Family>, TagAdminError> {
        let allowed = Family::default();
        if !self.family {
            return match (
                name.as_str().ends_with("/*"),
                self.max_members.or(self.members_per_second),
            ) {
                (true, _) => {
                    refuse("a name that ends in /* is that of a family: say that it is one")
                }
                (false, Some(_)) => refuse("max_members and members_per_second are a family's"),
                (false, None) => Ok(None),
            };
        }
        if Family::prefix(name).is_none() {
            return refuse(
                "a family is named by what its members begin with, and /*, like invoice/*, with no other * in it",
            );
        }
        if let ShapeName::Scramble(_) = self.shape {
            return refuse(
                "each tag has permutations of its own, so that a family cannot have them: make tags with scrambled ids \
                 one by one",
            );
        }
        let family = Family {
            max_members: self.max_members.unwrap_or(allowed.max_members),
            members_per_second: self.members_per_second.unwrap_or(allowed.members_per_second),
            ..allowed
        };
        match family.max_members.min(family.members_per_second) {
            0 => refuse(Family::AT_LEAST_ONE),
            _ => Ok(Some(family)),
        }
    }

    fn slice(&self) -> Result<Option<Slice>, TagAdminError> {
        let Some(text) = &self.slice else {
            return match self.slice_bits {
                Some(_) => refuse("slice_bits means nothing without a slice"),
                None => Ok(None),
            };
        };
        let slice = parts(text)
            .and_then(|(index, of)| Slice::new(index, of, self.slice_bits.unwrap_or(63)));
        match slice {
            Some(slice) => Ok(Some(slice)),
            None => refuse(
                "slice: give INDEX/COUNT like 2/8, with 2 to 1024 slices counted from 0, and 63 or 53 for slice_bits",
            ),
        }
    }

    /// Returns the first number of the tag; refuses one that its slice, shape or text does not
    /// allow.
    fn first(&self, meaning: Meaning, settings: &TagSettings) -> Result<i64, TagAdminError> {
        if let Shape::Scramble { domain, .. } = meaning.shape
            && settings.text.as_ref().is_some_and(|text| text.capacity() < greatest(domain))
        {
            return refuse(format!(
                "text: the ids of scramble:{domain} are up to {}: make {{n}} wider",
                greatest(domain)
            ));
        }
        let (least, end) = match meaning.reset {
            // Above every number of a period.
            Some(_) => (0, SEALED),
            None => match settings.number_end(meaning) {
                // A tag that has no end but that of all ids may also be made used up.
                end if end == SEALED - 1 => (settings.slice.map_or(0, Slice::first), SEALED),
                end => (settings.slice.map_or(0, Slice::first), end),
            },
        };
        let first = self.first.unwrap_or_else(|| settings.slice.map_or(1, Slice::first));
        if first < least || first >= end {
            return refuse(format!(
                "the first number is {} to {}, by what the tag's slice, shape and text leave of all ids",
                least,
                end.saturating_sub(1)
            ));
        }
        Ok(first)
    }
}

/// The greatest id of a scramble domain, with any version of the key.
fn greatest(domain: ScrambleDomain) -> i64 {
    domain.capacity().saturating_mul(i64::from(domain.max_version()) + 1) - 1
}

/// Returns the [`Reset`] of a tag. Its numbers have as many digits as the template has room for, at
/// most 9, or [`DIGITS`] if nothing limits them. Refuses a template that does not contain the whole
/// period.
fn reset(period: Period, zone: Zone, text: Option<&Template>) -> Result<Reset, TagAdminError> {
    let Some(text) = text else {
        let reset = Reset::new(period, zone, DIGITS);
        return Ok(reset.expect("six digits"));
    };
    let (year, month, day) = text.date_parts();
    let (whole, format) = match period {
        Period::Daily => (year && month && day, "%y%m%d"),
        Period::Monthly => (year && month, "%y%m"),
        Period::Yearly => (year, "%y"),
    };
    if !whole {
        return refuse(format!(
            "text: numbers that begin again need their period in the text, or two ids would have one text: put \
             {{date:{format}}} into it"
        ));
    }
    // The most decimal numbers that its digits hold.
    let digits = match text.width() {
        None => DIGITS,
        Some(_) => (text.capacity().ilog10() as u8).min(9),
    };
    match Reset::new(period, zone, digits) {
        Some(reset) => Ok(reset),
        None => refuse("text: ten numbers at least are needed in a period: make {n} wider"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn made(json: &str) -> Result<NewTag, String> {
        let spec: TagSpec = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let ring = KeyRing::new(KEY.parse().unwrap());
        spec.record(Tag::parse("orders").unwrap(), &ring).map_err(|error| error.to_string())
    }

    #[test]
    fn what_goes_together_is_made() {
        for (json, first, meaning) in [
            (r#"{"step":10}"#, 1, ""),
            (r#"{"step":10,"slice":"2/8"}"#, 2 << 60, ""),
            (
                r#"{"step":10,"slice":"2/8","slice_bits":53,"first":2251799813685300}"#,
                2_251_799_813_685_300,
                "",
            ),
            (r#"{"step":10,"text":"O-{n}"}"#, 1, ""),
            (r#"{"order":"strict"}"#, 1, r#""order":"strict""#),
            (r#"{"order":"strict","shape":"interleave:1/2","first":100}"#, 100, "interleave:1/2"),
            (r#"{"step":10,"shape":"interleave:1/2"}"#, 1, "interleave:1/2"),
            (r#"{"step":10,"shape":"scramble:d10"}"#, 1, r#""scramble:d10","key":1"#),
            (r#"{"step":10,"shape":"scramble:63","first":7}"#, 7, "scramble:63"),
            (r#"{"reset":"daily","first":20261121000050}"#, 20_261_121_000_050, "daily"),
            (r#"{"reset":"daily"}"#, 1, r#""digits":6,"time_zone":"UTC""#),
            (
                r#"{"reset":"monthly","time_zone":"asia/tokyo","text":"{date:%Y%m}-{n:04}"}"#,
                1,
                r#""digits":4,"time_zone":"Asia/Tokyo""#,
            ),
            (r#"{"reset":"yearly","text":"{date:%y}{n:b36:4}{mod37}"}"#, 1, r#""digits":6"#),
        ] {
            let new = made(json).unwrap();
            assert_eq!(new.max_id, first, "{json}");
            let text = new.meaning.encode();
            assert!(
                new.meaning.is_plain() == meaning.is_empty() && text.contains(meaning),
                "{text}"
            );
            assert!(meaning.is_empty() || Meaning::decode(&text) == Ok(new.meaning), "{text}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_a_way_out() {
        for (json, why) in [
            (r#"{}"#, "needs a step"),
            (r#"{"order":"strict","step":10}"#, "no step"),
            (r#"{"step":10,"shape":"scramble:64"}"#, "scramble:63"),
            (r#"{"step":10,"shape":"interleave:2/2"}"#, "interleave:0/2"),
            (r#"{"order":"strict","shape":"scramble:63"}"#, "no order that could be strict"),
            (r#"{"order":"relaxed","step":1,"reset":"daily"}"#, "in strict order"),
            (r#"{"reset":"daily","shape":"scramble:63"}"#, "as they are"),
            (r#"{"reset":"daily","shape":"interleave:0/2"}"#, "as they are"),
            (r#"{"reset":"hourly"}"#, "daily"),
            (r#"{"reset":"daily","time_zone":"Moon/Tycho"}"#, "IANA"),
            (r#"{"reset":"daily","text":"{n:06}"}"#, "{date:%y%m%d}"),
            (r#"{"reset":"daily","text":"{date:%y%m}{n:06}"}"#, "{date:%y%m%d}"),
            (r#"{"reset":"monthly","text":"{date:%m}{n:06}"}"#, "{date:%y%m}"),
            (r#"{"step":10,"time_zone":"UTC"}"#, "means nothing"),
            (r#"{"step":10,"text":"{n}{n}"}"#, "exactly once"),
            (r#"{"step":10,"shape":"scramble:63","text":"{n:018}"}"#, "make {n} wider"),
            (r#"{"order":"strict","slice":"0/2"}"#, "a plain tag"),
            (r#"{"step":10,"shape":"interleave:0/2","slice":"0/2"}"#, "a plain tag"),
            (r#"{"step":10,"slice":"2/2"}"#, "counted from 0"),
            (r#"{"step":10,"slice":"1-2"}"#, "counted from 0"),
            (r#"{"step":10,"slice":"0/2","slice_bits":60}"#, "63 or 53"),
            (r#"{"step":10,"slice_bits":53}"#, "without a slice"),
            (r#"{"step":10,"slice":"1/2","first":5}"#, "the first number is"),
            (r#"{"step":10,"slice":"1/2","text":"{n:06}"}"#, "the first number is"),
            (r#"{"step":10,"text":"{n:02}","first":100}"#, "the first number is 0 to 99"),
            (r#"{"step":10,"keys":1}"#, "unknown field"),
            (r#"{"step":10,"family":true}"#, "like invoice/*"),
            (r#"{"step":10,"max_members":10}"#, "a family's"),
        ] {
            let refused = made(json).unwrap_err();
            assert!(refused.contains(why), "{json}: {refused}");
        }
        let spec = TagSpec { shape: "scramble:63".parse().unwrap(), ..TagSpec::default() };
        let refused = spec.record(Tag::parse("a").unwrap(), &KeyRing::default()).unwrap_err();
        assert!(refused.to_string().contains("into the key file"), "{refused}");
    }
}
