//! Administration of tags: what operators ask for, with its checks and confirmations.

mod ended_tag;
mod new_tag;
mod tag_admin;

pub use ended_tag::EndedTag;
pub(crate) use ended_tag::Text as EndedText;
pub use new_tag::{ShapeName, TagSpec};
pub(crate) use tag_admin::NO_STEP;
pub use tag_admin::{Confirm, Deleted, TagAdmin, TagAdminError, TagChange};
