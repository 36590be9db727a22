//! Texts of ids by a template: `ORD-{date:%y%m%d}{n:06}{luhn}`.
//!
//! Invariant: one-to-one. Two numbers never have the same text (with their dates, where the template has one), and a text
//! is read only if it is exactly what its number and date are written as. So everything but an unpadded number has a
//! fixed length, and a number that does not fit its width has no text: never a longer one.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::IdText;

/// The most characters of a text.
const LONGEST: usize = IdText::CAPACITY;
/// The most characters of a template.
const LONGEST_TEMPLATE: usize = 200;
const BASE_62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Crockford's alphabet: no I, L, O, U (<https://www.crockford.com/base32.html>).
pub(crate) const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// A day of the Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day {
    /// 0 to 9999.
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
}

/// How the numbers of a tag are written.
///
/// ```
/// use leaf_core::{Day, Template};
///
/// let template: Template = "ORD-{date:%y%m%d}{n:06}{luhn}".parse()?;
/// let day = Day { year: 2026, month: 11, day: 21 };
/// let text = template.write(17, day).ok_or("a number of six digits")?;
/// assert_eq!(text.as_str(), "ORD-2611210000172");
/// assert_eq!(template.read(text.as_str())?, (17, Some(day)));
/// assert!(template.read("ORD-2611210000182").is_err(), "the check digit tells");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Number { base: Base, width: Option<u8> },
    Date(DatePart),
    Luhn,
    Mod97,
    Mod37,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    Decimal,
    B36,
    B62,
    Crockford,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DatePart {
    Year,
    ShortYear,
    Month,
    Day,
}

/// A template that is refused, or a text that is not of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// It cannot be read.
    #[error("the template has {0}")]
    Unknown(String),
    /// A text would not tell its number.
    #[error("the template must have the number exactly once, like {{n:06}}")]
    NotOneNumber,
    /// A check digit must see what is before it, and the number must be before it.
    #[error("the template must have its check digits behind the number, and once")]
    BadCheck,
    /// The check digits do not see all characters of such texts.
    #[error("{0}")]
    Unchecked(&'static str),
    /// Its texts are too long.
    #[error("the template makes texts of up to {0} characters: at most {LONGEST}")]
    TooLong(usize),
    /// Not a text of this template.
    #[error("the text is not of the tag's template {0}")]
    OtherText(String),
    /// A text of this template with a character changed.
    #[error("the check digits of the text are wrong: a character of it was altered")]
    Altered,
}

impl Day {
    /// Whether the calendar has it.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        let leap = self.year.is_multiple_of(4)
            && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400));
        let days = match self.month {
            1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
            4 | 6 | 9 | 11 => 30,
            2 if leap => 29,
            2 => 28,
            _ => 0,
        };
        self.year <= 9999 && 1 <= self.day && self.day <= days
    }
}

impl Base {
    const fn alphabet(self) -> &'static [u8] {
        match self {
            Self::Decimal => b"0123456789",
            Self::B36 => BASE_62.split_at(36).0,
            Self::B62 => BASE_62,
            Self::Crockford => CROCKFORD,
        }
    }

    /// How many digits the greatest id has.
    const fn most_digits(self) -> usize {
        match self {
            Self::Decimal => 19,
            Self::B36 | Self::Crockford => 13,
            Self::B62 => 11,
        }
    }
}

impl Template {
    /// The numbers that have a text: 0 up to, and without, this.
    #[must_use]
    pub fn capacity(&self) -> i64 {
        let (base, width) = self.number();
        let base = base.alphabet().len() as i64;
        width.and_then(|width| base.checked_pow(u32::from(width))).unwrap_or(i64::MAX)
    }

    /// How many characters the number has; `None` where it has as many as it needs.
    #[must_use]
    pub fn width(&self) -> Option<u8> {
        self.number().1
    }

    /// Whether its texts have a year, a month, a day.
    #[must_use]
    pub fn date_parts(&self) -> (bool, bool, bool) {
        let has = |wanted: &[DatePart]| {
            self.parts.iter().any(|part| matches!(part, Part::Date(date) if wanted.contains(date)))
        };
        (
            has(&[DatePart::Year, DatePart::ShortYear]),
            has(&[DatePart::Month]),
            has(&[DatePart::Day]),
        )
    }

