//! The secret keys of scrambled ids.
//!
//! Invariant: ids are made only with a key whose check value equals the one that is stored beside
//! the tag's counter.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use leaf_core::Tag;
use thiserror::Error;

use crate::scramble::{KeyId, MasterKey, Scramble, ScrambleDomain};

/// The greatest version that a key may have: `max_version` of `ScrambleDomain::Digits10`. The other
/// domains allow fewer versions.
const MOST: u8 = 9;

/// The master keys that this process has. Empty by default.
///
/// ```
/// use leaf_core::Tag;
/// use leaf_shape::keys::{KeyRing, Keys, ScrambleDomain};
///
/// let keys: Keys = "# drawn with: openssl rand -hex 32\n\
///     1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n".parse()?;
/// let ring = KeyRing::new(keys);
/// let newest = ring.newest(ScrambleDomain::Bits63, &Tag::parse("orders")?).ok_or("a key")?;
/// assert_eq!(newest.key().version, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct KeyRing(ArcSwap<Keys>);

/// Master keys by their versions.
#[derive(Clone, Default)]
pub struct Keys(BTreeMap<u8, MasterKey>);

/// Why a text has no valid keys. No message repeats its words, which may be secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeysError {
    /// This line, counted from 1, holds no key.
    #[error(
        "line {0}: write a key as `1 = ` and 64 hexadecimal digits, as `openssl rand -hex 32` draws them; versions are 1 to {MOST}"
    )]
    BadLine(usize),
    /// The key in this line is one byte over and over: nobody draws that at random.
    #[error("line {0}: the key is one byte over and over: draw one with `openssl rand -hex 32`")]
    Trivial(usize),
    /// The key in this line has the version of another key.
    #[error("line {0}: there is another key of this version")]
    Twice(usize),
    /// The key in this line is also the key of another version.
    #[error("line {0}: another version has the same key")]
    Repeated(usize),
    /// No line holds a key.
    #[error(
        "there is no key: write lines like `1 = ` and 64 hexadecimal digits, as `openssl rand -hex 32` draws them"
    )]
    Empty,
}

/// Why this process has no usable key for the ids of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyProblem {
    /// There is no key of this version.
    #[error(
        "key {0} is missing: copy its line into the key file of this node from that of another one, or from a backup, and \
         load the keys again; a new key does not help"
    )]
    Missing(u8),
    /// The key of this version differs from the one that the tag was made with.
    #[error(
        "key {0} is not the one that the tag was made with: replace its line in the key file of this node by that of a \
         node which serves the tag, and load the keys again"
    )]
    Other(u8),
}

impl KeyRing {
    /// A ring with these keys.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self(ArcSwap::from_pointee(keys))
    }

    /// Replaces the keys. Tags in use keep their current key; generators look at the new keys when
    /// they read their tags.
    pub fn replace(&self, keys: Keys) {
        self.0.store(Arc::new(keys));
    }

    /// The permutation of a tag by the key that its record names.
    ///
    /// # Errors
    /// The key is missing, or its check value is another one.
    pub fn scramble(
        &self,
        domain: ScrambleDomain,
        key: KeyId,
        tag: &Tag,
    ) -> Result<Scramble, KeyProblem> {
        let scramble = self.of_version(domain, key.version, tag);
        let scramble = scramble.ok_or(KeyProblem::Missing(key.version))?;
        match scramble.key() == key {
            true => Ok(scramble),
            false => Err(KeyProblem::Other(key.version)),
        }
    }

    /// The permutation of a tag by the key of this version; `None` if the ring has no such key, or
    /// the domain no such version.
    #[must_use]
    pub fn of_version(&self, domain: ScrambleDomain, version: u8, tag: &Tag) -> Option<Scramble> {
        Scramble::new(domain, self.0.load().0.get(&version)?, version, tag)
    }

    /// The permutation of a tag by the newest of the keys whose versions the domain allows; `None`
    /// if there is none.
    #[must_use]
    pub fn newest(&self, domain: ScrambleDomain, tag: &Tag) -> Option<Scramble> {
        (1..=domain.max_version()).rev().find_map(|version| self.of_version(domain, version, tag))
    }
}

impl FromStr for Keys {
    type Err = KeysError;

