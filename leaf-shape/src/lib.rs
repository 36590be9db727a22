//! What the numbers of a tag mean: which ids they stand for, whether they begin again in each
//! period, and how ids are written as texts.
//!
//! A store counts 1, 2, 3. The [`Meaning`] of a tag, which the store keeps beside the counter, says
//! which ids these numbers stand for: the numbers themselves, the ids of one of several stores
//! ([`Interleave`]), or a permutation by a key ([`keys`]). It also says whether the count begins
//! again, every day for example ([`Reset`]). [`Mapping`] computes the ids, [`Template`] writes them
//! as texts, [`TextForm`] writes snowflake ids in other forms.
//!
//! Nothing here does I/O or waits: clocks and counters are arguments.
//!
//! ```
//! use std::sync::Arc;
//! use leaf_core::{IdRange, Tag};
//! use leaf_shape::keys::KeyRing;
//! use leaf_shape::{Ids, Interleave, Mapping, Meaning, Shape};
//!
//! let part = Interleave::new(1, 2).ok_or("a part")?;
//! let meaning = Meaning { shape: Shape::Interleave(part), ..Meaning::PLAIN };
//! let mapping = Mapping::of(meaning, &Tag::parse("orders")?, &KeyRing::default())?.map(Arc::new);
//! let numbers = IdRange::new(1, 4).ok_or("a range")?;
//! let ids: Vec<i64> = Ids::of_range(numbers, mapping.as_ref()).map(|id| id.get()).collect();
//! assert_eq!(ids, [3, 5, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may panic"))]

mod key_ring;
mod mapping;
mod meaning;
mod period;
mod scramble;
mod template;
mod text_form;
mod texts;

pub use mapping::{Ids, Mapping};
pub use meaning::{Interleave, MOST_PARTS, Meaning, MeaningError, Order, Shape, parts};
pub use period::{Beyond, Period, Reopened, Reset, Taken, Window, Zone};
pub use template::{Day, Template, TemplateError};
pub use text_form::{IdText, TextForm, TextFormError};
pub use texts::{TextError, TextFormat, Texts};

/// Scrambled ids, and the keys by which they are permuted.
pub mod keys {
    pub use crate::key_ring::{KeyProblem, KeyRing, Keys, KeysError};
    pub use crate::scramble::{KeyCheck, KeyError, KeyId, MasterKey, Scramble, ScrambleDomain};
}