    /// The text of a number; `None` where the number does not fit its width, or the day its two digits of the year
    /// (2000 to 2099). `day` is not looked at where the template has no date.
    #[must_use]
    pub fn write(&self, number: i64, day: Day) -> Option<IdText> {
        if self.width().is_some() && number >= self.capacity() {
            return None;
        }
        let mut number = u64::try_from(number).ok()?;
        let mut text = IdText::default();
        for part in &self.parts {
            match part {
                Part::Literal(literal) => text.push(literal.as_bytes()),
                Part::Number { base, width } => {
                    let alphabet = base.alphabet();
                    let size = alphabet.len() as u64;
                    let mut digits = [alphabet[0]; 19];
                    let mut start = digits.len();
                    while number > 0 {
                        start -= 1;
                        digits[start] = alphabet[(number % size) as usize];
                        number /= size;
                    }
                    let least = usize::from(width.unwrap_or(1));
                    text.push(&digits[start.min(digits.len() - least)..]);
                }
                Part::Date(DatePart::Year) => text.push_decimal(u32::from(day.year), 4),
                Part::Date(DatePart::ShortYear) => {
                    let year = day.year.checked_sub(2000).filter(|year| *year < 100)?;
                    text.push_decimal(u32::from(year), 2);
                }
                Part::Date(DatePart::Month) => text.push_decimal(u32::from(day.month), 2),
                Part::Date(DatePart::Day) => text.push_decimal(u32::from(day.day), 2),
                Part::Luhn => text.push_decimal(luhn(text.as_str()), 1),
                Part::Mod97 => text.push_decimal(mod_97(text.as_str()), 2),
                Part::Mod37 => text.push(&[mod_37(text.as_str())]),
            }
        }
        Some(text)
    }

    /// The number of a text, and its day where the template has a year; a month or a day that the template does not have
    /// is 1.
    ///
    /// # Errors
    /// [`TemplateError::OtherText`], or [`TemplateError::Altered`] where only the check digits are wrong.
    pub fn read(&self, text: &str) -> Result<(i64, Option<Day>), TemplateError> {
        let (number, day) =
            self.parse(text).ok_or_else(|| TemplateError::OtherText(self.text.clone()))?;
        let (year, ..) = self.date_parts();
        let written = self.write(number, day);
        let checked = self.parts.iter().any(Part::is_check);
        match written.is_some_and(|written| written.as_str() == text) {
            true => Ok((number, year.then_some(day))),
            false if checked => Err(TemplateError::Altered),
            false => Err(TemplateError::OtherText(self.text.clone())),
        }
    }

    /// The parts of a text, except that check digits may be wrong.
    fn parse(&self, text: &str) -> Option<(i64, Day)> {
        if !text.is_ascii() {
            return None;
        }
        let rest = text.len().checked_sub(self.fixed_length())?;
        let mut day = Day { year: 2000, month: 1, day: 1 };
        let mut number = 0i64;
        let mut at = 0;
        for part in &self.parts {
            let length = match part {
                Part::Number { width: None, .. } => rest,
                part => part.length(),
            };
            let piece = text.get(at..at + length)?;
            at += length;
            match part {
                Part::Literal(literal) => (piece == literal).then_some(())?,
                Part::Number { base, width } => {
                    let alphabet = base.alphabet();
                    // A zero in front would be another text of the same number.
                    let padded =
                        width.is_none() && length > 1 && piece.as_bytes()[0] == alphabet[0];
                    if length == 0 || padded {
                        return None;
                    }
                    for byte in piece.bytes() {
                        let digit = alphabet.iter().position(|digit| *digit == byte)?;
                        number =
                            number.checked_mul(alphabet.len() as i64)?.checked_add(digit as i64)?;
                    }
                }
                Part::Date(date) => {
                    let value: u16 =
                        piece.bytes().all(|b| b.is_ascii_digit()).then(|| piece.parse().ok())??;
                    match date {
                        DatePart::Year => day.year = value,
                        DatePart::ShortYear => day.year = 2000 + value,
                        DatePart::Month => day.month = u8::try_from(value).ok()?,
                        DatePart::Day => day.day = u8::try_from(value).ok()?,
                    }
                }
                Part::Mod37 => {
                    let alphabet = Base::B36.alphabet();
                    piece.bytes().all(|b| alphabet.contains(&b)).then_some(())?;
                }
                Part::Luhn | Part::Mod97 => {
                    piece.bytes().all(|b| b.is_ascii_digit()).then_some(())?
                }
            }
        }
        (at == text.len() && day.is_valid()).then_some((number, day))
    }

