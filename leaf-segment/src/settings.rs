//! What an operator may set for one tag, and the text in which every store keeps it.
//!
//! Invariant: a text that a later version of Leaf wrote is refused or kept whole. Fields that this version
//! does not know outlive a change of the others; a greater version number is an error, never a default.

use leaf_core::{Step, UnknownFields};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version of the text.
const FORMAT_VERSION: u32 = 1;

/// What an operator may set for one tag, on every node at once. What is unset follows each node's own
/// configuration.
///
/// ```
/// use leaf_core::Step;
/// use leaf_segment::TagSettings;
///
/// let settings = TagSettings { max_step: Some(Step::new(5000)?), ..TagSettings::default() };
/// let text = settings.encode();
/// assert_eq!(text, r#"{"version":1,"enabled":true,"max_step":5000}"#);
/// assert_eq!(TagSettings::decode(&text)?, settings);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagSettings {
    /// Whether ids are handed out. Default true.
    pub enabled: bool,
    /// The dynamic step never falls below this.
    pub min_step: Option<Step>,
    /// The dynamic step grows up to this.
    pub max_step: Option<Step>,
    /// The most ids that one call takes.
    pub max_take: Option<Step>,
    /// What a later version of Leaf added.
    pub unknown: UnknownFields,
}

/// A text that holds no settings which this version of Leaf may follow.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TagSettingsError {
    /// A later version of Leaf wrote it.
    #[error(
        "its settings have version {0}, and this program knows version {FORMAT_VERSION}: upgrade it"
    )]
    Newer(u32),
    /// It is damaged, or was written by hand.
    #[error("its settings cannot be read ({0}): set them again")]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_step: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_step: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_take: Option<i64>,
    #[serde(flatten)]
    unknown: UnknownFields,
}

const fn yes() -> bool {
    true
}

impl Default for TagSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            min_step: None,
            max_step: None,
            max_take: None,
            unknown: UnknownFields::default(),
        }
    }
}

impl TagSettings {
    /// The settings as a store keeps them: one line of JSON.
    #[must_use]
    pub fn encode(&self) -> String {
        let number = |step: Option<Step>| step.map(|step| i64::from(step.get()));
        let text = Text {
            version: FORMAT_VERSION,
            enabled: self.enabled,
            min_step: number(self.min_step),
            max_step: number(self.max_step),
            max_take: number(self.max_take),
            unknown: self.unknown.clone(),
        };
        serde_json::to_string(&text).expect("numbers and texts serialize")
    }

    /// Reads what [`Self::encode`] wrote, in this or a later version of Leaf.
    ///
    /// # Errors
    /// The text has a greater version number, or is no such text.
    pub fn decode(text: &str) -> Result<Self, TagSettingsError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let damaged = |error: String| TagSettingsError::Damaged(error);
        let json = |error: serde_json::Error| TagSettingsError::Damaged(error.to_string());
        // First of all: what a later version wrote may not be readable otherwise.
        let Version { version } = serde_json::from_str(text).map_err(json)?;
        match version {
            0 => return Err(damaged("version 0".into())),
            FORMAT_VERSION => {}
            newer => return Err(TagSettingsError::Newer(newer)),
        }
        let text: Text = serde_json::from_str(text).map_err(json)?;
        let step = |name: &str, value: Option<i64>| {
            let step = value.map(Step::new).transpose();
            step.map_err(|error| damaged(format!("{name}: {error}")))
        };
        Ok(Self {
            enabled: text.enabled,
            min_step: step("min_step", text.min_step)?,
            max_step: step("max_step", text.max_step)?,
            max_take: step("max_take", text.max_take)?,
            unknown: text.unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of version 1. They must be read for ever.
    #[test]
    fn version_1_is_read() {
        let all = r#"{"version":1,"enabled":false,"min_step":10,"max_step":5000,"max_take":64}"#;
        let read = TagSettings::decode(all).unwrap();
        assert_eq!((read.enabled, read.max_take.map(Step::get)), (false, Some(64)));
        assert_eq!(read.encode(), all);
        assert_eq!(TagSettings::decode(r#"{"version":1}"#).unwrap(), TagSettings::default());
    }

    #[test]
    fn what_a_later_version_added_outlives_a_change() {
        let text = r#"{"version":1,"enabled":true,"order":"strict"}"#;
        let changed = TagSettings { enabled: false, ..TagSettings::decode(text).unwrap() };
        assert_eq!(changed.encode(), r#"{"version":1,"enabled":false,"order":"strict"}"#);
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let newer = TagSettings::decode(r#"{"version":2,"enabled":{"from":"monday"}}"#);
        assert_eq!(newer, Err(TagSettingsError::Newer(2)));
        for damaged in ["", "{}", "null", r#"{"version":0}"#, r#"{"version":1,"min_step":0}"#] {
            let refused = TagSettings::decode(damaged).unwrap_err();
            assert!(matches!(refused, TagSettingsError::Damaged(_)), "{damaged}: {refused}");
        }
    }
}
