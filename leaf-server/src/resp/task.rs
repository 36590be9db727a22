//! Commands that may have to wait for ids, and their replies.
//!
//! A task owns its words, since the buffer that they were read from is used again while it waits.

use leaf_core::{Id, IdText, TextForm};
use leaf_segment::{Order, SegmentErrorKind, TagHandle};

use super::commands::equal_commands;
use super::reply::Replies;
use crate::ids::{self, IdError, Reason};
use crate::node::Node;

/// A command that may have to wait.
#[derive(Debug)]
pub(super) enum Task {
    /// The next id of a tag.
    Next { tag: String, form: Form },
    /// The next ids of a tag in strict order, for so many equal commands.
    NextInOrder { tag: String, commands: usize },
    /// Several ids of a tag.
    Take { tag: String, count: usize },
    /// The next id of a tag as a text of its template, or several.
    Texts { tag: String, count: Option<usize> },
    /// Several ids of a tag that follow each other.
    TakeContiguous { tag: String, count: usize },
    /// The next snowflake id.
    Snowflake,
    /// The next snowflake id in another form, or several, in digits where no form is asked for.
    Snowflakes { count: Option<usize>, form: Option<TextForm> },
    /// The highest id of a tag that this node issued.
    Last { tag: String },
    /// How many ids of a tag are in memory.
    Length { tag: String },
    /// How many of the tags exist.
    Exist { tags: Vec<String> },
}

/// How one id is told.
///
/// `INCR` and `INCRBY` answer with an integer, since that is what Redis answers; everything else
/// with a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// An integer.
    Integer,
    /// A string.
    Text,
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
    /// Does it, and waits where it must.
    ///
    /// An error is the reply to each of the commands that the task stands for.
    pub(super) async fn perform(self, node: &Node) -> Reply {
        let commands = match self {
            Self::NextInOrder { commands, .. } => commands,
            _ => 1,
        };
        self.attempt(node).await.unwrap_or_else(|error| Reply::Errors(commands, error))
    }

    /// Extends the task to all equal commands that `input` begins with, of which this is the first,
    /// where they need not wait one after the other. Returns also how many they are.
    pub(super) fn with_following(self, node: &Node, input: &[u8], length: usize) -> (Self, usize) {
        let Self::Next { tag, form: Form::Integer } = self else { return (self, 1) };
        let most = ids::known(node, &tag, |handle| {
            (handle.meaning().order == Order::Strict).then(|| handle.max_take())
        });
        match most.flatten().map(|most| equal_commands(input, length).min(most)) {
            Some(commands @ 2..) => (Self::NextInOrder { tag, commands }, commands),
            _ => (Self::Next { tag, form: Form::Integer }, 1),
        }
    }

    /// Does it, or tells why not.
    async fn attempt(self, node: &Node) -> Result<Reply, IdError> {
        Ok(match self {
            Self::Next { tag, form } => {
                let id = ids::next(node, &ids::handle(node, &tag).await?).await?;
                match form {
                    Form::Integer => Reply::Integer(id.get()),
                    Form::Text => Reply::Text(Some(Told::Id(id))),
                }
            }
            Self::NextInOrder { tag, commands } => {
                let handle = ids::handle(node, &tag).await?;
                match ids::take(node, &handle, commands).await {
                    // Fewer are left: the first commands get them.
                    Err(IdError::Segment(error))
                        if *error.kind() == SegmentErrorKind::Exhausted && commands > 1 =>
                    {
                        let mut each = Vec::with_capacity(commands);
                        for _ in 0..commands {
                            each.push(ids::next(node, &handle).await);
                        }
                        Reply::Each(each)
                    }
                    ids => Reply::Each(ids?.map(Ok).collect()),
                }
            }
            Self::Take { tag, count } => {
                let ids = ids::take(node, &ids::handle(node, &tag).await?, count).await?;
                Reply::Ids(count, Box::new(ids.map(Told::Id)))
            }
            Self::Texts { tag, count } => {
                let handle = ids::handle(node, &tag).await?;
                let texts = ids::texts(&handle)?;
                let ids = ids::take(node, &handle, count.unwrap_or(1)).await?;
                let mut ids = ids.map(move |id| texts.write(id).map_or(Told::Id(id), Told::Text));
                match count {
                    Some(count) => Reply::Ids(count, Box::new(ids)),
                    None => Reply::Text(ids.next()),
                }
            }
            Self::TakeContiguous { tag, count } => {
                let handle = ids::handle(node, &tag).await?;
                Reply::Integer(ids::take_contiguous(node, &handle, count).await?.end() - 1)
            }
            Self::Snowflake => Reply::Text(Some(Told::Id(ids::snowflake_next(node).await?))),
            Self::Snowflakes { count, form } => {
                let runs = ids::snowflake_take(node, count.unwrap_or(1)).await?;
                let layout = node.layout;
                // In digits also where the form ended this very moment.
                let text = move |id| form.and_then(|form| form.write(layout, id).ok());
                let write = move |id| text(id).map_or(Told::Id(id), Told::Text);
                let mut ids = runs.into_iter().flatten().map(write);
                match count {
                    Some(count) => Reply::Ids(count, Box::new(ids)),
                    None => Reply::Text(ids.next()),
                }
            }
            Self::Last { tag } => {
                let handle = existing(ids::handle(node, &tag).await)?;
                Reply::Text(handle.and_then(|handle| handle.last_issued()).map(Told::Id))
            }
            Self::Length { tag } => {
                let handle = existing(ids::handle(node, &tag).await)?;
                Reply::Integer(handle.map_or(0, |handle| handle.stock().cast_signed()))
            }
            Self::Exist { tags } => {
                let mut count = 0;
                for tag in tags {
                    count += i64::from(existing(ids::handle(node, &tag).await)?.is_some());
                }
                Reply::Integer(count)
            }
        })
    }
}

/// `None` for a tag that does not exist, or cannot.
///
/// A tag that is disabled counts as one that does not exist.
fn existing(found: Result<TagHandle, IdError>) -> Result<Option<TagHandle>, IdError> {
    match found {
        Ok(handle) => Ok(Some(handle)),
        Err(IdError::Segment(error))
            if matches!(
                error.kind(),
                SegmentErrorKind::UnknownTag
                    | SegmentErrorKind::BadTag(_)
                    | SegmentErrorKind::Disabled
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
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
