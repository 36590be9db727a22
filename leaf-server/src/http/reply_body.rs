//! The body of an answer: whole, or ids that are written as text while the client reads them.
//!
//! Over HTTP/2 a client decides how much of each answer it reads; it may send a hundred requests
//! and read no answer. So ids are written as text only when there is room for them, and unread
//! answers are counted: the listener closes a connection if answers wait on it and the client reads
//! none of them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::serve::{Control, UnderWay, Unread};

/// How many bytes of text are made at a time. hyper asks for the first part before it knows whether
/// the client has room for it, so an answer that nobody reads still holds up to this much in
/// memory.
const CHUNK: usize = 1024;
/// The room in bytes that a chunk keeps for its last id; most ids with quotes and comma need less.
const LONGEST: usize = 40;

/// The text of ids, made piece by piece.
pub(super) type Pieces = Box<dyn Iterator<Item = String> + Send>;

/// The body of an answer. One type for all, so that neither a route nor hyper needs a box around
/// it.
pub(super) struct ReplyBody {
    content: Content,
    /// Over HTTP/2, counts this answer as unread until the client has taken it.
    unread: Option<Unread>,
}

/// The part of the body that is still to be sent.
enum Content {
    /// The whole body, whose length is known.
    Whole(Full<Bytes>),
    /// Pieces that are made while the client reads them.
    Pieces(Pieces),
    /// Lines that are sent as they come; the connection is not idle while `_under_way` lives.
    Live { lines: mpsc::Receiver<Bytes>, _under_way: UnderWay },
    /// Nothing is left.
    Done,
}

impl ReplyBody {
    /// A body of one piece, whose length is known.
    pub(super) fn whole(body: impl Into<Bytes>) -> Self {
        Self { content: Content::Whole(Full::new(body.into())), unread: None }
    }

    /// A streamed body: the texts of `pieces`, joined into frames of about `CHUNK` bytes. The
    /// iterator is asked only when hyper wants the next frame.
    pub(super) fn pieces(pieces: impl Iterator<Item = String> + Send + 'static) -> Self {
        Self { content: Content::Pieces(Box::new(pieces)), unread: None }
    }

    /// A body that sends each line as it comes, until the sender of `lines` is dropped. Until then
    /// `under_way` keeps the connection open.
    pub(super) fn live(lines: mpsc::Receiver<Bytes>, under_way: UnderWay) -> Self {
        Self { content: Content::Live { lines, _under_way: under_way }, unread: None }
    }

    /// Counts this body as unread until the client has taken it, so that the listener can close a
    /// connection whose client does not read.
    pub(super) fn count(&mut self, control: &Arc<Control>) {
        if !self.is_end_stream() {
            self.unread = Some(Unread::begin(control));
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match &mut self.content {
            Content::Whole(whole) => ready!(Pin::new(whole).poll_frame(context)),
            Content::Pieces(pieces) => {
                let mut text = String::with_capacity(CHUNK);
                while text.len() < CHUNK - LONGEST
                    && let Some(piece) = pieces.next()
                {
                    text.push_str(&piece);
                }
                (!text.is_empty()).then(|| Ok(Frame::data(Bytes::from(text))))
            }
            Content::Live { lines, .. } => {
                ready!(lines.poll_recv(context)).map(|line| Ok(Frame::data(line)))
            }
            Content::Done => None,
        };
        if frame.is_none() {
            self.content = Content::Done;
        }
        if let Some(unread) = &mut self.unread {
            unread.moves();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(whole) => whole.is_end_stream(),
            Content::Pieces(_) | Content::Live { .. } => false,
            Content::Done => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(whole) => whole.size_hint(),
            Content::Pieces(_) | Content::Live { .. } => SizeHint::default(),
            Content::Done => SizeHint::with_exact(0),
        }
    }
}
