//! Ids that show neither how many there are nor in which order they came: a keyed permutation of
//! the numbers.
//!
//! Invariant: one-to-one. Within one key, different numbers of the domain have different ids; keys
//! of different versions write different leading bits (or another leading digit), so their ids
//! never meet. Two *different* keys of one version would repeat ids: every program that uses a key
//! compares its [`KeyCheck`] with the one that is stored beside the counter.
//!
//! The permutation is a Feistel network of ten rounds (Luby and Rackoff, 1988) over the bits of the
//! domain, with AES-128 as the round function. If the size of the domain is not a power of two, it
//! walks the cycle: a value outside the domain is permuted again until it is inside (Black and
//! Rogaway, 2002). `docs/sequences.md` has the exact format, for programs in other languages.

use std::fmt;
use std::str::FromStr;

use aes::Aes128;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use hkdf::Hkdf;
use sha2::Sha256;
use thiserror::Error;

use leaf_core::{Id, Tag, UnknownName};

const ROUNDS: u8 = 10;
/// How many ids are computed at once: enough to keep the processor's AES unit busy.
const AT_ONCE: usize = 32;
const NINE_DIGITS: u64 = 1_000_000_000;

/// The set of ids that a permutation yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScrambleDomain {
    /// `63`: up to 2^63, three bits for the version of the key (1 to 7) and 60 permuted.
    Bits63,
    /// `53`: up to 2^53, which JavaScript's numbers hold: two bits for the version (1 to 3) and 51
    /// permuted.
    Bits53,
    /// `d10`: ten decimal digits, the first for the version (1 to 9) and nine permuted.
    Digits10,
}

/// The secret from which the key of every tag and version is derived: 32 bytes.
#[derive(Clone)]
pub struct MasterKey([u8; 32]);

/// The check value of a key: eight bytes that are derived from the same secret. It tells whether
/// two keys are the same, and does not reveal the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyCheck([u8; 8]);

/// Identifies the key that a tag's ids are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId {
    /// Its version, from 1 on.
    pub version: u8,
    /// Its check value.
    pub check: KeyCheck,
}

/// A text that is no key, or no check value of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The text does not consist of this many hexadecimal digits.
    #[error("give {0} hexadecimal digits")]
    Malformed(usize),
    /// One byte over and over: nobody draws that by chance.
    #[error("the key is one byte over and over: draw one, like `openssl rand -hex 32`")]
    Trivial,
}

/// A permutation: numbers in, ids out, and back.
///
/// ```
/// use leaf_core::Tag;
/// use leaf_shape::keys::{MasterKey, Scramble, ScrambleDomain};
///
/// let master: MasterKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f".parse()?;
/// let orders = Tag::parse("orders")?;
/// let scramble = Scramble::new(ScrambleDomain::Digits10, &master, 1, &orders).ok_or("a version")?;
/// let id = scramble.id(1).ok_or("a number of the domain")?;
/// assert_eq!(id.get(), 1_341_139_393);
/// assert_eq!(scramble.number(id), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Scramble {
    domain: ScrambleDomain,
    version: u8,
    check: KeyCheck,
    permutation: Permutation,
}

/// A permutation of all numbers of `upper + lower` bits.
#[derive(Clone)]
struct Permutation {
    cipher: Aes128,
    /// How many bits the upper and the lower part have.
    upper: u32,
    lower: u32,
}

impl ScrambleDomain {
    /// All domains.
    pub const ALL: [Self; 3] = [Self::Bits63, Self::Bits53, Self::Digits10];

