//! What an operator can tell of an id of a tag.

use leaf_core::{Day, Id, Tag};
use thiserror::Error;

use crate::TagRecord;
use crate::meaning::{KeyProblem, KeyRing, Meaning, Shape, Text, TextError};

/// An id of a tag, taken apart.
///
/// ```
/// use leaf_core::{Id, Tag};
/// use leaf_segment::{NewTag, TagRecord};
/// use leaf_segment::admin::TagSpec;
/// use leaf_segment::meaning::{KeyRing, TagId};
///
/// let spec = TagSpec { reset: Some("daily".parse()?), ..TagSpec::default() };
/// let orders: TagRecord = spec.record(Tag::parse("orders")?, &KeyRing::default())?.into();
/// let id = Id::new(20_261_121_000_017).ok_or("not negative")?;
/// let told = TagId::of(&orders, &KeyRing::default(), id)?;
/// assert_eq!((told.number, told.period.map(|day| day.month)), (17, Some(11)));
/// assert_eq!(told.granted, Some(false), "the tag was just made");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagId {
    /// The id.
    pub id: Id,
    /// Its number: the first is 1, where the tag did not start elsewhere. Within its period, where
    /// numbers begin again.
    pub number: i64,
    /// The version of the key that made it, where ids are scrambled.
    pub key: Option<u8>,
    /// The first day of its period, where numbers begin again.
    pub period: Option<Day>,
    /// Whether the store has granted its number to a node, which may not have issued it. `None`
    /// where the counter does not tell: in a tag that is sealed, of an earlier key or period.
    pub granted: Option<bool>,
}

/// Why an id is none of a tag, or cannot be taken apart here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TagIdError {
    /// This program does not know what the tag's record means.
    #[error("{0}")]
    Record(String),
    /// The key is not here.
    #[error("{0}")]
    Key(KeyProblem),
    /// The tag does not issue such ids.
    #[error("the tag does not issue such ids")]
    NotOfTag,
    /// A text that is no id of the tag.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl TagId {
    /// Takes an id of the tag of this record apart. Ids of earlier keys, too, as long as they are
    /// in `keys`.
    ///
    /// # Errors
    /// [`TagIdError`].
    pub fn of(record: &TagRecord, keys: &KeyRing, id: Id) -> Result<Self, TagIdError> {
        let meaning = meaning(record)?;
        let (mut key, mut period) = (None, None);
        // What the counter held when it was granted.
        let counted = match meaning.shape {
            Shape::Plain => Some(id.get()),
            Shape::Interleave(part) => part.number(id.get()),
            Shape::Scramble { domain, key: now } => {
                key = domain.version_of(id).filter(|version| *version <= now.version);
                let version = key.ok_or(TagIdError::NotOfTag)?;
                let tag: &Tag = &record.tag;
                let missing = TagIdError::Key(KeyProblem::Missing(version));
                let scramble = keys.of_version(domain, version, tag).ok_or(missing)?;
                if version == now.version && scramble.key() != now {
                    return Err(TagIdError::Key(KeyProblem::Other(version)));
                }
                scramble.number(id)
            }
        };
        let counted = counted.ok_or(TagIdError::NotOfTag)?;
        let mut number = counted;
        let mut known = !record.is_sealed() && key == meaning.key().map(|key| key.version);
        if let Some(reset) = meaning.reset {
            let (day, within) = reset.split(counted).ok_or(TagIdError::NotOfTag)?;
            (number, period) = (within, Some(day));
            known &= counted - within == reset.start_of(record.max_id) || counted >= record.max_id;
        }
        let first = record.settings.as_ref().ok().and_then(|settings| settings.slice);
        let first = first.map_or(0, |slice| slice.first());
        let granted = known.then_some((first..record.max_id).contains(&counted));
        Ok(Self { id, number, key, period, granted })
    }

    /// Takes an id apart that is written by the tag's template.
    ///
    /// # Errors
    /// [`TagIdError`].
    pub fn of_text(record: &TagRecord, keys: &KeyRing, text: &str) -> Result<Self, TagIdError> {
        let settings = record.settings.as_ref();
        let settings = settings.map_err(|error| TagIdError::Record(error.to_string()))?;
        let template = settings.text.clone().ok_or(TextError::NoTemplate)?;
        let texts = Text::new(template, settings.time_zone, meaning(record)?.reset);
        Self::of(record, keys, texts.read(text)?)
    }
}

fn meaning(record: &TagRecord) -> Result<Meaning, TagIdError> {
    record.meaning.clone().map_err(|error| TagIdError::Record(error.to_string()))
}
