//! A layout as text: a preset's name, or the split itself.
//!
//! `t41-d5-w5-s12/1ms` reads: 41 bits of timestamp, 5 of datacenter, 5 of worker, 12 of sequence, a
//! tick of 1 ms; units are `1ms`, `10ms`, `1s`. The epoch is no part of the text.

use std::fmt;
use std::str::FromStr;

use super::{Field, Layout, LayoutError, Unit};

const PRESETS: [(&str, Layout); 5] = [
    ("leaf", Layout::LEAF),
    ("twitter", Layout::TWITTER),
    ("sonyflake", Layout::SONYFLAKE),
    ("uid-generator", Layout::UID_GENERATOR),
    ("javascript", Layout::JAVASCRIPT),
];

impl Layout {
    /// The position and width of the fields and the tick as text, like `t41-w10-s12/1ms`, without
    /// the preset's name, the datacenter and the epoch. Fence records hold it, so that a node with
    /// another layout for the same worker id is noticed.
    #[must_use]
    pub fn shape(self) -> String {
        let nameless = Self { datacenter_bits: 0, ..self };
        format!("{}/{}ms", nameless.split(), self.unit.millis())
    }

    fn split(self) -> String {
        let datacenter = self.datacenter_bits;
        let part = |(field, bits): (Field, u32)| match field {
            Field::Timestamp => format!("t{bits}"),
            Field::Worker if datacenter > 0 => format!("d{datacenter}-w{}", bits - datacenter),
            Field::Worker => format!("w{bits}"),
            Field::Sequence => format!("s{bits}"),
        };
        self.fields.map(part).join("-")
    }
}

/// Writes the preset's name if the layout is a preset, with any epoch; else the split.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = |preset: &Self| preset.with_epoch(self.epoch) == *self;
        match PRESETS.iter().find(|(_, preset)| same(preset)) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}/{}ms", self.split(), self.unit.millis()),
        }
    }
}

/// Reads a preset's name or a split. A split counts from Leaf's epoch.
///
/// ```
/// use leaf_core::{Field, Layout};
///
/// let layout: Layout = "t39-s8-w16/10ms".parse()?;
/// assert_eq!(layout.bits(Field::Worker), 16);
/// assert_eq!("sonyflake".parse(), Ok(Layout::SONYFLAKE));
/// # Ok::<(), leaf_core::LayoutError>(())
/// ```
impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        if let Some((_, preset)) = PRESETS.iter().find(|(name, _)| *name == text) {
            return Ok(*preset);
        }
        let (split, unit) = text.split_once('/').ok_or(LayoutError::Syntax)?;
        let unit = match unit {
            "1ms" => Unit::Millisecond,
            "10ms" => Unit::Centisecond,
            "1s" | "1000ms" => Unit::Second,
            _ => return Err(LayoutError::Syntax),
        };
        let mut fields = Vec::with_capacity(3);
        let mut datacenter = None;
        for part in split.split('-') {
            let (field, bits) = read_part(part).ok_or(LayoutError::Syntax)?;
            match field {
                // The datacenter is the upper part of the worker that must follow.
                None if datacenter.is_none() && !has_worker(&fields) => datacenter = Some(bits),
                Some(Field::Worker) => fields.push((Field::Worker, bits + datacenter.unwrap_or(0))),
                Some(field) if has_worker(&fields) || datacenter.is_none() => {
                    fields.push((field, bits));
                }
                _ => return Err(LayoutError::Syntax),
            }
        }
        let fields = fields.try_into().map_err(|_| LayoutError::FieldMissing)?;
        let layout = Self::new(fields, unit, Self::LEAF.epoch)?;
        layout.with_datacenter_bits(datacenter.unwrap_or(0))
    }
}

fn has_worker(fields: &[(Field, u32)]) -> bool {
    fields.iter().any(|(field, _)| *field == Field::Worker)
}

/// Parses a part like `w10` into its field and width. The field is `None` for the datacenter
/// (`d5`). Returns `None` if the text is no part.
fn read_part(part: &str) -> Option<(Option<Field>, u32)> {
    let mut chars = part.chars();
    let field = match chars.next()? {
        't' => Some(Field::Timestamp),
        'w' => Some(Field::Worker),
        's' => Some(Field::Sequence),
        'd' => None,
        _ => return None,
    };
    let digits = chars.as_str();
    let plain = (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    Some((field, plain.then(|| digits.parse().ok())??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back() {
        for (name, preset) in PRESETS {
            assert_eq!(preset.to_string(), name);
            assert_eq!(name.parse(), Ok(preset));
        }
        for text in
            ["t40-w3-s20/1ms", "t41-d3-w7-s12/1ms", "d1-w1-t31-s9/1000ms", "t39-s8-w15/10ms"]
        {
            assert_eq!(text.parse::<Layout>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_shape_is_without_names() {
        assert_eq!(Layout::TWITTER.shape(), Layout::LEAF.shape());
        assert_eq!(Layout::SONYFLAKE.shape(), "t39-s8-w16/10ms");
        assert_eq!(Layout::UID_GENERATOR.shape(), "t28-w22-s13/1000ms");
    }

    #[test]
    fn what_is_no_layout_is_refused() {
        for text in [
            "",
            "LEAF",
            "t41-w10-s12",
            "t41-w10-s12/2ms",
            "t41-w10-s/1ms",
            "t41-w+1-s12/1ms",
            "t41-x10-s12/1ms",
            "d5-t41-w5-s12/1ms",
            "t41-d2-d3-w5-s12/1ms",
            "t41-w10-s12-d3/1ms",
            "t41-w10-d5-s12/1ms",
            "t041-w10-s12/1ms",
        ] {
            assert_eq!(text.parse::<Layout>(), Err(LayoutError::Syntax), "{text}");
        }
        assert_eq!("t41-w10/1ms".parse::<Layout>(), Err(LayoutError::FieldMissing));
        assert_eq!("t41-d5-s12-s3/1ms".parse::<Layout>(), Err(LayoutError::Syntax));
        assert_eq!("t42-w10-s12/1ms".parse::<Layout>(), Err(LayoutError::TooWide { sum: 64 }));
        assert!("t41-d10-w0-s12/1ms".parse::<Layout>().is_err());
    }
}
