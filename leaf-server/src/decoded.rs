//! Decodes snowflake ids, for every protocol.
//!
//! Decoding needs the layout only: neither a worker id nor a registry. What is decoded is not
//! proven to have been issued.

use jiff::Timestamp;
use leaf_core::{Id, Parts};
use leaf_shape::{TextForm, TextFormError};
use serde::Serialize;

use crate::node::Node;
use crate::refusal::Reason;

/// Why a text is no id of this node's layout.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    /// The text is not an id in digits, or has bits that the layout does not use. The field is the
    /// end of a sentence that begins with "the id".
    #[error("the id {0}")]
    Number(&'static str),
    /// The text is in a [`TextForm`], and is no id of the layout.
    #[error("{0}")]
    Form(#[from] TextFormError),
}

impl DecodeError {
    /// The reason for refusing a request to decode the text.
    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::Number(_) => Reason::BadRequest,
            Self::Form(_) => Reason::NoSuchId,
        }
    }
}

/// The parts of a snowflake id, in their JSON form.
///
/// Numbers of 64 bits are strings: JSON readers in JavaScript make doubles of numbers, which lose
/// the last digits.
#[derive(Debug, Serialize)]
pub(crate) struct Decoded {
    /// The id in decimal digits, whatever form it was given in.
    pub(crate) id: String,
    /// The start of the id's tick, Unix milliseconds.
    pub(crate) timestamp_ms: String,
    /// The timestamp as a date and a time of day in the configured time zone; `None` beyond the
    /// calendar's end.
    pub(crate) time: Option<String>,
    /// The data centre, in a layout that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datacenter: Option<u32>,
    /// The worker id; within the data centre where there is one.
    pub(crate) worker: u32,
    /// The number within the tick.
    pub(crate) sequence: u64,
}

impl Decoded {
    /// Decodes an id that is written in `form`. Without `form`, a decimal number is an id in
    /// digits, and any other text is taken to be in the form whose texts have its length.
    pub(crate) fn of(node: &Node, text: &str, form: Option<TextForm>) -> Result<Self, DecodeError> {
        let layout = node.layout;
        let (id, parts) = match form.or_else(|| TextForm::of(text)) {
            Some(form) => {
                let id = form.read(layout, text)?;
                (id, layout.decode(id).ok_or(TextFormError::OtherLayout)?)
            }
            None => parse(node, text).map_err(DecodeError::Number)?,
        };
        let (datacenter, worker) = layout.datacenter_of(parts.worker);
        Ok(Self {
            id: id.to_string(),
            timestamp_ms: parts.timestamp.to_string(),
            time: time(node, parts, "%Y-%m-%dT%H:%M:%S%.3f%:z"),
            datacenter: (layout.datacenter_bits() > 0).then_some(datacenter),
            worker,
            sequence: parts.sequence,
        })
    }
}

/// Parses an id in decimal digits, and decodes it. The error is the end of a sentence that begins
/// with the name of the id.
pub(crate) fn parse(node: &Node, text: &str) -> Result<(Id, Parts), &'static str> {
    let id = text.parse::<Id>().ok();
    let id = id.ok_or("is none: give a decimal number from 0 to 9223372036854775807")?;
    let parts = node.layout.decode(id).ok_or("has bits that the configured layout does not use")?;
    Ok((id, parts))
}

/// Writes the time of an id in the configured time zone, by the `strftime` pattern `format`; `None`
/// beyond the calendar's end.
pub(crate) fn time(node: &Node, parts: Parts, format: &str) -> Option<String> {
    let millis = i64::try_from(parts.timestamp.get()).ok()?;
    let at = Timestamp::from_millisecond(millis).ok()?.to_zoned(node.time_zone.clone());
    Some(at.strftime(format).to_string())
}
