//! Administration of tags: the operations for operators, with their checks and confirmations.

mod ended_tag;
mod new_tag;
mod tag_admin;
mod tag_id;

pub use ended_tag::EndedTag;
pub(crate) use ended_tag::Text as EndedText;
pub use new_tag::{ShapeName, TagSpec};
pub(crate) use tag_admin::NO_STEP;
pub use tag_admin::{Confirm, Deleted, Reopening, TagAdmin, TagAdminError, TagChange};
pub use tag_id::{TagId, TagIdError};
