//! Ids of a tag as texts, by its template.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use leaf_core::{Clock, Day, Id, IdText, Template, TemplateError};

use crate::meaning::{Reset, Zone};

/// How the ids of a tag are written, at one moment.
///
/// In a tag whose numbers begin again, `{n}` is the number within the period, and the date is the
/// period's. In every other tag `{n}` is the id, and the date is that of the moment when this was
/// made.
#[derive(Debug, Clone)]
pub struct Texts {
    text: Text,
    today: Day,
}

/// What a tag's texts are made by.
#[derive(Clone)]
pub(crate) struct Text {
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
    /// A text of the template, but of no number that the tag issues.
    #[error("no id of the tag has this text")]
    NoId,
}

impl Text {
    pub(crate) fn new(template: Template, zone: Option<Zone>, reset: Option<Reset>) -> Self {
        let zone = reset.map(|reset| reset.zone).or(zone).unwrap_or_else(Zone::utc);
        Self { template: Arc::new(template), zone, reset }
    }

    /// The texts of ids that are issued now.
    pub(crate) fn now(&self, clock: &dyn Clock) -> Texts {
        let dated = self.reset.is_none() && self.template.date_parts() != (false, false, false);
        let today = match dated {
            true => self.zone.day_at(now(clock)),
            false => Day { year: 2000, month: 1, day: 1 },
        };
        Texts { text: self.clone(), today }
    }

    /// The id of a text.
    pub(crate) fn read(&self, text: &str) -> Result<Id, TextError> {
        let (number, day) = self.template.read(text).map_err(TextError::Template)?;
        let id = match (self.reset, day) {
            (None, _) => Some(number),
            // A day within the month of a monthly tag, say, is none that is written.
            (Some(reset), Some(day)) => {
                reset.join(day, number).filter(|id| reset.split(*id) == Some((day, number)))
            }
            // Such a tag is not made.
            (Some(_), None) => None,
        };
        id.and_then(Id::new).ok_or(TextError::NoId)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.template.fmt(f)
    }
}

impl Texts {
    /// Whether ids can be written now: a template with two digits of the year ends in 2099.
    #[must_use]
    pub fn can_be_written(&self) -> bool {
        self.text.reset.is_some() || self.text.template.write(0, self.today).is_some()
    }

    /// The text of an id of this tag; `None` for an id that it cannot have issued.
    #[must_use]
    pub fn write(&self, id: Id) -> Option<IdText> {
        let (day, number) = match self.text.reset {
            Some(reset) => reset.split(id.get())?,
            None => (self.today, id.get()),
        };
        self.text.template.write(number, day)
    }
}

/// The wall clock.
pub(crate) fn now(clock: &dyn Clock) -> Timestamp {
    let millis = i64::try_from(clock.wall_millis().get()).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
}
