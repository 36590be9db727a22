//! Parses templates.

use std::str::FromStr;

use super::{Base, DatePart, Part, Template, TemplateError};

/// The most characters of a template.
const LONGEST_TEMPLATE: usize = 200;

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

/// Reads the text between two braces, and adds its parts to `to`.
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
