//! Ids of a tag as texts, by its template.

use std::sync::Arc;

use leaf_core::{Id, UnixMillis};

use crate::{Day, IdText, Reset, Template, TemplateError, Zone};

/// Writes the ids of a tag as texts, with the date of one moment.
///
/// In a tag whose numbers begin again, `{n}` is the number within the period, and the date is the
/// period's. In every other tag `{n}` is the id, and the date is that of the time for which this
/// value was made.
#[derive(Debug, Clone)]
pub struct Texts {
    format: TextFormat,
    today: Day,
}

/// The template, time zone and periods by which the texts of a tag are made.
#[derive(Debug, Clone)]
pub struct TextFormat {
    template: Arc<Template>,
    zone: Zone,
    reset: Option<Reset>,
}

/// Why a text is no id of a tag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The tag has no texts.
    #[error("the tag has no template: its ids are numbers")]
    NoTemplate,
    /// The text is not an id of this tag.
    #[error("{0}")]
    Template(TemplateError),
    /// The text fits the template, but belongs to no id that the tag issues.
    #[error("no id of the tag has this text")]
    NoId,
}

impl TextFormat {
    /// Creates the format for this template. The date is taken in the time zone of the periods if
    /// the tag has some, else in `zone`, else in UTC.
    #[must_use]
    pub fn new(template: Template, zone: Option<Zone>, reset: Option<Reset>) -> Self {
        let zone = reset.map(|reset| reset.zone).or(zone).unwrap_or_else(Zone::utc);
        Self { template: Arc::new(template), zone, reset }
    }

    /// The texts of ids that are issued at this time.
    #[must_use]
    pub fn at(&self, now: UnixMillis) -> Texts {
        let dated = self.reset.is_none() && self.template.date_parts() != (false, false, false);
        let today = match dated {
            true => self.zone.day_at(now),
            false => Day { year: 2000, month: 1, day: 1 },
        };
        Texts { format: self.clone(), today }
    }

    /// The id of a text.
    ///
    /// # Errors
    /// [`TextError::Template`] if the text does not fit the template, [`TextError::NoId`] if it
    /// belongs to no id that the tag issues.
    pub fn read(&self, text: &str) -> Result<Id, TextError> {
        let (number, day) = self.template.read(text).map_err(TextError::Template)?;
        let id = match (self.reset, day) {
            (None, _) => Some(number),
            // Refuse a day that no text has: in a monthly tag, for example, any but the first.
            (Some(reset), Some(day)) => {
                reset.join(day, number).filter(|id| reset.split(*id) == Some((day, number)))
            }
            // A tag with periods and without a year in its template is never created.
            (Some(_), None) => None,
        };
        id.and_then(Id::new).ok_or(TextError::NoId)
    }
}

impl Texts {
    /// Whether ids can be written now: a template with two digits of the year ends in 2099.
    #[must_use]
    pub fn can_be_written(&self) -> bool {
        self.format.reset.is_some() || self.format.template.write(0, self.today).is_some()
    }

    /// The text of an id of this tag; `None` for an id that it cannot have issued.
    #[must_use]
    pub fn write(&self, id: Id) -> Option<IdText> {
        let (day, number) = match self.format.reset {
            Some(reset) => reset.split(id.get())?,
            None => (self.today, id.get()),
        };
        self.format.template.write(number, day)
    }
}