    /// Its name: `63`, `53`, `d10`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bits63 => "63",
            Self::Bits53 => "53",
            Self::Digits10 => "d10",
        }
    }

    /// The end of its numbers: they are 0 up to, but not including, this.
    #[must_use]
    pub const fn capacity(self) -> i64 {
        self.size().cast_signed()
    }

    /// The greatest version of a key.
    #[must_use]
    pub const fn max_version(self) -> u8 {
        match self {
            Self::Bits63 => 7,
            Self::Bits53 => 3,
            Self::Digits10 => 9,
        }
    }

    /// The version of the key that made an id; `None` for an id that no key of the domain makes.
    #[must_use]
    pub fn version_of(self, id: Id) -> Option<u8> {
        let version = u8::try_from(id.get() / self.capacity()).ok()?;
        (1..=self.max_version()).contains(&version).then_some(version)
    }

    const fn size(self) -> u64 {
        match self {
            Self::Bits63 => 1 << 60,
            Self::Bits53 => 1 << 51,
            Self::Digits10 => NINE_DIGITS,
        }
    }

    /// The fewest bits that hold the domain.
    const fn bits(self) -> u32 {
        (self.size() - 1).ilog2() + 1
    }
}

impl fmt::Display for ScrambleDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ScrambleDomain {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|domain| domain.name() == name);
        found.ok_or(UnknownName::new("give 63, 53 or d10"))
    }
}

impl FromStr for MasterKey {
    type Err = KeyError;

    /// Reads 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let key: [u8; 32] = read_hexadecimal(text).ok_or(KeyError::Malformed(64))?;
        match key.iter().all(|byte| *byte == key[0]) {
            true => Err(KeyError::Trivial),
            false => Ok(Self(key)),
        }
    }
}

/// Does not show the key, which is secret.
impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

impl FromStr for KeyCheck {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        read_hexadecimal(text).map(Self).ok_or(KeyError::Malformed(16))
    }
}

impl fmt::Display for KeyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyCheck({self})")
    }
}

fn read_hexadecimal<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

impl Scramble {
    /// The permutation of a tag with the key of this version; `None` where the domain has no such
    /// version.
    #[must_use]
    pub fn new(domain: ScrambleDomain, master: &MasterKey, version: u8, tag: &Tag) -> Option<Self> {
        if !(1..=domain.max_version()).contains(&version) {
            return None;
        }
        let mut derived = [0; 24];
        let kdf = Hkdf::<Sha256>::new(Some(b"leaf scramble 1"), &master.0);
        let purpose = format!("{tag}\n{domain}\n{version}");
        kdf.expand(purpose.as_bytes(), &mut derived).expect("one block of SHA-256 has 32 bytes");
        let (key, check) = derived.split_at(16);
        let key: [u8; 16] = key.try_into().expect("16 bytes");
        let check = KeyCheck(check.try_into().expect("8 bytes"));
        let permutation = Permutation::new(key, domain.bits());
        Some(Self { domain, version, check, permutation })
    }

    /// The version and the check value of the key.
    #[must_use]
    pub const fn key(&self) -> KeyId {
        KeyId { version: self.version, check: self.check }
    }

    /// The id of a number; `None` for one outside the domain.
    #[must_use]
    pub fn id(&self, number: i64) -> Option<Id> {
        let number = u64::try_from(number).ok().filter(|number| *number < self.domain.size())?;
        let mut permuted = self.permutation.permute(number);
        while permuted >= self.domain.size() {
            permuted = self.permutation.permute(permuted);
        }
        Some(self.place(permuted))
    }

    /// Fills `ids` with the ids of the numbers from `first` on, faster than one by one. Returns how
    /// many of these numbers are inside the domain; the rest of `ids` stays unchanged.
    pub fn ids(&self, first: i64, ids: &mut [Id]) -> usize {
        let Ok(first) = u64::try_from(first) else { return 0 };
        let room = self.domain.size().saturating_sub(first);
        let count = usize::try_from(room).map_or(ids.len(), |room| room.min(ids.len()));
        let mut from = first;
        for chunk in ids[..count].chunks_mut(AT_ONCE) {
            let mut values = [0; AT_ONCE];
            for (value, number) in values.iter_mut().zip(from..) {
                *value = number;
            }
            let values = &mut values[..chunk.len()];
            self.permutation.permute_all(values);
            for (id, mut permuted) in chunk.iter_mut().zip(values.iter().copied()) {
                while permuted >= self.domain.size() {
                    permuted = self.permutation.permute(permuted);
                }
                *id = self.place(permuted);
            }
            from += chunk.len() as u64;
        }
        count
    }

