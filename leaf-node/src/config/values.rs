//! Reads and writes values that are written as text. Errors never repeat the text: it may be a
//! secret at a wrong place.

use std::net::SocketAddr;

use serde::de::{Deserialize, Deserializer, Error};

/// A value that is written as text.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// An optional value that is written as text.
pub(crate) mod optional_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// A socket address. Host names are refused: they may resolve differently at the next start.
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
