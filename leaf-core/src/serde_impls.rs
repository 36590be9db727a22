//! Serde implementations for the types of this crate, with the feature `serde`.
//!
//! Invariant: every value that is read passed the checks of its type's constructor. Text formats
//! such as JSON hold an [`Id`] as a string: JavaScript would round a number, and two rounded ids
//! can be equal. An id is read from a string or a number.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::{Id, IdRange, Layout, Step, Tag, UnixMillis, WorkerId};

/// Visitor that parses a string, or converts a number with `number`.
struct Read<T> {
    expected: &'static str,
    number: fn(i64) -> Option<T>,
}

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Read<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        let wrong = || E::invalid_value(de::Unexpected::Signed(number), &self.expected);
        (self.number)(number).ok_or_else(wrong)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        let wrong = || E::invalid_value(de::Unexpected::Unsigned(number), &self.expected);
        i64::try_from(number).ok().and_then(self.number).ok_or_else(wrong)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => to.collect_str(self),
            false => to.serialize_i64(self.get()),
        }
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let read = Read { expected: "an id from 0 to 2^63 - 1", number: Id::new };
        match from.is_human_readable() {
            true => from.deserialize_any(read),
            false => from.deserialize_i64(read),
        }
    }
}

impl Serialize for IdRange {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut range = to.serialize_struct("IdRange", 2)?;
        range.serialize_field("start", &self.first())?;
        range.serialize_field("end", &Id::new(self.end()))?;
        range.end()
    }
}

impl<'de> Deserialize<'de> for IdRange {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(rename = "IdRange")]
        struct Bounds {
            start: Id,
            end: Id,
        }
        let Bounds { start, end } = Bounds::deserialize(from)?;
        Self::new(start.get(), end.get())
            .ok_or_else(|| de::Error::custom("a range of ids: start must be below end"))
    }
}

/// Implements serde for types that are written as a string.
macro_rules! as_text {
    ($($type:ty: $expected:literal),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Read {
                    expected: $expected,
                    number: |_| None,
                })
            }
        }
    )*};
}

as_text!(Tag: "a tag", Layout: "a layout like t41-w10-s12/1ms");

/// Implements serde for types that are written as a number.
macro_rules! as_number {
    ($($type:ty: $number:ty, $make:expr);* $(;)?) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                self.get().serialize(to)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let make: fn($number) -> Result<Self, D::Error> = $make;
                make(<$number>::deserialize(from)?)
            }
        }
    )*};
}

as_number! {
    Step: u32, |step| Self::new(step.into()).map_err(de::Error::custom);
    WorkerId: u32, |worker| Ok(Self::new(worker));
    UnixMillis: u64, |millis| Ok(Self::new(millis));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back<T>(value: T, json: &str)
    where
        T: Serialize + for<'de> Deserialize<'de> + PartialEq + fmt::Debug,
    {
        assert_eq!(serde_json::to_string(&value).unwrap(), json);
        assert_eq!(serde_json::from_str::<T>(json).unwrap(), value);
    }

    #[test]
    fn every_type_is_read_as_it_is_written() {
        there_and_back(Id::new(i64::MAX).unwrap(), r#""9223372036854775807""#);
        there_and_back(IdRange::new(1, 2001).unwrap(), r#"{"start":"1","end":"2001"}"#);
        there_and_back(Tag::parse("订单").unwrap(), r#""订单""#);
        there_and_back(Layout::LEAF, &format!("\"{}\"", Layout::LEAF));
        there_and_back(Step::new(2000).unwrap(), "2000");
        there_and_back(WorkerId::new(7), "7");
        there_and_back(UnixMillis::new(1_800_000_000_000), "1800000000000");
        assert_eq!(serde_json::from_str::<Id>("7").unwrap(), Id::new(7).unwrap());
    }

    #[test]
    fn what_no_constructor_takes_is_refused() {
        for id in ["-1", r#""-1""#, "9223372036854775808", "1.5", "null", r#""""#] {
            assert!(serde_json::from_str::<Id>(id).is_err(), "{id}");
        }
        for range in [r#"{"start":"5","end":"5"}"#, r#"{"start":"5"}"#] {
            assert!(serde_json::from_str::<IdRange>(range).is_err(), "{range}");
        }
        assert!(serde_json::from_str::<Step>("0").is_err());
        assert!(serde_json::from_str::<Tag>(r#""""#).is_err());
        assert!(serde_json::from_str::<Layout>(r#""t64""#).is_err());
    }
}