    /// The number of an id that this key made; `None` for an id of another version or domain. An id
    /// that was never issued has a number, too, which the counter has not reached.
    #[must_use]
    pub fn number(&self, id: Id) -> Option<i64> {
        let id = id.get().cast_unsigned();
        let start = self.place(0).get().cast_unsigned();
        let mut permuted =
            id.checked_sub(start).filter(|permuted| *permuted < self.domain.size())?;
        loop {
            permuted = self.permutation.invert(permuted);
            if permuted < self.domain.size() {
                return Some(permuted.cast_signed());
            }
        }
    }

    /// The id that holds the version and the permuted number.
    fn place(&self, permuted: u64) -> Id {
        let id = u64::from(self.version) * self.domain.size() + permuted;
        Id::new(id.cast_signed()).expect("every version of a domain ends below 2^63")
    }
}

/// Does not show the key, which is secret.
impl fmt::Debug for Scramble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scramble")
            .field("domain", &self.domain)
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}

impl Permutation {
    fn new(key: [u8; 16], bits: u32) -> Self {
        let lower = bits / 2;
        Self { cipher: Aes128::new(&key.into()), upper: bits - lower, lower }
    }

    fn permute(&self, value: u64) -> u64 {
        let (mut upper, mut lower) = self.split(value);
        for round in 0..ROUNDS {
            self.round(round, &mut upper, &mut lower);
        }
        upper << self.lower | lower
    }

    fn invert(&self, value: u64) -> u64 {
        let (mut upper, mut lower) = self.split(value);
        for round in (0..ROUNDS).rev() {
            self.round(round, &mut upper, &mut lower);
        }
        upper << self.lower | lower
    }

    const fn split(&self, value: u64) -> (u64, u64) {
        (value >> self.lower, value & mask(self.lower))
    }

    /// Changes one part by XOR with what the cipher makes of the other part: the upper part in even
    /// rounds, the lower part in odd rounds. The same round done twice changes nothing.
    fn round(&self, round: u8, upper: &mut u64, lower: &mut u64) {
        let (changed, other, bits) = match round % 2 {
            0 => (upper, lower, self.upper),
            _ => (lower, upper, self.lower),
        };
        let mut block = block(round, *other);
        self.cipher.encrypt_block(&mut block);
        *changed ^= first_bits(&block) & mask(bits);
    }

    /// Permutes several numbers, round by round: the cipher works on many blocks at once.
    fn permute_all(&self, values: &mut [u64]) {
        let mut blocks = [block(0, 0); AT_ONCE];
        let blocks = &mut blocks[..values.len()];
        for round in 0..ROUNDS {
            let even = round % 2 == 0;
            for (to, value) in blocks.iter_mut().zip(values.iter()) {
                let (upper, lower) = self.split(*value);
                *to = block(round, if even { lower } else { upper });
            }
            self.cipher.encrypt_blocks(blocks);
            for (value, block) in values.iter_mut().zip(blocks.iter()) {
                let bits = first_bits(block);
                *value ^= match even {
                    true => (bits & mask(self.upper)) << self.lower,
                    false => bits & mask(self.lower),
                };
            }
        }
    }
}

type Block = Array<u8, aes::cipher::consts::U16>;

/// The input of the cipher: the round in the first byte, the part in the last eight.
fn block(round: u8, part: u64) -> Block {
    let mut block = [0; 16];
    block[0] = round;
    block[8..].copy_from_slice(&part.to_be_bytes());
    block.into()
}

