//! The check digits of a text.

use super::Base;

/// The check digit of ISO/IEC 7812 over the decimal digits of a text; other characters are passed
/// over.
pub(super) fn luhn(text: &str) -> u32 {
    let digits = text.bytes().rev().filter(u8::is_ascii_digit);
    let sum: u32 = digits
        .enumerate()
        .map(|(at, byte)| {
            let digit = u32::from(byte - b'0') << (1 - at % 2);
            digit / 10 + digit % 10
        })
        .sum();
    (10 - sum % 10) % 10
}

/// The two check digits of ISO/IEC 7064 MOD 97-10 over the digits and letters of a text (A is 10, Z
/// is 35, as in an IBAN); other characters are passed over.
pub(super) fn mod_97(text: &str) -> u32 {
    let append = |sum: u32, byte: u8| match byte {
        b'0'..=b'9' => (sum * 10 + u32::from(byte - b'0')) % 97,
        b'A'..=b'Z' => (sum * 100 + u32::from(byte - b'A') + 10) % 97,
        b'a'..=b'z' => (sum * 100 + u32::from(byte - b'a') + 10) % 97,
        _ => sum,
    };
    98 - text.bytes().fold(0, append) * 100 % 97
}

/// The check character of ISO/IEC 7064 MOD 37,36 over the digits and letters of a text; other
/// characters are passed over.
pub(super) fn mod_37(text: &str) -> u8 {
    let value = |byte: u8| match byte.to_ascii_uppercase() {
        digit @ b'0'..=b'9' => Some(u32::from(digit - b'0')),
        letter @ b'A'..=b'Z' => Some(u32::from(letter - b'A') + 10),
        _ => None,
    };
    let product = text.bytes().filter_map(value).fold(36, |product, value| {
        let sum = (product + value) % 36;
        (if sum == 0 { 36 } else { sum }) * 2 % 37
    });
    Base::B36.alphabet()[((37 - product) % 36) as usize]
}
