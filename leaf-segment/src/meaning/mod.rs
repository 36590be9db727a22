//! What the numbers of a tag mean: their order, the shape and the keys that make ids of them, the
//! period in which they begin again, and the texts of ids.

mod keys;
mod period;
mod period_clock;
mod record;
mod shape;
mod tag_id;
mod texts;

pub use keys::{KeyProblem, KeyRing, Keys, KeysError};
pub use period::{Period, Reset, Zone};
pub use record::{Interleave, Meaning, MeaningError, Order, Shape};
pub use shape::Ids;
pub use tag_id::{TagId, TagIdError};
pub use texts::{TextError, Texts};

pub(crate) use period::{Beyond, Window};
pub(crate) use period_clock::PeriodClock;
pub(crate) use record::{MOST_PARTS, parts};
pub(crate) use shape::Mapping;
pub(crate) use texts::Text;