fn first_bits(block: &Block) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&block[..8]);
    u64::from_be_bytes(first)
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MASTER: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn scramble(domain: ScrambleDomain, version: u8, tag: &str) -> Scramble {
        let tag = Tag::parse(tag).unwrap();
        Scramble::new(domain, &MASTER.parse().unwrap(), version, &tag).unwrap()
    }

    /// Ids that were issued once must be found for ever, and by programs in other languages.
    /// `docs/scramble.py` made these.
    #[test]
    fn fixed_ids() {
        let fixed = [
            (
                ScrambleDomain::Bits63,
                1,
                "b0318dd8d90cd712 2088641292532915294 1420783051479186980 1317535558994094144",
            ),
            (
                ScrambleDomain::Bits53,
                3,
                "32babaaf9c1d240d 7363299335517908 8511907835198880 8442496571878414",
            ),
            (ScrambleDomain::Digits10, 9, "3360d0e037733247 9159462733 9312025542 9404863105"),
        ];
        for (domain, version, expected) in fixed {
            let scramble = scramble(domain, version, "orders");
            let ids = [0, 1, domain.capacity() - 1].map(|n| scramble.id(n).unwrap().to_string());
            assert_eq!(format!("{} {}", scramble.key().check, ids.join(" ")), expected, "{domain}");
        }
    }

    /// Every number of a small domain has an id of its own, for odd and for even numbers of bits.
    #[test]
    fn a_small_domain_is_permuted_whole() {
        for bits in [1, 2, 7, 19, 20] {
            let permutation = Permutation::new([7; 16], bits);
            let mut seen = vec![false; 1 << bits];
            for value in 0..1u64 << bits {
                let permuted = permutation.permute(value);
                assert_eq!(permutation.invert(permuted), value);
                assert!(!std::mem::replace(&mut seen[permuted as usize], true), "{value}");
            }
            assert!(bits < 19 || permutation.permute(1) != 1);
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back_and_batches_are_the_same(
            domain in prop::sample::select(ScrambleDomain::ALL.to_vec()),
            at in any::<u64>(), count in 1usize..100,
        ) {
            let scramble = scramble(domain, domain.max_version(), "orders");
            let first = (at % domain.size()).cast_signed();
            let mut ids = vec![Id::MAX; count];
            let made = scramble.ids(first, &mut ids);
            prop_assert_eq!(made, count.min(usize::try_from(domain.capacity() - first).unwrap()));
            for (number, id) in (first..).zip(&ids[..made]) {
                prop_assert_eq!(scramble.id(number), Some(*id));
                prop_assert_eq!(scramble.number(*id), Some(number));
            }
            prop_assert!(ids[made..].iter().all(|id| *id == Id::MAX));
        }
    }

    #[test]
    fn what_is_outside_is_refused() {
        for domain in ScrambleDomain::ALL {
            let (one, two) = (scramble(domain, 1, "orders"), scramble(domain, 2, "orders"));
            assert_eq!((one.id(-1), one.id(domain.capacity())), (None, None));
            let (first, second) = (one.id(5).unwrap(), two.id(5).unwrap());
            assert_eq!((two.number(first), one.number(second)), (None, None), "another version");
            assert_ne!(first, scramble(domain, 1, "chat").id(5).unwrap(), "another tag");
            let master = MASTER.parse().unwrap();
            for version in [0, domain.max_version() + 1] {
                assert!(
                    Scramble::new(domain, &master, version, &Tag::parse("a").unwrap()).is_none()
                );
            }
        }
    }

    #[test]
    fn a_key_is_64_digits_and_never_told() {
        for bad in ["", "00", &MASTER[1..], &format!("{MASTER}0"), &MASTER.replace('f', "g")] {
            assert_eq!(bad.parse::<MasterKey>().unwrap_err(), KeyError::Malformed(64), "{bad}");
        }
        let zeros = "00".repeat(32).parse::<MasterKey>().unwrap_err();
        assert_eq!(zeros, KeyError::Trivial);
        let told = format!(
            "{:?} {:?}",
            MASTER.parse::<MasterKey>(),
            scramble(ScrambleDomain::Bits53, 1, "a")
        );
        assert!(!told.contains("0001") && !told.contains("[0, 1"), "{told}");
        let check = scramble(ScrambleDomain::Bits53, 1, "a").key().check;
        assert_eq!(check.to_string().parse(), Ok(check));
    }
}
