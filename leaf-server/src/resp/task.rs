//! Replies that are waited for.

use std::pin::Pin;

use leaf_core::{Id, IdText};

use super::reply::Replies;
use crate::ids::{IdError, Reason};

/// A reply that may have to be waited for.
pub(super) struct Task {
    /// To so many equal calls.
    pub(super) calls: usize,
    pub(super) work: Pin<Box<dyn Future<Output = Result<Reply, IdError>> + Send>>,
}

/// The reply to a [`Task`].
pub(super) enum Reply {
    /// One number.
    Integer(i64),
    /// One id as a string, or nil.
    Text(Option<Told>),
    /// An array of so many.
    Ids(usize, Ids),
    /// The reply to each of so many commands.
    Errors(usize, IdError),
    /// A reply of its own to each of several commands.
    Each(Vec<Result<Id, IdError>>),
}

/// Ids that are sent as they are read.
pub(super) type Ids = Box<dyn Iterator<Item = Told> + Send>;

/// An id that is told as a string.
#[derive(Debug, Clone, Copy)]
pub(super) enum Told {
    /// In digits.
    Id(Id),
    /// In a form of its own.
    Text(IdText),
}

impl Task {
    /// Does it, and waits where it must. An error is the reply to each of the calls.
    pub(super) async fn perform(self) -> Reply {
        self.work.await.unwrap_or_else(|error| Reply::Errors(self.calls, error))
    }
}

impl Reply {
    /// Writes it; the ids of an array are the caller's to write.
    pub(super) fn write(self, to: &mut Replies) -> Option<Ids> {
        match self {
            Self::Integer(value) => to.integer(value),
            Self::Text(id) => text_or_nil(to, id),
            Self::Each(replies) => {
                for reply in replies {
                    match reply {
                        Ok(id) => to.integer(id.get()),
                        Err(error) => to.error(code(&error), &error.to_string()),
                    }
                }
            }
            Self::Errors(commands, error) => {
                for _ in 0..commands {
                    to.error(code(&error), &error.to_string());
                }
            }
            Self::Ids(count, ids) => {
                to.array(count);
                return Some(ids);
            }
        }
        None
    }
}

impl Told {
    /// Writes the id as a string.
    pub(super) fn write(&self, to: &mut Replies) {
        match self {
            Self::Id(id) => to.id(*id),
            Self::Text(text) => to.bulk(text.as_str().as_bytes()),
        }
    }
}

/// An id as a string, or nil where there is none.
pub(super) fn text_or_nil(to: &mut Replies, id: Option<Told>) {
    match id {
        Some(id) => id.write(to),
        None => to.null(),
    }
}

/// The word that begins an error. Clients try again after `BUSY` and `LOADING`.
fn code(error: &IdError) -> &'static str {
    match error.reason() {
        Reason::Busy => "BUSY",
        Reason::Unavailable => "LOADING",
        _ => "ERR",
    }
}
