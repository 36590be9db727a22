//! What can be read from an id of a tag: its number, key and period.

use leaf_core::{Id, Tag};
use leaf_shape::Day;
use leaf_shape::keys::{KeyProblem, KeyRing};
use leaf_shape::{Meaning, Reopened, Shape, TextError, TextFormat};
use thiserror::Error;

use crate::TagRecord;

/// An id of a tag, taken apart.
///
/// ```
/// use leaf_core::{Id, Tag};
/// use leaf_segment::{NewTag, TagRecord};
/// use leaf_segment::admin::TagSpec;
/// use leaf_segment::admin::TagId;
/// use leaf_shape::keys::KeyRing;
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
    /// The id's number: 1 for the tag's first id, unless the tag was made to start elsewhere. In a
    /// tag with periods, the number within the period.
    pub number: i64,
    /// The version of the key that scrambled the id; `None` if ids are not scrambled.
    pub key: Option<u8>,
    /// The first day of the id's period; `None` in a tag without periods.
    pub period: Option<Day>,
    /// Whether the store has granted the id's number to a node, which need not have issued it.
    /// `None` if the counter does not show it: the tag is sealed, the id is of an earlier key or
    /// period, or it may have been issued for a later period before the tag was reopened.
    pub granted: Option<bool>,
}

/// Why an id cannot be one of the tag, or cannot be taken apart here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TagIdError {
    /// This program does not know what the tag's record means.
    #[error("{0}")]
    Record(String),
    /// The key ring has no key of the id's version, or another one than the tag.
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
    /// Takes apart an id of the tag that has this record, also if an earlier key scrambled it, as
    /// long as `keys` has that key.
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
            let next = record.max_id - reset.counter_offset();
            // What a wrong clock has issued, nobody knows exactly.
            let is_taken = reset
                .reopened()
                .into_iter()
                .flat_map(Reopened::taken)
                .any(|it| (it.first * reset.capacity()..it.ids_below).contains(&counted));
            known &= !is_taken;
            known &= counted - within == reset.start_of(next) || counted >= next;
        }
        let first = record.settings.as_ref().ok().and_then(|settings| settings.slice);
        let first = first.map_or(0, |slice| slice.first());
        let granted =
            known.then_some((first..record.max_id).contains(&(counted + meaning.counter_offset())));
        Ok(Self { id, number, key, period, granted })
    }

    /// Takes apart an id that is written as a text by the tag's template.
    ///
    /// # Errors
    /// [`TagIdError`].
    pub fn of_text(record: &TagRecord, keys: &KeyRing, text: &str) -> Result<Self, TagIdError> {
        let settings = record.settings.as_ref();
        let settings = settings.map_err(|error| TagIdError::Record(error.to_string()))?;
        let template = settings.text.clone().ok_or(TextError::NoTemplate)?;
        let texts = TextFormat::new(template, settings.time_zone, meaning(record)?.reset);
        Self::of(record, keys, texts.read(text)?)
    }
}

fn meaning(record: &TagRecord) -> Result<Meaning, TagIdError> {
    record.meaning.clone().map_err(|error| TagIdError::Record(error.to_string()))
}