    fn number(&self) -> (Base, Option<u8>) {
        let number = self.parts.iter().find_map(|part| match part {
            Part::Number { base, width } => Some((*base, *width)),
            _ => None,
        });
        number.expect("a template has a number")
    }

    /// How many characters its texts have, without those of an unpadded number.
    fn fixed_length(&self) -> usize {
        self.parts.iter().map(Part::length).sum()
    }

    /// Whether a text tells its number, whichever characters it has.
    fn check(&self) -> Result<(), TemplateError> {
        let is_number = |part: &Part| matches!(part, Part::Number { .. });
        let mut numbers = self.parts.iter().filter(|part| is_number(part));
        let (Some(Part::Number { base, .. }), None) = (numbers.next(), numbers.next()) else {
            return Err(TemplateError::NotOneNumber);
        };
        let number = self.parts.iter().position(is_number);
        let mut checks = self.parts.iter().enumerate().filter(|(_, part)| part.is_check());
        match (checks.next(), checks.next()) {
            (None, _) => {}
            // Each finds every single altered character only of the texts that it is made for.
            (Some((at, part)), None) if Some(at) > number => match (part, base) {
                (_, Base::Decimal) | (Part::Mod37, Base::B36 | Base::Crockford) => {}
                (Part::Mod37, _) => {
                    return Err(TemplateError::Unchecked(
                        "{mod37} takes capitals and small letters for the same: write the number in b36 or c32",
                    ));
                }
                _ => {
                    return Err(TemplateError::Unchecked(
                        "{luhn} and {mod97} check decimal digits: write the number as {n} or {n:06}, or use {mod37}",
                    ));
                }
            },
            _ => return Err(TemplateError::BadCheck),
        }
        let unpadded = self.width().map_or(base.most_digits(), |_| 0);
        match self.fixed_length() + unpadded {
            length if length > LONGEST => Err(TemplateError::TooLong(length)),
            _ => Ok(()),
        }
    }
}

impl Part {
    const fn is_check(&self) -> bool {
        matches!(self, Self::Luhn | Self::Mod97 | Self::Mod37)
    }

    /// How many characters it has; 0 for an unpadded number.
    fn length(&self) -> usize {
        match self {
            Self::Literal(literal) => literal.len(),
            Self::Number { width, .. } => usize::from(width.unwrap_or(0)),
            Self::Date(DatePart::Year) => 4,
            Self::Date(_) | Self::Mod97 => 2,
            Self::Luhn | Self::Mod37 => 1,
        }
    }
}