    /// Reads lines like `1 = 00112233…`; ignores blank lines, and everything after a `#`.
    fn from_str(text: &str) -> Result<Self, KeysError> {
        let mut keys = BTreeMap::new();
        let mut seen = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let bad = KeysError::BadLine(number);
            let (version, key) = line.split_once('=').ok_or(bad.clone())?;
            let version =
                version.trim().parse().ok().filter(|version| (1..=MOST).contains(version));
            let version = version.ok_or(bad.clone())?;
            let written = key.trim().to_ascii_lowercase();
            let key = written.parse().map_err(|error| match error {
                crate::scramble::KeyError::Trivial => KeysError::Trivial(number),
                crate::scramble::KeyError::Malformed(_) => bad,
            })?;
            if seen.contains(&written) {
                return Err(KeysError::Repeated(number));
            }
            seen.push(written);
            if keys.insert(version, key).is_some() {
                return Err(KeysError::Twice(number));
            }
        }
        if keys.is_empty() { Err(KeysError::Empty) } else { Ok(Self(keys)) }
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyRing").field(&self.0.load()).finish()
    }
}

/// Shows the versions only, like `versions 1, 2`: the keys are secret.
impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let versions: Vec<_> = self.0.keys().map(ToString::to_string).collect();
        match versions.is_empty() {
            true => f.write_str("no key"),
            false => write!(f, "versions {}", versions.join(", ")),
        }
    }
}

/// Shows the versions only: the keys are secret.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keys").field(&self.0.keys().collect::<Vec<_>>()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const TWO: &str = "100102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn ring(text: &str) -> KeyRing {
        KeyRing::new(text.parse().unwrap())
    }

    #[test]
    fn keys_are_read_and_never_told() {
        let keys: Keys = format!("# of the tests\n\n 1 = {ONE}\n2={} # new\n", TWO.to_uppercase())
            .parse()
            .unwrap();
        assert_eq!(keys.to_string(), "versions 1, 2");
        assert_eq!(
            format!("{keys:?} {:?}", KeyRing::new(keys.clone())),
            "Keys([1, 2]) KeyRing(Keys([1, 2]))"
        );
        for (bad, error) in [
            ("", KeysError::Empty),
            ("# none\n", KeysError::Empty),
            (ONE, KeysError::BadLine(1)),
            (&format!("\n0 = {ONE}"), KeysError::BadLine(2)),
            (&format!("10 = {ONE}"), KeysError::BadLine(1)),
            (&format!("1 = {}", &ONE[1..]), KeysError::BadLine(1)),
            (&format!("1 = {}", "ab".repeat(32)), KeysError::Trivial(1)),
            (&format!("1 = {ONE}\n1 = {TWO}"), KeysError::Twice(2)),
            (&format!("1 = {ONE}\n2 = {ONE}"), KeysError::Repeated(2)),
        ] {
            let refused = bad.parse::<Keys>().unwrap_err();
            assert_eq!(refused, error, "{bad}");
            assert!(!refused.to_string().contains("0102"), "{refused}");
        }
    }

    #[test]
    fn a_key_counts_only_if_it_is_the_tag_s() {
        let tag = Tag::parse("orders").unwrap();
        let domain = ScrambleDomain::Bits53;
        let (old, other) = (ring(&format!("1 = {ONE}")), ring(&format!("1 = {TWO}\n2 = {ONE}")));
        let key = old.newest(domain, &tag).unwrap().key();
        assert!(old.scramble(domain, key, &tag).is_ok());
        assert_eq!(other.scramble(domain, key, &tag).unwrap_err(), KeyProblem::Other(1));
        assert_eq!(
            KeyRing::default().scramble(domain, key, &tag).unwrap_err(),
            KeyProblem::Missing(1)
        );
        assert_eq!(other.newest(domain, &tag).unwrap().key().version, 2);

        let late = ring(&format!("9 = {ONE}\n2 = {TWO}"));
        assert_eq!(
            late.newest(domain, &tag).unwrap().key().version,
            2,
            "53 bits have versions up to 3"
        );
        assert_eq!(late.newest(ScrambleDomain::Digits10, &tag).unwrap().key().version, 9);
    }
}
