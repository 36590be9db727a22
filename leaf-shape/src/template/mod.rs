//! Texts of ids by a template: `ORD-{date:%y%m%d}{n:06}{luhn}`.
//!
//! Invariant: one-to-one. Two numbers never have the same text (with their dates, where the
//! template has one), and a text is read only if it is exactly what its number and date are written
//! as. So everything but an unpadded number has a fixed length, and a number that does not fit its
//! width has no text: it is never written longer.

mod check_digits;
mod parse;
#[cfg(test)]
mod tests;

use std::fmt;

use thiserror::Error;

use self::check_digits::{luhn, mod_37, mod_97};
use crate::IdText;

/// The most characters of a text.
const LONGEST: usize = IdText::CAPACITY;
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

/// The form in which the numbers of a tag are written as texts.
///
/// ```
/// use leaf_shape::{Day, Template};
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

/// Why a template is refused, or why a text does not fit it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// The template cannot be read.
    #[error("the template has {0}")]
    Unknown(String),
    /// A text would not determine its number: the template must have the number exactly once.
    #[error("the template must have the number exactly once, like {{n:06}}")]
    NotOneNumber,
    /// The template has check digits before the number, or more than once. They cover only what is
    /// before them.
    #[error("the template must have its check digits behind the number, and once")]
    BadCheck,
    /// These check digits would not detect every altered character in texts of this template.
    #[error("{0}")]
    Unchecked(&'static str),
    /// The template makes texts that are too long.
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
    /// Whether the Gregorian calendar has this day, in the years 0 to 9999.
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
    /// The end of the numbers that have a text: they are 0 up to, but not including, this.
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

    /// Whether the template contains a year (of two or four digits), whether a month, and whether a
    /// day.
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

    /// The text of a number. `None` if the number does not fit its width, or if the template has a
    /// two-digit year and `day` is not in 2000 to 2099. Without a date in the template, `day` is
    /// ignored.
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

    /// The number of a text, and its day where the template has a year; a month or a day that the
    /// template does not have is 1.
    ///
    /// # Errors
    /// [`TemplateError::OtherText`], or [`TemplateError::Altered`] where only the check digits are
    /// wrong.
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

    /// Takes a text apart into number and day; check digits are not verified.
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

    /// Refuses a template whose texts would be ambiguous, insufficiently checked or too long.
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
            // Each kind of check digits finds every altered character only in texts of the kind
            // that it is made for.
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
