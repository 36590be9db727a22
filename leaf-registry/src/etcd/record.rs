//! The record of a tag in etcd: JSON in format 1. Fields that a later Leaf added within format 1
//! are kept; a record in a later format is refused.

use leaf_core::{Tag, UnknownFields, record_version};
use leaf_segment::admin::EndedTag;
use leaf_segment::store::{TagGeneration, TagSettings, TagSettingsError};
use leaf_segment::{NewTag, StoreErrorKind, TagRecord};
use serde::{Deserialize, Serialize};

use crate::record::{self, Row};

/// The version of the record format.
pub(super) const FORMAT_VERSION: u32 = 1;

/// A tag's record. What a later version of Leaf added is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) version: u32,
    /// Every number less than this is granted; the next allocation begins here.
    pub(super) max_id: i64,
    /// The tag's step: how many numbers a refill takes at least.
    pub(super) step: i64,
    /// The meaning, as [`leaf_shape::Meaning::encode`] writes it; absent in the record of a plain
    /// tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) meaning: Option<String>,
    /// A free text, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// As [`TagSettings::encode`] writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) settings: Option<serde_json::Value>,
    /// Whether the tag was deleted. Then only its settings count, which remember what the tag had
    /// granted. A version of Leaf that does not know this field takes the tag for a sealed one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) deleted: bool,
    /// What a later version of Leaf wrote, kept as it is.
    #[serde(flatten)]
    unknown: UnknownFields,
}

impl Record {
    /// The record of a tag that is to be created.
    pub(super) fn of(new: &NewTag) -> Self {
        Self {
            version: FORMAT_VERSION,
            max_id: new.max_id,
            step: i64::from(new.step.get()),
            meaning: (!new.meaning.is_plain()).then(|| new.meaning.encode()),
            description: new.description.clone(),
            settings: Some(settings_json(&new.settings.of_new_tag())),
            deleted: false,
            unknown: UnknownFields::default(),
        }
    }

    /// The record of a member of this family.
    pub(super) fn member(&self, settings: &TagSettings) -> Self {
        Self { settings: Some(settings_json(settings)), ..self.clone() }
    }

    /// The record that remains when this one is deleted; `None` if its settings record no seal, or
    /// cannot be read.
    pub(super) fn of_deleted(&self) -> Option<Self> {
        let settings = TagSettings::of_deleted_tag(self.ended().ok()??);
        let settings = Some(settings_json(&settings));
        let unknown = UnknownFields::default();
        Some(Self { deleted: true, settings, unknown, description: None, ..self.clone() })
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The text says whether the value is damaged or of a later version, which needs a newer
    /// program.
    pub(super) fn decode(value: &[u8]) -> Result<Self, String> {
        let damaged = |error| format!("the value in etcd is no record: {error}");
        match record_version(value).map_err(damaged)? {
            FORMAT_VERSION => serde_json::from_slice(value).map_err(damaged),
            version => Err(format!(
                "the value in etcd has version {version}, and this program knows version \
                 {FORMAT_VERSION}: upgrade it"
            )),
        }
    }

    /// The record in the form that the code of all stores reads.
    pub(super) fn row(&self, tag: &Tag) -> Row {
        Row {
            name: tag.as_str().into(),
            max_id: Some(self.max_id),
            step: Some(self.step),
            description: self.description.clone(),
            meaning: self.meaning.clone(),
        }
    }

    /// The record in the form that administration reads; `None` if the tag is invalid.
    pub(super) fn shown(&self, tag: &Tag) -> Option<TagRecord> {
        let settings = self.settings_text(tag).into_iter().collect();
        record::read(vec![self.row(tag)], settings).pop()
    }

    pub(super) fn settings(&self) -> Result<Option<TagSettings>, TagSettingsError> {
        let text = self.settings.as_ref().map(ToString::to_string);
        text.map(|text| TagSettings::decode(&text)).transpose()
    }

    /// The generation of the record; `None` if it has none, or its settings cannot be read.
    pub(super) fn generation(&self) -> Option<TagGeneration> {
        self.settings().ok()??.generation
    }

    /// The [`EndedTag`] that the last seal wrote into the settings; `None` if there is none.
    ///
    /// # Errors
    /// `BadRecord` where the settings cannot be read.
    pub(super) fn ended(&self) -> Result<Option<EndedTag>, StoreErrorKind> {
        match self.settings() {
            Ok(settings) => Ok(settings.and_then(|settings| settings.ended)),
            Err(unreadable) => Err(StoreErrorKind::BadRecord(unreadable.to_string())),
        }
    }

    /// Refuses a new tag that could issue ids of this deleted one.
    pub(super) fn allows(&self, new: &NewTag) -> Result<(), StoreErrorKind> {
        self.ended()?.map_or(Ok(()), |ended| ended.check(new).map_err(StoreErrorKind::UsedBefore))
    }

    /// The tag and the text of its settings, if it has some.
    pub(super) fn settings_text(&self, tag: &Tag) -> Option<(String, String)> {
        Some((tag.as_str().into(), self.settings.as_ref()?.to_string()))
    }
}

/// Settings as a record holds them.
pub(super) fn settings_json(settings: &TagSettings) -> serde_json::Value {
    serde_json::from_str(&settings.encode()).expect("it was serialized")
}

/// Serializes a record as the value of its key.
pub(super) fn json(record: &Record) -> Vec<u8> {
    serde_json::to_vec(record).expect("numbers and texts serialize")
}
