//! Replies that are waited for.

use std::pin::Pin;

use leaf_core::Id;
use leaf_shape::IdText;

use super::reply::Replies;
use super::session::{Refusal, Session};
use crate::ids::IdError;
use crate::metrics::Operation;
use crate::refusal::Reason;

/// A reply that may have to be waited for.
pub(super) struct Task {
    /// How many equal calls get this reply.
    pub(super) calls: usize,
    /// The operation of the calls, for the metrics.
    pub(super) operation: Operation,
    pub(super) work: Pin<Box<dyn Future<Output = Result<Reply, IdError>> + Send>>,
}

/// The reply to a [`Task`].
pub(super) enum Reply {
    /// One number.
    Integer(i64),
    /// One id as a string, or nil.
    Text(Option<Told>),
    /// An array of ids: their number, and the ids.
    Ids(usize, Ids),
    /// One error that is sent once for each command: the number of commands, and the error.
    Errors(usize, IdError),
    /// An id or an error for each of several commands.
    Each(Vec<Result<Id, IdError>>),
}

/// Ids that are made one by one while they are sent.
pub(super) type Ids = Box<dyn Iterator<Item = Told> + Send>;

/// An id that is sent as a string.
#[derive(Debug, Clone, Copy)]
pub(super) enum Told {
    /// In decimal digits.
    Id(Id),
    /// In another form, or as a text of the tag's template.
    Text(IdText),
}

impl Task {
    /// Runs the task to its reply, which may take a while. An error is the reply to each of its
    /// calls.
    pub(super) async fn perform(self) -> Reply {
        self.work.await.unwrap_or_else(|error| Reply::Errors(self.calls, error))
    }
}

impl Reply {
    /// Writes the reply. Of an array it writes only the head and returns the ids, which the caller
    /// must write.
    pub(super) fn write(self, session: &mut Session) -> Option<Ids> {
        let to = &mut session.replies;
        match self {
            Self::Integer(value) => to.integer(value),
            Self::Text(id) => text_or_nil(to, id),
            Self::Each(replies) => {
                for reply in replies {
                    match reply {
                        Ok(id) => session.replies.integer(id.get()),
                        Err(error) => refuse(session, &error),
                    }
                }
            }
            Self::Errors(commands, error) => {
                for _ in 0..commands {
                    refuse(session, &error);
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

/// Writes an id as a string, or nil if there is none.
pub(super) fn text_or_nil(to: &mut Replies, id: Option<Told>) {
    match id {
        Some(id) => id.write(to),
        None => to.null(),
    }
}

/// Refuses a command for which there is no id. After `BUSY` and `LOADING`, clients of Redis may
/// retry.
fn refuse(session: &mut Session, error: &IdError) {
    let reason = error.reason();
    let code = match reason {
        Reason::Busy | Reason::TooFast => "BUSY",
        Reason::Unavailable => "LOADING",
        Reason::Unauthorized | Reason::BadToken => "NOAUTH",
        Reason::NoRole | Reason::Cut => "NOPERM",
        _ => "ERR",
    };
    session.refuse(&Refusal::new(reason, code, error.to_string()));
}