/// The check digit of ISO/IEC 7812 over the decimal digits of a text; other characters are passed over.
fn luhn(text: &str) -> u32 {
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

/// The two check digits of ISO/IEC 7064 MOD 97-10 over the digits and letters of a text (A is 10, Z is 35, as in an
/// IBAN); other characters are passed over.
fn mod_97(text: &str) -> u32 {
    let append = |sum: u32, byte: u8| match byte {
        b'0'..=b'9' => (sum * 10 + u32::from(byte - b'0')) % 97,
        b'A'..=b'Z' => (sum * 100 + u32::from(byte - b'A') + 10) % 97,
        b'a'..=b'z' => (sum * 100 + u32::from(byte - b'a') + 10) % 97,
        _ => sum,
    };
    98 - text.bytes().fold(0, append) * 100 % 97
}

/// The check character of ISO/IEC 7064 MOD 37,36 over the digits and letters of a text; other characters are passed over.
fn mod_37(text: &str) -> u8 {
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

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let unknown = |what: String| Err(TemplateError::Unknown(what));
        if text.len() > LONGEST_TEMPLATE {
            return unknown(format!("more than {LONGEST_TEMPLATE} characters"));
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let doubled = rest.starts_with("{{") || rest.starts_with("}}");
            match first {
                '{' if !doubled => {
                    let Some(end) = rest.find('}') else {
                        return unknown("a { without its }: write {{ for the character".into());
                    };
                    if !literal.is_empty() {
                        parts.push(Part::Literal(std::mem::take(&mut literal)));
                    }
                    read_part(&rest[1..end], &mut parts)?;
                    rest = &rest[end + 1..];
                    continue;
                }
                '}' if !doubled => {
                    return unknown("a } without its {: write }} for the character".into());
                }
                '"' | '\\' => {
                    return unknown(
                        "a quotation mark or a backslash, which JSON would escape".into(),
                    );
                }
                '!'..='~' => literal.push(first),
                _ => return unknown("a character that is not printable ASCII, or a blank".into()),
            }
            rest = &rest[if doubled { 2 } else { 1 }..];
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        let template = Self { text: text.into(), parts };
        template.check()?;
        Ok(template)
    }
}

/// Reads what stands between braces.
fn read_part(part: &str, to: &mut Vec<Part>) -> Result<(), TemplateError> {
    let unknown = || {
        TemplateError::Unknown(format!(
            "{{{part}}}, which is none of {{n}}, {{n:06}}, {{n:b36:8}}, {{n:b62}}, {{n:c32}}, {{date:%Y%m%d}}, {{luhn}}, {{mod97}}, {{mod37}}"
        ))
    };
    let (name, options) = part.split_once(':').unwrap_or((part, ""));
    match (name, options) {
        ("luhn", "") => to.push(Part::Luhn),
        ("mod97", "") => to.push(Part::Mod97),
        ("mod37", "") => to.push(Part::Mod37),
        ("date", format) if !format.is_empty() => {
            let mut rest = format;
            while !rest.is_empty() {
                let date = match rest.as_bytes() {
                    [b'%', b'Y', ..] => Part::Date(DatePart::Year),
                    [b'%', b'y', ..] => Part::Date(DatePart::ShortYear),
                    [b'%', b'm', ..] => Part::Date(DatePart::Month),
                    [b'%', b'd', ..] => Part::Date(DatePart::Day),
                    [byte @ (b'-' | b'.' | b'/' | b'_'), ..] => {
                        to.push(Part::Literal(char::from(*byte).into()));
                        rest = &rest[1..];
                        continue;
                    }
                    _ => return Err(unknown()),
                };
                to.push(date);
                rest = &rest[2..];
            }
        }
        ("n", options) => {
            let (base, width) = match options.split_once(':') {
                Some((base, width)) => (base, width),
                None if options.starts_with('0') => ("", &options[1..]),
                None => (options, ""),
            };
            let base = match base {
                "" => Base::Decimal,
                "b36" => Base::B36,
                "b62" => Base::B62,
                "c32" => Base::Crockford,
                _ => return Err(unknown()),
            };
            let digits = width.bytes().all(|byte| byte.is_ascii_digit());
            let most = base.most_digits();
            let width = match (width, width.parse::<u8>()) {
                ("", _) if !options.ends_with(':') && options != "0" => None,
                (_, Ok(width)) if digits && (1..=most).contains(&usize::from(width)) => Some(width),
                _ => return Err(unknown()),
            };
            to.push(Part::Number { base, width });
        }
        _ => return Err(unknown()),
    }
    Ok(())
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({:?})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: Day = Day { year: 2026, month: 11, day: 21 };

    fn template(text: &str) -> Template {
        text.parse().unwrap()
    }

    /// Texts that were written once must be read for ever.
    #[test]
    fn fixed_texts() {
        for (form, number, expected) in [
            ("{n}", 0, "0"),
            ("{n}", i64::MAX, "9223372036854775807"),
            ("{n:06}", 17, "000017"),
            ("{n:b62}", i64::MAX, "AzL8n0Y58m7"),
            ("{n:b36:8}", 1_000_000, "0000LFLS"),
            ("{n:c32}", 1234, "16J"),
            ("R{{{n}}}", 7, "R{7}"),
            ("ORD-{date:%Y-%m-%d}/{n:04}", 7, "ORD-2026-11-21/0007"),
            // The worked examples of the standards, and of the Global Release Identifier.
            ("{n}{luhn}", 7_992_739_871, "79927398713"),
            ("{n}{mod97}", 794, "79444"),
            ("A1-2425G-ABC{n:07}-{mod37}", 1_234_002, "A1-2425G-ABC1234002-M"),
        ] {
            let template = template(form);
            let text = template.write(number, DAY).unwrap();
            assert_eq!(text.as_str(), expected);
            assert_eq!(template.read(expected).unwrap().0, number, "{expected}");
        }
    }

    #[test]
    fn what_tells_no_number_is_refused() {
        for (bad, why) in [
            ("", "exactly once"),
            ("ORD", "exactly once"),
            ("{n}{n}", "exactly once"),
            ("{luhn}{n}", "behind the number"),
            ("{n}{luhn}{mod97}", "behind the number"),
            ("{n:b36}{luhn}", "decimal digits"),
            ("{n:b36}{mod97}", "decimal digits"),
            ("{n:b62}{mod37}", "capitals"),
            ("{n:7}", "none of"),
            ("{n:0}", "none of"),
            ("{n:020}", "none of"),
            ("{n:b36:14}", "none of"),
            ("{n:b36:}", "none of"),
            ("{n:b16}", "none of"),
            ("{date:%H}{n}", "none of"),
            ("{date}{n}", "none of"),
            ("{N}", "none of"),
            ("{n", "without its }"),
            ("}{n}", "without its {"),
            ("ä{n}", "ASCII"),
            ("a {n}", "blank"),
            ("a\"{n}", "quotation mark"),
            ("a\\{n}", "backslash"),
            ("{n}-----------------------------------------------------", "up to 72"),
        ] {
            let error = bad.parse::<Template>().unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
        assert!(format!("{{n}}{}", "{date:%d}".repeat(40)).parse::<Template>().is_err());
    }

    #[test]
    fn a_number_that_does_not_fit_has_no_text() {
        let padded = template("{n:06}");
        assert_eq!(padded.capacity(), 1_000_000);
        assert!(padded.write(999_999, DAY).is_some());
        assert_eq!((padded.write(1_000_000, DAY), padded.write(-1, DAY)), (None, None));
        let short = template("{date:%y}{n}");
        assert!(short.write(1, Day { year: 2100, ..DAY }).is_none());
    }

    #[test]
    fn only_the_exact_text_is_read() {
        let template = template("A{date:%y%m%d}-{n:c32}{mod37}");
        let text = template.write(4711, DAY).unwrap();
        assert_eq!(template.read(text.as_str()), Ok((4711, Some(DAY))));
        for other in [
            "",
            "A",
            "B261121-4K711",
            "A261131-4K711",
            "A261121-04K711",
            "A261121-4k711",
            "A261121--4K711",
        ] {
            assert!(template.read(other).is_err(), "{other}");
        }
    }

    const FORMS: [&str; 6] = [
        "{n}",
        "ORD-{date:%y%m%d}{n:06}{luhn}",
        "{n:b62}",
        "X{n:b36:9}{mod37}",
        "{date:%Y}.{n:c32}{mod37}-Z",
        "{n:012}{luhn}",
    ];

    proptest! {
        #[test]
        fn every_text_is_read_back_and_no_other(
            form in 0..FORMS.len(), number in 0i64..=i64::MAX, year in 2000u16..2100, month in 1u8..13, day in 1u8..29,
        ) {
            let template = template(FORMS[form]);
            let number = number % template.capacity();
            let day = Day { year, month, day };
            let text = template.write(number, day).unwrap();
            let (read, read_day) = template.read(text.as_str()).unwrap();
            prop_assert_eq!(read, number);
            if template.date_parts() == (true, true, true) {
                prop_assert_eq!(read_day, Some(day));
            }
        }

        /// A check digit finds every single altered character.
        #[test]
        fn one_altered_character_is_found(
            form in prop::sample::select(vec![1usize, 3, 4, 5]), number in 0i64..1_000_000, place in 0usize..64, byte in 0x21u8..0x7f,
        ) {
            let template = template(FORMS[form]);
            let text = template.write(number, DAY).unwrap();
            let mut bytes = text.as_str().as_bytes().to_vec();
            let place = place % bytes.len();
            prop_assume!(bytes[place] != byte);
            bytes[place] = byte;
            let altered = String::from_utf8(bytes).unwrap();
            prop_assert!(template.read(&altered).is_err(), "{} for {}", altered, text);
        }

        #[test]
        fn anything_else_is_refused_without_a_panic(form in "\\PC{0,30}", text in "\\PC{0,30}") {
            if let Ok(template) = form.parse::<Template>() {
                let _ = template.read(&text);
            }
            for form in FORMS {
                if let Ok((number, day)) = template(form).read(&text) {
                    let again = template(form).write(number, day.unwrap_or(DAY));
                    prop_assert_eq!(again.unwrap().to_string(), text.clone());
                }
            }
        }

        #[test]
        fn padded_texts_sort_like_their_numbers(one in 0i64..1_000_000, other in 0i64..1_000_000) {
            for form in ["{n:06}", "{n:b36:5}", "{n:b62:5}", "{n:c32:5}"] {
                let write = |n| template(form).write(n, DAY).unwrap().to_string();
                prop_assert_eq!(write(one).cmp(&write(other)), one.cmp(&other));
            }
        }
    }
}
