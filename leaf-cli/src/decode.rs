//! `leaf decode`: what a snowflake id is made of, and how else it is written.

use anyhow::{Result, anyhow, bail};
use jiff::Timestamp;
use leaf_core::{Id, ParseIdError};
use leaf_node::config::Config;
use leaf_shape::TextForm;
use serde::Serialize;

use crate::cli::Output;
use crate::{Done, output};

/// A snowflake id, taken apart.
#[derive(Debug, Serialize)]
struct Decoded {
    /// A string, see [`Output::Json`].
    id: String,
    /// The start of the id's tick, Unix milliseconds.
    timestamp_ms: String,
    /// The timestamp as a date and a time of day in UTC; `-` beyond the calendar's end.
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    datacenter: Option<u32>,
    worker: u32,
    /// The number within the tick.
    sequence: u64,
    /// The id in each form that it fits into, by name.
    forms: serde_json::Map<String, serde_json::Value>,
}

/// Decodes a snowflake id by the configured layout. Without `form`, a decimal number is read as the
/// id itself, and the length of any other text tells its form.
///
/// Works offline: the layout is in the configuration, and neither a store nor a registry is asked.
/// An id of a tag is decoded by [`tag::decode`](crate::tag::decode).
///
/// # Errors
/// The text is not an id in any form, or the id has bits outside the configured layout: it comes
/// from another generator, or the layout has changed since.
pub(crate) fn run(
    config: &Config,
    text: &str,
    form: Option<TextForm>,
    output: Output,
) -> Result<Done> {
    let layout = config.snowflake.layout();
    let id: Id = match form.or_else(|| TextForm::of(text)) {
        Some(form) => form.read(layout, text)?,
        None => text.parse().map_err(|error: ParseIdError| {
            let form = |form: TextForm| format!("{} ({} characters)", form.name(), form.length());
            anyhow!("{error}, or a text: {}", TextForm::ALL.map(form).join(", "))
        })?,
    };
    let Some(parts) = layout.decode(id) else {
        bail!("the id has bits that the configured layout does not use");
    };
    let (datacenter, worker) = layout.datacenter_of(parts.worker);
    let millis = i64::try_from(parts.timestamp.get()).ok();
    let at = millis.and_then(|millis| Timestamp::from_millisecond(millis).ok());
    let written = |form: TextForm| {
        Some((form.name().into(), form.write(layout, id).ok()?.to_string().into()))
    };
    let decoded = Decoded {
        id: id.to_string(),
        timestamp_ms: parts.timestamp.to_string(),
        time: at.map_or_else(|| "-".into(), |at| format!("{at:.3}")),
        datacenter: (layout.datacenter_bits() > 0).then_some(datacenter),
        worker,
        sequence: parts.sequence,
        forms: TextForm::ALL.into_iter().filter_map(written).collect(),
    };
    let mut lines = vec![
        ("id", decoded.id.clone()),
        ("time", format!("{} ({} ms)", decoded.time, decoded.timestamp_ms)),
    ];
    lines.extend(decoded.datacenter.map(|datacenter| ("datacenter", datacenter.to_string())));
    lines.push(("worker", decoded.worker.to_string()));
    lines.push(("sequence", decoded.sequence.to_string()));
    let mut text: Vec<String> =
        lines.iter().map(|(name, value)| format!("{name:<11}{value}")).collect();
    let forms = decoded.forms.iter();
    text.extend(forms.map(|(name, value)| format!("{name:<11}{}", value.as_str().unwrap_or("-"))));
    Ok(output::one(&decoded, text.join("\n"), output).into())
}
