//! How single values are read. Errors never repeat what was written: it may be a secret at a wrong
//! place. Numbers are not taken from fractions or booleans.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use leaf_registry::SettingError;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::ConfigError;

/// A value that is written as text.
pub(super) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(in super::super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Several values that are written as texts.
pub(super) mod texts {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<T: Display, S: Serializer>(
        values: &[T],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(ToString::to_string))
    }

    pub(in super::super) fn deserialize<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}

/// A value that is written as text, if it is written.
pub(super) mod optional_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// What the file of a `…_file` key holds.
pub(super) fn from_file<T>(key: &str, file: Option<&Path>) -> Result<Option<T>, ConfigError>
where
    T: FromStr<Err = SettingError>,
{
    // An empty name is none: some give every variable, whether it has a value or not.
    let file = file.filter(|file| !file.as_os_str().is_empty());
    let read = file.map(leaf_registry::read_setting).transpose();
    read.map_err(|error| ConfigError::new(format!("{key}: {error}")))
}

/// A socket address. Host names are not taken: what they mean may change between two starts.
pub(super) fn address<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|_| D::Error::custom("write it with an IP address, like 127.0.0.1:8080"))
}

/// An address, or `off`.
pub(super) mod address_or_off {
    use std::net::SocketAddr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        value: &Option<SocketAddr>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(address) => to.collect_str(address),
            None => to.serialize_str("off"),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        match String::deserialize(from)?.as_str() {
            "off" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                D::Error::custom("write it with an IP address, like 127.0.0.1:6380, or off")
            }),
        }
    }
}

/// A whole number of the field's type. The environment and flags have texts, so that digits in a
/// text count, too.
pub(super) fn whole_number<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: TryFrom<u64>,
    D: Deserializer<'de>,
{
    from.deserialize_any(WholeNumber(PhantomData))
}

/// What [`whole_number`] reads.
struct Number<T>(T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        whole_number(from).map(Self)
    }
}

/// A whole number of the type of the field, if there is a value.
pub(super) fn optional_whole_number<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: TryFrom<u64>,
    D: Deserializer<'de>,
{
    Ok(Option::<Number<T>>::deserialize(from)?.map(|Number(number)| number))
}

/// A table of names and whole numbers, if there is one: it cannot be written in an environment
/// variable.
pub(super) fn whole_numbers<'de, D>(from: D) -> Result<Option<BTreeMap<String, u32>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Numbers;
    impl<'de> Visitor<'de> for Numbers {
        type Value = Option<BTreeMap<String, u32>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table of names and numbers")
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
            Err(E::custom("expected a table of names and numbers"))
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((who, Number(id))) = entries.next_entry()? {
                map.insert(who, id);
            }
            Ok(Some(map))
        }
    }
    from.deserialize_any(Numbers)
}

pub(super) fn boolean<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    struct Boolean;
    impl Visitor<'_> for Boolean {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("true or false")
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
            // The environment holds texts only.
            text.parse().map_err(|_| E::custom("expected true or false"))
        }
    }
    from.deserialize_any(Boolean)
}

struct WholeNumber<T>(PhantomData<T>);

impl<T: TryFrom<u64>> WholeNumber<T> {
    fn take<E: Error>(value: impl TryInto<u64>) -> Result<T, E> {
        let value = value.try_into().ok().and_then(|value| T::try_from(value).ok());
        value.ok_or_else(|| E::custom("the number is out of range"))
    }
}

impl<T: TryFrom<u64>> Visitor<'_> for WholeNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        Self::take(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        Self::take(value)
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<T, E> {
        Self::take(value)
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<T, E> {
        Self::take(value)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        match text.parse::<u64>() {
            Ok(value) => Self::take(value),
            Err(_) => Err(E::custom("expected a whole number")),
        }
    }
}
